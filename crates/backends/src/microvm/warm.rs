//! Machines that were booted before: each is saved once, at the point where its carrier waits for its orders, and every start goes on from
//! there. No program ever ran in what is saved, and nothing of a sandbox is known to it.
//!
//! ```text
//! machines/warm/<digest>.memory
//! ```

use super::{
    disk::Disks,
    kernel::{beside, digest_of, folder},
    qemu::{self, Cables, Machine},
    qmp::Qmp,
};
use airlock_linux::fd;
use serde_json::{Value, json};
use std::{
    fs::{self, File},
    io,
    os::{
        fd::{AsFd as _, OwnedFd},
        unix::net::UnixStream,
    },
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, SystemTime},
};

/// The file of a saved machine like this one, made if there is none: that takes as long as it boots.
/// `version` is QEMU's, `boot` tells what it boots into.
pub fn open(home: &Path, machine: &Machine, version: &str, boot: &str) -> io::Result<OwnedFd> {
    let path = folder(home).join("warm").join(format!("{}.memory", key(machine, version, boot)));
    if let Ok(file) = File::open(&path) {
        // The newest are kept.
        let _ = file.set_modified(SystemTime::now());
        return Ok(file.into());
    }
    fs::create_dir_all(folder(home).join("warm"))?;
    let lock = File::create(beside(&path, "lock"))?;
    lock.lock()?;
    if !path.exists() {
        let temporary = beside(&path, "new");
        let saved = save(machine, &temporary);
        if saved.is_err() {
            let _ = fs::remove_file(&temporary);
        }
        saved?;
        fs::rename(&temporary, &path)?;
        let _ = forget_old(home);
    }
    Ok(File::open(&path)?.into())
}

/// Most machines that are kept.
const MOST: usize = 4;
/// How long a machine may take to boot, and anything else.
const PATIENCE: Duration = Duration::from_secs(180);

/// What makes one saved machine another.
fn key(machine: &Machine, version: &str, boot: &str) -> String {
    // How fast the processor counts is measured anew each time, and a saved machine goes on with what was measured then.
    let by = match machine.by {
        qemu::By::Kvm => "kvm",
        qemu::By::Emulation { .. } => "tcg",
    };
    let disks = if machine.disks == Disks::None { "" } else { " disks" };
    let words = format!("1 {version} {by} {} {} {boot}{disks}", machine.memory, machine.processors);
    digest_of(&[words.as_bytes()])
}

fn save(machine: &Machine, path: &Path) -> io::Result<()> {
    let (ours, theirs) = fd::pair()?;
    let words = qemu::command(&Machine { cables: Cables::Nothing { orders: 0 }, ..machine.clone() });
    let (program, arguments) = words.split_first().ok_or(io::ErrorKind::InvalidInput)?;
    let mut child = Command::new(program)
        .args(arguments)
        .env_clear()
        .stdin(Stdio::from(theirs))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .map(Ended)?;
    let saved = boot_and_save(ours.into(), path);
    let _ = child.0.wait_or_kill(saved.is_ok());
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
    let quickly = json!({ "max-bandwidth": 1u64 << 40, "downtime-limit": 2000 });
    qmp.ask("migrate-set-parameters", quickly, None).map_err(failed)?;
    qmp.ask("getfd", json!({ "fdname": "memory" }), Some(file.as_fd())).map_err(failed)?;
    qmp.ask("migrate", json!({ "uri": "fd:memory" }), None).map_err(failed)?;
    loop {
        let told = qmp.ask("query-migrate", json!({}), None).map_err(failed)?;
        match told.get("status").and_then(Value::as_str) {
            Some("completed") => break,
            Some("failed" | "cancelled") => return Err(io::Error::other("QEMU could not save the machine")),
            _ => std::thread::sleep(Duration::from_millis(10)),
        }
    }
    // It may end before it has answered.
    let _ = qmp.ask("quit", json!({}), None);
    Ok(())
}

/// A process that does not outlive this.
struct Ended(Child);

trait WaitOrKill {
    fn wait_or_kill(&mut self, ends: bool) -> io::Result<()>;
}

impl WaitOrKill for Child {
    fn wait_or_kill(&mut self, ends: bool) -> io::Result<()> {
        if !ends {
            self.kill()?;
        }
        self.wait().map(drop)
    }
}

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
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
