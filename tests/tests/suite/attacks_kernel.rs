//! Attacks on the kernel's side of the wall: system calls, capabilities, namespaces, `/proc` and `/sys`.

use crate::probe::{inside, inside_running, not_refused, outside};
use airlock_tests::{Who, World, is_machine, not_applicable, not_for_a_machine, search, who};

const REFUSED: [&str; 3] = ["EPERM", "ENOSYS", "EACCES"];

/// What `/proc/self/status` says of the powers of a process.
const STATUS: &str =
    "grep -E '^(CapInh|CapPrm|CapEff|CapBnd|CapAmb|NoNewPrivs|Seccomp):' /proc/self/status | tr '\\t' ' '";
/// Docker's default set without NET_RAW and MKNOD.
const DOCUMENTED: &str = "00000000a00405fb";

fn documented_status(set: &str) -> String {
    format!(
        "CapInh: 0000000000000000\nCapPrm: {set}\nCapEff: {set}\nCapBnd: {set}\n\
         CapAmb: 0000000000000000\nNoNewPrivs: 1\nSeccomp: 2\n"
    )
}

#[test]
fn the_main_program_has_the_documented_powers_and_no_more() {
    let world = World::new();

    let status = world.sh([], STATUS).run().succeeded();
    let written = world.sh(["--workspace", "rw"], STATUS).run().succeeded();

    assert_eq!(status, documented_status(DOCUMENTED));
    // Where a workspace that belongs to root of the host is written directly, without SETFCAP too.
    let fewer = if who() == Who::Root { "00000000200405fb" } else { DOCUMENTED };
    assert_eq!(written, documented_status(fewer));
}

#[test]
fn a_further_program_has_the_same_powers_as_the_main_one() {
    let world = World::new();
    let sandbox = world.detached([], "sleep 1000");

    let status = world.exec(&sandbox, STATUS).run().succeeded();

    assert_eq!(status, documented_status(DOCUMENTED));
}

#[test]
fn an_ordinary_user_inside_has_no_powers_at_all() {
    if who() == Who::Single {
        return not_applicable("a single id has no second user inside");
    }
    let world = World::new();

    let status =
        world.sh(["--user", "1000"], "grep -E '^Cap(Prm|Eff|Amb)' /proc/self/status | cut -f2").run();

    assert_eq!(status.succeeded(), "0000000000000000\n".repeat(3));
}

#[test]
fn a_capability_over_the_network_is_refused_with_words() {
    let world = World::new();

    for name in ["NET_RAW", "NET_ADMIN", "cap_net_raw", "ALL"] {
        let refused = world.airlock(["run", "--cap-add", name, "--", "true"]).run();

        assert!([2, 125].contains(&refused.code), "{name}: {refused}");
        assert!(refused.stderr.contains("these capabilities cannot be given"), "{name}: {refused}");
        assert!(refused.stderr.contains("fix:"), "{name}: {refused}");
    }
}

#[test]
fn calls_that_open_the_kernel_are_refused() {
    let world = World::new();
    let probe = r#"
say("io_uring", call("io_uring_setup", 1, 0))
say("userfaultfd", call("userfaultfd", 1))
say("bpf", call("bpf", 9999, 0, 0))
say("perf", call("perf_event_open", 0, 0, -1, -1, 0))
say("keyctl", call("keyctl", 0, -3, 1))
say("add_key", call("add_key", b"user", b"x", b"y", 1, -3))
say("request_key", call("request_key", b"user", b"x", 0, 0))
say("open_by_handle_at", call("open_by_handle_at", -100, 0, 0))
say("init_module", call("init_module", 0, 0, b""))
say("finit_module", call("finit_module", -1, b"", 0))
say("kexec", call("kexec_load", 0, 0, 0, 0xdead0000))
say("reboot", call("reboot", 0, 0, 0, 0))
say("swapon", call("swapon", b"/nothing", 0))
say("syslog", call("syslog", 3, 0, 0))
say("settimeofday", call("settimeofday", 0, 0))
say("acct", call("acct", b"/nothing"))
say("fanotify", call("fanotify_init", 0, 0))
say("pidfd_getfd", call("pidfd_getfd", -1, 0, 0))
"#;

    let within = inside(&world, [], probe);

    assert_eq!(not_refused(&within, &REFUSED), Vec::<String>::new());
    let harmless = r#"say("bpf", call("bpf", 9999, 0, 0)); say("keyctl", call("keyctl", 0, -3, 1))"#;
    assert_ne!(
        not_refused(&outside(&world, harmless), &REFUSED),
        Vec::<String>::new(),
        "the probe cannot fail"
    );
}

