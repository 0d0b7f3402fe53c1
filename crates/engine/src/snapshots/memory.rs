//! The memory of a machine that ran when its snapshot was made.
//!
//! ```text
//! snapshots/<id>/{memory,memory.json,memory.key}     kept with a snapshot
//! sandboxes/<id>/{memory,memory.json,memory.key}     what a sandbox goes on from at its next start
//! snapshots/memory-<pid>/…                           being made by this process
//! ```
//!
//! All are names of the same files, which nobody writes to any more.

use super::{
    layers::{entries, make},
    refused,
};
use crate::store::{self, Store};
use airlock_protocol::control::Refusal;
use std::{
    fs::{self, File},
    io,
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    sync::Arc,
};

/// The name of the file with the memory.
pub const MEMORY: &str = "memory";
/// What is known of the machine outside.
const KNOWN: &str = "memory.json";
/// Which machine can go on from it.
const KEY: &str = "memory.key";
const MAKING: &str = "memory-";

/// A folder that has these files.
#[derive(Debug, Clone)]
pub struct Memory {
    folder: Arc<Folder>,
}

#[derive(Debug)]
struct Folder {
    path: PathBuf,
    /// Goes with this process.
    is_temporary: bool,
}

impl Drop for Folder {
    fn drop(&mut self) {
        if self.is_temporary {
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}

impl Memory {
    /// Room for one, which goes when nobody holds this any more.
    pub fn begin(store: &Store) -> Result<Memory, Refusal> {
        let folder = super::kept::folder(store);
        make(&folder)?;
        for name in entries(&folder)? {
            // Its maker was killed.
            let is_left = |pid: &str| !Path::new("/proc").join(pid).exists();
            if name.strip_prefix(MAKING).is_some_and(is_left) {
                let _ = fs::remove_dir_all(folder.join(&name));
            }
        }
        let path = folder.join(format!("{MAKING}{}", std::process::id()));
        make(&path)?;
        Ok(Memory { folder: Arc::new(Folder { path, is_temporary: true }) })
    }

    /// The one that is in a folder, if there is one.
    #[must_use]
    pub fn in_folder(path: &Path) -> Option<Memory> {
        let folder = Folder { path: path.to_owned(), is_temporary: false };
        path.join(KEY).exists().then(|| Memory { folder: Arc::new(folder) })
    }

    /// The file of the memory, to be written.
    pub fn create(&self) -> Result<File, Refusal> {
        self.file(MEMORY)
    }

    /// The file of what is known outside, to be written.
    pub fn create_known(&self) -> Result<File, Refusal> {
        self.file(KNOWN)
    }

    /// It is whole, and for machines with this key.
    pub fn finish(&self, key: &str) -> Result<(), Refusal> {
        let path = self.folder.path.join(KEY);
        fs::write(&path, key).map_err(|err| refused(&store::failed("write", &path)(err)))
    }

    /// Puts it into another folder too. Nothing is copied.
    pub fn share(&self, folder: &Path) -> Result<(), store::Error> {
        for name in [MEMORY, KNOWN, KEY] {
            let (from, to) = (self.folder.path.join(name), folder.join(name));
            let linked = fs::hard_link(&from, &to).or_else(|_| fs::copy(&from, &to).map(drop));
            linked.map_err(store::failed("link", &to))?;
        }
        Ok(())
    }

    fn file(&self, name: &str) -> Result<File, Refusal> {
        let path = self.folder.path.join(name);
        let opened = File::options().write(true).create_new(true).mode(0o600).open(&path);
        opened.map_err(|err: io::Error| refused(&store::failed("make", &path)(err)))
    }
}
