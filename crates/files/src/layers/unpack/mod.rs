//! A tree of OCI layers, one upon the other. Every byte is hostile: nothing is followed, nothing leaves the tree, no device and
//! no set-id bit comes in, and whatever is there is bounded.

use super::{
    Error, failed, pack,
    tree::{self, make_whiteout, set_attribute},
    walk::open_below,
};
use rustix::{
    fs::{AtFlags, FileType, Gid, Mode, RenameFlags, Timespec, Timestamps, Uid},
    io::Errno,
};
use serde::{Deserialize, Serialize};
use std::{
    ffi::{CString, OsStr},
    io::{self, Read, Seek as _, SeekFrom, Write as _},
    os::{
        fd::{AsFd as _, BorrowedFd, OwnedFd},
        unix::ffi::OsStrExt as _,
    },
};
use tar::{Archive, EntryType};

/// What may still be unpacked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bounds {
    /// Bytes, of which each entry takes some besides its own.
    pub bytes: u64,
}

/// What an entry costs besides its bytes.
const ENTRY: u64 = 1 << 10;
/// Most bytes of the words about one entry.
const MOST_WORDS: u64 = 1 << 20;
/// Longest path.
const LONGEST: usize = 64 << 10;
/// Most memory that zstd may take for its window, as a power of two.
const WINDOW: u32 = 27;
/// Bytes that are read and written at a time; as many zeros become a hole.
const PIECE: usize = 64 << 10;

/// A tree that layers are unpacked into.
pub struct Unpacking<'a> {
    top: BorrowedFd<'a>,
    /// Where that goes which an upper layer takes away.
    trash: BorrowedFd<'a>,
    moved: u64,
    /// The directory that was used last.
    last: Option<(Vec<CString>, OwnedFd)>,
    /// Where the layer's part stands inside.
    prefix: Vec<CString>,
}

