//! An OCI layer of a tree: a tar archive in which whiteouts have the form that OCI gives them. The same tree gives the same
//! bytes.

use super::{
    Error,
    compression::{Compression, Encoder},
    failed,
    tree::{self, attributes, open_file},
    walk::{Entry, Step, walk},
};
use rustix::fs::{FileType, Stat};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use std::{
    collections::BTreeMap,
    io::{self, Read as _, Write},
    os::fd::BorrowedFd,
};
use tar::{Builder, EntryType, Header};

/// What a layer became.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Packed {
    /// SHA-256 of the compressed archive, in hexadecimal digits.
    pub digest: String,
    /// Its bytes.
    pub size: u64,
    /// SHA-256 of the archive itself.
    pub diff_id: String,
    /// Entries in it.
    pub entries: u64,
    /// Entries whose names mean something else in this form, and sockets: they are not in it.
    pub left_out: u64,
}

/// How a layer is packed.
#[derive(Debug, Clone, Copy)]
pub struct Form<'a> {
    /// Where the tree stands inside, without slashes at its ends.
    pub prefix: &'a [u8],
    /// Names at its top that are left out.
    pub without: &'a [&'a str],
    /// How it is compressed.
    pub compression: Compression,
    /// How hard that tries.
    pub level: i32,
    /// Nothing in it was changed after this second.
    pub not_after: Option<u64>,
    /// Whether the tree itself is an entry.
    pub top: Top,
    /// Which attributes come with it.
    pub attributes: Attributes,
    /// What the tree is.
    pub holds: Holds,
    /// Whose things were below, where the disk cannot say whose they are.
    pub below: Option<&'a Below>,
}

/// Whose things are that are not root's.
pub type Below = BTreeMap<Vec<u8>, (u32, u32)>;

impl Form<'static> {
    /// A part of a sandbox, for another machine's airlock.
    pub fn of_sandbox(level: i32) -> Form<'static> {
        Form {
            prefix: b"",
            without: &[],
            compression: Compression::Zstd,
            level,
            not_after: None,
            top: Top::Told,
            attributes: Attributes::Persons,
            holds: Holds::Changes,
            below: None,
        }
    }

    /// A layer of an image.
    pub fn of_image(compression: Compression, not_after: Option<u64>) -> Form<'static> {
        let level = if compression == Compression::Gzip { 6 } else { 3 };
        Form {
            prefix: b"",
            without: &[],
            compression,
            level,
            not_after,
            top: Top::ToldIfOdd,
            attributes: Attributes::AndCapabilities,
            holds: Holds::Changes,
            below: None,
        }
    }

    /// A root file system, as it is.
    pub fn of_root(not_after: Option<u64>) -> Form<'static> {
        Form { holds: Holds::Everything, ..Form::of_image(Compression::Plain, not_after) }
    }
}

/// Whether a tree itself is an entry of its archive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Top {
    /// Always.
    Told,
    /// Where it is something else than a directory of root's that all may read.
    ToldIfOdd,
}

/// What a tree is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Holds {
    /// What was changed in whatever lies below it.
    Changes,
    /// All there is.
    Everything,
}

/// Which extended attributes come into an archive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attributes {
    /// Those that a person gave.
    Persons,
    /// And capabilities of programs, as this process sees them.
    AndCapabilities,
}

/// How the names of whiteouts begin.
pub(super) const WHITEOUT: &[u8] = b".wh.";
/// What stands in a directory that hides all below it.
pub(super) const OPAQUE: &[u8] = b".wh..wh..opq";
/// How the names of extended attributes begin in an archive.
pub(super) const ATTRIBUTE: &str = "SCHILY.xattr.";
/// Paths of files with several names that are remembered; others become several files.
const MOST_LINK_BYTES: usize = 64 << 20;
/// Bytes that are compressed at once.
const PIECE: usize = 256 << 10;

/// Writes what is below `top` to `out`.
pub fn pack(
    top: BorrowedFd<'_>,
    form: Form<'_>,
    out: &mut dyn Write,
    progress: &mut dyn FnMut(u64),
) -> Result<Packed, Error> {
    pack_all(top, form, out, progress, &mut |visit| walk(top, visit))
}

