//! What is looked at on the host at every start: its top-level directories, its mounts, and whether what the last scan
//! found still holds.
//!
//! ```ignore
//! let host = Host::look(&view)?;
//! if host.compare(&index) == Drift::None { /* the layer of that index can be used */ }
//! ```

use super::{
    Error, Link, Part, Reader, View,
    index::{Index, homes_of_people},
    layer, mounts,
    mounts::Mount,
    scan::{now, times},
    secrets,
};
use airlock_linux::made_up;
use rustix::{
    fd::OwnedFd,
    fs::{AtFlags, FileType, Mode, OFlags, StatxFlags},
    io::Errno,
};
use std::{
    ffi::OsStr,
    fmt::Write as _,
    io::Read as _,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

/// The host as it is now.
#[derive(Debug)]
pub(super) struct Host {
    pub(super) root: OwnedFd,
    pub(super) root_path: PathBuf,
    /// Top-level directories that are shown, by name, sorted.
    pub(super) tops: Vec<PathBuf>,
    /// Top-level symbolic links that are shown.
    pub(super) links: Vec<Link>,
    /// Every mount in one of `tops`, the top itself included.
    pub(super) mounts: Vec<Mount>,
    /// What an index must have been made for.
    pub(super) key: String,
}

/// How far the host is from what an index says; a later one includes the earlier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Drift {
    /// Not at all, as far as a quick look shows.
    None,
    /// Something changed below `/etc`.
    Etc,
    /// Something changed in `/opt` or `/var`, or programs have had time to leave new files there.
    NotPackaged,
    /// Something changed elsewhere.
    All,
}

/// The names shown at the top of the root.
const TOPS: &[&[u8]] =
    &[b"usr", b"etc", b"bin", b"sbin", b"lib", b"lib32", b"lib64", b"libx32", b"libo32", b"opt", b"var"];

/// So many seconds after the last scan a start scans again what packages do not own.
const AGED_AFTER: i64 = 600;
/// Unless it has more entries than these (about 0.2 s); it is then left to the re-check in the background.
const MOST_TO_WAIT_FOR: u64 = 50_000;

impl Host {
    /// Looks at the host of `view`.
    pub(super) fn look(view: &View) -> Result<Self, Error> {
        let root_path = view.root.clone();
        let failed = |source: Errno| Error::Read { path: view.root.clone(), source: source.into() };
        let root =
            rustix::fs::open(&root_path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
                .map_err(failed)?;
        let (tops, links) = read_tops(&root).map_err(failed)?;
        let mounts = read("/proc/self/mountinfo")
            .map(|text| mounts::below(mounts::parse(&text), &root_path, &tops))?;
        let key = key(view, &tops)?;
        Ok(Self { root, root_path, tops, links, mounts, key })
    }

    /// Compares what the quick look shows with `index`.
    pub(super) fn compare(&self, index: &Index) -> Drift {
        if index.key != self.key {
            return Drift::All;
        }
        let mounts: Vec<&Mount> =
            self.mounts.iter().filter(|mount| !index.is_out_of_sight(&mount.at)).collect();
        if !mounts.into_iter().eq(&index.mounts) {
            return Drift::All;
        }
        let mut drift = Drift::None;
        for stamp in &index.watched {
            if stamp.seen.is_some() && stamp.seen == self.times(&stamp.path) {
                continue;
            }
            let found = if stamp.path.starts_with("etc") {
                Drift::Etc
            } else if Part::NotPackaged.has(&stamp.path) {
                Drift::NotPackaged
            } else {
                Drift::All
            };
            drift = drift.max(found);
        }
        let is_young = (0..AGED_AFTER).contains(&now().saturating_sub(index.looked));
        if is_young || index.entries > MOST_TO_WAIT_FOR { drift } else { drift.max(Drift::NotPackaged) }
    }

    /// Home directories of people in the shown directories: those that belong to whom passwd says.
    pub(super) fn homes(&self) -> Vec<PathBuf> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let Ok(file) = rustix::fs::openat(&self.root, "etc/passwd", flags, Mode::empty()) else {
            return Vec::new();
        };
        let mut text = Vec::new();
        let longest = u64::try_from(super::etc::LONGEST).unwrap_or(u64::MAX);
        if std::fs::File::from(file).take(longest).read_to_end(&mut text).is_err() {
            return Vec::new();
        }
        let homes = homes_of_people(&String::from_utf8_lossy(&text), &self.tops);
        let is_owned = |(home, uid): &(PathBuf, u32)| {
            rustix::fs::statat(&self.root, home, AtFlags::SYMLINK_NOFOLLOW)
                .is_ok_and(|stat| stat.st_uid == *uid)
        };
        homes.into_iter().filter(is_owned).map(|(home, _)| home).collect()
    }

    /// How a watched directory looks now.
    pub(super) fn times(&self, path: &Path) -> Option<super::index::Times> {
        let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::STATX_DONT_SYNC;
        let mask = StatxFlags::INO | StatxFlags::CTIME | StatxFlags::MTIME;
        rustix::fs::statx(&self.root, path, flags, mask).ok().map(|stat| times(&stat))
    }
}

fn read_tops(root: &OwnedFd) -> Result<(Vec<PathBuf>, Vec<Link>), Errno> {
    let (mut tops, mut links) = (Vec::new(), Vec::new());
    for name in layer::names(root)? {
        let bytes = name.to_bytes();
        if !TOPS.contains(&bytes) {
            continue;
        }
        let path = PathBuf::from(OsStr::from_bytes(bytes));
        let stat = rustix::fs::statat(root, &name, AtFlags::SYMLINK_NOFOLLOW)?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => tops.push(path),
            FileType::Symlink => {
                let target = rustix::fs::readlinkat(root, &name, Vec::new())?;
                let target = PathBuf::from(OsStr::from_bytes(target.as_bytes()));
                links.push(Link { path: Path::new("/").join(path), target });
            }
            _ => {}
        }
    }
    tops.sort();
    links.sort();
    Ok((tops, links))
}

/// The boot is part of it: nothing is flushed to disk when a layer is made, and what happened to the host's files while
/// another system was running is unknown.
fn key(view: &View, tops: &[PathBuf]) -> Result<String, Error> {
    let boot = read("/proc/sys/kernel/random/boot_id")?;
    let mut key = String::from_utf8_lossy(&boot).trim().to_owned();
    let reader = match &view.reader {
        Reader::Root => "root".to_owned(),
        Reader::User { uid, groups } => {
            let mut groups = groups.clone();
            groups.sort_unstable();
            format!("user {uid} {groups:?}")
        }
    };
    // Writing to a string cannot fail. Debug escapes control characters, so no path adds a NUL.
    let _ = write!(key, " {:016x} {reader} {:?} {:?} {tops:?}", secrets::revision(), view.root, view.hidden);
    Ok(key)
}

fn read(path: &str) -> Result<Vec<u8>, Error> {
    made_up::read(path).map_err(|source| Error::Read { path: path.into(), source })
}