impl<'a> Unpacking<'a> {
    /// Into `top`; `trash` is an empty directory of the same file system.
    pub fn new(top: BorrowedFd<'a>, trash: BorrowedFd<'a>) -> Unpacking<'a> {
        Unpacking { top, trash, moved: 0, last: None, prefix: Vec::new() }
    }

    /// Unpacks one more layer, of which only what is below `prefix` is taken: an entry elsewhere is refused.
    pub fn layer(
        &mut self,
        compressed: impl Read,
        prefix: &[u8],
        bounds: &mut Bounds,
        progress: &mut dyn FnMut(u64),
    ) -> Result<(), Error> {
        let broken = |err: io::Error| failed("read", b"the archive")(err);
        let mut decoder = zstd::stream::read::Decoder::new(compressed).map_err(broken)?;
        decoder.window_log_max(WINDOW).map_err(broken)?;
        let mut archive = Archive::new(Limited { from: decoder, bounds: bounds.bytes });
        self.prefix = components(prefix).map_err(broken)?;
        let mut words = Words::default();
        for entry in archive.entries().map_err(broken)?.raw(true) {
            let mut entry = entry.map_err(broken)?;
            spend(bounds, ENTRY).map_err(broken)?;
            if words.take(&mut entry).map_err(broken)? {
                continue;
            }
            let said = std::mem::take(&mut words);
            let path = said.path.clone().unwrap_or_else(|| entry.path_bytes().into_owned());
            spend(bounds, entry.size()).map_err(broken)?;
            progress(entry.size());
            self.entry(&mut entry, &path, &said).map_err(failed("unpack", &path))?;
        }
        self.last = None;
        Ok(())
    }

    fn entry<R: Read>(&mut self, entry: &mut tar::Entry<'_, R>, path: &[u8], said: &Words) -> io::Result<()> {
        let path = components(path)?;
        let Some(path) = path.strip_prefix(self.prefix.as_slice()) else {
            // The directories that lead to it are made anyway.
            let leads = self.prefix.starts_with(&path) && entry.header().entry_type() == EntryType::Directory;
            return if leads { Ok(()) } else { Err(refused("it is outside of its part")) };
        };
        let Some((name, parents)) = path.split_last() else { return self.attributes_of_top(entry) };
        let parent = self.open(parents)?;
        if name.as_bytes() == pack::OPAQUE {
            return self.make_opaque(&parent);
        }
        if let Some(gone) = name.as_bytes().strip_prefix(pack::WHITEOUT) {
            if gone.is_empty() || gone == b"." || gone == b".." || gone.starts_with(b".wh.") {
                return Ok(());
            }
            let gone = CString::new(gone)?;
            self.take_away(&parent, &gone)?;
            return make_whiteout(parent.as_fd(), &gone);
        }
        self.make(entry, &parent, name, said)
    }

    fn make<R: Read>(
        &mut self,
        entry: &mut tar::Entry<'_, R>,
        parent: &OwnedFd,
        name: &CString,
        said: &Words,
    ) -> io::Result<()> {
        let kind = entry.header().entry_type();
        let owner = owner(entry.header())?;
        let mode = entry.header().mode()? & 0o1777;
        if kind == EntryType::Directory {
            let made = self.directory(parent, name)?;
            give(made.as_fd(), owner, mode)?;
            return said
                .attributes
                .iter()
                .try_for_each(|(name, value)| set_attribute(made.as_fd(), name, value));
        }
        self.take_away(parent, name)?;
        let link = || said.link.clone().or_else(|| entry.link_name_bytes().map(|name| name.into_owned()));
        match kind {
            EntryType::Regular | EntryType::Continuous => {
                let file = tree::make_file(parent.as_fd(), name)?;
                write_sparse(entry, &file)?;
                give(file.as_fd(), owner, mode)?;
                said.attributes
                    .iter()
                    .try_for_each(|(name, value)| set_attribute(file.as_fd(), name, value))?;
                return Ok(rustix::fs::futimens(&file, &times(entry.header().mtime()?))?);
            }
            EntryType::Link => return self.link(&link().unwrap_or_default(), parent, name),
            EntryType::Symlink => {
                let target =
                    link().filter(|target| target.len() < 4096).ok_or_else(|| refused("it leads nowhere"))?;
                rustix::fs::symlinkat(OsStr::from_bytes(&target), parent, name)?;
            }
            EntryType::Fifo => {
                let mode = Mode::from_raw_mode(mode & 0o777);
                rustix::fs::mknodat(parent, name, FileType::Fifo, mode, 0)?;
            }
            _ => return Err(refused("it is neither a file nor a directory nor a link")),
        }
        let (user, group) = (Uid::from_raw(owner.0), Gid::from_raw(owner.1));
        match rustix::fs::chownat(parent, name, Some(user), Some(group), AtFlags::SYMLINK_NOFOLLOW) {
            Ok(()) | Err(Errno::INVAL | Errno::PERM) => Ok(()),
            Err(err) => Err(err.into()),
        }
    }

    /// A further name of a file that was unpacked before.
    fn link(&mut self, target: &[u8], parent: &OwnedFd, name: &CString) -> io::Result<()> {
        let target = components(target)?;
        let target = target
            .strip_prefix(self.prefix.as_slice())
            .ok_or_else(|| refused("its first name is outside of its part"))?;
        let (first, parents) = target.split_last().ok_or_else(|| refused("it has no first name"))?;
        let from = self.open_there(parents)?;
        let found = rustix::fs::statat(&from, first, AtFlags::SYMLINK_NOFOLLOW)?;
        if FileType::from_raw_mode(found.st_mode) != FileType::RegularFile {
            return Err(refused("its first name is no file"));
        }
        Ok(rustix::fs::linkat(&from, first, parent, name, AtFlags::empty())?)
    }

    /// A directory, as it is or made. Whatever else has the name goes.
    fn directory(&mut self, parent: &OwnedFd, name: &CString) -> io::Result<OwnedFd> {
        match open_below(parent.as_fd(), name) {
            Ok(there) => return Ok(there),
            Err(err) if err.kind() == io::ErrorKind::NotFound => {}
            Err(_) => self.take_away(parent, name)?,
        }
        tree::make_directory(parent.as_fd(), name)
    }

    /// Everything below a directory goes, here and in whatever lies below the layer.
    fn make_opaque(&mut self, directory: &OwnedFd) -> io::Result<()> {
        let listing = open_below(directory.as_fd(), c".")?;
        let names: Vec<CString> = rustix::fs::Dir::read_from(&listing)?
            .filter_map(|entry| Some(entry.ok()?.file_name().to_owned()))
            .filter(|name| name.as_c_str() != c"." && name.as_c_str() != c"..")
            .collect();
        names.iter().try_for_each(|name| self.take_away(directory, name))?;
        set_attribute(directory.as_fd(), tree::OPAQUE, b"y")
    }

    /// Moves what has this name out of the way, if anything does.
    fn take_away(&mut self, parent: &OwnedFd, name: &CString) -> io::Result<()> {
        self.moved += 1;
        // What was opened may be what goes.
        self.last = None;
        let fresh = CString::new(format!("{:x}", self.moved))?;
        match rustix::fs::renameat_with(parent, name, self.trash, &fresh, RenameFlags::NOREPLACE) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(err) => Err(err.into()),
        }
    }

    /// The directory of this path; what is missing is made.
    fn open(&mut self, path: &[CString]) -> io::Result<OwnedFd> {
        if let Some((last, directory)) = &self.last
            && last == path
        {
            return directory.try_clone();
        }
        let mut here = open_below(self.top, c".")?;
        for name in path {
            here = self.directory(&here, name)?;
        }
        self.last = Some((path.to_vec(), here.try_clone()?));
        Ok(here)
    }

    fn open_there(&self, path: &[CString]) -> io::Result<OwnedFd> {
        path.iter().try_fold(open_below(self.top, c".")?, |here, name| open_below(here.as_fd(), name))
    }

    fn attributes_of_top<R: Read>(&self, entry: &tar::Entry<'_, R>) -> io::Result<()> {
        if entry.header().entry_type() != EntryType::Directory {
            return Err(refused("it has no name"));
        }
        give(self.top, owner(entry.header())?, entry.header().mode()? & 0o1777)
    }
}

