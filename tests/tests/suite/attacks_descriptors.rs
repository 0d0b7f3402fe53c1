//! Attacks by what a process is handed: descriptors, directories, terminals, and its link to the outside.

use crate::probe::{inside, inside_running, not_refused, outside, script};
use airlock_tests::{Terminal, Who, World, binary, not_applicable, not_for_a_machine, who};
use std::{
    fs::{self, File},
    os::{fd::AsRawFd as _, unix::fs::MetadataExt as _},
    process::{Command, Stdio},
};

/// The descriptors a process has, without the one that lists them.
const LIST: &str = r#"say(sorted(int(fd) for fd in os.listdir("/proc/self/fd"))[:-1])"#;

/// The command line, started by a shell that has descriptors of the host open and does not close them.
fn leaking(world: &World, args: &[&str]) -> String {
    let mut shell = Command::new("bash");
    let opened = "exec 3</ 4</etc 5<. 6</etc/passwd 17</proc 63</; exec \"$0\" \"$@\"";
    shell.args(["-c", opened]).arg(binary()).args(args).current_dir(world.work());
    let output = shell.env("AIRLOCK_HOME", world.home()).stdin(Stdio::null()).output().expect("bash runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn descriptors_of_the_caller_do_not_leak_in() {
    let world = World::new();
    let sandbox = leaking(&world, &["run", "-d", "--", "sleep", "1000"]);

    assert_eq!(leaking(&world, &["run", "--", "python3", "-c", &script(LIST)]), "[0, 1, 2]\n");
    assert_eq!(leaking(&world, &["exec", sandbox.trim_end(), "python3", "-c", &script(LIST)]), "[0, 1, 2]\n");
    assert_eq!(inside_running(&world, sandbox.trim_end(), LIST), "[0, 1, 2]\n");
}

#[test]
fn a_directory_as_a_stream_is_refused() {
    let world = World::new();
    let sandbox = world.detached([], "sleep 1000");

    for args in [vec!["run", "--", "true"], vec!["exec", "-i", &sandbox, "true"]] {
        let refused = world.airlock(&args).stdin(File::open("/etc").expect("/etc")).run();
        assert_eq!(refused.code, 125, "{args:?}: {refused}");
        assert!(refused.stderr.contains("directory"), "{args:?}: {refused}");
    }
}

#[test]
fn a_file_given_for_reading_cannot_be_written() {
    let world = World::new();
    let path = world.aside("streams").join("in");
    fs::write(&path, "text").expect("a file");
    let probe = r#"
say(tried(lambda: os.open("/proc/self/fd/0", os.O_WRONLY)), tried(lambda: os.open("/dev/stdin", os.O_RDWR | os.O_TRUNC)))
say(tried(lambda: os.write(0, b"x")), tried(lambda: os.ftruncate(0, 0)))
"#;

    let said = world
        .airlock(["run", "--", "python3", "-c", &script(probe)])
        .stdin(File::open(&path).expect("it"))
        .run();

    let said = said.succeeded();
    if !not_for_a_machine("a file that is a standard stream is a pipe inside") {
        assert_eq!(
            not_refused(&said.replace(' ', "\n"), &["EACCES", "EBADF", "EINVAL"]),
            Vec::<String>::new()
        );
    }
    assert_eq!(fs::read_to_string(&path).expect("it"), "text");
}

#[test]
fn a_named_pipe_of_the_host_keeps_its_owner() {
    let world = World::new();
    let path = world.aside("streams").join("fifo");
    assert!(Command::new("mkfifo").arg(&path).status().expect("mkfifo runs").success());
    let before = fs::metadata(&path).expect("it").uid();
    let both = File::options().read(true).write(true).open(&path).expect("both ends");

    world.airlock(["run", "--", "true"]).stdin(both).run().succeeded();

    assert_eq!(fs::metadata(&path).expect("it").uid(), before);
}

#[test]
fn no_descriptor_is_a_way_to_a_directory_of_the_host() {
    let world = World::new();
    let sandbox = world.detached([], "sleep 1000");

    for number in 0..20 {
        for way in ["/proc/self/fd", "/proc/1/fd", "/dev/fd"] {
            let refused =
                world.airlock(["exec", "--workdir", &format!("{way}/{number}"), &sandbox, "ls"]).run();
            assert_eq!((refused.code, refused.stdout.as_str()), (125, ""), "{way}/{number}: {refused}");
        }
    }
}

#[test]
fn a_link_planted_as_working_directory_stays_inside() {
    let world = World::new();
    let sandbox = world
        .detached([], "ln -s /proc/self/fd/3 /tmp/three; ln -s /proc/1/root/../../.. /tmp/up; sleep 1000");

    let three = world.airlock(["exec", "--workdir", "/tmp/three", &sandbox, "pwd"]).run();
    let up = world
        .airlock(["exec", "--workdir", "/tmp/up", &sandbox, "sh", "-c", "ls -A /root /home; pwd -P"])
        .run();

    assert_eq!(three.code, 125, "{three}");
    assert!(up.code == 125 || up.stdout.ends_with("/\n"), "{up}");
}

#[test]
fn the_link_of_pid_1_is_out_of_reach() {
    let world = World::new();
    let probe = r#"
for fd in range(0, 10):
    path = "/proc/1/fd/%d" % fd
    if os.path.lexists(path):
        say(tried(lambda: os.readlink(path)), tried(lambda: os.open(path, os.O_RDWR)))
pid = libc.syscall(ctypes.c_long(number("pidfd_open")), 1, 0)
say(call("pidfd_getfd", pid, 3, 0))
"#;

    let said = inside(&world, [], probe);

    assert_eq!(
        not_refused(&said.replace(' ', "\n"), &["EACCES", "EPERM", "ENOSYS", "ENXIO"]),
        Vec::<String>::new()
    );
}

#[test]
fn a_program_called_like_the_guest_is_nothing_special() {
    let world = World::new();
    let script = "printf '#!/bin/sh\\necho mine\\n' > /tmp/airlock-guest; chmod 755 /tmp/airlock-guest; cd /tmp; PATH=/tmp:$PATH airlock-guest; exec /tmp/airlock-guest";

    assert_eq!(world.sh(["--workspace", "none"], script).run().succeeded(), "mine\nmine\n");
}

#[test]
fn the_keeper_can_be_neither_seen_nor_signalled() {
    let world = World::new();
    let sandbox = world.detached([], "sleep 1000");
    let keeper = world.state(&sandbox)["keeper_pid"].as_u64().expect("a pid");
    let probe = format!(
        "say(tried(lambda: os.kill({keeper}, 9)), os.path.exists('/proc/{keeper}'), os.getppid())\nos.kill(-1, 15) if os.getpid() == 1 else None"
    );

    let said = inside_running(&world, &sandbox, &probe);

    assert!(said == "ESRCH False 1\n" || said == "ESRCH False 0\n", "{said}");
    assert_eq!(world.state(&sandbox)["status"], "running");
}

#[test]
fn killing_everybody_inside_kills_nobody_outside() {
    let world = World::new();
    let other = world.detached([], "sleep 1000");

    let output = world.sh([], "sleep 1000 & sh -c 'kill -TERM -1; kill -9 -1'; kill -9 -1; kill -9 $$").run();

    assert!([137, 143].contains(&output.code), "{output}");
    assert_eq!(world.state(&other)["status"], "running");
}

#[test]
fn the_terminal_of_the_caller_is_not_the_terminal_inside() {
    let world = World::new();
    let probe = script(
        r#"
import fcntl
say("name", os.ttyname(0))
def type_into(terminal):
    for byte in b"echo typed-by-the-sandbox\n":
        fcntl.ioctl(terminal, 0x5412, bytes([byte]))
say("type", tried(lambda: type_into(0)))
say("high", "done" if libc.ioctl(0, ctypes.c_ulong(0x5412 | (1 << 32)), b"x") == 0 else "refused")
say("paste", tried(lambda: fcntl.ioctl(0, 0x541C, b"\x03")))
say("end")
"#,
    );
    fs::write(world.work().join("probe.py"), probe).expect("a file");
    let mut terminal = world.shell();
    let line = terminal.line();
    let outer = fs::read_link(format!("/proc/self/fd/{}", line.as_raw_fd())).expect("a name");

    terminal.type_keys("airlock run -- python3 probe.py; echo after=$?\n");
    let screen = terminal.wait_for("after=0");

    assert!(screen.contains("type EPERM") && screen.contains("high refused"), "{screen}");
    assert!(!screen.contains(&format!("name {}\r", outer.display())) || outer.ends_with("pts/0"), "{screen}");
    terminal.clear();
    terminal.type_keys("echo quiet\n");
    assert!(!terminal.wait_for("quiet\r\n").contains("typed-by-the-sandbox"));
    terminal.type_keys("exit\n");
    terminal.wait();
}

#[test]
fn without_a_terminal_of_its_own_a_program_has_none() {
    let world = World::new();
    let mut terminal = world.shell();

    terminal.type_keys("airlock run -- sh -c 'echo seen > /dev/tty' </dev/null 2>&1 | cat; echo after\n");
    let screen = terminal.wait_for("after\r\n");

    assert!(!screen.contains("\nseen"), "{screen}");
    assert!(screen.contains("/dev/tty"), "{screen}");
    terminal.type_keys("exit\n");
    terminal.wait();
}

#[test]
fn what_a_sandbox_wrote_reaches_a_terminal_without_control_characters() {
    let world = World::new();
    let sandbox = world.detached([], "printf 'plain\\033]0;title\\007\\033[2J\\233x\\n'; sleep 1000");
    airlock_tests::eventually("the log is there", || {
        world.airlock(["logs", &sandbox]).run().stdout.contains("plain").then_some(())
    });

    let mut terminal = Terminal::new();
    terminal.start(&world.airlock(["logs", &sandbox]).into_command());
    let screen = terminal.wait_for("plain");
    assert_eq!(terminal.wait(), 0);

    assert!(
        !screen.contains("\x1b]0;") && !screen.contains("\x1b[2J") && !screen.contains('\x07'),
        "{screen:?}"
    );
    assert!(
        world.airlock(["logs", &sandbox]).run().stdout.contains('\x1b'),
        "a pipe gets the bytes as they are"
    );
}

#[test]
fn command_lines_with_control_characters_are_shown_cleaned() {
    let world = World::new();
    let sandbox = world
        .airlock(["run", "-d", "--", "sh", "-c", "sleep 1000 # \x1b]0;title\x07\x1b[2J"])
        .run()
        .succeeded();

    for args in [vec!["ls"], vec!["get", sandbox.trim_end()]] {
        let mut terminal = Terminal::new();
        terminal.start(&world.airlock(&args).into_command());
        let code = terminal.wait();
        let screen = terminal.screen();
        assert_eq!(code, 0, "{screen:?}");
        assert!(!screen.contains("\x1b]0;") && !screen.contains("\x1b[2J"), "{args:?}: {screen:?}");
    }
    assert_eq!(world.airlock(["run", "--name", "a\x1b[2J", "--", "true"]).run().code, 2);
}

#[test]
fn the_umask_of_the_caller_does_not_open_what_the_sandbox_writes() {
    if who() == Who::Single {
        return not_applicable("the files are the user's own there");
    }
    let world = World::new();

    let said = world.sh(["--workspace", "none"], "umask; touch /tmp/f; stat -c %a /tmp/f").run().succeeded();

    assert_eq!(said, "0022\n644\n");
    assert!(outside(&world, "say('done')").contains("done"));
}
