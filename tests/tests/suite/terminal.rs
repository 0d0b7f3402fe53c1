//! Terminals: the program has one of its own, relayed by the command line, and ours is put back whatever happens.

use airlock_tests::{Terminal, World, eventually};
use rustix::{
    process::{Pid, Signal, kill_process},
    termios::{LocalModes, Termios},
};

fn is_raw(modes: &Termios) -> bool {
    !modes.local_modes.intersects(LocalModes::ICANON | LocalModes::ECHO)
}

fn wait_raw(terminal: &Terminal) {
    eventually("a raw terminal", || is_raw(&terminal.modes()).then_some(()));
}

fn assert_restored(terminal: &Terminal, before: &Termios) {
    eventually("the terminal is as it was", || {
        let now = terminal.modes();
        let same = (now.local_modes, now.input_modes, now.output_modes)
            == (before.local_modes, before.input_modes, before.output_modes);
        same.then_some(())
    });
}

#[test]
fn a_program_on_a_terminal_has_a_terminal_of_its_own() {
    let world = World::new();
    let mut terminal = Terminal::new();
    let before = terminal.modes();
    terminal.resize(33, 111);

    terminal.start(
        &world
            .airlock(["run", "--", "sh", "-c", "test -t 0 && test -t 1 && test -t 2 && tty && stty size"])
            .into_command(),
    );

    assert_eq!(terminal.wait(), 0);
    let screen = terminal.wait_for("33 111");
    assert!(screen.contains("/dev/pts/0"), "{screen}");
    assert_restored(&terminal, &before);
}

#[test]
fn keys_reach_the_program_and_its_code_comes_back() {
    let world = World::new();
    let mut terminal = world.on_terminal(["run", "--", "sh", "-c", "read line; echo \"<$line>\"; exit 7"]);
    wait_raw(&terminal);

    terminal.type_keys("hello\n");

    terminal.wait_for("<hello>");
    assert_eq!(terminal.wait(), 7);
}

#[test]
fn a_resized_window_is_told() {
    let world = World::new();
    let mut terminal = world.on_terminal([
        "run",
        "--",
        "sh",
        "-c",
        "trap 'stty size; exit 0' WINCH; echo ready; while :; do sleep 0.05; done",
    ]);
    terminal.wait_for("ready");

    terminal.resize(50, 132);

    terminal.wait_for("50 132");
    assert_eq!(terminal.wait(), 0);
}

#[test]
fn control_c_reaches_the_program() {
    let world = World::new();
    let mut terminal = world.on_terminal([
        "run",
        "--",
        "sh",
        "-c",
        "trap 'echo interrupted; exit 3' INT; echo ready; while :; do sleep 0.05; done",
    ]);
    terminal.wait_for("ready");
    wait_raw(&terminal);

    terminal.type_keys("\x03");

    terminal.wait_for("interrupted");
    assert_eq!(terminal.wait(), 3);
}

#[test]
fn control_c_ends_a_program_that_does_not_care() {
    let world = World::new();
    let mut terminal = world.on_terminal(["run", "--", "sh", "-c", "echo ready; exec sleep 1000"]);
    terminal.wait_for("ready");
    wait_raw(&terminal);

    terminal.type_keys("\x03");

    assert_eq!(terminal.wait(), 130);
}

#[test]
fn control_d_ends_the_input() {
    let world = World::new();
    let mut terminal = world.on_terminal(["run", "--", "sh", "-c", "echo ready; cat; echo end"]);
    terminal.wait_for("ready");
    wait_raw(&terminal);

    terminal.type_keys("\x04");

    terminal.wait_for("end");
    assert_eq!(terminal.wait(), 0);
}

#[test]
fn a_shell_inside_has_job_control() {
    let world = World::new();
    let mut terminal = world.on_terminal(["run", "-e", "PS1=inside> ", "--", "bash", "--norc", "-i"]);
    let screen = terminal.wait_for("inside> ");
    assert!(!screen.contains("no job control"), "{screen}");
    wait_raw(&terminal);

    terminal.type_keys("sleep 1000\n");
    eventually("the job runs", || {
        world.exec("-", "cat /proc/[0-9]*/comm | grep -c '^sleep$'").run().stdout.trim().eq("1").then_some(())
    });
    terminal.clear();
    terminal.type_keys("\x1a");
    terminal.wait_for("Stopped");
    terminal.wait_for("inside> ");
    terminal.clear();
    terminal.type_keys("fg\n");
    terminal.wait_for("sleep 1000");
    terminal.type_keys("\x03");
    terminal.wait_for("inside> ");
    terminal.type_keys("exit 0\n");

    assert_eq!(terminal.wait(), 0);
}

