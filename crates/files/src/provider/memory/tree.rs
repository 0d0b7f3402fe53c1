//! Nodes and names in memory.

use super::content::Content;
use crate::provider::types::{Attributes, Caller, Kind, Node, Result, Time};
use rustix::io::Errno;
use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

/// What a node costs besides its content.
const NODE_COST: u64 = 512;
/// What a name costs besides its bytes.
const NAME_COST: u64 = 128;

/// One node.
#[derive(Debug)]
pub(super) struct Inode {
    pub(super) body: Body,
    pub(super) mode: u32,
    pub(super) links: u32,
    pub(super) owner: Caller,
    pub(super) accessed: Time,
    pub(super) modified: Time,
    pub(super) changed: Time,
    pub(super) extended: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Of a directory: the one it is in.
    pub(super) parent: Node,
    lookups: u64,
    opens: u64,
}

/// What a node holds.
#[derive(Debug)]
pub(super) enum Body {
    File(Content),
    Directory(Names),
    Link(Vec<u8>),
    Other(Kind),
}

/// The names in a directory, and the order in which they are listed.
#[derive(Debug, Default)]
pub(super) struct Names {
    by_name: BTreeMap<Arc<[u8]>, (Node, u64)>,
    by_place: BTreeMap<u64, Arc<[u8]>>,
    next: u64,
}

impl Names {
    pub(super) fn get(&self, name: &[u8]) -> Option<Node> {
        self.by_name.get(name).map(|(node, _)| *node)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_name.is_empty()
    }

    /// Those listed behind a place.
    pub(super) fn behind(&self, place: u64) -> impl Iterator<Item = (u64, &[u8], Node)> {
        let found = self.by_place.range(place.saturating_add(1)..);
        found.filter_map(|(place, name)| {
            self.by_name.get(name).map(|(node, _)| (*place, name.as_ref(), *node))
        })
    }

    fn insert(&mut self, name: &[u8], node: Node) {
        let name: Arc<[u8]> = name.into();
        self.next += 1;
        self.by_place.insert(self.next, name.clone());
        self.by_name.insert(name, (node, self.next));
    }

    fn remove(&mut self, name: &[u8]) -> Option<Node> {
        let (node, place) = self.by_name.remove(name)?;
        self.by_place.remove(&place);
        Some(node)
    }
}

/// All nodes, and how much memory they may take.
#[derive(Debug)]
pub(super) struct Tree {
    nodes: HashMap<Node, Inode>,
    next: u64,
    pub(super) used: u64,
    pub(super) most: u64,
}

impl Tree {
    pub(super) fn new(most: u64, owner: Caller) -> Tree {
        let mut tree = Tree { nodes: HashMap::new(), next: Node::ROOT.0, used: 0, most };
        let mut root = Inode::new(Body::Directory(Names::default()), 0o755, owner);
        root.links = 2;
        tree.nodes.insert(Node::ROOT, root);
        tree
    }

    pub(super) fn count(&self) -> u64 {
        self.nodes.len() as u64
    }

    /// How many nodes there may be.
    pub(super) fn most_nodes(&self) -> u64 {
        self.most / NODE_COST
    }

    pub(super) fn get(&self, node: Node) -> Result<&Inode> {
        self.nodes.get(&node).ok_or(Errno::STALE)
    }

    pub(super) fn get_mut(&mut self, node: Node) -> Result<&mut Inode> {
        self.nodes.get_mut(&node).ok_or(Errno::STALE)
    }

    pub(super) fn names(&self, node: Node) -> Result<&Names> {
        match &self.get(node)?.body {
            Body::Directory(names) => Ok(names),
            _ => Err(Errno::NOTDIR),
        }
    }

    fn names_mut(&mut self, node: Node) -> Result<&mut Names> {
        match &mut self.get_mut(node)?.body {
            Body::Directory(names) => Ok(names),
            _ => Err(Errno::NOTDIR),
        }
    }

    /// Counts more memory, if there is so much.
    pub(super) fn charge(&mut self, more: u64) -> Result<()> {
        let used = self.used.checked_add(more).filter(|used| *used <= self.most).ok_or(Errno::NOSPC)?;
        self.used = used;
        Ok(())
    }

    pub(super) fn refund(&mut self, less: u64) {
        self.used = self.used.saturating_sub(less);
    }

    /// A new node without a name.
    pub(super) fn add(&mut self, body: Body, mode: u32, owner: Caller) -> Result<Node> {
        self.charge(NODE_COST + body.cost())?;
        self.next += 1;
        let node = Node(self.next);
        self.nodes.insert(node, Inode::new(body, mode, owner));
        Ok(node)
    }

    /// Gives a node a name that is free.
    pub(super) fn enter(&mut self, parent: Node, name: &[u8], node: Node) -> Result<()> {
        if self.get(parent)?.links == 0 {
            return Err(Errno::NOENT);
        }
        self.charge(NAME_COST + name.len() as u64)?;
        self.names_mut(parent)?.insert(name, node);
        let is_directory = self.get(node)?.kind() == Kind::Directory;
        let entered = self.get_mut(node)?;
        entered.links += if is_directory && entered.links == 0 { 2 } else { 1 };
        entered.changed = Time::now();
        entered.parent = parent;
        self.touch_directory(parent, i64::from(is_directory))
    }

