//! The memory of a machine, into a file and out of it.
//!
//! ```text
//! sandboxes/<id>/memory        the memory, as QEMU writes it; a machine goes on from it at its next start
//! sandboxes/<id>/memory.json   what the carrier knew of the machine then
//! sandboxes/<id>/memory.key    which machine can
//! ```
//!
//! The monitor may write no files: it writes into a pipe, and whoever saves the memory reads it.

use super::qmp::{Error, Qmp};
use airlock_engine::{plan::refusal, snapshots::memory::MEMORY};
use airlock_protocol::control::Refusal;
use serde_json::{Value, json};
use std::{
    fs::{self, File},
    io,
    os::{
        fd::{AsFd as _, OwnedFd},
        unix::net::UnixStream,
    },
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

/// The files of a memory, in a folder of their own or in a sandbox's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Saved {
    /// The memory.
    pub memory: PathBuf,
    /// What the carrier knew.
    pub known: PathBuf,
    /// Which machine can go on from it.
    pub key: PathBuf,
}

impl Saved {
    /// Those of the sandbox with this disk.
    pub(super) fn of(disk: &Path) -> Saved {
        Saved::beside(&disk.with_file_name(MEMORY))
    }

    fn beside(memory: &Path) -> Saved {
        let with = |ending: &str| memory.with_extension(ending);
        Saved { memory: memory.to_owned(), known: with("json"), key: with("key") }
    }

    /// The memory and what was known, for a machine with this key.
    pub(super) fn open(&self, key: &str) -> Result<(OwnedFd, OwnedFd), Refusal> {
        let unread = |err: io::Error| self.not_resumed(&err.to_string());
        if fs::read_to_string(&self.key).map_err(unread)? != key {
            let why =
                "it was saved with another QEMU, kernel, airlock or number of processors than there are now";
            return Err(self.not_resumed(why));
        }
        let open = |path: &Path| File::open(path).map(OwnedFd::from).map_err(unread);
        Ok((open(&self.memory)?, open(&self.known)?))
    }

    /// A machine goes on once.
    pub(super) fn forget(&self) {
        for path in [&self.memory, &self.known, &self.key] {
            let _ = fs::remove_file(path);
        }
    }

    pub(super) fn not_resumed(&self, why: &str) -> Refusal {
        let fix = format!("rm {} boots it anew, with its files", self.memory.display());
        refusal(125, "this machine cannot go on from its memory", Some(why), Some(&fix))
    }
}

/// How long anything may take.
const PATIENCE: Duration = Duration::from_secs(180);
const PAUSE: Duration = Duration::from_millis(10);

/// Saves the memory of a machine in which nothing happens. Its monitor takes orders at `monitor`; it stops the machine at the end, which
/// goes on when it is told to.
pub fn save_to(monitor: OwnedFd, file: OwnedFd) -> io::Result<()> {
    let mut qmp = Qmp::connect(UnixStream::from(monitor), PATIENCE).map_err(io::Error::other)?;
    save(&mut qmp, file)
}

pub(super) fn save(qmp: &mut Qmp, file: OwnedFd) -> io::Result<()> {
    let (mut read, write) = io::pipe()?;
    let copying = move || io::copy(&mut read, &mut File::from(file)).map(drop);
    let copying = thread::Builder::new().name("memory".to_owned()).spawn(copying)?;
    // Where it fails, QEMU may never close its end; nobody waits for that.
    migrate(qmp, write.into()).map_err(io::Error::other)?;
    copying.join().map_err(|_| io::Error::other("the thread that copies memory died"))?
}

/// Returns when everything is in the pipe, of which nobody but QEMU has an end any more.
fn migrate(qmp: &mut Qmp, into: OwnedFd) -> Result<(), Error> {
    let quickly = json!({ "max-bandwidth": 1u64 << 40, "downtime-limit": 2000 });
    qmp.ask("migrate-set-parameters", quickly, None)?;
    qmp.ask("getfd", json!({ "fdname": "memory" }), Some(into.as_fd()))?;
    drop(into);
    qmp.ask("migrate", json!({ "uri": "fd:memory" }), None)?;
    loop {
        let told = qmp.ask("query-migrate", json!({}), None)?;
        match told.get("status").and_then(Value::as_str) {
            Some("completed") => return Ok(()),
            Some("failed" | "cancelled") => {
                let why = told.get("error-desc").and_then(Value::as_str).unwrap_or("no reason").to_owned();
                return Err(Error::Refused { command: "migrate", why });
            }
            _ => thread::sleep(PAUSE),
        }
    }
}
