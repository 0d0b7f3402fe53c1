//! Work on a sandbox's files in a process that has the sandbox's ids and nothing else of this user's.

use airlock_linux::{
    clone::{self, Namespaces, Side},
    idmap::{IdMap, Writer},
    spawn,
};
use serde::{Serialize, de::DeserializeOwned};
use std::io::{self, Read as _, Write as _};

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

/// A number of bytes that were worked through since the last time.
const PROGRESS: u8 = b'p';
/// The outcome.
const OUTCOME: u8 = b'o';

/// Has `work` done by a child of this process, which must have one thread. What `work` opens by path it opens with the
/// sandbox's ids: hand descriptors in. `progress` hears what `work` tells.
pub fn run<T: Serialize + DeserializeOwned>(
    ids: &IdMap,
    progress: &mut dyn FnMut(u64),
    work: impl FnOnce(&mut dyn FnMut(u64)) -> Result<T, String>,
) -> Result<T, Error> {
    let (mut wait, mut go) = io::pipe().map_err(Error::Process)?;
    let (mut hear, mut say) = io::pipe().map_err(Error::Process)?;
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
    let mapped = ids.write(child.pid).map_err(|err| Error::Process(io::Error::other(err)));
    if mapped.is_ok() {
        let _ = go.write_all(b"g");
    }
    drop(go);
    let heard = listen(&mut hear, progress);
    child.wait().map_err(Error::Process)?;
    mapped?;
    let outcome: Result<T, String> =
        serde_json::from_slice(&heard.map_err(Error::Process)?).map_err(|err| Error::Process(err.into()))?;
    outcome.map_err(Error::Said)
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

fn listen(hear: &mut io::PipeReader, progress: &mut dyn FnMut(u64)) -> io::Result<Vec<u8>> {
    loop {
        let mut kind = [0u8; 1];
        hear.read_exact(&mut kind).map_err(|_| io::Error::other("its process was killed"))?;
        if kind == [PROGRESS] {
            let mut bytes = [0u8; 8];
            hear.read_exact(&mut bytes)?;
            progress(u64::from_le_bytes(bytes));
            continue;
        }
        let mut outcome = Vec::new();
        hear.read_to_end(&mut outcome)?;
        return Ok(outcome);
    }
}
