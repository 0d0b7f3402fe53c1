//! `airlock exec`: further programs in a running sandbox.

use airlock_tests::{Terminal, Who, World, who};
use rustix::process::Signal;

const FOREVER: &str = "exec sleep 100000";

#[test]
fn a_further_program_sees_the_same_sandbox() {
    let world = World::new();
    world.detached(["--name", "web", "-e", "A=1"], "echo here > /tmp/x; echo ready; exec sleep 100000");
    airlock_tests::eventually("ready", || {
        world.airlock(["logs", "web"]).run().stdout.contains("ready").then_some(())
    });

    let output = world.exec("web", "cat /tmp/x; hostname; pwd; echo $A; cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -c 'sleep 100000'").run();

    assert_eq!(output.succeeded(), format!("here\nweb\n{}\n1\n1\n", world.work().display()));
}

#[test]
fn streams_and_codes_are_its_own() {
    let world = World::new();
    world.detached(["--name", "web"], FOREVER);

    let output = world.exec("web", "echo out; echo err >&2; exit 9").run();
    let killed = world.exec("web", "kill -TERM $$").run();

    assert_eq!((output.code, output.stdout.as_str(), output.stderr.as_str()), (9, "out\n", "err\n"));
    assert_eq!(killed.code, 143);
    world.airlock(["exec", "web", "no-such-program"]).run().failed(127);
    world.airlock(["exec", "web", "/etc"]).run().failed(126);
}

#[test]
fn standard_input_enters_only_when_asked_for() {
    let world = World::new();
    world.detached(["--name", "web"], FOREVER);

    let without = world.airlock(["exec", "web", "cat"]).input("text").run();
    let with = world.airlock(["exec", "-i", "web", "cat"]).input("text").run();

    assert_eq!((without.succeeded(), with.succeeded()), (String::new(), "text".to_owned()));
}

#[test]
fn variables_directory_and_user_can_differ() {
    let world = World::new();
    world.detached(["--name", "web", "-e", "A=1"], FOREVER);

    let env = world.airlock([
        "exec",
        "-e",
        "A=2",
        "--env",
        "B=3",
        "-e",
        "HOST",
        "web",
        "sh",
        "-c",
        "echo $A $B $HOST",
    ]);
    let dir = world.airlock(["exec", "-w", "/usr", "web", "pwd"]);

    assert_eq!(env.env("HOST", "h").run().succeeded(), "2 3 h\n");
    assert_eq!(dir.run().succeeded(), "/usr\n");
    let missing = world.airlock(["exec", "-w", "/no/such", "web", "pwd"]).run();
    assert!(missing.code == 125 && missing.stderr.contains("/no/such"), "{missing}");
    let nonsense = world.airlock(["exec", "-u", "no-such-user", "web", "id"]).run();
    assert!(nonsense.code == 125 && nonsense.stderr.starts_with("error: "), "{nonsense}");
    let other = world.airlock(["exec", "-u", "daemon", "web", "id", "-u"]).run();
    match who() {
        Who::Single => assert!(other.code == 125 && other.stderr.starts_with("error: "), "{other}"),
        _ => assert_eq!(other.succeeded(), "1\n"),
    }
}

#[test]
fn signals_reach_the_further_program_only() {
    let world = World::new();
    world.detached(["--name", "web"], FOREVER);
    let running =
        world.exec("web", "trap 'echo got; exit 4' TERM; echo ready; while :; do sleep 0.05; done").start();
    running.wait_for("ready");

    running.signal(Signal::TERM);

    let output = running.wait();
    assert_eq!((output.code, output.stdout.as_str()), (4, "ready\ngot\n"));
    assert_eq!(world.state("web")["status"], "running");
}

#[test]
fn a_further_program_ends_with_its_command_line() {
    let world = World::new();
    world.detached(["--name", "web"], FOREVER);
    let running = world.exec("web", "echo ready; exec sleep 54321").start();
    running.wait_for("ready");

    running.signal(Signal::KILL);

    airlock_tests::eventually("the program is gone", || {
        let left = world
            .exec("web", "cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -c '^sleep 54321' || true")
            .run();
        (left.stdout.trim() == "0").then_some(())
    });
    assert_eq!(world.state("web")["status"], "running");
}

#[test]
fn a_further_program_can_have_a_terminal() {
    let world = World::new();
    world.detached(["--name", "web"], FOREVER);
    let mut terminal = Terminal::new();
    terminal.resize(30, 100);

    terminal.start(&world.airlock(["exec", "-it", "web", "sh"]).into_command());
    terminal.type_keys("tty; stty size; echo done\n");
    let screen = terminal.wait_for("\r\ndone");
    terminal.type_keys("exit 5\n");

    assert_eq!(terminal.wait(), 5);
    assert!(screen.contains("/dev/pts/") && screen.contains("30 100"), "{screen}");
}

#[test]
fn without_a_terminal_asked_for_there_is_none() {
    let world = World::new();
    world.detached(["--name", "web"], FOREVER);

    let mut terminal = world.on_terminal(["exec", "web", "sh", "-c", "test -t 1 || echo no terminal"]);

    terminal.wait_for("no terminal");
    assert_eq!(terminal.wait(), 0);
}

#[test]
fn many_programs_run_at_once() {
    let world = World::new();
    world.detached(["--name", "web"], FOREVER);

    let all: Vec<_> =
        (0..20).map(|n| (n, world.exec("web", &format!("sleep 0.1; echo {n}")).start())).collect();

    for (n, running) in all {
        assert_eq!(running.wait().succeeded(), format!("{n}\n"));
    }
}

#[test]
fn a_further_program_has_no_more_power_than_the_first() {
    let world = World::new();
    let facts = "grep -E '^(Cap|NoNewPrivs|Seccomp:)' /proc/self/status";
    world.detached(["--name", "web"], &format!("{facts}; echo ready; exec sleep 100000"));
    let first = airlock_tests::eventually("ready", || {
        let logs = world.airlock(["logs", "web"]).run().stdout;
        logs.strip_suffix("ready\n").map(str::to_owned)
    });

    assert_eq!(world.exec("web", facts).run().succeeded(), first);
    assert!(first.contains("NoNewPrivs:\t1") && first.contains("Seccomp:\t2"), "{first}");
}
