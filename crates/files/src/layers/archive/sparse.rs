//! Sparse files, in the four ways GNU tar has written them:
//! <https://www.gnu.org/software/tar/manual/html_section/Sparse-Formats.html>

use super::{BLOCK, Block, Reader, decimal, number, refused, to_block};
use std::{
    io::{self, BufRead},
    ops::Range,
};

/// What pax headers say of a sparse file.
#[derive(Debug, Default)]
pub(super) struct Words {
    pub(super) name: Option<Vec<u8>>,
    pub(super) size: Option<u64>,
    major: Option<u64>,
    /// Offsets and lengths, one after the other.
    map: Vec<u64>,
    is_told: bool,
}

/// How long a file is, and its pieces.
pub(super) type Shape = (u64, Pieces);
/// Offset and length of what is there of a file.
type Pieces = Vec<(u64, u64)>;

/// Most pieces of one file.
const MOST_PIECES: usize = 64 << 10;
/// Most digits of a number, with its newline.
const MOST_DIGITS: usize = 20;

/// In an old header.
const OLD_MAP: Range<usize> = 386..482;
const OLD_GOES_ON: usize = 482;
const OLD_SIZE: Range<usize> = 483..495;
/// In a block that follows one.
const FURTHER_MAP: Range<usize> = 0..504;
const FURTHER_GOES_ON: usize = 504;

impl Words {
    /// Takes in one record, whose key is given without what all of them begin with.
    pub(super) fn read(&mut self, key: &[u8], value: &[u8]) -> io::Result<()> {
        let number = || decimal(value).ok_or_else(|| refused("a number about a sparse file is none"));
        self.is_told = true;
        match key {
            b"name" => self.name = Some(value.to_vec()),
            b"size" | b"realsize" => self.size = Some(number()?),
            b"major" => self.major = Some(number()?),
            b"offset" | b"numbytes" => self.map.push(number()?),
            b"map" => self.map = numbers(value)?,
            _ => {}
        }
        if self.map.len() > 2 * MOST_PIECES {
            return Err(too_many());
        }
        Ok(())
    }

    /// Whether the map stands in front of the file's bytes.
    pub(super) fn is_in_front(&self) -> bool {
        self.major == Some(1)
    }

    /// Its length and its pieces, if it is sparse.
    pub(super) fn told(&self) -> io::Result<Option<Shape>> {
        if !self.is_told {
            return Ok(None);
        }
        if self.major.is_some_and(|major| major > 1) {
            return Err(refused("a sparse file is of a kind that nobody knows"));
        }
        let size = self.size.ok_or_else(|| refused("a sparse file has no size"))?;
        Ok(Some((size, pairs(&self.map)?)))
    }
}

impl<R: BufRead> Reader<R> {
    /// The map in a header of the oldest kind, and in the blocks that follow it.
    pub(super) fn old_sparse(&mut self, block: &Block) -> io::Result<Shape> {
        let size = number(block.get(OLD_SIZE).unwrap_or_default())?;
        let mut pieces = Vec::new();
        let mut goes_on = old_pieces(block, OLD_MAP, OLD_GOES_ON, &mut pieces)?;
        while goes_on {
            let mut further = [0u8; BLOCK];
            self.from.read_exact(&mut further)?;
            goes_on = old_pieces(&further, FURTHER_MAP, FURTHER_GOES_ON, &mut pieces)?;
        }
        Ok((size, pieces))
    }

    /// The map in front of the file's bytes: lines of numbers, filled up to a block.
    pub(super) fn map_in_front(&mut self) -> io::Result<Pieces> {
        let mut taken = 0;
        let count = self.line(&mut taken)?;
        let count = usize::try_from(count).ok().filter(|count| *count <= MOST_PIECES).ok_or_else(too_many)?;
        let mut map = Vec::new();
        for _ in 0..count * 2 {
            map.push(self.line(&mut taken)?);
        }
        let mut rest = to_block(taken);
        while rest > 0 {
            let count = self.bytes()?.len().min(usize::try_from(rest).unwrap_or(0));
            if count == 0 {
                return Err(refused("the map of a sparse file ends in the middle"));
            }
            self.pass(count);
            rest -= u64::try_from(count).unwrap_or(rest);
        }
        pairs(&map)
    }

    fn line(&mut self, taken: &mut u64) -> io::Result<u64> {
        let mut digits = Vec::new();
        while digits.len() < MOST_DIGITS {
            let Some(byte) = self.bytes()?.first().copied() else { break };
            self.pass(1);
            *taken += 1;
            if byte == b'\n' {
                return decimal(&digits).ok_or_else(|| refused("a number about a sparse file is none"));
            }
            digits.push(byte);
        }
        Err(refused("a number about a sparse file is none"))
    }
}

/// Refuses pieces that are not in order, do not fit into the file, or are not what is stored.
pub(super) fn check(pieces: &[(u64, u64)], size: u64, stored: u64) -> io::Result<()> {
    let wrong = || refused("the map of a sparse file makes no sense");
    if size > i64::MAX.unsigned_abs() {
        return Err(wrong());
    }
    let (mut end, mut sum) = (0u64, 0u64);
    for (offset, length) in pieces {
        if *offset < end {
            return Err(wrong());
        }
        end = offset.checked_add(*length).ok_or_else(wrong)?;
        sum = sum.checked_add(*length).ok_or_else(wrong)?;
    }
    if end > size || sum != stored {
        return Err(wrong());
    }
    Ok(())
}

fn old_pieces(block: &Block, map: Range<usize>, goes_on: usize, pieces: &mut Pieces) -> io::Result<bool> {
    for pair in block.get(map).unwrap_or_default().chunks_exact(24) {
        let (offset, length) = pair.split_at(12);
        if offset.first().is_none_or(|first| *first == 0) {
            return Ok(false);
        }
        pieces.push((number(offset)?, number(length)?));
    }
    if pieces.len() > MOST_PIECES {
        return Err(too_many());
    }
    Ok(block.get(goes_on).is_some_and(|byte| *byte != 0))
}

fn numbers(text: &[u8]) -> io::Result<Vec<u64>> {
    let number = |text| decimal(text).ok_or_else(|| refused("a number about a sparse file is none"));
    match text {
        b"" => Ok(Vec::new()),
        text => text.split(|byte| *byte == b',').map(number).collect(),
    }
}

fn pairs(map: &[u64]) -> io::Result<Pieces> {
    let pairs = map.chunks(2).map(|pair| match pair {
        [offset, length] => Ok((*offset, *length)),
        _ => Err(refused("the map of a sparse file makes no sense")),
    });
    pairs.collect()
}

fn too_many() -> io::Error {
    refused("a sparse file has too many pieces")
}
