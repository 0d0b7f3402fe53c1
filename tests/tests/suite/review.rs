//! What a sandbox changed in its copy of the workspace: shown, applied, undone, discarded.

use airlock_tests::{Who, World, not_applicable, who};
use rustix::process::Signal;
use serde_json::Value;
use std::{collections::BTreeMap, fs, os::unix::fs::MetadataExt as _, path::PathBuf, process::Command};

/// Every file and link of the workspace, with mode, time and content.
fn picture(world: &World) -> BTreeMap<PathBuf, (u32, i64, Vec<u8>)> {
    let mut picture = BTreeMap::new();
    let mut waiting = vec![world.work().to_owned()];
    while let Some(path) = waiting.pop() {
        let metadata = fs::symlink_metadata(&path).unwrap();
        let (time, content) = match metadata.file_type() {
            kind if kind.is_dir() => {
                waiting.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
                (0, Vec::new())
            }
            kind if kind.is_symlink() => {
                (metadata.mtime(), fs::read_link(&path).unwrap().into_os_string().into_encoded_bytes())
            }
            _ => (metadata.mtime(), fs::read(&path).unwrap_or_default()),
        };
        picture.insert(path, (metadata.mode(), time, content));
    }
    picture
}

fn project() -> World {
    let world = World::new();
    for (name, text) in [("a", "one\ntwo\n"), ("gone", "x\n"), ("d/x", "x\n"), ("moved", "some content\n")] {
        fs::create_dir_all(world.work().join(name).parent().unwrap()).unwrap();
        world.write(name, text);
    }
    std::os::unix::fs::symlink("a", world.work().join("link")).unwrap();
    world
}

const SCRIPT: &str = "echo three >> a; rm gone; rm -r d; mv moved new; ln -sfn new link; mkdir -p n/e; echo fresh > n/f; chmod 755 a";

#[test]
fn changes_are_shown_applied_and_undone() {
    let world = project();
    let before = picture(&world);
    world.sh(["--name", "s"], SCRIPT).run().succeeded();

    let names = world.airlock(["diff", "s", "--name-only"]).run().succeeded();
    assert_eq!(names, "a\nd/x\ngone\nlink\nn/f\nnew\n");
    assert_eq!(picture(&world), before);
    let shown = world.airlock(["diff", "s"]).run().succeeded();
    for text in
        ["+three\n", "deleted file mode 100644", "rename from moved\nrename to new", "# new directory n/e"]
    {
        assert!(shown.contains(text), "{text:?} in {shown}");
    }

    let applied = world.airlock(["apply", "s"]).run().succeeded();
    assert_eq!(applied, "applied 6 files\n");
    assert_eq!(world.read("a"), "one\ntwo\nthree\n");
    assert!(!world.work().join("d").exists() && world.work().join("n/e").is_dir());
    assert_eq!(world.airlock(["diff", "s", "--exit-code"]).run().succeeded(), "");

    world.airlock(["undo", "s"]).run().succeeded();
    assert_eq!(picture(&world), before);
    assert_eq!(world.airlock(["diff", "s", "--exit-code"]).run().code, 1);
    assert_eq!(world.airlock(["undo", "s"]).run().code, 1);
    world.airlock(["apply", "s"]).run().succeeded();
    world.airlock(["rm", "s"]).run().succeeded();
}

#[test]
fn forms_for_programs_tell_the_same() {
    let world = project();
    world.sh(["--name", "s"], SCRIPT).run().succeeded();

    let stat = world.airlock(["diff", "s", "--stat"]).run().succeeded();
    let lines = world.airlock(["diff", "s", "--json"]).run().succeeded();
    let changes: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();

    assert!(
        stat.contains("moved => new") && stat.contains("6 files changed, 3 insertions(+), 3 deletions(-)"),
        "{stat}"
    );
    let of = |path: &str| changes.iter().find(|change| change["path"] == path).unwrap();
    assert_eq!(
        (&of("a")["change"], &of("a")["added"], &of("a")["mode"]),
        (&"modified".into(), &1.into(), &"100755".into())
    );
    assert_eq!((&of("new")["change"], &of("new")["from"]), (&"renamed".into(), &"moved".into()));
    assert_eq!(of("link")["kind"], "symlink");
}

#[test]
fn git_takes_the_diff() {
    let world = project();
    let copy = world.aside("copy").join("work");
    let copied = Command::new("cp").arg("-a").arg(world.work()).arg(&copy).status().unwrap();
    assert!(copied.success());
    world.sh(["--name", "s"], SCRIPT).run().succeeded();

    let patch = world.airlock(["diff", "s"]).run().succeeded();
    let file = world.aside("copy").join("patch");
    fs::write(&file, patch).unwrap();
    let applied = Command::new("git").arg("apply").arg(&file).current_dir(&copy).output().unwrap();

    assert!(applied.status.success(), "{}", String::from_utf8_lossy(&applied.stderr));
    assert_eq!(fs::read_to_string(copy.join("a")).unwrap(), "one\ntwo\nthree\n");
    assert!(!copy.join("moved").exists() && !copy.join("d/x").exists());
}

