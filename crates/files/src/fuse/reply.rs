//! What is answered. Pure.

use super::wire::Put;
use crate::provider::{Attributes, Entry, Kind, Listed, LockKind, LockRange, Room};
use rustix::io::Errno;
use std::time::Duration;

/// Bytes of the head of every answer.
pub const ANSWER_HEAD: usize = 16;
const HEAD: usize = ANSWER_HEAD;

/// An answer that is being written.
#[derive(Debug, Default)]
pub struct Reply(Vec<u8>);

impl Reply {
    /// Empties it for the next answer.
    pub(super) fn begin(&mut self) {
        self.0.clear();
        self.0.resize(HEAD, 0);
    }

    /// Where the body goes.
    pub(super) fn body(&mut self) -> &mut Vec<u8> {
        &mut self.0
    }

    /// Writes the head; of an error nothing else is told.
    pub(super) fn end(&mut self, unique: u64, outcome: Result<(), Errno>) {
        let error = match outcome {
            Ok(()) => 0,
            Err(err) => {
                self.0.truncate(HEAD);
                -err.raw_os_error()
            }
        };
        let mut head = Vec::with_capacity(HEAD);
        head.put32(u32::try_from(self.0.len()).unwrap_or(u32::MAX));
        head.put32(error.cast_unsigned());
        head.put64(unique);
        if let Some(place) = self.0.get_mut(..HEAD) {
            place.copy_from_slice(&head);
        }
    }

    /// All of it.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    pub(super) fn attributes(&mut self, attributes: &Attributes, valid: Duration) {
        self.0.put64(valid.as_secs());
        self.0.put32(valid.subsec_nanos());
        self.0.put32(0);
        put_attributes(&mut self.0, attributes);
    }

    /// A lock in the way, or none. Whose it is, is not told: it may be a process of the host.
    pub(super) fn locked(&mut self, found: Option<(LockRange, LockKind)>) {
        let (range, kind) = match found {
            Some((range, LockKind::Shared)) => (range, 0),
            Some((range, LockKind::Exclusive)) => (range, 1),
            None => (LockRange::ALL, 2),
        };
        self.0.put64(range.from.cast_unsigned());
        self.0.put64(range.to.cast_unsigned());
        self.0.put32(kind);
        self.0.put32(0);
    }

    pub(super) fn entry(&mut self, entry: &Entry, valid: Duration) {
        put_entry(&mut self.0, entry, valid);
    }

    /// An entry that says only that nothing has the name, for so long.
    pub(super) fn no_entry(&mut self, valid: Duration) {
        self.0.put64(0);
        self.0.put64(0);
        self.0.put64(valid.as_secs());
        self.0.put64(0);
        self.0.put32(valid.subsec_nanos());
        self.0.put32(0);
        self.0.resize(self.0.len() + 88, 0);
    }

    pub(super) fn opened(&mut self, handle: u64, flags: u32, backing: u32) {
        self.0.put64(handle);
        self.0.put32(flags);
        self.0.put32(backing);
    }

    pub(super) fn count(&mut self, count: u32) {
        self.0.put32(count);
        self.0.put32(0);
    }

    pub(super) fn number(&mut self, number: u64) {
        self.0.put64(number);
    }

    pub(super) fn room(&mut self, room: &Room) {
        for number in [room.blocks, room.free, room.free, room.files, room.files_free] {
            self.0.put64(number);
        }
        for number in [room.block, 255, room.block, 0, 0, 0, 0, 0, 0, 0] {
            self.0.put32(number);
        }
    }

    /// Adds an entry of a directory, if it fits below `most` bytes of body.
    pub(super) fn listed(&mut self, listed: &Listed<'_>, most: usize) -> bool {
        let fits = self.0.len() - HEAD + listed_size(listed) <= most;
        if fits {
            put_listed(&mut self.0, listed);
        }
        fits
    }

    /// As [`Reply::listed`], with what a lookup found; a node of 0 stands for none.
    pub(super) fn listed_plus(&mut self, listed: &Listed<'_>, entry: Option<&Entry>, valid: Duration) {
        match entry {
            Some(entry) => put_entry(&mut self.0, entry, valid),
            None => self.0.resize(self.0.len() + ENTRY, 0),
        }
        put_listed(&mut self.0, listed);
    }

    /// Whether one more entry with a lookup fits.
    pub(super) fn has_room_for(&self, listed: &Listed<'_>, most: usize) -> bool {
        self.0.len() - HEAD + ENTRY + listed_size(listed) <= most
    }
}

/// Bytes of an entry with its attributes.
const ENTRY: usize = 128;

fn listed_size(listed: &Listed<'_>) -> usize {
    (24 + listed.name.len()).next_multiple_of(8)
}

fn put_listed(out: &mut Vec<u8>, listed: &Listed<'_>) {
    let end = out.len() + listed_size(listed);
    out.put64(listed.inode);
    out.put64(listed.next);
    out.put32(u32::try_from(listed.name.len()).unwrap_or(0));
    out.put32(listed.kind.bits() >> 12);
    out.extend_from_slice(listed.name);
    out.resize(end, 0);
}

fn put_entry(out: &mut Vec<u8>, entry: &Entry, valid: Duration) {
    // A directory's attributes change whenever something in it does; names stay.
    out.put64(entry.node.0);
    out.put64(0);
    out.put64(valid.as_secs());
    out.put64(valid.as_secs());
    out.put32(valid.subsec_nanos());
    out.put32(valid.subsec_nanos());
    put_attributes(out, &entry.attributes);
}

fn put_attributes(out: &mut Vec<u8>, attributes: &Attributes) {
    let times = [attributes.accessed, attributes.modified, attributes.changed];
    out.put64(attributes.inode);
    out.put64(attributes.size);
    out.put64(attributes.blocks);
    for time in times {
        out.put64(time.seconds.cast_unsigned());
    }
    for time in times {
        out.put32(time.nanos);
    }
    let block = if attributes.kind == Kind::File { 128 << 10 } else { 4096 };
    out.put32(attributes.kind.bits() | attributes.mode & 0o7777);
    for number in [attributes.links, attributes.user, attributes.group, 0, block, 0] {
        out.put32(number);
    }
}
