//! The workspace: a copy by default, written directly, read only, or not there; what of it is hidden and what stays.

use crate::probe::{inside, outside};
use airlock_tests::{Who, World, has_program, not_applicable, rust, skip, who};
use serde_json::Value;
use std::{fs, process::Command};

/// git with an identity and times of its own, so that what it makes is always the same.
const GIT: &str = "export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@example.com GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@example.com \
    GIT_AUTHOR_DATE='2026-01-01T00:00:00Z' GIT_COMMITTER_DATE='2026-01-01T00:00:00Z' GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_NOSYSTEM=1 \
    GIT_CONFIG_COUNT=2 GIT_CONFIG_KEY_0=safe.directory GIT_CONFIG_VALUE_0='*' GIT_CONFIG_KEY_1=init.defaultBranch GIT_CONFIG_VALUE_1=main;";

/// Runs a script on the host, in the workspace; gives what it said.
#[track_caller]
fn on_host(world: &World, script: &str) -> String {
    let output =
        Command::new("sh").args(["-ec", script]).current_dir(world.work()).output().expect("sh runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A repository with two files in it.
fn repository() -> World {
    let world = World::new();
    let make =
        "git init -q .; mkdir src; echo one > src/a; echo .env > .gitignore; git add .; git commit -qm first";
    on_host(&world, &format!("{GIT} {make}"));
    world
}

/// Everything below the workspace, with its contents.
fn look(world: &World) -> String {
    on_host(world, "find . -type f | sort | xargs -r sha256sum; find . -type l -o -type d | sort")
}

#[test]
fn by_default_the_host_stays_as_it_is() {
    let world = repository();
    world.write("gone", "");
    let before = look(&world);

    let script = "echo two >> src/a; rm gone; mkdir new; ln -s a src/link; chmod 700 src; cat src/a; ls";
    let said = world.sh(["--name", "first"], script).run().succeeded();

    assert_eq!(said, "one\ntwo\nnew\nsrc\n");
    assert_eq!(look(&world), before);
    assert_eq!(world.state("first")["spec"]["workspace"]["mode"], "cow");
}

#[test]
fn a_run_that_changed_nothing_leaves_nothing() {
    let world = repository();
    world.sh([], "cat src/a; touch x; rm x; mkdir d; rmdir d").run().succeeded();
    assert_eq!(world.sandboxes(), Vec::<Value>::new());
}

#[test]
fn changes_stay_until_somebody_decides_about_them() {
    let world = repository();
    world.sh(["--name", "first"], "echo two >> src/a").run().succeeded();
    assert_eq!(world.state("first")["status"], "stopped");

    let refused = world.airlock(["rm", "first"]).run().failed(1);
    assert!(refused.contains("holds changes that were not applied"), "{refused}");
    assert!(refused.contains("airlock diff first") && refused.contains("--force"), "{refused}");
    let pruned = world.airlock(["prune"]).run();
    assert!(pruned.code == 0 && pruned.stderr.contains("kept 1 sandbox"), "{pruned}");
    assert_eq!(world.state("first")["status"], "stopped");

    world.airlock(["prune", "--force"]).run().succeeded();
    assert_eq!(world.sandboxes(), Vec::<Value>::new());
    world.sh(["--name", "second"], "echo two >> src/a").run().succeeded();
    world.airlock(["rm", "--force", "second"]).run().succeeded();
    assert_eq!(world.read("src/a"), "one\n");
}

#[test]
fn the_end_of_a_run_tells_what_was_changed() {
    let world = repository();

    let facts = world.sh(["--json"], "echo two >> src/a; echo x > src/b").run();
    let facts: Value = serde_json::from_str(facts.stderr.trim()).expect("one object");
    assert_eq!(facts["changes"]["files"], 2, "{facts}");

    let mut terminal = world.on_terminal(["run", "--", "sh", "-c", "echo two >> src/a"]);
    let screen = terminal.wait_for("airlock apply");
    assert!(screen.contains("airlock: 1 file changed (+1 -0); review with `airlock diff"), "{screen}");
    terminal.wait();
}

#[test]
fn a_sandbox_that_stays_goes_on_with_its_own_files() {
    let world = repository();
    world.sh(["--keep", "--name", "web"], "cat src/a; echo more >> src/a").run().succeeded();

    world.airlock(["start", "web"]).run().succeeded();
    world.airlock(["wait", "web"]).run().succeeded();

    let said = world.airlock(["logs", "web"]).run().succeeded();
    assert!(said.ends_with("one\nmore\n"), "{said}");
    assert_eq!(world.read("src/a"), "one\n");
}

#[test]
fn the_copy_is_bounded_with_the_disk() {
    let flags: &[&str] = if who() == Who::Root { &["32M", "32M,tmpfs"] } else { &["32M,tmpfs"] };
    for flag in flags {
        let world = World::new();
        let filled = world.sh(["--disk", flag], "head -c 100M /dev/zero > big").run();
        assert!(filled.code != 0 && filled.stderr.contains("No space left"), "{flag}: {filled}");
    }
}

#[test]
fn a_workspace_on_a_file_system_that_cannot_be_shown_is_refused_with_what_works() {
    if who() != Who::Root {
        return not_applicable("only root can mount such a file system");
    }
    let world = World::new();
    let parts = ["lower", "upper", "scratch", "merged"].map(|name| world.aside(name));
    let [lower, upper, scratch, merged] = parts.each_ref().map(|path| path.display().to_string());
    let options = format!("lowerdir={lower},upperdir={upper},workdir={scratch}");
    let mounted = Command::new("mount").args(["-t", "overlay", "overlay", "-o", &options, &merged]).status();
    if !mounted.is_ok_and(|status| status.success()) {
        return skip("no overlay can be mounted here");
    }
    let refused = world.airlock(["run", "--", "true"]).dir(&merged).run();
    let unmounted = Command::new("umount").args(["-l", &merged]).status();

    assert!(unmounted.is_ok_and(|status| status.success()));
    let stderr = refused.failed(125);
    assert!(
        stderr.contains("cannot show shifted ids") && stderr.contains("fix:  run airlock as the owner"),
        "{stderr}"
    );
}

#[test]
fn git_works_whole_in_a_copy_and_where_writes_reach_the_host() {
    let script = format!(
        "{GIT} set -e; git status --short; echo two >> src/a; git commit -qam second; git checkout -q -b side; git mv src/a src/b; \
         git commit -qm third; git checkout -q main; git worktree add -q tree side; ls tree/src; git -C tree status --short; \
         git worktree remove tree; git gc -q; git stash list; git rev-parse side"
    );
    let world = repository();
    let expected = on_host(&world, &script);
    for mode in ["cow", "rw"] {
        let world = repository();
        assert_eq!(world.sh(["--workspace", mode], &script).run().succeeded(), expected, "{mode}");
    }
    let read_only = repository();
    let said =
        read_only.sh(["--workspace", "ro"], &format!("{GIT} git status --short; git log --format=%s")).run();
    assert_eq!(said.succeeded(), "first\n");
}

#[test]
fn builds_in_a_copy_give_what_they_give_outside() {
    let python = "python3 -m compileall -q --invalidation-mode unchecked-hash lib && python3 -m zipapp -m hello:main -o app.pyz lib >/dev/null && \
                  python3 app.pyz && cd lib && find . -name '*.pyc' | sort | xargs sha256sum";
    let node = "npm pack --silent 2>/dev/null && tar xzOf hello-1.0.0.tgz package/cli.js && node cli.js";
    for (program, script) in [("python3", python), ("npm", node)] {
        if !has_program(program) {
            skip(&format!("{program} is not there"));
            continue;
        }
        let world = World::new();
        fs::create_dir(world.work().join("lib")).expect("a directory");
        world.write("lib/hello.py", "def main(): print('hello from python')\n");
        world.write("package.json", r#"{"name": "hello", "version": "1.0.0", "bin": "cli.js"}"#);
        world.write("cli.js", "console.log('hello from node')\n");
        let copied = world.sh(["--env", "HOME=/tmp"], script).run().succeeded();
        assert_eq!(copied, on_host(&world, script), "{program}");
    }
}

#[test]
fn cargo_builds_in_a_copy_and_builds_again_only_what_changed() {
    let Some(rust) = rust() else { return };
    let world = World::new();
    fs::create_dir(world.work().join("src")).expect("a directory");
    let manifest = "[package]\nname = \"hello\"\nversion = \"1.0.0\"\nedition = \"2021\"\n[workspace]\n";
    world.write("Cargo.toml", manifest);
    world.write("src/main.rs", "fn main() { println!(\"hello\"); }\n");
    let script = "cargo run -q --offline && cargo build --offline 2>&1 | grep -c Compiling; \
                  echo 'fn main() { println!(\"again\"); }' > src/main.rs; cargo run -q --offline";

    let flags = rust.iter().map(String::as_str);
    let said = world.sh(flags, script).run().succeeded();

    assert_eq!(said, "hello\n0\nagain\n");
    assert!(!world.work().join("target").exists());
}

/// What overlayfs does otherwise than a plain file system.
const DIFFERENCES: &str = r#"
say("rename of a directory", tried(lambda: os.rename("src", "moved")))
os.mkdir("fresh")
say("rename of a new directory", tried(lambda: os.rename("fresh", "fresh2")))
say("rename of a file", tried(lambda: os.rename("src/b", "src/c")))
one, two = os.stat("first"), os.stat("second")
say("one file", one.st_ino == two.st_ino)
open("first", "a").write("more")
say("still one file", open("second").read() != "")
"#;

#[test]
fn the_known_differences_of_a_copy_are_these() {
    let make = |world: &World| {
        fs::create_dir(world.work().join("src")).expect("a directory");
        world.write("src/b", "");
        world.write("first", "");
        fs::hard_link(world.work().join("first"), world.work().join("second")).expect("a link");
    };
    let (copied, plain) = (World::new(), World::new());
    make(&copied);
    make(&plain);

    let said = inside(&copied, [], DIFFERENCES);

    let expected = "rename of a directory EXDEV\nrename of a new directory done\nrename of a file done\none file True\nstill one file False\n";
    assert_eq!(said, expected);
    let outside = outside(&plain, &DIFFERENCES.replace("src/b", "moved/b").replace("src/c", "moved/c"));
    assert!(
        outside.contains("rename of a directory done") && outside.contains("still one file True"),
        "{outside}"
    );
}

#[test]
fn secrets_cannot_be_read_in_any_mode() {
    let world = repository();
    fs::create_dir(world.work().join("deep")).expect("a directory");
    for name in [".env", "deep/.env.local", "deep/id_ed25519"] {
        world.write(name, "SECRET=1\n");
    }
    world.write("server.pem", "-----BEGIN PRIVATE KEY-----\nSECRET\n");
    world.write("ca.pem", "-----BEGIN CERTIFICATE-----\npublic\n");
    world.write(".env.example", "SECRET=public\n");
    let script = "for f in .env deep/.env.local deep/id_ed25519 server.pem; do cat $f 2>&1; cp $f copy 2>/dev/null; done; \
                  cat ca.pem .env.example | grep -c public; grep -rl SECRET . | grep -v example; exit 0";
    let denied = ".env deep/.env.local deep/id_ed25519 server.pem".split(' ');
    let denied: String = denied.map(|name| format!("cat: {name}: Permission denied\n")).collect();

    for mode in ["cow", "rw", "ro"] {
        let said = world.sh(["--workspace", mode], script).run().succeeded();
        assert_eq!(said, format!("{denied}2\n"), "{mode}");
    }

    world.write("airlock.toml", "[paths]\nhide_as = \"empty\"\n");
    for mode in ["cow", "rw", "ro"] {
        assert_eq!(world.sh(["--workspace", mode], script).run().succeeded(), "2\n", "{mode}");
    }
    assert_eq!(world.read(".env"), "SECRET=1\n");
}

#[test]
fn a_project_may_hide_more_and_show_only_what_a_person_trusts_it_with() {
    let world = World::new();
    world.write(".env", "public");
    world.write("plan.txt", "SECRET");
    world.write("airlock.toml", "[paths]\nhidden = [\"plan.txt\"]\n");
    assert!(world.sh([], "cat plan.txt").run().stderr.contains("Permission denied"));

    world.write("airlock.toml", "[paths]\nshown = [\".env\"]\n");
    let refused = world.sh([], "cat .env").run().failed(125);
    assert!(refused.contains("is not trusted") && refused.contains("`paths`"), "{refused}");
    world.airlock(["trust", "--yes"]).run().succeeded();
    assert_eq!(world.sh([], "cat .env").run().succeeded(), "public");
}

#[test]
fn git_works_beside_secrets_that_it_ignores() {
    let script = format!(
        "{GIT} git status --short; echo x > new; git add -A && git commit -qm second && git status --short"
    );
    for mode in ["cow", "rw"] {
        let world = repository();
        world.write(".env", "SECRET=1\n");
        assert_eq!(world.sh(["--workspace", mode], &script).run().succeeded(), "", "{mode}");
    }
}

#[test]
fn git_adds_everything_but_what_is_hidden() {
    let world = World::new();
    world.write(".env", "SECRET");
    world.write("a b.key", "SECRET");
    world.write("plain", "");
    let script = "git init -q . && git add -A && git ls-files && git status --porcelain";
    for mode in ["cow", "rw"] {
        let said = world.sh(["--workspace", mode, "-q"], script).run().succeeded();
        assert_eq!(said, "plain\nA  plain\n", "{mode}");
        let _ = std::fs::remove_dir_all(world.work().join(".git"));
    }
}

#[test]
fn git_is_told_of_what_is_hidden_since_the_last_start() {
    let world = World::new();
    world.write("old.key", "SECRET");
    world.write("plain", "");
    let script = "[ -d .git ] || git init -q .; git add -A && git ls-files";
    world.sh(["--keep", "--name", "s", "-q"], script).run().succeeded();
    world.write("new.key", "SECRET");

    world.airlock(["start", "s"]).run().succeeded();
    world.airlock(["wait", "s"]).run().succeeded();

    let said = world.airlock(["logs", "s"]).run().succeeded();
    assert!(said.ends_with("plain\n") && !said.contains("new.key") && !said.contains("fatal"), "{said}");
}