#[test]
fn calls_of_other_architectures_are_filtered_like_native_ones() {
    if !cfg!(target_arch = "x86_64") {
        return not_applicable("only x86_64 has two older tables of calls");
    }
    let world = World::new();
    // mov eax, 20 (getpid of i386); int 0x80; ret. Then getpid of x32, made as a native call.
    let probe = r#"
import mmap
code = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
code.write(b"\xb8\x14\x00\x00\x00\xcd\x80\xc3")
at = ctypes.addressof(ctypes.c_char.from_buffer(code))
child = os.fork()
if child == 0:
    os._exit(0 if ctypes.CFUNCTYPE(ctypes.c_int)(at)() == os.getpid() else 1)
say("i386", "done" if os.waitpid(child, 0)[1] == 0 else "refused")
child = os.fork()
if child == 0:
    os._exit(0 if libc.syscall(ctypes.c_long(0x40000000 + 39)) == os.getpid() else 1)
say("x32", "done" if os.waitpid(child, 0)[1] == 0 else "refused")
"#;

    assert_eq!(inside(&world, [], probe), "i386 refused\nx32 refused\n");
    assert!(
        outside(&world, probe).contains("i386 done"),
        "this kernel has no i386 calls, the probe cannot fail"
    );
}

#[test]
fn no_new_namespace_can_be_made_or_entered() {
    let world = World::new();
    let probe = r#"
flags = {"mount": 0x20000, "user": 0x10000000, "pid": 0x20000000, "net": 0x40000000, "ipc": 0x8000000,
         "uts": 0x4000000, "cgroup": 0x2000000, "time": 0x80}
def forked(attempt):
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write, attempt().encode())
        os._exit(0)
    os.close(write)
    os.waitpid(child, 0)
    return os.read(read, 100).decode()
for name, flag in flags.items():
    say("unshare", name, forked(lambda: call("unshare", flag)))
say("clone", forked(lambda: call("clone", 0x10000000 | 17, 0, 0, 0, 0)))
say("clone3", call("clone3", 0, 0))
for name in ["user", "mnt", "pid", "net", "ipc", "uts", "cgroup", "time"]:
    fd = os.open("/proc/self/ns/" + name, os.O_RDONLY)
    say("setns", name, forked(lambda: call("setns", fd, 0)))
"#;

    assert_eq!(not_refused(&inside(&world, [], probe), &REFUSED), Vec::<String>::new());
    assert!(outside(&world, probe).contains("unshare user done"), "the probe cannot fail here");
}

#[test]
fn programs_that_enter_namespaces_fail() {
    let world = World::new();

    let said = world
        .sh([], "nsenter -t 1 -a true 2>/dev/null; echo $?; nsenter -t 1 -m -p true 2>/dev/null; echo $?; unshare -Ur true 2>/dev/null; echo $?")
        .run()
        .succeeded();

    assert_eq!(said, "1\n1\n1\n");
}

#[test]
fn nothing_can_be_mounted_unmounted_or_made_writable() {
    let world = World::new();
    let probe = r#"
def mount(what, where, kind, flags=0, options=None):
    return call("mount", what, where, kind, flags, options)
say("tmpfs", mount(b"none", b"/mnt", b"tmpfs"))
say("proc", mount(b"proc", b"/mnt", b"proc"))
say("sysfs", mount(b"sysfs", b"/mnt", b"sysfs"))
say("cgroup", mount(b"cgroup", b"/mnt", b"cgroup", 0, b"memory"))
say("cgroup2", mount(b"cgroup2", b"/mnt", b"cgroup2"))
say("debugfs", mount(b"none", b"/mnt", b"debugfs"))
say("devtmpfs", mount(b"none", b"/mnt", b"devtmpfs"))
say("bind", mount(b"/etc", b"/mnt", None, 4096))
say("remount", mount(b"none", b"/proc/sys", None, 32 | 4096))
say("remount-sys", mount(b"none", b"/sys", None, 32))
say("umount", call("umount2", b"/proc/sys", 2))
say("umount-mask", call("umount2", b"/proc/keys", 2))
say("pivot", call("pivot_root", b"/", b"/mnt"))
say("fsopen", call("fsopen", b"tmpfs", 0))
say("open_tree", call("open_tree", -100, b"/", 1))
say("move_mount", call("move_mount", -1, b"", -1, b"", 4))
say("setattr", call("mount_setattr", -100, b"/", 0, 0, 0))
"#;

    assert_eq!(not_refused(&inside(&world, [], probe), &REFUSED), Vec::<String>::new());
}