/// What stands before an entry about it.
#[derive(Default)]
struct Words {
    path: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
    attributes: Vec<(CString, Vec<u8>)>,
}

impl Words {
    /// `true` if the entry is such words, which are taken.
    fn take<R: Read>(&mut self, entry: &mut tar::Entry<'_, R>) -> io::Result<bool> {
        let kind = entry.header().entry_type();
        if !matches!(
            kind,
            EntryType::XHeader | EntryType::XGlobalHeader | EntryType::GNULongName | EntryType::GNULongLink
        ) {
            return Ok(false);
        }
        if entry.size() > MOST_WORDS {
            return Err(refused("the words about an entry are too long"));
        }
        let mut bytes = Vec::new();
        entry.take(MOST_WORDS).read_to_end(&mut bytes)?;
        let name = |bytes: &[u8]| bytes.split(|byte| *byte == 0).next().unwrap_or_default().to_vec();
        match kind {
            EntryType::GNULongName => self.path = Some(name(&bytes)),
            EntryType::GNULongLink => self.link = Some(name(&bytes)),
            EntryType::XHeader => self.read(&bytes)?,
            _ => {}
        }
        Ok(true)
    }

    fn read(&mut self, bytes: &[u8]) -> io::Result<()> {
        for (key, value) in records(bytes)? {
            let Ok(key) = std::str::from_utf8(key) else { continue };
            let value = value.to_vec();
            match key {
                "path" => self.path = Some(value),
                "linkpath" => self.link = Some(value),
                "size" | "GNU.sparse.map" | "GNU.sparse.major" => {
                    return Err(refused("its size is told in a way that is not understood"));
                }
                _ => self.attribute(key, value),
            }
        }
        Ok(())
    }

