//! Root of a machine, with every capability that can be given, tries to reach who runs it, the host, and other machines.

use airlock_tests::{Who, World, eventually, not_applicable, who};
use std::{fs, process::Stdio};

const ROOT: [&str; 8] =
    ["--backend", "microvm", "--user", "root", "--cap-add", "SYS_ADMIN", "--cap-add", "SYS_PTRACE"];

/// Each line that it says is something that it reached.
const REACHED: &str = r#"
import ctypes, errno, glob, os, socket, stat
libc = ctypes.CDLL(None, use_errno=True)
def reached(what, *rest): print("reached", what, *rest, flush=True)

# Devices: of the ports to the host, of memory, of the monitor. A machine has no others than its own, wherever they are mounted.
os.makedirs("/tmp/dev", exist_ok=True)
libc.mount(b"none", b"/tmp/dev", b"devtmpfs", 0, None)
for path in glob.glob("/tmp/dev/vport*"):
    try:
        port = os.open(path, os.O_RDWR | os.O_NONBLOCK)
        reached(path)
        os.write(port, os.urandom(4096))
    except OSError: pass
for path in glob.glob("/dev/vport*") + ["/dev/mem", "/dev/port", "/dev/kvm", "/dev/vhost-net", "/dev/net/tun", "/dev/fuse", "/dev/ttyS0", "/dev/console", "/dev/hvc0"]:
    try: os.close(os.open(path, os.O_RDWR)); reached(path)
    except OSError: pass
majors = {name: int(number) for number, name in (line.split() for line in open("/proc/devices").read().split("Block")[0].splitlines()[1:] if line.strip())}
for name, major in majors.items():
    if name in ("virtio-portsdev", "mem", "ttyS", "misc", "hvc"):
        for minor in (0, 1, 2, 3) if name != "mem" else (1, 4):
            for place in ("/tmp", "/dev/shm", "/dev", "/root"):
                node = f"{place}/node-{major}-{minor}"
                try:
                    os.mknod(node, 0o600 | stat.S_IFCHR, os.makedev(major, minor))
                    port = os.open(node, os.O_RDWR | os.O_NONBLOCK)
                    reached(node, name)
                    os.write(port, os.urandom(4096))
                except OSError: pass

# Ports of the processor, through which a monitor is spoken to.
if libc.iopl(3) == 0: reached("iopl")
if libc.ioperm(0x3f8, 8, 1) == 0: reached("ioperm")

# Sockets to whoever runs it.
for port in (1, 1024, 5000, 9999):
    try:
        s = socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM); s.settimeout(1)
        s.connect((2, port)); reached("vsock", port)
    except OSError: pass
for top in ("/run", "/tmp", "/var", "/dev"):
    for folder, _, names in os.walk(top):
        for name in names:
            path = os.path.join(folder, name)
            try:
                if not stat.S_ISSOCK(os.lstat(path).st_mode): continue
                s = socket.socket(socket.AF_UNIX); s.connect(path); reached(path)
            except OSError: pass
for line in open("/proc/net/unix").read().splitlines()[1:]:
    name = line.split()[-1]
    if name.startswith("@"):
        try: s = socket.socket(socket.AF_UNIX); s.connect("\0" + name[1:]); reached(name)
        except OSError: pass

# File systems that a monitor could share, the kernel's own doors, and modules.
for kind, source in (("9p", "host"), ("9p", "/"), ("virtiofs", "host"), ("virtiofs", "myfs")):
    os.makedirs("/tmp/mnt", exist_ok=True)
    if libc.mount(source.encode(), b"/tmp/mnt", kind.encode(), 0, None) == 0:
        if os.listdir("/tmp/mnt"): reached("mount", kind, source)
        libc.umount2(b"/tmp/mnt", 2)
for path in ("/proc/sysrq-trigger", "/proc/kcore", "/proc/sys/kernel/core_pattern", "/proc/sys/kernel/modprobe"):
    try:
        with open(path, "r+b", buffering=0) as file:
            if path.startswith("/proc/sys/") or file.read(1): file.write(b"|/x"); reached(path)
    except OSError: pass
if libc.syscall(175, b"", 0, b"") == 0: reached("init_module")
if libc.reboot(0x01234567) == 0: reached("reboot")

# Processes that are not its own: the carrier, the monitor, the keeper.
for pid in filter(str.isdigit, os.listdir("/proc")):
    if int(pid) == os.getpid(): continue
    words = open(f"/proc/{pid}/cmdline").read()
    if any(word in words for word in ("qemu", "airlock-carrier", "airlock keep", "/init")): reached("process", pid, words)
