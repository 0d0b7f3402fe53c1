//! Headers of archives.

use super::{ATTRIBUTE, BLOCK, Entry, Kind, field, is_copied};
use std::ops::Range;

/// What an archive ends with.
pub const END: [u8; 2 * BLOCK] = [0; 2 * BLOCK];
/// The largest size that fits into its field.
const LARGEST: u64 = 0o77_777_777_777;

/// The header of an entry, with what does not fit into it before it.
pub fn head(entry: &Entry) -> Vec<u8> {
    let (kind, link): (u8, &[u8]) = match &entry.kind {
        Kind::File => (b'0', b""),
        Kind::HardLink(to) => (b'1', to),
        Kind::Link(to) => (b'2', to),
        Kind::Directory => (b'5', b""),
        Kind::Other => (b'6', b""),
    };
    let mut more = Vec::new();
    if entry.path.len() > field::NAME.len() {
        more.extend(record(b"path", &entry.path));
    }
    if link.len() > field::LINK.len() {
        more.extend(record(b"linkpath", link));
    }
    if entry.size > LARGEST {
        more.extend(record(b"size", entry.size.to_string().as_bytes()));
    }
    for (name, value) in entry.attributes.iter().filter(|(name, _)| is_copied(name)) {
        more.extend(record(&[ATTRIBUTE, name].concat(), value));
    }
    let mut bytes = Vec::new();
    if !more.is_empty() {
        let size = u64::try_from(more.len()).unwrap_or(0);
        bytes.extend(block(b"pax", b"", (b'x', 0o644, size, 0)));
        bytes.extend(&more);
        bytes.extend(padding(size));
    }
    bytes.extend(block(&entry.path, link, (kind, entry.mode, entry.size, entry.mtime)));
    bytes
}

/// What stands between the bytes of an entry and the next header.
pub fn padding(size: u64) -> &'static [u8] {
    let over = usize::try_from(size % 512).unwrap_or(0);
    END.get(..(BLOCK - over) % BLOCK).unwrap_or_default()
}

fn block(path: &[u8], link: &[u8], (kind, mode, size, mtime): (u8, u32, u64, u64)) -> [u8; BLOCK] {
    let mut block = [0u8; BLOCK];
    put(&mut block, field::NAME, path);
    number(&mut block, field::MODE, u64::from(mode & 0o7777));
    number(&mut block, field::UID, 0);
    number(&mut block, field::GID, 0);
    number(&mut block, field::SIZE, size.min(LARGEST));
    number(&mut block, field::MTIME, mtime.min(LARGEST));
    put(&mut block, field::CHECKSUM, b"        ");
    put(&mut block, field::TYPE, &[kind]);
    put(&mut block, field::LINK, link);
    put(&mut block, field::MAGIC, b"ustar\x0000");
    let sum: u64 = block.iter().map(|byte| u64::from(*byte)).sum();
    put(&mut block, field::CHECKSUM, format!("{sum:06o}\0 ").as_bytes());
    block
}

fn number(block: &mut [u8; BLOCK], field: Range<usize>, value: u64) {
    let digits = field.len().saturating_sub(1);
    put(block, field, format!("{value:0digits$o}").as_bytes());
}

/// As much as fits.
fn put(block: &mut [u8; BLOCK], field: Range<usize>, bytes: &[u8]) {
    if let Some(place) = block.get_mut(field) {
        place.iter_mut().zip(bytes).for_each(|(place, byte)| *place = *byte);
    }
}

/// A record of a pax header: its own length in decimal, a key, a value.
fn record(key: &[u8], value: &[u8]) -> Vec<u8> {
    let rest = key.len() + value.len() + 3;
    let mut length = rest + 1;
    while length.to_string().len() + rest != length {
        length = length.to_string().len() + rest;
    }
    let length = format!("{length} ");
    [length.as_bytes(), key, b"=", value, b"\n"].concat()
}
