//! The images of a state directory: `$AIRLOCK_HOME/images`.
//!
//! ```text
//! boot                     which boot of this machine what has no mark belongs to ([`settle`])
//! lock                     shared: somebody adds or is about to use something; exclusive: what nobody needs is collected
//! index.json               the records of images, replaced whole; index.lock: who changes it
//! blobs/sha256/<hex>       manifests, configs and layers as they came; only checked content has this name
//! incoming/<hex>           a download under way, locked by who downloads it, gone on with later
//! layers/<hex>/<ids>/      {layer.json, tree/}: a layer unpacked for one map of ids
//! signatures/<hex>.json    what was found good for a manifest or an index, as `cosign download signature` prints it
//! ```
//!
//! Nothing is ever changed where it is seen: it is made under another name and renamed when it is whole. So whoever is
//! killed leaves nothing that looks finished, and what it leaves is found by its name and deleted by [`Store::collect`].
//! What a power cut may have torn is thrown away by whoever comes first after it: [`Hold::settle`].
//!
//! Whoever adds content keeps a [`Hold`] until a record, or a sandbox's spec, names it; while one is kept, nothing is
//! collected. All writing is a method of [`Hold`], so none can be forgotten.
//!
//! ```no_run
//! # use airlock_images::store::{Store, Record, Error}; use std::path::Path;
//! let store = Store::open(Path::new("/home/ada/.airlock"))?;
//! for image in store.list()? {
//!     println!("{} {:?}", image.id, image.names);
//! }
//! let hold = store.hold()?;
//! let config = hold.put(b"{}")?;
//! # Ok::<(), Error>(())
//! ```

mod blobs;
mod collect;
mod error;
mod image;
mod incoming;
mod layers;
mod lock;
mod records;
mod settle;
mod sizes;
mod unpack;

pub use collect::{Collected, Which};
pub use error::Error;
pub use image::{Image, Step};
pub use incoming::{Arrival, Incoming, Spool};
pub use layers::{Begun, Made, Making, Wait};
pub use records::{Kind, Record, Untagged};
pub use sizes::{Share, Usage};

use std::{
    fs, io,
    ops::Deref,
    os::unix::fs::DirBuilderExt as _,
    path::{Path, PathBuf},
    sync::Arc,
};

use error::failed;
use lock::Lock;

/// The images of one state directory. Cheap to clone; holds nothing open.
#[derive(Debug, Clone)]
pub struct Store {
    folder: PathBuf,
}

/// While it is kept, nothing is collected. Several may keep one, also in one process.
#[derive(Debug, Clone)]
pub struct Hold {
    store: Store,
    _lock: Arc<Lock>,
}

impl Store {
    /// The images below the state directory `home`, which must be checked to be this user's own.
    pub fn open(home: &Path) -> Result<Self, Error> {
        let store = Self { folder: home.join("images") };
        // The last one stands where all do.
        if store.layers().is_dir() {
            return Ok(store);
        }
        for folder in [store.folder.clone(), store.blobs(), store.folder.join("incoming"), store.layers()] {
            let made = fs::DirBuilder::new().mode(0o700).recursive(true).create(&folder);
            made.map_err(failed("make", &folder))?;
        }
        Ok(store)
    }

    /// Keeps what is there from being collected. Waits while something is.
    pub fn hold(&self) -> Result<Hold, Error> {
        self.look_after_boot()?;
        let lock = Lock::shared(&self.folder.join("lock"))?;
        Ok(Hold { store: self.clone(), _lock: Arc::new(lock) })
    }

    /// A file without a name on the file system of images, for what is only on its way.
    pub fn unnamed(&self) -> Result<fs::File, Error> {
        use rustix::fs::{Mode, OFlags};
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        let file = rustix::fs::open(&self.folder, flags, Mode::RUSR | Mode::WUSR);
        file.map(fs::File::from).map_err(|err| failed("make a file in", &self.folder)(err.into()))
    }

    /// Where it is.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    fn blobs(&self) -> PathBuf {
        self.folder.join("blobs").join("sha256")
    }

    fn layers(&self) -> PathBuf {
        self.folder.join("layers")
    }

    pub(crate) fn signatures(&self) -> PathBuf {
        self.folder.join("signatures")
    }
}

impl Deref for Hold {
    type Target = Store;

    fn deref(&self) -> &Store {
        &self.store
    }
}

/// A name that nobody else has.
fn fresh(mark: &str) -> io::Result<String> {
    let mut bytes = [0u8; 8];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    Ok(format!(".{mark}-{}", data_encoding::HEXLOWER.encode(&bytes)))
}

#[cfg(test)]
mod tests;