for signal in (9, 19): libc.kill(1, signal)
print("done", flush=True)
"#;

#[test]
fn root_of_a_machine_reaches_neither_who_runs_it_nor_the_host_nor_another_machine() {
    let Some(world) = World::with_machines() else { return };
    let other = world.detached(["--backend", "microvm"], "echo mine > /tmp/secret; sleep 1000");
    let id = world.detached(ROOT, "sleep 1000");
    let keeper = world.state(&id)["keeper_pid"].clone();

    let tried = world.airlock(["exec", "--user", "root", &id, "python3", "-c", REACHED]).run();

    assert_eq!(tried.stdout, "done\n", "{tried}");
    // Nobody was hurt.
    assert_eq!(world.state(&id)["keeper_pid"], keeper);
    world.exec(&id, "true").run().succeeded();
    world.exec(&other, "grep -q mine /tmp/secret").run().succeeded();
}

#[test]
fn the_monitor_has_nothing_but_its_own() {
    let Some(world) = World::with_machines() else { return };
    let id = world.detached(["--backend", "microvm"], "sleep 1000");
    let init = world.state(&id)["init_pid"].as_u64().expect("a pid");
    let children = fs::read_to_string(format!("/proc/{init}/task/{init}/children")).expect("children");
    let monitor = children.split_whitespace().next().expect("a monitor").to_owned();

    // Whoever escapes into it finds these files and no others; as nobody of the host, with one id.
    let Ok(root) = fs::read_dir(format!("/proc/{monitor}/root/")) else { return unseen() };
    let mut names: Vec<String> =
        root.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.retain(|name| !matches!(name.as_str(), "lib" | "lib32" | "lib64" | "libx32"));
    names.sort();
    assert_eq!(names, ["dev", "etc", "initramfs", "kernel", "usr"]);
    let map = fs::read_to_string(format!("/proc/{monitor}/uid_map")).expect("a map");
    let fields: Vec<&str> = map.split_whitespace().collect();
    assert_eq!((fields[0], fields[2]), ("65534", "1"), "{map}");
    let own = |space: &str| fs::read_link(format!("/proc/{monitor}/ns/{space}")).expect("a namespace");
    let inits = |space: &str| fs::read_link(format!("/proc/{init}/ns/{space}")).expect("a namespace");
    for space in ["user", "mnt", "net", "ipc", "uts"] {
        assert_ne!(own(space), inits(space), "{space}");
    }
    // Its descriptors: its streams, ports, orders, TAP, and what it makes for itself.
    let Ok(open) = fs::read_dir(format!("/proc/{monitor}/fd")) else { return unseen() };
    for descriptor in open.flatten() {
        let leads = fs::read_link(descriptor.path()).map(|path| path.to_string_lossy().into_owned());
        let leads = leads.unwrap_or_default();
        let is_known = ["socket:", "anon_inode:", "pipe:", "/dev/null", "/dev/net/tun", "/memfd:"]
            .iter()
            .any(|known| leads.starts_with(known));
        let is_own = leads.ends_with("/machine.log") || leads.ends_with(".memory") || leads == "/dev/kvm";
        assert!(is_known || is_own, "the monitor has {leads} open");
    }
}

/// What another's process has is seen by host root.
fn unseen() {
    assert_ne!(who(), Who::Root);
    not_applicable("what another's process has can be seen by root only");
}

#[test]
fn a_program_that_floods_does_not_hold_up_another_one() {
    let Some(world) = World::with_machines() else { return };
    let id = world.detached(["--backend", "microvm"], "sleep 1000");
    // One whose reader never reads, and one whose reader reads all.
    let mut stuck = world.exec(&id, "touch /tmp/stuck; exec yes stuck").into_command();
    let mut stuck = stuck.stdout(Stdio::piped()).spawn().expect("it starts");
    let flood = world.exec(&id, "touch /tmp/flood; exec yes flood").start();
    eventually("both flood", || (world.exec(&id, "ls /tmp/stuck /tmp/flood").run().code == 0).then_some(()));

    for round in 0..5 {
        let said = world.exec(&id, &format!("echo {round}; echo {round} > /tmp/round; cat /tmp/round")).run();
        assert_eq!(said.stdout, format!("{round}\n{round}\n"));
    }
    world.exec(&id, "head -c 2000000 /dev/zero | wc -c").run().succeeded();

    drop(flood);
    stuck.kill().expect("it can be ended");
    stuck.wait().expect("it ends");
}
