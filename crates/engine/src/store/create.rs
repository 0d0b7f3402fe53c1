//! A new sandbox: an id nobody has, the lock, the name, the two files.

use super::{Error, Lock, Sandbox, Store, failed};
use airlock_protocol::{SandboxId, spec::Spec};
use rustix::{
    fs::Mode,
    io::Errno,
    rand::{GetRandomFlags, getrandom},
};
use std::{io, path::Path};

/// Ids are 48 random bits: more than one collision in a row means that something else is wrong.
const ATTEMPTS: u32 = 16;

impl Store {
    /// A new sandbox with its lock held; it has no state until its keeper writes one, and is not listed before.
    /// Until the lock is dropped (in every process that has it) nobody takes it for a left-over: hand it to the keeper.
    ///
    /// The lock comes before the name and the files, so that whatever a crash leaves behind can be told from a
    /// sandbox that is being made.
    pub fn create(&self, spec: &Spec) -> Result<(Sandbox, Lock), Error> {
        for _ in 0..ATTEMPTS {
            if let Some(made) = self.try_create(spec)? {
                return Ok(made);
            }
        }
        let path = self.sandboxes();
        let source = io::Error::other("every id that was tried is in use");
        Err(Error::Io { tried: "make a sandbox in", path, source })
    }

    /// `None` if the id was taken, or a prune took the folder for a left-over before its lock was held.
    fn try_create(&self, spec: &Spec) -> Result<Option<(Sandbox, Lock)>, Error> {
        let sandbox = Sandbox::new(self, random_id()?);
        match rustix::fs::mkdir(sandbox.folder(), Mode::RWXU) {
            Ok(()) => {}
            Err(Errno::EXIST) => return Ok(None),
            Err(errno) => return Err(failed("make", sandbox.folder())(errno.into())),
        }
        let Some(lock) = unless_gone(sandbox.first_lock())?.flatten() else { return Ok(None) };
        match unless_gone(self.fill(&sandbox, spec)) {
            Ok(Some(())) => Ok(Some((sandbox, lock))),
            Ok(None) => Ok(None),
            Err(err) => {
                // The first error is the one to tell; what cannot be removed now is removed by the next prune.
                let _ = sandbox.remove(lock);
                Err(err)
            }
        }
    }

    fn fill(&self, sandbox: &Sandbox, spec: &Spec) -> Result<(), Error> {
        self.reserve(spec, sandbox.id())?;
        sandbox.write_first_spec(spec)
    }

    fn reserve(&self, spec: &Spec, id: &SandboxId) -> Result<(), Error> {
        let link = self.name_link(spec.name.as_str());
        for _ in 0..ATTEMPTS {
            match rustix::fs::symlink(id.as_str(), &link) {
                Ok(()) => return Ok(()),
                Err(Errno::EXIST) if self.free_if_stale(&link)? => {}
                Err(Errno::EXIST) => break,
                Err(errno) => return Err(failed("make", &link)(errno.into())),
            }
        }
        let holder = std::fs::read_link(&link).unwrap_or_default();
        Err(Error::NameTaken { name: spec.name.clone(), id: holder.to_string_lossy().into_owned() })
    }

    /// Frees a name whose sandbox was never finished or was deleted by hand. `true` if it is worth another try.
    fn free_if_stale(&self, link: &Path) -> Result<bool, Error> {
        let Ok(target) = std::fs::read_link(link) else { return Ok(true) };
        let Some(Ok(id)) = target.to_str().map(str::parse::<SandboxId>) else { return Ok(false) };
        let holder = self.sandbox(&id);
        if holder.folder().join("state.json").exists() {
            return Ok(false);
        }
        if !holder.folder().exists() {
            // No folder ever comes back under its id, so this link can only be a left-over.
            return Ok(std::fs::remove_file(link).is_ok());
        }
        self.remove_unfinished(&holder)
    }
}

/// Twelve digits nobody has yet.
pub(crate) fn random_id() -> Result<SandboxId, Error> {
    let mut bytes = [0u8; 6];
    let filled = getrandom(&mut bytes, GetRandomFlags::empty());
    filled.map_err(|errno| failed("read", Path::new("/dev/urandom"))(errno.into()))?;
    Ok(SandboxId::from_random(bytes))
}

fn unless_gone<T>(result: Result<T, Error>) -> Result<Option<T>, Error> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(Error::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(err) => Err(err),
    }
}