/// What goes through a tree: it gives each step to whom it is told.
pub(super) type Walk<'a> =
    &'a mut dyn FnMut(&mut dyn FnMut(Step<'_>) -> Result<(), Error>) -> Result<(), Error>;

/// As [`pack`], with whatever `walk` comes to.
pub(super) fn pack_all(
    top: BorrowedFd<'_>,
    form: Form<'_>,
    out: &mut dyn Write,
    progress: &mut dyn FnMut(u64),
    walk: Walk<'_>,
) -> Result<Packed, Error> {
    let end = |err: io::Error| failed("write", b"the archive")(err);
    let compressed = Counted { to: out, hash: Sha256::new(), bytes: 0 };
    let encoder = Encoder::new(compressed, form.compression, form.level).map_err(end)?;
    let plain = Counted { to: encoder, hash: Sha256::new(), bytes: 0 };
    let mut packing = Packing {
        form,
        to: Builder::new(io::BufWriter::with_capacity(PIECE, plain)),
        links: BTreeMap::new(),
        held: 0,
        entries: 0,
        left_out: 0,
        progress,
    };
    packing.top(top).map_err(failed("pack", b"."))?;
    walk(&mut |step| match step {
        Step::Enter(entry) | Step::Meet(entry) => {
            let step = failed("pack", entry.path);
            packing.add(&entry).map_err(step)
        }
        Step::Leave(_) => Ok(()),
    })?;
    let Packing { to, entries, left_out, .. } = packing;
    let plain = to.into_inner().and_then(|plain| Ok(plain.into_inner()?)).map_err(end)?;
    let diff_id = hexadecimal(plain.hash);
    let compressed = plain.to.finish().map_err(end)?;
    let (digest, size) = (hexadecimal(compressed.hash), compressed.bytes);
    Ok(Packed { digest, size, diff_id, entries, left_out })
}

/// Digits of a digest.
pub fn hexadecimal(hash: Sha256) -> String {
    data_encoding::HEXLOWER.encode(&hash.finalize())
}

struct Packing<'a, W: Write> {
    form: Form<'a>,
    to: Builder<W>,
    /// Files with several names: where each was met first.
    links: BTreeMap<(u64, u64), Vec<u8>>,
    held: usize,
    entries: u64,
    left_out: u64,
    progress: &'a mut dyn FnMut(u64),
}

