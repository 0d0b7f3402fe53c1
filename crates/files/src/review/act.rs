//! Single acts of an apply: what is put there is made ready beside it, then takes its place in one step of the kernel; what was
//! there goes into the journal. The step is taken back if it met something else than what was reviewed.

use super::{
    Error,
    change::{Change, Kind, Seen},
    journal::{Journal, Old, OldKind, Record, What},
    known::{Mark, written_path},
    place::{self, Owner},
    tree::Tree,
};
use rustix::{
    fs::{AtFlags, Gid, Mode, Uid, chownat, mkdirat, symlinkat},
    io::Errno,
};
use std::{
    ffi::{OsStr, OsString},
    fs::File,
    io,
    os::{
        fd::{AsFd as _, OwnedFd},
        unix::ffi::OsStrExt as _,
    },
    path::{Path, PathBuf},
};

/// Where and with what acts are done.
#[derive(Debug)]
pub(super) struct Acts<'a> {
    pub(super) tree: &'a Tree,
    pub(super) journal: Journal,
    pub(super) owner: Owner,
    /// What all temporary names of this run begin with.
    pub(super) prefix: String,
}

/// Something that stands ready under a temporary name.
#[derive(Debug)]
pub(super) struct Ready {
    act: u64,
    pub(super) path: PathBuf,
    parent: OwnedFd,
    temporary: OsString,
    old: Option<Old>,
    file: Option<File>,
}

/// How an act ended.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// Done; what stands there now.
    Done(Option<Mark>),
    /// A directory that is not empty stays.
    Kept,
}

