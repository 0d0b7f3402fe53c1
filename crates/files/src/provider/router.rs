//! Several providers, each at a path of its own. What lies between is directories that cannot be changed.

use super::{
    Provider,
    types::{
        Allocate, Attributes, Caching, Caller, Change, Entry, Handle, Kind, Listed, Name, New, Node, Remove,
        Rename, Result, Room, Seek, SetAttribute, Take, Time, Want,
    },
};
use rustix::io::Errno;
use std::{collections::BTreeMap, os::fd::OwnedFd, sync::Arc, time::Duration};

/// The highest byte of a number says whose it is; 0 is the router's own.
const SHIFT: u32 = 56;
/// Most routes.
const MOST_ROUTES: usize = 200;
/// Most parts of one path.
const MOST_PARTS: usize = 32;

/// Several providers, each at a path of its own.
pub struct Router {
    routes: Vec<Arc<dyn Provider>>,
    /// The directories between, the root first: node 1 is the first of them, and so on.
    between: Vec<Between>,
    owner: Caller,
    made: Time,
}

#[derive(Default)]
struct Between {
    names: BTreeMap<Vec<u8>, Below>,
}

#[derive(Clone, Copy)]
enum Below {
    Between(usize),
    Route(usize),
}

/// A path from the root, name by name, and what serves it.
pub type Route = (Vec<Vec<u8>>, Arc<dyn Provider>);

