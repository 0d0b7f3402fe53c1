//! Files in memory. Everything a program can make is counted against one bound: bytes, holes that were filled, names,
//! nodes, attributes.

mod content;
mod tree;

use super::{
    Provider,
    types::{
        Allocate, Attributes, Caching, Caller, Change, Entry, Handle, Kind, Listed, Name, New, Node, Remove,
        Rename, Result, Room, Seek, SetAttribute, Take, Time, Want,
    },
};
use content::Content;
use rustix::io::Errno;
use std::{
    collections::HashMap,
    sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard},
    time::Duration,
};
use tree::{Body, Names, Tree};

/// Longest file.
const LONGEST: u64 = 1 << 46;
/// Most files and directories that are open at once.
const MOST_OPEN: usize = 65_536;
/// Most names of one file.
const MOST_LINKS: u32 = 65_000;
/// Longest value of an extended attribute, and most bytes of names, as Linux has them.
const LONGEST_ATTRIBUTE: usize = 65_536;

/// Files in this process's memory, gone with it.
#[derive(Debug)]
pub struct Memory {
    state: RwLock<State>,
}

#[derive(Debug)]
struct State {
    tree: Tree,
    open: HashMap<Handle, Open>,
    next: u64,
}

#[derive(Debug, Clone, Copy)]
struct Open {
    node: Node,
    want: Want,
}

impl Memory {
    /// Empty, with room for `size` bytes of everything; its root belongs to `owner`.
    pub fn new(size: u64, owner: Caller) -> Memory {
        let state = State { tree: Tree::new(size, owner), open: HashMap::new(), next: 0 };
        Memory { state: RwLock::new(state) }
    }

    fn look(&self) -> RwLockReadGuard<'_, State> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn change_state(&self) -> RwLockWriteGuard<'_, State> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn entry(&mut self, node: Node) -> Result<Entry> {
        self.tree.looked_up(node)?;
        Ok(Entry { node, attributes: self.tree.attributes(node)? })
    }

    fn open(&mut self, node: Node, want: Want) -> Result<Handle> {
        if self.open.len() >= MOST_OPEN {
            return Err(Errno::NFILE);
        }
        self.tree.opened(node)?;
        self.next += 1;
        self.open.insert(Handle(self.next), Open { node, want });
        Ok(Handle(self.next))
    }

    fn close(&mut self, handle: Handle) {
        if let Some(open) = self.open.remove(&handle) {
            self.tree.closed(open.node);
        }
    }

    fn opened(&self, handle: Handle) -> Result<Open> {
        self.open.get(&handle).copied().ok_or(Errno::BADF)
    }

    fn resize(&mut self, node: Node, size: u64) -> Result<()> {
        if size > LONGEST {
            return Err(Errno::FBIG);
        }
        let content = self.tree.get_mut(node)?.content_mut()?;
        let before = content.cost();
        content.resize(size);
        let after = content.cost();
        self.tree.refund(before.saturating_sub(after));
        self.tree.get_mut(node)?.written();
        Ok(())
    }

    fn write(&mut self, handle: Handle, offset: u64, bytes: &[u8]) -> Result<usize> {
        let open = self.opened(handle)?;
        if !open.want.write {
            return Err(Errno::BADF);
        }
        let content = self.tree.get(open.node)?.content()?;
        let offset = if open.want.append { content.size() } else { offset };
        let room = usize::try_from(LONGEST.saturating_sub(offset)).unwrap_or(usize::MAX);
        let bytes = bytes.get(..room).unwrap_or(bytes);
        if bytes.is_empty() && room == 0 {
            return Err(Errno::FBIG);
        }
        let growth = content.growth(offset, bytes.len() as u64);
        self.tree.charge(growth)?;
        let inode = self.tree.get_mut(open.node)?;
        inode.content_mut()?.write(offset, bytes);
        inode.written();
        Ok(bytes.len())
    }

    fn allocate(&mut self, node: Node, how: Allocate, from: u64, to: u64) -> Result<()> {
        let content = self.tree.get(node)?.content()?;
        match how {
            Allocate::Grow | Allocate::Keep => {
                // Nothing is set aside: that there is room now is all that is promised.
                if content.growth(from, to - from) > self.tree.most.saturating_sub(self.tree.used) {
                    return Err(Errno::NOSPC);
                }
            }
            Allocate::Punch | Allocate::Zero => {
                let content = self.tree.get_mut(node)?.content_mut()?;
                let (before, end) = (content.cost(), to.min(content.size()));
                content.clear(from, end.max(from));
                let after = content.cost();
                self.tree.refund(before.saturating_sub(after));
            }
        }
        let inode = self.tree.get_mut(node)?;
        if matches!(how, Allocate::Grow | Allocate::Zero) {
            inode.content_mut()?.grow(to);
        }
        inode.written();
        Ok(())
    }