impl Acts<'_> {
    /// Makes ready what a change puts there.
    pub(super) fn prepare(&mut self, change: &Change, is: &Seen) -> Result<Ready, Error> {
        let source = match is.kind {
            Kind::File => Some(self.tree.open_inside(&change.path, is)?),
            _ => None,
        };
        let link = match is.kind {
            Kind::Link => Some(self.tree.link_inside(&change.path, is)?),
            _ => None,
        };
        let (parent, _) = self.parent(&change.path)?;
        let old = change.was.as_ref().and_then(Old::of);
        let (act, temporary) = self.begin(&change.path, What::Put, old.clone())?;
        let made = self.make(&parent, &temporary, is, (source, link));
        let file = made.inspect_err(|_| {
            let _ = place::unlink(parent.as_fd(), &temporary);
        });
        let file = file.map_err(failed("write", &change.path))?;
        let stands = place::seen(parent.as_fd(), &temporary).map_err(Error::on("look at", &change.path))?;
        let inode = stands.map_or(0, |seen| seen.inode);
        self.journal.write(&Record::Ready { act, inode })?;
        Ok(Ready { act, path: change.path.clone(), parent, temporary, old, file })
    }

    fn make(
        &self,
        parent: &OwnedFd,
        temporary: &OsStr,
        is: &Seen,
        (source, link): (Option<File>, Option<Vec<u8>>),
    ) -> io::Result<Option<File>> {
        if let Some(mut source) = source {
            let file = place::make_file(parent.as_fd(), temporary, &mut source, is.mode)?;
            place::give(file.as_fd(), self.owner, is.mode)?;
            return Ok(Some(file));
        }
        match link {
            Some(target) => symlinkat(OsStr::from_bytes(&target), parent, temporary)?,
            None => mkdirat(parent, temporary, Mode::from_raw_mode(is.mode))?,
        }
        if let Some((user, group)) = self.owner {
            let (user, group) = (Some(Uid::from_raw(user)), Some(Gid::from_raw(group)));
            chownat(parent, temporary, user, group, AtFlags::SYMLINK_NOFOLLOW)?;
        }
        if is.kind == Kind::Directory {
            place::set_mode(parent.as_fd(), temporary, is.mode)?;
        }
        Ok(None)
    }

    /// What stands ready takes its place.
    pub(super) fn commit(&mut self, ready: &Ready) -> Result<Ended, Error> {
        let name = ready.path.file_name().unwrap_or_default();
        let parent = ready.parent.as_fd();
        let on = |errno| Error::on("replace", &ready.path)(errno);
        let Some(old) = &ready.old else {
            return match place::rename_new((parent, &ready.temporary), (parent, name)) {
                Ok(()) => self.done(ready.act, &ready.parent, &ready.path),
                Err(Errno::EXIST) => {
                    self.drop_ready(ready)?;
                    Err(Error::Changed { paths: vec![ready.path.clone()] })
                }
                Err(errno) => Err(on(errno)),
            };
        };
        match place::exchange(parent, &ready.temporary, name) {
            Ok(()) => {}
            Err(Errno::NOENT) => {
                self.drop_ready(ready)?;
                return Err(Error::Changed { paths: vec![ready.path.clone()] });
            }
            Err(errno) => return Err(on(errno)),
        }
        let stands = place::seen(parent, &ready.temporary).map_err(on)?;
        if !stands.is_some_and(|seen| old.is(&seen)) {
            place::exchange(parent, &ready.temporary, name).map_err(on)?;
            self.drop_ready(ready)?;
            return Err(Error::Changed { paths: vec![ready.path.clone()] });
        }
        if old.kind == OldKind::Directory {
            match place::remove_directory(parent, &ready.temporary) {
                Ok(()) => {}
                Err(Errno::NOTEMPTY | Errno::EXIST) => {
                    place::exchange(parent, &ready.temporary, name).map_err(on)?;
                    self.drop_ready(ready)?;
                    return Ok(Ended::Kept);
                }
                Err(errno) => return Err(on(errno)),
            }
        } else {
            save(&self.journal, ready.act, &ready.parent, &ready.temporary)
                .map_err(failed("keep", &ready.path))?;
        }
        self.done(ready.act, &ready.parent, &ready.path)
    }

    /// Takes away what stood ready.
    pub(super) fn drop_ready(&mut self, ready: &Ready) -> Result<(), Error> {
        let parent = ready.parent.as_fd();
        let _ = place::unlink(parent, &ready.temporary);
        let _ = place::remove_directory(parent, &ready.temporary);
        self.journal.write(&Record::Undone { act: ready.act })
    }

    /// Takes a file, a link or an empty directory away.
    pub(super) fn remove(&mut self, change: &Change, was: &Seen) -> Result<Ended, Error> {
        let (parent, name) = self.parent(&change.path)?;
        let Some(old) = Old::of(was) else { return Ok(Ended::Kept) };
        let on = |errno| Error::on("remove", &change.path)(errno);
        let changed = || Error::Changed { paths: vec![change.path.clone()] };
        let (act, temporary) = self.begin(&change.path, What::Remove, Some(old.clone()))?;
        if old.kind == OldKind::Directory {
            match place::remove_directory(parent.as_fd(), &name) {
                Ok(()) => {}
                Err(Errno::NOTEMPTY | Errno::EXIST) => {
                    self.journal.write(&Record::Undone { act })?;
                    return Ok(Ended::Kept);
                }
                Err(errno) => return Err(on(errno)),
            }
        } else {
            let (from, to) = ((parent.as_fd(), name.as_os_str()), (parent.as_fd(), temporary.as_os_str()));
            match place::rename_new(from, to) {
                Err(Errno::NOENT) => return Err(changed()),
                other => other.map_err(on)?,
            }
            let stands = place::seen(parent.as_fd(), &temporary).map_err(on)?;
            if !stands.is_some_and(|seen| old.is(&seen)) {
                place::rename_new(to, from).map_err(on)?;
                self.journal.write(&Record::Undone { act })?;
                return Err(changed());
            }
            save(&self.journal, act, &parent, &temporary).map_err(failed("keep", &change.path))?;
        }
        self.journal.write(&Record::Done { act, mark: None })?;
        Ok(Ended::Done(None))
    }

    /// Changes permissions and nothing else.
    pub(super) fn change_mode(&mut self, change: &Change, was: &Seen, is: &Seen) -> Result<Ended, Error> {
        let (parent, name) = self.parent(&change.path)?;
        let on = |errno| Error::on("change the mode of", &change.path)(errno);
        let stands = place::seen(parent.as_fd(), &name).map_err(on)?;
        let old = Old::of(was);
        if !stands.is_some_and(|seen| old.as_ref().is_some_and(|old| old.is(&seen) && old.mode == seen.mode))
        {
            return Err(Error::Changed { paths: vec![change.path.clone()] });
        }
        let (act, _) = self.begin(&change.path, What::Mode, old)?;
        place::set_mode(parent.as_fd(), &name, is.mode).map_err(on)?;
        self.done(act, &parent, &change.path)
    }

    fn done(&mut self, act: u64, parent: &OwnedFd, path: &Path) -> Result<Ended, Error> {
        let name = path.file_name().unwrap_or_default();
        let stands = place::seen(parent.as_fd(), name).map_err(Error::on("look at", path))?;
        let mark = stands.as_ref().map(Mark::of);
        self.journal.write(&Record::Done { act, mark })?;
        Ok(Ended::Done(mark))
    }

    fn begin(&mut self, path: &Path, what: What, old: Option<Old>) -> Result<(u64, OsString), Error> {
        let act = self.journal.number();
        let temporary = format!("{}-{act}", self.prefix);
        let record = Record::Begun { act, path: written_path(path), what, temporary: temporary.clone(), old };
        self.journal.write(&record)?;
        Ok((act, temporary.into()))
    }

    fn parent(&self, path: &Path) -> Result<(OwnedFd, OsString), Error> {
        parent_of(self.tree, path)
    }
}

