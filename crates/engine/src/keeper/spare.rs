//! A disk made in advance: the directories of a sandbox cost more to make than its namespaces, and the next one is
//! usually like the last. A keeper makes one when its own sandbox is gone; whoever starts next takes it by a rename.
//!
//! A spare disk is always fresh: what a sandbox has used is deleted, never given to another. It has those of our own files in
//! it that all sandboxes have in common; a fingerprint of them is part of its name, so that no other is taken.
//!
//! Every disk begins its life in this folder, also one that was not made in advance: the folder is marked as one whose
//! directories have nothing to do with each other, so that ext4 puts each into a group of its own. In one group for all, the
//! kernel goes past everything that was deleted there lately for each new file (`recently_deleted` in fs/ext4/ialloc.c: a
//! minute and more, where there is no journal), which took a tenth of a millisecond a file after some hundred sandboxes.

use crate::{
    backend::Backend,
    plan::{
        Base, Caller, Plan, base,
        ids::{is_shifted, shifted_base},
        is_shared,
    },
    store::{Sandbox, Store},
};
use airlock_linux::{lock, spawn};
use airlock_protocol::{SandboxId, fingerprint::fingerprint, spec::Spec};
use rustix::fs::{CWD, IFlags, Mode, OFlags};
use std::{
    ffi::OsString,
    fs, io,
    os::{
        fd::{AsFd as _, OwnedFd},
        unix::fs::MetadataExt as _,
    },
    path::{Path, PathBuf},
    time::Duration,
};

/// Disks kept ready at once.
const MOST: usize = 2;
/// How long a keeper waits for those that take their sandboxes down before it does so beside them.
const LONGEST_TURN: Duration = Duration::from_secs(2);

