//! How far a [`Real`](super::Real) reaches, and whose its files are.

use super::{
    Owner,
    calls::{create_file, kind_of},
    nodes::Way,
};
use crate::provider::types::{Attributes, Caller, Change, Kind, Listed, NOBODY, Name, Node, Result, Time};
use airlock_linux::fuse;
use rustix::{
    fs::{AtFlags, Gid, Mode, RawDirEntry, Stat, Uid},
    io::Errno,
};
use std::{
    collections::HashMap,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{Mutex, PoisonError},
};

/// Bits that never come from inside, where a directory of the host is shown.
const SET_ID: u32 = 0o6000;
/// What a machine has of its own, below its root.
const OWN: [&[u8]; 3] = [b"proc", b"sys", b"dev"];

/// What is served.
pub(super) enum Reach {
    /// A directory of the host, nothing that is mounted below it, and one owner for all.
    Directory {
        owner: Owner,
        /// The groups that are the user's inside: the directory's, and that of what is made in it.
        groups: [u32; 2],
    },
    /// A whole root with everything mounted in it, with the owners that the files have.
    Whole(Devices),
}

impl Reach {
    pub(super) fn directory(owner: Owner) -> Reach {
        let made = match rustix::process::geteuid().is_root() {
            true => owner.host.1,
            false => rustix::process::getegid().as_raw(),
        };
        Reach::Directory { owner, groups: [owner.host.1, made] }
    }

    pub(super) fn way(&self) -> Way {
        match self {
            Reach::Directory { .. } => Way::OneMount,
            Reach::Whole(_) => Way::AllMounts,
        }
    }

    /// Everything this thread does is done as the owner; of a whole root, as whoever this process is.
    pub(super) fn act(&self) -> Result<()> {
        let done = match self {
            Reach::Directory { owner, .. } => fuse::act_as(owner.host.0, owner.host.1),
            Reach::Whole(_) => fuse::give_up_set_id(),
        };
        done.map_err(|_| Errno::PERM)
    }

    pub(super) fn shown(&self, stat: &Stat, kind: Kind) -> Attributes {
        let time = |seconds: i64, nanos: u64| Time { seconds, nanos: u32::try_from(nanos).unwrap_or(0) };
        let (inode, mode, user, group) = match self {
            Reach::Directory { owner: Owner { host, inside }, groups } => (
                stat.st_ino,
                0o1777,
                if stat.st_uid == host.0 { inside.user } else { NOBODY },
                if groups.contains(&stat.st_gid) { inside.group } else { NOBODY },
            ),
            Reach::Whole(devices) => {
                (devices.number(stat.st_dev, stat.st_ino), 0o7777, stat.st_uid, stat.st_gid)
            }
        };
        Attributes {
            inode,
            kind,
            mode: stat.st_mode & mode,
            links: u32::try_from(stat.st_nlink).unwrap_or(u32::MAX),
            user,
            group,
            size: u64::try_from(stat.st_size).unwrap_or(0),
            blocks: u64::try_from(stat.st_blocks).unwrap_or(0),
            accessed: time(stat.st_atime, stat.st_atime_nsec),
            modified: time(stat.st_mtime, stat.st_mtime_nsec),
            changed: time(stat.st_ctime, stat.st_ctime_nsec),
        }
    }

