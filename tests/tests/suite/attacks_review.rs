//! Attacks on diff and apply: programs that race them, and files made to mislead them.

use airlock_tests::World;
use std::{
    fs,
    os::unix::fs::{MetadataExt as _, symlink},
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    time::{Duration, Instant},
};

/// Applies under a race; each meets thousands of changes.
const ROUNDS: usize = 30;

#[test]
fn a_program_that_swaps_files_for_links_and_pipes_never_leads_apply_out() {
    let world = World::new();
    let secret = world.aside("outside").join("f");
    fs::write(&secret, "secret of the host\n").unwrap();
    fs::create_dir(world.work().join("d")).unwrap();
    world.write("d/f", "");
    let script = format!(
        r"
import os, itertools
os.makedirs('d', exist_ok=True)
def put(make):
    try: os.unlink('t')
    except FileNotFoundError: pass
    make('t')
    os.rename('t', 'd/f')
kinds = [lambda p: open(p, 'w').write('inside\n'), lambda p: os.symlink('{0}', p), lambda p: os.mkfifo(p), lambda p: os.link('other', p)]
open('other', 'w').write('inside\n')
open('ready', 'w').close()
for kind in itertools.cycle(kinds):
    put(kind)
    try: os.rename('d', 'e'); os.symlink('{1}', 'd'); os.unlink('d'); os.rename('e', 'd')
    except OSError: os.makedirs('d', exist_ok=True)
",
        secret.display(),
        secret.parent().unwrap().display()
    );
    let name = world.airlock(["run", "-d", "--", "python3", "-c", &script]).run().succeeded();
    let name = name.trim();
    airlock_tests::eventually("the race has begun", || {
        world.airlock(["diff", name, "--name-only"]).run().stdout.contains("ready").then_some(())
    });

    for _ in 0..ROUNDS {
        let applied = world.airlock(["apply", name, "--force"]).run();
        assert!([0, 1, 125].contains(&applied.code) && !applied.stderr.contains("panicked"), "{applied}");
        if let Ok(metadata) = fs::symlink_metadata(world.work().join("d/f")) {
            assert!(metadata.is_file() || metadata.is_symlink(), "{metadata:?}");
            if metadata.is_file() {
                assert!(["inside\n", ""].contains(&world.read("d/f").as_str()), "{}", world.read("d/f"));
            }
        }
        assert_eq!(fs::read_to_string(&secret).unwrap(), "secret of the host\n");
        let shown = world.airlock(["diff", name]).run();
        assert!(!shown.stdout.contains("secret of the host"), "{shown}");
    }
    world.airlock(["kill", name]).run().succeeded();
    let litter = fs::read_dir(world.work()).unwrap().flatten();
    assert!(
        litter.map(|entry| entry.file_name()).all(|name| !name.to_string_lossy().starts_with(".airlock"))
    );
}

#[test]
fn directories_of_the_host_that_become_links_lead_apply_nowhere() {
    let world = World::new();
    let outside = world.aside("outside");
    fs::create_dir(world.work().join("d")).unwrap();
    world.sh(["--name", "s"], "for n in $(seq 5); do echo $n > d/$n; done").run().succeeded();
    let (over, swaps) = (AtomicBool::new(false), AtomicUsize::new(0));

    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (real, aside) = (world.work().join("d"), world.work().join("aside"));
            while !over.load(Ordering::Relaxed) {
                if fs::rename(&real, &aside).is_ok() {
                    let _ = symlink(&outside, &real);
                    let _ = fs::remove_file(&real);
                    if fs::rename(&aside, &real).is_err() {
                        // Apply has made the directory anew meanwhile; the race goes on with that one.
                        let _ = fs::remove_dir_all(&aside);
                    }
                    swaps.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
        for _ in 0..ROUNDS {
            let applied = world.airlock(["apply", "s", "--force"]).run();
            assert!(!applied.stderr.contains("panicked"), "{applied}");
            let _ = world.airlock(["undo", "s", "--force"]).run();
        }
        over.store(true, Ordering::Relaxed);
    });

    assert!(swaps.load(Ordering::Relaxed) > 1000, "{swaps:?} swaps are no race");
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 0);
}

