//! What of the host's files is to be seen, and what can be written.

use airlock_tests::{Who, World, is_machine, not_applicable, who};
use std::{fs, os::unix::fs::MetadataExt as _, path::Path};

#[test]
fn the_workspace_is_at_its_own_path_and_writes_reach_the_host_where_that_was_asked_for() {
    let world = World::new();
    world.write("in", "from outside\n");

    let script = "pwd; cat in; echo from inside > out; mkdir -p a/b; chmod 750 a";
    let output = world.sh(["--workspace", "rw"], script).run().succeeded();

    assert_eq!(output, format!("{}\nfrom outside\n", world.work().display()));
    assert_eq!(world.read("out"), "from inside\n");
    assert_eq!(world.work().join("a").metadata().unwrap().mode() & 0o777, 0o750);
}

#[test]
fn the_workspaces_owner_is_the_user_inside_and_stays_the_owner_outside() {
    let world = World::new();
    world.write("in", "");
    let owner = world.work().metadata().unwrap().uid();

    for user in ["0", "1234", "daemon"] {
        let script = format!(
            "stat -c %u . in | sort -u; id -u; echo x > out-{user}; mkdir dir-{user}; ln -s in link-{user}"
        );
        let output =
            world.sh(["--workspace", "rw", "--user", user, "-e", "HOME=/tmp"], &script).run().succeeded();

        let mut lines = output.lines();
        assert_eq!(lines.next(), lines.next(), "{user}: {output}");
        for made in ["out", "dir", "link"] {
            let made = world.work().join(format!("{made}-{user}"));
            assert_eq!(made.symlink_metadata().unwrap().uid(), owner, "{}", made.display());
        }
    }
}

#[test]
fn as_host_root_a_workspace_of_another_owner_is_the_inside_users_too() {
    if who() != Who::Root {
        return not_applicable("only root can enter the workspace of another owner");
    }
    let world = World::new();
    std::os::unix::fs::chown(world.work(), Some(4321), Some(4321)).unwrap();

    let output =
        world.sh(["--workspace", "rw"], "stat -c %u:%g .; echo x > out; mkdir dir").run().succeeded();

    assert_eq!(output, "0:0\n");
    for name in ["out", "dir"] {
        let made = world.work().join(name).metadata().unwrap();
        assert_eq!((made.uid(), made.gid()), (4321, 4321), "{name}");
    }
}

#[test]
fn a_workspace_can_be_read_only_or_not_there() {
    let world = World::new();
    world.write("in", "text\n");

    let read_only = world.sh(["--workspace", "ro"], "cat in; touch out").run();
    let none = world.sh(["--workspace", "none"], &format!("pwd; test ! -e {}", world.work().display())).run();

    assert!(
        read_only.code != 0 && read_only.stdout == "text\n" && read_only.stderr.contains("Read-only"),
        "{read_only}"
    );
    assert_eq!(none.succeeded(), "/\n");
    assert!(!world.work().join("out").exists());
}

#[test]
fn workdir_is_absolute_or_from_the_workspace() {
    let world = World::new();
    fs::create_dir(world.work().join("sub")).unwrap();

    assert_eq!(
        world.airlock(["run", "-w", "sub", "--", "pwd"]).run().succeeded(),
        format!("{}/sub\n", world.work().display())
    );
    assert_eq!(world.airlock(["run", "--workdir", "/usr", "--", "pwd"]).run().succeeded(), "/usr\n");
}

#[test]
fn directories_that_are_no_project_are_refused_with_a_fix() {
    let world = World::new();
    let inside_home = world.home().join("sandboxes");
    world.airlock(["ls"]).run().succeeded();
    let home = std::env::var("HOME").unwrap();
    let above = world.home().parent().unwrap().display().to_string();
    let own = inside_home.display().to_string();

    for path in [
        "/", "/etc", "/usr", "/usr/lib", "/var", "/home", "/proc", "/sys", "/dev", "/boot", &home, &above,
        &own,
    ] {
        if !Path::new(path).exists() {
            continue;
        }
        let workspace = world.airlock(["run", "--", "true"]).dir(path).run();
        let mount = world.airlock(["run", "--mount", &format!("{path}:/data"), "--", "true"]).run();

        assert_eq!((workspace.code, mount.code), (125, 125), "{path}: {workspace} {mount}");
        assert!(workspace.stderr.contains(" cannot be a workspace\n  why:  "), "{path}: {workspace}");
        assert!(workspace.stderr.contains("\n  fix:  "), "{path}: {workspace}");
        assert!(
            mount.stderr.contains(" cannot be a mount source\n  why:  ")
                && mount.stderr.contains("\n  fix:  "),
            "{path}: {mount}"
        );
    }
}

