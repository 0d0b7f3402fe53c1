//! Opening what a sandbox wrote: also files that only its own ids may read.
//!
//! An ordinary user's sandbox has files of ids that are not the user's, and files without any permission. Where opening
//! one is refused, a process in a user namespace with the sandbox's ids opens it and hands it over. It is made when it is
//! first needed, for which this process must have one thread.

use super::tree::{DIRECTORY_FLAGS, FILE_FLAGS, PLACE_FLAGS, look, open_below, read_link};
use airlock_linux::{
    clone::{self, Child, Namespaces, Side},
    fd,
    idmap::IdMap,
};
use rustix::{fs::Stat, io::Errno};
use std::{
    cell::RefCell,
    ffi::OsStr,
    io::{self, Read as _, Write as _},
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::ffi::OsStrExt as _,
    },
};

/// Opens what a sandbox wrote.
#[derive(Debug)]
pub struct Reader {
    ids: Option<IdMap>,
    other: RefCell<Other>,
}

/// The process with the sandbox's ids.
#[derive(Debug)]
enum Other {
    NotNeeded,
    Ready { child: Child, talk: OwnedFd },
    Impossible,
}

/// A directory of a layer.
#[derive(Debug)]
pub(super) struct Directory {
    pub(super) fd: OwnedFd,
    /// What the layers below have in it is not seen.
    pub(super) is_opaque: bool,
}

/// What the other process is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wanted {
    File = b'f' as isize,
    Directory = b'd' as isize,
    /// Only whether it was made of a file below.
    Origin = b'o' as isize,
    /// Not to read it, only to look at it.
    Place = b'p' as isize,
}

/// Where overlayfs says that a directory hides what is below it, and of what a file was made (with `userxattr`).
const OPAQUE: &str = "user.overlay.opaque";
const ORIGIN: &str = "user.overlay.origin";
/// Longest path that is asked for.
const LONGEST: usize = 4096;

impl Reader {
    /// One that reads with its own rights only: root's, or a test's.
    pub fn plain() -> Reader {
        Reader { ids: None, other: RefCell::new(Other::Impossible) }
    }

    /// One that may become a process with these ids.
    pub fn with_ids(ids: IdMap) -> Reader {
        Reader { ids: Some(ids), other: RefCell::new(Other::NotNeeded) }
    }

    pub(super) fn open_file(&self, directory: BorrowedFd<'_>, path: &OsStr) -> Result<OwnedFd, Errno> {
        match open_below(directory, path, FILE_FLAGS) {
            Err(Errno::ACCESS) => self.ask(directory, path, Wanted::File)?.0.ok_or(Errno::ACCESS),
            other => other,
        }
    }

    pub(super) fn open_directory(&self, parent: BorrowedFd<'_>, name: &OsStr) -> Result<Directory, Errno> {
        let opened = open_below(parent, name, DIRECTORY_FLAGS)
            .and_then(|fd| Ok(Directory { is_opaque: is_opaque(fd.as_fd())?, fd }));
        match opened {
            Err(Errno::ACCESS) => {
                let (fd, is_opaque) = self.ask(parent, name, Wanted::Directory)?;
                Ok(Directory { fd: fd.ok_or(Errno::ACCESS)?, is_opaque })
            }
            other => other,
        }
    }

    /// Whether a file (or link) was copied from the layer below.
    pub(super) fn has_origin(&self, parent: BorrowedFd<'_>, name: &OsStr) -> Result<bool, Errno> {
        match has_origin(parent, name) {
            Err(Errno::ACCESS) => Ok(self.ask(parent, name, Wanted::Origin)?.1),
            other => other,
        }
    }

    /// What is called `name` in a directory; `None` if nothing is.
    pub(super) fn look(&self, parent: BorrowedFd<'_>, name: &OsStr) -> Result<Option<Stat>, Errno> {
        match look(parent, name) {
            Err(Errno::ACCESS) => match self.ask(parent, name, Wanted::Place) {
                Ok((Some(place), _)) => rustix::fs::fstat(place).map(Some),
                Ok((None, _)) => Err(Errno::ACCESS),
                Err(Errno::NOENT) => Ok(None),
                Err(errno) => Err(errno),
            },
            other => other,
        }
    }

    pub(super) fn read_link(&self, directory: BorrowedFd<'_>, path: &OsStr) -> Result<Vec<u8>, Errno> {
        match read_link(directory, path) {
            Err(Errno::ACCESS) => {
                let place = self.ask(directory, path, Wanted::Place)?.0.ok_or(Errno::ACCESS)?;
                Ok(rustix::fs::readlinkat(&place, "", Vec::new())?.into_bytes())
            }
            other => other,
        }
    }

