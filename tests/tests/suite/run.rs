//! `airlock run`: streams, exit codes, signals, environment, identity.

use airlock_tests::{Who, World, not_for_a_machine, who};
use rustix::process::Signal;
use std::{fs::File, io::Read as _, os::fd::OwnedFd, process::Stdio, time::Duration};

#[test]
fn a_program_runs_and_its_output_is_its_own() {
    let world = World::new();

    let output = world.sh([], "echo out; echo err >&2; exit 7").run();

    assert_eq!((output.code, output.stdout.as_str(), output.stderr.as_str()), (7, "out\n", "err\n"));
}

#[test]
fn a_sandbox_that_ends_is_gone_unless_kept() {
    let world = World::new();

    world.sh(["--name", "gone"], "true").run().succeeded();
    world.sh(["--name", "kept", "--keep"], "exit 3").run().failed(3);

    let all = world.sandboxes();
    let names: Vec<_> = all.iter().map(|sandbox| sandbox["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["kept"]);
    assert_eq!((&all[0]["status"], &all[0]["exit"]["code"]), (&"stopped".into(), &3.into()));
}

#[test]
fn pipes_stay_pipes_and_files_stay_files() {
    let world = World::new();
    world.write("input", "from a file\n");

    let pipes =
        world.sh([], "test -p /dev/stdin && test -p /dev/stdout && test -p /dev/stderr && cat").input("text");
    let file =
        world.sh([], "test -f /dev/stdin && cat").stdin(File::open(world.work().join("input")).unwrap());
    let null = world.sh([], "test -c /dev/stdin && wc -c");

    assert_eq!(pipes.run().succeeded(), "text");
    if !not_for_a_machine("a file that is a standard stream is a pipe inside") {
        assert_eq!(file.run().succeeded(), "from a file\n");
    }
    assert_eq!(null.run().succeeded().trim(), "0");
}

#[test]
fn a_megabyte_passes_through_unchanged() {
    let world = World::new();
    let text: String = (0..150_000).map(|n| format!("{n:06}\n")).collect();

    let output = world.airlock(["run", "--", "cat"]).input(text.clone()).run();

    assert!(output.succeeded() == text, "what came out is not what went in");
}

#[test]
fn a_reader_that_goes_away_ends_the_program() {
    let world = World::new();
    let mut command = world.airlock(["run", "--", "yes"]).into_command();
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut stdout = child.stdout.take().unwrap();

    stdout.read_exact(&mut [0; 4]).unwrap();
    drop(stdout);

    assert_eq!(child.wait().unwrap().code(), Some(128 + 13));
}

#[test]
fn standard_input_can_be_closed_by_either_side() {
    let world = World::new();
    let running = world.airlock(["run", "--", "head", "-n1"]);

    let output = running.input("first\nsecond\n").run();

    assert_eq!(output.succeeded(), "first\n");
}

#[test]
fn a_directory_as_standard_input_is_refused() {
    let world = World::new();
    let directory = File::open(world.work()).unwrap();

    let stderr = world.sh([], "ls -l /proc/self/fd/0/..").stdin(directory).run().failed(125);

    assert!(
        stderr.starts_with("error: our stdin cannot be passed into a sandbox\n  why:  it is a directory"),
        "{stderr}"
    );
    assert!(stderr.contains("\n  fix:  "), "{stderr}");
}

#[test]
fn nothing_but_three_streams_is_open() {
    let world = World::new();

    let open = world.airlock(["run", "--", "ls", "/proc/self/fd"]).run().succeeded();

    assert_eq!(
        open.split_whitespace().collect::<Vec<_>>(),
        ["0", "1", "2", "3"],
        "3 is the directory itself"
    );
}

#[test]
fn a_program_that_does_not_exist_is_127() {
    let world = World::new();

    let bare = world.airlock(["run", "--", "no-such-program"]).run().failed(127);
    let path = world.airlock(["run", "--", "/no/such/program"]).run().failed(127);

    for (stderr, name) in [(bare, "no-such-program"), (path, "/no/such/program")] {
        assert!(stderr.starts_with("error: ") && stderr.contains(name), "{stderr}");
        assert!(stderr.contains("\n  why:  ") || stderr.contains("not found"), "{stderr}");
    }
}

#[test]
fn a_file_that_cannot_be_executed_is_126() {
    let world = World::new();
    world.write("plain", "just text\n");

    let file = world.airlock(["run", "--", "./plain"]).run().failed(126);
    let directory = world.airlock(["run", "--", "/etc"]).run().failed(126);

    assert!(file.starts_with("error: ") && file.contains("plain"), "{file}");
    assert!(directory.starts_with("error: "), "{directory}");
}

#[test]
fn a_script_with_an_interpreter_runs_from_the_workspace() {
    let world = World::new();
    let script = world.write("script", "#!/bin/sh\necho \"$@\"\n");
    rustix::fs::chmod(&script, 0o755.into()).unwrap();

    assert_eq!(world.airlock(["run", "--", "./script", "a", "b c"]).run().succeeded(), "a b c\n");
}

#[test]
fn a_working_directory_that_does_not_exist_is_told() {
    let world = World::new();

    let output = world.airlock(["run", "--workdir", "/no/such/dir", "--", "true"]).run();

    assert!([125, 126, 127].contains(&output.code), "{output}");
    assert!(output.stderr.starts_with("error: ") && output.stderr.contains("/no/such/dir"), "{output}");
}

#[test]
fn a_program_killed_by_a_signal_is_128_and_its_number() {
    let world = World::new();

    for (signal, code) in [("TERM", 143), ("KILL", 137), ("SEGV", 139), ("HUP", 129)] {
        assert_eq!(world.sh([], &format!("kill -{signal} $$")).run().code, code, "{signal}");
    }
}

#[test]
fn signals_to_the_command_line_reach_the_program() {
    for (name, signal) in [
        ("INT", Signal::INT),
        ("TERM", Signal::TERM),
        ("HUP", Signal::HUP),
        ("USR1", Signal::USR1),
        ("QUIT", Signal::QUIT),
    ] {
        let world = World::new();
        let script =
            format!("trap 'echo got {name}; exit 9' {name}; echo ready; while :; do sleep 0.05; done");
        let running = world.sh([], &script).start();
        running.wait_for("ready");

        running.signal(signal);

        let output = running.wait();
        assert_eq!((output.code, output.stdout.as_str()), (9, format!("ready\ngot {name}\n").as_str()));
    }
}

#[test]
fn a_program_that_does_not_catch_the_signal_ends_by_it() {
    let world = World::new();
    let running = world.sh([], "echo ready; exec sleep 100").start();
    running.wait_for("ready");

    running.signal(Signal::TERM);

    assert_eq!(running.wait().code, 143);
}

#[test]
fn the_environment_is_a_short_list() {
    let world = World::new();
    let run = world
        .airlock(["run", "--", "env"])
        .env("SECRET_TOKEN", "x")
        .env("SSH_AUTH_SOCK", "/x")
        .env("LANG", "C.UTF-8");
    let run = run
        .env("LC_TIME", "C")
        .env("TZ", "UTC")
        .env("COLORTERM", "truecolor")
        .env("NO_COLOR", "1")
        .env("USER", "ada");

    let text = run.run().succeeded();

    // What lets installers work inside is ours, not the host's.
    let ours = |name: &&str| !name.starts_with("PIP_") && !name.starts_with("NPM_CONFIG_") && *name != "PWD";
    let mut names: Vec<_> =
        text.lines().filter_map(|line| Some(line.split_once('=')?.0)).filter(ours).collect();
    names.sort_unstable();
    assert_eq!(names, ["COLORTERM", "HOME", "LANG", "LC_TIME", "NO_COLOR", "PATH", "TERM", "TZ", "USER"]);
    for line in ["HOME=/root", "USER=root", "TERM=xterm", "LANG=C.UTF-8", "TZ=UTC"] {
        assert!(text.lines().any(|found| found == line), "{line} is not in {text}");
    }
}

#[test]
fn variables_are_named_taken_from_the_host_or_read_from_a_file() {
    let world = World::new();
    let file = world.aside("outside").join("env");
    std::fs::write(&file, "# a comment\nFILED=1\nOVER=file\nTAKEN\n").unwrap();
    let flags = [
        "run",
        "--env-file",
        file.to_str().unwrap(),
        "-e",
        "A=b c",
        "--env",
        "HOST",
        "-e",
        "MISSING",
        "-e",
        "OVER=typed",
    ];

    let text =
        world.airlock(flags).args(["--", "env"]).env("HOST", "from here").env("TAKEN", "t").run().succeeded();

    for line in ["A=b c", "HOST=from here", "FILED=1", "TAKEN=t", "OVER=typed"] {
        assert!(text.lines().any(|found| found == line), "{line} is not in {text}");
    }
    assert!(!text.contains("MISSING"), "{text}");
}

#[test]
fn a_bad_line_of_an_environment_file_is_shown_with_its_place() {
    let world = World::new();
    let file = world.write("env", "A=1\nexport B=2\n");

    let stderr = world.airlock(["run", "--env-file", file.to_str().unwrap(), "--", "true"]).run().failed(2);

    assert!(stderr.starts_with(&format!("error: {}:2:1: ", file.display())), "{stderr}");
    assert!(stderr.contains("why:  the line is: export B=2"), "{stderr}");
}

#[test]
fn the_host_name_is_the_sandboxes_name_or_the_one_given() {
    let world = World::new();
    let script = "hostname; cat /etc/hostname; grep -c \"$(hostname)\" /etc/hosts";

    assert_eq!(world.sh(["--name", "calm-otter"], script).run().succeeded(), "calm-otter\ncalm-otter\n1\n");
    assert_eq!(world.sh(["--hostname", "build.box"], script).run().succeeded(), "build.box\nbuild.box\n1\n");
    assert_eq!(world.sh(["--hostname", "-bad"], "true").run().code, 2);
}

#[test]
fn the_default_user_is_root() {
    let world = World::new();

    assert_eq!(world.sh([], "id -u; id -g; id -un; echo $HOME").run().succeeded(), "0\n0\nroot\n/root\n");
}

#[test]
fn a_user_is_taken_by_name_or_number() {
    let world = World::new();
    let ids = "id -u; id -g; touch ~/x && touch /tmp/x && echo wrote";

    let name = world.sh(["--user", "daemon"], ids).run().succeeded();
    let number = world.sh(["--user", "1234", "-e", "HOME=/tmp"], ids).run().succeeded();

    assert_eq!(name, "1\n1\nwrote\n");
    assert!(number.starts_with("1234\n") && number.ends_with("wrote\n"), "{number}");
    if who() != Who::Single {
        let both = world.sh(["--user", "1234:4321", "-e", "HOME=/tmp"], ids).run().succeeded();
        assert_eq!(both, "1234\n4321\nwrote\n");
    }
}

#[test]
fn a_user_that_is_nonsense_is_refused() {
    let world = World::new();

    for user in ["no-such-user", "-1", "99999999999", "0:no-such-group", "a:b:c", ""] {
        let output = world.airlock(["run", &format!("--user={user}"), "--", "true"]).run();

        assert!(output.code == 125 || output.code == 2, "{user:?}: {output}");
        assert!(output.stderr.starts_with("error: "), "{user:?}: {output}");
    }
}

#[test]
fn a_program_ends_when_its_time_is_up() {
    if not_for_a_machine(
        "an emulated processor takes longer than 0.3 s until a program knows what to do at its end",
    ) {
        return;
    }
    let world = World::new();

    let output = world
        .sh(["--timeout", "300ms"], "trap 'echo asked; exit 0' TERM; while :; do sleep 0.05; done")
        .run();

    assert_eq!((output.code, output.stdout.as_str()), (124, "asked\n"), "{output}");
}

#[test]
fn a_program_that_ends_in_time_is_left_alone() {
    let world = World::new();

    assert_eq!(world.sh(["--timeout", "50s"], "exit 4").run().code, 4);
}

#[test]
fn facts_come_as_json() {
    let world = World::new();

    let foreground = world.sh(["--json", "--name", "one"], "echo out; exit 3").run();
    let detached = world.sh(["--json", "-d", "--name", "two"], "true").run().succeeded();

    assert_eq!((foreground.code, foreground.stdout.as_str()), (3, "out\n"));
    let facts: serde_json::Value = serde_json::from_str(foreground.stderr.trim()).unwrap();
    assert_eq!((&facts["name"], &facts["exit"]["code"]), (&"one".into(), &3.into()));
    let facts: serde_json::Value = serde_json::from_str(&detached).unwrap();
    assert_eq!((facts["name"].as_str(), facts["id"].as_str().map(str::len)), (Some("two"), Some(12)));
}

#[test]
fn wrong_usage_is_2() {
    let world = World::new();

    for line in [
        &["run"][..],
        &["frobnicate"],
        &["run", "--memory", "lots", "--", "true"],
        &["run", "--no-such-flag", "true"],
        &["run", "--name", "../x", "true"],
        &["run", "--mount", "/a", "true"],
        &["run", "--restart", "perhaps", "true"],
        &["rm"],
    ] {
        let output = world.airlock(line).run();

        assert_eq!(output.code, 2, "{line:?}: {output}");
        assert!(output.stdout.is_empty() && output.stderr.starts_with("error: "), "{line:?}: {output}");
    }
}

#[test]
fn a_name_is_used_once() {
    let world = World::new();
    world.detached(["--name", "web"], "sleep 1000");

    let output = world.sh(["--name", "web"], "true").run();

    assert_ne!(output.code, 0);
    assert!(output.stderr.starts_with("error: ") && output.stderr.contains("web"), "{output}");
}

#[test]
fn the_guest_reaps_orphans() {
    let world = World::new();
    let script = "for n in 1 2 3 4 5; do (true & true) ; done; sleep 0.2; grep -l '^State:.Z' /proc/[0-9]*/status | wc -l";

    assert_eq!(world.sh([], script).run().succeeded().trim(), "0");
}

#[test]
fn what_the_program_left_running_ends_with_it() {
    let world = World::new();

    let output = world.sh([], "sleep 1000 & echo started").deadline(Duration::from_secs(20)).run();

    assert_eq!(output.succeeded(), "started\n");
}

#[test]
fn closed_standard_streams_are_no_way_to_other_descriptors() {
    let world = World::new();
    let mut shell = std::process::Command::new("sh");
    let airlock = airlock_tests::binary().display();
    shell.args(["-c", &format!("exec {airlock} run -- ls -l /proc/self/fd <&- 2>&-")]);
    shell.current_dir(world.work()).env("AIRLOCK_HOME", world.home());

    let output = shell.output().unwrap();

    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.lines().count() <= 5 && !text.contains("airlock"), "{text}");
}

#[test]
fn a_socket_as_standard_stream_is_passed_as_it_is() {
    let world = World::new();
    let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
    let mut command =
        world.airlock(["run", "--", "sh", "-c", "test -S /dev/stdout && echo socket"]).into_command();

    let status = command.stdout(OwnedFd::from(theirs)).status().unwrap();
    drop(command);

    let mut text = String::new();
    (&ours).read_to_string(&mut text).unwrap();
    assert_eq!((status.code(), text.as_str()), (Some(0), "socket\n"));
}