    /// An entry of a directory as it is listed; none for `.`, `..` and what is not there.
    pub(super) fn listed<'e>(
        &self,
        directory: &OwnedFd,
        device: u64,
        entry: &'e RawDirEntry<'_>,
    ) -> Option<Listed<'e>> {
        let name = entry.file_name().to_bytes();
        let kind = kind_of(directory, name, entry.file_type(), self.way())?;
        let inode = match self {
            Reach::Directory { .. } => entry.ino(),
            Reach::Whole(devices) => devices.number(device, entry.ino()),
        };
        Some(Listed { name, inode, kind, next: entry.next_entry_cookie() })
    }

    /// Whether a name of the root is one that every machine has something of its own at.
    pub(super) fn is_own(&self, parent: Node, name: Name<'_>) -> bool {
        matches!(self, Reach::Whole(_)) && parent == Node::ROOT && OWN.contains(&name.bytes())
    }

    /// Refuses a mode that may not come from inside.
    pub(super) fn check_mode(&self, mode: u32) -> Result<()> {
        match self {
            Reach::Directory { .. } if mode & SET_ID != 0 => Err(Errno::PERM),
            _ => Ok(()),
        }
    }

    /// Refuses a kind that may not be made from inside.
    pub(super) fn check_kind(&self, kind: Kind) -> Result<()> {
        match (self, kind) {
            (Reach::Whole(_), _) | (_, Kind::File | Kind::Directory | Kind::Link) => Ok(()),
            _ => Err(Errno::PERM),
        }
    }

    /// Only what any user may set; labels of the host are not the sandbox's business, nor are its capabilities but
    /// where this process is the sandbox's own root.
    pub(super) fn check_attribute(&self, name: &[u8], otherwise: Errno) -> Result<()> {
        let is_capability = matches!(self, Reach::Whole(_)) && name == b"security.capability";
        if name.starts_with(b"user.") || is_capability { Ok(()) } else { Err(otherwise) }
    }

    /// A new file, open for both, with the caller's ids as far as there are such.
    pub(super) fn new_file(
        &self,
        directory: BorrowedFd<'_>,
        name: Name<'_>,
        mode: u32,
        caller: Caller,
    ) -> Result<OwnedFd> {
        self.check_mode(mode)?;
        let file = self.make(caller, || create_file(directory, name, mode & !SET_ID, self.way()))?;
        self.give(directory, file.as_fd(), caller)?;
        if mode & SET_ID != 0 {
            let mode = Mode::from_raw_mode(mode);
            fuse::with_set_id(|| rustix::fs::fchmod(&file, mode)).map_err(|_| Errno::PERM)??;
        }
        Ok(file)
    }

    /// Makes something. A mount that knows one user only (a workspace of the host) has no place for what another one makes, so there it is
    /// made as the caller.
    pub(super) fn make<T>(&self, caller: Caller, make: impl Fn() -> Result<T>) -> Result<T> {
        match make() {
            Err(Errno::OVERFLOW) if matches!(self, Reach::Whole(_)) => {
                fuse::for_user(caller.user, caller.group, make).map_err(|_| Errno::PERM)?
            }
            made => made,
        }
    }

    /// What was just made becomes the caller's, as far as this process has the caller's ids. The group that a directory
    /// gives to all in it stays.
    pub(super) fn give(&self, directory: BorrowedFd<'_>, made: BorrowedFd<'_>, caller: Caller) -> Result<()> {
        let Reach::Whole(_) = self else { return Ok(()) };
        let stat = rustix::fs::fstat(made)?;
        let is_given = || rustix::fs::fstat(directory).is_ok_and(|stat| stat.st_mode & 0o2000 != 0);
        let user = (stat.st_uid != caller.user).then_some(caller.user);
        let group = (stat.st_gid != caller.group && !is_given()).then_some(caller.group);
        if (user, group) != (None, None) && set_owner(made, user, group).is_err() {
            let _ = user.map(|user| set_owner(made, Some(user), None));
            let _ = group.map(|group| set_owner(made, None, Some(group)));
        }
        Ok(())
    }

    /// Gives a file to others, or says why not.
    pub(super) fn change_owner(
        &self,
        place: BorrowedFd<'_>,
        change: &Change,
        now: &Attributes,
    ) -> Result<()> {
        let user = change.user.filter(|user| *user != now.user);
        let group = change.group.filter(|group| *group != now.group);
        match self {
            _ if (user, group) == (None, None) => Ok(()),
            Reach::Directory { .. } => Err(Errno::PERM),
            Reach::Whole(_) => set_owner(place, user, group),
        }
    }
}

fn set_owner(place: BorrowedFd<'_>, user: Option<u32>, group: Option<u32>) -> Result<()> {
    if user == Some(u32::MAX) || group == Some(u32::MAX) {
        return Err(Errno::INVAL);
    }
    let (user, group) = (user.map(Uid::from_raw), group.map(Gid::from_raw));
    rustix::fs::chownat(place, "", user, group, AtFlags::EMPTY_PATH | AtFlags::SYMLINK_NOFOLLOW)
}

/// One number for each file of several devices, the same for as long as it is served: the devices are counted as they are
/// met, and the count goes above the file's own number.
#[derive(Default)]
pub(super) struct Devices(Mutex<HashMap<u64, u64>>);

/// Most devices that are told apart.
const MOST_DEVICES: usize = 1 << 14;

impl Devices {
    fn number(&self, device: u64, inode: u64) -> u64 {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let next = known.len() as u64;
        let count = match known.len() < MOST_DEVICES {
            true => *known.entry(device).or_insert(next),
            false => known.get(&device).copied().unwrap_or(next),
        };
        if inode >> 48 == 0 { inode | count << 48 } else { mixed(inode, count) }
    }
}

/// For file systems whose own numbers fill all bits. Two files get the same number about never.
fn mixed(inode: u64, count: u64) -> u64 {
    let rotated = inode.wrapping_add(count.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let once = (rotated ^ rotated >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (once ^ once >> 27) | 1 << 63
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn files_of_several_devices_never_share_a_number(files in prop::collection::hash_set((0..50u64, 0..1u64 << 49), 0..500)) {
            let devices = Devices::default();
            let number = |(device, inode): &(u64, u64)| devices.number(*device, *inode);
            let first: Vec<u64> = files.iter().map(number).collect();
            let again: Vec<u64> = files.iter().map(number).collect();
            prop_assert_eq!(&first, &again);
            let all: std::collections::HashSet<u64> = first.into_iter().collect();
            prop_assert_eq!(all.len(), files.len());
        }
    }
}
