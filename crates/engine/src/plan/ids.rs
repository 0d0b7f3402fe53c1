//! Which ids a sandbox has on this host.

use super::refusal;
use crate::store::Sandbox;
use airlock_images::{host::Reader, layer::Ids};
use airlock_linux::idmap::{self, Extent, IdMap, Writer};
use airlock_protocol::{SandboxId, control::Refusal, fingerprint::fingerprint, guest::User, state::IdExtent};
use std::{fs, os::unix::fs::MetadataExt as _, path::Path};

/// The person (or service) on the host who wants a sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    /// Effective user.
    pub uid: u32,
    /// Effective group.
    pub gid: u32,
    /// Supplementary groups.
    pub groups: Vec<u32>,
    /// Ranges of user ids from `/etc/subuid`, if `newuidmap` can be run.
    pub user_ranges: Vec<(u32, u32)>,
    /// Ranges of group ids from `/etc/subgid`.
    pub group_ranges: Vec<(u32, u32)>,
}

/// How many ids a sandbox has where there are enough.
pub const IDS: u32 = 65_536;
/// Host root's sandboxes take theirs from here: a region no distribution hands out.
const SHIFTED_FIRST: u32 = 0x7000_0000;
const SHIFTED_SLOTS: u32 = 4_094;
/// Files of host root's images belong to the range behind those of the sandboxes: to nobody on the host, and to the same ids
/// inside whichever sandbox is built upon them.
pub const IMAGES_FIRST: u32 = SHIFTED_FIRST + SHIFTED_SLOTS * IDS;
/// Files of host root's volumes belong to the range behind that of the images, likewise.
pub const VOLUMES_FIRST: u32 = IMAGES_FIRST + IDS;

impl Caller {
    /// Whoever runs this process.
    pub fn current() -> Caller {
        let uid = rustix::process::geteuid().as_raw();
        let gid = rustix::process::getegid().as_raw();
        let groups =
            rustix::process::getgroups().unwrap_or_default().into_iter().map(|gid| gid.as_raw()).collect();
        let (mut user_ranges, mut group_ranges) = (Vec::new(), Vec::new());
        if uid != 0 && map_programs_exist() {
            let name = name_of(uid).unwrap_or_default();
            let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
            user_ranges = idmap::subordinate(&read("/etc/subuid"), &name, uid);
            group_ranges = idmap::subordinate(&read("/etc/subgid"), &name, uid);
        }
        Caller { uid, gid, groups, user_ranges, group_ranges }
    }

    /// Whether this is root of the host.
    pub fn is_root(&self) -> bool {
        self.uid == 0
    }

    /// Whether sandboxes of this caller have one id: there are no ranges, or nothing that could map them.
    pub fn has_single_id(&self) -> bool {
        !self.is_root() && (self.user_ranges.is_empty() || self.group_ranges.is_empty())
    }

    /// What of the host this caller could read.
    pub fn reader(&self) -> Reader {
        if self.is_root() {
            return Reader::Root;
        }
        let mut groups = self.groups.clone();
        groups.push(self.gid);
        Reader::User { uid: self.uid, groups }
    }
}

/// The ids of one sandbox: inside, `user` is whoever owns the workspace outside.
/// `base` is the first one of a sandbox of host root.
pub fn map(caller: &Caller, base: u32, user: &User) -> Result<IdMap, Refusal> {
    if caller.is_root() {
        let extent = Extent { inside: 0, outside: base, count: IDS };
        return Ok(IdMap { users: vec![extent], groups: vec![extent], writer: Writer::Direct });
    }
    if caller.has_single_id() {
        let users = vec![Extent { inside: user.uid, outside: caller.uid, count: 1 }];
        let groups = vec![Extent { inside: user.gid, outside: caller.gid, count: 1 }];
        if user.groups.is_empty() {
            return Ok(IdMap { users, groups, writer: Writer::SingleId });
        }
        return Err(refusal(
            125,
            "this user's supplementary groups do not exist in a sandbox with a single id",
            Some("you have no ranges in /etc/subuid and /etc/subgid, or newuidmap is missing"),
            Some("name the user as UID:GID, or run `airlock doctor` for how to get ranges"),
        ));
    }
    Ok(IdMap {
        users: around(user.uid, caller.uid, &caller.user_ranges),
        groups: around(user.gid, caller.gid, &caller.group_ranges),
        writer: Writer::Programs,
    })
}