#[test]
fn with_the_power_to_mount_the_masks_still_hold() {
    if not_for_a_machine("its kernel is its own, and so is what it tells to whoever may mount") {
        return;
    }
    let world = World::new();
    let probe = r#"
def mount(what, where, kind, flags=0, options=None):
    return call("mount", what, where, kind, flags, options)
os.makedirs("/tmp/m", exist_ok=True)
say("own", mount(b"none", b"/tmp/m", b"tmpfs"))
say("proc", mount(b"proc", b"/tmp/m", b"proc"))
say("sysfs", mount(b"sysfs", b"/tmp/m", b"sysfs"))
say("cgroup", mount(b"cgroup", b"/tmp/m", b"cgroup", 0, b"memory"))
say("cgroup2", mount(b"cgroup2", b"/tmp/m", b"cgroup2"))
say("umount", call("umount2", b"/proc/keys", 2))
say("umount-sys", call("umount2", b"/proc/sys", 2))
say("remount", mount(b"none", b"/proc/sys", None, 32 | 4096))
say("write", tried(lambda: open("/proc/sys/kernel/core_pattern", "r+")))
"#;

    let said = inside(&world, ["--cap-add", "SYS_ADMIN"], probe);

    let (own, others) = said.split_once('\n').expect("two lines");
    assert_eq!(own, "own done", "the probe cannot fail");
    assert_eq!(
        not_refused(others, &["EPERM", "EINVAL", "EACCES", "EROFS", "ENODEV", "EBUSY"]),
        Vec::<String>::new()
    );
}

#[test]
fn leaving_a_chroot_leads_back_to_the_sandbox_only() {
    let world = World::new();
    let secret = world.aside("secret").join("canary");
    std::fs::write(&secret, "canary").expect("a file of the host");
    let probe = format!(
        r#"
os.makedirs("/tmp/jail", exist_ok=True)
root = os.open("/", os.O_RDONLY)
os.chroot("/tmp/jail")
os.fchdir(root)
for _ in range(64):
    os.chdir("..")
os.chroot(".")
say(tried(lambda: open("{0}")), tried(lambda: open("/proc/1/root{0}")), os.path.exists("/proc/self"))
"#,
        secret.display()
    );

    let said = inside(&world, ["--workspace", "none"], &probe);

    assert!(["ENOENT ENOENT True\n", "ENOENT EACCES True\n"].contains(&said.as_str()), "{said}");
}

#[test]
fn only_families_of_sockets_the_wall_knows_can_be_made() {
    let world = World::new();
    let probe = r#"
for family in range(0, 46):
    for kind in (1, 2, 3):
        if tried(lambda: socket.socket(family, kind).close()) == "done":
            say("family", family, kind)
"#;

    let said = inside(&world, [], probe);

    // Unix, IPv4, IPv6, netlink; raw Unix sockets are datagram sockets, raw netlink sockets are netlink sockets.
    let expected: Vec<String> = [(1, 1), (1, 2), (1, 3), (2, 1), (2, 2), (10, 1), (10, 2), (16, 2), (16, 3)]
        .iter()
        .map(|(family, kind)| format!("family {family} {kind}"))
        .collect();
    assert_eq!(said.lines().collect::<Vec<_>>(), expected);
}

#[test]
fn the_network_has_nothing_but_its_own_loopback() {
    let world = World::new();
    let probe = r#"
say(sorted(name for _, name in socket.if_nameindex()))
say(len(open("/proc/net/route").read().splitlines()) - 1)
say(tried(lambda: socket.create_connection(("192.0.2.1", 80), 5)))
say(tried(lambda: socket.create_connection(("127.0.0.1", 1), 5)))
s = socket.socket()
say(tried(lambda: s.setsockopt(socket.SOL_SOCKET, 36, 7)))
say(tried(lambda: socket.socket(2, 3, 1)))
n = socket.socket(16, 3, 0)
# RTM_NEWLINK of a dummy interface, answered by an error message.
n.send(struct.pack("IHHIIBxHiII", 32, 16, 0x605, 1, 0, 0, 0, 0, 0, 0))
say(word(-struct.unpack("i", n.recv(4096)[16:20])[0]))
"#;

    let said = inside(&world, [], probe);

    // A machine has a cable, whose other end is the wall.
    let devices = if is_machine() { "['eth0', 'lo']\n1" } else { "['lo']\n0" };
    assert_eq!(said, format!("{devices}\nECONNREFUSED\nECONNREFUSED\nEPERM\nEPERM\nEPERM\n"));
}

