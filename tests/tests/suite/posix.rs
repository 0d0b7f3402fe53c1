//! What POSIX and Linux promise of a file system, tried in the workspace in every mode and in every kind of programmable
//! mount; and what `fio` writes there, read again.

use airlock_tests::{Who, World, has_program, posix, skip, who};
use std::{env, fs, path::Path};

/// The checks of [`posix`] that a kind of file system is known to fail, and why.
type Known = &'static [(&'static str, &'static str)];

const PIPES: (&str, &str) = ("a_pipe_has_a_name", "pipes are not made on the host");
const OWNER: (&str, &str) =
    ("what_cannot_be_read_is_not_read", "root inside is an ordinary owner on the host");
const NONE: Known = &[];
const REAL: Known = &[PIPES];
/// On the host the directory's owner is no root, and cannot write what a mode forbids.
const REAL_OF_A_USER: Known = &[PIPES, OWNER];

/// Whether this user may open the kernel's device.
fn can_serve() -> bool {
    let opened = fs::OpenOptions::new().read(true).write(true).open("/dev/fuse");
    if let Err(err) = &opened {
        skip(&format!("/dev/fuse cannot be opened: {err}"));
    }
    opened.is_ok()
}

/// Runs inside a sandbox, in place of this suite: see [`posix_in`].
#[test]
#[ignore = "runs inside a sandbox, for the tests below"]
fn posix_inside() {
    let Some(directory) = env::var_os("POSIX_DIRECTORY") else { return };
    for (name, why) in posix::run(Path::new(&directory)) {
        println!("\nposix: {name}: {why}");
    }
    println!("\nposix: done");
}

/// What fails of the checks in a directory inside a sandbox with these flags.
fn posix_in(world: &World, flags: &[&str], directory: &str) -> Vec<String> {
    let own = env::current_exe().expect("this suite has a path");
    let suite = format!("{}:/suite:ro", own.display());
    let variable = format!("POSIX_DIRECTORY={directory}");
    let output = world
        .airlock(["run", "-q", "--mount", &suite, "-e", &variable])
        .args(flags)
        .args(["--", "/suite", "--ignored", "--exact", "posix::posix_inside", "--nocapture"])
        .run()
        .succeeded();
    let lines: Vec<String> =
        output.lines().filter_map(|line| line.strip_prefix("posix: ")).map(str::to_owned).collect();
    assert_eq!(lines.last().map(String::as_str), Some("done"), "{output}");
    lines.into_iter().filter(|line| line != "done").collect()
}

fn assert_only(failed: &[String], known: Known) {
    let is_known = |line: &&String| known.iter().any(|(name, _)| line.starts_with(&format!("{name}:")));
    let unknown: Vec<&String> = failed.iter().filter(|line| !is_known(line)).collect();
    assert!(unknown.is_empty(), "{unknown:#?}");
    assert_eq!(failed.len(), known.len(), "fewer fail than are known to: {failed:#?}");
}

/// Files that are written at random places, in several ways, by several at once, with a sum in every block; then all of
/// it is read again.
const JOBS: &str = "
[global]
size=4m
bsrange=512-64k
rw=randwrite
verify=crc32c
do_verify=1
verify_fatal=1
verify_dump=0
verify_state_save=0
fallocate=none
allow_file_create=1
unlink=1
[calls]
ioengine=psync
fsync=20
numjobs=2
[mapped]
ioengine=mmap
bs=4k
[vectors]
ioengine=pvsync
overwrite=1
[grows]
rw=write
ioengine=sync
file_append=1
[mixed]
rw=randrw
ioengine=psync
overwrite=1
";

/// Lets fio write and verify in a directory inside.
fn fio_in(world: &World, flags: &[&str], directory: &str) {
    if !has_program("fio") {
        return skip("there is no fio");
    }
    let script = format!(
        "cat >/tmp/jobs && cd {directory} && fio --minimal /tmp/jobs 2>&1 >/tmp/said; code=$?; grep -v '^[0-9]' /tmp/said; ls; exit $code"
    );
    let said = world.airlock(["run", "-q"]).args(flags).args(["--", "sh", "-c", &script]).input(JOBS).run();
    assert_eq!((said.code, said.stdout.as_str()), (0, ""), "{said}");
}

#[test]
fn a_copy_of_the_workspace_is_a_file_system() {
    let world = World::new();
    let work = world.work().to_str().expect("a plain path").to_owned();
    assert_only(&posix_in(&world, &["--workspace", "cow"], &work), NONE);
    fio_in(&world, &["--workspace", "cow"], &work);
    assert_eq!(fs::read_dir(world.work()).unwrap().count(), 0, "nothing reached the host");
}

#[test]
fn a_workspace_that_is_written_directly_is_a_file_system() {
    let world = World::new();
    let work = world.work().to_str().expect("a plain path").to_owned();
    assert_only(&posix_in(&world, &["--workspace", "rw"], &work), NONE);
    let world = World::new();
    let work = world.work().to_str().expect("a plain path").to_owned();
    fio_in(&world, &["--workspace", "rw"], &work);
}

#[test]
fn a_mount_in_memory_is_a_file_system() {
    if !can_serve() {
        return;
    }
    let world = World::new();
    let flags = ["--workspace", "none", "--mount", "type=memory,dst=/m"];
    assert_only(&posix_in(&world, &flags, "/m"), NONE);
    fio_in(&world, &flags, "/m");
}

#[test]
fn a_served_directory_is_a_file_system() {
    if !can_serve() {
        return;
    }
    let world = World::new();
    let mount = format!("type=real,src={},dst=/m", world.aside("data").display());
    let failed = posix_in(&world, &["--workspace", "none", "--mount", &mount], "/m");
    match who() {
        Who::Root => assert_only(&failed, REAL),
        _ => assert_only(&failed, REAL_OF_A_USER),
    }
    let mount = format!("type=real,src={},dst=/m", world.aside("written").display());
    fio_in(&world, &["--workspace", "none", "--mount", &mount], "/m");
}

#[test]
fn an_overlay_of_two_mounts_is_a_file_system() {
    if !can_serve() {
        return;
    }
    let world = World::new();
    let lower = world.aside("lower");
    fs::write(lower.join("below"), "x").unwrap();
    let mount = format!("type=overlay,lower={},upper=memory,dst=/m", lower.display());
    let flags = ["--workspace", "none", "--mount", &mount];
    assert_only(&posix_in(&world, &flags, "/m"), NONE);
    assert_eq!(fs::read_dir(&lower).unwrap().count(), 1);
    let mount = format!("type=overlay,lower={},upper=memory,dst=/m", world.aside("empty").display());
    fio_in(&world, &["--workspace", "none", "--mount", &mount], "/m");
}

#[test]
fn a_router_with_hooks_is_a_file_system() {
    if !can_serve() {
        return;
    }
    let world = World::new();
    let settings = "[[provided]]\ntarget = \"/m\"\nprovider = { type = \"router\", routes = [\n\
        { path = \"a/b\", provider = { type = \"memory\", size = \"64M\" } },\n] }\n\
        hooks = [{ paths = \"**\", on = [\"write\", \"rename\", \"create\"], do = \"tell\" }]\n";
    let file = world.aside("settings").join("mounts.toml");
    fs::write(&file, settings).unwrap();
    let flags = ["--workspace", "none", "--config", file.to_str().expect("a plain path")];
    assert_only(&posix_in(&world, &flags, "/m/a/b"), NONE);
    fio_in(&world, &flags, "/m/a/b");
}
