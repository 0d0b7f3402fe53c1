//! A layer written straight from what is copied: an archive in gzip, sorted, without anything of this machine in it.

use super::{
    transfer::{Item, Items},
    tree::Kind,
};
use crate::digest::{Digest, Hasher};
use flate2::{Compression, GzBuilder, write::GzEncoder};
use std::io::{self, Read, Write};
use tar::{Builder, EntryType, Header};

/// A layer that was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Written {
    /// The digest of the compressed archive.
    pub digest: Digest,
    /// Its bytes.
    pub size: u64,
    /// The digest of the archive itself.
    pub diff: Digest,
}

/// Gives the content of an item.
pub type Open<'o, 'c> = &'o mut dyn FnMut(&[u8], &Item) -> io::Result<Box<dyn Read + 'c>>;

/// A digest of the entries of a layer: names, kinds, modes, owners and contents. Times make no difference.
pub fn key(items: &Items) -> Digest {
    let mut hasher = Hasher::new();
    for (path, Item { node, origin }) in items {
        let kind = match &node.kind {
            Kind::Directory => "d".to_owned(),
            Kind::File { size, sum } => {
                format!("f {size} {}", sum.as_ref().map(Digest::hex).unwrap_or_default())
            }
            Kind::Link(to) => format!("l {}", data_encoding::HEXLOWER.encode(to)),
            Kind::Other => "o".to_owned(),
        };
        let (mode, uid, gid) = (node.mode, node.uid, node.gid);
        // A directory that was there already keeps its time; a copied one has none.
        let is_copied = origin.is_some();
        let attributes = &node.attributes;
        let line = format!(
            "{} {kind} {mode:o} {uid} {gid} {is_copied} {attributes:?}\n",
            data_encoding::HEXLOWER.encode(path)
        );
        hasher.update(line.as_bytes());
    }
    hasher.finish()
}

/// Writes the layer. `mtime` is the time of everything in it; `open` gives the content of an item.
pub fn write<'c>(items: &Items, mtime: u64, out: &mut dyn Write, open: Open<'_, 'c>) -> io::Result<Written> {
    let compressed = Counted { to: out, hasher: Hasher::new() };
    let encoder: GzEncoder<_> = GzBuilder::new().write(compressed, Compression::default());
    let mut builder = Builder::new(Counted { to: encoder, hasher: Hasher::new() });
    for (path, item) in items.iter().filter(|(path, _)| !path.is_empty()) {
        append(&mut builder, path, item, mtime, open)?;
    }
    let plain = builder.into_inner()?;
    let diff = plain.hasher.finish();
    let compressed = plain.to.finish()?;
    let size = compressed.hasher.bytes();
    Ok(Written { digest: compressed.hasher.finish(), size, diff })
}

fn append<'c, W: Write>(
    builder: &mut Builder<W>,
    path: &[u8],
    item: &Item,
    mtime: u64,
    open: Open<'_, 'c>,
) -> io::Result<()> {
    let node = &item.node;
    let mut header = Header::new_ustar();
    header.set_mode(node.mode);
    header.set_uid(node.uid.into());
    header.set_gid(node.gid.into());
    header.set_mtime(mtime);
    header.set_size(0);
    let mut more: Vec<(String, Vec<u8>)> =
        node.attributes.iter().map(|(name, value)| (format!("SCHILY.xattr.{name}"), value.clone())).collect();
    let mut name = path.to_vec();
    let mut content: Box<dyn Read + 'c> = Box::new(io::empty());
    match &node.kind {
        Kind::Directory => {
            header.set_entry_type(EntryType::Directory);
            name.push(b'/');
        }
        Kind::File { size, .. } => {
            header.set_entry_type(EntryType::Regular);
            header.set_size(*size);
            content = open(path, item)?;
        }
        Kind::Link(to) => {
            header.set_entry_type(EntryType::Symlink);
            if !put(header.as_ustar_mut().map(|ustar| &mut ustar.linkname[..]), to) {
                more.push(("linkpath".to_owned(), to.clone()));
            }
        }
        Kind::Other => return Ok(()),
    }
    if !put(header.as_ustar_mut().map(|ustar| &mut ustar.name[..]), &name) {
        more.push(("path".to_owned(), name));
    }
    if !more.is_empty() {
        builder.append_pax_extensions(more.iter().map(|(key, value)| (key.as_str(), value.as_slice())))?;
    }
    header.set_cksum();
    let size = header.entry_size()?;
    let mut exact = content.take(size);
    builder.append(&header, &mut exact)?;
    if exact.limit() > 0 {
        return Err(io::Error::other(format!("{} became shorter meanwhile", String::from_utf8_lossy(path))));
    }
    Ok(())
}

/// Puts a text into a field of a header, if there is room for it and its closing zero.
fn put(field: Option<&mut [u8]>, text: &[u8]) -> bool {
    let Some(field) = field.filter(|field| text.len() < field.len()) else { return false };
    field.iter_mut().zip(text).for_each(|(to, from)| *to = *from);
    true
}

/// Passes bytes on and hashes them.
struct Counted<W> {
    to: W,
    hasher: Hasher,
}

impl<W: Write> Write for Counted<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.to.write(bytes)?;
        self.hasher.update(bytes.get(..count).unwrap_or_default());
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::build::tree::{Node, index};

    #[test]
    fn what_was_written_is_read_again_and_has_the_same_digest() {
        let long = vec![b'n'; 200];
        let content = b"content";
        let file = Kind::File { size: 7, sum: Some(Digest::of(content)) };
        let items = Items::from([
            (b"d".to_vec(), Item { node: Node::directory(), origin: None }),
            (long.clone(), Item { node: Node::of(file, 0o4755), origin: Some(0) }),
            (b"d/l".to_vec(), Item { node: Node::of(Kind::Link(long.clone()), 0o777), origin: None }),
        ]);
        let mut twice = Vec::new();
        for _ in 0..2 {
            let mut bytes = Vec::new();
            let written = write(&items, 5, &mut bytes, &mut |_, _| Ok(Box::new(content.as_slice()))).unwrap();
            assert_eq!(written.digest, Digest::of(&bytes));
            twice.push((written, bytes));
        }
        assert_eq!(twice[0], twice[1]);
        let plain = flate2::read::GzDecoder::new(twice[0].1.as_slice());
        let found = index::read(plain, index::Whiteouts::Mean).unwrap();
        let node = |kind: &Node| Node { mtime: 5, ..kind.clone() };
        let wanted: Vec<index::Entry> =
            items.iter().map(|(path, item)| index::Entry::Node(path.clone(), node(&item.node))).collect();
        assert_eq!(found, wanted);
    }
}
