//! What the program wrote, line by line with its time, bounded on disk by rotation.
//!
//! `log.jsonl` is the current file; when it is full it becomes `log.1.jsonl`, and the one before that is gone.

use crate::{plan::bounds::LOG_BYTES, store};
use airlock_protocol::log::{Output, Record};
use std::{
    cell::RefCell,
    fs::{self, File},
    io::{self, Write as _},
    path::{Path, PathBuf},
};

/// The log of one sandbox.
#[derive(Debug)]
pub struct Log {
    inner: RefCell<Inner>,
}

#[derive(Debug)]
struct Inner {
    path: PathBuf,
    file: Option<File>,
    size: u64,
    partial: Vec<(Output, Vec<u8>)>,
}

/// A line longer than this is cut into several records.
const LONGEST_LINE: usize = 8 * 1024;

impl Log {
    /// A log in this file, continued if it is there.
    pub fn at(path: &Path) -> Log {
        let size = fs::metadata(path).map_or(0, |metadata| metadata.len());
        Log { inner: RefCell::new(Inner { path: path.to_owned(), file: None, size, partial: Vec::new() }) }
    }

    /// Adds bytes as they came; whole lines are written at once, the rest when its line ends.
    pub fn write(&self, stream: Output, bytes: &[u8]) {
        let mut inner = self.inner.borrow_mut();
        let mut pending = inner.take_partial(stream);
        pending.extend_from_slice(bytes);
        let mut records = Vec::new();
        let rest = cut_lines(&pending, |line| append(&mut records, stream, line));
        inner.partial.push((stream, rest.to_vec()));
        inner.store(&records);
    }

    /// Writes what has no line end yet.
    pub fn finish(&self, stream: Output) {
        let mut inner = self.inner.borrow_mut();
        let pending = inner.take_partial(stream);
        if !pending.is_empty() {
            let mut records = Vec::new();
            append(&mut records, stream, &pending);
            inner.store(&records);
        }
    }
}

impl Inner {
    fn take_partial(&mut self, stream: Output) -> Vec<u8> {
        let position = self.partial.iter().position(|(of, _)| *of == stream);
        position.map(|position| self.partial.swap_remove(position).1).unwrap_or_default()
    }

    /// A log that cannot be written must not stop the program: the loss is told once.
    fn store(&mut self, records: &[u8]) {
        if records.is_empty() {
            return;
        }
        if let Err(err) = self.try_store(records) {
            super::note(&format!("output was lost: could not write {}: {err}", self.path.display()));
        }
    }

    fn try_store(&mut self, records: &[u8]) -> io::Result<()> {
        if self.size > 0 && self.size + records.len() as u64 > LOG_BYTES / 2 {
            fs::rename(&self.path, self.path.with_file_name("log.1.jsonl"))?;
            (self.file, self.size) = (None, 0);
        }
        let file = match &mut self.file {
            Some(file) => file,
            None => self.file.insert(File::options().create(true).append(true).open(&self.path)?),
        };
        file.write_all(records)?;
        self.size += records.len() as u64;
        Ok(())
    }
}

/// Gives each whole line (or piece of an overlong one) to `each`; returns what is left.
fn cut_lines(mut bytes: &[u8], mut each: impl FnMut(&[u8])) -> &[u8] {
    loop {
        let end = match bytes.iter().position(|byte| *byte == b'\n') {
            Some(newline) if newline < LONGEST_LINE => newline + 1,
            _ if bytes.len() >= LONGEST_LINE => LONGEST_LINE,
            _ => return bytes,
        };
        let (line, rest) = bytes.split_at_checked(end).unwrap_or((bytes, &[]));
        each(line);
        bytes = rest;
    }
}

fn append(records: &mut Vec<u8>, stream: Output, line: &[u8]) {
    let record = Record { time: store::now(), stream, text: String::from_utf8_lossy(line).into_owned() };
    if serde_json::to_writer(&mut *records, &record).is_ok() {
        records.push(b'\n');
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn texts(path: &Path) -> Vec<(Output, String)> {
        let text = fs::read_to_string(path).unwrap();
        text.lines()
            .map(|line| serde_json::from_str::<Record>(line).unwrap())
            .map(|r| (r.stream, r.text))
            .collect()
    }

    #[test]
    fn lines_are_kept_apart_by_stream_and_joined_across_writes() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log.jsonl");
        let log = Log::at(&path);

        log.write(Output::Stdout, b"hel");
        log.write(Output::Stderr, b"oops\n");
        log.write(Output::Stdout, b"lo\nrest");
        log.finish(Output::Stdout);

        let expected = [(Output::Stderr, "oops\n"), (Output::Stdout, "hello\n"), (Output::Stdout, "rest")];
        assert_eq!(texts(&path), expected.map(|(stream, text)| (stream, text.to_owned())));
    }

    #[test]
    fn a_flood_never_takes_more_than_the_bound() {
        let dir = tempfile::tempdir().unwrap();
        let log = Log::at(&dir.path().join("log.jsonl"));
        let line = [b'x'; 60_000];
        for _ in 0..1_000 {
            log.write(Output::Stdout, &line);
        }
        let size: u64 =
            fs::read_dir(dir.path()).unwrap().map(|file| file.unwrap().metadata().unwrap().len()).sum();
        assert!(size <= LOG_BYTES, "{size}");
        assert!(size > LOG_BYTES / 4, "{size}");
    }

    proptest! {
        // Each case is long; a few of them reach every edge.
        #![proptest_config(ProptestConfig::with_cases(24))]
        #[test]
        fn cutting_loses_nothing(bytes in proptest::collection::vec(prop_oneof![Just(b'\n'), any::<u8>()], 0..30_000)) {
            let mut seen = Vec::new();
            let rest = cut_lines(&bytes, |line| seen.extend_from_slice(line));
            prop_assert!(rest.len() < LONGEST_LINE);
            seen.extend_from_slice(rest);
            prop_assert_eq!(seen, bytes);
        }
    }
}
