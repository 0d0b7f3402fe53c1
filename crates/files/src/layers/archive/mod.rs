//! Tar archives as layers of images are written, read entry by entry: old ones, POSIX (pax), GNU with its long names and
//! sparse files, star. Whatever is not understood is refused; memory is bounded whatever an archive says.
//!
//! Where programs read the same archive differently, this one reads it as Go's `archive/tar` does, and with it docker,
//! podman and their registries' scanners.

mod sparse;
mod words;

use airlock_copy::tar::numbers::{decimal, octal};
use std::{
    ffi::CString,
    io::{self, BufRead},
    ops::Range,
};
use words::Words;

/// One entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Where, as it is written.
    pub path: Vec<u8>,
    /// What.
    pub kind: Kind,
    /// Where a link leads, or the first name of a file.
    pub link: Vec<u8>,
    /// Permissions, with set-id bits and the sticky one.
    pub mode: u32,
    /// Whose.
    pub user: u64,
    /// Which group's.
    pub group: u64,
    /// When it was changed.
    pub time: Time,
    /// How long the file is.
    pub size: u64,
    /// Which parts of the file follow, one behind the other: offset and length. All the rest is zeros.
    pub pieces: Vec<(u64, u64)>,
    /// Extended attributes.
    pub attributes: Vec<(CString, Vec<u8>)>,
    /// Attributes that no file here gets.
    pub other_attributes: u64,
}

/// What an entry is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A further name of an entry that came before.
    Link,
    /// A named pipe.
    Fifo,
    /// A device node.
    Device,
}

/// A moment, since 1970. What was before is that moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Time {
    /// Seconds.
    pub seconds: i64,
    /// And billionths of one.
    pub nanoseconds: i64,
}

/// An archive being read.
#[derive(Debug)]
pub struct Reader<R> {
    from: R,
    /// Bytes of the current entry that were not taken yet.
    left: u64,
    /// What follows them.
    padding: u64,
    is_over: bool,
}

/// Everything in an archive is a multiple of this long.
const BLOCK: usize = 512;
/// Headers that may stand before one entry.
const MOST_HEADERS: usize = 16;
/// Most bytes of one such header.
const MOST_WORDS: u64 = 1 << 20;

type Block = [u8; BLOCK];

impl<R: BufRead> Reader<R> {
    /// Reads from here.
    pub fn new(from: R) -> Reader<R> {
        Reader { from, left: 0, padding: 0, is_over: false }
    }

    /// The next entry; what was not taken of the current one is passed over. `None` at the end.
    pub fn next_entry(&mut self) -> io::Result<Option<Entry>> {
        let mut words = Words::default();
        for _ in 0..MOST_HEADERS {
            self.pass_over()?;
            let Some(block) = self.header()? else { return Ok(None) };
            let size = number(part(&block, field::SIZE))?;
            match byte(&block, field::TYPE) {
                b'x' => words.read(&self.words(size)?)?,
                b'g' => {
                    // What holds for all entries is of no interest, to docker neither.
                    (self.left, self.padding) = (size, to_block(size));
                }
                b'L' => words.path = Some(until_zero(&self.words(size)?).to_vec()),
                b'K' => words.link = Some(until_zero(&self.words(size)?).to_vec()),
                kind => return self.entry(&block, kind, words, size).map(Some),
            }
        }
        Err(refused("too much is said about one entry"))
    }

    /// Some bytes of the current entry; none when there are no more. [`Reader::pass`] says how many were taken.
    pub fn bytes(&mut self) -> io::Result<&[u8]> {
        if self.left == 0 {
            return Ok(&[]);
        }
        let some = fill(&mut self.from)?;
        if some.is_empty() {
            return Err(truncated());
        }
        let most = usize::try_from(self.left).unwrap_or(usize::MAX).min(some.len());
        Ok(some.get(..most).unwrap_or_default())
    }

    /// So many of the bytes were taken.
    pub fn pass(&mut self, count: usize) {
        self.left = self.left.saturating_sub(u64::try_from(count).unwrap_or(0));
        self.from.consume(count);
    }

