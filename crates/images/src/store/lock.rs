//! Locks between processes: `flock` on a file that stays. They go with whoever held them, however that ended.

use std::{
    fs::{File, OpenOptions},
    os::unix::fs::OpenOptionsExt as _,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use super::{Error, error::failed};

/// A lock that is held.
#[derive(Debug)]
pub(super) struct Lock(#[expect(dead_code, reason = "the lock belongs to the open file")] File);

/// How often somebody who waits for a lock looks.
const LOOK_AGAIN: Duration = Duration::from_millis(5);

impl Lock {
    /// With others who want no more than that.
    pub(super) fn shared(path: &Path) -> Result<Self, Error> {
        Self::wait(path, FlockOperation::LockShared)
    }

    /// Alone.
    pub(super) fn exclusive(path: &Path) -> Result<Self, Error> {
        Self::wait(path, FlockOperation::LockExclusive)
    }

    /// Alone; nothing if that is not to be had in this time.
    pub(super) fn exclusive_within(path: &Path, most: Duration) -> Result<Option<Self>, Error> {
        let file = open(path)?;
        let end = Instant::now() + most;
        loop {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(Some(Self(file))),
                Err(Errno::WOULDBLOCK) if Instant::now() < end => thread::sleep(LOOK_AGAIN),
                Err(Errno::WOULDBLOCK) => return Ok(None),
                Err(errno) => return Err(failed("lock", path)(errno.into())),
            }
        }
    }

    fn wait(path: &Path, how: FlockOperation) -> Result<Self, Error> {
        let file = open(path)?;
        rustix::io::retry_on_intr(|| flock(&file, how))
            .map_err(|errno| failed("lock", path)(errno.into()))?;
        Ok(Self(file))
    }
}

fn open(path: &Path) -> Result<File, Error> {
    let mut how = OpenOptions::new();
    how.read(true).write(true).create(true).truncate(false).mode(0o600);
    how.open(path).map_err(failed("open", path))
}
