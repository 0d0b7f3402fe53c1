//! What a power cut may tear, and what it cannot any more.
//!
//! Content gets its name as soon as it is whole: that says that the kernel has all of it, and other commands use it at once. What the
//! disk has too is *settled*: after one `syncfs` nobody may write it any more (mode 0400), which is the mark. An image that a
//! person wanted is recorded, and a tree is named by a sandbox, when they are settled; a build's own steps are not waited for.
//!
//! What has no mark counts as long as this machine runs. The first command after it started anew looks at it: a blob is compared
//! with its digest, and a tree is thrown away, to be made again. Which boot it was stands in the file `boot`.

use std::{
    fs::{self, File},
    io::{self, Write as _},
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use super::{
    Error, Hold, Image, Store,
    collect::entries,
    error::failed,
    layers::{delete, hide_in, is_hidden},
    lock::Lock,
};
use crate::digest::{Digest, Hasher};

/// Which time it is that this machine runs (random(4)).
const BOOT: &str = "/proc/sys/kernel/random/boot_id";
/// Nobody may write it, because it is on the disk.
const SETTLED: u32 = 0o400;
const WRITES: u32 = 0o222;

/// What is known of a store that was used before this boot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Past {
    /// It is new, or no marks were made then: what is there is taken as it is.
    Unmarked,
    /// What has no mark may be torn.
    AnotherBoot,
}

impl Hold {
    /// Waits until all that an image has here is on the disk. Quick where it is already.
    pub fn settle(&self, image: &Image) -> Result<(), Error> {
        let small = [self.blob_path(&image.id), self.blob_path(&image.manifest_digest)];
        let layers = image.layers.iter().flat_map(|(layer, diff)| {
            let trees = self.trees(diff).into_iter().map(|(folder, _)| folder.join("layer.json"));
            std::iter::once(self.blob_path(&layer.digest)).chain(trees)
        });
        self.settle_these(small.into_iter().chain(layers).filter(|path| is_open(path)).collect())
    }

    /// The same for these trees of layers, as [`Store::layer`] names them.
    pub fn settle_trees(&self, trees: &[PathBuf]) -> Result<(), Error> {
        let told = trees.iter().filter_map(|tree| Some(tree.parent()?.join("layer.json")));
        self.settle_these(told.filter(|path| is_open(path)).collect())
    }

    fn settle_these(&self, open: Vec<PathBuf>) -> Result<(), Error> {
        if open.is_empty() {
            return Ok(());
        }
        let unsynced = |err: io::Error| failed("wait for the disk of", self.folder())(err);
        let folder = File::open(self.folder()).map_err(unsynced)?;
        rustix::io::retry_on_intr(|| rustix::fs::syncfs(&folder)).map_err(|err| unsynced(err.into()))?;
        open.iter().for_each(|path| mark(path));
        Ok(())
    }
}

impl Store {
    /// Throws away what a power cut may have torn, once after each boot.
    pub(super) fn look_after_boot(&self) -> Result<(), Error> {
        // Where it cannot be told, no other boot can be told from this one.
        let Ok(now) = fs::read(BOOT) else { return Ok(()) };
        self.look_after(&now)
    }

    pub(super) fn look_after(&self, now: &[u8]) -> Result<(), Error> {
        if self.boot().is_some_and(|then| then == now) {
            return Ok(());
        }
        let _lock = Lock::exclusive(&self.folder().join("lock"))?;
        let past = match self.boot() {
            Some(then) if then == now => return Ok(()),
            Some(_) => Past::AnotherBoot,
            None => Past::Unmarked,
        };
        self.look_at_blobs(past)?;
        self.look_at_trees(past)?;
        self.write_boot(now).map_err(failed("write", &self.folder().join("boot")))
    }

    /// Whether this content is what its name says; what is not is thrown away, and can be fetched again.
    pub fn check_blob(&self, digest: &Digest) -> Result<(), Error> {
        let path = self.blob_path(digest);
        let read = || -> io::Result<Digest> {
            let mut hasher = Hasher::new();
            io::copy(&mut File::open(&path)?, &mut hasher)?;
            Ok(hasher.finish())
        };
        match read() {
            Ok(found) if found == *digest => Ok(()),
            Ok(found) => {
                // Whoever is quicker throws away the same.
                let _ = fs::remove_file(&path);
                Err(Error::Damaged { wanted: *digest, found })
            }
            Err(err) if err.kind() == io::ErrorKind::NotFound => Err(Error::Missing(*digest)),
            Err(err) => Err(failed("read", &path)(err)),
        }
    }

    fn boot(&self) -> Option<Vec<u8>> {
        fs::read(self.folder().join("boot")).ok()
    }

    /// It must be there before anything that has no mark.
    fn write_boot(&self, now: &[u8]) -> io::Result<()> {
        let (new, path) = (self.folder().join("boot.next"), self.folder().join("boot"));
        let mut file = File::create(&new)?;
        file.write_all(now)?;
        file.sync_data()?;
        fs::rename(&new, &path)?;
        File::open(self.folder())?.sync_all()
    }

    fn look_at_blobs(&self, past: Past) -> Result<(), Error> {
        for path in entries(&self.blobs())?.iter().filter(|path| is_open(path)) {
            let name = path.file_name().and_then(|name| name.to_str());
            let Some(digest) = name.and_then(Digest::from_hex) else { continue };
            match past {
                Past::Unmarked => mark(path),
                Past::AnotherBoot => match self.check_blob(&digest) {
                    Ok(()) => mark(path),
                    Err(Error::Damaged { .. } | Error::Missing(_)) => {}
                    Err(err) => return Err(err),
                },
            }
        }
        Ok(())
    }

    fn look_at_trees(&self, past: Past) -> Result<(), Error> {
        let layers = entries(&self.layers())?.into_iter().filter(|layer| !is_hidden(layer) && layer.is_dir());
        for layer in layers {
            for folder in entries(&layer)?.iter().filter(|folder| !is_hidden(folder)) {
                let told = folder.join("layer.json");
                match (is_settled(&told), past) {
                    (true, _) => {}
                    (false, Past::Unmarked) => mark(&told),
                    (false, Past::AnotherBoot) => {
                        // What cannot be deleted now is out of sight, and tried again when something is collected.
                        let _ = delete(&hide_in(folder, &self.layers())?);
                    }
                }
            }
        }
        Ok(())
    }
}

/// Whether it is there, and not marked.
fn is_open(path: &Path) -> bool {
    path.metadata().is_ok_and(|found| found.permissions().mode() & WRITES != 0)
}

fn is_settled(path: &Path) -> bool {
    path.metadata().is_ok_and(|found| found.permissions().mode() & WRITES == 0)
}

/// Without a mark it is only looked at once more.
fn mark(path: &Path) {
    let _ = fs::set_permissions(path, fs::Permissions::from_mode(SETTLED));
}
