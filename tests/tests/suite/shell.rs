//! `airlock shell`: a person's own shell, in a new sandbox or in one that runs.

use airlock_tests::{World, build::busybox_root};

#[test]
fn a_shell_is_the_persons_own_in_a_new_sandbox() {
    let world = World::new();
    world.write("here", "");
    let mut terminal = airlock_tests::Terminal::new();
    terminal.start(&world.airlock(["shell", "-q", "--env", "A=b"]).env("SHELL", "/bin/bash").into_command());

    terminal.type_keys("echo $BASH_VERSION$((40+2)) $A; ls; exit 7\n");

    let screen = terminal.wait_for("42 b");
    assert!(!screen.contains(" 42 b"), "this is bash: {screen}");
    terminal.wait_for("here");
    assert_eq!(terminal.wait(), 7);
    assert_eq!(world.airlock(["ls", "--all", "-q"]).run().succeeded(), "", "nothing is left of it");
}

#[test]
fn a_shell_that_is_not_inside_is_replaced_by_one_that_is() {
    let world = World::new();
    let said =
        world.airlock(["shell", "-q"]).env("SHELL", "/home/ada/.nix/bin/fish").input("echo $((6*7))\n").run();
    assert_eq!(said.succeeded(), "42\n");
}

#[test]
fn a_shell_joins_a_sandbox_that_runs() {
    let world = World::new();
    world.detached(["--name", "web"], "echo hi >/tmp/x; exec sleep 1000");
    let mut terminal = world.on_terminal(["shell", "web", "-e", "A=b", "-w", "/tmp"]);

    terminal.type_keys("cat x; tty; echo $A-$PWD-$TERM; exit 3\n");

    terminal.wait_for("b-/tmp-");
    terminal.wait_for("/dev/pts/");
    assert_eq!(terminal.wait(), 3);
    let piped = world.airlock(["shell", "web"]).input("hostname\n").run().succeeded();
    assert_eq!(piped, "web\n");
    let refused = world.airlock(["shell", "web", "--memory", "1G"]).run().failed(2);
    assert!(refused.contains("--memory cannot be given to a sandbox that runs"), "{refused}");
    world.airlock(["shell", "nothing"]).run().failed(3);
    world.airlock(["kill", "web"]).run().succeeded();
}

#[test]
fn an_image_has_a_shell_of_its_own() {
    let Some(root) = busybox_root() else { return };
    let world = World::new();
    airlock_tests::build::base(&world, &root);
    let shell =
        world.airlock(["shell", "-q", "--image", "base", "--workspace", "none"]).env("SHELL", "/bin/zsh");
    assert_eq!(shell.input("echo $((6*7))\n").run().succeeded(), "42\n");
}
