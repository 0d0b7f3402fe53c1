//! Bounded disks on the running kernel, as root.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::*;

const STAGE: &str = "AIRLOCK_TEST_DISK";

fn skip(why: &str) {
    assert!(
        std::env::var_os("AIRLOCK_TEST_STRICT").is_none_or(|value| value != "1"),
        "cannot run here: {why}"
    );
    eprintln!("skipped: {why}");
}

/// A state directory, if loop images can be made here.
fn state() -> Option<tempfile::TempDir> {
    if !rustix::process::geteuid().is_root() || !Path::new("/dev/loop-control").exists() {
        skip("not root, or no loop devices");
        return None;
    }
    Some(tempfile::tempdir().unwrap())
}

fn open_in(home: &Path, bytes: u64) -> Result<Limited, Error> {
    open_limited(home, bytes, &home.join("templates"))
}

fn inside(disk: &Limited, name: &str) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}/{name}", disk.mount.as_raw_fd()))
}

/// The loop devices whose backing file lies below `home`.
fn attached(home: &Path) -> Vec<String> {
    let devices =
        fs::read_dir("/sys/block").unwrap().map(|entry| entry.unwrap().path().join("loop/backing_file"));
    let files = devices.filter_map(|path| fs::read_to_string(path).ok());
    files.filter(|file| Path::new(file.trim()).starts_with(home)).collect()
}

fn wait_until_detached(home: &Path) {
    let begun = Instant::now();
    while !attached(home).is_empty() {
        assert!(begun.elapsed() < Duration::from_secs(10), "{:?} stay attached", attached(home));
        std::thread::yield_now();
    }
}

fn fill(path: &Path) -> (u64, Option<i32>) {
    let mut file = fs::File::create(path).unwrap();
    let block = vec![7_u8; 1 << 20];
    let mut written = 0;
    loop {
        match file.write_all(&block).and_then(|()| file.sync_data()) {
            Ok(()) => written += 1 << 20,
            Err(full) => return (written, full.raw_os_error()),
        }
    }
}

#[test]
fn a_disk_is_full_at_its_bound_and_gone_when_dropped() {
    let Some(home) = state() else { return };
    let disk = open_in(home.path(), 32 << 20).unwrap();
    assert_eq!((disk.backing, attached(home.path()).len()), (Backing::LoopImage, 1));

    // Not every file system below can; the bound is the same.
    let _ = disk.write_directly();
    let (written, error) = fill(&inside(&disk, "big"));

    assert_eq!(error, Some(libc::ENOSPC));
    assert!((24 << 20..32 << 20).contains(&written), "{written}");
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!mounts.contains("/dev/loop"), "visible on the host");
    drop(disk);
    wait_until_detached(home.path());
}

#[test]
fn the_number_of_files_is_bounded_too() {
    let Some(home) = state() else { return };
    let disk = open_in(home.path(), 8 << 20).unwrap();

    let refused = (0..10_000).find_map(|n| {
        fs::File::create(inside(&disk, &format!("f{n}"))).err().map(|full| (n, full.raw_os_error()))
    });

    let (count, error) = refused.unwrap();
    assert_eq!(error, Some(libc::ENOSPC));
    assert!(count <= 512, "{count}");
}

#[test]
fn a_disk_is_found_again_and_never_open_twice() {
    let Some(home) = state() else { return };
    let disk = open_in(home.path(), 16 << 20).unwrap();
    fs::write(inside(&disk, "note"), "kept").unwrap();

    let second = open_in(home.path(), 16 << 20);
    drop(disk);
    wait_until_detached(home.path());
    let state = fs::read(home.path().join("disk.img")).unwrap()[1024 + 0x3A];
    let again = open_in(home.path(), 16 << 20).unwrap();
    let found = fs::read_to_string(inside(&again, "note")).unwrap();
    drop(again);
    wait_until_detached(home.path());
    let other = open_in(home.path(), 64 << 20);

    assert!(matches!(second, Err(Error::InUse { .. })), "{second:?}");
    assert_eq!((found.as_str(), state), ("kept", 1), "cleanly unmounted");
    assert!(matches!(other, Err(Error::OtherSize { .. })), "{other:?}");
}

#[test]
fn an_image_left_unclean_is_repaired_when_opened() {
    let Some(home) = state() else { return };
    let disk = open_in(home.path(), 16 << 20).unwrap();
    fs::write(inside(&disk, "note"), "kept").unwrap();
    rustix::fs::syncfs(fs::File::open(inside(&disk, "note")).unwrap()).unwrap();
    // A copy taken while it is mounted is what a crash of the host would leave.
    let crashed = home.path().join("crashed");
    fs::create_dir(&crashed).unwrap();
    fs::copy(home.path().join("disk.img"), crashed.join("disk.img")).unwrap();
    drop(disk);

    let after = open_in(&crashed, 16 << 20).unwrap();

    assert_eq!(fs::read_to_string(inside(&after, "note")).unwrap(), "kept");
    drop(after);
    wait_until_detached(home.path());
}

#[test]
fn a_state_directory_in_memory_will_do() {
    let Some(_) = state() else { return };
    let home = tempfile::tempdir_in("/dev/shm").unwrap();

    let disk = open_in(home.path(), 16 << 20).unwrap();
    fs::write(inside(&disk, "note"), "kept").unwrap();

    assert_eq!(fs::read_to_string(inside(&disk, "note")).unwrap(), "kept");
    drop(disk);
    wait_until_detached(home.path());
}

