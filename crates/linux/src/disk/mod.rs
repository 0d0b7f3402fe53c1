//! Bounding what a sandbox can write, in bytes and in files, and seeing how much it has written.
//!
//! Host root gets a hard bound: a project quota where the file system has it, else an ext4 image on a loop device. Either
//! way the caller receives a detached mount, visible nowhere on the host until it is attached somewhere. An image's loop
//! device clears itself: when the last holder of the mount is gone, by whatever death, nothing stays.
//!
//! ```no_run
//! use std::path::Path;
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let disk = airlock_linux::disk::open_limited(Path::new("/state/sandboxes/7f3a"), 1 << 30, Path::new("/state/templates"))?;
//! println!("bounded by {:?}", disk.backing);
//! # Ok(()) }
//! ```

mod copy;
mod image;
mod loops;
mod quota;
#[cfg(test)]
mod tests;
mod usage;

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

pub use copy::sparse as copy_contents;
pub use usage::{Free, Usage, free, reserve, usage};

/// The smallest bound taken: below it a file system has no room for anything but itself.
pub const SMALLEST: u64 = 4 << 20;

/// One file per this many bytes, as ext4 itself does it.
const BYTES_PER_FILE: u64 = 16 << 10;

/// What enforces the bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Backing {
    /// The quota of the host's file system.
    ProjectQuota,
    /// A file system in a file.
    LoopImage,
}

/// A tree that cannot grow beyond its bound.
#[derive(Debug)]
pub struct Limited {
    /// Its root as a detached mount with `nosuid` and `nodev`; it goes with the last descriptor or mount
    /// namespace that has it (this value counts as one, also when `mount` was attached elsewhere).
    pub mount: OwnedFd,
    /// What bounds it.
    pub backing: Backing,
    device: Option<OwnedFd>,
}

/// Why a bounded tree could not be had.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The bound asked for is below [`SMALLEST`].
    #[error("a disk of {bytes} bytes is too small: at least {SMALLEST} are needed")]
    TooSmall {
        /// What was asked for.
        bytes: u64,
    },
    /// The sandbox has a disk of another size already.
    #[error("{path} has {found} bytes, not the {asked} asked for")]
    OtherSize {
        /// The image.
        path: PathBuf,
        /// What was asked for, in whole blocks.
        asked: u64,
        /// What is there.
        found: u64,
    },
    /// Another process still has this disk mounted.
    #[error("{path} is in use")]
    InUse {
        /// The image.
        path: PathBuf,
    },
    /// `mkfs.ext4` or `e2fsck` could not be run.
    #[error("could not run {program}")]
    Program {
        /// Which program.
        program: &'static str,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// `mkfs.ext4` or `e2fsck` ended with an error.
    #[error("{program} failed on {path}: {said}")]
    Failed {
        /// Which program.
        program: &'static str,
        /// On which file.
        path: PathBuf,
        /// Its last line.
        said: String,
    },
    /// There is no file system in the image.
    #[error("{path} does not hold a file system")]
    Damaged {
        /// The image.
        path: PathBuf,
    },
    /// No loop device could be had.
    #[error("could not attach {path} to a loop device")]
    Loop {
        /// The image.
        path: PathBuf,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
    /// The file system could not be mounted.
    #[error("could not mount {path}")]
    Mount {
        /// The image or directory.
        path: PathBuf,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
    /// The quota could not be set.
    #[error("could not set a project quota on {path}")]
    Quota {
        /// The directory.
        path: PathBuf,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
    /// A file or directory could not be made, read or copied.
    #[error("could not {action} {path}")]
    File {
        /// What we tried.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
}

impl Limited {
    /// Writes past the host's page cache from now on: nothing is held in memory twice, and large writes become two to four times
    /// as fast. It waits for the disk (about 10 ms), and so does the end of the mount then: not worth it for a sandbox that
    /// lives for a second. Does nothing where there is no image.
    ///
    /// # Errors
    /// If the file system that holds the image cannot do it; all stays as it was.
    pub fn write_directly(&self) -> io::Result<()> {
        self.device.as_ref().map_or(Ok(()), loops::set_direct)
    }
}

impl Error {
    /// One command or step after which it works, where there is one.
    #[must_use]
    pub fn fix(&self) -> Option<String> {
        match self {
            Self::Program { .. } => Some("apt-get install e2fsprogs".to_owned()),
            Self::Loop { source, .. } if source.kind() == io::ErrorKind::NotFound => {
                Some("modprobe loop".to_owned())
            }
            Self::Loop { source, .. } if source.kind() == io::ErrorKind::PermissionDenied => {
                Some("run as root, or use --disk SIZE,tmpfs or --disk SIZE,watched".to_owned())
            }
            Self::TooSmall { .. } => Some(format!("--disk {}M", SMALLEST >> 20)),
            Self::Failed { program: "e2fsck", path, .. } => Some(format!("e2fsck -f {}", path.display())),
            _ => None,
        }
    }
}

/// The smallest disk of a machine: its journal alone takes 4 MB.
pub const SMALLEST_OF_MACHINE: u64 = 16 << 20;

/// Opens the disk of a machine at `path`: a file of so many bytes, made on first use with an empty ext4 in it, locked as long as it
/// is open. This host never mounts it. `template_dir` (made if missing) keeps one empty image per size.
///
/// # Errors
/// [`Error`] if `mkfs.ext4` is missing, the disk is in use or has another size.
pub fn open_of_machine(path: &Path, bytes: u64, template_dir: &Path) -> Result<std::fs::File, Error> {
    if bytes < SMALLEST_OF_MACHINE {
        return Err(Error::TooSmall { bytes });
    }
    image::of_machine(path, bytes, template_dir)
}

/// Which bound [`open_limited`] would use for a sandbox kept in `dir`.
#[must_use]
pub fn backing(dir: &Path) -> Backing {
    if !dir.join(image::NAME).exists() && quota::is_enforced(dir) {
        Backing::ProjectQuota
    } else {
        Backing::LoopImage
    }
}

/// Opens the bounded tree of the sandbox kept in `dir`, which is made on first use and found again later. The tree's root
/// belongs to root. `template_dir` (made if missing) keeps one empty image per size.
///
/// # Errors
/// [`Error`] if the caller is not host root, lacks a program, or the host has neither quota nor loop devices.
pub fn open_limited(dir: &Path, bytes: u64, template_dir: &Path) -> Result<Limited, Error> {
    if bytes < SMALLEST {
        return Err(Error::TooSmall { bytes });
    }
    let backing = backing(dir);
    match backing {
        Backing::ProjectQuota => Ok(Limited { mount: quota::open(dir, bytes)?, backing, device: None }),
        Backing::LoopImage => {
            let (path, file) = image::prepare(dir, bytes, template_dir)?;
            let (mount, device) = loops::mount(&path, &file)?;
            Ok(Limited { mount, backing, device: Some(device) })
        }
    }
}