impl<W: Write> Packing<'_, W> {
    /// The owner and mode of the tree itself. It does not count as an entry.
    fn top(&mut self, top: BorrowedFd<'_>) -> io::Result<()> {
        let mut stat = rustix::fs::fstat(top)?;
        self.as_below(&mut stat, b"");
        if self.form.top == Top::ToldIfOdd
            && (stat.st_uid, stat.st_gid, stat.st_mode & 0o7777) == (0, 0, 0o755)
        {
            return Ok(());
        }
        let mut header = self.header(EntryType::Directory, &stat, 0);
        let path =
            if self.form.prefix.is_empty() { b"./".to_vec() } else { [self.form.prefix, b"/"].concat() };
        if !put(&mut header.as_ustar_mut().map(|ustar| &mut ustar.name[..]), &path) {
            self.to.append_pax_extensions([("path", path.as_slice())])?;
        }
        header.set_cksum();
        self.to.append(&header, io::empty())
    }

    fn add(&mut self, entry: &Entry<'_>) -> io::Result<()> {
        let (name, stat) = (entry.name.to_bytes(), entry.stat);
        let is_at_top = !entry.path.contains(&b'/');
        if is_at_top && self.form.without.iter().any(|without| without.as_bytes() == name) {
            return Ok(());
        }
        if tree::is_whiteout(stat) {
            let path = beside(&self.path(entry.path), WHITEOUT, name);
            let mut stat = *stat;
            if self.form.below.is_some() {
                // Whoever deletes, it is root's.
                (stat.st_uid, stat.st_gid) = (0, 0);
            }
            return self.empty(&path, &stat);
        }
        if name.starts_with(WHITEOUT) {
            self.left_out += 1;
            return Ok(());
        }
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => self.directory(entry),
            FileType::RegularFile => self.file(entry),
            FileType::Symlink => {
                let target = rustix::fs::readlinkat(entry.parent, entry.name, Vec::new())?;
                self.write(
                    EntryType::Symlink,
                    entry,
                    &[("linkpath", target.to_bytes())],
                    (0, &mut io::empty()),
                )
            }
            FileType::Fifo => self.write(EntryType::Fifo, entry, &[], (0, &mut io::empty())),
            _ => {
                self.left_out += 1;
                Ok(())
            }
        }
    }

    fn directory(&mut self, entry: &Entry<'_>) -> io::Result<()> {
        let found = entry.directory.map(attributes).transpose()?.unwrap_or_default();
        let stat = self.stat(entry, &found);
        let entry = &Entry { stat: &stat, ..*entry };
        let told = self.told(&found);
        let extras: Vec<(&str, &[u8])> = told.iter().map(|(name, value)| (name.as_str(), *value)).collect();
        self.write(EntryType::Directory, entry, &extras, (0, &mut io::empty()))?;
        let is_opaque = |found: &[(std::ffi::CString, Vec<u8>)]| {
            found.iter().any(|(name, value)| name.as_c_str() == tree::OPAQUE && value == b"y")
        };
        if self.form.holds == Holds::Changes && is_opaque(&found) {
            let mut path = self.path(entry.path);
            path.push(b'/');
            path.extend_from_slice(OPAQUE);
            self.empty(&path, entry.stat)?;
        }
        Ok(())
    }

    fn file(&mut self, entry: &Entry<'_>) -> io::Result<()> {
        let stat = entry.stat;
        let key = (stat.st_dev, stat.st_ino);
        if let Some(first) = self.links.get(&key).cloned() {
            return self.write(EntryType::Link, entry, &[("linkpath", &first)], (0, &mut io::empty()));
        }
        let file = open_file(entry.parent, entry.name)?;
        let found = attributes(std::os::fd::AsFd::as_fd(&file))?;
        let told = self.told(&found);
        let extras: Vec<(&str, &[u8])> = told.iter().map(|(name, value)| (name.as_str(), *value)).collect();
        let size = u64::try_from(stat.st_size).unwrap_or(0);
        let copied = self.stat(entry, &found);
        let entry = &Entry { stat: &copied, ..*entry };
        self.write(EntryType::Regular, entry, &extras, (size, &mut file.take(size)))?;
        let path = self.path(entry.path);
        if stat.st_nlink > 1 && self.held + path.len() <= MOST_LINK_BYTES {
            self.held += path.len();
            self.links.insert(key, path);
        }
        (self.progress)(size);
        Ok(())
    }

    /// What an entry is. What was copied from below belongs to whom it belonged there: where the disk cannot say whose things
    /// are, nobody could give it away.
    fn stat(&self, entry: &Entry<'_>, found: &[(std::ffi::CString, Vec<u8>)]) -> Stat {
        let mut stat = *entry.stat;
        if found.iter().any(|(name, _)| name.as_c_str() == tree::ORIGIN) {
            self.as_below(&mut stat, entry.path);
        }
        stat
    }

    fn as_below(&self, stat: &mut Stat, path: &[u8]) {
        if let Some(below) = self.form.below {
            (stat.st_uid, stat.st_gid) = below.get(path).copied().unwrap_or((0, 0));
        }
    }

    /// One entry. `extras` are further words about it; a name is among them where the header is too short for it.
    fn write(
        &mut self,
        kind: EntryType,
        entry: &Entry<'_>,
        extras: &[(&str, &[u8])],
        (size, data): (u64, &mut dyn io::Read),
    ) -> io::Result<()> {
        let mut path = self.path(entry.path);
        if kind == EntryType::Directory {
            path.push(b'/');
        }
        let mut extras = extras.to_vec();
        let mut header = self.header(kind, entry.stat, size);
        if !put(&mut header.as_ustar_mut().map(|ustar| &mut ustar.name[..]), &path) {
            extras.push(("path", &path));
        }
        if let Some(at) = extras.iter().position(|(key, _)| *key == "linkpath")
            && let Some((_, target)) = extras.get(at).copied()
            && put(&mut header.as_ustar_mut().map(|ustar| &mut ustar.linkname[..]), target)
        {
            extras.remove(at);
        }
        if !extras.is_empty() {
            self.to.append_pax_extensions(extras)?;
        }
        header.set_cksum();
        let mut exact = Exact { from: data, left: size };
        self.to.append(&header, &mut exact)?;
        self.entries += 1;
        Ok(())
    }

    /// A file that is there by its name alone.
    fn empty(&mut self, path: &[u8], stat: &Stat) -> io::Result<()> {
        let mut header = self.header(EntryType::Regular, stat, 0);
        header.set_mode(0o644);
        if !put(&mut header.as_ustar_mut().map(|ustar| &mut ustar.name[..]), path) {
            self.to.append_pax_extensions([("path", path)])?;
        }
        header.set_cksum();
        self.to.append(&header, io::empty())?;
        self.entries += 1;
        Ok(())
    }

    fn header(&self, kind: EntryType, stat: &Stat, size: u64) -> Header {
        let mut header = Header::new_ustar();
        header.set_entry_type(kind);
        header.set_size(size);
        header.set_mode(stat.st_mode & 0o7777);
        header.set_uid(u64::from(stat.st_uid));
        header.set_gid(u64::from(stat.st_gid));
        let time = u64::try_from(stat.st_mtime).unwrap_or(0);
        header.set_mtime(time.min(self.form.not_after.unwrap_or(u64::MAX)));
        header
    }

    /// Attributes as an archive names them. Those of overlays have a form of their own, or mean nothing elsewhere.
    fn told<'a>(&self, found: &'a [(std::ffi::CString, Vec<u8>)]) -> Vec<(String, &'a [u8])> {
        let mut told = Vec::new();
        for (name, value) in found {
            let is_power =
                name.as_c_str() == tree::CAPABILITY && self.form.attributes == Attributes::AndCapabilities;
            let Ok(name) = name.to_str() else { continue };
            let is_plain = name.starts_with("user.")
                && !name.as_bytes().starts_with(tree::OVERLAY)
                && !name.contains('=');
            if is_plain || is_power {
                told.push((format!("{ATTRIBUTE}{name}"), value.as_slice()));
            }
        }
        told.sort();
        told
    }

    fn path(&self, path: &[u8]) -> Vec<u8> {
        match self.form.prefix {
            b"" => path.to_vec(),
            prefix => [prefix, b"/", path].concat(),
        }
    }
}