#[test]
fn control_z_stops_the_command_line_and_fg_goes_on() {
    let world = World::new();
    let mut terminal = world.shell();
    terminal.clear();
    terminal.type_keys("airlock run -- sh -c 'echo ready; read line; echo \"<$line>\"'\n");
    terminal.wait_for("\nready");
    wait_raw(&terminal);

    terminal.clear();
    terminal.type_keys("\x1a");
    terminal.wait_for("Stopped");
    terminal.wait_for("ready> ");
    terminal.clear();
    terminal.type_keys("fg\n");
    terminal.wait_for("airlock run");
    wait_raw(&terminal);
    terminal.type_keys("typed\n");

    terminal.wait_for("<typed>");
    terminal.wait_for("ready> ");
    terminal.type_keys("exit 0\n");
    assert_eq!(terminal.wait(), 0);
}

#[test]
fn a_pipeline_keeps_its_terminal_where_it_has_one() {
    let world = World::new();
    let mut terminal = world.shell();
    terminal.clear();

    terminal.type_keys("echo text | airlock run -- sh -c 'test -p /dev/stdin && test -t 1 && cat' | tr a-z A-Z; echo ended\n");
    terminal.wait_for("\nended");
    terminal.wait_for("ready> ");
    terminal.clear();
    terminal.type_keys("airlock run -- sh -c 'test -t 0 && test -p /dev/stdout && echo text' | tr a-z A-Z\n");

    terminal.wait_for("\nTEXT");
    terminal.wait_for("ready> ");
    terminal.type_keys("exit 0\n");
    assert_eq!(terminal.wait(), 0);
}

#[test]
fn a_background_job_leaves_the_terminal_alone() {
    let world = World::new();
    let mut terminal = world.shell();
    terminal.clear();

    terminal.type_keys(
        "airlock run --workspace rw -- sh -c 'while ! test -e go; do sleep 0.05; done; echo from behind' &\n",
    );
    eventually("it runs", || {
        world.sandboxes().iter().any(|sandbox| sandbox["status"] == "running").then_some(())
    });
    terminal.type_keys("echo in fro''nt\n");
    terminal.wait_for("in front");
    world.write("go", "");

    terminal.wait_for("from behind");
    terminal.type_keys("wait; exit 0\n");
    assert_eq!(terminal.wait(), 0);
}

#[test]
fn the_terminal_is_put_back_after_kill_9_of_the_command_line() {
    let world = World::new();
    let mut terminal = Terminal::new();
    let before = terminal.modes();
    terminal.start(&world.airlock(["run", "--", "sh", "-c", "echo ready; exec sleep 1000"]).into_command());
    terminal.wait_for("ready");
    wait_raw(&terminal);

    terminal.signal(Signal::KILL);

    assert_eq!(terminal.wait(), 137);
    assert_restored(&terminal, &before);
    eventually("the sandbox is gone", || world.sandboxes().is_empty().then_some(()));
}

#[test]
fn the_terminal_is_put_back_after_kill_9_of_the_keeper() {
    let world = World::new();
    let mut terminal = Terminal::new();
    let before = terminal.modes();
    terminal.start(&world.airlock(["run", "--", "sh", "-c", "echo ready; exec sleep 1000"]).into_command());
    terminal.wait_for("ready");
    wait_raw(&terminal);
    let keeper = eventually("a keeper", || {
        world.sandboxes().first().and_then(|sandbox| sandbox["keeper_pid"].as_u64())
    });

    kill_process(Pid::from_raw(i32::try_from(keeper).unwrap()).unwrap(), Signal::KILL).unwrap();

    let code = terminal.wait();
    assert!(code == 125 || code == 137, "{code}: {}", terminal.screen());
    assert_restored(&terminal, &before);
}

#[test]
fn the_terminal_is_put_back_after_the_program_changed_its_own() {
    let world = World::new();
    let mut terminal = Terminal::new();
    let before = terminal.modes();

    terminal.start(&world.airlock(["run", "--", "sh", "-c", "stty raw -echo; exit 0"]).into_command());

    assert_eq!(terminal.wait(), 0);
    assert_restored(&terminal, &before);
}

#[test]
fn nothing_that_was_written_last_is_lost() {
    let world = World::new();
    let mut terminal = world.on_terminal(["run", "--", "sh", "-c", "seq 1 5000; echo the end"]);

    assert_eq!(terminal.wait(), 0);
    let screen = terminal.wait_for("the end");
    assert!(screen.contains("\n4999\r\n5000\r\n"), "{}", &screen[screen.len().saturating_sub(200)..]);
}

#[test]
fn the_hosts_terminal_is_not_reachable_inside() {
    let world = World::new();
    let mut terminal =
        world.on_terminal(["run", "--", "sh", "-c", "ls /dev/pts; readlink /proc/self/fd/0; echo done"]);

    let screen = terminal.wait_for("done");

    assert_eq!(terminal.wait(), 0);
    assert_eq!(screen.split_whitespace().collect::<Vec<_>>(), ["0", "ptmx", "/dev/pts/0", "done"]);
}

#[test]
fn a_terminal_can_be_asked_for_where_there_is_none() {
    let world = World::new();

    let output = world
        .airlock(["run", "-t", "--", "sh", "-c", "test -t 0 && test -t 1 && test -t 2 && stty size"])
        .run();

    assert_eq!(output.succeeded(), "24 80\r\n");
}
