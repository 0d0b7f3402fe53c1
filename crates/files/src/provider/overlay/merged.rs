//! Which nodes of an overlay the kernel knows, and what of them lies above and below.

use crate::provider::types::{Handle, Kind, Node, Result};
use rustix::io::Errno;
use std::collections::HashMap;

/// Most nodes the kernel may know at once.
const MOST_NODES: usize = 1 << 20;

/// One node. It holds one lookup of each of its parts.
#[derive(Debug, Clone)]
pub(super) struct Merged {
    pub(super) upper: Option<Node>,
    pub(super) lower: Option<Node>,
    pub(super) parent: Node,
    pub(super) name: Vec<u8>,
    pub(super) kind: Kind,
    pub(super) inode: u64,
    pub(super) lookups: u64,
}

/// An open file: of which node, and where it is open.
#[derive(Debug, Clone, Copy)]
pub(super) struct Open {
    pub(super) node: Node,
    pub(super) side: Side,
    pub(super) handle: Handle,
}

/// One of the two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    Upper,
    Lower,
}

/// An entry of a directory as it was when it was opened.
pub(super) type Entry = (Vec<u8>, u64, Kind);

/// Everything known.
#[derive(Debug, Default)]
pub(super) struct State {
    nodes: HashMap<Node, Merged>,
    by_upper: HashMap<Node, Node>,
    /// Only what was not copied yet.
    by_lower: HashMap<Node, Node>,
    pub(super) files: HashMap<Handle, Open>,
    pub(super) directories: HashMap<Handle, Vec<Entry>>,
    pub(super) listed: usize,
    next: u64,
}

impl State {
    pub(super) fn new() -> State {
        let root = Merged {
            upper: Some(Node::ROOT),
            lower: Some(Node::ROOT),
            parent: Node::ROOT,
            name: Vec::new(),
            kind: Kind::Directory,
            inode: 1,
            lookups: 1,
        };
        let mut state = State { next: Node::ROOT.0, ..State::default() };
        state.nodes.insert(Node::ROOT, root);
        state
    }

    pub(super) fn get(&self, node: Node) -> Result<&Merged> {
        self.nodes.get(&node).ok_or(Errno::STALE)
    }

    pub(super) fn get_mut(&mut self, node: Node) -> Result<&mut Merged> {
        self.nodes.get_mut(&node).ok_or(Errno::STALE)
    }

    /// A number that was never used.
    pub(super) fn fresh(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Which node this is, if it is known already.
    pub(super) fn known(&self, merged: &Merged) -> Option<Node> {
        match (merged.upper, merged.lower) {
            (Some(upper), _) => self.by_upper.get(&upper).copied(),
            (None, Some(lower)) => self.by_lower.get(&lower).copied(),
            (None, None) => None,
        }
    }

    pub(super) fn add(&mut self, merged: Merged) -> Result<Node> {
        if self.nodes.len() >= MOST_NODES {
            return Err(Errno::NFILE);
        }
        let node = Node(self.fresh());
        match (merged.upper, merged.lower) {
            (Some(upper), _) => drop(self.by_upper.insert(upper, node)),
            (None, Some(lower)) => drop(self.by_lower.insert(lower, node)),
            (None, None) => {}
        }
        self.nodes.insert(node, merged);
        Ok(node)
    }

    /// What is this above has another name now.
    pub(super) fn renamed(&mut self, upper: Node, parent: Node, name: &[u8]) {
        let node = self.by_upper.get(&upper);
        if let Some(merged) = node.and_then(|node| self.nodes.get_mut(node)) {
            (merged.parent, merged.name) = (parent, name.to_vec());
        }
    }

    /// A node has an upper part now.
    pub(super) fn raised(&mut self, node: Node, upper: Node) {
        if let Some(merged) = self.nodes.get_mut(&node) {
            merged.upper = Some(upper);
            if let Some(lower) = merged.lower {
                self.by_lower.remove(&lower);
            }
            self.by_upper.insert(upper, node);
        }
    }

    /// Drops lookups; gives the node when it is known no more.
    pub(super) fn forget(&mut self, node: Node, times: u64) -> Option<Merged> {
        let merged = self.nodes.get_mut(&node).filter(|_| node != Node::ROOT)?;
        merged.lookups = merged.lookups.saturating_sub(times);
        if merged.lookups > 0 {
            return None;
        }
        let merged = self.nodes.remove(&node)?;
        for (key, map) in [(merged.upper, &mut self.by_upper), (merged.lower, &mut self.by_lower)] {
            if let Some(key) = key.filter(|key| map.get(key) == Some(&node)) {
                map.remove(&key);
            }
        }
        Some(merged)
    }
}