#[test]
fn the_seat_of_the_keeper_can_be_neither_reached_nor_changed() {
    let world = World::new();
    let probe = r#"
for host in ("127.0.0.1", "198.18.0.1", "198.18.0.2", "::1"):
    say(*(tried(lambda: socket.create_connection((host, port), 5)) for port in (61097, 61098)))
say(tried(lambda: socket.socket(2, 2).sendto(b"?", ("127.0.0.1", 61098))))
say(tried(lambda: socket.socket(2, 2).sendto(b"?", ("192.0.2.1", 443))))
say(tried(lambda: socket.create_connection(("2001:db8::1", 443), 5)))
try: n = socket.socket(16, 3, 12)
except OSError as err: say(word(err.errno)); raise SystemExit
def asked(kind, body):
    n.send(struct.pack("IHHII", 16 + len(body), kind, 5, 1, 0) + body)
    return word(-struct.unpack("i", n.recv(4096)[16:20])[0])
# nf_tables: a transaction, a look at the tables. The log: its group. Connection tracking: forget everything.
say(asked(0x10, b"\0\0\0\x0a"), asked(0xa01, b"\1\0\0\0"), asked(0x401, b"\0\0\0\1\5\0\1\0\1\0\0\0"), asked(0x102, b"\2\0\0\0"))
"#;

    let said = inside(&world, [], probe);

    // At one port of its own address a machine has its carrier, which closes what does not come from the keeper.
    let carrier = if is_machine() { "done" } else { "ECONNREFUSED" };
    let refused = "ECONNREFUSED ECONNREFUSED\n";
    let refused = format!("{refused}{carrier} ECONNREFUSED\n{refused}{refused}");
    // The kernel of a machine has no filter of packets, and a datagram of its is refused by an answer.
    let rest = match is_machine() {
        true => "done\ndone\nECONNREFUSED\nEPROTONOSUPPORT\n",
        false => "EPERM\nEPERM\nECONNREFUSED\nEPERM EPERM EPERM EPERM\n",
    };
    assert_eq!(said, refused + rest);
}

#[test]
fn abstract_sockets_of_the_host_are_in_another_network() {
    use std::os::{
        linux::net::SocketAddrExt,
        unix::net::{SocketAddr, UnixListener},
    };
    let world = World::new();
    let name = format!("airlock-canary-{}", std::process::id());
    let address = SocketAddr::from_abstract_name(&name).expect("a short name");
    let _listener = UnixListener::bind_addr(&address).expect("an abstract socket");
    let probe = format!("say(tried(lambda: socket.socket(socket.AF_UNIX).connect('\\0{name}')))");

    assert_eq!(inside(&world, [], &probe), "ECONNREFUSED\n");
    assert_eq!(outside(&world, &probe), "done\n");
}

#[test]
fn pid_1_can_neither_be_traced_nor_looked_into_nor_killed() {
    let world = World::new();
    let probe = r#"
SEIZE, ATTACH = 0x4206, 16
say("seize", call("ptrace", SEIZE, 1, 0, 0))
say("attach", call("ptrace", ATTACH, 1, 0, 0))
for name in ["exe", "cwd", "root", "fd/0", "fd/3"]:
    say(name, tried(lambda: os.readlink("/proc/1/" + name)))
for name in ["mem", "environ", "maps", "auxv", "fd/3", "exe", "stack", "syscall"]:
    say("open", name, tried(lambda: open("/proc/1/" + name, "rb").read(1)))
for name in ["mem", "exe", "oom_score_adj"]:
    say("write", name, tried(lambda: os.open("/proc/1/" + name, os.O_WRONLY)))
buffer = ctypes.create_string_buffer(8)
vector = struct.pack("QQ", ctypes.addressof(buffer), 8)
say("vm_read", call("process_vm_readv", 1, vector, 1, vector, 1, 0))
say("vm_write", call("process_vm_writev", 1, vector, 1, vector, 1, 0))
for signal in (9, 15, 19):
    os.kill(1, signal)
"#;

    let said = inside(&world, [], probe);

    let refusals = ["EPERM", "EACCES", "ENOSYS", "ENXIO"];
    let left = not_refused(&said, &refusals);
    assert!(left.iter().all(|line| line == "write oom_score_adj done"), "{left:?}");
    assert!(said.contains("seize EPERM"), "{said}");
}

#[test]
fn a_debugger_works_on_the_programs_own_children_only() {
    let world = World::new();
    let sandbox = world.detached([], "sleep 1000");
    let probe = r#"
child = os.fork()
if child == 0:
    os.read(os.pipe()[0], 1)
say(call("ptrace", 0x4206, child, 0, 0), call("ptrace", 0x4206, 1, 0, 0))
os.kill(child, 9)
"#;

    assert_eq!(inside_running(&world, &sandbox, probe), "done EPERM\n");
}

