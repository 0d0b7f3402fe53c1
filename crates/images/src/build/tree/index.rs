//! What one archive holds. What is read is hostile: whatever is not understood whole is refused.

use super::{Kind, Node, Place};
use crate::{build::path, digest::Hasher};
use serde::{Deserialize, Serialize};
use std::io::{self, Read};
use tar::{Archive, EntryType, Header, PaxExtensions};

/// Most entries of an archive.
const ENTRIES: usize = 4_000_000;
/// Most bytes of one extended header.
const EXTENDED: u64 = 1 << 20;
/// Longest path.
const PATH: usize = 4096;

/// One entry of an archive.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Entry {
    /// Something.
    Node(Vec<u8>, Node),
    /// Another name of an entry that came before.
    HardLink(Vec<u8>, Vec<u8>),
    /// Something in a lower layer is gone.
    Whiteout(Vec<u8>),
    /// Nothing of lower layers is seen in this directory.
    Opaque(Vec<u8>),
}

/// What names that begin with `.wh.` mean.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Whiteouts {
    /// In a layer: that something is gone.
    Mean,
    /// In any other archive: nothing.
    AreFiles,
}

/// Why an archive cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum Bad {
    /// It could not be read, or is none.
    #[error("it could not be read")]
    Read(#[from] io::Error),
    /// An entry is not taken.
    #[error("an entry of it is not taken: {0}")]
    Entry(&'static str),
    /// It has too many.
    #[error("it has more than {ENTRIES} entries")]
    Many,
}

/// Reads the names and digests of an archive that is not compressed.
pub fn read(from: impl Read, whiteouts: Whiteouts) -> Result<Vec<Entry>, Bad> {
    let mut found = Vec::new();
    each(from, |raw, content| {
        found.push(entry(&raw, content, whiteouts)?);
        if found.len() > ENTRIES { Err(Bad::Many) } else { Ok(()) }
    })?;
    Ok(found)
}

/// Whether this begins as an archive does: with a header that its checksum fits.
pub fn is_archive(mut from: impl Read) -> bool {
    let mut block = [0u8; 512];
    if from.read_exact(&mut block).is_err() || block.iter().all(|byte| *byte == 0) {
        return false;
    }
    let said = Header::from_byte_slice(&block).cksum().ok();
    let counts = |(at, byte): (usize, &u8)| if (148..156).contains(&at) { 32 } else { u32::from(*byte) };
    said == Some(block.iter().enumerate().map(counts).sum())
}

/// One entry as it stands, extended headers read.
pub(super) struct Raw {
    pub(super) path: Vec<u8>,
    link: Vec<u8>,
    header: Header,
    attributes: Vec<(String, Vec<u8>)>,
    uid: Option<u64>,
    gid: Option<u64>,
}

/// Extended headers before an entry.
#[derive(Default)]
struct More {
    path: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
    size: Option<u64>,
    uid: Option<u64>,
    gid: Option<u64>,
    attributes: Vec<(String, Vec<u8>)>,
}

/// Calls for each entry of an archive, with its content.
pub(super) fn each(
    from: impl Read,
    mut call: impl FnMut(Raw, &mut dyn Read) -> Result<(), Bad>,
) -> Result<(), Bad> {
    let mut archive = Archive::new(from);
    let mut more = More::default();
    for entry in archive.entries()?.raw(true) {
        let mut entry = entry?;
        let header = entry.header().clone();
        match header.entry_type() {
            EntryType::XHeader => more.read(&extended(&mut entry)?)?,
            EntryType::XGlobalHeader => drop(extended(&mut entry)?),
            EntryType::GNULongName => more.path = Some(until_zero(extended(&mut entry)?)),
            EntryType::GNULongLink => more.link = Some(until_zero(extended(&mut entry)?)),
            EntryType::GNUSparse => return Err(Bad::Entry("a sparse file")),
            _ => {
                let more = std::mem::take(&mut more);
                if more.size.is_some_and(|size| header.entry_size().ok() != Some(size)) {
                    return Err(Bad::Entry("two sizes"));
                }
                let link = header.link_name_bytes().map(|link| link.into_owned()).unwrap_or_default();
                let raw = Raw {
                    path: more.path.unwrap_or_else(|| entry.path_bytes().into_owned()),
                    link: more.link.unwrap_or(link),
                    header,
                    attributes: more.attributes,
                    uid: more.uid,
                    gid: more.gid,
                };
                if raw.path.len() > PATH || raw.link.len() > PATH {
                    return Err(Bad::Entry("a path that is too long"));
                }
                call(raw, &mut entry)?;
            }
        }
    }
    Ok(())
}

impl More {
    fn read(&mut self, bytes: &[u8]) -> Result<(), Bad> {
        for pair in PaxExtensions::new(bytes) {
            let pair = pair?;
            let Ok(key) = pair.key() else { continue };
            let value = pair.value_bytes();
            let number = || pair.value().ok().and_then(|value| value.parse::<u64>().ok());
            match key {
                "path" => self.path = Some(value.to_vec()),
                "linkpath" => self.link = Some(value.to_vec()),
                "size" => self.size = Some(number().ok_or(Bad::Entry("a size that is none"))?),
                "uid" => self.uid = number(),
                "gid" => self.gid = number(),
                key if key.starts_with("GNU.sparse.") => return Err(Bad::Entry("a sparse file")),
                key => {
                    if let Some(name) = key.strip_prefix("SCHILY.xattr.") {
                        self.attributes.push((name.to_owned(), value.to_vec()));
                    }
                }
            }
        }
        Ok(())
    }
}

fn extended(entry: &mut impl Read) -> Result<Vec<u8>, Bad> {
    let mut bytes = Vec::new();
    entry.take(EXTENDED + 1).read_to_end(&mut bytes)?;
    if u64::try_from(bytes.len()).unwrap_or(u64::MAX) > EXTENDED {
        return Err(Bad::Entry("an extended header that is too long"));
    }
    Ok(bytes)
}

fn until_zero(mut bytes: Vec<u8>) -> Vec<u8> {
    if let Some(at) = bytes.iter().position(|byte| *byte == 0) {
        bytes.truncate(at);
    }
    bytes
}

fn entry(raw: &Raw, content: &mut dyn Read, whiteouts: Whiteouts) -> Result<Entry, Bad> {
    let place = path::relative(&raw.path);
    if raw.path.split(|byte| *byte == b'/').any(|part| part == b"..") {
        return Err(Bad::Entry("a path that leads out"));
    }
    let (parent, name) = path::last(&place);
    if whiteouts == Whiteouts::Mean {
        if name == b".wh..wh..opq" {
            return Ok(Entry::Opaque(parent.to_vec()));
        }
        if let Some(hidden) = name.strip_prefix(b".wh.") {
            return Ok(Entry::Whiteout(path::below(parent, hidden)));
        }
    }
    let kind = match raw.header.entry_type() {
        EntryType::Directory => Kind::Directory,
        EntryType::Regular | EntryType::Continuous if raw.path.ends_with(b"/") => Kind::Directory,
        EntryType::Regular | EntryType::Continuous => digested(content)?,
        EntryType::Symlink => Kind::Link(raw.link.clone()),
        EntryType::Link => return Ok(Entry::HardLink(place, path::relative(&raw.link))),
        _ => Kind::Other,
    };
    let id = |said: Option<u64>, header: io::Result<u64>| {
        let id = said.map_or(header, Ok)?;
        u32::try_from(id).map_err(|_| Bad::Entry("an owner that is none"))
    };
    let node = Node {
        kind,
        mode: raw.header.mode()? & 0o7777,
        uid: id(raw.uid, raw.header.uid())?,
        gid: id(raw.gid, raw.header.gid())?,
        mtime: raw.header.mtime().unwrap_or(0),
        attributes: raw.attributes.clone(),
        place: Place::default(),
    };
    Ok(Entry::Node(place, node))
}

fn digested(content: &mut dyn Read) -> Result<Kind, Bad> {
    let mut hasher = Hasher::new();
    let mut buffer = vec![0; 128 << 10];
    loop {
        let count = content.read(&mut buffer)?;
        if count == 0 {
            break;
        }
        hasher.update(buffer.get(..count).unwrap_or_default());
    }
    let size = hasher.bytes();
    Ok(Kind::File { size, sum: Some(hasher.finish()) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::digest::Digest;
    use proptest::prelude::*;

    #[test]
    fn an_archive_is_read_with_its_owners_and_digests() {
        let mut builder = tar::Builder::new(Vec::new());
        let mut header = Header::new_gnu();
        header.set_size(2);
        header.set_mode(0o4755);
        header.set_uid(7);
        header.set_gid(8);
        header.set_mtime(9);
        builder.append_data(&mut header, "x".repeat(150), b"hi".as_slice()).unwrap();
        let mut header = Header::new_gnu();
        header.set_size(0);
        builder.append_data(&mut header, "d/.wh.gone", io::empty()).unwrap();
        let bytes = builder.into_inner().unwrap();
        assert!(is_archive(bytes.as_slice()) && !is_archive([b'x'; 600].as_slice()));
        let found = read(bytes.as_slice(), Whiteouts::Mean).unwrap();
        let kind = Kind::File { size: 2, sum: Some(Digest::of(b"hi")) };
        let node = Node { mode: 0o4755, uid: 7, gid: 8, mtime: 9, ..Node::of(kind, 0) };
        assert_eq!(found, [Entry::Node(vec![b'x'; 150], node), Entry::Whiteout(b"d/gone".to_vec())]);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..2048)) {
            let _ = read(bytes.as_slice(), Whiteouts::Mean);
        }
    }
}
