//! Disks of a machine whose root is an image: the image as a read-only block device, and a disk of the machine's own for what its
//! programs change.
//!
//! ```text
//! machines/images/<digest>.squashfs      made once of an image's layers, for the ids that sandboxes of this user have
//! sandboxes/<id>/machine.img             ext4, sparse; written and read by the machine alone
//! ```

use super::kernel::{self, beside, digest_of, folder};
use airlock_engine::{
    Plan,
    plan::{Base, refusal},
    snapshots::root,
};
use airlock_linux::disk;
use airlock_protocol::{
    carry::{self, IMAGE_DISK, OWN_DISK},
    control::Refusal,
    spec::DiskBy,
};
use std::{
    fs::{self, File},
    io::{self, Read as _},
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::SystemTime,
};

/// Which disks a machine has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Disks {
    /// None: its root is served.
    None,
    /// Both, with nothing in them: of a machine that is saved before anybody has said what it is for.
    Blank,
    /// Both, under these numbers of descriptors.
    These {
        /// The image.
        image: i32,
        /// The machine's own.
        own: i32,
    },
}

/// What QEMU is told of them.
#[must_use]
pub fn words(disks: Disks) -> Vec<(&'static str, String)> {
    let mut words = Vec::new();
    for (name, serial) in [("image", IMAGE_DISK), ("own", OWN_DISK)] {
        let read_only = if name == "image" { "on" } else { "off" };
        match disks {
            Disks::None => return words,
            Disks::Blank => {
                let node = format!("driver=null-co,node-name={name},size=1048576,read-only={read_only}");
                words.push(("-blockdev", node));
            }
            Disks::These { image, own } => {
                let (number, set) = if name == "image" { (image, 1) } else { (own, 2) };
                words.push(("-add-fd", format!("fd={number},set={set}")));
                let node = format!(
                    "driver=file,node-name={name},filename=/dev/fdset/{set},read-only={read_only},\
                     locking=off,discard=unmap"
                );
                words.push(("-blockdev", node));
            }
        }
        words.push(("-device", format!("virtio-blk-device,drive={name},serial={serial}")));
    }
    words
}

/// The disks of a sandbox, opened.
#[derive(Debug)]
pub(super) struct Opened {
    pub(super) image: OwnedFd,
    pub(super) own: OwnedFd,
    /// Bytes of the machine's own.
    pub(super) bytes: u64,
}

/// Bytes of the machine's own disk, where the plan asks for one.
pub(super) fn wanted(plan: &Plan) -> Option<u64> {
    let disk = plan.bounds.disk.filter(|disk| disk.by == DiskBy::Machine)?;
    matches!(plan.base, Base::Layers(_)).then_some(disk.bytes)
}

/// Opens them, where the plan asks for them. The first time that an image is asked for, this takes as long as it takes to read it.
pub(super) fn open(home: &Path, plan: &Plan) -> Result<Option<Opened>, Refusal> {
    let Some(bytes) = wanted(plan) else { return Ok(None) };
    if !plan.layers.is_empty() {
        let why = "what it was forked from lies on this host, and its root would be a disk";
        let fix = "leave out --disk, or say --disk SIZE,watched";
        return Err(refusal(125, WHAT, Some(why), Some(fix)));
    }
    let image = image(home, plan)?;
    let path = plan.disk.with_file_name("machine.img");
    let own = disk::open_of_machine(&path, bytes, &home.join("disks"))
        .map_err(|err| refusal(125, WHAT, Some(&airlock_engine::plan::chain(&err)), err.fix().as_deref()))?;
    Ok(Some(Opened { image: image.into(), own: own.into(), bytes }))
}

/// What the machine has to know of its root.
pub(super) fn orders(plan: &Plan) -> Option<carry::Disks> {
    wanted(plan)?;
    let home = plan.env.iter().find_map(|entry| entry.strip_prefix("HOME=")).unwrap_or("/");
    let in_home = |path: &str| Path::new(home).join(path).to_string_lossy().into_owned();
    Some(carry::Disks {
        shown: Vec::new(),
        copied: plan.home_files.iter().map(|file| in_home(&file.path)).collect(),
        directories: vec!["/etc".to_owned(), "/run".to_owned(), plan.workdir.clone()],
        read_only: plan.root == airlock_linux::mount::Access::ReadOnly,
    })
}

const WHAT: &str = "the disk of this machine cannot be made";
/// Where Debian's `squashfs-tools` has it.
const PACKER: &str = "/usr/bin/mksquashfs";
const PACKAGE: &str = "apt-get install squashfs-tools";
/// Most images that are kept as disks.
const MOST: usize = 8;

/// The image as a file system, made where it is not here yet; compared with its digest whenever it is not the file that was compared last.
fn image(home: &Path, plan: &Plan) -> Result<File, Refusal> {
    let failed =
        |err: &dyn std::error::Error| refusal(125, WHAT, Some(&airlock_engine::plan::chain(err)), None);
    let images = folder(home).join("images");
    fs::create_dir_all(&images).map_err(|err| failed(&err))?;
    let path = images.join(format!("{}.squashfs", key(plan)));
    let lock = File::create(beside(&path, "lock")).map_err(|err| failed(&err))?;
    lock.lock().map_err(|err| failed(&err))?;
    let noted = beside(&path, "sha256");
    let is_there =
        path.exists() && fs::read_to_string(&noted).is_ok_and(|whole| kernel::verify(&path, &whole).is_ok());
    if !is_there {
        make(plan, &path, &noted)?;
        forget_old(&images).map_err(|err| failed(&err))?;
    }
    let file = File::open(&path).map_err(|err| failed(&err))?;
    // The newest are kept.
    let _ = File::open(&noted).and_then(|noted| noted.set_modified(SystemTime::now()));
    Ok(file)
}

