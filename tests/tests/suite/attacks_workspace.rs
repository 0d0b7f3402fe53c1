//! Attacks on the host through the workspace: what it obeys, what it hides, and what stands in for either.

use crate::probe::{inside, outside};
use airlock_tests::{World, eventually};
use std::{fs, process::Command};

/// A repository without hooks, below a directory of another project.
fn repository() -> World {
    let world = World::new();
    for place in [".", "vendor/lib"] {
        let path = world.work().join(place);
        fs::create_dir_all(&path).expect("a directory");
        let made = Command::new("git").args(["init", "-q", "--template="]).current_dir(&path).status();
        assert!(made.is_ok_and(|status| status.success()));
    }
    fs::create_dir(world.work().join(".vscode")).expect("a directory");
    world.write(".vscode/settings.json", "{}");
    world.write(".envrc", "");
    world
}

/// Every way to have the host obey what is written here.
const PLANT: &str = r#"
def write(path, text="evil"):
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    open(path, "w").write(text)
def swap(path):
    os.rename(path, path + ".old")
    os.mkdir(path)
def replace(path):
    open("evil", "w").write("evil")
    os.rename("evil", path)
for top in (".", "vendor/lib"):
    for name in (".git/hooks/pre-commit", ".git/config", ".git/commondir"):
        say(name, tried(lambda: write(top + "/" + name)), tried(lambda: replace(top + "/" + name)))
    say("link", tried(lambda: os.symlink("/tmp", top + "/.git/hooks/x")), tried(lambda: os.link(top + "/.git/HEAD", top + "/.git/hooks/x")))
    say("remove", tried(lambda: os.rmdir(top + "/.git/hooks")), tried(lambda: os.unlink(top + "/.git/config")))
    say("swap", tried(lambda: swap(top + "/.git")))
say("vendor", tried(lambda: swap("vendor")), tried(lambda: swap("vendor/lib")))
say("editor", tried(lambda: write(".vscode/tasks.json")), tried(lambda: swap(".vscode")), tried(lambda: write(".envrc")))
say("mode", tried(lambda: os.chmod(".git/config", 0o777)), tried(lambda: os.utime(".envrc")))
"#;

#[test]
fn what_the_host_obeys_can_be_neither_written_nor_replaced_nor_moved() {
    let world = repository();
    let settings = world.read(".git/config");

    let said = inside(&world, ["--workspace", "rw"], PLANT);

    let refused = ["EROFS", "EBUSY", "EXDEV", "EPERM", "EACCES", "EEXIST"];
    for line in said.lines() {
        let words: Vec<&str> = line.split(' ').skip(1).collect();
        assert!(words.iter().all(|word| refused.contains(word)), "{line}");
    }
    assert_eq!((world.read(".git/config"), world.read(".envrc").as_str()), (settings, ""));
    for place in [".git/hooks", ".git/commondir", "vendor/lib/.git/hooks", ".idea", ".vscode/tasks.json"] {
        assert!(!world.work().join(place).exists(), "{place} is left");
    }
    // The same where nothing is protected, and where it changes a copy only.
    assert!(inside(&world, [], PLANT).contains(".git/hooks/pre-commit done done"), "the probe cannot fail");
    assert!(outside(&world, PLANT).contains("swap done"), "the probe cannot fail");
}

#[test]
fn protections_cannot_be_unmounted_or_mounted_over() {
    let world = repository();
    let script = "umount .git/hooks; umount -l .git; mount -o remount,rw,bind .git/config; mount -t tmpfs x .git; \
                  unshare -Urm sh -c 'umount .git/hooks; umount -l .git/config; mount -o remount,rw,bind .git/config; \
                  echo evil >> .git/config; echo evil > .git/hooks/pre-commit'; echo evil >> .git/config; echo evil > .git/hooks/x; \
                  cat .git/config; cat .env; exit 0";
    world.write(".env", "SECRET");
    for nested in [&[][..], &["--nested"], &["--cap-add", "SYS_ADMIN"]] {
        let flags: Vec<&str> = ["--workspace", "rw"].iter().chain(nested).copied().collect();
        let said = world.sh(flags, script).run().stdout;
        assert!(!said.contains("SECRET"), "{nested:?}: {said}");
        assert!(!world.read(".git/config").contains("evil"), "{nested:?}");
        assert!(!world.work().join(".git/hooks").exists(), "{nested:?}");
    }
}

#[test]
fn other_spellings_and_new_repositories_are_told_of_at_the_end() {
    let world = repository();
    let probe = r#"
for path in (".GIT/hooks", "\u200c.git/hooks", "new/.git/hooks", ".Vscode", "sub"):
    os.makedirs(path)
open(".Mcp.json", "w").write("{}")
open("sub/.git", "w").write("gitdir: /tmp/x\n")
"#;

    let output = world.python(["--workspace", "rw"], &crate::probe::script(probe)).run();

    assert_eq!(output.code, 0, "{output}");
    let line = output.stderr.lines().find(|line| line.contains("protected paths appeared")).expect("a line");
    for path in [".GIT/hooks", "new/.git/hooks", ".Vscode", ".Mcp.json", "sub/.git"] {
        assert!(line.contains(path), "{path}: {line}");
    }
    let quiet = world.sh(["--workspace", "rw"], "echo x > plain").run();
    assert!(!quiet.stderr.contains("appeared"), "{quiet}");
}