    /// Only those that a person gives to files, and none that means something to an overlay.
    fn attribute(&mut self, key: &str, value: Vec<u8>) {
        let name = key.strip_prefix(pack::ATTRIBUTE).filter(|name| {
            name.starts_with("user.") && !name.as_bytes().starts_with(tree::OVERLAY) && name.len() < 256
        });
        if let Some(Ok(name)) = name.map(CString::new)
            && self.attributes.len() < 64
        {
            self.attributes.push((name, value));
        }
    }
}

/// The words `LENGTH KEY=VALUE` and a newline, each; a value may hold any byte.
fn records(mut bytes: &[u8]) -> io::Result<Vec<(&[u8], &[u8])>> {
    let malformed = || refused("the words about an entry make no sense");
    let mut records = Vec::new();
    while !bytes.is_empty() {
        let space = bytes.iter().position(|byte| *byte == b' ').ok_or_else(malformed)?;
        let digits = bytes.get(..space).and_then(|digits| std::str::from_utf8(digits).ok());
        let length: usize = digits.and_then(|digits| digits.parse().ok()).ok_or_else(malformed)?;
        let (record, rest) = bytes.split_at_checked(length).ok_or_else(malformed)?;
        let record =
            record.get(space + 1..).and_then(|record| record.strip_suffix(b"\n")).ok_or_else(malformed)?;
        let equals = record.iter().position(|byte| *byte == b'=').ok_or_else(malformed)?;
        let (key, value) = record.split_at(equals);
        records.push((key, value.get(1..).unwrap_or_default()));
        bytes = rest;
    }
    Ok(records)
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

/// Zeros become holes.
fn write_sparse(from: &mut impl Read, mut to: &std::fs::File) -> io::Result<()> {
    let mut piece = vec![0u8; PIECE];
    let mut length = 0u64;
    loop {
        let mut filled = 0;
        while let Some(rest) = piece.get_mut(filled..).filter(|rest| !rest.is_empty()) {
            match from.read(rest)? {
                0 => break,
                count => filled += count,
            }
        }
        let Some(bytes) = piece.get(..filled).filter(|bytes| !bytes.is_empty()) else { break };
        length += u64::try_from(filled).unwrap_or(0);
        if bytes.iter().all(|byte| *byte == 0) {
            to.seek(SeekFrom::Start(length))?;
        } else {
            to.write_all(bytes)?;
        }
    }
    to.set_len(length)
}

fn owner(header: &tar::Header) -> io::Result<(u32, u32)> {
    let id = |id: u64| u32::try_from(id).map_err(|_| refused("its owner is no id"));
    Ok((id(header.uid()?)?, id(header.gid()?)?))
}

/// Owner and mode. An id that this sandbox does not have stays its root's.
fn give(file: BorrowedFd<'_>, owner: (u32, u32), mode: u32) -> io::Result<()> {
    match rustix::fs::fchown(file, Some(Uid::from_raw(owner.0)), Some(Gid::from_raw(owner.1))) {
        Ok(()) | Err(Errno::INVAL | Errno::PERM) => {}
        Err(err) => return Err(err.into()),
    }
    Ok(rustix::fs::fchmod(file, Mode::from_raw_mode(mode))?)
}

fn times(seconds: u64) -> Timestamps {
    let time = Timespec { tv_sec: i64::try_from(seconds).unwrap_or(0), tv_nsec: 0 };
    Timestamps { last_access: time, last_modification: time }
}

fn spend(bounds: &mut Bounds, bytes: u64) -> io::Result<()> {
    match bounds.bytes.checked_sub(bytes) {
        Some(left) => {
            bounds.bytes = left;
            Ok(())
        }
        None => Err(refused("it holds more than it may")),
    }
}

fn refused(why: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

/// Ends an archive that unpacks to more than the bound, whatever it calls it.
struct Limited<R> {
    from: R,
    bounds: u64,
}

impl<R: Read> Read for Limited<R> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let count = self.from.read(bytes)?;
        let left = self.bounds.checked_sub(u64::try_from(count).unwrap_or(u64::MAX));
        self.bounds = left.ok_or_else(|| refused("it holds more than it may"))?;
        Ok(count)
    }
}

#[cfg(test)]
mod tests;
