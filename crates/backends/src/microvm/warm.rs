//! Machines that were booted before: each is saved once, at the point where its carrier waits for its orders, and every start goes on from
//! there. No program ever ran in what is saved, and nothing of a sandbox is known to it.
//!
//! ```text
//! machines/warm/<digest>.memory
//! ```

use super::{
    disk::Disks,
    kernel::{beside, digest_of, folder},
    memory,
    qemu::{self, Cables, Machine},
    qmp::Qmp,
};
use airlock_linux::{
    cell::{self, Lone},
    fd,
};
use serde_json::{Value, json};
use std::{
    ffi::CString,
    fs::{self, File},
    io,
    os::{fd::OwnedFd, unix::net::UnixStream},
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

/// The file of a saved machine like this one, if there is one; else why not. `version` is QEMU's, `boot` tells what it boots into.
pub fn find(home: &Path, machine: &Machine, version: &str, boot: &str) -> Result<OwnedFd, String> {
    let path = path(home, machine, version, boot);
    match File::open(&path) {
        Ok(file) => {
            // The newest are kept.
            let _ = file.set_modified(SystemTime::now());
            Ok(file.into())
        }
        Err(_) => Err(fs::read_to_string(beside(&path, FAILED))
            .unwrap_or_else(|_| "it is the first of its kind; the next one goes on from there".to_owned())),
    }
}

/// Boots and saves a machine like this one, unless one is saved already: that takes as long as it boots. Where it fails, that is noted, and
/// tried again only when somebody `insists`.
pub fn make(home: &Path, machine: &Machine, names: (&str, &str), how: How) -> io::Result<()> {
    let path = path(home, machine, names.0, names.1);
    let failed = beside(&path, FAILED);
    if path.exists() || (how == How::Once && failed.exists()) {
        return Ok(());
    }
    match fs::create_dir(folder(home).join("warm")) {
        Err(err) if err.kind() != io::ErrorKind::AlreadyExists => return Err(err),
        _ => {}
    }
    let lock = File::create(beside(&path, "lock"))?;
    lock.lock()?;
    if path.exists() {
        return Ok(());
    }
    let temporary = beside(&path, "new");
    match save(machine, &temporary) {
        Ok(()) => {
            fs::rename(&temporary, &path)?;
            let _ = fs::remove_file(&failed);
            let _ = forget_old(home);
            Ok(())
        }
        Err(err) => {
            let _ = fs::remove_file(&temporary);
            let _ = fs::write(&failed, format!("it could not be saved: {err}"));
            Err(err)
        }
    }
}

/// Whether it is tried again what failed before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    /// Not before somebody says so.
    Once,
    /// Now.
    Again,
}

/// Why machines could not be saved, where that is so.
#[must_use]
pub fn failures(home: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder(home).join("warm")).into_iter().flatten().flatten();
    let failed = entries.filter(|entry| entry.path().extension().is_some_and(|ending| ending == FAILED));
    failed.filter_map(|entry| fs::read_to_string(entry.path()).ok()).collect()
}

const FAILED: &str = "failed";

fn path(home: &Path, machine: &Machine, version: &str, boot: &str) -> PathBuf {
    folder(home).join("warm").join(format!("{}.memory", key(machine, version, boot)))
}

/// Most machines that are kept.
const MOST: usize = 4;
/// How long a machine may take to boot, and anything else.
const PATIENCE: Duration = Duration::from_secs(180);

/// What makes one saved machine another.
pub(super) fn key(machine: &Machine, version: &str, boot: &str) -> String {
    // How fast the processor counts is measured anew each time, and a saved machine goes on with what was measured then.
    let by = match machine.by {
        qemu::By::Kvm => "kvm",
        qemu::By::Emulation { .. } => "tcg",
    };
    let disks = if machine.disks == Disks::None { "" } else { " disks" };
    let words = format!("3 {version} {by} {} {} {boot}{disks}", machine.memory, machine.processors);
    digest_of(&[words.as_bytes()])
}

