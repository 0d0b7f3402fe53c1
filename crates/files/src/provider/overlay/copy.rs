//! Copying up, and marks that hide what is below.

use super::{
    Overlay,
    merged::{Merged, Side, State},
};
use crate::provider::types::{
    Attributes, Caller, Change, Entry, Handle, Kind, Name, New, Node, Remove, Rename, Result, SetAttribute,
    Take, Want,
};
use rustix::io::Errno;

/// On an empty file: nothing has this name, whatever lies below (as overlayfs has it).
const WHITEOUT: &[u8] = b"user.overlay.whiteout";
/// On a directory: nothing of what lies below is in it.
const OPAQUE: &[u8] = b"user.overlay.opaque";
/// Attributes that are ours.
const OURS: &[u8] = b"user.overlay.";
/// Names of copies that are not whole yet.
const COPYING: &[u8] = b".airlock-copying-";
/// Bytes copied at a time.
const PIECE: usize = 1 << 20;

/// Whether the bytes of a file come along.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Bytes {
    Copied,
    /// They are about to be thrown away.
    Dropped,
}

/// Names that nobody inside sees or makes.
pub(super) fn is_ours(name: &[u8]) -> bool {
    name.starts_with(COPYING)
}

/// Attributes that nobody inside sees or sets.
pub(super) fn is_our_attribute(name: &[u8]) -> bool {
    name.starts_with(OURS)
}

impl Overlay {
    /// Gives a node an upper part, and every directory above it.
    pub(super) fn raise(&self, state: &mut State, node: Node, bytes: Bytes) -> Result<Node> {
        let mut missing = Vec::new();
        let mut here = node;
        let mut upper = loop {
            let merged = state.get(here)?;
            match merged.upper {
                Some(upper) => break upper,
                None if missing.len() > 4096 => return Err(Errno::STALE),
                None => missing.push(here),
            }
            here = merged.parent;
        };
        while let Some(next) = missing.pop() {
            let merged = state.get(next)?.clone();
            upper = self.copy(state, &merged, upper, bytes)?;
            state.raised(next, upper);
        }
        Ok(upper)
    }

    fn copy(&self, state: &mut State, merged: &Merged, parent: Node, bytes: Bytes) -> Result<Node> {
        let lower = merged.lower.ok_or(Errno::STALE)?;
        let attributes = self.lower.attributes(lower)?;
        let owner = Caller { user: attributes.user, group: attributes.group };
        let aside = [COPYING, state.fresh().to_string().as_bytes()].concat();
        let (aside, name) = (Name::new(&aside)?, Name::new(&merged.name)?);
        let mode = attributes.mode & 0o1777;
        let entry = match merged.kind {
            Kind::Link => {
                let target = self.lower.readlink(lower)?;
                self.upper.make(parent, aside, New::Link { target: &target }, owner)?
            }
            kind => self.upper.make(parent, aside, New::Plain { kind, mode }, owner)?,
        };
        let filled = self.fill(lower, entry.node, &attributes, bytes);
        let placed = filled.and_then(|()| self.upper.rename((parent, aside), (parent, name), Rename::Keep));
        if let Err(err) = placed {
            let what = if merged.kind == Kind::Directory { Remove::Directory } else { Remove::File };
            let _ = self.upper.remove(parent, aside, what);
            self.upper.forget(entry.node, 1);
            return Err(err);
        }
        Ok(entry.node)
    }

    /// Bytes, attributes and times of a copy.
    fn fill(&self, lower: Node, upper: Node, attributes: &Attributes, bytes: Bytes) -> Result<()> {
        if attributes.kind == Kind::File && bytes == Bytes::Copied {
            self.copy_bytes(lower, upper, attributes.size)?;
        }
        if attributes.kind != Kind::Link {
            for name in self.lower.attribute_names(lower)?.iter().filter(|name| !is_our_attribute(name)) {
                let value = self.lower.attribute(lower, name)?;
                self.upper.set_attribute(upper, name, &value, SetAttribute::Any)?;
            }
        }
        let change = Change {
            accessed: Some(attributes.accessed),
            modified: Some(attributes.modified),
            ..Change::default()
        };
        self.upper.change(upper, None, &change).map(drop)
    }

    fn copy_bytes(&self, lower: Node, upper: Node, size: u64) -> Result<()> {
        let read = self.lower.open(lower, Want { read: true, ..Want::default() })?;
        let write = self.upper.open(upper, Want { write: true, read: true, ..Want::default() });
        let copied = write.and_then(|write| {
            let copied = self.copy_range(read, write, size);
            self.upper.release(write);
            copied
        });
        self.lower.release(read);
        copied
    }