    /// Reads on to the very end: what follows an archive counts for its digest.
    pub fn drain(&mut self) -> io::Result<()> {
        loop {
            match fill(&mut self.from)?.len() {
                0 => return Ok(()),
                count => self.from.consume(count),
            }
        }
    }

    fn entry(&mut self, block: &Block, kind: u8, words: Words, size: u64) -> io::Result<Entry> {
        let path = words.path.unwrap_or_else(|| name(block));
        let kind = kind_of(kind, &path)?;
        let stored = if kind == Kind::File { words.size.unwrap_or(size) } else { 0 };
        if stored > i64::MAX.unsigned_abs() {
            return Err(refused("its size is no size"));
        }
        (self.left, self.padding) = (stored, to_block(stored));
        let (size, pieces) = match kind {
            Kind::File => self.shape(block, stored, &words.sparse)?,
            _ => (0, Vec::new()),
        };
        let path = words.sparse.name.filter(|_| kind == Kind::File).unwrap_or(path);
        let said = |said: Option<u64>, field| said.map_or_else(|| number(part(block, field)), Ok);
        Ok(Entry {
            path,
            kind,
            link: words.link.unwrap_or_else(|| until_zero(part(block, field::LINK)).to_vec()),
            mode: u32::try_from(number(part(block, field::MODE))? & 0o7777).unwrap_or(0),
            user: said(words.user, field::UID)?,
            group: said(words.group, field::GID)?,
            time: words.time.unwrap_or_else(|| whole_seconds(part(block, field::MTIME))),
            size,
            pieces,
            attributes: words.attributes,
            other_attributes: words.other_attributes,
        })
    }

    /// Where the bytes of a file belong.
    fn shape(&mut self, block: &Block, stored: u64, words: &sparse::Words) -> io::Result<sparse::Shape> {
        let (size, pieces) = if byte(block, field::TYPE) == b'S' {
            self.old_sparse(block)?
        } else if words.is_in_front() {
            let size = words.size.ok_or_else(|| refused("a sparse file has no size"))?;
            (size, self.map_in_front()?)
        } else if let Some(told) = words.told()? {
            told
        } else {
            return Ok((stored, vec![(0, stored)]));
        };
        sparse::check(&pieces, size, self.left)?;
        Ok((size, pieces))
    }

    fn pass_over(&mut self) -> io::Result<()> {
        let mut rest = self.left.saturating_add(self.padding);
        (self.left, self.padding) = (0, 0);
        while rest > 0 {
            let some = fill(&mut self.from)?.len();
            if some == 0 {
                return Err(truncated());
            }
            let count = usize::try_from(rest).unwrap_or(usize::MAX).min(some);
            self.from.consume(count);
            rest -= u64::try_from(count).unwrap_or(rest);
        }
        Ok(())
    }

    /// The next header; none where the archive ends.
    fn header(&mut self) -> io::Result<Option<Block>> {
        if self.is_over || fill(&mut self.from)?.is_empty() {
            return Ok(None);
        }
        let mut block = [0u8; BLOCK];
        self.from.read_exact(&mut block).map_err(|_| truncated())?;
        if block.iter().all(|byte| *byte == 0) {
            self.is_over = true;
            return Ok(None);
        }
        if !checks(&block) {
            return Err(refused("it is no tar archive, or it is damaged"));
        }
        Ok(Some(block))
    }

    /// The words of a header that stands before an entry.
    fn words(&mut self, size: u64) -> io::Result<Vec<u8>> {
        if size > MOST_WORDS {
            return Err(refused("too much is said about one entry"));
        }
        let mut bytes = vec![0u8; usize::try_from(size).unwrap_or(0)];
        self.from.read_exact(&mut bytes).map_err(|_| truncated())?;
        (self.left, self.padding) = (0, to_block(size));
        Ok(bytes)
    }
}