#[test]
fn a_link_to_a_refused_directory_is_refused() {
    let world = World::new();
    std::os::unix::fs::symlink("/etc", world.work().join("link")).unwrap();
    let link = world.work().join("link").display().to_string();

    let output =
        world.airlock(["run", "--mount", &format!("{link}:/data"), "--", "cat", "/data/passwd"]).run();

    assert_eq!(output.code, 125, "{output}");
}

#[test]
fn mounts_are_read_write_or_read_only() {
    let world = World::new();
    let shared = world.aside("shared");
    fs::write(shared.join("in"), "text\n").unwrap();
    let writable = format!("{}:/data", shared.display());
    let read_only = format!("{}:/data:ro", shared.display());

    assert_eq!(
        world.sh(["--mount", &writable], "cat /data/in; echo x > /data/out").run().succeeded(),
        "text\n"
    );
    let refused = world.sh(["--mount", &read_only], "cat /data/in; echo y > /data/out").run();

    assert!(refused.code != 0 && refused.stdout == "text\n", "{refused}");
    assert_eq!(fs::read_to_string(shared.join("out")).unwrap(), "x\n");
    assert_eq!(shared.join("out").metadata().unwrap().uid(), shared.metadata().unwrap().uid());
}

#[test]
fn a_single_file_can_be_mounted() {
    let world = World::new();
    let file = world.aside("shared").join("config");
    fs::write(&file, "a = 1\n").unwrap();

    let output =
        world.sh(["--mount", &format!("{}:/opt/my/config:ro", file.display())], "cat /opt/my/config").run();
    let own =
        world.sh(["--mount", &format!("{}:/root/config", file.display())], "echo b >> /root/config").run();

    if who() == Who::Root {
        assert_eq!(output.succeeded(), "a = 1\n");
    }
    own.succeeded();
    assert_eq!(fs::read_to_string(&file).unwrap(), "a = 1\nb\n");
}

#[test]
fn a_mount_source_that_does_not_exist_is_told() {
    let world = World::new();

    let stderr = world.airlock(["run", "--mount", "/no/such/source:/data", "--", "true"]).run().failed(125);

    assert!(stderr.starts_with("error: ") && stderr.contains("/no/such/source"), "{stderr}");
}

#[test]
fn nothing_is_mounted_over_what_is_always_the_sandboxes_own() {
    let world = World::new();
    let shared = world.aside("shared");

    for target in ["/proc", "/proc/sys", "/sys", "/dev", "/dev/shm"] {
        let output =
            world.airlock(["run", "--mount", &format!("{}:{target}", shared.display()), "--", "true"]).run();
        assert_eq!(output.code, 125, "{target}: {output}");
        let output = world.airlock(["run", "--tmpfs", target, "--", "true"]).run();
        assert!(output.code != 0, "{target}: {output}");
    }
}

#[test]
fn a_tmpfs_is_empty_writable_and_of_its_size() {
    let world = World::new();
    let script = "ls -A /data | wc -l; stat -f -c %T /data; head -c 512K /dev/zero > /data/a && echo fits; \
                  head -c 2M /dev/zero > /data/b 2>/dev/null || echo full";

    let output = world.sh(["--tmpfs", "/data:1M"], script).run();

    // The files of a machine are served to it, whatever they lie on.
    let kind = if is_machine() { "fuseblk" } else { "tmpfs" };
    assert_eq!(output.succeeded(), format!("0\n{kind}\nfits\nfull\n"));
}

