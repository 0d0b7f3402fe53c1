//! Work on a sandbox's files in a process that has the sandbox's ids and nothing else of this user's.
//!
//! [`run`] waits for it. [`begin`] does not, so that several can work at once: each [`Working`] has a descriptor that can be
//! read when it has something to tell.

use airlock_linux::{
    clone::{self, Child, Namespaces, Side},
    idmap::{IdMap, Writer},
    spawn,
};
use rustix::event::{PollFd, PollFlags};
use serde::{Serialize, de::DeserializeOwned};
use std::{
    io::{self, Read as _, Write as _},
    marker::PhantomData,
    os::fd::{AsFd, BorrowedFd},
};

/// Why such work was not done.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The process could not be had.
    #[error("could not work with the sandbox's ids")]
    Process(#[source] io::Error),
    /// It said so itself.
    #[error("{0}")]
    Said(String),
}

/// Work that is being done. Dropping it ends it.
#[derive(Debug)]
#[must_use]
pub struct Working<T> {
    child: Child,
    hear: io::PipeReader,
    heard: Vec<u8>,
    is_over: bool,
    outcome: PhantomData<fn() -> T>,
}

/// A number of bytes that were worked through since the last time.
const PROGRESS: u8 = b'p';
/// The outcome.
const OUTCOME: u8 = b'o';
/// Read at once.
const PIECE: usize = 64 << 10;

/// Has `work` done by a child of this process, which must have one thread. What `work` opens by path it opens with the
/// sandbox's ids: hand descriptors in. `progress` hears what `work` tells.
pub fn run<T: Serialize + DeserializeOwned>(
    ids: &IdMap,
    progress: &mut dyn FnMut(u64),
    work: impl FnOnce(&mut dyn FnMut(u64)) -> Result<T, String>,
) -> Result<T, Error> {
    begin(ids, work)?.finish(progress)
}

/// As [`run`], but does not wait for the end of it.
pub fn begin<T: Serialize + DeserializeOwned>(
    ids: &IdMap,
    work: impl FnOnce(&mut dyn FnMut(u64)) -> Result<T, String>,
) -> Result<Working<T>, Error> {
    let (mut wait, mut go) = io::pipe().map_err(Error::Process)?;
    let (hear, mut say) = io::pipe().map_err(Error::Process)?;
    let child = match clone::fork(Namespaces::USER, None).map_err(Error::Process)? {
        Side::Parent(child) => child,
        Side::Child => {
            drop((go, hear));
            let ready = clone::die_with_parent().is_ok() && wait.read_exact(&mut [0u8; 1]).is_ok();
            // A single id is root's without becoming anybody.
            let ready = ready && (ids.writer == Writer::SingleId || spawn::become_user(0, 0, &[]).is_ok());
            // A change of ids undoes it.
            let ready = ready && clone::die_with_parent().is_ok();
            let told = ready && tell(&mut say, work).is_ok();
            clone::exit_now(i32::from(!told));
        }
    };
    drop((wait, say));
    let working = Working { child, hear, heard: Vec::new(), is_over: false, outcome: PhantomData };
    ids.write(working.child.pid).map_err(|err| Error::Process(io::Error::other(err)))?;
    rustix::io::ioctl_fionbio(&working.hear, true).map_err(|err| Error::Process(err.into()))?;
    let _ = go.write_all(b"g");
    Ok(working)
}

impl<T: DeserializeOwned> Working<T> {
    /// Waits for the outcome.
    pub fn finish(mut self, progress: &mut dyn FnMut(u64)) -> Result<T, Error> {
        loop {
            if let Some(outcome) = self.listen(progress)? {
                return Ok(outcome);
            }
            let mut wait = [PollFd::new(&self.hear, PollFlags::IN)];
            rustix::io::retry_on_intr(|| rustix::event::poll(&mut wait, None))
                .map_err(|err| Error::Process(err.into()))?;
        }
    }

    /// Takes in what has been told so far. `None` while it goes on: there is more when the descriptor can be read.
    pub fn listen(&mut self, progress: &mut dyn FnMut(u64)) -> Result<Option<T>, Error> {
        let mut piece = vec![0u8; PIECE];
        loop {
            let count = match self.hear.read(&mut piece) {
                Ok(0) => break,
                Ok(count) => count,
                Err(err) if err.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(err) if err.kind() == io::ErrorKind::Interrupted => continue,
                Err(err) => return Err(Error::Process(err)),
            };
            self.heard.extend(piece.get(..count).unwrap_or_default());
            let told = progress_in(&self.heard, progress);
            self.heard.drain(..told);
        }
        self.is_over = true;
        self.child.wait().map_err(Error::Process)?;
        let Some((&OUTCOME, outcome)) = self.heard.split_first() else {
            return Err(Error::Process(io::Error::other("its process was killed")));
        };
        let outcome: Result<T, String> =
            serde_json::from_slice(outcome).map_err(|err| Error::Process(err.into()))?;
        outcome.map(Some).map_err(Error::Said)
    }
}

impl<T> AsFd for Working<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.hear.as_fd()
    }
}

impl<T> Drop for Working<T> {
    fn drop(&mut self) {
        if !self.is_over {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// In the child.
fn tell<T: Serialize>(
    say: &mut io::PipeWriter,
    work: impl FnOnce(&mut dyn FnMut(u64)) -> Result<T, String>,
) -> io::Result<()> {
    let mut teller = say.try_clone()?;
    let outcome = work(&mut |bytes| {
        let mut word = [PROGRESS; 9];
        word.iter_mut().skip(1).zip(bytes.to_le_bytes()).for_each(|(to, from)| *to = from);
        let _ = teller.write_all(&word);
    });
    say.write_all(&[OUTCOME])?;
    say.write_all(&serde_json::to_vec(&outcome)?)
}

/// Tells the progress that was heard, as far as it was heard whole. Gives how many bytes that were.
fn progress_in(heard: &[u8], progress: &mut dyn FnMut(u64)) -> usize {
    let mut told = 0;
    while let Some((&PROGRESS, rest)) = heard.get(told..).and_then(<[u8]>::split_first)
        && let Some(bytes) = rest.first_chunk::<8>()
    {
        progress(u64::from_le_bytes(*bytes));
        told += 9;
    }
    told
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_is_told_when_it_is_whole_and_the_outcome_is_left() {
        let mut heard = vec![PROGRESS];
        heard.extend(7u64.to_le_bytes());
        heard.push(PROGRESS);
        heard.extend([1, 0, 0]);
        let mut told = Vec::new();

        let passed = progress_in(&heard, &mut |bytes| told.push(bytes));
        heard.drain(..passed);
        heard.extend([0; 5]);
        heard.extend(b"o{}");
        let passed = progress_in(&heard, &mut |bytes| told.push(bytes));

        assert_eq!((told, heard.get(passed..)), (vec![7, 1], Some(&b"o{}"[..])));
    }
}