    fn rename(&mut self, from: (Node, &[u8]), to: (Node, &[u8]), how: Rename) -> Result<()> {
        let moved = self.tree.names(from.0)?.get(from.1).ok_or(Errno::NOENT)?;
        if self.tree.get(to.0)?.links == 0 {
            return Err(Errno::NOENT);
        }
        let replaced = self.tree.names(to.0)?.get(to.1);
        self.refuse_loop(moved, to.0)?;
        match (how, replaced) {
            (Rename::Keep, Some(_)) => Err(Errno::EXIST),
            (Rename::Exchange, None) => Err(Errno::NOENT),
            (Rename::Exchange, Some(other)) => {
                self.refuse_loop(other, from.0)?;
                self.exchange(from, to)
            }
            (_, Some(same)) if same == moved => Ok(()),
            (_, Some(other)) => {
                self.check_replaced(moved, other)?;
                // Longer names are counted before anything goes.
                let more = (to.1.len() as u64).saturating_sub(from.1.len() as u64);
                self.tree.charge(more)?;
                self.tree.refund(more);
                self.tree.leave(to.0, to.1)?;
                self.tree.carry(from, to)
            }
            (_, None) => self.tree.carry(from, to),
        }
    }

    fn exchange(&mut self, from: (Node, &[u8]), to: (Node, &[u8])) -> Result<()> {
        if from == to {
            return Ok(());
        }
        // No name from outside is so long.
        let aside = [b'x'; 256];
        self.tree.carry(from, (from.0, &aside))?;
        self.tree.carry(to, from)?;
        self.tree.carry((from.0, &aside), to)
    }

    /// A directory cannot go below itself. The kernel sees to it too; nothing else may be relied on.
    fn refuse_loop(&self, moved: Node, into: Node) -> Result<()> {
        let mut here = into;
        while here != Node::ROOT {
            if here == moved {
                return Err(Errno::INVAL);
            }
            here = self.tree.get(here)?.parent;
        }
        Ok(())
    }

    fn check_replaced(&self, moved: Node, replaced: Node) -> Result<()> {
        let is_directory = |node| Ok(self.tree.get(node)?.kind() == Kind::Directory);
        match (is_directory(moved)?, is_directory(replaced)?) {
            (true, false) => Err(Errno::NOTDIR),
            (false, true) => Err(Errno::ISDIR),
            (true, true) if !self.tree.names(replaced)?.is_empty() => Err(Errno::NOTEMPTY),
            _ => Ok(()),
        }
    }
}

impl tree::Inode {
    /// Set-id bits go whoever wrote.
    fn written(&mut self) {
        self.drop_set_id();
        (self.modified, self.changed) = (Time::now(), Time::now());
    }

    fn drop_set_id(&mut self) {
        let is_program = self.mode & 0o010 != 0;
        if self.kind() == Kind::File {
            self.mode &= if is_program { !0o6000 } else { !0o4000 };
        }
    }
}

impl Provider for Memory {
    fn caching(&self) -> Caching {
        Caching { valid: Duration::from_secs(3600), alone: true, names: false }
    }

    fn lookup(&self, parent: Node, name: Name<'_>) -> Result<Entry> {
        let mut state = self.change_state();
        let node = state.tree.names(parent)?.get(name.bytes()).ok_or(Errno::NOENT)?;
        state.entry(node)
    }

    fn forget(&self, node: Node, times: u64) {
        self.change_state().tree.forget(node, times);
    }

    fn attributes(&self, node: Node) -> Result<Attributes> {
        self.look().tree.attributes(node)
    }

