//! Reading archives. What is read is hostile.

use super::{ATTRIBUTE, BLOCK, Entry, Kind, LONGEST_PATH, MOST_ATTRIBUTES, field, is_copied, numbers};
use std::{
    io::{self, Read},
    ops::Range,
};

/// Bytes that are not an archive, or one with something in it that is not taken.
#[derive(Debug, thiserror::Error)]
pub enum Malformed {
    /// It could not be read.
    #[error("it could not be read")]
    Read(#[source] io::Error),
    /// It ends in the middle.
    #[error("it ends in the middle")]
    Truncated,
    /// It is compressed.
    #[error("it is compressed with {0}")]
    Compressed(&'static str),
    /// A header is not what its checksum says.
    #[error("it is no tar archive, or it is damaged")]
    Checksum,
    /// A number is none.
    #[error("a number in a header is none")]
    Number,
    /// A name or a header is too long.
    #[error("a name in it is too long")]
    TooLong,
    /// A further header makes no sense.
    #[error("an extended header makes no sense")]
    Extended,
    /// Sparse files, and links and directories that have bytes.
    #[error(
        "it has an entry of a kind that is not taken (sparse files; write it with --format=pax and without --sparse)"
    )]
    Unsupported,
}

/// Most bytes of one extended header.
const MOST_EXTENDED: u64 = 1 << 20;
/// Most extended headers of one entry.
const MOST_HEADERS: usize = 16;

/// An archive being read.
#[derive(Debug)]
pub struct Reader<R> {
    from: R,
    /// Bytes of the current entry that were not read yet, and what follows them.
    left: u64,
    padding: u64,
    is_first: bool,
    is_over: bool,
}

/// What extended headers say of the next entry.
#[derive(Default)]
struct More {
    path: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
    size: Option<u64>,
    attributes: Vec<(Vec<u8>, Vec<u8>)>,
}

impl<R: Read> Reader<R> {
    /// Reads from here.
    pub fn new(from: R) -> Reader<R> {
        Reader { from, left: 0, padding: 0, is_first: true, is_over: false }
    }

    /// The next entry; what was not read of the current one is passed over. `None` at the end.
    #[expect(
        clippy::should_implement_trait,
        reason = "it can fail, and the entry's bytes are read in between"
    )]
    pub fn next(&mut self) -> Result<Option<Entry>, Malformed> {
        let mut more = More::default();
        for _ in 0..MOST_HEADERS {
            self.pass_over()?;
            let Some(block) = self.header()? else { return Ok(None) };
            let kind = byte(&block, field::TYPE);
            let size = number(part(&block, field::SIZE))?;
            match kind {
                b'x' => more.read(&self.extended(size)?)?,
                // What holds for all entries is of no interest.
                b'g' => drop(self.extended(size)?),
                b'L' => more.path = Some(until_zero(&self.extended(size)?).to_vec()),
                b'K' => more.link = Some(until_zero(&self.extended(size)?).to_vec()),
                b'S' => return Err(Malformed::Unsupported),
                kind => {
                    let entry = more.entry(&block, kind, size)?;
                    (self.left, self.padding) = (entry.size, to_block(entry.size));
                    return Ok(Some(entry));
                }
            }
        }
        Err(Malformed::Extended)
    }

    /// Bytes of the current entry; 0 when there are no more.
    pub fn read(&mut self, into: &mut [u8]) -> Result<usize, Malformed> {
        let most = usize::try_from(self.left).unwrap_or(usize::MAX).min(into.len());
        let Some(into) = into.get_mut(..most).filter(|into| !into.is_empty()) else { return Ok(0) };
        match read_some(&mut self.from, into)? {
            0 => Err(Malformed::Truncated),
            count => {
                self.left -= u64::try_from(count).unwrap_or(0).min(self.left);
                Ok(count)
            }
        }
    }

    /// Reads whatever comes after the end, so that whoever writes can finish; a bounded amount.
    pub fn drain(&mut self) {
        let mut rest = (&mut self.from).take(MOST_EXTENDED);
        let _ = io::copy(&mut rest, &mut io::sink());
    }

    fn pass_over(&mut self) -> Result<(), Malformed> {
        let rest = self.left.saturating_add(self.padding);
        (self.left, self.padding) = (0, 0);
        let passed = io::copy(&mut (&mut self.from).take(rest), &mut io::sink()).map_err(Malformed::Read)?;
        if passed == rest { Ok(()) } else { Err(Malformed::Truncated) }
    }

    /// The next header; none where the archive ends.
    fn header(&mut self) -> Result<Option<[u8; BLOCK]>, Malformed> {
        if self.is_over {
            return Ok(None);
        }
        let mut block = [0u8; BLOCK];
        let mut filled = 0;
        while let Some(rest) = block.get_mut(filled..).filter(|rest| !rest.is_empty()) {
            match read_some(&mut self.from, rest)? {
                0 => return Err(self.ended(block.get(..filled).unwrap_or_default())),
                count => filled += count,
            }
        }
        if block.iter().all(|byte| *byte == 0) {
            self.is_over = true;
            return Ok(None);
        }
        if !checks(&block) {
            return Err(compressed(&block).unwrap_or(Malformed::Checksum));
        }
        self.is_first = false;
        Ok(Some(block))
    }

    fn ended(&self, so_far: &[u8]) -> Malformed {
        match compressed(so_far) {
            Some(compressed) if self.is_first => compressed,
            _ => Malformed::Truncated,
        }
    }

    fn extended(&mut self, size: u64) -> Result<Vec<u8>, Malformed> {
        if size > MOST_EXTENDED {
            return Err(Malformed::TooLong);
        }
        (self.left, self.padding) = (size, to_block(size));
        let mut bytes = Vec::new();
        let mut piece = [0u8; BLOCK];
        while self.left > 0 {
            let count = self.read(&mut piece)?;
            bytes.extend(piece.get(..count).unwrap_or_default());
        }
        Ok(bytes)
    }
}

