//! What an image or a context holds, by names, without unpacking anything.
//!
//! - [`Tree`]: paths and what is there; layers are stacked as overlayfs would stack them
//! - [`index`]: what one archive holds; [`take`]: contents taken out of it
//!
//! Paths are bytes, relative to the root, without dots. Links are followed inside the root only. Pure and total but for
//! the reading of archives.

pub mod index;
pub mod take;

use super::path;
use crate::digest::Digest;
use index::Entry;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};

/// Most links that one path leads through, as in the kernel.
const LINKS: usize = 40;

/// Something in a tree.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    /// What it is.
    pub kind: Kind,
    /// Its permissions.
    pub mode: u32,
    /// Its user.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
    /// When it was changed, in seconds since 1970.
    pub mtime: u64,
    /// Extended attributes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub attributes: Vec<(String, Vec<u8>)>,
    /// Where its content stands.
    #[serde(skip)]
    pub place: Place,
}

/// What something is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kind {
    /// A directory.
    Directory,
    /// A file.
    File {
        /// Its bytes.
        size: u64,
        /// The digest of its content, if that was read already.
        sum: Option<Digest>,
    },
    /// A symbolic link.
    Link(Vec<u8>),
    /// A pipe, a device, a socket.
    Other,
}

/// Where the content of a file stands: in which archive of those that were stacked, and under which name there.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// The archive, from 0.
    pub archive: usize,
    /// The path in it.
    pub path: Vec<u8>,
}

/// Paths and what is there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tree {
    nodes: BTreeMap<Vec<u8>, Node>,
    archives: usize,
}

/// Why a path leads nowhere.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}: too many links", String::from_utf8_lossy(.0))]
pub struct Loop(pub Vec<u8>);

impl Node {
    /// A directory of root's.
    pub fn directory() -> Self {
        Self::of(Kind::Directory, 0o755)
    }

    /// Something of root's.
    pub fn of(kind: Kind, mode: u32) -> Self {
        Self { kind, mode, uid: 0, gid: 0, mtime: 0, attributes: Vec::new(), place: Place::default() }
    }

    /// Whether it is a directory.
    pub fn is_directory(&self) -> bool {
        self.kind == Kind::Directory
    }
}

impl Default for Tree {
    fn default() -> Self {
        Self { nodes: BTreeMap::from([(Vec::new(), Node::directory())]), archives: 0 }
    }
}

impl Tree {
    /// Puts a layer on top.
    pub fn stack(&mut self, entries: &[Entry]) {
        let archive = self.archives;
        self.archives += 1;
        // What a whiteout hides lies below this layer, wherever in it the whiteout stands.
        for entry in entries {
            match entry {
                Entry::Whiteout(path) => self.remove(path),
                Entry::Opaque(path) => self.clear(path),
                _ => {}
            }
        }
        for entry in entries {
            match entry {
                Entry::Node(path, node) => {
                    let place = Place { archive, path: path.clone() };
                    self.insert(path.clone(), Node { place, ..node.clone() });
                }
                Entry::HardLink(path, to) => {
                    if let Some(node) = self.nodes.get(to).cloned() {
                        self.insert(path.clone(), node);
                    }
                }
                Entry::Whiteout(_) | Entry::Opaque(_) => {}
            }
        }
    }

    /// Puts something at a path. Directories on the way are made.
    pub fn insert(&mut self, path: Vec<u8>, node: Node) {
        let mut parent = path::last(&path).0;
        let mut missing = Vec::new();
        while !self.nodes.get(parent).is_some_and(Node::is_directory) {
            missing.push(parent.to_vec());
            if parent.is_empty() {
                break;
            }
            parent = path::last(parent).0;
        }
        for parent in missing {
            self.nodes.insert(parent, Node::directory());
        }
        if !node.is_directory() && self.nodes.get(&path).is_some_and(Node::is_directory) {
            self.clear(&path);
        }
        self.nodes.insert(path, node);
    }

    /// What is at a path.
    pub fn get(&self, path: &[u8]) -> Option<&Node> {
        self.nodes.get(path)
    }