/// Puts a text into a field of a header, if there is room for it and its closing zero.
fn put(field: &mut Option<&mut [u8]>, text: &[u8]) -> bool {
    let Some(field) = field.as_deref_mut().filter(|field| text.len() < field.len()) else { return false };
    field.iter_mut().zip(text).for_each(|(to, from)| *to = *from);
    true
}

/// The path of something beside another.
fn beside(path: &[u8], before: &[u8], name: &[u8]) -> Vec<u8> {
    let parent = path.len().saturating_sub(name.len());
    [path.get(..parent).unwrap_or_default(), before, name].concat()
}

/// Gives exactly so many bytes, or fails.
struct Exact<'a> {
    from: &'a mut dyn io::Read,
    left: u64,
}

impl io::Read for Exact<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let count = self.from.read(bytes)?;
        self.left = self.left.saturating_sub(u64::try_from(count).unwrap_or(u64::MAX));
        match count {
            0 if self.left > 0 && !bytes.is_empty() => Err(io::Error::other("it became shorter meanwhile")),
            count => Ok(count),
        }
    }
}

/// Passes bytes on, counts and hashes them.
struct Counted<W> {
    to: W,
    hash: Sha256,
    bytes: u64,
}

impl<W: Write> Write for Counted<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.to.write(bytes)?;
        self.hash.update(bytes.get(..count).unwrap_or_default());
        self.bytes += u64::try_from(count).unwrap_or(0);
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}
