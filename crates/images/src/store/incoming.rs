//! Content that is on its way: what is known to come ([`Incoming`]), and what gets its name from what it is ([`Spool`]).

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read as _, Seek as _, SeekFrom, Write},
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use super::{Error, Hold, error::failed, fresh};
use crate::digest::{Digest, Hasher};

/// What asking for content that is to come leads to.
#[derive(Debug)]
pub enum Arrival {
    /// It is here.
    There,
    /// Somebody else is at it: ask again.
    Busy,
    /// It is for us to get.
    Ours(Incoming),
}

/// Content on its way. What is there of it stays when it is dropped, and whoever asks next goes on with it.
#[derive(Debug)]
pub struct Incoming {
    hold: Hold,
    digest: Digest,
    size: u64,
    file: File,
    hasher: Hasher,
}

/// Content whose digest is known when all of it has come. Dropped before, it is gone.
#[derive(Debug)]
pub struct Spool {
    hold: Hold,
    path: PathBuf,
    file: File,
    hasher: Hasher,
}

/// Bytes that are read at a time.
const PIECE: usize = 256 << 10;

impl Hold {
    /// The right to get this content of `size` bytes, unless it is here or another process gets it.
    pub fn incoming(&self, digest: &Digest, size: u64) -> Result<Arrival, Error> {
        self.arrival(digest, size, FlockOperation::NonBlockingLockExclusive)
    }

    /// As [`Hold::incoming`], but waits for whoever is at it: never [`Arrival::Busy`].
    pub fn wait_incoming(&self, digest: &Digest, size: u64) -> Result<Arrival, Error> {
        self.arrival(digest, size, FlockOperation::LockExclusive)
    }

    /// For content whose digest is not known yet.
    pub fn spool(&self) -> Result<Spool, Error> {
        let folder = self.folder().join("incoming");
        let name = fresh("new").map_err(failed("name a file in", &folder))?;
        let path = folder.join(name);
        let mut how = OpenOptions::new();
        let file = how.read(true).write(true).create_new(true).mode(0o600).open(&path);
        let file = file.map_err(failed("make", &path))?;
        Ok(Spool { hold: self.clone(), path, file, hasher: Hasher::new() })
    }

    fn arrival(&self, digest: &Digest, size: u64, how: FlockOperation) -> Result<Arrival, Error> {
        let path = self.folder().join("incoming").join(digest.hex());
        loop {
            // One of another length is what a power cut left of it.
            if self.blob_size(digest) == Some(size) {
                return Ok(Arrival::There);
            }
            let mut open = OpenOptions::new();
            let file = open.read(true).write(true).create(true).truncate(false).mode(0o600).open(&path);
            let file = file.map_err(failed("open", &path))?;
            match rustix::io::retry_on_intr(|| flock(&file, how)) {
                Ok(()) => {}
                Err(Errno::WOULDBLOCK) => return Ok(Arrival::Busy),
                Err(errno) => return Err(failed("lock", &path)(errno.into())),
            }
            // Whoever had the lock before may have finished: then this is the blob, or nothing any more.
            if !is_at(&file, &path) {
                continue;
            }
            if self.blob_size(digest) == Some(size) {
                let _ = fs::remove_file(&path);
                return Ok(Arrival::There);
            }
            let mut incoming =
                Incoming { hold: self.clone(), digest: *digest, size, file, hasher: Hasher::new() };
            incoming.take_in()?;
            return Ok(Arrival::Ours(incoming));
        }
    }
}

impl Incoming {
    /// How many bytes are there: the next one is asked for.
    pub fn length(&self) -> u64 {
        self.hasher.bytes()
    }

    /// How many bytes there will be.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// What it is.
    pub fn digest(&self) -> &Digest {
        &self.digest
    }