impl Ready {
    /// Its content is on disk when this returns.
    pub(super) fn sync(&self) -> io::Result<()> {
        self.file.as_ref().map_or(Ok(()), File::sync_data)
    }
}

/// The directory of a path on the host, opened below the workspace, and the name in it.
pub(super) fn parent_of(tree: &Tree, path: &Path) -> Result<(OwnedFd, OsString), Error> {
    let name = path.file_name().ok_or(Errno::INVAL).map_err(Error::on("open", path))?.to_owned();
    let above = path.parent().unwrap_or(Path::new(""));
    let parent = place::open_directory(tree.host(), above).map_err(Error::on("open", above))?;
    Ok((parent, name))
}

/// Moves what was replaced into the journal; copies it where that is another file system.
pub(super) fn save(journal: &Journal, act: u64, parent: &OwnedFd, name: &OsStr) -> io::Result<()> {
    super::interruption();
    let folder = journal.open_folder().map_err(io::Error::other)?;
    let kept = OsString::from(act.to_string());
    transfer((parent, name), (&folder, &kept))
}

/// Moves a file or link into another directory, over whatever is there; copies it where that is another file system.
pub(super) fn transfer(from: (&OwnedFd, &OsStr), to: (&OwnedFd, &OsStr)) -> io::Result<()> {
    match rustix::fs::renameat(from.0, from.1, to.0, to.1) {
        Err(Errno::XDEV) => {}
        other => return Ok(other?),
    }
    duplicate(from, to)?;
    super::interruption();
    Ok(place::unlink(from.0.as_fd(), from.1)?)
}

/// Copies a file or link of the host with its mode, time, owner and attributes.
pub(super) fn duplicate(from: (&OwnedFd, &OsStr), to: (&OwnedFd, &OsStr)) -> io::Result<()> {
    let stat = rustix::fs::statat(from.0, from.1, AtFlags::SYMLINK_NOFOLLOW)?;
    let seen = Seen::new(&stat, 0);
    place::unlink(to.0.as_fd(), to.1)?;
    super::interruption();
    let (user, group) = (Some(Uid::from_raw(stat.st_uid)), Some(Gid::from_raw(stat.st_gid)));
    if seen.kind == Kind::Link {
        let target = rustix::fs::readlinkat(from.0, from.1, Vec::new())?;
        symlinkat(target, to.0, to.1)?;
        let _ = chownat(to.0, to.1, user, group, AtFlags::SYMLINK_NOFOLLOW);
        return place::set_link_mtime(to.0.as_fd(), to.1, seen.mtime);
    }
    let mut source = File::from(super::tree::open_below(from.0.as_fd(), from.1, super::tree::FILE_FLAGS)?);
    let file = place::make_file(to.0.as_fd(), to.1, &mut source, seen.mode)?;
    place::copy_attributes(source.as_fd(), file.as_fd());
    // Only root can give it to others, and only others' files need it. It is the host's own file: all its bits stay.
    if rustix::fs::fchown(&file, user, group).is_ok() {
        rustix::fs::fchmod(&file, Mode::from_raw_mode(stat.st_mode & 0o7777))?;
    }
    place::set_mtime(file.as_fd(), seen.mtime)?;
    file.sync_data()
}

pub(super) fn failed(tried: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
    let path = path.to_owned();
    move |source| Error::Io { tried, path, source }
}