#[test]
fn a_protected_path_is_not_reached_by_other_spellings_renames_or_links() {
    let world = World::new();
    fs::create_dir_all(world.work().join(".git/hooks")).unwrap();
    let script = r#"
mkdir -p made/hooks .GIT/hooks "$(printf '.g\342\200\214it')/hooks" 'git~1/hooks' .git/modules/x/hooks bare/objects bare/refs sub
for d in made .GIT "$(printf '.g\342\200\214it')" 'git~1' .git .git/modules/x; do echo evil > "$d/hooks/pre-commit"; done
echo evil > bare/config; echo ref > bare/HEAD
mv made n1; mkdir nested; mv n1 nested/.git
ln .git/hooks/pre-commit hard; ln -s .git/hooks soft
echo 'gitdir: ../bare' > sub/.git; echo evil > .ENVRC
"#;
    world.sh(["--name", "s"], script).run().succeeded();

    let applied = world.airlock(["apply", "s"]).run().succeeded();

    for path in [
        ".git/hooks/pre-commit",
        ".GIT/hooks",
        ".g\u{200c}it/hooks",
        "git~1/hooks",
        ".git/modules/x/hooks",
        "nested/.git/hooks",
        "bare/config",
        "sub/.git",
        ".ENVRC",
    ] {
        assert!(!world.work().join(path).exists(), "{path}: {applied}");
    }
    assert_eq!(fs::read_dir(world.work().join(".git/hooks")).unwrap().count(), 0);
}

#[test]
fn a_huge_file_with_nothing_in_it_costs_nothing() {
    let world = World::new();
    world.sh(["--name", "s"], "truncate -s 200G huge; echo x >> huge").run().succeeded();
    let begun = Instant::now();

    let shown = world.airlock(["diff", "s"]).run().succeeded();
    world.airlock(["apply", "s"]).run().succeeded();

    let huge = world.work().join("huge").metadata().unwrap();
    assert!(shown.contains("too large to show"), "{shown}");
    assert_eq!(huge.size(), (200 << 30) + 2);
    assert!(huge.blocks() < 1000 && begun.elapsed() < Duration::from_secs(20));
    fs::remove_file(world.work().join("huge")).unwrap();
}

#[test]
fn a_tree_without_end_and_odd_names_are_told() {
    let world = World::new();
    let script = r"
import os
open('fine', 'w').write('x\n')
open('two\nlines\x1b[2J', 'w').write('x\n')
open(b'bytes\xff', 'w').write('x\n')
for n in range(3000):
    os.mkdir('d'); os.chdir('d')
";
    world.airlock(["run", "--name", "s", "--", "python3", "-c", script]).run().succeeded();

    let names = world.airlock(["diff", "s", "--name-only"]).run();
    let applied = world.airlock(["apply", "s"]).run();

    assert_eq!(names.stdout, "\"bytes\\377\"\nfine\n\"two\\nlines\\033[2J\"\n");
    assert!(names.stderr.contains("it lies too deep") && applied.code == 0, "{applied}");
    assert_eq!(world.read("fine"), "x\n");
    world.airlock(["discard", "s", "--yes"]).run().succeeded();
}

#[test]
fn nothing_special_and_no_powers_leave() {
    let world = World::new();
    let script = "mkfifo p; python3 -c \"import socket; socket.socket(socket.AF_UNIX).bind('s')\"; echo x > f; chmod 6755 f 2>/dev/null || chmod 755 f; mkdir d; chmod 2777 d 2>/dev/null; true";
    world.sh(["--name", "s"], script).run().succeeded();

    world.airlock(["apply", "s", "--include-protected"]).run().succeeded();

    assert!(!world.work().join("p").exists() && !world.work().join("s").exists());
    for name in ["f", "d"] {
        assert_eq!(world.work().join(name).metadata().unwrap().mode() & 0o7000, 0, "{name}");
    }
}