impl More {
    /// Takes in the records of a pax header: `LENGTH KEY=VALUE\n`.
    fn read(&mut self, mut bytes: &[u8]) -> Result<(), Malformed> {
        while !bytes.is_empty() {
            let space = bytes.iter().take(8).position(|byte| *byte == b' ').ok_or(Malformed::Extended)?;
            let length =
                numbers::decimal(bytes.get(..space).unwrap_or_default()).ok_or(Malformed::Extended)?;
            let length = usize::try_from(length).map_err(|_| Malformed::Extended)?;
            let record = bytes.get(space + 1..length).ok_or(Malformed::Extended)?;
            let record = record.strip_suffix(b"\n").ok_or(Malformed::Extended)?;
            let equals = record.iter().position(|byte| *byte == b'=').ok_or(Malformed::Extended)?;
            let (key, value) = record.split_at(equals);
            let value = value.get(1..).unwrap_or_default();
            match key {
                b"path" => self.path = Some(value.to_vec()),
                b"linkpath" => self.link = Some(value.to_vec()),
                b"size" => self.size = Some(numbers::decimal(value).ok_or(Malformed::Number)?),
                key if key.starts_with(ATTRIBUTE) => self.attribute(key, value),
                key if key.starts_with(b"GNU.sparse.") => return Err(Malformed::Unsupported),
                _ => {}
            }
            bytes = bytes.get(length..).unwrap_or_default();
        }
        Ok(())
    }

    /// What is not copied, and what is too much, is passed over.
    fn attribute(&mut self, key: &[u8], value: &[u8]) {
        let name = key.strip_prefix(ATTRIBUTE).unwrap_or_default();
        let so_far: usize = self.attributes.iter().map(|(name, value)| name.len() + value.len()).sum();
        if is_copied(name) && so_far + name.len() + value.len() <= MOST_ATTRIBUTES {
            self.attributes.push((name.to_vec(), value.to_vec()));
        }
    }

    fn entry(self, block: &[u8; BLOCK], kind: u8, size: u64) -> Result<Entry, Malformed> {
        let path = self.path.unwrap_or_else(|| name(block));
        let link = self.link.unwrap_or_else(|| until_zero(part(block, field::LINK)).to_vec());
        if path.len() > LONGEST_PATH || link.len() > LONGEST_PATH {
            return Err(Malformed::TooLong);
        }
        let size = self.size.unwrap_or(size);
        let kind = match kind {
            // Before POSIX a directory was told by its name.
            0 if path.ends_with(b"/") => Kind::Directory,
            b'0' | b'7' | 0 => Kind::File,
            b'1' => Kind::HardLink(link),
            b'2' => Kind::Link(link),
            b'5' => Kind::Directory,
            _ => Kind::Other,
        };
        if size > 0 && matches!(kind, Kind::HardLink(_) | Kind::Link(_) | Kind::Directory) {
            return Err(Malformed::Unsupported);
        }
        if size > i64::MAX.unsigned_abs() {
            return Err(Malformed::Number);
        }
        let mode = u32::try_from(number(part(block, field::MODE))? & 0o7777).unwrap_or(0);
        let mtime = number(part(block, field::MTIME)).unwrap_or(0);
        Ok(Entry { path, kind, mode, size, mtime, attributes: self.attributes })
    }
}

fn name(block: &[u8; BLOCK]) -> Vec<u8> {
    let name = until_zero(part(block, field::NAME));
    let prefix = until_zero(part(block, field::PREFIX));
    // GNU tar has other things there.
    match part(block, field::MAGIC).starts_with(b"ustar\0") && !prefix.is_empty() {
        true => [prefix, b"/", name].concat(),
        false => name.to_vec(),
    }
}

fn part(block: &[u8; BLOCK], field: Range<usize>) -> &[u8] {
    block.get(field).unwrap_or_default()
}

fn byte(block: &[u8; BLOCK], field: Range<usize>) -> u8 {
    part(block, field).first().copied().unwrap_or(0)
}

fn until_zero(bytes: &[u8]) -> &[u8] {
    bytes.split(|byte| *byte == 0).next().unwrap_or_default()
}

/// The sum of all bytes, with its own field as spaces.
fn checks(block: &[u8; BLOCK]) -> bool {
    let own = field::CHECKSUM;
    let sum: u64 = block
        .iter()
        .enumerate()
        .map(|(at, byte)| if own.contains(&at) { 32 } else { u64::from(*byte) })
        .sum();
    number(part(block, own)).is_ok_and(|said| said == sum)
}

fn number(field: &[u8]) -> Result<u64, Malformed> {
    numbers::octal(field).ok_or(Malformed::Number)
}

fn to_block(size: u64) -> u64 {
    size.next_multiple_of(512).saturating_sub(size)
}

/// What a person may have forgotten to undo.
fn compressed(bytes: &[u8]) -> Option<Malformed> {
    let known: [(&[u8], &'static str); 4] = [
        (&[0x1f, 0x8b], "gzip"),
        (b"BZh", "bzip2"),
        (&[0xfd, b'7', b'z'], "xz"),
        (&[0x28, 0xb5, 0x2f], "zstd"),
    ];
    known.iter().find(|(mark, _)| bytes.starts_with(mark)).map(|(_, name)| Malformed::Compressed(name))
}

fn read_some(from: &mut impl Read, into: &mut [u8]) -> Result<usize, Malformed> {
    loop {
        match from.read(into) {
            Err(err) if err.kind() == io::ErrorKind::Interrupted => {}
            other => return other.map_err(Malformed::Read),
        }
    }
}
