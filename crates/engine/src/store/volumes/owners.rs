//! Whose the files of a volume are on the host.
//!
//! Host root's volumes have ids of a range of their own, and each sandbox sees them mapped to its own: the same ids
//! inside, whichever sandbox looks. An ordinary user cannot map ids of a mount: files have the ids that the sandbox has
//! on the host, so a sandbox with another user inside sees some of them as somebody else's. That is refused as soon as
//! there is such a file.

use super::{Error, failed};
use crate::plan::{
    Caller,
    ids::{self, IDS, VOLUMES_FIRST},
};
use airlock_files::within;
use airlock_protocol::{files::VolumeIds, guest::User};
use rustix::fs::{AtFlags, CWD, Gid, Uid};
use std::{fs::File, io, path::Path};

/// How a sandbox of this caller has the ids of volumes.
pub(super) fn ids(caller: &Caller, user: &User) -> VolumeIds {
    let User { uid, gid, .. } = *user;
    match (caller.is_root(), caller.user_ranges.is_empty() || caller.group_ranges.is_empty()) {
        (true, _) => VolumeIds::Range { first: VOLUMES_FIRST },
        (false, true) => VolumeIds::Single,
        (false, false) => VolumeIds::Own { uid, gid },
    }
}

/// Gives a fresh volume to the user inside of the first sandbox that shows it. An ordinary user's own id is that user
/// already.
pub(super) fn give(files: &Path, ids: VolumeIds, user: &User) -> Result<(), Error> {
    let VolumeIds::Range { first } = ids else { return Ok(()) };
    let owner =
        (Uid::from_raw(first.saturating_add(user.uid)), Gid::from_raw(first.saturating_add(user.gid)));
    rustix::fs::chownat(CWD, files, Some(owner.0), Some(owner.1), AtFlags::SYMLINK_NOFOLLOW)
        .map_err(|errno| failed("give to its user", files)(errno.into()))
}

/// Gives a file or directory of the caller's to somebody in a sandbox upon an image whose user is `user`. Host root shows it as
/// volumes are shown; with a single id there is nobody else to give it to. An ordinary user's process must have one thread.
pub fn hand_over(what: &File, (uid, gid): (u32, u32), caller: &Caller, user: &User) -> io::Result<()> {
    if uid >= IDS || gid >= IDS {
        return Err(io::Error::other(format!("sandboxes have ids below {IDS}, not {uid}:{gid}")));
    }
    let chown = |first: u32| {
        let owner = (Uid::from_raw(first + uid), Gid::from_raw(first + gid));
        rustix::fs::fchown(what, Some(owner.0), Some(owner.1)).map_err(io::Error::from)
    };
    if caller.is_root() {
        return chown(VOLUMES_FIRST);
    }
    if caller.has_single_id() {
        return Ok(());
    }
    let map = ids::of_images(caller, user).map;
    within::run(&map, &mut |_| {}, |_| chown(0).map_err(|err| err.to_string())).map_err(io::Error::other)
}

/// Whether a volume that was used with other ids can be shown: only if all its files are the caller's own.
pub(super) fn check(name: &str, before: VolumeIds, caller: &Caller, files: &Path) -> Result<(), Error> {
    let refused = |why: String, user: String| Error::Owners { name: name.to_owned(), why, user };
    let user = match before {
        VolumeIds::Single => return Ok(()),
        VolumeIds::Range { first } => {
            let why = format!("they have ids from {first} on, as host root's sandboxes gave them");
            return Err(refused(why, "0".to_owned()));
        }
        VolumeIds::Own { uid, gid } => format!("{uid}:{gid}"),
    };
    if super::size::belongs_to(files, caller.uid) {
        return Ok(());
    }
    let why = format!("it was used with the user {user} inside, and holds files of other ids too");
    Err(refused(why, user))
}
