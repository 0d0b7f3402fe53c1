//! What stands before an entry about it (pax): records `LENGTH KEY=VALUE` and a newline.

use super::{Time, decimal, refused, sparse};
use crate::layers::{pack, tree};
use std::{ffi::CString, io};

/// Those that mean something here.
#[derive(Debug, Default)]
pub(super) struct Words {
    pub(super) path: Option<Vec<u8>>,
    pub(super) link: Option<Vec<u8>>,
    pub(super) size: Option<u64>,
    pub(super) user: Option<u64>,
    pub(super) group: Option<u64>,
    pub(super) time: Option<Time>,
    pub(super) attributes: Vec<(CString, Vec<u8>)>,
    pub(super) other_attributes: u64,
    pub(super) sparse: sparse::Words,
}

/// Most attributes of one entry.
const MOST_ATTRIBUTES: usize = 64;

impl Words {
    /// Takes in the records of one header.
    pub(super) fn read(&mut self, bytes: &[u8]) -> io::Result<()> {
        for (key, value) in records(bytes)? {
            let number = || match value {
                b"" => Ok(None),
                value => decimal(value).map(Some).ok_or_else(|| refused("a number about it is none")),
            };
            // An empty value takes back what was said.
            let text = || Some(value.to_vec()).filter(|value| !value.is_empty());
            match key {
                b"path" => self.path = text(),
                b"linkpath" => self.link = text(),
                b"size" => self.size = number()?,
                b"uid" => self.user = number()?,
                b"gid" => self.group = number()?,
                b"mtime" => self.time = time(value)?,
                key => match key.strip_prefix(b"GNU.sparse.") {
                    Some(key) => self.sparse.read(key, value)?,
                    None => self.attribute(key, value),
                },
            }
        }
        Ok(())
    }

    /// Those that a person gives to files, and capabilities; none that means something to an overlay.
    fn attribute(&mut self, key: &[u8], value: &[u8]) {
        let Some(name) = key.strip_prefix(pack::ATTRIBUTE.as_bytes()) else { return };
        let is_plain = name.starts_with(b"user.") && !name.starts_with(tree::OVERLAY);
        let is_taken = is_plain || name == tree::CAPABILITY.to_bytes();
        match CString::new(name) {
            Ok(name) if is_taken && self.attributes.len() < MOST_ATTRIBUTES => {
                self.attributes.retain(|(there, _)| *there != name);
                self.attributes.push((name, value.to_vec()));
            }
            _ => self.other_attributes += 1,
        }
    }
}

/// The records of a header; a value may hold any byte.
fn records(mut bytes: &[u8]) -> io::Result<Vec<(&[u8], &[u8])>> {
    let malformed = || refused("the words about an entry make no sense");
    let mut records = Vec::new();
    while !bytes.is_empty() {
        let space = bytes.iter().take(8).position(|byte| *byte == b' ').ok_or_else(malformed)?;
        let length = bytes.get(..space).and_then(decimal).and_then(|length| usize::try_from(length).ok());
        let (record, rest) =
            length.and_then(|length| bytes.split_at_checked(length)).ok_or_else(malformed)?;
        let record =
            record.get(space + 1..).and_then(|record| record.strip_suffix(b"\n")).ok_or_else(malformed)?;
        let equals = record.iter().position(|byte| *byte == b'=').ok_or_else(malformed)?;
        let (key, value) = record.split_at(equals);
        records.push((key, value.get(1..).unwrap_or_default()));
        bytes = rest;
    }
    Ok(records)
}

/// `SECONDS.FRACTION`, with as many digits as somebody liked.
fn time(value: &[u8]) -> io::Result<Option<Time>> {
    if value.is_empty() {
        return Ok(None);
    }
    if value.starts_with(b"-") {
        return Ok(Some(Time::default()));
    }
    let wrong = || refused("its time is none");
    let mut parts = value.splitn(2, |byte| *byte == b'.');
    let seconds = parts.next().and_then(decimal).and_then(|seconds| i64::try_from(seconds).ok());
    let fraction = parts.next().unwrap_or_default();
    if !fraction.iter().all(u8::is_ascii_digit) {
        return Err(wrong());
    }
    let digits = fraction.iter().chain(std::iter::repeat(&b'0')).take(9);
    let nanoseconds = digits.fold(0, |so_far, digit| so_far * 10 + i64::from(digit - b'0'));
    Ok(Some(Time { seconds: seconds.ok_or_else(wrong)?, nanoseconds }))
}