#[test]
fn what_proc_and_sys_tell_about_the_host_is_masked() {
    let world = World::new();
    let probe = r#"
for path in ["acpi", "asound", "kcore", "keys", "kmsg", "kpagecgroup", "kpagecount", "kpageflags", "latency_stats",
             "sched_debug", "scsi", "sysrq-trigger", "timer_list", "timer_stats", "interrupts"]:
    path = "/proc/" + path
    if os.path.isdir(path):
        say(path, os.listdir(path))
    elif os.path.exists(path):
        say(path, len(open(path, "rb").read(10)))
say("firmware", os.listdir("/sys/firmware"))
for name in [name for name in ["kallsyms", "modules", "iomem"] if os.path.exists("/proc/" + name)]:
    words = [w for line in open("/proc/" + name) for w in line.replace("-", " ").split()]
    say(name, [w for w in words if w.startswith(("ffff", "0xffff")) and len(w) >= 16][:1])
say("cgroup", os.listdir("/sys/fs/cgroup"))
say("debug", os.listdir("/sys/kernel/debug") if os.path.exists("/sys/kernel/debug") else [])
"#;

    let said = inside(&world, [], probe);

    for line in said.lines() {
        assert!(line.ends_with(" 0") || line.ends_with(" []"), "{line}");
    }
    assert!(
        said.contains("/proc/kpagecgroup 0") || !std::path::Path::new("/proc/kpagecgroup").exists(),
        "{said}"
    );
}

#[test]
fn no_setting_of_the_kernel_can_be_changed() {
    let world = World::new();
    let probe = r#"
def walk(top):
    for folder, _, files in os.walk(top):
        for name in files:
            path = os.path.join(folder, name)
            if tried(lambda: os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))) == "done":
                say("writable", path)
walk("/proc/sys")
walk("/sys")
for path in ["/proc/sysrq-trigger", "/proc/mtrr", "/proc/irq/0/smp_affinity", "/proc/sys/kernel/core_pattern",
             "/proc/sys/vm/drop_caches", "/proc/sys/kernel/modprobe", "/proc/bus/pci/00/00.0"]:
    if os.path.exists(path):
        say(path, tried(lambda: os.open(path, os.O_WRONLY)))
"#;

    let said = inside(&world, [], probe);

    let refused = not_refused(&said, &["EROFS", "EACCES", "EPERM"]);
    // The mask of a file is the null device: what is written there is gone.
    assert!(refused.iter().all(|line| line == "/proc/sysrq-trigger done"), "{refused:?}");
    let mask = world.sh([], "stat -c %t:%T /proc/sysrq-trigger /proc/keys 2>/dev/null").run().stdout;
    assert!(mask.lines().all(|device| device == "1:3") && !mask.is_empty(), "{mask}");
}

#[test]
fn no_release_agent_of_control_groups_is_in_reach() {
    let world = World::new();

    let found = world
        .sh(
            [],
            &format!(
                "{}; find /sys -name release_agent 2>/dev/null; ls -A /sys/fs/cgroup",
                search("-name release_agent")
            ),
        )
        .run();

    assert_eq!(found.stdout, "", "{found}");
}

#[test]
fn names_of_users_that_are_no_users_are_refused() {
    let world = World::new();

    for user in [
        "18446744073709551616",
        "-1",
        "0x0",
        "4294967296",
        "4294967295",
        "",
        "no-such-user",
        "0:-1",
        "1:2:3",
        "../0",
        "0\n0",
    ] {
        let refused = world.airlock(["run", &format!("--user={user}"), "--", "id", "-u"]).run();

        assert!([2, 125].contains(&refused.code), "{user:?}: {refused}");
        assert_eq!(refused.stdout, "", "{user:?}");
    }
}

#[test]
fn a_crash_writes_no_memory_image_to_the_host() {
    let world = World::new();
    let script = "ulimit -c; sh -c 'kill -SEGV $$'; ls -A";

    let mut command = std::process::Command::new("prlimit");
    command
        .args(["--core=unlimited", "--"])
        .arg(airlock_tests::binary())
        .args(["run", "--", "sh", "-c", script]);
    command.current_dir(world.work()).env("AIRLOCK_HOME", world.home());
    let output = command.output().expect("prlimit runs");

    assert_eq!(String::from_utf8_lossy(&output.stdout), "0\n");
    assert_eq!(std::fs::read_dir(world.work()).expect("the workspace").count(), 0);
}
