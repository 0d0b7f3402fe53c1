//! Where what was copied is meant to go, as `cp` and docker have it.
//!
//! | destination | a file | a directory | `DIR/.`, its contents |
//! |---|---|---|---|
//! | a directory | into it | into it | into it, merged |
//! | a file | replaces it | refused | refused |
//! | nothing, its parent is there | under this name | under this name | under this name |
//! | nothing, written with `/` at its end | refused | under this name | under this name |

use crate::{Error, failed, words};
use rustix::{
    fs::{AtFlags, FileType, Mode, OFlags},
    io::Errno,
};
use std::{
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::{Component, Path, PathBuf},
};

/// Where an archive is unpacked.
#[derive(Debug)]
pub enum Place {
    /// Into this directory: its own entry is the directory itself.
    Into(OwnedFd),
    /// Under this name.
    As {
        /// In this directory.
        parent: OwnedFd,
        /// The name: one part of a path.
        name: PathBuf,
        /// Whether only a directory is meant.
        directory_only: bool,
    },
}

/// Finds the place that `destination`, meant from `root`, is. `name` is what is copied; without it, the contents of a
/// directory are. Links on the way are followed by whoever calls, or do not matter: `open` opens a directory.
pub fn find(
    destination: &Path,
    name: Option<&Path>,
    open: &dyn Fn(&Path) -> Result<OwnedFd, Errno>,
) -> Result<Place, Error> {
    match (open(destination), name) {
        (Ok(directory), None) => return Ok(Place::Into(directory)),
        (Ok(directory), Some(name)) => {
            return Ok(Place::As { parent: directory, name: name.to_owned(), directory_only: false });
        }
        (Err(Errno::NOENT | Errno::NOTDIR), _) => {}
        (Err(errno), _) => return Err(failed("open", destination)(errno)),
    }
    let refused = |why| Error::Place { name: words(destination.as_os_str()), why };
    let Some(Component::Normal(own)) = destination.components().next_back() else {
        return Err(refused("is not there"));
    };
    let above = destination.parent().filter(|parent| !parent.as_os_str().is_empty());
    let parent = open(above.unwrap_or(Path::new("."))).map_err(|errno| match errno {
        Errno::NOENT => refused("is in a directory that is not there"),
        errno => failed("open the directory of", destination)(errno),
    })?;
    let directory_only = destination.as_os_str().as_encoded_bytes().ends_with(b"/");
    Ok(Place::As { parent, name: PathBuf::from(own), directory_only })
}

/// Opens a directory as a place, with links followed.
pub fn open_directory(at: BorrowedFd<'_>, path: &Path) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::openat(at, path, flags, Mode::empty())
}

impl Place {
    /// Refuses what cannot be put here, before anything is.
    pub(crate) fn fits(&self, is_directory: bool) -> Result<(), Error> {
        let Place::As { parent, name, directory_only } = self else {
            return match is_directory {
                true => Ok(()),
                false => {
                    Err(Error::Place { name: ".".into(), why: "is a directory, and what is copied is none" })
                }
            };
        };
        let refused = |why| Err(Error::Place { name: words(name.as_os_str()), why });
        let there = rustix::fs::statat(parent.as_fd(), name, AtFlags::SYMLINK_NOFOLLOW);
        let there = there.ok().map(|stat| FileType::from_raw_mode(stat.st_mode));
        match (is_directory, there) {
            (false, _) if *directory_only => refused("is no directory, as the `/` at its end says"),
            (false, Some(FileType::Directory)) => refused("is a directory, and what is copied is none"),
            (true, Some(FileType::Directory) | None) | (false, _) => Ok(()),
            (true, Some(_)) => refused("is no directory, and what is copied is one"),
        }
    }
}