#[test]
fn a_killed_holder_leaves_no_device() {
    let Some(home) = state() else { return };
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "disk::tests::hold", "--nocapture"]).env(STAGE, home.path());
    let mut holder = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(holder.stdout.as_mut().unwrap()).lines();
    assert!(lines.map_while(Result::ok).any(|line| line.contains("held")));
    assert_eq!(attached(home.path()).len(), 1);

    holder.kill().unwrap();
    holder.wait().unwrap();

    wait_until_detached(home.path());
}

/// The child of the test above. Without the variable this is an empty test.
#[test]
fn hold() {
    let Some(home) = std::env::var_os(STAGE) else { return };
    let _disk = open_in(Path::new(&home), 16 << 20).unwrap();
    println!("held");
    let _ = std::io::stdin().read_line(&mut String::new());
}

#[test]
fn many_disks_at_once_do_not_take_each_others_device() {
    let Some(home) = state() else { return };
    let templates = home.path().join("templates");
    let homes: Vec<PathBuf> = (0..12).map(|n| home.path().join(n.to_string())).collect();

    let disks: Vec<Limited> = std::thread::scope(|scope| {
        let open = |dir: &Path| {
            fs::create_dir(dir).unwrap();
            open_limited(dir, 16 << 20, &templates).unwrap()
        };
        let threads: Vec<_> = homes.iter().map(|dir| scope.spawn(move || open(dir))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });

    for (number, disk) in disks.iter().enumerate() {
        fs::write(inside(disk, "own"), number.to_string()).unwrap();
    }
    let found: Vec<String> =
        disks.iter().map(|disk| fs::read_to_string(inside(disk, "own")).unwrap()).collect();
    assert_eq!(found, (0..12).map(|n| n.to_string()).collect::<Vec<_>>());
    drop(disks);
    wait_until_detached(home.path());
}

/// An ext4 file system with project quotas at `at`, in a mount namespace of the calling thread.
fn mount_with_projects(home: &Path, at: &Path) -> Result<(), Box<dyn std::error::Error>> {
    use rustix::mount::*;
    let path = home.join("host.img");
    let image = fs::OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&path)?;
    image.set_len(128 << 20)?;
    let made = Command::new("/usr/sbin/mkfs.ext4")
        .args(["-q", "-F", "-b", "4096", "-O", "quota,project"])
        .arg(&path)
        .status()?;
    assert!(made.success());
    // SAFETY: gives the calling thread a mount namespace of its own and touches no memory.
    assert_eq!(unsafe { libc::unshare(libc::CLONE_NEWNS) }, 0);
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
    let (device, _held) = loops::attach(&image)?;
    let context = fsopen("ext4", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_set_string(&context, "source", &device)?;
    fsconfig_set_flag(&context, "prjquota")?;
    fsconfig_create(&context)?;
    let mounted = fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())?;
    fs::create_dir(at)?;
    move_mount(&mounted, "", rustix::fs::CWD, at, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?;
    Ok(())
}

#[test]
fn a_project_quota_bounds_a_tree_where_the_file_system_has_them() {
    use std::os::unix::process::CommandExt;
    let Some(home) = state() else { return };
    let host = home.path().join("host");
    let in_own_namespace = || {
        if let Err(without) = mount_with_projects(home.path(), &host) {
            // Kernels are built with or without; this is the other kernel's test.
            return eprintln!("skipped: no project quotas in this kernel ({without})");
        }
        let sandbox = host.join("sandbox");
        fs::create_dir(&sandbox).unwrap();
        let disk = open_in(&sandbox, 16 << 20).unwrap();
        let big = format!("/proc/thread-self/fd/{}/big", disk.mount.as_raw_fd());
        let file = fs::File::create(&big).unwrap();

        // Root of the host may exceed a quota, the ids of a sandbox may not.
        let mut writer = Command::new("dd");
        writer
            .args(["if=/dev/zero", "bs=1M", "count=64"])
            .stdout(file)
            .stderr(Stdio::null())
            .uid(54_321)
            .gid(54_321);
        let ended = writer.status().unwrap();

        assert_eq!(disk.backing, Backing::ProjectQuota);
        assert!(!ended.success());
        let written = fs::metadata(&big).unwrap().len();
        assert!((12 << 20..=16 << 20).contains(&written), "{written}");
        drop(disk);
        let again = open_in(&sandbox, 16 << 20).unwrap();
        assert_eq!(
            fs::metadata(format!("/proc/thread-self/fd/{}/big", again.mount.as_raw_fd())).unwrap().len(),
            written
        );
    };

    std::thread::scope(|scope| scope.spawn(in_own_namespace).join().unwrap());

    wait_until_detached(home.path());
}

#[test]
fn a_disk_too_small_for_a_file_system_is_refused_with_the_least_size() {
    let refused = open_limited("/nowhere".as_ref(), 1000, "/nowhere".as_ref()).unwrap_err();

    assert_eq!(refused.fix().as_deref(), Some("--disk 4M"));
}

#[test]
#[ignore = "a measurement: prints what a disk costs on this host"]
fn what_a_disk_costs() {
    let Some(home) = state() else { return };
    let templates = home.path().join("templates");
    for round in 0..6 {
        let dir = home.path().join(round.to_string());
        fs::create_dir(&dir).unwrap();
        let begun = Instant::now();
        let (path, file) = image::prepare(&dir, 10 << 30, &templates).unwrap();
        let copied = begun.elapsed();
        let mount = loops::mount(&path, &file).unwrap();
        let mounted = begun.elapsed() - copied;
        drop(file);
        let begun = Instant::now();
        drop(mount);
        println!("image {copied:?}, attach and mount {mounted:?}, drop {:?}", begun.elapsed());
    }
}