    fn change(&self, node: Node, _: Option<Handle>, change: &Change) -> Result<Attributes> {
        let mut state = self.change_state();
        if let Some(size) = change.size {
            state.resize(node, size)?;
        }
        let inode = state.tree.get_mut(node)?;
        if change.user.is_some() || change.group.is_some() {
            inode.drop_set_id();
        }
        inode.mode = change.mode.map_or(inode.mode, |mode| mode & 0o7777);
        inode.owner.user = change.user.unwrap_or(inode.owner.user);
        inode.owner.group = change.group.unwrap_or(inode.owner.group);
        inode.accessed = change.accessed.unwrap_or(inode.accessed);
        inode.modified = change.modified.unwrap_or(inode.modified);
        inode.changed = Time::now();
        state.tree.attributes(node)
    }

    fn readlink(&self, node: Node) -> Result<Vec<u8>> {
        match &self.look().tree.get(node)?.body {
            Body::Link(target) => Ok(target.clone()),
            _ => Err(Errno::INVAL),
        }
    }

    fn make(&self, parent: Node, name: Name<'_>, new: New<'_>, caller: Caller) -> Result<Entry> {
        let mut state = self.change_state();
        if state.tree.names(parent)?.get(name.bytes()).is_some() {
            return Err(Errno::EXIST);
        }
        let (body, mode) = match new {
            New::Link { target } => (Body::Link(target.to_vec()), 0o777),
            New::Plain { kind, mode } => (Body::empty(kind)?, mode),
        };
        let (mode, owner) = state.tree.get(parent)?.inherited(&body, mode, caller);
        let node = state.tree.add(body, mode, owner)?;
        if let Err(err) = state.tree.enter(parent, name.bytes(), node) {
            state.tree.forget(node, 0);
            return Err(err);
        }
        state.entry(node)
    }

    fn remove(&self, parent: Node, name: Name<'_>, what: Remove) -> Result<()> {
        let mut state = self.change_state();
        let node = state.tree.names(parent)?.get(name.bytes()).ok_or(Errno::NOENT)?;
        match (what, state.tree.names(node)) {
            (Remove::File, Ok(_)) => return Err(Errno::ISDIR),
            (Remove::Directory, Err(_)) => return Err(Errno::NOTDIR),
            (Remove::Directory, Ok(names)) if !names.is_empty() => return Err(Errno::NOTEMPTY),
            _ => {}
        }
        state.tree.leave(parent, name.bytes())
    }

    fn rename(&self, from: (Node, Name<'_>), to: (Node, Name<'_>), how: Rename) -> Result<()> {
        self.change_state().rename((from.0, from.1.bytes()), (to.0, to.1.bytes()), how)
    }

    fn link(&self, node: Node, parent: Node, name: Name<'_>) -> Result<Entry> {
        let mut state = self.change_state();
        let linked = state.tree.get(node)?;
        match linked.kind() {
            Kind::Directory => return Err(Errno::PERM),
            _ if linked.links == 0 => return Err(Errno::NOENT),
            _ if linked.links >= MOST_LINKS => return Err(Errno::MLINK),
            _ => {}
        }
        if state.tree.names(parent)?.get(name.bytes()).is_some() {
            return Err(Errno::EXIST);
        }
        state.tree.enter(parent, name.bytes(), node)?;
        state.entry(node)
    }

    fn open(&self, node: Node, want: Want) -> Result<Handle> {
        let mut state = self.change_state();
        state.tree.get(node)?.content()?;
        if want.truncate {
            state.resize(node, 0)?;
        }
        state.open(node, want)
    }

