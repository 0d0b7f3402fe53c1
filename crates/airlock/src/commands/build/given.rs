//! Files and volumes that belong to somebody inside: secrets and caches have an owner and a mode.

use super::command::Asked;
use crate::{failure::Failure, root::Root};
use airlock_engine::{
    plan::{Caller, base, find_user_in},
    store::{Store, volumes},
};
use airlock_protocol::guest::User;
use std::{
    fs::{File, Permissions},
    io,
    os::unix::fs::PermissionsExt as _,
};

/// Gives a step's files and fresh volumes to whom they are meant for. This process must have one thread.
pub(super) fn give(store: &Store, asked: &Asked, root: Option<&Root>) -> Result<(), Failure> {
    if asked.owned.is_empty() && asked.caches.is_empty() {
        return Ok(());
    }
    let caller = Caller::current();
    let user = match root.and_then(|root| root.image.as_ref()) {
        Some(image) => find_user_in(&asked.user, &base::accounts_of(image, store, &caller)?, &caller)?.0,
        None => User { uid: 0, gid: 0, groups: Vec::new() },
    };
    for one in &asked.owned {
        let hand = || -> io::Result<()> {
            let file = File::open(&one.path)?;
            file.set_permissions(Permissions::from_mode(one.mode & 0o777))?;
            volumes::hand_over(&file, one.owner, &caller, &user)
        };
        hand().map_err(|err| Failure::because("a secret could not be given to its user", &err))?;
    }
    let all = store.volumes()?;
    for cache in &asked.caches {
        let name = cache.volume.parse().map_err(|_| Failure::new("a cache has no name"))?;
        all.ensure(&name, (cache.owner, cache.mode & 0o7777), &caller, &user)?;
    }
    Ok(())
}
