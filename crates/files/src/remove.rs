//! Deleting a tree, whatever a program left there.
//!
//! The tree is hostile: symbolic links are never followed, other file systems never entered, directories without
//! permissions are opened up first, and depth costs neither stack nor descriptors: a directory that is not empty is
//! moved to the top and emptied there. Two processes may delete the same tree: what is gone already is fine.

use airlock_linux::{
    clone::{self, Namespaces, Side},
    idmap::IdMap,
    spawn,
};
use rustix::{
    fs::{AtFlags, Dir, FileType, Mode, OFlags, RenameFlags, ResolveFlags, openat2, renameat_with, unlinkat},
    io::Errno,
};
use std::{
    ffi::{CStr, CString},
    io::{self, Read as _, Write as _},
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
};

/// What stood in the way of deleting a tree.
#[derive(Debug, thiserror::Error)]
pub enum Blocked {
    /// Files of another user: of the sandbox's own id range, where this user is not root.
    #[error("{name:?} belongs to an id of the sandbox, which only its id map may delete")]
    Foreign {
        /// The first one met.
        name: String,
    },
    /// Anything else.
    #[error("could not delete {name:?}")]
    Io {
        /// The first one met.
        name: String,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
}

/// Deletes a tree from inside a user namespace with the sandbox's ids.
pub fn remove_with(path: &Path, ids: &IdMap) -> Result<(), Blocked> {
    as_ids(ids, || spawn::become_user(0, 0, &[]).is_ok() && remove_tree(path).is_ok())
        .map_err(|source| Blocked::Io { name: path.display().to_string(), source })?;
    remove_tree(path)
}

/// Does something in a process of its own, in a user namespace with these ids. `false` if it failed there.
pub fn as_ids(ids: &IdMap, act: impl FnOnce() -> bool) -> io::Result<bool> {
    let (mut wait, mut go) = io::pipe()?;
    let child = match clone::fork(Namespaces::USER, None)? {
        Side::Parent(child) => child,
        Side::Child => {
            drop(go);
            let told = wait.read_exact(&mut [0u8; 1]).is_ok();
            clone::exit_now(i32::from(!(told && act())));
        }
    };
    drop(wait);
    let mapped = ids.write(child.pid).map_err(io::Error::other);
    if mapped.is_ok() {
        let _ = go.write_all(b"g");
    }
    drop(go);
    let ended = child.wait()?;
    mapped?;
    Ok(ended.exit_status() == Some(0))
}

/// How often a tree that another process deletes too is looked through.
const PASSES: usize = 100;

/// Deletes the directory `path` and everything below it. Done already if it is not there.
pub fn remove_tree(path: &Path) -> Result<(), Blocked> {
    let named = |errno: Errno| blocked(path.as_os_str().as_encoded_bytes(), errno);
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let top = match rustix::fs::open(path, flags, Mode::empty()) {
        Ok(top) => top,
        Err(Errno::NOENT) => return Ok(()),
        Err(errno) => return Err(named(errno)),
    };
    for _ in 0..PASSES {
        Removal { top: top.as_fd(), waiting: Vec::new(), moved: 0 }.empty()?;
        match rustix::fs::rmdir(path) {
            Ok(()) | Err(Errno::NOENT) => return Ok(()),
            // Another process deletes the same tree and has moved something to its top meanwhile.
            Err(Errno::NOTEMPTY | Errno::EXIST) => {}
            Err(errno) => return Err(named(errno)),
        }
    }
    Err(named(Errno::NOTEMPTY))
}

/// Bytes of disk that a folder takes, as far as this user can see. Symbolic links are not followed.
pub fn disk_usage(path: &Path) -> u64 {
    let mut waiting = vec![path.to_owned()];
    let mut bytes = 0u64;
    while let Some(path) = waiting.pop() {
        let Ok(found) = rustix::fs::lstat(&path) else { continue };
        bytes = bytes.saturating_add(u64::try_from(found.st_blocks).unwrap_or(0).saturating_mul(512));
        if FileType::from_raw_mode(found.st_mode) == FileType::Directory {
            waiting.extend(entries_of(&path));
        }
    }
    bytes
}

fn entries_of(path: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(path) else { return Vec::new() };
    entries.flatten().map(|entry| entry.path()).collect()
}

/// One deletion under way: directories at the top that are still to be emptied.
struct Removal<'a> {
    top: BorrowedFd<'a>,
    waiting: Vec<CString>,
    moved: u64,
}