#[test]
fn only_named_paths_are_applied() {
    let world = project();
    world.sh(["--name", "s"], SCRIPT).run().succeeded();

    world.airlock(["apply", "s", "n/f", "gone"]).run().succeeded();

    assert_eq!(world.read("n/f"), "fresh\n");
    assert!(!world.work().join("gone").exists() && !world.work().join("n/e").exists());
    assert_eq!(world.read("a"), "one\ntwo\n");
    assert_eq!(world.airlock(["apply", "s", "../elsewhere"]).run().code, 2);
}

#[test]
fn what_changed_on_the_host_meanwhile_stops_everything() {
    let world = project();
    world.sh(["--name", "s"], "echo inside > a; echo new > b").run().succeeded();
    world.write("a", "host\n");

    let refused = world.airlock(["apply", "s"]).run();
    assert_eq!(refused.code, 1);
    assert!(refused.stderr.contains("why:  a\n"), "{refused}");
    assert_eq!((world.read("a").as_str(), world.work().join("b").exists()), ("host\n", false));

    world.airlock(["apply", "s", "--force"]).run().succeeded();
    assert_eq!((world.read("a").as_str(), world.read("b").as_str()), ("inside\n", "new\n"));
    world.airlock(["undo", "s"]).run().succeeded();
    assert_eq!(world.read("a"), "host\n");
}

#[test]
fn protected_paths_are_held_back_and_keep_the_sandbox() {
    let world = project();
    let script = "mkdir -p .vscode sub/.git/hooks; echo evil > .vscode/tasks.json; echo evil > sub/.git/hooks/x; echo fine > b";
    world.sh(["--name", "s"], script).run().succeeded();

    let applied = world.airlock(["apply", "s"]).run().succeeded();

    assert!(applied.contains("held back 2 protected paths") && applied.contains("  .vscode\n"), "{applied}");
    assert_eq!(world.read("b"), "fine\n");
    assert!(!world.work().join(".vscode").exists() && !world.work().join("sub/.git/hooks").exists());
    assert_eq!(world.airlock(["rm", "s"]).run().code, 1);
    world.airlock(["apply", "s", "--include-protected"]).run().succeeded();
    assert_eq!(world.read(".vscode/tasks.json"), "evil\n");
}

#[test]
fn a_running_sandbox_is_reviewed_too_but_not_discarded() {
    let world = project();
    let name = world.detached([], "echo live > a; touch ready; exec sleep 1000");
    airlock_tests::eventually("the program has written", || {
        world.airlock(["diff", &name, "--name-only"]).run().succeeded().contains("ready").then_some(())
    });

    world.airlock(["apply", &name]).run().succeeded();
    assert_eq!(world.read("a"), "live\n");
    assert_eq!(world.airlock(["discard", &name, "--yes"]).run().code, 1);
    world.airlock(["undo", &name]).run().succeeded();
    assert_eq!(world.read("a"), "one\ntwo\n");
}

#[test]
fn files_that_only_the_sandboxes_ids_may_read_are_reviewed() {
    let world = project();
    let script = "echo s > shut; chmod 000 shut; mkdir m; echo in > m/in; chown -R 5:5 shut m 2>/dev/null; chmod 700 m; true";
    world.sh(["--name", "s"], script).run().succeeded();

    let shown = world.airlock(["diff", "s"]).run().succeeded();
    assert!(shown.contains("+s\n") && shown.contains("+in\n"), "{shown}");
    world.airlock(["apply", "s"]).run().succeeded();
    let owner = world.work().metadata().unwrap().uid();
    for name in ["shut", "m", "m/in"] {
        assert_eq!(fs::symlink_metadata(world.work().join(name)).unwrap().uid(), owner, "{name}");
    }
    assert_eq!(world.airlock(["diff", "s", "--exit-code"]).run().code, 0);
}

#[test]
fn discarding_leaves_the_host_and_takes_the_sandbox_along() {
    let world = project();
    let before = picture(&world);
    world.sh(["--name", "s"], SCRIPT).run().succeeded();

    assert_eq!(world.airlock(["discard", "s"]).run().code, 2, "nobody was asked");
    world.airlock(["discard", "s", "a", "--yes"]).run().succeeded();
    assert!(!world.airlock(["diff", "s", "--name-only"]).run().succeeded().contains("a\n"));
    world.airlock(["discard", "s", "--yes"]).run().succeeded();

    assert_eq!(picture(&world), before);
    assert_eq!(world.sandboxes(), Vec::<Value>::new());
}

