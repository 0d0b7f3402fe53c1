//! Content by its digest.

use std::{
    fs::File,
    io::{self, Read as _},
    path::PathBuf,
};

use serde::de::DeserializeOwned;

use super::{Error, Hold, Store, error::failed};
use crate::{digest::Digest, manifest};

impl Store {
    /// Whether this content is here.
    pub fn has_blob(&self, digest: &Digest) -> bool {
        self.blob_path(digest).is_file()
    }

    /// How many bytes it has, if it is here.
    pub fn blob_size(&self, digest: &Digest) -> Option<u64> {
        Some(self.blob_path(digest).metadata().ok()?.len())
    }

    /// This content. It was checked when it came.
    pub fn open_blob(&self, digest: &Digest) -> Result<File, Error> {
        let path = self.blob_path(digest);
        match File::open(&path) {
            Ok(file) => Ok(file),
            Err(err) if err.kind() == io::ErrorKind::NotFound => Err(Error::Missing(*digest)),
            Err(err) => Err(failed("open", &path)(err)),
        }
    }

    /// This content whole, checked again, if it has at most so many bytes.
    pub fn read_blob(&self, digest: &Digest, most: u64) -> Result<Vec<u8>, Error> {
        let mut bytes = Vec::new();
        let file = self.open_blob(digest)?;
        file.take(most.saturating_add(1))
            .read_to_end(&mut bytes)
            .map_err(failed("read", &self.blob_path(digest)))?;
        if u64::try_from(bytes.len()).unwrap_or(u64::MAX) > most {
            return Err(Error::Long { digest: *digest, most });
        }
        match Digest::of(&bytes) {
            found if found == *digest => Ok(bytes),
            found => Err(Error::Differs { wanted: *digest, found }),
        }
    }

    /// Where it is, or would be.
    pub fn blob_path(&self, digest: &Digest) -> PathBuf {
        self.blobs().join(digest.hex())
    }

    /// A small blob that is JSON.
    pub(super) fn read_json<T: DeserializeOwned>(&self, digest: &Digest) -> Result<T, Error> {
        let bytes = self.read_blob(digest, manifest::MOST_BYTES)?;
        serde_json::from_slice(&bytes)
            .map_err(|source| Error::Unreadable { path: self.blob_path(digest), source })
    }
}

impl Hold {
    /// Adds small content.
    pub fn put(&self, bytes: &[u8]) -> Result<Digest, Error> {
        let digest = Digest::of(bytes);
        let most = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        if self.blob_size(&digest) == Some(most) && self.read_blob(&digest, most).is_ok() {
            return Ok(digest);
        }
        let mut spool = self.spool()?;
        spool.append(bytes)?;
        spool.finish()
    }
}