/// A directory being emptied.
#[derive(Clone, Copy)]
enum Place<'a> {
    Top(BorrowedFd<'a>),
    Below(BorrowedFd<'a>),
}

impl Removal<'_> {
    fn empty(mut self) -> Result<(), Blocked> {
        self.empty_directory(Place::Top(self.top))?;
        while let Some(name) = self.waiting.pop() {
            let directory = match self.open(&name) {
                Err(Errno::NOENT) => continue,
                other => other.map_err(|errno| blocked(name.to_bytes(), errno))?,
            };
            self.empty_directory(Place::Below(directory.as_fd()))?;
            match unlink(self.top, &name, AtFlags::REMOVEDIR) {
                // Another process deleted it and has moved something else to its name meanwhile, which the next pass finds.
                Err(Errno::NOTEMPTY | Errno::EXIST) => {}
                other => other.map_err(|errno| blocked(name.to_bytes(), errno))?,
            }
        }
        Ok(())
    }

    /// Deletes every entry; a directory that is not empty waits at the top instead.
    fn empty_directory(&mut self, place: Place<'_>) -> Result<(), Blocked> {
        let listing = Dir::read_from(place.fd()).map_err(|errno| blocked(b".", errno))?;
        for entry in listing {
            let entry = entry.map_err(|errno| blocked(b".", errno))?;
            let name = entry.file_name();
            if name == c"." || name == c".." {
                continue;
            }
            let outcome = match entry.file_type() {
                FileType::Directory => self.remove_directory(place, name),
                FileType::Unknown => {
                    unlink(place.fd(), name, AtFlags::empty()).or_else(|errno| match errno {
                        Errno::ISDIR | Errno::PERM => self.remove_directory(place, name),
                        other => Err(other),
                    })
                }
                _ => unlink(place.fd(), name, AtFlags::empty()),
            };
            match outcome {
                Err(Errno::NOENT) => {}
                other => other.map_err(|errno| blocked(name.to_bytes(), errno))?,
            }
        }
        Ok(())
    }

    fn remove_directory(&mut self, place: Place<'_>, name: &CStr) -> Result<(), Errno> {
        match unlink(place.fd(), name, AtFlags::REMOVEDIR) {
            Ok(()) => return Ok(()),
            Err(Errno::NOTEMPTY | Errno::EXIST) => {}
            Err(errno) => return Err(errno),
        }
        let name = match place {
            Place::Top(_) => name.to_owned(),
            // Moving a directory needs the right to write into it: its `..` changes.
            Place::Below(parent) => self.move_to_top(parent, name).or_else(|errno| match errno {
                Errno::ACCESS => {
                    open_up(parent, name)?;
                    self.move_to_top(parent, name)
                }
                other => Err(other),
            })?,
        };
        self.waiting.push(name);
        Ok(())
    }

    fn move_to_top(&mut self, parent: BorrowedFd<'_>, name: &CStr) -> Result<CString, Errno> {
        loop {
            self.moved += 1;
            let fresh = CString::new(format!(".emptying-{}", self.moved)).map_err(|_| Errno::INVAL)?;
            match renameat_with(parent, name, self.top, &fresh, RenameFlags::NOREPLACE) {
                Ok(()) => return Ok(fresh),
                Err(Errno::EXIST) => {}
                Err(errno) => return Err(errno),
            }
        }
    }

    fn open(&self, name: &CStr) -> Result<OwnedFd, Errno> {
        open_below(self.top, name).or_else(|errno| match errno {
            Errno::ACCESS => {
                open_up(self.top, name)?;
                open_below(self.top, name)
            }
            other => Err(other),
        })
    }
}

impl<'a> Place<'a> {
    fn fd(self) -> BorrowedFd<'a> {
        match self {
            Place::Top(fd) | Place::Below(fd) => fd,
        }
    }
}

fn unlink(directory: BorrowedFd<'_>, name: &CStr, flags: AtFlags) -> Result<(), Errno> {
    let mut removed = unlinkat(directory, name, flags);
    if removed == Err(Errno::ACCESS) && open_up_itself(directory).is_ok() {
        removed = unlinkat(directory, name, flags);
    }
    match removed {
        Err(Errno::NOENT) => Ok(()),
        other => other,
    }
}

fn open_below(directory: BorrowedFd<'_>, name: &CStr) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let within = ResolveFlags::BENEATH | ResolveFlags::NO_XDEV | ResolveFlags::NO_SYMLINKS;
    openat2(directory, name, flags, Mode::empty(), within)
}

/// Gives the owner back the permissions that the program took away. By descriptor: a mode change by name would follow
/// a symbolic link.
fn open_up(directory: BorrowedFd<'_>, name: &CStr) -> Result<(), Errno> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::DIRECTORY | OFlags::CLOEXEC;
    open_up_itself(rustix::fs::openat(directory, name, flags, Mode::empty())?.as_fd())
}

fn open_up_itself(directory: BorrowedFd<'_>) -> Result<(), Errno> {
    rustix::fs::chmod(format!("/proc/self/fd/{}", directory.as_raw_fd()), Mode::RWXU)
}

fn blocked(name: &[u8], errno: Errno) -> Blocked {
    let name = String::from_utf8_lossy(name).into_owned();
    match errno {
        Errno::PERM | Errno::ACCESS => Blocked::Foreign { name },
        other => Blocked::Io { name, source: other.into() },
    }
}
