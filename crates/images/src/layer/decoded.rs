//! A layer is read, decompressed and hashed by one thread, while another writes what came of it.

use crate::digest::{Digest, Hasher};
use airlock_files::layers::{
    compression::{Compression, TELLING},
    unpack::Limited,
};
use std::{
    fs::File,
    io::{self, BufRead, BufReader, Read},
    os::unix::fs::FileExt as _,
    sync::{
        atomic::{AtomicU64, Ordering},
        mpsc::{Receiver, SyncSender},
    },
};

/// Some bytes of a layer.
pub(super) type Chunk = io::Result<Vec<u8>>;

/// Bytes that are handed over at once: they should still be in a cache when they are written.
const CHUNK: usize = 256 << 10;
/// So many wait.
pub(super) const DEPTH: usize = 8;
/// Compressed bytes that are read at once.
const READ: usize = 256 << 10;

/// A file from its start, wherever others are in it.
struct FromStart<'a> {
    file: &'a File,
    at: u64,
    /// So much was read, for others to see.
    told: &'a AtomicU64,
}

impl Read for FromStart<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let count = self.file.read_at(bytes, self.at)?;
        self.at += u64::try_from(count).unwrap_or(0);
        self.told.store(self.at, Ordering::Relaxed);
        Ok(count)
    }
}

/// Decodes `blob` and sends what it holds, at most `most` bytes of it. Buffers that were used come back by `spent`.
/// Gives the digest of all of it. Ends early when nobody listens.
pub(super) fn decode(
    (blob, told): (&File, &AtomicU64),
    most: u64,
    send: &SyncSender<Chunk>,
    spent: &Receiver<Vec<u8>>,
) -> Option<Digest> {
    let mut from = match open(blob, told, most) {
        Ok(from) => from,
        Err(err) => {
            let _ = send.send(Err(err));
            return None;
        }
    };
    let mut hasher = Hasher::new();
    loop {
        let mut chunk = spent.try_recv().unwrap_or_default();
        chunk.resize(CHUNK, 0);
        match fill(&mut from, &mut chunk) {
            Ok(0) => return Some(hasher.finish()),
            Ok(count) => {
                chunk.truncate(count);
                hasher.update(&chunk);
                send.send(Ok(chunk)).ok()?;
            }
            Err(err) => {
                let _ = send.send(Err(err));
                return None;
            }
        }
    }
}

fn open<'a>(blob: &'a File, told: &'a AtomicU64, most: u64) -> io::Result<impl Read + 'a> {
    let mut start = [0u8; TELLING];
    let count = blob.read_at(&mut start, 0)?;
    let compression = Compression::of(start.get(..count).unwrap_or_default()).ok_or_else(|| {
        io::Error::new(io::ErrorKind::InvalidData, "it is compressed in a way that layers are not")
    })?;
    let compressed = BufReader::with_capacity(READ, FromStart { file: blob, at: 0, told });
    Ok(Limited { from: compression.decode(compressed)?, bounds: most })
}

fn fill(from: &mut impl Read, chunk: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while let Some(rest) = chunk.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        match from.read(rest) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(err) if err.kind() == io::ErrorKind::Interrupted => {}
            Err(err) => return Err(err),
        }
    }
    Ok(filled)
}

/// What the other thread sends, as one stream.
pub(super) struct Decoded<'a> {
    receive: Receiver<Chunk>,
    spent: SyncSender<Vec<u8>>,
    chunk: Vec<u8>,
    at: usize,
    /// Compressed bytes that were read, and how many of those were told.
    read: &'a AtomicU64,
    told: u64,
    progress: &'a mut dyn FnMut(u64),
}

impl<'a> Decoded<'a> {
    pub(super) fn new(
        receive: Receiver<Chunk>,
        spent: SyncSender<Vec<u8>>,
        read: &'a AtomicU64,
        progress: &'a mut dyn FnMut(u64),
    ) -> Decoded<'a> {
        Decoded { receive, spent, chunk: Vec::new(), at: 0, read, told: 0, progress }
    }

    fn tell(&mut self) {
        let read = self.read.load(Ordering::Relaxed);
        if read > self.told {
            (self.progress)(read - self.told);
            self.told = read;
        }
    }
}

impl Read for Decoded<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let some = self.fill_buf()?;
        let count = some.len().min(bytes.len());
        bytes.iter_mut().zip(some).for_each(|(to, from)| *to = *from);
        self.consume(count);
        Ok(count)
    }
}

impl BufRead for Decoded<'_> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.at >= self.chunk.len()
            && let Ok(next) = self.receive.recv()
        {
            let used = std::mem::replace(&mut self.chunk, next?);
            self.at = 0;
            let _ = self.spent.try_send(used);
            self.tell();
        }
        Ok(self.chunk.get(self.at..).unwrap_or_default())
    }

    fn consume(&mut self, count: usize) {
        self.at = self.at.saturating_add(count).min(self.chunk.len());
    }
}
