//! Two providers seen as one. What is changed is copied to the upper first; the lower is only ever read. Names that were
//! removed, and directories that were replaced, are marked in the upper the way overlayfs marks them.
//!
//! As with overlayfs without redirection, a directory of the lower cannot be renamed (`EXDEV`; programs copy it), and
//! names of one file become several files when it is copied.

mod copy;
mod merged;
mod rename;

use super::{
    Provider,
    types::{
        Allocate, Attributes, Caching, Caller, Change, Entry, Handle, Kind, Listed, Name, New, Node, Remove,
        Rename, Result, Room, Seek, SetAttribute, Take, Want,
    },
};
use copy::{Bytes, is_our_attribute, is_ours};
use merged::{Merged, Open, Side, State};
use rustix::io::Errno;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Most entries of open directories that are remembered.
const MOST_LISTED: usize = 1 << 20;
/// Most files and directories that are open.
const MOST_OPEN: usize = 65_536;

/// Two providers seen as one.
pub struct Overlay {
    lower: Arc<dyn Provider>,
    upper: Arc<dyn Provider>,
    state: Mutex<State>,
}

/// What was found under a name.
struct Seen {
    upper: Option<Entry>,
    lower: Option<Entry>,
}

impl Overlay {
    /// Shows `lower` with the changes of `upper`, which must take extended attributes.
    pub fn new(lower: Arc<dyn Provider>, upper: Arc<dyn Provider>) -> Overlay {
        Overlay { lower, upper, state: Mutex::new(State::new()) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn side(&self, side: Side) -> &dyn Provider {
        match side {
            Side::Upper => &*self.upper,
            Side::Lower => &*self.lower,
        }
    }

    /// What has a name, above and below.
    fn see(&self, directory: &Merged, name: Name<'_>) -> Result<Seen> {
        if directory.kind != Kind::Directory {
            return Err(Errno::NOTDIR);
        }
        if is_ours(name.bytes()) {
            return Err(Errno::NOENT);
        }
        let upper = match directory.upper.map(|upper| self.upper.lookup(upper, name)) {
            Some(Ok(entry)) if self.is_whiteout(&entry) => {
                self.upper.forget(entry.node, 1);
                return Err(Errno::NOENT);
            }
            Some(Ok(entry)) => Some(entry),
            Some(Err(Errno::NOENT)) | None => None,
            Some(Err(err)) => return Err(err),
        };
        let hides = |entry: &Entry| entry.attributes.kind != Kind::Directory || self.is_opaque(entry.node);
        let lower = match directory.lower.filter(|_| !upper.as_ref().is_some_and(hides)) {
            Some(lower) => self.lower.lookup(lower, name).ok(),
            None => None,
        };
        let lower = lower.filter(|entry| {
            let fits = upper.is_none() || entry.attributes.kind == Kind::Directory;
            if !fits {
                self.lower.forget(entry.node, 1);
            }
            fits
        });
        if upper.is_none() && lower.is_none() { Err(Errno::NOENT) } else { Ok(Seen { upper, lower }) }
    }

    /// Makes what was found a node, which counts as looked up.
    fn register(&self, state: &mut State, parent: Node, name: Name<'_>, seen: Seen) -> Result<Entry> {
        let Some(shown) = seen.upper.as_ref().or(seen.lower.as_ref()) else { return Err(Errno::NOENT) };
        let attributes = shown.attributes.clone();
        let inode = match seen.upper {
            Some(_) => attributes.inode,
            None => attributes.inode ^ 1 << 63,
        };
        let merged = Merged {
            upper: seen.upper.as_ref().map(|entry| entry.node),
            lower: seen.lower.as_ref().map(|entry| entry.node),
            parent,
            name: name.bytes().to_vec(),
            kind: attributes.kind,
            inode,
            lookups: 1,
        };
        if let Some(node) = state.known(&merged) {
            let known = state.get_mut(node)?;
            known.lookups += 1;
            (known.parent, known.name) = (parent, merged.name.clone());
            let inode = known.inode;
            self.let_go(&merged);
            return Ok(Entry { node, attributes: Attributes { inode, ..attributes } });
        }
        match state.add(merged.clone()) {
            Ok(node) => Ok(Entry { node, attributes: Attributes { inode, ..attributes } }),
            Err(err) => {
                self.let_go(&merged);
                Err(err)
            }
        }
    }

    /// Gives back the lookups of both parts.
    fn let_go(&self, merged: &Merged) {
        if let Some(upper) = merged.upper {
            self.upper.forget(upper, 1);
        }
        if let Some(lower) = merged.lower {
            self.lower.forget(lower, 1);
        }
    }

    /// What has a name, without counting it as looked up.
    fn peek(&self, directory: &Merged, name: Name<'_>) -> Result<Merged> {
        let seen = self.see(directory, name)?;
        let Some(shown) = seen.upper.as_ref().or(seen.lower.as_ref()) else { return Err(Errno::NOENT) };
        let merged = Merged {
            upper: seen.upper.as_ref().map(|entry| entry.node),
            lower: seen.lower.as_ref().map(|entry| entry.node),
            parent: Node::ROOT,
            name: Vec::new(),
            kind: shown.attributes.kind,
            inode: 0,
            lookups: 0,
        };
        self.let_go(&merged);
        Ok(merged)
    }

    /// The upper directory in which a new name is about to be made, free of marks; and whether something lies below it.
    fn clear(&self, state: &mut State, parent: Node, name: Name<'_>) -> Result<(Node, bool)> {
        let directory = state.get(parent)?.clone();
        match self.peek(&directory, name) {
            Ok(_) => return Err(Errno::EXIST),
            Err(Errno::NOENT) if is_ours(name.bytes()) => return Err(Errno::PERM),
            Err(Errno::NOENT) => {}
            Err(err) => return Err(err),
        }
        let upper = self.raise(state, parent, Bytes::Copied)?;
        self.unhide(upper, name)?;
        Ok((upper, self.is_below(&directory, name)))
    }

    fn add(&self, state: &mut State, parent: Node, name: Name<'_>, entry: Entry) -> Result<Entry> {
        self.register(state, parent, name, Seen { upper: Some(entry), lower: None })
    }

    /// Where an open file is now: one that was open below moves up with its node.
    fn opened(&self, handle: Handle) -> Result<(Side, Handle)> {
        let mut state = self.state();
        let open = *state.files.get(&handle).ok_or(Errno::BADF)?;
        let Some(upper) = state.get(open.node)?.upper.filter(|_| open.side == Side::Lower) else {
            return Ok((open.side, open.handle));
        };
        let moved = self.upper.open(upper, Want { read: true, ..Want::default() })?;
        self.lower.release(open.handle);
        state.files.insert(handle, Open { side: Side::Upper, handle: moved, ..open });
        Ok((Side::Upper, moved))
    }

    fn open_in(&self, state: &mut State, node: Node, want: Want) -> Result<Handle> {
        if state.files.len() >= MOST_OPEN {
            return Err(Errno::NFILE);
        }
        if want.write || want.truncate {
            let bytes = if want.truncate { Bytes::Dropped } else { Bytes::Copied };
            self.raise(state, node, bytes)?;
        }
        let merged = state.get(node)?;
        let (side, inner) = match (merged.upper, merged.lower) {
            (Some(upper), _) => (Side::Upper, self.upper.open(upper, want)?),
            (None, Some(lower)) => (Side::Lower, self.lower.open(lower, want)?),
            (None, None) => return Err(Errno::STALE),
        };
        let handle = Handle(state.fresh());
        state.files.insert(handle, Open { node, side, handle: inner });
        Ok(handle)
    }

    fn shown(&self, merged: &Merged) -> Result<Attributes> {
        let attributes = match (merged.upper, merged.lower) {
            (Some(upper), _) => self.upper.attributes(upper)?,
            (None, Some(lower)) => self.lower.attributes(lower)?,
            (None, None) => return Err(Errno::STALE),
        };
        Ok(Attributes { inode: merged.inode, ..attributes })
    }

    /// The side that is seen of a node, and which node it is there.
    fn seen_of(&self, node: Node) -> Result<(&dyn Provider, Node)> {
        let state = self.state();
        let merged = state.get(node)?;
        match (merged.upper, merged.lower) {
            (Some(upper), _) => Ok((&*self.upper, upper)),
            (None, Some(lower)) => Ok((&*self.lower, lower)),
            (None, None) => Err(Errno::STALE),
        }
    }

    fn raised(&self, node: Node) -> Result<Node> {
        self.raise(&mut self.state(), node, Bytes::Copied)
    }
}

impl Provider for Overlay {
    fn caching(&self) -> Caching {
        let (lower, upper) = (self.lower.caching(), self.upper.caching());
        Caching { valid: lower.valid.min(upper.valid), alone: lower.alone && upper.alone, names: false }
    }

    fn lookup(&self, parent: Node, name: Name<'_>) -> Result<Entry> {
        let mut state = self.state();
        let directory = state.get(parent)?.clone();
        let seen = self.see(&directory, name)?;
        self.register(&mut state, parent, name, seen)
    }

    fn forget(&self, node: Node, times: u64) {
        let gone = self.state().forget(node, times);
        gone.iter().for_each(|merged| self.let_go(merged));
    }

    fn attributes(&self, node: Node) -> Result<Attributes> {
        let merged = self.state().get(node)?.clone();
        self.shown(&merged)
    }

    fn change(&self, node: Node, handle: Option<Handle>, change: &Change) -> Result<Attributes> {
        let mut state = self.state();
        let bytes = if change.size == Some(0) { Bytes::Dropped } else { Bytes::Copied };
        let upper = self.raise(&mut state, node, bytes)?;
        let inode = state.get(node)?.inode;
        drop(state);
        let handle = handle.and_then(|handle| self.opened(handle).ok()).map(|(_, handle)| handle);
        Ok(Attributes { inode, ..self.upper.change(upper, handle, change)? })
    }

    fn readlink(&self, node: Node) -> Result<Vec<u8>> {
        let (provider, node) = self.seen_of(node)?;
        provider.readlink(node)
    }

    fn make(&self, parent: Node, name: Name<'_>, new: New<'_>, caller: Caller) -> Result<Entry> {
        let mut state = self.state();
        let (upper, is_below) = self.clear(&mut state, parent, name)?;
        let entry = self.upper.make(upper, name, new, caller)?;
        if is_below && entry.attributes.kind == Kind::Directory {
            self.make_opaque(entry.node)?;
        }
        self.add(&mut state, parent, name, entry)
    }

    fn remove(&self, parent: Node, name: Name<'_>, what: Remove) -> Result<()> {
        let mut state = self.state();
        let directory = state.get(parent)?.clone();
        let merged = self.peek(&directory, name)?;
        match (what, merged.kind) {
            (Remove::File, Kind::Directory) => return Err(Errno::ISDIR),
            (Remove::Directory, Kind::Directory) if !self.merge(&merged)?.is_empty() => {
                return Err(Errno::NOTEMPTY);
            }
            (Remove::Directory, kind) if kind != Kind::Directory => return Err(Errno::NOTDIR),
            _ => {}
        }
        let upper = self.raise(&mut state, parent, Bytes::Copied)?;
        match (merged.upper, what) {
            (Some(above), Remove::Directory) => self.remove_directory(upper, name, above)?,
            (Some(_), Remove::File) => self.upper.remove(upper, name, Remove::File)?,
            (None, _) => {}
        }
        if self.is_below(&directory, name) { self.hide(upper, name) } else { Ok(()) }
    }

    fn rename(&self, from: (Node, Name<'_>), to: (Node, Name<'_>), how: Rename) -> Result<()> {
        self.rename_in(&mut self.state(), from, to, how)
    }

    fn link(&self, node: Node, parent: Node, name: Name<'_>) -> Result<Entry> {
        let mut state = self.state();
        let linked = self.raise(&mut state, node, Bytes::Copied)?;
        let (upper, _) = self.clear(&mut state, parent, name)?;
        let entry = self.upper.link(linked, upper, name)?;
        self.add(&mut state, parent, name, entry)
    }

    fn open(&self, node: Node, want: Want) -> Result<Handle> {
        self.open_in(&mut self.state(), node, want)
    }

    fn create(
        &self,
        (parent, name): (Node, Name<'_>),
        mode: u32,
        want: Want,
        caller: Caller,
    ) -> Result<(Entry, Handle)> {
        let mut state = self.state();
        let directory = state.get(parent)?.clone();
        let entry = match self.see(&directory, name) {
            Ok(seen) => {
                let entry = self.register(&mut state, parent, name, seen)?;
                if want.exclusive {
                    drop(state);
                    self.forget(entry.node, 1);
                    return Err(Errno::EXIST);
                }
                entry
            }
            Err(Errno::NOENT) => {
                let (upper, _) = self.clear(&mut state, parent, name)?;
                let new = New::Plain { kind: Kind::File, mode };
                let entry = self.upper.make(upper, name, new, caller)?;
                self.add(&mut state, parent, name, entry)?
            }
            Err(err) => return Err(err),
        };
        let handle = self.open_in(&mut state, entry.node, Want { exclusive: false, ..want });
        drop(state);
        match handle {
            Ok(handle) => Ok((entry, handle)),
            Err(err) => {
                self.forget(entry.node, 1);
                Err(err)
            }
        }
    }

    fn read(&self, handle: Handle, offset: u64, size: usize, into: &mut Vec<u8>) -> Result<()> {
        let (side, handle) = self.opened(handle)?;
        self.side(side).read(handle, offset, size, into)
    }

    fn write(&self, handle: Handle, offset: u64, bytes: &[u8]) -> Result<usize> {
        match self.opened(handle)? {
            (Side::Upper, handle) => self.upper.write(handle, offset, bytes),
            (Side::Lower, _) => Err(Errno::BADF),
        }
    }

    fn sync(&self, handle: Handle) -> Result<()> {
        match self.opened(handle)? {
            (Side::Upper, handle) => self.upper.sync(handle),
            (Side::Lower, _) => Ok(()),
        }
    }

    fn allocate(&self, handle: Handle, how: Allocate, offset: u64, length: u64) -> Result<()> {
        match self.opened(handle)? {
            (Side::Upper, handle) => self.upper.allocate(handle, how, offset, length),
            (Side::Lower, _) => Err(Errno::BADF),
        }
    }

    fn seek(&self, handle: Handle, offset: u64, what: Seek) -> Result<u64> {
        let (side, handle) = self.opened(handle)?;
        self.side(side).seek(handle, offset, what)
    }

    fn release(&self, handle: Handle) {
        let open = self.state().files.remove(&handle);
        if let Some(open) = open {
            self.side(open.side).release(open.handle);
        }
    }

    fn open_directory(&self, node: Node) -> Result<Handle> {
        let mut state = self.state();
        let entries = self.merge(state.get(node)?)?;
        if state.directories.len() >= MOST_OPEN || state.listed + entries.len() > MOST_LISTED {
            return Err(Errno::NFILE);
        }
        state.listed += entries.len();
        let handle = Handle(state.fresh());
        state.directories.insert(handle, entries);
        Ok(handle)
    }

    fn list(&self, handle: Handle, from: u64, take: &mut Take<'_>) -> Result<()> {
        let state = self.state();
        let entries = state.directories.get(&handle).ok_or(Errno::BADF)?;
        let from = usize::try_from(from).map_err(|_| Errno::INVAL)?;
        for ((name, inode, kind), next) in entries.iter().zip(1u64..).skip(from) {
            if !take(Listed { name, inode: *inode, kind: *kind, next }) {
                break;
            }
        }
        Ok(())
    }

    fn release_directory(&self, handle: Handle) {
        let mut state = self.state();
        let gone = state.directories.remove(&handle);
        state.listed -= gone.map_or(0, |entries| entries.len());
    }

    fn attribute(&self, node: Node, name: &[u8]) -> Result<Vec<u8>> {
        if is_our_attribute(name) {
            return Err(Errno::NODATA);
        }
        let (provider, node) = self.seen_of(node)?;
        provider.attribute(node, name)
    }

    fn attribute_names(&self, node: Node) -> Result<Vec<Vec<u8>>> {
        let (provider, node) = self.seen_of(node)?;
        let mut names = provider.attribute_names(node)?;
        names.retain(|name| !is_our_attribute(name));
        Ok(names)
    }

    fn set_attribute(&self, node: Node, name: &[u8], value: &[u8], how: SetAttribute) -> Result<()> {
        if is_our_attribute(name) {
            return Err(Errno::PERM);
        }
        self.upper.set_attribute(self.raised(node)?, name, value, how)
    }

    fn remove_attribute(&self, node: Node, name: &[u8]) -> Result<()> {
        if is_our_attribute(name) {
            return Err(Errno::NODATA);
        }
        self.upper.remove_attribute(self.raised(node)?, name)
    }

    fn room(&self) -> Result<Room> {
        self.upper.room()
    }
}