#[test]
fn a_terminal_sees_no_escape_of_the_sandbox() {
    let world = project();
    let script = r#"printf 'x\033[2Jy\r\n' > b; touch "$(printf 'n\033]0;z\007\nm')""#;
    world.sh(["--name", "s"], script).run().succeeded();

    let mut terminal = world.on_terminal(["diff", "s"]);
    terminal.wait();
    terminal.wait_for("x^[[2Jy^M");
    let screen = terminal.wait_for(r"\033]0;z\a\n");

    assert!(!screen.contains("\x1b[2J") && !screen.contains("\x1b]0"), "{screen:?}");
}

#[test]
fn each_change_is_shown_on_a_terminal_and_only_what_is_wanted_is_written() {
    let world = project();
    let before = picture(&world);
    let script = "echo three >> a; rm -r d; mkdir -p n/e w; echo f > n/f; echo w > w/x; mv moved aa; rm gone";
    world.sh(["--name", "s"], script).run().succeeded();

    let mut terminal = world.on_terminal(["apply", "s", "--interactive"]);
    for (path, keys) in [
        ("a", "maybe\ny\n"),
        ("aa", "y\n"),
        ("d/x", "n\n"),
        ("gone", "yes\n"),
        ("n/e", "n\n"),
        ("n/f", "n\n"),
        ("w/x", "q\n"),
    ] {
        terminal.wait_for(&format!("apply {path}? [y]es, [n]o, [a]ll that follow, [q]uit: "));
        terminal.type_keys(keys);
    }
    assert_eq!(terminal.wait(), 0);
    let screen = terminal.wait_for("applied 3 files");

    for shown in ["+three", "rename from moved", "-x", "new directory n/e", "+f", "+w"] {
        assert!(screen.contains(shown), "{shown:?} in {screen}");
    }
    assert_eq!(
        (world.read("a").as_str(), world.read("aa").as_str()),
        ("one\ntwo\nthree\n", "some content\n")
    );
    for (name, is_there) in [("moved", false), ("gone", false), ("d/x", true), ("n", false), ("w", false)] {
        assert_eq!(world.work().join(name).exists(), is_there, "{name}");
    }

    let mut terminal = world.on_terminal(["apply", "s", "--interactive"]);
    terminal.wait_for("apply d/x? ");
    terminal.type_keys("a\n");
    assert_eq!(terminal.wait(), 0);
    assert_eq!(world.airlock(["diff", "s", "--exit-code"]).run().code, 0);
    world.airlock(["undo", "s"]).run().succeeded();
    world.airlock(["undo", "s"]).run().succeeded();
    assert_eq!(picture(&world), before);
    let nobody = world.airlock(["apply", "s", "--interactive"]).run();
    assert!(nobody.code == 2 && nobody.stderr.contains("not a terminal"), "{nobody}");
}

/// Every kind of change there is, in one run.
const EVERY: &str = r"printf 'a\0b' > bin; printf 'c\0d' > was_bin; chmod 700 run; ln -s /elsewhere out; rm file; mkdir file; \
    rm -r tree; echo plain > tree; head -c 5000000 /dev/zero | tr '\0' x > huge; truncate -s 3G sparse; mv -T old renamed; mkdir -p empty/er; \
    printf 'no end' > noend; : > nothing; mkfifo pipe; rm gone; chmod 750 dir; printf 'a b\n' > 'with space'";

#[test]
fn every_kind_of_change_is_told_applied_and_undone_exactly() {
    let world = World::new();
    for name in ["tree/deep", "dir"] {
        fs::create_dir_all(world.work().join(name)).unwrap();
    }
    for (name, text) in [
        ("was_bin", "text\n"),
        ("run", "#!\n"),
        ("file", "f\n"),
        ("tree/deep/x", "x\n"),
        ("old", "same\n"),
        ("gone", "g\n"),
        ("dir/in", "i\n"),
    ] {
        world.write(name, text);
    }
    let before = picture(&world);
    world.sh(["--name", "s"], EVERY).run().succeeded();

    let shown = world.airlock(["diff", "s"]).run();
    for text in [
        "Binary files /dev/null and b/bin differ",
        "Binary files a/was_bin and b/was_bin differ",
        "old mode 100644\nnew mode 100700",
        "new file mode 120000",
        "+/elsewhere\n\\ No newline at end of file",
        "deleted file mode 100644\n--- a/file",
        "# new directory file",
        "# deleted directory tree/deep",
        "--- /dev/null\n+++ b/tree\n@@ -0,0 +1 @@\n+plain",
        "(5000000 bytes), too large to show, differ",
        "(3221225472 bytes), too large to show, differ",
        "rename from old\nrename to renamed",
        "# new directory empty/er",
        "+no end\n\\ No newline at end of file",
        "diff --git a/nothing b/nothing\nnew file mode 100644\n",
        "# directory dir: mode 755 is now 750",
        "+++ b/with space\t",
    ] {
        assert!(shown.stdout.contains(text), "{text:?} in {shown}");
    }
    assert!(shown.stderr.contains("pipe stays in the sandbox"), "{shown}");

    world.airlock(["apply", "s"]).run().succeeded();
    assert_eq!(world.airlock(["diff", "s", "--exit-code"]).run().code, 0);
    let size = |name: &str| fs::symlink_metadata(world.work().join(name)).unwrap();
    assert_eq!((size("sparse").size(), size("sparse").blocks() < 1000), (3 << 30, true), "holes stay holes");
    assert_eq!((size("run").mode() & 0o7777, size("dir").mode() & 0o7777), (0o700, 0o750));
    assert_eq!(
        (fs::read(world.work().join("bin")).unwrap(), world.read("tree")),
        (b"a\0b".to_vec(), "plain\n".to_owned())
    );
    assert!(size("file").is_dir() && size("out").is_symlink() && !world.work().join("pipe").exists());

    world.airlock(["undo", "s"]).run().succeeded();
    assert_eq!(picture(&world), before);
}

