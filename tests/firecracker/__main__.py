"""Stands in for Firecracker where there is no KVM: the same arguments, API, TAP and vsock, and the machine runs in QEMU.

Whoever packs it puts the program `vsock` (vhost-device-vsock) beside it, and a file `ticks` with what the processor counts.
"""

import fcntl, http.server, json, os, signal, socketserver, struct, subprocess, sys, threading, time, zipfile

if "--version" in sys.argv:
    print("Firecracker v1.10.1\n")
    sys.exit(0)

WORDS = dict(zip(sys.argv[1::2], sys.argv[2::2]))
PACKED = zipfile.ZipFile(sys.argv[0])
# What its own description of the API demands.
NEEDS = {
    "/machine-config": {"vcpu_count", "mem_size_mib"},
    "/boot-source": {"kernel_image_path"},
    "/network-interfaces/eth0": {"iface_id", "host_dev_name"},
    "/vsock": {"guest_cid", "uds_path"},
    "/balloon": {"amount_mib", "deflate_on_oom"},
    "/entropy": set(),
    "/actions": {"action_type"},
}
asked, taps = {}, []


def attach(name):
    """As Firecracker does it: by name, in the network it is in, without any power."""
    tap = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(tap, 0x400454CA, struct.pack("16sH22x", name.encode(), 0x0002 | 0x1000 | 0x4000))
    fcntl.ioctl(tap, 0x400454D8, struct.pack("i", 12))
    taps.append(tap)


def take(path, body):
    if path not in NEEDS:
        return f"Invalid request method and/or path: PUT {path}."
    for need in NEEDS[path] - body.keys():
        return f"missing field `{need}`"
    if "/actions" in asked:
        return "The requested operation is not supported after starting the microVM."
    if path.startswith("/network-interfaces/"):
        attach(body["host_dev_name"])
    asked[path] = body
    return None


def machine():
    """Runs until the machine has ended."""
    size, boot, vsock = asked["/machine-config"], asked["/boot-source"], asked["/vsock"]
    ports = vsock["uds_path"]
    program = os.memfd_create("vsock", os.MFD_CLOEXEC)
    os.write(program, PACKED.read("vsock"))
    device = os.fork()
    if device == 0:
        vm = f"guest-cid={vsock['guest_cid']},uds-path={ports},socket={ports}.device"
        os.execve(program, ["vsock", "--vm", vm], {})
    while not os.path.exists(ports + ".device"):
        time.sleep(0.01)
    memory = f"{size['mem_size_mib']}M"
    arguments = boot["boot_args"].replace("reboot=k", "reboot=t") + " tsc_early_khz=" + PACKED.read("ticks").decode()
    command = ["/usr/bin/qemu-system-x86_64", "-machine", "microvm,x-option-roms=off,isa-serial=on,rtc=on,memory-backend=memory"]
    command += ["-object", f"memory-backend-memfd,id=memory,size={memory},share=on", "-m", memory, "-smp", str(size["vcpu_count"])]
    command += ["-accel", "tcg,tb-size=64", "-cpu", "max", "-global", "virtio-mmio.force-legacy=false"]
    command += ["-kernel", boot["kernel_image_path"], "-initrd", boot["initrd_path"], "-append", arguments, "-serial", "stdio"]
    command += ["-netdev", f"tap,id=net,fd={taps[0]},vhost=off", "-device", "virtio-net-device,netdev=net"]
    command += ["-chardev", f"socket,id=vsock,path={ports}.device", "-device", "vhost-user-vsock-device,chardev=vsock"]
    command += ["-device", "virtio-rng-device", "-nodefaults", "-no-user-config", "-nographic", "-no-reboot"]
    ended = subprocess.run(command, pass_fds=taps, stdin=subprocess.DEVNULL)
    os.kill(device, signal.SIGKILL)
    os._exit(ended.returncode)


class Api(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_PUT(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        try:
            fault = take(self.path, body)
        except OSError as err:
            fault = str(err)
        text = json.dumps({"fault_message": fault}).encode() if fault else b""
        self.send_response_only(400 if fault else 204)
        if fault:
            self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        if fault:
            self.wfile.write(text)
        if self.path == "/actions" and not fault:
            threading.Thread(target=machine).start()


with socketserver.UnixStreamServer(WORDS["--api-sock"], Api) as server:
    server.serve_forever()
