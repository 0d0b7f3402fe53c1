//! Where in the tree an entry goes.

use super::{Unpacking, Way};
use crate::layers::{
    archive::{Time, refused},
    tree::{self, set_attribute},
    walk::open_below,
};
use rustix::{
    fs::{AtFlags, Gid, Mode, OFlags, RenameFlags, ResolveFlags, Uid},
    io::Errno,
};
use std::{
    ffi::{CString, OsStr},
    io,
    os::{
        fd::{AsFd as _, OwnedFd},
        unix::ffi::OsStrExt as _,
    },
};

/// A directory that is open.
pub(super) struct Here {
    path: Vec<CString>,
    directory: OwnedFd,
}

/// Longest path that a sandbox can have made, by going down.
const LONGEST: usize = 64 << 10;
/// Longest path in an image: what is longer no program could open.
const LONGEST_ALONE: usize = 4095;
/// How often a path is looked up that others changed meanwhile, anywhere on this machine.
const MOST_TRIES: usize = 64;

impl Unpacking<'_> {
    pub(super) fn path_of(&self, path: &[u8]) -> io::Result<Vec<CString>> {
        if self.way != Way::Stacked && path.len() > LONGEST_ALONE {
            return Err(refused("its path is too long"));
        }
        components(path)
    }

    /// The directory of this path; what is missing is made, and was changed when what is to come there was.
    pub(super) fn open(&mut self, path: &[CString], time: Time) -> io::Result<OwnedFd> {
        if let Some(last) = self.last.as_ref().filter(|last| last.path == path) {
            return last.directory.try_clone();
        }
        let directory = match self.way {
            Way::Stacked => self.open_stacked(path)?,
            Way::Alone(_) => self.open_alone(path, time)?,
        };
        self.last = Some(Here { path: path.to_vec(), directory: directory.try_clone()? });
        Ok(directory)
    }

    /// Whatever else has a name on the way goes.
    fn open_stacked(&mut self, path: &[CString]) -> io::Result<OwnedFd> {
        let mut here = open_below(self.top, c".")?;
        for name in path {
            here = self.directory(&here, name)?;
        }
        Ok(here)
    }

    /// Links on the way are followed, with the top as their root.
    fn open_alone(&mut self, path: &[CString], time: Time) -> io::Result<OwnedFd> {
        match self.resolve(path, OFlags::empty()) {
            Ok(there) => return Ok(there),
            Err(Errno::NOENT) => {}
            Err(err) => return Err(on_the_way(err)),
        }
        let mut here = open_below(self.top, c".")?;
        for (number, name) in path.iter().enumerate() {
            let so_far = path.get(..=number).unwrap_or_default();
            here = match self.resolve(so_far, OFlags::empty()) {
                Ok(there) => there,
                Err(Errno::NOENT) => {
                    rustix::fs::mkdirat(&here, name, Mode::RWXU).map_err(on_the_way)?;
                    let made = open_below(here.as_fd(), name)?;
                    // A directory above may have given it a group.
                    let _ = rustix::fs::fchown(&made, Some(Uid::ROOT), Some(Gid::ROOT));
                    rustix::fs::fchmod(&made, Mode::from_raw_mode(0o755))?;
                    self.hold_time(so_far.to_vec(), time)?;
                    made
                }
                Err(err) => return Err(on_the_way(err)),
            };
        }
        Ok(here)
    }

    /// A directory that was unpacked before.
    pub(super) fn open_there(&self, path: &[CString]) -> io::Result<OwnedFd> {
        match self.way {
            Way::Stacked => {
                path.iter().try_fold(open_below(self.top, c".")?, |here, name| open_below(here.as_fd(), name))
            }
            Way::Alone(_) => Ok(self.resolve(path, OFlags::empty())?),
        }
    }

    /// The directory that has this name itself, and not through a link.
    pub(super) fn open_itself(&self, path: &[CString]) -> io::Result<OwnedFd> {
        match self.way {
            Way::Stacked => self.open_there(path),
            Way::Alone(_) => Ok(self.resolve(path, OFlags::NOFOLLOW)?),
        }
    }

    fn resolve(&self, path: &[CString], flags: OFlags) -> Result<OwnedFd, Errno> {
        let mut bytes = b".".to_vec();
        for name in path {
            bytes.push(b'/');
            bytes.extend_from_slice(name.as_bytes());
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | flags;
        let within = ResolveFlags::IN_ROOT | ResolveFlags::NO_XDEV | ResolveFlags::NO_MAGICLINKS;
        let path = OsStr::from_bytes(&bytes);
        for _ in 0..MOST_TRIES {
            match rustix::fs::openat2(self.top, path, flags, Mode::empty(), within) {
                Err(Errno::AGAIN | Errno::INTR) => {}
                other => return other,
            }
        }
        Err(Errno::AGAIN)
    }

    /// A directory, as it is or made. Whatever else has the name goes.
    pub(super) fn directory(&mut self, parent: &OwnedFd, name: &CString) -> io::Result<OwnedFd> {
        match tree::make_directory(parent.as_fd(), name) {
            Err(err) if err.kind() == io::ErrorKind::AlreadyExists => {}
            other => return other,
        }
        if let Ok(there) = open_below(parent.as_fd(), name) {
            return Ok(there);
        }
        let found = rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW)?;
        self.take_away(parent, name)?;
        let made = tree::make_directory(parent.as_fd(), name)?;
        if tree::is_whiteout(&found) && self.way != Way::Stacked {
            // The one below the layer has gone, and this is another.
            set_attribute(made.as_fd(), tree::OPAQUE, b"y")?;
        }
        Ok(made)
    }

    /// Makes something under a name; what has the name already goes.
    pub(super) fn fresh<T>(
        &mut self,
        parent: &OwnedFd,
        name: &CString,
        make: impl Fn() -> io::Result<T>,
    ) -> io::Result<T> {
        match make() {
            Err(err) if err.kind() == io::ErrorKind::AlreadyExists => {}
            other => return other,
        }
        self.take_away(parent, name)?;
        make()
    }

    /// Takes away what has this name, if anything does. A directory is moved out of the way.
    pub(super) fn take_away(&mut self, parent: &OwnedFd, name: &CString) -> io::Result<()> {
        match rustix::fs::unlinkat(parent, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => return Ok(()),
            Err(Errno::ISDIR | Errno::PERM) => {}
            Err(err) => return Err(err.into()),
        }
        self.moved += 1;
        // What was opened may be what goes.
        self.last = None;
        let fresh = CString::new(format!("{:x}", self.moved))?;
        Ok(rustix::fs::renameat_with(parent, name, self.trash, &fresh, RenameFlags::NOREPLACE)?)
    }
}

/// The names of a path. One that could lead out of the tree is refused.
pub fn components(path: &[u8]) -> io::Result<Vec<CString>> {
    if path.len() > LONGEST {
        return Err(refused("its path is too long"));
    }
    let mut names = Vec::new();
    for name in path.split(|byte| *byte == b'/') {
        match name {
            b"" | b"." => {}
            b".." => return Err(refused("its path leads upwards")),
            name if name.len() > 255 => return Err(refused("its name is too long")),
            name => names.push(CString::new(name)?),
        }
    }
    Ok(names)
}

fn on_the_way(errno: Errno) -> io::Error {
    match errno {
        Errno::NOTDIR => refused("a part of its path is no directory"),
        Errno::EXIST => refused("a part of its path is a link that leads nowhere"),
        Errno::LOOP => refused("the links in its path never end"),
        other => other.into(),
    }
}
