//! Freezing, out-of-memory, and the watch over the disk.

use super::{Keeper, plan};
use crate::store::{UPPER, WORKSPACE};
use airlock_linux::disk;
use airlock_protocol::{control::Refusal, guest::ToGuest, size, spec::Disk, state::Status};
use std::{fs, io, path::Path, rc::Rc, time::Duration};
use tokio::time::{MissedTickBehavior, interval};

/// A sandbox that has run so long looks the host over itself.
const BEFORE_RECHECK: Duration = Duration::from_secs(2);
/// How often a watched disk is measured.
const WATCHED: Duration = Duration::from_millis(250);
/// How often the host's free space is looked at.
const RESERVE: Duration = Duration::from_secs(1);

impl Keeper {
    /// Freezes every process of the sandbox.
    pub async fn freeze(&self, why: Option<&str>) -> Result<(), Refusal> {
        let done = match &self.group {
            Some(group) => group.freeze().map_err(|err| plan::chain(&err)),
            None => Err("no control group".to_owned()),
        };
        if done.is_err() {
            self.stop_all().await?;
        }
        self.update(|state| {
            state.status = Status::Paused;
            state.note = why.map(str::to_owned);
        });
        Ok(())
    }

    /// Lets them run again.
    pub async fn thaw(&self) -> Result<(), Refusal> {
        if self.held.get() {
            let fix = "wait, or end the command that copies them";
            return Err(plan::refusal(1, "the files of this sandbox are being copied", None, Some(fix)));
        }
        self.let_go().await
    }

    /// Freezes every process until [`Keeper::release`], unless it is frozen anyway. `true` if there is something to release.
    pub async fn hold(&self) -> Result<bool, Refusal> {
        let status = self.state.borrow().status;
        match status {
            Status::Paused if self.held.get() => Err(plan::refusal(
                1,
                "the files of this sandbox are being copied already",
                None,
                Some("try again"),
            )),
            Status::Paused => Ok(false),
            Status::Running => {
                self.held.set(true);
                let frozen = self.freeze(Some("frozen: its files are being copied")).await;
                self.held.set(frozen.is_ok());
                frozen.map(|()| true)
            }
            other => {
                Err(plan::refusal(1, &format!("this sandbox is {}", other.word()), None, Some("try again")))
            }
        }
    }

    /// Lets them run again after [`Keeper::hold`].
    pub async fn release(&self) {
        self.held.set(false);
        let _ = self.let_go().await;
    }

    async fn let_go(&self) -> Result<(), Refusal> {
        if self.state.borrow().status != Status::Paused {
            return Err(plan::refusal(125, "this sandbox is not frozen", None, None));
        }
        match self.rests.take() {
            true => self.rise().await?,
            false => {
                if let Some(group) = &self.group {
                    let _ = group.thaw();
                }
                self.tell(ToGuest::Thaw, Vec::new()).await?;
            }
        }
        self.update(|state| {
            state.status = Status::Running;
            state.note = None;
        });
        Ok(())
    }

    pub(super) async fn thaw_if_frozen(&self) {
        let _ = self.let_go().await;
    }

    /// Whether the kernel killed something of the sandbox for want of memory.
    pub(super) fn ran_out_of_memory(&self) -> bool {
        self.programs.is_starved() || self.group.as_ref().is_some_and(|group| group.oom_kills() > 0)
    }
}

/// Looks after the disk as long as the sandbox lives.
pub(super) async fn disk(keeper: Rc<Keeper>) {
    let watched = keeper.plan.bounds.disk.filter(|disk| disk.by.is_watched());
    let mut ticks = interval(if watched.is_some() { WATCHED } else { RESERVE });
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks.tick().await;
    let mut low = false;
    loop {
        ticks.tick().await;
        if let Some(limit) = watched {
            check_watched(&keeper, limit).await;
        }
        low = check_reserve(&keeper, low).await;
    }
}

async fn check_watched(keeper: &Keeper, limit: Disk) {
    if keeper.state.borrow().status != Status::Running {
        return;
    }
    let directory = keeper.sandbox.disk();
    let measured = tokio::task::spawn_blocking(move || measure(&directory)).await;
    let Ok(measured) = measured else { return };
    if let Some(why) = exceeds(measured, limit) {
        let _ = keeper.freeze(Some(&format!("frozen: {why}"))).await;
    }
}

/// What lies in the parts of the disk that the program reaches. The kernel's scratch directories of overlays are not
/// among them, and nobody but root may look into those.
fn measure(directory: &Path) -> io::Result<disk::Usage> {
    let mut sum = disk::Usage::default();
    for entry in fs::read_dir(directory)? {
        let mut path = entry?.path();
        if path.ends_with(WORKSPACE) {
            path.push(UPPER);
        } else if path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"work")) {
            continue;
        }
        let part = disk::usage(&path)?;
        sum.bytes = sum.bytes.saturating_add(part.bytes);
        sum.inodes = sum.inodes.saturating_add(part.inodes);
        sum.unread = sum.unread.saturating_add(part.unread);
    }
    Ok(sum)
}

/// Why what was measured is too much. What cannot be measured is: else a program would hide there what it writes.
fn exceeds(measured: io::Result<disk::Usage>, limit: Disk) -> Option<String> {
    match measured {
        Err(err) if err.kind() == io::ErrorKind::NotFound => None,
        Err(err) => Some(format!("what was written cannot be measured: {err}")),
        Ok(usage) if usage.bytes > limit.bytes => {
            Some(format!("{} written, {} allowed", size::show(usage.bytes), size::show(limit.bytes)))
        }
        Ok(usage) if usage.unread > 0 => Some(format!("{} directories cannot be measured", usage.unread)),
        Ok(_) => None,
    }
}

/// Freezes while the host's file system is nearly full, and thaws when it no longer is.
async fn check_reserve(keeper: &Keeper, was_low: bool) -> bool {
    let Ok(space) = disk::free(&keeper.sandbox.disk()) else { return was_low };
    let reserve = disk::reserve(space.total);
    let is_low = space.bytes < reserve;
    let status = keeper.state.borrow().status;
    if is_low && status == Status::Running {
        let note = format!("frozen: the host has only {} of disk left", size::show(space.bytes));
        return keeper.freeze(Some(&note)).await.is_ok();
    }
    if was_low && space.bytes > reserve + reserve / 10 {
        let _ = keeper.thaw().await;
        return false;
    }
    was_low && is_low
}

/// Looks the host over again for files that must be hidden, for the sandboxes that start from now on. It takes a processor as
/// long as dozens of starts do: a sandbox that ends soon leaves it to its burial, when nobody waits beside it.
pub(super) async fn recheck_host(keeper: Rc<Keeper>) {
    tokio::time::sleep(BEFORE_RECHECK).await;
    keeper.is_recheck_due.set(false);
    let view = keeper.view.clone();
    let checked = tokio::task::spawn_blocking(move || airlock_images::host::recheck(&view)).await;
    if let Ok(Err(err)) = checked {
        super::note(&plan::chain(&err));
    }
}