#[test]
fn settings_that_are_not_there_cannot_be_made_and_git_sees_nothing_of_it() {
    let world = repository();
    let probe = r#"
def moved(path):
    open("other", "w").write("evil")
    os.rename("other", path)
for path in (".mcp.json", "mise.toml", ".gitmodules", ".claude/settings.json", ".claude/settings.local.json"):
    say(path, tried(lambda: open(path, "w").write("evil")), tried(lambda: moved(path)), tried(lambda: os.rmdir(path)))
    say(path, tried(lambda: os.symlink("/etc/passwd", path)), tried(lambda: os.rename(path, path + ".old")))
os.makedirs(".claude/notes", exist_ok=True)
say("status", subprocess.run(["git", "status", "--porcelain"], capture_output=True, text=True).stdout)
"#;
    let said = inside(&world, ["--workspace", "rw"], &format!("import subprocess\n{probe}"));

    assert!(!said.contains("done"), "{said}");
    let status = said.split_once("status").expect("a status").1;
    for path in [".mcp.json", "mise.toml", ".gitmodules", ".claude"] {
        assert!(!status.contains(path), "{status}");
        let left = world.work().join(path);
        assert!(!left.exists() || path == ".claude", "{path} is left");
    }
    // What the program itself made beside them stays.
    assert!(
        world.work().join(".claude/notes").is_dir() && !world.work().join(".claude/settings.json").exists()
    );
    assert!(
        outside(&world, &format!("import subprocess\n{probe}")).contains(".mcp.json done"),
        "the probe cannot fail"
    );
}

#[test]
fn a_hidden_file_cannot_be_had_by_another_way() {
    let world = World::new();
    fs::create_dir_all(world.work().join("a/b")).expect("directories");
    world.write("a/b/.env", "SECRET");
    let probe = r#"
ways = [
    lambda: open("a/b/.env").read(),
    lambda: os.link("a/b/.env", "x") or open("x").read(),
    lambda: os.rename("a/b/.env", "y") or open("y").read(),
    lambda: os.rename("a", "node_modules") or open("node_modules/b/.env").read(),
    lambda: os.rename("a/b", "a/node_modules") or open("a/node_modules/.env").read(),
    lambda: open("/proc/self/root" + os.getcwd() + "/a/b/.env").read(),
    lambda: open("/proc/1/root" + os.getcwd() + "/a/b/.env").read(),
    lambda: open(os.open("a/b/.env", os.O_PATH)).read(),
    lambda: open("/proc/self/fd/%d" % os.open("a/b/.env", os.O_PATH)).read(),
    lambda: open("a/b/.env", "r+").read(),
    lambda: open("a/b/.env", "w").close() or open("a/b/.env").read(),
    lambda: os.unlink("a/b/.env"),
]
for way in ways:
    try: say("got", way())
    except OSError: pass
for top, _, files in os.walk("."):
    for file in files:
        try: say(open(os.path.join(top, file)).read())
        except OSError: pass
"#;
    for mode in ["rw", "cow", "ro", "rw"] {
        let said = inside(&world, ["--workspace", mode], probe);
        assert!(!said.contains("SECRET"), "{mode}: {said}");
        let kept = fs::read_to_string(world.work().join("a/b/.env"));
        assert_eq!(kept.expect("it stays where it is"), "SECRET", "{mode}");
    }
    assert!(outside(&world, probe).contains("SECRET"), "the probe cannot fail");
}

#[test]
fn what_stands_in_stays_as_long_as_somebody_needs_it() {
    let world = repository();
    let wait =
        "echo ready; while ! test -e stop; do sleep 0.02; done; echo evil > .git/hooks/pre-commit; exit 0";
    world.detached(["--workspace", "rw", "--name", "second"], wait);
    eventually("it runs", || world.airlock(["logs", "second"]).run().stdout.contains("ready").then_some(()));
    world.sh(["--workspace", "rw"], "true").run().succeeded();
    assert!(world.work().join(".git/hooks").exists());

    world.write("stop", "");
    world.airlock(["wait", "second"]).run().succeeded();

    assert!(!world.work().join(".git/hooks").exists());
    assert!(world.airlock(["logs", "second"]).run().stdout.contains("ready"));
}

#[test]
fn what_stood_in_for_a_killed_sandbox_goes_with_the_next_command() {
    let world = repository();
    let sandbox = world.detached(["--workspace", "rw"], "sleep 1000");
    assert!(world.work().join(".git/hooks").exists());
    let keeper = world.state(&sandbox)["keeper_pid"].as_i64().expect("a keeper");
    let killed = Command::new("kill").args(["-9", &keeper.to_string()]).status();
    assert!(killed.is_ok_and(|status| status.success()));

    eventually("it is found dead", || (world.state(&sandbox)["status"] == "crashed").then_some(()));

    assert!(!world.work().join(".git/hooks").exists() && !world.work().join(".git/commondir").exists());
}

#[test]
fn planted_links_lead_nothing_of_ours_out_of_the_workspace() {
    let world = repository();
    let victim = world.aside("victim");
    let plant = format!(
        "rm -rf .idea; ln -s {0} .idea; mkdir -p fake/.git; ln -s {0} fake/.git/hooks; ln -s {0} fake/.git/objects; \
                         echo x > fake/.git/HEAD; ln -s {0}/file .env.link; ln -s {0} node",
        victim.display()
    );
    world.sh(["--workspace", "rw"], &plant).run().succeeded();

    let again = world.sh(["--workspace", "rw"], "true").run();

    assert_eq!(again.code, 0, "{again}");
    assert_eq!(fs::read_dir(&victim).expect("a directory").count(), 0);
}