    fn create(
        &self,
        (parent, name): (Node, Name<'_>),
        mode: u32,
        want: Want,
        caller: Caller,
    ) -> Result<(Entry, Handle)> {
        let there = self.look().tree.names(parent)?.get(name.bytes());
        let entry = match there {
            Some(_) if want.exclusive => return Err(Errno::EXIST),
            Some(_) => self.lookup(parent, name)?,
            None => self.make(parent, name, New::Plain { kind: Kind::File, mode }, caller)?,
        };
        match self.open(entry.node, want) {
            Ok(handle) => Ok((entry, handle)),
            Err(err) => {
                self.forget(entry.node, 1);
                Err(err)
            }
        }
    }

    fn read(&self, handle: Handle, offset: u64, size: usize, into: &mut Vec<u8>) -> Result<()> {
        let state = self.look();
        // The kernel reads through files that are open for writing, to fill its pages.
        let open = state.opened(handle)?;
        state.tree.get(open.node)?.content()?.read(offset, size, into);
        Ok(())
    }

    fn write(&self, handle: Handle, offset: u64, bytes: &[u8]) -> Result<usize> {
        self.change_state().write(handle, offset, bytes)
    }

    fn sync(&self, _: Handle) -> Result<()> {
        Ok(())
    }

    fn allocate(&self, handle: Handle, how: Allocate, offset: u64, length: u64) -> Result<()> {
        let mut state = self.change_state();
        let open = state.opened(handle)?;
        let end = offset.checked_add(length).filter(|end| *end <= LONGEST).ok_or(Errno::FBIG)?;
        if !open.want.write {
            return Err(Errno::BADF);
        }
        state.allocate(open.node, how, offset, end)
    }

    fn seek(&self, handle: Handle, offset: u64, what: Seek) -> Result<u64> {
        let state = self.look();
        let content = state.tree.get(state.opened(handle)?.node)?.content()?;
        if offset >= content.size() {
            return Err(Errno::NXIO);
        }
        match what {
            Seek::Data => content.next_data(offset).ok_or(Errno::NXIO),
            Seek::Hole => Ok(content.next_hole(offset)),
        }
    }

    fn release(&self, handle: Handle) {
        self.change_state().close(handle);
    }

    fn open_directory(&self, node: Node) -> Result<Handle> {
        let mut state = self.change_state();
        state.tree.names(node)?;
        state.open(node, Want::default())
    }

    fn list(&self, handle: Handle, from: u64, take: &mut Take<'_>) -> Result<()> {
        let state = self.look();
        let directory = state.opened(handle)?.node;
        for (next, name, node) in state.tree.names(directory)?.behind(from) {
            let kind = state.tree.get(node)?.kind();
            if !take(Listed { name, inode: node.0, kind, next }) {
                break;
            }
        }
        Ok(())
    }

    fn release_directory(&self, handle: Handle) {
        self.change_state().close(handle);
    }

    fn attribute(&self, node: Node, name: &[u8]) -> Result<Vec<u8>> {
        self.look().tree.get(node)?.extended.get(name).cloned().ok_or(Errno::NODATA)
    }

    fn attribute_names(&self, node: Node) -> Result<Vec<Vec<u8>>> {
        Ok(self.look().tree.get(node)?.extended.keys().cloned().collect())
    }

    fn set_attribute(&self, node: Node, name: &[u8], value: &[u8], how: SetAttribute) -> Result<()> {
        if !name.starts_with(b"user.") {
            return Err(Errno::OPNOTSUPP);
        }
        let mut state = self.change_state();
        let inode = state.tree.get(node)?;
        let old = inode.extended.get(name).map(|old| tree::extended_cost(name, old));
        let names: usize = inode.extended.keys().map(|name| name.len() + 1).sum();
        match (how, old) {
            (SetAttribute::Create, Some(_)) => return Err(Errno::EXIST),
            (SetAttribute::Replace, None) => return Err(Errno::NODATA),
            _ if value.len() > LONGEST_ATTRIBUTE || names + name.len() >= LONGEST_ATTRIBUTE => {
                return Err(Errno::NOSPC);
            }
            _ => {}
        }
        state.tree.charge(tree::extended_cost(name, value))?;
        state.tree.refund(old.unwrap_or(0));
        let inode = state.tree.get_mut(node)?;
        inode.extended.insert(name.to_vec(), value.to_vec());
        inode.changed = Time::now();
        Ok(())
    }

    fn remove_attribute(&self, node: Node, name: &[u8]) -> Result<()> {
        let mut state = self.change_state();
        let inode = state.tree.get_mut(node)?;
        let value = inode.extended.remove(name).ok_or(Errno::NODATA)?;
        inode.changed = Time::now();
        state.tree.refund(tree::extended_cost(name, &value));
        Ok(())
    }

    fn room(&self) -> Result<Room> {
        let tree = &self.look().tree;
        Ok(Room {
            block: 4096,
            blocks: tree.most / 4096,
            free: tree.most.saturating_sub(tree.used) / 4096,
            files: tree.most_nodes(),
            files_free: tree.most_nodes().saturating_sub(tree.count()),
        })
    }
}

impl Body {
    fn empty(kind: Kind) -> Result<Body> {
        match kind {
            Kind::File => Ok(Body::File(Content::default())),
            Kind::Directory => Ok(Body::Directory(Names::default())),
            Kind::Fifo | Kind::Socket => Ok(Body::Other(kind)),
            Kind::Link => Err(Errno::INVAL),
        }
    }
}
