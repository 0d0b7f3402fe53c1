//! How much is in a volume. Its files are hostile: links are never followed, other file systems never entered, and
//! neither depth nor number of entries costs more than a bounded time.

use super::all_ids;
use crate::{plan::Caller, store::as_ids};
use airlock_linux::{idmap::IdMap, spawn};
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, Stat};
use serde::{Deserialize, Serialize};
use std::{
    ffi::OsStr,
    io::{self, Read as _, Write as _},
    os::{fd::OwnedFd, unix::ffi::OsStrExt as _},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

/// How much there is, or at least is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Size {
    /// Bytes of disk.
    pub bytes: u64,
    /// Files, directories and everything else below the top.
    pub entries: u64,
    /// Whether everything was counted.
    pub is_complete: bool,
}

/// How long counting may take.
const PATIENCE: Duration = Duration::from_secs(1);
/// Longer paths are not looked into: the kernel takes none beyond 4096 bytes.
const LONGEST: usize = 3_000;

/// Counts what is below `path`; what an ordinary user may not look into, with the ids of the user's sandboxes.
pub(super) fn of(path: &Path, caller: &Caller) -> Size {
    let size = count(path);
    match all_ids(caller).filter(|_| !size.is_complete) {
        Some(ids) => within(path, &ids).unwrap_or(size),
        None => size,
    }
}

/// Whether everything below `path` is this user's, as far as can be told; what cannot be looked at is not.
pub(super) fn belongs_to(path: &Path, uid: u32) -> bool {
    walk(path, |found| found.st_uid == uid)
}

fn count(path: &Path) -> Size {
    let mut size = Size::default();
    size.is_complete = walk(path, |found| {
        let blocks = u64::try_from(found.st_blocks).unwrap_or(0);
        size.bytes = size.bytes.saturating_add(blocks.saturating_mul(512));
        size.entries = size.entries.saturating_add(1);
        true
    });
    size
}

/// Counts in a process that has these ids.
fn within(path: &Path, ids: &IdMap) -> io::Result<Size> {
    let (told, mut tell) = io::pipe()?;
    as_ids(ids, || {
        let ready = spawn::become_user(0, 0, &[]).is_ok();
        ready && tell.write_all(&serde_json::to_vec(&count(path)).unwrap_or_default()).is_ok()
    })?;
    drop(tell);
    let mut text = Vec::new();
    told.take(4096).read_to_end(&mut text)?;
    serde_json::from_slice(&text).map_err(io::Error::other)
}

/// Looks at everything below `top` while `look` wants to; whether it saw all of it.
fn walk(top: &Path, mut look: impl FnMut(&Stat) -> bool) -> bool {
    let until = Instant::now() + PATIENCE;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let Ok(opened) = rustix::fs::open(top, flags, Mode::empty()) else { return false };
    let mut waiting = vec![PathBuf::from(".")];
    let mut saw_all = true;
    while let Some(here) = waiting.pop() {
        let Ok(entries) = list(&opened, &here) else {
            saw_all = false;
            continue;
        };
        for (name, stat) in entries {
            if !look(&stat) || Instant::now() > until {
                return false;
            }
            if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
                continue;
            }
            match here.as_os_str().len() + name.as_os_str().len() < LONGEST {
                true => waiting.push(here.join(name)),
                false => saw_all = false,
            }
        }
    }
    saw_all
}

fn list(top: &OwnedFd, path: &Path) -> rustix::io::Result<Vec<(PathBuf, Stat)>> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let within = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    let opened = rustix::fs::openat2(top, path, flags, Mode::empty(), within)?;
    let mut entries = Vec::new();
    for entry in Dir::read_from(&opened)? {
        let entry = entry?;
        let name = entry.file_name();
        if name == c"." || name == c".." {
            continue;
        }
        // It may be gone again.
        let Ok(stat) = rustix::fs::statat(&opened, name, AtFlags::SYMLINK_NOFOLLOW) else { continue };
        entries.push((PathBuf::from(OsStr::from_bytes(name.to_bytes())), stat));
    }
    Ok(entries)
}