#[test]
fn a_disk_of_its_own_is_reviewed_running_and_stopped() {
    if who() != Who::Root {
        return not_applicable("only root has disks with a bound of the kernel");
    }
    let world = project();
    let name = world.detached(["--disk", "64M", "--keep"], "echo disk > a; touch ready; exec sleep 1000");
    airlock_tests::eventually("the program has written", || {
        world.airlock(["diff", &name, "--name-only"]).run().succeeded().contains("ready").then_some(())
    });
    world.airlock(["stop", "-t", "0", &name]).run().succeeded();

    assert_eq!(world.airlock(["diff", &name, "--name-only"]).run().succeeded(), "a\nready\n");
    world.airlock(["apply", &name]).run().succeeded();
    assert_eq!(world.read("a"), "disk\n");
}

#[test]
fn an_apply_that_is_killed_leaves_every_file_old_or_new_and_can_be_undone() {
    let world = World::new();
    for number in 0..60 {
        world.write(&format!("f{number}"), "old\n".repeat(500));
    }
    world
        .sh(
            ["--name", "s"],
            "for f in f*; do yes new | head -n 900 > $f; done; for n in $(seq 40); do echo n > n$n; done",
        )
        .run()
        .succeeded();
    let before = picture(&world);

    for round in 0u64..12 {
        let running = world.airlock(["apply", "s"]).start();
        let deadline = std::time::Instant::now() + std::time::Duration::from_millis(round * 9);
        while std::time::Instant::now() < deadline {
            std::hint::spin_loop();
        }
        running.signal(Signal::KILL);
        running.wait();
        for number in 0..60 {
            let text = world.read(&format!("f{number}"));
            assert!(text == "old\n".repeat(500) || text == "new\n".repeat(900), "round {round}: f{number}");
        }
        if round % 2 == 0 {
            world.airlock(["apply", "s"]).run().succeeded();
            assert_eq!(world.airlock(["diff", "s", "--exit-code"]).run().code, 0);
        }
        let undone = world.airlock(["undo", "s"]).run();
        assert!(undone.code == 0 || undone.stderr.contains("nothing to undo"), "{undone}");
        assert_eq!(picture(&world), before, "round {round}");
    }
}

#[test]
fn an_apply_without_room_leaves_every_file_old_or_new() {
    if who() != Who::Root {
        return not_applicable("only root can put a small file system there");
    }
    let world = World::new();
    let write = "for n in $(seq 40); do head -c 100000 /dev/zero > f$n; done";
    world.sh(["--name", "s"], write).run().succeeded();
    let airlock = world.airlock(["apply", "s"]).into_command();
    let words: Vec<String> = std::iter::once(airlock.get_program())
        .chain(airlock.get_args())
        .map(|word| format!("'{}'", word.to_str().unwrap()))
        .collect();
    let script = format!(
        "mount -t tmpfs -o size=1m tmpfs .; cd \"$PWD\"; {}; echo $?; stat -c '%s %n' .airlock* f* 2>/dev/null",
        words.join(" ")
    );
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-c", &script]).current_dir(world.work());
    command.envs(airlock.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);

    assert!(
        text.contains("\n125\n") && String::from_utf8_lossy(&output.stderr).contains("No space left"),
        "{output:?}"
    );
    let files: Vec<&str> =
        text.lines().filter(|line| line.contains(" f") && !line.contains("applied")).collect();
    assert!(files.iter().all(|line| line.starts_with("100000 ")) && files.len() < 40, "{text}");
    assert!(!text.contains(".airlock"), "{text}");
}
