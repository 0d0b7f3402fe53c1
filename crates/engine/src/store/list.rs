//! Finding sandboxes, and repairing what a dead keeper left.

use super::{Error, Sandbox, Store, failed, now};
use airlock_protocol::{
    SandboxId,
    state::{Cause, Exit, State, Status},
};
use std::{io, path::PathBuf, time::Duration};

/// One sandbox as a list shows it.
#[derive(Debug, Clone)]
pub struct Entry {
    /// Its folder; the spec is read from there when needed.
    pub sandbox: Sandbox,
    /// Its state, repaired.
    pub state: State,
}

/// What [`Store::sweep`] did.
#[derive(Debug, Default)]
pub struct Swept {
    /// Folders deleted.
    pub removed: usize,
    /// What could not be deleted.
    pub failed: Vec<Error>,
}

/// By so much the clock may have been set since the host was started.
const CLOCK_SET: Duration = Duration::from_secs(2);
/// How the names of spare disks begin when they are out of sight.
const SPARE: &[u8] = b".gone-spare-";

impl Store {
    /// Every sandbox, oldest first. One whose keeper died is marked as crashed, here and on disk.
    pub fn list(&self) -> Result<Vec<Entry>, Error> {
        let mut entries = Vec::new();
        for id in self.ids()? {
            let sandbox = Sandbox::new(self, id);
            match sandbox.repaired_state() {
                Ok(state) => entries.push(Entry { sandbox, state }),
                Err(err) if is_missing(&err) => {}
                // One that cannot be read hides none of the others.
                Err(Error::Unreadable { .. }) => {
                    if let Ok(state) = sandbox.rebuilt_state() {
                        entries.push(Entry { sandbox, state });
                    }
                }
                Err(err) => return Err(err),
            }
        }
        entries.sort_by(|a, b| (&a.state.created_at, &a.state.id).cmp(&(&b.state.created_at, &b.state.id)));
        Ok(entries)
    }

    /// The states that can be read, as they are written.
    pub(crate) fn states(&self) -> Result<Vec<(Sandbox, State)>, Error> {
        let sandboxes = self.ids()?.into_iter().map(|id| Sandbox::new(self, id));
        Ok(sandboxes.filter_map(|sandbox| sandbox.state().ok().map(|state| (sandbox, state))).collect())
    }

    /// The sandbox meant by an id, a name, or an unambiguous beginning of either; `-` and the empty text mean the
    /// newest.
    pub fn find(&self, selector: &str) -> Result<Sandbox, Error> {
        if let Some(sandbox) = self.find_exactly(selector) {
            return Ok(sandbox);
        }
        let entries = self.list()?;
        if selector.is_empty() || selector == "-" {
            return entries.into_iter().next_back().map(|entry| entry.sandbox).ok_or(Error::NoneYet);
        }
        let mut matches: Vec<Entry> =
            entries.into_iter().filter(|entry| entry.begins_with(selector)).collect();
        match matches.len() {
            0 => Err(Error::NoSuch { selector: selector.chars().take(64).collect() }),
            1 => matches.pop().map(|entry| entry.sandbox).ok_or(Error::NoneYet),
            _ => Err(Error::Ambiguous {
                selector: selector.to_owned(),
                candidates: matches.iter().map(Entry::label).collect(),
            }),
        }
    }

