//! An OCI image layout in one tar archive: what it holds by name, and blobs by digest.
//!
//! ```text
//! oci-layout  index.json  blobs/sha256/<manifest>  blobs/sha256/<config>  blobs/sha256/<layer>…
//! ```

use super::pack::hexadecimal;
use sha2::{Digest as _, Sha256};
use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, Read, Write},
    os::unix::fs::FileExt as _,
};
use tar::{Archive, Builder, EntryType, Header};

/// Most entries of an archive.
const MOST_ENTRIES: usize = 10_000;

/// Writes the small files of a layout, then blobs, each by its digest.
pub fn write(
    out: &mut dyn Write,
    small: &[(String, Vec<u8>)],
    blobs: &mut [(String, u64, File)],
    progress: &mut dyn FnMut(u64),
) -> io::Result<()> {
    let mut archive = Builder::new(out);
    for (name, bytes) in small {
        let size = u64::try_from(bytes.len()).map_err(io::Error::other)?;
        archive.append(&header(name, size)?, bytes.as_slice())?;
    }
    for (digest, size, file) in blobs {
        let reader = Blob { file, at: 0, end: *size };
        archive.append(&header(&blob_name(digest), *size)?, reader)?;
        progress(*size);
    }
    archive.into_inner()?.flush()
}

/// The name of a blob in a layout.
pub fn blob_name(digest: &str) -> String {
    format!("blobs/sha256/{digest}")
}

/// SHA-256 in hexadecimal digits.
pub fn digest(bytes: &[u8]) -> String {
    let mut hash = Sha256::new();
    hash.update(bytes);
    hexadecimal(hash)
}

fn header(name: &str, size: u64) -> io::Result<Header> {
    let mut header = Header::new_ustar();
    header.set_entry_type(EntryType::Regular);
    header.set_path(name)?;
    header.set_size(size);
    header.set_mode(0o644);
    header.set_cksum();
    Ok(header)
}

/// An archive that is read: where its entries are.
#[derive(Debug)]
pub struct Layout<'a> {
    file: &'a File,
    entries: BTreeMap<String, (u64, u64)>,
}

impl<'a> Layout<'a> {
    /// Looks through an archive.
    pub fn open(file: &'a File) -> io::Result<Layout<'a>> {
        let mut entries = BTreeMap::new();
        let whole = Blob { file, at: 0, end: file.metadata()?.len() };
        let mut archive = Archive::new(whole);
        for entry in archive.entries_with_seek()?.raw(true) {
            let entry = entry?;
            if entries.len() >= MOST_ENTRIES {
                return Err(io::Error::other("it holds too many entries"));
            }
            if entry.header().entry_type() == EntryType::Regular {
                let name = String::from_utf8_lossy(&entry.path_bytes()).trim_start_matches("./").to_owned();
                entries.insert(name, (entry.raw_file_position(), entry.size()));
            }
        }
        Ok(Layout { file, entries })
    }

    /// A small file of it, whole.
    pub fn small(&self, name: &str, most: u64) -> io::Result<Vec<u8>> {
        let blob = self.find(name)?;
        if blob.end - blob.at > most {
            return Err(io::Error::other(format!("{name} is too large")));
        }
        let mut bytes = Vec::new();
        blob.take(most).read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    /// A small blob, checked.
    pub fn checked(&self, wanted: &str, most: u64) -> io::Result<Vec<u8>> {
        let bytes = self.small(&blob_name(wanted), most)?;
        if digest(&bytes) == wanted {
            return Ok(bytes);
        }
        Err(io::Error::other(format!("{} is not what its name says", blob_name(wanted))))
    }

    /// A blob that is checked when it has been read to its end.
    pub fn blob(&self, digest: &str) -> io::Result<Checked<'a>> {
        let from = self.find(&blob_name(digest))?;
        Ok(Checked { from, hash: Sha256::new(), wanted: digest.to_owned() })
    }

    fn find(&self, name: &str) -> io::Result<Blob<'a>> {
        let (at, size) =
            self.entries.get(name).ok_or_else(|| io::Error::other(format!("it has no {name}")))?;
        let end = at.checked_add(*size).ok_or(io::ErrorKind::InvalidData)?;
        Ok(Blob { file: self.file, at: *at, end })
    }
}

/// A blob that is being read.
pub struct Checked<'a> {
    from: Blob<'a>,
    hash: Sha256,
    wanted: String,
}

impl Checked<'_> {
    /// Reads the rest; fails if all of it is not what its name says.
    pub fn finish(mut self) -> io::Result<()> {
        io::copy(&mut self, &mut io::sink())?;
        if hexadecimal(self.hash) == self.wanted {
            return Ok(());
        }
        Err(io::Error::other(format!("{} is not what its name says", blob_name(&self.wanted))))
    }
}

impl Read for Checked<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let count = self.from.read(bytes)?;
        self.hash.update(bytes.get(..count).unwrap_or_default());
        Ok(count)
    }
}

/// A range of a file. Reading it moves nobody else's position.
struct Blob<'a> {
    file: &'a File,
    at: u64,
    end: u64,
}

impl Read for Blob<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let left = usize::try_from(self.end.saturating_sub(self.at)).unwrap_or(usize::MAX).min(bytes.len());
        let count = self.file.read_at(bytes.get_mut(..left).unwrap_or_default(), self.at)?;
        self.at += u64::try_from(count).unwrap_or(0);
        Ok(count)
    }
}

impl io::Seek for Blob<'_> {
    fn seek(&mut self, to: io::SeekFrom) -> io::Result<u64> {
        let at = match to {
            io::SeekFrom::Start(at) => Some(at),
            io::SeekFrom::Current(by) => self.at.checked_add_signed(by),
            io::SeekFrom::End(by) => self.end.checked_add_signed(by),
        };
        self.at = at.ok_or(io::ErrorKind::InvalidInput)?;
        Ok(self.at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::io::Seek as _;

    fn archive(small: &[(String, Vec<u8>)]) -> File {
        let mut file = tempfile::tempfile().unwrap();
        write(&mut file, small, &mut [], &mut |_| {}).unwrap();
        file.rewind().unwrap();
        file
    }

    #[test]
    fn a_blob_that_is_not_what_its_name_says_is_refused() {
        let (good, bad) = (digest(b"good"), digest(b"other"));
        let file = archive(&[(blob_name(&good), b"good".to_vec()), (blob_name(&bad), b"bad".to_vec())]);
        let layout = Layout::open(&file).unwrap();

        assert_eq!(layout.checked(&good, 10).unwrap(), b"good");
        assert!(layout.checked(&bad, 10).is_err() && layout.blob(&bad).unwrap().finish().is_err());
        assert!(layout.checked(&good, 3).is_err(), "more than was asked for");
        layout.blob(&good).unwrap().finish().unwrap();
    }

    proptest! {
        #[test]
        fn no_bytes_are_too_strange_to_be_looked_through(bytes in proptest::collection::vec(any::<u8>(), 0..4096)) {
            let file = tempfile::tempfile().unwrap();
            file.write_all_at(&bytes, 0).unwrap();
            if let Ok(layout) = Layout::open(&file) {
                let _ = layout.small("index.json", 100);
            }
        }
    }
}