    fn copy_range(&self, from: Handle, to: Handle, size: u64) -> Result<()> {
        let (mut at, mut piece) = (0, Vec::with_capacity(PIECE.min(usize::try_from(size).unwrap_or(PIECE))));
        while at < size {
            at = match self.lower.seek(from, at, crate::provider::Seek::Data) {
                Ok(data) => data,
                Err(Errno::NXIO) => break,
                Err(_) => at,
            };
            piece.clear();
            self.lower.read(from, at, PIECE, &mut piece)?;
            if piece.is_empty() {
                break;
            }
            let mut rest = piece.as_slice();
            while !rest.is_empty() {
                let count = self.upper.write(to, at, rest)?;
                if count == 0 {
                    return Err(Errno::NOSPC);
                }
                at += count as u64;
                rest = rest.get(count..).unwrap_or_default();
            }
        }
        if at < size {
            self.upper.allocate(to, crate::provider::Allocate::Zero, at, size - at)
        } else {
            Ok(())
        }
    }

    /// Whether an upper entry only says that nothing has its name.
    pub(super) fn is_whiteout(&self, entry: &Entry) -> bool {
        let Attributes { kind, size, .. } = entry.attributes;
        (kind, size) == (Kind::File, 0) && self.upper.attribute(entry.node, WHITEOUT).is_ok()
    }

    pub(super) fn is_opaque(&self, upper: Node) -> bool {
        self.upper.attribute(upper, OPAQUE).is_ok()
    }

    pub(super) fn make_opaque(&self, upper: Node) -> Result<()> {
        self.upper.set_attribute(upper, OPAQUE, b"y", SetAttribute::Any)
    }

    /// Hides what lies below under a name that nothing above has.
    pub(super) fn hide(&self, parent: Node, name: Name<'_>) -> Result<()> {
        let owner = self.upper.attributes(parent)?;
        let owner = Caller { user: owner.user, group: owner.group };
        let new = New::Plain { kind: Kind::File, mode: 0o600 };
        let entry = self.upper.make(parent, name, new, owner)?;
        let marked = self.upper.set_attribute(entry.node, WHITEOUT, b"y", SetAttribute::Any);
        self.upper.forget(entry.node, 1);
        if marked.is_err() {
            let _ = self.upper.remove(parent, name, Remove::File);
        }
        marked
    }

    /// Takes a mark away, if there is one; says whether there was.
    pub(super) fn unhide(&self, parent: Node, name: Name<'_>) -> Result<bool> {
        let entry = match self.upper.lookup(parent, name) {
            Ok(entry) => entry,
            Err(Errno::NOENT) => return Ok(false),
            Err(err) => return Err(err),
        };
        let is_whiteout = self.is_whiteout(&entry);
        self.upper.forget(entry.node, 1);
        if is_whiteout {
            self.upper.remove(parent, name, Remove::File)?;
        }
        Ok(is_whiteout)
    }

    /// Whether something lies below under this name, and is not hidden by what the directory is.
    pub(super) fn is_below(&self, directory: &Merged, name: Name<'_>) -> bool {
        let Some(lower) = directory.lower else { return false };
        let found = self.lower.lookup(lower, name);
        found.iter().for_each(|entry| self.lower.forget(entry.node, 1));
        found.is_ok()
    }

    /// Everything in a directory, from both sides.
    pub(super) fn merge(&self, merged: &Merged) -> Result<Vec<super::merged::Entry>> {
        let mut names = std::collections::BTreeMap::new();
        if let Some(upper) = merged.upper {
            let listed = self.entries(Side::Upper, upper)?;
            for (name, inode, kind) in listed {
                let is_whiteout = kind == Kind::File && self.is_marked(upper, &name)?;
                names.insert(name, (!is_whiteout).then_some((inode, kind)));
            }
        }
        if let Some(lower) = merged.lower {
            for (name, inode, kind) in self.entries(Side::Lower, lower)? {
                names.entry(name).or_insert(Some((inode, kind)));
            }
        }
        let seen = names.into_iter().filter(|(name, _)| !is_ours(name));
        Ok(seen.filter_map(|(name, found)| found.map(|(inode, kind)| (name, inode, kind))).collect())
    }

    fn is_marked(&self, parent: Node, name: &[u8]) -> Result<bool> {
        let Ok(entry) = self.upper.lookup(parent, Name::new(name)?) else { return Ok(false) };
        let is_whiteout = self.is_whiteout(&entry);
        self.upper.forget(entry.node, 1);
        Ok(is_whiteout)
    }

    fn entries(&self, side: Side, node: Node) -> Result<Vec<super::merged::Entry>> {
        let provider = self.side(side);
        let handle = provider.open_directory(node)?;
        let mut entries = Vec::new();
        let take: &mut Take<'_> = &mut |listed| {
            entries.push((listed.name.to_vec(), listed.inode, listed.kind));
            entries.len() < super::MOST_LISTED
        };
        let listed = provider.list(handle, 0, take);
        provider.release_directory(handle);
        match entries.len() {
            too_many if too_many >= super::MOST_LISTED => Err(Errno::NOMEM),
            _ => listed.map(|()| entries),
        }
    }

    /// Removes the upper part of a directory in which nothing is left but marks.
    pub(super) fn remove_directory(&self, parent: Node, name: Name<'_>, upper: Node) -> Result<()> {
        for (below, _, _) in self.entries(Side::Upper, upper)? {
            if self.is_marked(upper, &below)? {
                self.upper.remove(upper, Name::new(&below)?, Remove::File)?;
            }
        }
        self.upper.remove(parent, name, Remove::Directory)
    }
}