/// What makes one disk another: the layers, whose files they are, and who sees them.
fn key(plan: &Plan) -> String {
    let Base::Layers(lower) = &plan.base else { return String::new() };
    let who = if plan.caller.is_root() { (0, 0) } else { (plan.user.uid, plan.user.gid) };
    let mut parts = vec![format!("1 {} {who:?}", plan.caller.uid).into_bytes()];
    // A layer of an image never changes, and is named after what is in it.
    parts.extend(lower.iter().map(|lower| lower.tree.as_os_str().as_encoded_bytes().to_vec()));
    digest_of(&parts.iter().map(Vec::as_slice).collect::<Vec<_>>())
}

fn make(plan: &Plan, path: &Path, noted: &Path) -> Result<(), Refusal> {
    let failed = |err: &io::Error| refusal(125, WHAT, Some(&err.to_string()), None);
    let temporary = beside(path, "new");
    let _ = fs::remove_file(&temporary);
    let mut packer = Command::new(PACKER)
        .arg("-")
        .arg(&temporary)
        // Nothing is compressed: an emulated processor would take longer than the disk.
        .args([
            "-tar",
            "-noappend",
            "-no-progress",
            "-quiet",
            "-noI",
            "-noD",
            "-noF",
            "-noX",
            "-mkfs-time",
            "0",
        ])
        .args(["-root-mode", "0755", "-root-uid", "0", "-root-gid", "0"])
        .env_clear()
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|err| refusal(5, WHAT, Some(&format!("{PACKER}: {err}")), Some(PACKAGE)))?;
    let Some(input) = packer.stdin.take() else { return Err(failed(&io::ErrorKind::BrokenPipe.into())) };
    let packed = root::of_image(plan, &File::from(OwnedFd::from(input)));
    let mut said = String::new();
    let _ = packer.stderr.take().map(|mut stderr| stderr.read_to_string(&mut said));
    let ended = packer.wait().map_err(|err| failed(&err))?;
    packed?;
    if !ended.success() {
        let last = said.lines().last().unwrap_or("no message");
        return Err(refusal(125, WHAT, Some(&format!("{PACKER}: {last}")), None));
    }
    let digest = kernel::digest_of_file(&temporary).map_err(|err| failed(&err))?;
    let put = || -> io::Result<()> {
        kernel::make_readable(&temporary)?;
        fs::rename(&temporary, path)
    };
    put().map_err(|err| failed(&err))?;
    kernel::put(noted, digest.as_bytes()).map_err(|err| refusal(125, WHAT, Some(&err.to_string()), None))
}

/// Deletes all but those that were used last.
fn forget_old(images: &Path) -> io::Result<()> {
    let mut there: Vec<(SystemTime, PathBuf)> = Vec::new();
    for entry in fs::read_dir(images)? {
        let path = entry?.path();
        if path.extension().is_some_and(|ending| ending == "sha256") {
            there.push((fs::metadata(&path)?.modified()?, path));
        }
    }
    there.sort();
    let old = there.len().saturating_sub(MOST);
    for (_, noted) in there.iter().take(old) {
        let image = noted.with_extension("");
        // Its lock stays: whoever has it would share it with nobody who comes later.
        for path in [&image, &beside(&image, "checked"), noted] {
            let _ = fs::remove_file(path);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(disks: Disks) -> String {
        words(disks).iter().map(|(flag, value)| format!("{flag} {value}")).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn disks_are_descriptors_and_a_saved_machine_has_the_same_devices() {
        assert_eq!(line(Disks::None), "");
        assert_eq!(
            line(Disks::These { image: 5, own: 6 }),
            "-add-fd fd=5,set=1 \
             -blockdev driver=file,node-name=image,filename=/dev/fdset/1,read-only=on,locking=off,discard=unmap \
             -device virtio-blk-device,drive=image,serial=airlock-image -add-fd fd=6,set=2 \
             -blockdev driver=file,node-name=own,filename=/dev/fdset/2,read-only=off,locking=off,discard=unmap \
             -device virtio-blk-device,drive=own,serial=airlock-own"
        );
        assert_eq!(
            line(Disks::Blank),
            "-blockdev driver=null-co,node-name=image,size=1048576,read-only=on \
             -device virtio-blk-device,drive=image,serial=airlock-image \
             -blockdev driver=null-co,node-name=own,size=1048576,read-only=off \
             -device virtio-blk-device,drive=own,serial=airlock-own"
        );
    }

    #[test]
    fn the_images_that_were_used_last_are_kept() {
        let dir = tempfile::tempdir().unwrap();
        for number in 0..10u64 {
            let image = dir.path().join(format!("{number}.squashfs"));
            fs::write(&image, "image").unwrap();
            let noted = File::create(beside(&image, "sha256")).unwrap();
            noted.set_modified(SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(number)).unwrap();
        }

        forget_old(dir.path()).unwrap();

        let left = |number: u64| dir.path().join(format!("{number}.squashfs")).exists();
        assert_eq!((0..10).map(left).collect::<Vec<_>>(), [vec![false; 2], vec![true; 8]].concat());
    }
}