    /// Adds the next bytes. More than were announced are refused.
    pub fn append(&mut self, bytes: &[u8]) -> Result<(), Error> {
        let more = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        if self.length().saturating_add(more) > self.size {
            return Err(Error::Long { digest: self.digest, most: self.size });
        }
        self.file.write_all(bytes).map_err(failed("write", &self.path()))?;
        self.hasher.update(bytes);
        Ok(())
    }

    /// Forgets what is there: it cannot be gone on with.
    pub fn restart(&mut self) -> Result<(), Error> {
        let path = self.path();
        self.file.set_len(0).map_err(failed("empty", &path))?;
        self.file.rewind().map_err(failed("rewind", &path))?;
        self.hasher = Hasher::new();
        Ok(())
    }

    /// Checks it and gives it its name. What is wrong is thrown away; what is short stays, to be gone on with.
    pub fn finish(mut self) -> Result<(), Error> {
        if self.length() < self.size {
            return Err(Error::Short { digest: self.digest, size: self.size, found: self.length() });
        }
        let found = std::mem::take(&mut self.hasher).finish();
        if found != self.digest {
            self.restart()?;
            return Err(Error::Differs { wanted: self.digest, found });
        }
        let path = self.path();
        fs::rename(&path, self.hold.blob_path(&self.digest)).map_err(failed("finish", &path))
    }

    /// Reads what is there already. More than there can be is nothing.
    fn take_in(&mut self) -> Result<(), Error> {
        let path = self.path();
        let length = self.file.metadata().map_err(failed("look at", &path))?.len();
        if length > self.size {
            return self.restart();
        }
        let mut piece = vec![0u8; PIECE];
        loop {
            match self.file.read(&mut piece) {
                Ok(0) => break,
                Ok(count) => self.hasher.update(piece.get(..count).unwrap_or_default()),
                Err(err) if err.kind() == io::ErrorKind::Interrupted => {}
                Err(err) => return Err(failed("read", &path)(err)),
            }
        }
        Ok(())
    }

    fn path(&self) -> PathBuf {
        self.hold.folder().join("incoming").join(self.digest.hex())
    }
}

impl Spool {
    /// Adds the next bytes.
    pub fn append(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.write_all(bytes).map_err(failed("write", &self.path))
    }

    /// How many bytes are there.
    pub fn length(&self) -> u64 {
        self.hasher.bytes()
    }

    /// Gives it the name of its digest.
    pub fn finish(mut self) -> Result<Digest, Error> {
        let digest = std::mem::take(&mut self.hasher).finish();
        fs::rename(&self.path, self.hold.blob_path(&digest)).map_err(failed("finish", &self.path))?;
        Ok(digest)
    }

    /// As [`Spool::finish`], if it is this content.
    pub fn finish_as(mut self, wanted: &Digest) -> Result<(), Error> {
        let found = std::mem::take(&mut self.hasher).finish();
        if found != *wanted {
            return Err(Error::Differs { wanted: *wanted, found });
        }
        fs::rename(&self.path, self.hold.blob_path(wanted)).map_err(failed("finish", &self.path))
    }

    /// What has come, as a file without a name, read from its beginning.
    pub fn into_file(self) -> Result<File, Error> {
        let mut file = self.file.try_clone().map_err(failed("read", &self.path))?;
        file.seek(SeekFrom::Start(0)).map_err(failed("read", &self.path))?;
        Ok(file)
    }
}

impl Write for Spool {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.file.write(bytes)?;
        self.hasher.update(bytes.get(..count).unwrap_or_default());
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Drop for Spool {
    fn drop(&mut self) {
        // After it was given its name there is nothing left here.
        let _ = fs::remove_file(&self.path);
    }
}

/// Whether an open file is still what stands at a path.
pub(super) fn is_at(file: &File, path: &Path) -> bool {
    let (Ok(open), Ok(there)) = (file.metadata(), fs::symlink_metadata(path)) else { return false };
    (open.dev(), open.ino()) == (there.dev(), there.ino())
}
