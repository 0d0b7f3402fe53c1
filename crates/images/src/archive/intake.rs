//! What an archive holds, taken in by one pass: content goes to the store by its digest, small files are remembered, links
//! are followed by name within the archive.

use std::{
    collections::BTreeMap,
    io::{self, BufRead, Read},
};

use airlock_files::layers::archive::{Kind, Reader};

use super::Error;
use crate::{digest::Digest, manifest, store::Hold};

/// What came.
pub(super) struct Intake<'a> {
    hold: &'a Hold,
    /// Hears of bytes.
    progress: &'a mut dyn FnMut(u64),
    /// Small files that may describe something, by name.
    small: BTreeMap<String, Vec<u8>>,
    held: u64,
    /// Content in the store, by its name in the archive.
    blobs: BTreeMap<String, Digest>,
    /// Symbolic and hard links.
    links: BTreeMap<String, String>,
    entries: usize,
}

/// Most entries of an archive.
const MOST_ENTRIES: usize = 20_000;
/// Most bytes of small files together.
const MOST_HELD: u64 = 64 << 20;
/// The longest chain of links.
const MOST_LINKS: usize = 10;
/// Bytes that are read at a time.
const PIECE: usize = 256 << 10;

impl<'a> Intake<'a> {
    /// Nothing yet.
    pub(super) fn new(hold: &'a Hold, progress: &'a mut dyn FnMut(u64)) -> Self {
        let (small, blobs, links) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Self { hold, progress, small, held: 0, blobs, links, entries: 0 }
    }

    /// Takes in an archive that is not compressed.
    pub(super) fn archive(&mut self, from: impl BufRead) -> Result<(), Error> {
        let mut reader = Reader::new(from);
        while let Some(entry) = reader.next_entry().map_err(Error::Read)? {
            self.count()?;
            let Some(name) = clean(&entry.path) else { continue };
            match entry.kind {
                Kind::File if entry.pieces != [(0, entry.size)] && entry.size > 0 => {
                    return Err(Error::Refused(format!("{} is a sparse file", told(&name))));
                }
                Kind::File => {
                    let size = entry.size;
                    self.file(&name, size, &mut Bytes(&mut reader))?;
                }
                Kind::Symlink | Kind::Link => {
                    let base = if entry.kind == Kind::Symlink { parent(&name) } else { "" };
                    let target = String::from_utf8_lossy(&entry.link).into_owned();
                    let target = clean(format!("{base}/{target}").as_bytes());
                    self.links.extend(target.map(|target| (name, target)));
                }
                Kind::Directory | Kind::Fifo | Kind::Device => {}
            }
        }
        Ok(())
    }

    /// Takes in one file.
    pub(super) fn file(&mut self, name: &str, size: u64, from: &mut dyn Read) -> Result<(), Error> {
        self.links.remove(name);
        let is_json = name.ends_with(".json") || matches!(name, "oci-layout" | "repositories");
        if is_json && size <= manifest::MOST_BYTES {
            self.held = self.held.saturating_add(size);
            if self.held > MOST_HELD {
                return Err(Error::Refused("its small files are too many".to_owned()));
            }
            let mut bytes = Vec::new();
            from.read_to_end(&mut bytes).map_err(Error::Read)?;
            self.small.insert(name.to_owned(), bytes);
            return Ok(());
        }
        let wanted = name.strip_prefix("blobs/sha256/").and_then(Digest::from_hex);
        let is_here = |digest: &Digest| {
            self.hold.blob_size(digest) == Some(size) && self.hold.check_blob(digest).is_ok()
        };
        if let Some(digest) = wanted.filter(is_here) {
            self.blobs.insert(name.to_owned(), digest);
            return Ok(());
        }
        let mut spool = self.hold.spool()?;
        let mut piece = vec![0u8; PIECE];
        loop {
            let count = match from.read(&mut piece) {
                Ok(0) => break,
                Ok(count) => count,
                Err(err) if err.kind() == io::ErrorKind::Interrupted => continue,
                Err(err) => return Err(Error::Read(err)),
            };
            spool.append(piece.get(..count).unwrap_or_default())?;
            (self.progress)(u64::try_from(count).unwrap_or(0));
        }
        let digest = match wanted {
            Some(wanted) => spool.finish_as(&wanted).map(|()| wanted)?,
            None => spool.finish()?,
        };
        self.blobs.insert(name.to_owned(), digest);
        Ok(())
    }

    /// A file that describes something.
    pub(super) fn small(&self, name: &str) -> Result<Option<Vec<u8>>, Error> {
        let name = self.followed(name);
        if let Some(bytes) = self.small.get(&name) {
            return Ok(Some(bytes.clone()));
        }
        match self.blobs.get(&name) {
            Some(digest) => Ok(Some(self.hold.read_blob(digest, manifest::MOST_BYTES)?)),
            None => Ok(None),
        }
    }

    /// Content that is in the store now.
    pub(super) fn blob(&self, name: &str) -> Option<Digest> {
        self.blobs.get(&self.followed(name)).copied()
    }

    fn followed(&self, name: &str) -> String {
        let mut name = clean(name.as_bytes()).unwrap_or_default();
        for _ in 0..MOST_LINKS {
            match self.links.get(&name) {
                Some(target) => name.clone_from(target),
                None => break,
            }
        }
        name
    }

    fn count(&mut self) -> Result<(), Error> {
        self.entries += 1;
        match self.entries > MOST_ENTRIES {
            true => Err(Error::Refused("it has too many entries".to_owned())),
            false => Ok(()),
        }
    }
}

/// Of a name that somebody else chose, so much is told.
pub(super) fn told(name: &str) -> String {
    name.chars().take(100).flat_map(char::escape_default).collect()
}

/// A name without `.` and `..`; nothing if it leads out of the archive, or is none.
fn clean(path: &[u8]) -> Option<String> {
    let path = std::str::from_utf8(path).ok()?;
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()?),
            part => parts.push(part),
        }
    }
    (!parts.is_empty()).then(|| parts.join("/"))
}

fn parent(name: &str) -> &str {
    name.rsplit_once('/').map_or("", |(parent, _)| parent)
}

/// The bytes of the current entry.
struct Bytes<'a, R>(&'a mut Reader<R>);

impl<R: BufRead> Read for Bytes<'_, R> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let some = self.0.bytes()?;
        let count = some.len().min(bytes.len());
        bytes.iter_mut().zip(some).for_each(|(to, from)| *to = *from);
        self.0.pass(count);
        Ok(count)
    }
}