/// Ids as a state tells them.
pub fn told(extents: &[Extent]) -> Vec<IdExtent> {
    extents.iter().map(|e| IdExtent { inside: e.inside, outside: e.outside, count: e.count }).collect()
}

/// The ids that a state of this user's tells.
pub fn of_told(users: &[IdExtent], groups: &[IdExtent]) -> IdMap {
    let extents = |extents: &[IdExtent]| -> Vec<Extent> {
        extents.iter().map(|e| Extent { inside: e.inside, outside: e.outside, count: e.count }).collect()
    };
    let writer = match users {
        _ if rustix::process::geteuid().is_root() => Writer::Direct,
        [] | [IdExtent { count: 1, .. }] => Writer::SingleId,
        _ => Writer::Programs,
    };
    IdMap { users: extents(users), groups: extents(groups), writer }
}

/// The ids that the files of images have on this host for sandboxes with this user inside, and a word that tells them from others.
/// An ordinary user cannot map ids of a mount, so there is one tree for each user inside; with a single id there is one.
pub fn of_images(caller: &Caller, user: &User) -> Ids {
    if caller.is_root() {
        let extent = Extent { inside: 0, outside: IMAGES_FIRST, count: IDS };
        let map = IdMap { users: vec![extent], groups: vec![extent], writer: Writer::Direct };
        return Ids { key: "root".to_owned(), map };
    }
    if caller.has_single_id() {
        let users = vec![Extent { inside: 0, outside: caller.uid, count: 1 }];
        let groups = vec![Extent { inside: 0, outside: caller.gid, count: 1 }];
        return Ids { key: "single".to_owned(), map: IdMap { users, groups, writer: Writer::SingleId } };
    }
    let users = around(user.uid, caller.uid, &caller.user_ranges);
    let groups = around(user.gid, caller.gid, &caller.group_ranges);
    Ids { key: key(&users, &groups), map: IdMap { users, groups, writer: Writer::Programs } }
}

/// Tells maps apart: a state directory is its owner's, who has no reason to deceive.
fn key(users: &[Extent], groups: &[Extent]) -> String {
    let words = |extents: &[Extent]| -> Vec<u8> {
        extents.iter().flat_map(|e| [e.inside, e.outside, e.count]).flat_map(u32::to_be_bytes).collect()
    };
    let bytes = words(users).into_iter().chain([0]).chain(words(groups));
    format!("map-{:016x}", fingerprint(bytes))
}

/// The first id of this sandbox, if it is host root's: a disk that is there belongs to the ids it was made for.
pub fn base_of(sandbox: &Sandbox) -> u32 {
    let owner = fs::symlink_metadata(sandbox.disk()).map(|disk| disk.uid());
    let is_known = |uid: &u32| is_shifted(*uid) || *uid == IMAGES_FIRST;
    owner.ok().filter(is_known).unwrap_or_else(|| shifted_base(sandbox.id()))
}

/// Whether an id is the first of a range for a sandbox of host root.
pub fn is_shifted(uid: u32) -> bool {
    uid >= SHIFTED_FIRST
        && uid - SHIFTED_FIRST < SHIFTED_SLOTS * IDS
        && (uid - SHIFTED_FIRST).is_multiple_of(IDS)
}

/// Whether an id stands for one inside, whichever sandbox looks: nothing else on a host has it.
pub fn is_of_volumes(uid: u32) -> bool {
    uid >= VOLUMES_FIRST && uid - VOLUMES_FIRST < IDS
}