    /// Deletes what unfinished creations and interrupted removals left behind.
    pub fn sweep(&self) -> Result<Swept, Error> {
        let mut swept = Swept::default();
        self.retire_spares();
        for gone in self.retired()? {
            let is_spare = gone.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(SPARE));
            match super::Gone::at(gone).delete() {
                Ok(()) => swept.removed += usize::from(!is_spare),
                Err(err) => swept.failed.push(err),
            }
        }
        for id in self.ids()? {
            let sandbox = Sandbox::new(self, id);
            if sandbox.folder().join("state.json").exists() {
                continue;
            }
            match self.remove_unfinished(&sandbox) {
                Ok(true) => swept.removed += 1,
                Ok(false) => {}
                Err(err) => swept.failed.push(err),
            }
        }
        Ok(swept)
    }

    /// Takes disks made in advance out of sight, finished or not: whoever misses one makes their own.
    fn retire_spares(&self) {
        let name = format!("{}{}", String::from_utf8_lossy(SPARE), std::process::id());
        let gone = self.sandboxes().join(name);
        let _ = std::fs::rename(self.home().join("spare"), gone);
    }

    /// Removes a folder that has no state and whose lock is free: its creator died. `false` if it is alive.
    pub(super) fn remove_unfinished(&self, sandbox: &Sandbox) -> Result<bool, Error> {
        let lock = match sandbox.try_lock() {
            Ok(Some(lock)) => lock,
            Ok(None) => return Ok(false),
            Err(err) if is_missing(&err) => return Ok(true),
            Err(err) => return Err(err),
        };
        if sandbox.folder().join("state.json").exists() {
            return Ok(false);
        }
        sandbox.clone().remove(lock).map(|()| true)
    }

    fn find_exactly(&self, selector: &str) -> Option<Sandbox> {
        let id = match selector.parse::<SandboxId>() {
            Ok(id) if self.sandbox(&id).folder().join("state.json").exists() => id,
            _ => {
                let name: airlock_protocol::Name = selector.parse().ok()?;
                std::fs::read_link(self.name_link(name.as_str())).ok()?.to_str()?.parse().ok()?
            }
        };
        let sandbox = self.sandbox(&id);
        sandbox.folder().join("state.json").exists().then_some(sandbox)
    }

    fn ids(&self) -> Result<Vec<SandboxId>, Error> {
        let ids = self.folders()?;
        Ok(ids.iter().filter_map(|name| name.parse().ok()).collect())
    }

    fn retired(&self) -> Result<Vec<std::path::PathBuf>, Error> {
        let names = self.folders()?;
        Ok(names
            .iter()
            .filter(|name| name.starts_with(".gone-"))
            .map(|name| self.sandboxes().join(name))
            .collect())
    }

    fn folders(&self) -> Result<Vec<String>, Error> {
        let path = self.sandboxes();
        let entries = std::fs::read_dir(&path).map_err(failed("read", &path))?;
        Ok(entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect())
    }
}

impl Sandbox {
    /// The state as it is: where a keeper should be alive and is not, the sandbox is marked as crashed first; as stopped, where the
    /// host was started anew since.
    pub fn repaired_state(&self) -> Result<State, Error> {
        match self.state() {
            Ok(state) if !state.status.is_live() => return Ok(state),
            Err(err) if is_missing(&err) => return Err(err),
            _ => {}
        }
        let Some(_lock) = self.try_lock()? else { return self.state() };
        let mut state = match self.state() {
            Ok(state) if !state.status.is_live() => return Ok(state),
            Ok(state) => state,
            Err(Error::Unreadable { .. }) => self.rebuilt_state()?,
            Err(err) => return Err(err),
        };
        clear_leftovers(&state);
        if let Err(err) = crate::keeper::guard::stand_down(self, &mut state) {
            eprintln!("airlock: what stood for protected paths of {} is left behind: {err}", state.id);
        }
        let (status, cause) = match self.is_of_earlier_boot() {
            true => (Status::Stopped, Cause::HostRebooted),
            false => (Status::Crashed, Cause::KeeperDied),
        };
        state.status = status;
        state.exit = Some(Exit { code: 137, cause, at: now() });
        state.keeper_pid = None;
        state.init_pid = None;
        state.cgroups.clear();
        self.write_state(&state)?;
        Ok(state)
    }

    /// Whether its state was written down before this host was last started.
    fn is_of_earlier_boot(&self) -> bool {
        let written = std::fs::metadata(self.folder().join("state.json")).and_then(|told| told.modified());
        let up = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        let up = Duration::from_secs(u64::try_from(up.tv_sec).unwrap_or(0));
        written.is_ok_and(|written| written.elapsed().is_ok_and(|age| age > up + CLOCK_SET))
    }

    /// A state that a power cut left empty is told anew from the spec.
    fn rebuilt_state(&self) -> Result<State, Error> {
        let spec = self.spec()?;
        let fields = serde_json::json!({
            "id": self.id(), "name": spec.name, "created_at": now(), "status": Status::Crashed,
            "note": "its state was lost, probably in a power cut",
        });
        let path = self.folder().join("state.json");
        serde_json::from_value(fields).map_err(|source| Error::Unreadable { path, source })
    }
}

impl Entry {
    /// `name (id)`.
    pub fn label(&self) -> String {
        format!("{} ({})", self.state.name, self.state.id)
    }

    fn begins_with(&self, selector: &str) -> bool {
        self.state.name.as_str().starts_with(selector) || self.state.id.as_str().starts_with(selector)
    }
}

/// Removes the control groups of a sandbox whose keeper died. The kernel kills its processes with the keeper; a group
/// that still holds a dying one is left to the next repair.
fn clear_leftovers(state: &State) {
    let paths: Vec<PathBuf> = state.cgroups.iter().map(PathBuf::from).collect();
    if let Err(err) = airlock_linux::cgroup::remove_leftovers(&paths) {
        eprintln!("airlock: control groups of {} are left behind: {err}", state.id);
    }
}

fn is_missing(err: &Error) -> bool {
    matches!(err, Error::Io { source, .. } if source.kind() == io::ErrorKind::NotFound)
}
