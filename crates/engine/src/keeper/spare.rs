//! A disk made in advance: the directories of a sandbox cost more to make than its namespaces, and the next one is
//! usually like the last. A keeper makes one when its own sandbox is gone; whoever starts next takes it by a rename.
//!
//! A spare disk is always fresh: what a sandbox has used is deleted, never given to another.

use crate::{
    backend::Backend,
    plan::{
        Caller, Plan,
        ids::{is_shifted, shifted_base},
    },
    store::{Sandbox, Store},
};
use airlock_linux::spawn;
use airlock_protocol::{
    SandboxId,
    spec::{DiskBy, Spec},
};
use rustix::fs::{CWD, Mode, OFlags};
use std::{
    fs, io,
    os::{fd::AsFd as _, unix::fs::MetadataExt as _},
    path::{Path, PathBuf},
};

/// Disks kept ready at once.
const MOST: usize = 2;

/// Takes a spare disk for a sandbox that has none, if there is one that fits. Without one the sandbox makes its own.
pub(super) fn adopt(sandbox: &Sandbox, spec: &Spec, caller: &Caller) {
    let own_disk = spec.limits.disk.is_none_or(|disk| disk.by == DiskBy::Watched);
    if !own_disk || spec.user != "0" || sandbox.disk().exists() {
        return;
    }
    for spare in spares(sandbox.store()) {
        if fits(&spare, caller) && fs::rename(&spare, sandbox.disk()).is_ok() {
            return;
        }
    }
}

/// Makes a spare disk like the one of `plan`, unless there are enough. Not having one costs a millisecond, so that
/// nothing is said if it fails.
pub(super) fn make(store: &Store, backend: &dyn Backend, plan: &Plan) {
    if plan.user.uid != 0 || plan.bounds.disk.is_some() || spares(store).len() >= MOST {
        return;
    }
    let _ = try_make(store, backend, plan);
}

fn try_make(store: &Store, backend: &dyn Backend, plan: &Plan) -> io::Result<()> {
    let mut random = [0u8; 6];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
    let id = SandboxId::from_random(random);
    let unfinished = folder(store).join(format!(".{id}"));
    fs::create_dir_all(&unfinished)?;
    let made = furnish(backend, plan, &unfinished, &id)
        .and_then(|()| fs::rename(&unfinished, folder(store).join(id.as_str())));
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
