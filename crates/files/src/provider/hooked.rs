//! Another provider, with somebody asked before something is done to a file and told after it.
//!
//! Paths are those of the names by which the kernel found a file. One more name for a file, and a name that takes the
//! place of another, count as much as the file itself.

use super::{
    Provider,
    types::{
        Allocate, Attributes, Caching, Caller, Change, Entry, Handle, Kind, Lock, LockKind, LockRange, Name,
        New, Node, Remove, Rename, Result, Room, Seek, SetAttribute, Take, Want,
    },
};
use airlock_protocol::files::Touch;
use rustix::io::Errno;
use std::{
    collections::HashMap,
    os::fd::OwnedFd,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// What is about to be done, or was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Touched<'a> {
    /// What.
    pub touch: Touch,
    /// To which file, from the mount's root, without a `/` in front.
    pub path: &'a str,
}

/// Who is asked and told. Called from the threads that serve, so quick.
pub trait Hooks: Send + Sync {
    /// Whether it has any interest in this. What it does not want to know of can be quicker.
    fn wants(&self, touch: Touch) -> bool;

    /// Asked before; an error is the call's answer.
    fn before(&self, touched: Touched<'_>) -> Result<()>;

    /// Told after, with what became of it.
    fn after(&self, touched: Touched<'_>, outcome: Result<()>);

    /// Asked before a directory gets another name, and everything in it with it.
    fn before_moving(&self, directory: &str) -> Result<()> {
        let _ = directory;
        Ok(())
    }
}

/// Another provider, with somebody asked and told.
pub struct Hooked {
    of: Arc<dyn Provider>,
    hooks: Arc<dyn Hooks>,
    names: Mutex<Names>,
}

#[derive(Default)]
struct Names {
    nodes: HashMap<Node, Named>,
    files: HashMap<Handle, Node>,
}

struct Named {
    parent: Node,
    name: Box<[u8]>,
    lookups: u64,
}

impl Names {
    fn note(&mut self, parent: Node, name: Name<'_>, node: Node) {
        let fresh = Named { parent, name: Box::default(), lookups: 0 };
        let named = self.nodes.entry(node).or_insert(fresh);
        named.lookups += 1;
        (named.parent, named.name) = (parent, name.bytes().into());
    }

    /// Where a node is; the deepest part of a path that is too long.
    fn path(&self, node: Node) -> String {
        let mut parts = Vec::new();
        let mut here = node;
        while let Some(named) = self.nodes.get(&here).filter(|_| here != Node::ROOT && parts.len() < 4096) {
            parts.push(String::from_utf8_lossy(&named.name));
            here = named.parent;
        }
        parts.reverse();
        parts.join("/")
    }

    fn below(&self, parent: Node, name: Name<'_>) -> String {
        let (mut path, name) = (self.path(parent), String::from_utf8_lossy(name.bytes()));
        if !path.is_empty() {
            path.push('/');
        }
        path.push_str(&name);
        path
    }
}

impl Hooked {
    /// Serves `of`; `hooks` are asked and told.
    pub fn new(of: Arc<dyn Provider>, hooks: Arc<dyn Hooks>) -> Hooked {
        Hooked { of, hooks, names: Mutex::default() }
    }

    fn names(&self) -> MutexGuard<'_, Names> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn noted(&self, parent: Node, name: Name<'_>, entry: Entry) -> Entry {
        self.names().note(parent, name, entry.node);
        entry
    }

    /// Asks, does it, tells.
    fn ask<T>(&self, touch: Touch, path: &str, act: impl FnOnce() -> Result<T>) -> Result<T> {
        let touched = Touched { touch, path };
        self.hooks.before(touched)?;
        let outcome = act();
        self.hooks.after(touched, outcome.as_ref().map(drop).map_err(|err| *err));
        outcome
    }

    fn may(&self, touches: &[Touch], path: &str) -> Result<()> {
        touches.iter().try_for_each(|touch| self.hooks.before(Touched { touch: *touch, path }))
    }

    fn file_path(&self, handle: Handle) -> Result<String> {
        let names = self.names();
        let node = names.files.get(&handle).ok_or(Errno::BADF)?;
        Ok(names.path(*node))
    }

    fn opened(&self, handle: Handle, node: Node) -> Handle {
        self.names().files.insert(handle, node);
        handle
    }

    /// What a rename does to the file that it takes along.
    fn may_move(&self, (parent, name): (Node, Name<'_>), path: &str) -> Result<()> {
        let entry = self.of.lookup(parent, name)?;
        self.of.forget(entry.node, 1);
        self.may(&[Touch::Rename], path)?;
        match entry.attributes.kind {
            Kind::Directory => self.hooks.before_moving(path),
            _ => Ok(()),
        }
    }

    /// Names that changed places.
    fn moved(&self, from: (Node, Name<'_>), to: (Node, Name<'_>), how: Rename) {
        let places: &[(Node, Name<'_>)] = if how == Rename::Exchange { &[from, to] } else { &[to] };
        for (parent, name) in places {
            if let Ok(entry) = self.of.lookup(*parent, *name) {
                self.of.forget(entry.node, 1);
                if let Some(named) = self.names().nodes.get_mut(&entry.node) {
                    (named.parent, named.name) = (*parent, name.bytes().into());
                }
            }
        }
    }
}

impl Provider for Hooked {
    fn caching(&self) -> Caching {
        let Caching { valid, alone, names } = self.of.caching();
        Caching { valid, alone: alone && !self.hooks.wants(Touch::Write), names }
    }

    fn lookup(&self, parent: Node, name: Name<'_>) -> Result<Entry> {
        Ok(self.noted(parent, name, self.of.lookup(parent, name)?))
    }

    fn forget(&self, node: Node, times: u64) {
        let mut names = self.names();
        if let Some(named) = names.nodes.get_mut(&node) {
            named.lookups = named.lookups.saturating_sub(times);
            if named.lookups == 0 {
                names.nodes.remove(&node);
            }
        }
        drop(names);
        self.of.forget(node, times);
    }

    fn attributes(&self, node: Node) -> Result<Attributes> {
        self.of.attributes(node)
    }

    fn change(&self, node: Node, handle: Option<Handle>, change: &Change) -> Result<Attributes> {
        if change.size.is_none() {
            return self.of.change(node, handle, change);
        }
        let path = self.names().path(node);
        self.ask(Touch::Write, &path, || self.of.change(node, handle, change))
    }

    fn readlink(&self, node: Node) -> Result<Vec<u8>> {
        self.of.readlink(node)
    }

    fn make(&self, parent: Node, name: Name<'_>, new: New<'_>, caller: Caller) -> Result<Entry> {
        let path = self.names().below(parent, name);
        let entry = self.ask(Touch::Create, &path, || self.of.make(parent, name, new, caller))?;
        Ok(self.noted(parent, name, entry))
    }

    fn remove(&self, parent: Node, name: Name<'_>, what: Remove) -> Result<()> {
        let path = self.names().below(parent, name);
        self.ask(Touch::Remove, &path, || self.of.remove(parent, name, what))
    }

    fn rename(&self, from: (Node, Name<'_>), to: (Node, Name<'_>), how: Rename) -> Result<()> {
        // One after the other: a lock lives as long as its statement.
        let old = self.names().below(from.0, from.1);
        let new = self.names().below(to.0, to.1);
        self.may_move(from, &old)?;
        self.may(&[Touch::Rename, Touch::Create, Touch::Write], &new)?;
        if how == Rename::Exchange {
            self.may_move(to, &new)?;
            self.may(&[Touch::Create, Touch::Write], &old)?;
        }
        self.ask(Touch::Rename, &old, || self.of.rename(from, to, how))?;
        self.moved(from, to, how);
        Ok(())
    }

    fn link(&self, node: Node, parent: Node, name: Name<'_>) -> Result<Entry> {
        let old = self.names().path(node);
        let new = self.names().below(parent, name);
        // By another name it could be opened and written: what is refused by one name gets no other.
        self.may(&[Touch::Open, Touch::Write, Touch::Rename], &old)?;
        let entry = self.ask(Touch::Create, &new, || self.of.link(node, parent, name))?;
        Ok(self.noted(parent, name, entry))
    }

    fn open(&self, node: Node, want: Want) -> Result<Handle> {
        let path = self.names().path(node);
        if want.write || want.truncate {
            self.may(&[Touch::Write], &path)?;
        }
        let handle = self.ask(Touch::Open, &path, || self.of.open(node, want))?;
        Ok(self.opened(handle, node))
    }

    fn create(
        &self,
        (parent, name): (Node, Name<'_>),
        mode: u32,
        want: Want,
        caller: Caller,
    ) -> Result<(Entry, Handle)> {
        let path = self.names().below(parent, name);
        let there = self.of.lookup(parent, name);
        there.iter().for_each(|entry| self.of.forget(entry.node, 1));
        let touch = if there.is_ok() { Touch::Open } else { Touch::Create };
        if there.is_ok() && (want.write || want.truncate) {
            self.may(&[Touch::Write], &path)?;
        }
        let made = self.ask(touch, &path, || self.of.create((parent, name), mode, want, caller))?;
        let (entry, handle) = made;
        let entry = self.noted(parent, name, entry);
        Ok((entry.clone(), self.opened(handle, entry.node)))
    }

    fn read(&self, handle: Handle, offset: u64, size: usize, into: &mut Vec<u8>) -> Result<()> {
        self.of.read(handle, offset, size, into)
    }

    fn write(&self, handle: Handle, offset: u64, bytes: &[u8]) -> Result<usize> {
        if !self.hooks.wants(Touch::Write) {
            return self.of.write(handle, offset, bytes);
        }
        let path = self.file_path(handle)?;
        self.ask(Touch::Write, &path, || self.of.write(handle, offset, bytes))
    }

    fn sync(&self, handle: Handle) -> Result<()> {
        self.of.sync(handle)
    }

    fn allocate(&self, handle: Handle, how: Allocate, offset: u64, length: u64) -> Result<()> {
        let path = self.file_path(handle)?;
        self.ask(Touch::Write, &path, || self.of.allocate(handle, how, offset, length))
    }

    fn seek(&self, handle: Handle, offset: u64, what: Seek) -> Result<u64> {
        self.of.seek(handle, offset, what)
    }

    fn release(&self, handle: Handle) {
        self.names().files.remove(&handle);
        self.of.release(handle);
    }

    fn backing(&self, handle: Handle) -> Option<OwnedFd> {
        if self.hooks.wants(Touch::Write) { None } else { self.of.backing(handle) }
    }

    fn keeps_locks(&self) -> bool {
        self.of.keeps_locks()
    }

    fn set_lock(&self, handle: Handle, lock: &Lock) -> Result<()> {
        self.of.set_lock(handle, lock)
    }

    fn locked(&self, handle: Handle, lock: &Lock) -> Result<Option<(LockRange, LockKind)>> {
        self.of.locked(handle, lock)
    }

    fn unlock(&self, handle: Handle, owner: u64) {
        self.of.unlock(handle, owner);
    }

    fn open_directory(&self, node: Node) -> Result<Handle> {
        self.of.open_directory(node)
    }

    fn list(&self, handle: Handle, from: u64, take: &mut Take<'_>) -> Result<()> {
        self.of.list(handle, from, take)
    }

    fn release_directory(&self, handle: Handle) {
        self.of.release_directory(handle);
    }

    fn attribute(&self, node: Node, name: &[u8]) -> Result<Vec<u8>> {
        self.of.attribute(node, name)
    }

    fn attribute_names(&self, node: Node) -> Result<Vec<Vec<u8>>> {
        self.of.attribute_names(node)
    }

    fn set_attribute(&self, node: Node, name: &[u8], value: &[u8], how: SetAttribute) -> Result<()> {
        self.of.set_attribute(node, name, value, how)
    }

    fn remove_attribute(&self, node: Node, name: &[u8]) -> Result<()> {
        self.of.remove_attribute(node, name)
    }

    fn room(&self) -> Result<Room> {
        self.of.room()
    }
}