/// The first id of a sandbox of host root.
pub fn shifted_base(id: &SandboxId) -> u32 {
    let slot = u32::from_str_radix(id.as_str().get(..6).unwrap_or("0"), 16).unwrap_or(0) % SHIFTED_SLOTS;
    SHIFTED_FIRST + slot * IDS
}

/// `own` is the caller's id; everything around it comes from the ranges, in order, as far as they reach.
fn around(inside: u32, own: u32, ranges: &[(u32, u32)]) -> Vec<Extent> {
    let mut extents = Vec::new();
    let mut next = 0;
    for &(start, count) in ranges {
        let mut taken = 0;
        while taken < count && next < IDS {
            if next == inside {
                extents.push(Extent { inside, outside: own, count: 1 });
                next += 1;
                continue;
            }
            let until = if next < inside { inside.min(IDS) } else { IDS };
            let run = (count - taken).min(until - next);
            extents.push(Extent { inside: next, outside: start + taken, count: run });
            next += run;
            taken += run;
        }
    }
    if !extents.iter().any(|extent| extent.inside == inside && extent.outside == own) {
        extents.retain(|extent| inside < extent.inside || inside - extent.inside >= extent.count);
        extents.push(Extent { inside, outside: own, count: 1 });
    }
    extents
}

fn map_programs_exist() -> bool {
    let found = |name: &str| {
        ["/usr/bin", "/bin", "/usr/local/bin", "/usr/sbin"]
            .iter()
            .any(|dir| Path::new(dir).join(name).exists())
    };
    found("newuidmap") && found("newgidmap")
}

fn name_of(uid: u32) -> Option<String> {
    let text = fs::read_to_string("/etc/passwd").ok()?;
    text.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)?.parse() == Ok(uid)).then(|| name.to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_callers_own_id_is_root_inside_by_default() {
        assert_eq!(
            around(0, 1000, &[(100_000, 65_536)]),
            [
                Extent { inside: 0, outside: 1000, count: 1 },
                Extent { inside: 1, outside: 100_000, count: 65_535 },
            ]
        );
    }

    #[test]
    fn the_callers_own_id_is_the_chosen_user_inside() {
        assert_eq!(
            around(1000, 500, &[(100_000, 65_536)]),
            [
                Extent { inside: 0, outside: 100_000, count: 1000 },
                Extent { inside: 1000, outside: 500, count: 1 },
                Extent { inside: 1001, outside: 101_000, count: 64_535 },
            ]
        );
    }

    #[test]
    fn images_have_a_tree_for_each_user_inside_only_where_ids_cannot_be_mapped() {
        let user = |uid| User { uid, gid: uid, groups: Vec::new() };
        let root = Caller { uid: 0, gid: 0, groups: vec![], user_ranges: vec![], group_ranges: vec![] };
        let single = Caller { uid: 1000, gid: 1000, ..root.clone() };
        let ranges = vec![(100_000, 65_536)];
        let ranged = Caller { user_ranges: ranges.clone(), group_ranges: ranges, ..single.clone() };
        assert_eq!(of_images(&root, &user(0)), of_images(&root, &user(7)));
        assert_eq!(of_images(&single, &user(0)), of_images(&single, &user(7)));
        assert_ne!(of_images(&ranged, &user(0)).key, of_images(&ranged, &user(7)).key);
        assert!(!is_shifted(IMAGES_FIRST) && !is_shifted(VOLUMES_FIRST));
    }

    proptest! {
        #[test]
        fn extents_never_overlap_inside(
            inside in 0u32..70_000,
            ranges in proptest::collection::vec((1_000_000u32..2_000_000, 1u32..40_000), 1..4),
        ) {
            let mut extents = around(inside, 7, &ranges);
            extents.sort_by_key(|extent| extent.inside);
            prop_assert!(extents.windows(2).all(|pair| pair[0].inside + pair[0].count <= pair[1].inside));
            prop_assert!(extents.iter().any(|extent| extent.inside == inside && extent.outside == 7));
        }
    }
}