#[test]
fn a_read_only_root_leaves_the_workspace_mounts_and_temporary_directories_writable() {
    let world = World::new();
    let script = "for d in / /usr /etc /root /home /opt /var /srv; do touch $d/x 2>/dev/null && echo $d; done; \
                  for d in . /tmp /var/tmp /run /dev/shm /data; do touch $d/x || echo not $d; done; echo end";

    let output = world.sh(["--read-only", "--tmpfs", "/data"], script).run();

    assert_eq!(output.succeeded(), "end\n");
}

#[test]
fn home_and_temporary_directories_are_the_sandboxes_own() {
    let world = World::new();
    let mark = Path::new("/tmp").join(format!("mark-{}", std::process::id()));
    fs::write(&mark, "").unwrap();

    let output = world.sh([], &format!("for d in ~ /tmp /var/tmp /run /dev/shm; do touch $d/x && echo $d; done; ls /home; ls -A ~; ls {}", mark.display()));
    let output = output.run();
    fs::remove_file(&mark).unwrap();

    assert_eq!(output.stdout, "/root\n/tmp\n/var/tmp\n/run\n/dev/shm\nx\n");
    assert_ne!(output.code, 0);
    assert!(!Path::new("/dev/shm/x").exists() && !Path::new("/var/tmp/x").exists());
}

#[test]
fn temporary_directories_are_open_to_all_users_inside() {
    let world = World::new();

    let modes = world.sh([], "stat -c '%a %u' /tmp /var/tmp /dev/shm").run().succeeded();

    assert_eq!(modes, "1777 0\n1777 0\n1777 0\n");
}

#[test]
fn the_home_of_another_user_is_made() {
    let world = World::new();

    let output = world.sh(["--user", "daemon"], "echo $HOME; cd && touch x && ls -A").run().succeeded();

    assert!(output.ends_with("\nx\n"), "{output}");
}

#[test]
fn files_of_identity_are_ours() {
    let world = World::new();

    let output = world.sh([], "cat /etc/hosts; grep -c '' /etc/resolv.conf >/dev/null && cat /etc/resolv.conf; getent passwd 0; getent group 0").run().succeeded();

    assert!(output.contains("127.0.0.1\tlocalhost"), "{output}");
    assert!(output.contains("root:x:0:0:"), "{output}");
    let host = fs::read_to_string("/etc/resolv.conf").unwrap_or_default();
    for server in host.lines().filter_map(|line| line.strip_prefix("nameserver ")) {
        assert!(!output.contains(&format!("nameserver {server}")), "{output}");
    }
}

#[test]
fn people_of_the_host_are_not_listed() {
    let world = World::new();

    let passwd = world.airlock(["run", "--", "cat", "/etc/passwd"]).run().succeeded();

    for line in fs::read_to_string("/etc/passwd").unwrap().lines() {
        let mut fields = line.split(':');
        let (name, uid) = (fields.next().unwrap(), fields.nth(1).and_then(|uid| uid.parse::<u32>().ok()));
        let is_person = uid.is_some_and(|uid| (1000..60000).contains(&uid));
        assert!(!is_person || !passwd.contains(&format!("{name}:")), "{name} is listed");
    }
}

#[test]
fn sockets_in_the_workspace_cannot_be_connected_to() {
    let world = World::new();
    fs::create_dir(world.work().join("sub")).unwrap();
    let _one = std::os::unix::net::UnixListener::bind(world.work().join("one.sock")).unwrap();
    let _two = std::os::unix::net::UnixListener::bind(world.work().join("sub/two.sock")).unwrap();
    let script = "import socket\nfor p in ('one.sock', 'sub/two.sock'):\n try:\n  socket.socket(socket.AF_UNIX).connect(p); print('connected')\n except OSError as e: print('refused')";

    for mode in ["cow", "rw", "ro"] {
        let output = world.python(["--workspace", mode], script).run();
        assert_eq!(output.succeeded(), "refused\nrefused\n", "{mode}");
    }
    let own = "import socket\ns=socket.socket(socket.AF_UNIX); s.bind('own.sock'); s.listen()\nsocket.socket(socket.AF_UNIX).connect('own.sock'); print('connected')";
    for mode in ["cow", "rw"] {
        assert_eq!(world.python(["--workspace", mode], own).run().succeeded(), "connected\n", "{mode}");
    }
}