/// What the letter of an entry means. Before POSIX, a directory was told by its name.
fn kind_of(kind: u8, path: &[u8]) -> io::Result<Kind> {
    Ok(match kind {
        0 | b'0' if path.ends_with(b"/") => Kind::Directory,
        0 | b'0' | b'7' | b'S' => Kind::File,
        b'1' => Kind::Link,
        b'2' => Kind::Symlink,
        b'3' | b'4' => Kind::Device,
        b'5' => Kind::Directory,
        b'6' => Kind::Fifo,
        _ => return Err(refused("it is of a kind that nobody knows")),
    })
}

/// Where the fields of a header are.
mod field {
    use std::ops::Range;

    pub(super) const NAME: Range<usize> = 0..100;
    pub(super) const MODE: Range<usize> = 100..108;
    pub(super) const UID: Range<usize> = 108..116;
    pub(super) const GID: Range<usize> = 116..124;
    pub(super) const SIZE: Range<usize> = 124..136;
    pub(super) const MTIME: Range<usize> = 136..148;
    pub(super) const CHECKSUM: Range<usize> = 148..156;
    pub(super) const TYPE: Range<usize> = 156..157;
    pub(super) const LINK: Range<usize> = 157..257;
    pub(super) const MAGIC: Range<usize> = 257..265;
    pub(super) const PREFIX: Range<usize> = 345..500;
    pub(super) const STAR_PREFIX: Range<usize> = 345..476;
    pub(super) const STAR: Range<usize> = 508..512;
}

fn name(block: &Block) -> Vec<u8> {
    let name = until_zero(part(block, field::NAME));
    let place = if part(block, field::STAR) == b"tar\0" { field::STAR_PREFIX } else { field::PREFIX };
    let prefix = until_zero(part(block, place));
    // GNU tar has other things there.
    match part(block, field::MAGIC).starts_with(b"ustar\0") && !prefix.is_empty() {
        true => [prefix, b"/", name].concat(),
        false => name.to_vec(),
    }
}

fn part(block: &Block, field: Range<usize>) -> &[u8] {
    block.get(field).unwrap_or_default()
}

fn byte(block: &Block, field: Range<usize>) -> u8 {
    part(block, field).first().copied().unwrap_or(0)
}

fn until_zero(bytes: &[u8]) -> &[u8] {
    bytes.split(|byte| *byte == 0).next().unwrap_or_default()
}

/// The sum of all bytes, with its own field as spaces. Some wrote it with signs.
fn checks(block: &Block) -> bool {
    let own = field::CHECKSUM;
    let (mut plain, mut with_signs) = (0i64, 0i64);
    for (at, byte) in block.iter().enumerate() {
        let byte = if own.contains(&at) { b' ' } else { *byte };
        plain += i64::from(byte);
        with_signs += i64::from(i8::from_ne_bytes([byte]));
    }
    let said = number(part(block, own)).ok().and_then(|said| i64::try_from(said).ok());
    said.is_some_and(|said| said == plain || said == with_signs)
}

fn number(field: &[u8]) -> io::Result<u64> {
    octal(field).ok_or_else(|| refused("a number in its header is none"))
}

/// A time that makes no sense, or was before 1970, is that moment.
fn whole_seconds(field: &[u8]) -> Time {
    let is_negative = field.first().is_some_and(|first| *first == 0xff);
    let seconds = if is_negative { 0 } else { number(field).unwrap_or(0) };
    Time { seconds: i64::try_from(seconds).unwrap_or(0), nanoseconds: 0 }
}

fn to_block(size: u64) -> u64 {
    size.checked_next_multiple_of(512).unwrap_or(u64::MAX).saturating_sub(size)
}

fn fill<R: BufRead>(from: &mut R) -> io::Result<&[u8]> {
    // The first time decides whether there is an error; borrowing it in a loop is what the compiler refuses.
    while let Err(err) = from.fill_buf() {
        if err.kind() != io::ErrorKind::Interrupted {
            return Err(err);
        }
    }
    from.fill_buf()
}

fn truncated() -> io::Error {
    refused("it ends in the middle")
}

pub(super) fn refused(why: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

#[cfg(test)]
mod tests;