/// In a cell, as every machine runs.
fn save(machine: &Machine, path: &Path) -> io::Result<()> {
    let (ours, theirs) = fd::pair()?;
    let inside = Machine {
        cables: Cables::Nothing { orders: 3 },
        boot: (qemu::KERNEL.to_owned(), qemu::INITRAMFS.to_owned()),
        ..machine.clone()
    };
    let child = cell::start(Lone {
        command: qemu::command(&inside).into_iter().filter_map(|word| CString::new(word).ok()).collect(),
        shown: qemu::SHOWN.map(PathBuf::from).to_vec(),
        files: vec![
            (qemu::KERNEL.into(), machine.boot.0.clone().into()),
            (qemu::INITRAMFS.into(), machine.boot.1.clone().into()),
        ],
        devices: inside.by.devices(),
        descriptors: vec![theirs],
        output: File::options().write(true).open("/dev/null")?.into(),
    })?;
    let saved = boot_and_save(ours.into(), path);
    if saved.is_err() {
        let _ = child.kill();
    }
    let _ = child.wait();
    saved
}

fn boot_and_save(socket: UnixStream, path: &Path) -> io::Result<()> {
    let failed = io::Error::other;
    let mut qmp = Qmp::connect(socket, PATIENCE).map_err(failed)?;
    for port in ["port-link", "port-files"] {
        let is_open = |event: &Value| {
            let said = |place: &str| event.pointer(place).cloned().unwrap_or_default();
            said("/event") == "VSERPORT_CHANGE" && said("/data/id") == port && said("/data/open") == true
        };
        qmp.event(is_open).map_err(failed)?;
    }
    let file = File::options().write(true).create(true).truncate(true).open(path)?;
    memory::save(&mut qmp, file.into())?;
    // It may end before it has answered.
    let _ = qmp.ask("quit", json!({}), None);
    Ok(())
}

/// Deletes all but the newest.
fn forget_old(home: &Path) -> io::Result<()> {
    let mut there: Vec<(SystemTime, PathBuf)> = Vec::new();
    for entry in fs::read_dir(folder(home).join("warm"))? {
        let path = entry?.path();
        if path.extension().is_some_and(|ending| ending == "memory") {
            there.push((fs::metadata(&path)?.modified()?, path));
        }
    }
    there.sort();
    let old = there.len().saturating_sub(MOST);
    there.iter().take(old).try_for_each(|(_, path)| fs::remove_file(path))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::microvm::qemu::By;

    fn machine() -> Machine {
        Machine {
            memory: 512 << 20,
            processors: 1,
            by: By::Emulation { ticks: Some(1) },
            boot: ("/kernel".into(), "/initramfs".into()),
            cables: Cables::Nothing { orders: 0 },
            disks: Disks::None,
        }
    }

    #[test]
    fn a_saved_machine_is_for_one_size_kernel_and_monitor() {
        let usual = key(&machine(), "7.2", "a");
        assert_eq!(usual, key(&Machine { by: By::Emulation { ticks: Some(2) }, ..machine() }, "7.2", "a"));
        for other in [
            key(&Machine { memory: 256 << 20, ..machine() }, "7.2", "a"),
            key(&Machine { processors: 2, ..machine() }, "7.2", "a"),
            key(&Machine { by: By::Kvm, ..machine() }, "7.2", "a"),
            key(&Machine { disks: Disks::Blank, ..machine() }, "7.2", "a"),
            key(&machine(), "8.0", "a"),
            key(&machine(), "7.2", "b"),
        ] {
            assert_ne!(usual, other);
        }
    }

    #[test]
    fn a_machine_that_could_not_be_saved_is_told_of_and_not_tried_again_unasked() {
        let home = tempfile::tempdir().unwrap();
        fs::create_dir_all(folder(home.path()).join("warm")).unwrap();
        assert!(find(home.path(), &machine(), "7.2", "a").unwrap_err().contains("first of its kind"));
        fs::write(beside(&path(home.path(), &machine(), "7.2", "a"), FAILED), "no room").unwrap();

        assert_eq!(find(home.path(), &machine(), "7.2", "a").unwrap_err(), "no room");
        assert_eq!(failures(home.path()), ["no room"]);
        make(home.path(), &machine(), ("7.2", "a"), How::Once).unwrap();
        assert!(make(home.path(), &machine(), ("7.2", "a"), How::Again).is_err());
    }

    #[test]
    fn the_newest_machines_are_kept() {
        let home = tempfile::tempdir().unwrap();
        let warm = folder(home.path()).join("warm");
        fs::create_dir_all(&warm).unwrap();
        for number in 0..6u64 {
            let file = File::create(warm.join(format!("{number}.memory"))).unwrap();
            file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(number)).unwrap();
        }

        forget_old(home.path()).unwrap();

        let mut names: Vec<_> =
            fs::read_dir(&warm).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["2.memory", "3.memory", "4.memory", "5.memory"]);
    }
}