#[test]
fn processes_of_the_host_are_not_to_be_seen() {
    let world = World::new();

    let output = world.sh([], "for p in /proc/[0-9]*; do echo ${p#/proc/}; done | sort -n | head -1; ls -d /proc/[0-9]* | wc -l; echo $$").run().succeeded();

    let numbers: Vec<u32> = output.lines().map(|line| line.trim().parse().unwrap()).collect();
    assert!(numbers[0] == 1 && numbers[1] <= 5 && numbers[2] <= 10, "{output}");
}

#[test]
fn sys_is_read_only_and_dev_is_small() {
    let world = World::new();

    let sys = world.sh([], "touch /sys/x; echo 1 > /sys/kernel/profiling").run();
    let dev = world.sh([], "ls /dev").run().succeeded();
    let works = world.sh([], "echo x > /dev/null && head -c 3 /dev/zero | wc -c && head -c 3 /dev/urandom | wc -c && ! head -c 1 /dev/zero > /dev/full && test -c /dev/tty").run();

    assert!(sys.code != 0, "{sys}");
    assert_eq!(
        dev.split_whitespace().collect::<Vec<_>>(),
        [
            "fd", "full", "mqueue", "null", "ptmx", "pts", "random", "shm", "stderr", "stdin", "stdout",
            "tty", "urandom", "zero"
        ]
    );
    assert!(works.code == 0 && works.stdout == "3\n3\n" && works.stderr.contains("No space left"), "{works}");
}

#[test]
fn the_network_is_loopback_and_nothing_else() {
    let world = World::new();
    let script = r#"
import socket, time
print(sorted(name for _, name in socket.if_nameindex()))
server = socket.socket(); server.bind(('127.0.0.1', 80)); server.listen()
client = socket.create_connection(('127.0.0.1', 80)); server.accept()[0].sendall(b'low port'); print(client.recv(20).decode())
six = socket.socket(socket.AF_INET6); six.bind(('::1', 443)); six.listen(); socket.create_connection(('::1', 443)); print('six')
for address in ('192.0.2.1', '10.0.0.1', '169.254.169.254', '8.8.8.8'):
    began = time.monotonic()
    try:
        socket.create_connection((address, 80), timeout=5); print('connected')
    except OSError as err:
        print('refused' if time.monotonic() - began < 1 else 'slow')
try:
    socket.getaddrinfo('example.com', 80); print('resolved')
except OSError: print('unknown')
"#;

    let output = world.python([], script).run();

    // A machine has a cable, whose other end is the wall.
    let devices = if is_machine() { "['eth0', 'lo']" } else { "['lo']" };
    assert_eq!(
        output.succeeded(),
        format!("{devices}\nlow port\nsix\nrefused\nrefused\nrefused\nrefused\nunknown\n")
    );
}

#[test]
fn ping_works_on_loopback() {
    let world = World::new();
    let script = r#"
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_ICMP); s.settimeout(5)
s.sendto(bytes([8, 0, 0, 0, 0, 0, 0, 1]) + b'payload', ('127.0.0.1', 0)); print(s.recv(100)[-7:].decode())
"#;

    assert_eq!(world.python([], script).run().succeeded(), "payload\n");
}

#[test]
fn loopback_of_the_host_is_another() {
    let world = World::new();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();

    let output = world
        .python([], &format!("import socket\nsocket.create_connection(('127.0.0.1', {port}), timeout=5)"))
        .run();

    assert!(output.code != 0 && output.stderr.contains("refused"), "{output}");
}

#[test]
fn a_state_directory_in_what_sandboxes_show_of_the_host_is_refused_in_words() {
    let world = World::within("/var/tmp");
    let output = world.airlock(["run", "--workspace", "none", "--", "true"]).run();
    // Where other file systems lie below /var, an ordinary user's sandboxes show it without a layer, and it can lie there.
    if who() == Who::Root || output.code != 0 {
        let refused = output.failed(125);
        assert!(
            refused.contains("sandboxes cannot be kept in") && refused.contains("AIRLOCK_HOME"),
            "{refused}"
        );
    }
}