    fn ask(
        &self,
        directory: BorrowedFd<'_>,
        path: &OsStr,
        wanted: Wanted,
    ) -> Result<(Option<OwnedFd>, bool), Errno> {
        let mut other = self.other.borrow_mut();
        if matches!(*other, Other::NotNeeded) {
            *other = match self.ids.as_ref().map(start) {
                Some(Ok((child, talk))) => Other::Ready { child, talk },
                _ => Other::Impossible,
            };
        }
        let Other::Ready { talk, .. } = &*other else { return Err(Errno::ACCESS) };
        converse(talk.as_fd(), directory, path, wanted).map_err(|_| Errno::IO)?
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        if let Other::Ready { child, .. } = &*self.other.borrow() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn is_opaque(directory: BorrowedFd<'_>) -> Result<bool, Errno> {
    let mut value = [0u8; 4];
    match rustix::fs::fgetxattr(directory, OPAQUE, &mut value) {
        // `x` stands on directories with whiteouts of another kind, which only a nested overlay would make.
        Ok(length) => Ok(value.get(..length) == Some(b"y")),
        Err(Errno::NODATA | Errno::OPNOTSUPP) => Ok(false),
        Err(Errno::RANGE) => Ok(true),
        Err(errno) => Err(errno),
    }
}

/// By the descriptor's name in /proc: `fgetxattr` takes no descriptor that was opened as a place only, and reading a
/// file's attributes must not need the right to read the file.
fn has_origin(parent: BorrowedFd<'_>, name: &OsStr) -> Result<bool, Errno> {
    let place = open_below(parent, name, PLACE_FLAGS)?;
    let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&place));
    match rustix::fs::getxattr(path, ORIGIN, &mut [0u8; 0][..]) {
        Ok(_) => Ok(true),
        Err(Errno::NODATA | Errno::OPNOTSUPP) => Ok(false),
        // A link has no such attributes.
        Err(Errno::PERM) => Ok(false),
        Err(errno) => Err(errno),
    }
}

/// The other process, with its ids written.
fn start(ids: &IdMap) -> io::Result<(Child, OwnedFd)> {
    let (ours, theirs) = fd::pair()?;
    let (mut wait, mut go) = io::pipe()?;
    let child = match clone::fork(Namespaces::USER, None)? {
        Side::Parent(child) => child,
        Side::Child => {
            drop((ours, go));
            let alive = clone::die_with_parent().is_ok() && wait.read_exact(&mut [0u8; 1]).is_ok();
            if alive {
                let _ = serve(theirs.as_fd());
            }
            clone::exit_now(0);
        }
    };
    drop((theirs, wait));
    if let Err(err) = ids.write(child.pid) {
        let _ = child.kill();
        let _ = child.wait();
        return Err(io::Error::other(err));
    }
    go.write_all(b"g")?;
    Ok((child, ours))
}

type Answer = Result<(Option<OwnedFd>, bool), Errno>;

/// One question and its answer. The question: what is wanted, then the path, with the directory attached.
/// The answer: an errno or 0, a flag, and the descriptor.
fn converse(
    talk: BorrowedFd<'_>,
    directory: BorrowedFd<'_>,
    path: &OsStr,
    wanted: Wanted,
) -> io::Result<Answer> {
    if path.len() > LONGEST {
        return Ok(Err(Errno::NAMETOOLONG));
    }
    let mut question = vec![wanted as u8];
    question.extend_from_slice(path.as_bytes());
    fd::send_all(talk, &question, &[directory])?;
    let (mut bytes, mut received) = ([0u8; 5], Vec::new());
    let count = fd::receive_with_fds(talk, &mut bytes, &mut received)?;
    if count != bytes.len() {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let [a, b, c, d, flag] = bytes;
    Ok(match i32::from_le_bytes([a, b, c, d]) {
        0 => Ok((received.pop(), flag == 1)),
        errno => Err(Errno::from_raw_os_error(errno)),
    })
}

/// In the other process: answers until nobody asks any more.
fn serve(talk: BorrowedFd<'_>) -> io::Result<()> {
    let mut bytes = [0u8; LONGEST + 1];
    loop {
        let mut received = Vec::new();
        let count = fd::receive_with_fds(talk, &mut bytes, &mut received)?;
        let Some((wanted, path)) = bytes.get(..count).and_then(<[u8]>::split_first) else { return Ok(()) };
        let Some(directory) = received.pop() else { return Ok(()) };
        let path = OsStr::from_bytes(path);
        let answer: Answer = match wanted {
            b'd' => open_below(directory.as_fd(), path, DIRECTORY_FLAGS)
                .and_then(|fd| Ok((is_opaque(fd.as_fd())?, fd)))
                .map(|(flag, fd)| (Some(fd), flag)),
            b'f' => open_below(directory.as_fd(), path, FILE_FLAGS).map(|fd| (Some(fd), false)),
            b'p' => open_below(directory.as_fd(), path, PLACE_FLAGS).map(|fd| (Some(fd), false)),
            _ => has_origin(directory.as_fd(), path).map(|flag| (None, flag)),
        };
        let (errno, flag, opened) = match answer {
            Ok((opened, flag)) => (0, flag, opened),
            Err(errno) => (errno.raw_os_error(), false, None),
        };
        let [a, b, c, d] = errno.to_le_bytes();
        let attached: Vec<BorrowedFd<'_>> = opened.iter().map(AsFd::as_fd).collect();
        fd::send_all(talk, &[a, b, c, d, u8::from(flag)], &attached)?;
    }
}
