//! Contents taken out of archives, into one file, in one pass an archive.

use super::index::{Bad, each};
use crate::build::path;
use std::{
    collections::{BTreeMap, BTreeSet},
    fs::File,
    io::{self, Read, Seek as _, Write},
};

/// Contents of files, one behind the other in a file without a name.
#[derive(Debug)]
pub struct Taken {
    file: File,
    end: u64,
    /// By archive and path: where it begins and how long it is.
    found: BTreeMap<(usize, Vec<u8>), (u64, u64)>,
}

impl Taken {
    /// Nothing yet; `file` is empty and open for reading and writing.
    pub fn new(file: File) -> Self {
        Self { file, end: 0, found: BTreeMap::new() }
    }

    /// Takes the wanted files of one archive.
    pub fn add(&mut self, archive: usize, from: impl Read, wanted: &BTreeSet<Vec<u8>>) -> Result<(), Bad> {
        each(from, |raw, content| {
            let name = path::relative(&raw.path);
            if wanted.contains(&name) {
                let size = io::copy(content, &mut self.file)?;
                // The last entry of a name counts.
                self.found.insert((archive, name), (self.end, size));
                self.end += size;
            }
            Ok(())
        })?;
        self.file.flush()?;
        Ok(())
    }

    /// All of it, from its beginning: the content of the one file that was taken.
    pub fn into_file(mut self) -> io::Result<File> {
        self.file.rewind()?;
        Ok(self.file)
    }

    /// The content of one file.
    pub fn open(&self, archive: usize, path: &[u8]) -> io::Result<Box<dyn Read + '_>> {
        let found = self.found.get(&(archive, path.to_vec()));
        let (begin, size) = *found.ok_or_else(|| io::Error::other("it is not in its layer any more"))?;
        Ok(Box::new(Part { file: &self.file, at: begin, end: begin + size }))
    }
}

struct Part<'f> {
    file: &'f File,
    at: u64,
    end: u64,
}

impl Read for Part<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let most = usize::try_from(self.end - self.at).unwrap_or(usize::MAX).min(into.len());
        let into = into.get_mut(..most).unwrap_or_default();
        let count = std::os::unix::fs::FileExt::read_at(self.file, into, self.at)?;
        self.at += u64::try_from(count).unwrap_or(0);
        Ok(count)
    }
}