    /// All that lies below a directory, in order, with paths relative to it.
    pub fn below<'t>(&'t self, path: &[u8]) -> impl Iterator<Item = (&'t [u8], &'t Node)> + use<'t> {
        let (from, to) = bounds(path);
        let skip = from.len();
        self.nodes
            .range(from..to)
            .map(move |(path, node)| (path.get(skip..).unwrap_or_default(), node))
            .filter(|(path, _)| !path.is_empty())
    }

    /// All files whose content is not known by its digest yet, at a path and below it.
    pub fn unread(&self, path: &[u8]) -> Vec<Vec<u8>> {
        let is_unread = |node: &Node| matches!(node.kind, Kind::File { sum: None, .. });
        let own = self.get(path).filter(|node| is_unread(node)).map(|_| path.to_vec());
        let below =
            self.below(path).filter(|(_, node)| is_unread(node)).map(|(name, _)| path::below(path, name));
        own.into_iter().chain(below).collect()
    }

    /// Remembers the digest and size of a file's content.
    pub fn learn(&mut self, path: &[u8], sum: Digest, size: u64) {
        if let Some(node) = self.nodes.get_mut(path) {
            node.kind = Kind::File { size, sum: Some(sum) };
        }
    }

    /// Where a path leads, links followed inside the root. What is not there is taken as it is written.
    pub fn resolve(&self, wanted: &[u8]) -> Result<Vec<u8>, Loop> {
        let mut rest: VecDeque<Vec<u8>> = split(wanted);
        let mut at: Vec<u8> = Vec::new();
        let mut links = 0;
        while let Some(part) = rest.pop_front() {
            if part == b".." {
                at = path::last(&at).0.to_vec();
                continue;
            }
            let next = path::below(&at, &part);
            let Some(Node { kind: Kind::Link(to), .. }) = self.nodes.get(&next) else {
                at = next;
                continue;
            };
            links += 1;
            if links > LINKS {
                return Err(Loop(wanted.to_vec()));
            }
            if to.starts_with(b"/") {
                at.clear();
            }
            for part in split(to).into_iter().rev() {
                rest.push_front(part);
            }
        }
        Ok(at)
    }

    fn remove(&mut self, path: &[u8]) {
        self.clear(path);
        if !path.is_empty() {
            self.nodes.remove(path);
        }
    }

    fn clear(&mut self, path: &[u8]) {
        let (from, to) = bounds(path);
        let gone: Vec<Vec<u8>> = self.nodes.range(from..to).map(|(path, _)| path.clone()).collect();
        for path in gone.iter().filter(|path| !path.is_empty()) {
            self.nodes.remove(path);
        }
    }
}

/// The parts of a path; `..` stays, for a link may stand before it.
fn split(path: &[u8]) -> VecDeque<Vec<u8>> {
    let counts = |part: &&[u8]| !matches!(*part, b"" | b".");
    path.split(|byte| *byte == b'/').filter(counts).map(<[u8]>::to_vec).collect()
}

/// The paths between which everything below a directory lies.
fn bounds(path: &[u8]) -> (Vec<u8>, Vec<u8>) {
    match path {
        b"" => (Vec::new(), vec![0xff; 8192]),
        path => ([path, b"/"].concat(), [path, b"0"].concat()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn file(size: u64) -> Node {
        Node::of(Kind::File { size, sum: None }, 0o644)
    }

    fn node(path: &str, kind: Kind) -> Entry {
        Entry::Node(path.as_bytes().to_vec(), Node::of(kind, 0o755))
    }

    fn names(tree: &Tree) -> Vec<String> {
        tree.below(b"").map(|(path, _)| String::from_utf8_lossy(path).into_owned()).collect()
    }

    #[test]
    fn layers_are_stacked_with_their_whiteouts() {
        let mut tree = Tree::default();
        tree.stack(&[
            node("a", Kind::Directory),
            node("a/x", Kind::Other),
            node("b", Kind::Directory),
            node("b/y", Kind::Other),
            node("c", Kind::Other),
        ]);
        tree.stack(&[
            Entry::Whiteout(b"a".to_vec()),
            Entry::Opaque(b"b".to_vec()),
            node("b/z", Kind::Other),
            node("d/e", Kind::Other),
        ]);
        assert_eq!(names(&tree), ["b", "b/z", "c", "d", "d/e"]);
    }

    #[test]
    fn links_are_followed_inside_the_root_only() {
        let mut tree = Tree::default();
        tree.stack(&[
            node("lib", Kind::Link(b"usr/lib".to_vec())),
            node("usr/lib", Kind::Directory),
            node("out", Kind::Link(b"../../../etc".to_vec())),
            node("usr/abs", Kind::Link(b"/lib/x".to_vec())),
            node("loop", Kind::Link(b"loop".to_vec())),
        ]);
        assert_eq!(tree.resolve(b"/lib/a").unwrap(), b"usr/lib/a");
        assert_eq!(tree.resolve(b"out/passwd").unwrap(), b"etc/passwd");
        assert_eq!(tree.resolve(b"usr/abs").unwrap(), b"usr/lib/x");
        assert_eq!(tree.resolve(b"lib/../x").unwrap(), b"usr/x");
        assert_eq!(tree.resolve(b"loop/x").unwrap_err(), Loop(b"loop/x".to_vec()));
    }

    #[test]
    fn a_hard_link_has_the_place_of_its_file() {
        let mut tree = Tree::default();
        tree.stack(&[Entry::Node(b"a".to_vec(), file(3)), Entry::HardLink(b"b".to_vec(), b"a".to_vec())]);
        assert_eq!(tree.get(b"b").unwrap().place, Place { archive: 0, path: b"a".to_vec() });
    }

    proptest! {
        #[test]
        fn a_path_never_leads_out(
            links in prop::collection::vec(("[ab](/[ab]){0,2}", "[ab./]{1,8}"), 0..6),
            wanted in "[ab./]{0,12}",
        ) {
            let mut tree = Tree::default();
            let entries: Vec<Entry> =
                links.iter().map(|(path, to)| node(path, Kind::Link(to.as_bytes().to_vec()))).collect();
            tree.stack(&entries);
            if let Ok(found) = tree.resolve(wanted.as_bytes()) {
                prop_assert!(!found.starts_with(b"/"));
                prop_assert!(found.split(|byte| *byte == b'/').all(|part| part != b".."));
            }
        }
    }
}