/// Where a number leads.
enum Whose<'r> {
    Own(&'r Between),
    Other(u64, &'r Arc<dyn Provider>),
}

impl Router {
    /// Routes by path; none may be the root or a part of another one. The directories between belong to `owner`.
    pub fn new(routes: Vec<Route>, owner: Caller) -> Result<Router> {
        let mut router =
            Router { routes: Vec::new(), between: vec![Between::default()], owner, made: Time::now() };
        for (path, provider) in routes {
            router.add(&path, provider)?;
        }
        Ok(router)
    }

    fn add(&mut self, path: &[Vec<u8>], provider: Arc<dyn Provider>) -> Result<()> {
        let (last, parents) = path.split_last().ok_or(Errno::INVAL)?;
        if self.routes.len() >= MOST_ROUTES || path.len() > MOST_PARTS {
            return Err(Errno::NOSPC);
        }
        path.iter().try_for_each(|part| Name::new(part).map(drop))?;
        let mut here = 0;
        for part in parents {
            let fresh = self.between.len();
            let names = &mut self.between.get_mut(here).ok_or(Errno::INVAL)?.names;
            here = match *names.entry(part.clone()).or_insert(Below::Between(fresh)) {
                Below::Between(next) => next,
                Below::Route(_) => return Err(Errno::EXIST),
            };
            if here == fresh {
                self.between.push(Between::default());
            }
        }
        let names = &mut self.between.get_mut(here).ok_or(Errno::INVAL)?.names;
        if names.insert(last.clone(), Below::Route(self.routes.len())).is_some() {
            return Err(Errno::EXIST);
        }
        self.routes.push(provider);
        Ok(())
    }

    /// Whose node it is, and which one there.
    fn of(&self, node: Node) -> Result<(Whose<'_>, Node)> {
        let (whose, inner) = self.whose(node.0)?;
        Ok((whose, Node(inner)))
    }

    fn of_handle(&self, handle: Handle) -> Result<(u64, &Arc<dyn Provider>, Handle)> {
        match self.whose(handle.0) {
            Ok((Whose::Other(tag, provider), inner)) => Ok((tag, provider, Handle(inner))),
            _ => Err(Errno::BADF),
        }
    }

    fn whose(&self, number: u64) -> Result<(Whose<'_>, u64)> {
        let (tag, inner) = (number >> SHIFT, number & ((1 << SHIFT) - 1));
        let index = |number: u64| usize::try_from(number.checked_sub(1)?).ok();
        let whose = match tag {
            0 => index(inner).and_then(|index| self.between.get(index)).map(Whose::Own),
            tag => index(tag).and_then(|index| self.routes.get(index)).map(|route| Whose::Other(tag, route)),
        };
        Ok((whose.ok_or(Errno::STALE)?, inner))
    }

    /// The provider of a node; the router's own directories cannot be changed.
    fn route(&self, node: Node) -> Result<(u64, &Arc<dyn Provider>, Node)> {
        match self.of(node)? {
            (Whose::Other(tag, provider), node) => Ok((tag, provider, node)),
            (Whose::Own(_), _) => Err(Errno::ROFS),
        }
    }

    fn own_attributes(&self, node: Node) -> Attributes {
        Attributes {
            inode: node.0,
            kind: Kind::Directory,
            mode: 0o755,
            links: 2,
            user: self.owner.user,
            group: self.owner.group,
            size: 4096,
            blocks: 0,
            accessed: self.made,
            modified: self.made,
            changed: self.made,
        }
    }

    fn below(&self, below: Below) -> Result<Entry> {
        match below {
            Below::Between(index) => {
                let node = Node(index as u64 + 1);
                Ok(Entry { node, attributes: self.own_attributes(node) })
            }
            Below::Route(index) => {
                let provider = self.routes.get(index).ok_or(Errno::STALE)?;
                let tag = index as u64 + 1;
                Ok(tagged(tag, Entry { node: Node::ROOT, attributes: provider.attributes(Node::ROOT)? }))
            }
        }
    }
}

/// A number of a route, as the kernel gets it.
fn tag_number(tag: u64, number: u64) -> u64 {
    tag << SHIFT | number & ((1 << SHIFT) - 1)
}

fn tagged(tag: u64, entry: Entry) -> Entry {
    // The same inode number in two routes would be one file to a program.
    let inode = entry.attributes.inode ^ tag << SHIFT;
    let attributes = Attributes { inode, ..entry.attributes };
    Entry { node: Node(tag_number(tag, entry.node.0)), attributes }
}

fn tagged_handle(tag: u64, handle: Handle) -> Handle {
    Handle(tag_number(tag, handle.0))
}

fn tagged_attributes(tag: u64, attributes: Attributes) -> Attributes {
    Attributes { inode: attributes.inode ^ tag << SHIFT, ..attributes }
}

impl Provider for Router {
    fn caching(&self) -> Caching {
        let all = self.routes.iter().map(|route| route.caching());
        all.reduce(|one, other| Caching {
            valid: one.valid.min(other.valid),
            alone: one.alone && other.alone,
            names: one.names && other.names,
        })
        .unwrap_or(Caching { valid: Duration::from_secs(3600), alone: true, names: false })
    }

    fn lookup(&self, parent: Node, name: Name<'_>) -> Result<Entry> {
        match self.of(parent)? {
            (Whose::Own(between), _) => self.below(*between.names.get(name.bytes()).ok_or(Errno::NOENT)?),
            (Whose::Other(tag, provider), node) => Ok(tagged(tag, provider.lookup(node, name)?)),
        }
    }

    fn forget(&self, node: Node, times: u64) {
        // The root of a route was never looked up in it.
        if let Ok((_, provider, node)) = self.route(node)
            && node != Node::ROOT
        {
            provider.forget(node, times);
        }
    }

    fn attributes(&self, node: Node) -> Result<Attributes> {
        match self.of(node)? {
            (Whose::Own(_), _) => Ok(self.own_attributes(node)),
            (Whose::Other(tag, provider), node) => Ok(tagged_attributes(tag, provider.attributes(node)?)),
        }
    }

    fn change(&self, node: Node, handle: Option<Handle>, change: &Change) -> Result<Attributes> {
        let (tag, provider, node) = self.route(node)?;
        let handle = handle.and_then(|handle| self.of_handle(handle).ok()).map(|(_, _, handle)| handle);
        Ok(tagged_attributes(tag, provider.change(node, handle, change)?))
    }

    fn readlink(&self, node: Node) -> Result<Vec<u8>> {
        let (_, provider, node) = self.route(node)?;
        provider.readlink(node)
    }

    fn make(&self, parent: Node, name: Name<'_>, new: New<'_>, caller: Caller) -> Result<Entry> {
        let (tag, provider, parent) = self.route(parent)?;
        Ok(tagged(tag, provider.make(parent, name, new, caller)?))
    }

    fn remove(&self, parent: Node, name: Name<'_>, what: Remove) -> Result<()> {
        let (_, provider, parent) = self.route(parent)?;
        provider.remove(parent, name, what)
    }

    fn rename(&self, from: (Node, Name<'_>), to: (Node, Name<'_>), how: Rename) -> Result<()> {
        let ((tag, provider, source), (other, _, target)) = (self.route(from.0)?, self.route(to.0)?);
        match tag == other {
            true => provider.rename((source, from.1), (target, to.1), how),
            false => Err(Errno::XDEV),
        }
    }

    fn link(&self, node: Node, parent: Node, name: Name<'_>) -> Result<Entry> {
        let ((tag, provider, node), (other, _, parent)) = (self.route(node)?, self.route(parent)?);
        match tag == other {
            true => Ok(tagged(tag, provider.link(node, parent, name)?)),
            false => Err(Errno::XDEV),
        }
    }

    fn open(&self, node: Node, want: Want) -> Result<Handle> {
        let (tag, provider, node) = self.route(node)?;
        Ok(tagged_handle(tag, provider.open(node, want)?))
    }

    fn create(
        &self,
        (parent, name): (Node, Name<'_>),
        mode: u32,
        want: Want,
        caller: Caller,
    ) -> Result<(Entry, Handle)> {
        let (tag, provider, parent) = self.route(parent)?;
        let (entry, handle) = provider.create((parent, name), mode, want, caller)?;
        Ok((tagged(tag, entry), tagged_handle(tag, handle)))
    }

    fn read(&self, handle: Handle, offset: u64, size: usize, into: &mut Vec<u8>) -> Result<()> {
        let (_, provider, handle) = self.of_handle(handle)?;
        provider.read(handle, offset, size, into)
    }

    fn write(&self, handle: Handle, offset: u64, bytes: &[u8]) -> Result<usize> {
        let (_, provider, handle) = self.of_handle(handle)?;
        provider.write(handle, offset, bytes)
    }

    fn sync(&self, handle: Handle) -> Result<()> {
        let (_, provider, handle) = self.of_handle(handle)?;
        provider.sync(handle)
    }

    fn allocate(&self, handle: Handle, how: Allocate, offset: u64, length: u64) -> Result<()> {
        let (_, provider, handle) = self.of_handle(handle)?;
        provider.allocate(handle, how, offset, length)
    }

    fn seek(&self, handle: Handle, offset: u64, what: Seek) -> Result<u64> {
        let (_, provider, handle) = self.of_handle(handle)?;
        provider.seek(handle, offset, what)
    }

    fn release(&self, handle: Handle) {
        if let Ok((_, provider, handle)) = self.of_handle(handle) {
            provider.release(handle);
        }
    }

    fn backing(&self, handle: Handle) -> Option<OwnedFd> {
        let (_, provider, handle) = self.of_handle(handle).ok()?;
        provider.backing(handle)
    }

    fn open_directory(&self, node: Node) -> Result<Handle> {
        match self.of(node)? {
            (Whose::Own(_), node) => Ok(Handle(node.0)),
            (Whose::Other(tag, provider), node) => Ok(tagged_handle(tag, provider.open_directory(node)?)),
        }
    }

    fn list(&self, handle: Handle, from: u64, take: &mut Take<'_>) -> Result<()> {
        let (tag, provider, inner) = match self.whose(handle.0).map_err(|_| Errno::BADF)? {
            (Whose::Other(tag, provider), inner) => (tag, provider, Handle(inner)),
            (Whose::Own(between), _) => {
                let entries = between.names.iter().zip(1u64..);
                for ((name, below), next) in entries.filter(|(_, next)| *next > from) {
                    let inode = self.below(*below)?.attributes.inode;
                    if !take(Listed { name, inode, kind: Kind::Directory, next }) {
                        break;
                    }
                }
                return Ok(());
            }
        };
        provider
            .list(inner, from, &mut |listed| take(Listed { inode: listed.inode ^ tag << SHIFT, ..listed }))
    }

    fn release_directory(&self, handle: Handle) {
        if let Ok((_, provider, handle)) = self.of_handle(handle) {
            provider.release_directory(handle);
        }
    }

    fn attribute(&self, node: Node, name: &[u8]) -> Result<Vec<u8>> {
        let (_, provider, node) = self.route(node).map_err(|_| Errno::NODATA)?;
        provider.attribute(node, name)
    }

    fn attribute_names(&self, node: Node) -> Result<Vec<Vec<u8>>> {
        match self.of(node)? {
            (Whose::Own(_), _) => Ok(Vec::new()),
            (Whose::Other(_, provider), node) => provider.attribute_names(node),
        }
    }

    fn set_attribute(&self, node: Node, name: &[u8], value: &[u8], how: SetAttribute) -> Result<()> {
        let (_, provider, node) = self.route(node)?;
        provider.set_attribute(node, name, value, how)
    }

    fn remove_attribute(&self, node: Node, name: &[u8]) -> Result<()> {
        let (_, provider, node) = self.route(node)?;
        provider.remove_attribute(node, name)
    }

    fn room(&self) -> Result<Room> {
        self.routes.first().map_or(Ok(Room::default()), |route| route.room())
    }
}