/// Takes a spare disk for a sandbox that has none, if there is one that fits. Without one the sandbox makes its own.
pub(super) fn adopt(sandbox: &Sandbox, spec: &Spec, caller: &Caller, etc: &[(&'static str, String)]) {
    let own_disk = spec.limits.disk.is_none_or(|disk| disk.by.is_watched());
    // What is made in advance would hide what a layer below has in the same place.
    let has_layers = sandbox.chain().map_or(true, |chain| !chain.layers.is_empty());
    if base::is_layered(spec) || !own_disk || has_layers || spec.user != "0" || sandbox.disk().exists() {
        return;
    }
    let ending = ending_of(etc);
    for spare in spares(sandbox.store()) {
        if ends_with(&spare, &ending) && fits(&spare, caller) && fs::rename(&spare, sandbox.disk()).is_ok() {
            return;
        }
    }
}

/// An empty disk for a sandbox that has none, made here and moved to it.
pub(super) fn make_empty(sandbox: &Sandbox, owner: Option<(u32, u32)>) -> io::Result<()> {
    let unfinished = folder(sandbox.store()).join(format!(".disk-{}", sandbox.id()));
    mark_folder(sandbox.store());
    fs::create_dir(&unfinished)?;
    let given =
        owner.map_or(Ok(()), |(user, group)| std::os::unix::fs::chown(&unfinished, Some(user), Some(group)));
    let made = given.and_then(|()| fs::rename(&unfinished, sandbox.disk()));
    if made.is_err() {
        let _ = fs::remove_dir(&unfinished);
    }
    made
}

/// Makes the folder, and tells a file system that understands it to keep what is in it apart.
fn mark_folder(store: &Store) {
    let folder = folder(store);
    let _ = fs::create_dir(&folder);
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let Ok(folder) = rustix::fs::open(&folder, flags, Mode::empty()) else { return };
    match rustix::fs::ioctl_getflags(&folder) {
        Ok(flags) if !flags.contains(IFlags::TOPDIR) => {
            // Only ext4 and its like know it.
            let _ = rustix::fs::ioctl_setflags(&folder, flags | IFlags::TOPDIR);
        }
        _ => {}
    }
}

/// Makes a spare disk like the one of `plan`, unless there are enough. Not having one costs a millisecond, so that
/// nothing is said if it fails.
pub(super) fn make(store: &Store, backend: &dyn Backend, plan: &Plan) {
    if plan.base != Base::Host || plan.user.uid != 0 || plan.bounds.disk.is_some() {
        return;
    }
    let ending = ending_of(&plan.etc);
    let (alike, other): (Vec<PathBuf>, Vec<PathBuf>) =
        spares(store).into_iter().partition(|spare| ends_with(spare, &ending));
    other.iter().for_each(|spare| discard(spare));
    if alike.len() < MOST {
        let _ = try_make(store, backend, plan, &ending);
    }
}

/// Waits for this keeper's turn to take its sandbox down, so that of many that end while others still start one at a time
/// works on what nobody waits for. Not for long: what is to be removed must not pile up. The turn ends when this is dropped.
pub(super) fn turn(store: &Store) -> Option<OwnedFd> {
    turn_within(store, LONGEST_TURN)
}

fn turn_within(store: &Store, longest: Duration) -> Option<OwnedFd> {
    mark_folder(store);
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let folder = rustix::fs::open(folder(store), flags, Mode::empty()).ok()?;
    // Where it cannot be waited for, everybody takes down at once.
    lock::wait_in_line(folder.as_fd(), longest).is_ok_and(|has_it| has_it).then_some(folder)
}

/// Removes a disk that nobody would take any more. Out of sight first: whoever still takes it takes it whole.
fn discard(spare: &Path) {
    let Some(name) = spare.file_name() else { return };
    let mut hidden = OsString::from(".old-");
    hidden.push(name);
    let hidden = spare.with_file_name(hidden);
    if fs::rename(spare, &hidden).is_ok() {
        let _ = crate::store::remove_tree(&hidden);
    }
}

fn try_make(store: &Store, backend: &dyn Backend, plan: &Plan, ending: &str) -> io::Result<()> {
    let mut random = [0u8; 6];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
    let id = SandboxId::from_random(random);
    let unfinished = folder(store).join(format!(".{id}"));
    mark_folder(store);
    fs::create_dir(&unfinished)?;
    let made = furnish(backend, plan, &unfinished, &id)
        .and_then(|()| fs::rename(&unfinished, folder(store).join(format!("{id}{ending}"))));
    if made.is_err() {
        let _ = crate::store::remove_tree(&unfinished);
    }
    made
}

fn furnish(backend: &dyn Backend, plan: &Plan, path: &Path, id: &SandboxId) -> io::Result<()> {
    let disk =
        rustix::fs::openat(CWD, path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    if !plan.caller.is_root() {
        return backend.furnish(plan, disk.as_fd());
    }
    let base = shifted_base(id);
    std::os::unix::fs::chown(path, Some(base), Some(base))?;
    spawn::with_file_ids(base, base, || backend.furnish(plan, disk.as_fd()))
}

/// Tells apart what is written on a disk in advance.
fn ending_of(etc: &[(&'static str, String)]) -> String {
    let shared = etc.iter().filter(|(name, _)| is_shared(name));
    let bytes = shared.flat_map(|(name, text)| name.bytes().chain([0]).chain(text.bytes()).chain([0]));
    format!("-{:016x}", fingerprint(bytes))
}

fn ends_with(spare: &Path, ending: &str) -> bool {
    spare.file_name().is_some_and(|name| name.as_encoded_bytes().ends_with(ending.as_bytes()))
}

fn fits(spare: &Path, caller: &Caller) -> bool {
    let owner = fs::symlink_metadata(spare).map(|spare| spare.uid());
    owner.is_ok_and(|uid| if caller.is_root() { is_shifted(uid) } else { uid == caller.uid })
}

/// Finished ones; those still being made have a dot.
fn spares(store: &Store) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder(store)) else { return Vec::new() };
    let paths = entries.flatten().filter(|entry| !entry.file_name().as_encoded_bytes().starts_with(b"."));
    paths.map(|entry| entry.path()).collect()
}

fn folder(store: &Store) -> PathBuf {
    store.home().join("spare")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_at_a_time_takes_its_sandbox_down_and_the_next_when_it_has() {
        let place = tempfile::tempdir().unwrap();
        let store = Store::open(&place.path().join("home")).unwrap();
        let first = turn(&store);
        let (next, taken) = (store.clone(), std::sync::Arc::new(std::sync::Mutex::new(Vec::new())));

        let order = taken.clone();
        let waiting = std::thread::spawn(move || {
            let turn = turn_within(&next, Duration::from_secs(600));
            order.lock().unwrap().push("second");
            turn.is_some()
        });
        taken.lock().unwrap().push("first");
        assert!(first.is_some());
        drop(first);

        assert!(waiting.join().unwrap());
        assert_eq!(*taken.lock().unwrap(), ["first", "second"]);
    }

    #[test]
    fn a_turn_that_does_not_end_is_not_waited_for_forever() {
        let place = tempfile::tempdir().unwrap();
        let store = Store::open(&place.path().join("home")).unwrap();
        let stuck = turn(&store);

        let without = turn_within(&store, Duration::from_millis(1));

        assert!(stuck.is_some() && without.is_none());
    }

    #[test]
    fn what_a_disk_has_in_advance_is_told_apart_and_what_each_sandbox_has_of_its_own_is_not() {
        let etc =
            |hosts: &str, passwd: &str| vec![("hosts", hosts.to_owned()), ("passwd", passwd.to_owned())];
        let one = ending_of(&etc("a", "root"));
        assert_eq!(one, ending_of(&etc("b", "root")));
        assert_ne!(one, ending_of(&etc("a", "root2")));
        assert!(ends_with(Path::new("/x/3f9a0c2e7b14-0123456789abcdef"), "-0123456789abcdef"));
        assert!(!ends_with(Path::new("/x/3f9a0c2e7b14"), &one));
    }
}