    /// Takes a name away; the node goes with its last one, unless somebody still knows it.
    pub(super) fn leave(&mut self, parent: Node, name: &[u8]) -> Result<()> {
        let node = self.names_mut(parent)?.remove(name).ok_or(Errno::NOENT)?;
        self.refund(NAME_COST + name.len() as u64);
        let left = self.get_mut(node)?;
        let is_directory = left.kind() == Kind::Directory;
        left.links = if is_directory { 0 } else { left.links.saturating_sub(1) };
        left.changed = Time::now();
        self.touch_directory(parent, -i64::from(is_directory))?;
        self.collect(node);
        Ok(())
    }

    /// Gives a name of one directory to another; nothing is counted anew and nothing can fail halfway.
    pub(super) fn carry(&mut self, from: (Node, &[u8]), to: (Node, &[u8])) -> Result<()> {
        let (old, new) = (from.1.len() as u64, to.1.len() as u64);
        self.charge(new.saturating_sub(old))?;
        self.refund(old.saturating_sub(new));
        self.names(to.0)?;
        let node = self.names_mut(from.0)?.remove(from.1).ok_or(Errno::NOENT)?;
        self.names_mut(to.0)?.insert(to.1, node);
        let is_directory = i64::from(self.get(node)?.kind() == Kind::Directory);
        let carried = self.get_mut(node)?;
        (carried.changed, carried.parent) = (Time::now(), to.0);
        self.touch_directory(from.0, -is_directory)?;
        self.touch_directory(to.0, is_directory)
    }

    fn touch_directory(&mut self, node: Node, subdirectories: i64) -> Result<()> {
        let directory = self.get_mut(node)?;
        directory.links =
            u32::try_from(i64::from(directory.links) + subdirectories).unwrap_or(directory.links);
        (directory.modified, directory.changed) = (Time::now(), Time::now());
        Ok(())
    }

    pub(super) fn looked_up(&mut self, node: Node) -> Result<()> {
        self.get_mut(node)?.lookups += 1;
        Ok(())
    }

    pub(super) fn opened(&mut self, node: Node) -> Result<()> {
        self.get_mut(node)?.opens += 1;
        Ok(())
    }

    pub(super) fn forget(&mut self, node: Node, times: u64) {
        if let Ok(known) = self.get_mut(node) {
            known.lookups = known.lookups.saturating_sub(times);
            self.collect(node);
        }
    }

    pub(super) fn closed(&mut self, node: Node) {
        if let Ok(known) = self.get_mut(node) {
            known.opens = known.opens.saturating_sub(1);
            self.collect(node);
        }
    }

    fn collect(&mut self, node: Node) {
        let is_gone = |inode: &Inode| inode.links == 0 && inode.lookups == 0 && inode.opens == 0;
        if node != Node::ROOT && self.nodes.get(&node).is_some_and(is_gone) {
            let cost = self.nodes.remove(&node).map_or(0, |inode| NODE_COST + inode.cost());
            self.refund(cost);
        }
    }

    pub(super) fn attributes(&self, node: Node) -> Result<Attributes> {
        let inode = self.get(node)?;
        let (size, cost) = match &inode.body {
            Body::File(content) => (content.size(), content.cost()),
            Body::Link(target) => (target.len() as u64, 0),
            Body::Directory(_) => (4096, 4096),
            Body::Other(_) => (0, 0),
        };
        Ok(Attributes {
            inode: node.0,
            kind: inode.kind(),
            mode: inode.mode,
            links: inode.links,
            user: inode.owner.user,
            group: inode.owner.group,
            size,
            blocks: cost.div_ceil(512),
            accessed: inode.accessed,
            modified: inode.modified,
            changed: inode.changed,
        })
    }
}

impl Body {
    fn cost(&self) -> u64 {
        match self {
            Body::File(content) => content.cost(),
            Body::Link(target) => target.len() as u64,
            Body::Directory(_) | Body::Other(_) => 0,
        }
    }
}

impl Inode {
    fn new(body: Body, mode: u32, owner: Caller) -> Inode {
        let now = Time::now();
        Inode {
            body,
            mode: mode & 0o7777,
            links: 0,
            owner,
            accessed: now,
            modified: now,
            changed: now,
            extended: BTreeMap::new(),
            parent: Node::ROOT,
            lookups: 0,
            opens: 0,
        }
    }

    /// Mode and owner of what is made in this directory: one with the set-group-id bit gives its group on.
    pub(super) fn inherited(&self, body: &Body, mode: u32, caller: Caller) -> (u32, Caller) {
        if self.mode & 0o2000 == 0 {
            return (mode, caller);
        }
        let passed_on = if matches!(body, Body::Directory(_)) { 0o2000 } else { 0 };
        (mode | passed_on, Caller { group: self.owner.group, ..caller })
    }

    fn cost(&self) -> u64 {
        self.body.cost() + self.extended.iter().map(|(name, value)| extended_cost(name, value)).sum::<u64>()
    }

    pub(super) fn kind(&self) -> Kind {
        match &self.body {
            Body::File(_) => Kind::File,
            Body::Directory(_) => Kind::Directory,
            Body::Link(_) => Kind::Link,
            Body::Other(kind) => *kind,
        }
    }

    pub(super) fn content(&self) -> Result<&Content> {
        match &self.body {
            Body::File(content) => Ok(content),
            Body::Directory(_) => Err(Errno::ISDIR),
            _ => Err(Errno::INVAL),
        }
    }

    pub(super) fn content_mut(&mut self) -> Result<&mut Content> {
        match &mut self.body {
            Body::File(content) => Ok(content),
            Body::Directory(_) => Err(Errno::ISDIR),
            _ => Err(Errno::INVAL),
        }
    }
}

/// What an extended attribute costs.
pub(super) fn extended_cost(name: &[u8], value: &[u8]) -> u64 {
    NAME_COST + (name.len() + value.len()) as u64
}
