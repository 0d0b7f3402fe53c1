//! Which files of the host the kernel inside knows, and descriptors of them. Descriptors are few: one that was not used
//! for long is closed, and opened again by its names when it is needed. What stands there then must be the same file.

use super::known::KnownNode;
use crate::provider::types::{Kind, Name, Node, Result, Time};
use rustix::{
    fs::{FileType, Mode, OFlags, ResolveFlags, Stat},
    io::Errno,
};
use std::{
    collections::HashMap,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::Arc,
};

/// Most files the kernel inside may know at once.
pub(super) const MOST_NODES: usize = 1 << 20;
/// A file that was written less than this ago may be written again without another time to show for it.
const HOT: i64 = 50_000_000;

/// How a name is found.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// Without leaving the mount.
    OneMount,
    /// Also where something else is mounted.
    AllMounts,
}

/// A file for as long as it is there: device and inode.
type Identity = (u64, u64);
/// That of no file.
const LOST: Identity = (0, 0);
/// Directories above one another.
const DEEPEST: usize = 4096;

struct Known {
    identity: Identity,
    kind: Kind,
    parent: Node,
    name: Box<[u8]>,
    lookups: u64,
    /// Open files of it: the descriptor stays as long as there are some.
    opens: u64,
    used: u64,
    /// A directory of which nothing is shown.
    is_sealed: bool,
    told: Told,
    file: Option<Arc<OwnedFd>>,
}

/// What a file's content was when the kernel inside was last told of it: size, written, changed.
type Told = (i64, (i64, u64), (i64, u64));

fn told(stat: &Stat) -> Told {
    (stat.st_size, (stat.st_mtime, stat.st_mtime_nsec), (stat.st_ctime, stat.st_ctime_nsec))
}

/// A file that was just found by its name.
pub(super) struct Found {
    pub(super) file: OwnedFd,
    pub(super) stat: Stat,
    pub(super) kind: Kind,
    pub(super) is_sealed: bool,
}

/// How many may be known, and how many of them have a descriptor.
pub(super) struct Bounds {
    pub(super) nodes: usize,
    pub(super) files: usize,
}

/// What is known.
pub(super) struct Nodes {
    by_node: HashMap<Node, Known>,
    by_identity: HashMap<Identity, Node>,
    next: u64,
    clock: u64,
    files: usize,
    most: Bounds,
    way: Way,
}

impl Nodes {
    /// Only the root is known, whose descriptor stays.
    pub(super) fn new(root: OwnedFd, stat: &Stat, way: Way, most: Bounds) -> Nodes {
        let identity = (stat.st_dev, stat.st_ino);
        let known = Known {
            identity,
            kind: Kind::Directory,
            parent: Node::ROOT,
            name: Box::default(),
            lookups: 1,
            opens: 1,
            used: 0,
            is_sealed: false,
            told: told(stat),
            file: Some(Arc::new(root)),
        };
        Nodes {
            by_node: HashMap::from([(Node::ROOT, known)]),
            by_identity: HashMap::from([(identity, Node::ROOT)]),
            next: Node::ROOT.0,
            clock: 0,
            files: 0,
            most,
            way,
        }
    }

    /// Notes a file that was looked up; gives the node it always was, or a new one.
    pub(super) fn note(&mut self, parent: Node, name: Name<'_>, found: Found) -> Result<Node> {
        let identity = (found.stat.st_dev, found.stat.st_ino);
        self.clock += 1;
        let old = self.by_identity.get(&identity).copied();
        // An inode number may be used again for something else.
        let old = old.filter(|node| self.by_node.get(node).is_some_and(|known| known.is_still(&found)));
        if let Some(known) = old.and_then(|node| self.by_node.get_mut(&node)) {
            known.lookups += 1;
            (known.used, known.told) = (self.clock, told(&found.stat));
            if old != Some(Node::ROOT) {
                (known.parent, known.name) = (parent, name.bytes().into());
            }
            if known.file.is_none() {
                known.file = Some(Arc::new(found.file));
                self.opened_one();
            }
            return old.ok_or(Errno::STALE);
        }
        if self.by_node.len() >= self.most.nodes {
            return Err(Errno::NFILE);
        }
        self.next += 1;
        let node = Node(self.next);
        let known = Known {
            identity,
            kind: found.kind,
            parent,
            name: name.bytes().into(),
            lookups: 1,
            opens: 0,
            used: self.clock,
            is_sealed: found.is_sealed,
            told: told(&found.stat),
            file: Some(Arc::new(found.file)),
        };
        self.by_node.insert(node, known);
        self.by_identity.insert(identity, node);
        self.opened_one();
        Ok(node)
    }

    pub(super) fn kind(&self, node: Node) -> Result<Kind> {
        self.by_node.get(&node).map(|known| known.kind).ok_or(Errno::STALE)
    }

    /// Which device the node is on.
    pub(super) fn device(&self, node: Node) -> Result<u64> {
        self.by_node.get(&node).map(|known| known.identity.0).ok_or(Errno::STALE)
    }

    pub(super) fn is_sealed(&self, node: Node) -> bool {
        self.by_node.get(&node).is_some_and(|known| known.is_sealed)
    }

    /// The kernel inside is told of the file as it is now.
    pub(super) fn tell(&mut self, node: Node, stat: &Stat) {
        if let Some(known) = self.by_node.get_mut(&node) {
            known.told = told(stat);
        }
    }

    /// Whether the file's content is what it was when the kernel inside was last told of it.
    pub(super) fn is_unchanged(&self, node: Node, stat: &Stat, now: Time) -> bool {
        let nanos = |seconds: i64, nanos: i64| seconds.saturating_mul(1_000_000_000).saturating_add(nanos);
        let written = nanos(stat.st_mtime, i64::try_from(stat.st_mtime_nsec).unwrap_or(0));
        let is_cold = nanos(now.seconds, i64::from(now.nanos)).saturating_sub(written) > HOT;
        is_cold && self.by_node.get(&node).is_some_and(|known| known.told == told(stat))
    }

    /// A descriptor of the node (`O_PATH`), opened anew if need be.
    pub(super) fn file(&mut self, node: Node) -> Result<Arc<OwnedFd>> {
        self.clock += 1;
        let mut missing = Vec::new();
        let mut here = node;
        let mut file = loop {
            let known = self.by_node.get_mut(&here).ok_or(Errno::STALE)?;
            known.used = self.clock;
            match &known.file {
                Some(file) => break file.clone(),
                None if missing.len() > DEEPEST => return Err(Errno::STALE),
                None => missing.push(here),
            }
            here = known.parent;
        };
        while let Some(node) = missing.pop() {
            let known = self.by_node.get_mut(&node).ok_or(Errno::STALE)?;
            let found = find(file.as_fd(), Name::new(&known.name)?, self.way).map_err(|_| Errno::STALE)?;
            if (found.stat.st_dev, found.stat.st_ino) != known.identity || found.kind != known.kind {
                return Err(Errno::STALE);
            }
            file = Arc::new(found.file);
            known.file = Some(file.clone());
            self.opened_one();
        }
        Ok(file)
    }

    /// Everything that is known and has its name still, but the root, and the last number that was given. What has no name any more, or whose
    /// name is another's, could not be found again.
    pub(super) fn known(&mut self) -> (Vec<KnownNode>, u64) {
        let mut nodes: Vec<Node> = self.by_node.keys().copied().filter(|node| *node != Node::ROOT).collect();
        nodes.sort_unstable();
        nodes.retain(|node| self.has_its_name(*node));
        let all = nodes.iter().filter_map(|node| {
            let known = self.by_node.get(node)?;
            let name = known.name.to_vec();
            Some((node.0, known.parent.0, name, known.kind.bits(), known.lookups, known.is_sealed))
        });
        (all.collect(), self.next)
    }

    fn has_its_name(&mut self, node: Node) -> bool {
        let Some(known) = self.by_node.get(&node) else { return false };
        let (parent, name, identity) = (known.parent, known.name.clone(), known.identity);
        let Ok(directory) = self.file(parent) else { return false };
        let found = Name::new(&name).and_then(|name| find(directory.as_fd(), name, self.way));
        found.is_ok_and(|found| (found.stat.st_dev, found.stat.st_ino) == identity)
    }

    /// Knows what another one knew, as far as it is here. What is not stays known and is stale.
    pub(super) fn adopt(&mut self, all: &[KnownNode], last: u64) -> Result<()> {
        for (node, parent, name, kind, lookups, is_sealed) in all {
            let kind = Kind::from_bits(*kind).ok_or(Errno::INVAL)?;
            if Node(*node) == Node::ROOT || *node > last || self.by_node.len() >= self.most.nodes {
                return Err(Errno::INVAL);
            }
            let known = Known {
                identity: LOST,
                kind,
                parent: Node(*parent),
                name: Name::new(name)?.bytes().into(),
                lookups: *lookups,
                opens: 0,
                used: 0,
                is_sealed: *is_sealed,
                told: Told::default(),
                file: None,
            };
            self.by_node.insert(Node(*node), known);
        }
        self.next = last;
        for (node, ..) in all {
            let _ = self.locate(Node(*node));
        }
        Ok(())
    }

    /// Finds an adopted node by its names.
    fn locate(&mut self, node: Node) -> Result<()> {
        let (mut missing, mut here) = (Vec::new(), node);
        while let Some(known) = self.by_node.get(&here).filter(|known| known.identity == LOST) {
            missing.push(here);
            here = known.parent;
            if missing.len() > DEEPEST {
                return Err(Errno::STALE);
            }
        }
        let mut file = self.file(here)?;
        while let Some(node) = missing.pop() {
            self.clock += 1;
            let known = self.by_node.get_mut(&node).ok_or(Errno::STALE)?;
            let found = find(file.as_fd(), Name::new(&known.name)?, self.way)?;
            if found.kind != known.kind {
                return Err(Errno::STALE);
            }
            known.identity = (found.stat.st_dev, found.stat.st_ino);
            // Of a file's content nothing is taken for known: the kernel reads it anew when it opens it.
            known.told = if known.kind == Kind::Link { told(&found.stat) } else { Told::default() };
            known.used = self.clock;
            file = Arc::new(found.file);
            known.file = Some(file.clone());
            self.by_identity.entry(known.identity).or_insert(node);
            self.opened_one();
        }
        Ok(())
    }

    /// A node has another name now.
    pub(super) fn renamed(&mut self, stat: &Stat, parent: Node, name: Name<'_>) {
        let node = self.by_identity.get(&(stat.st_dev, stat.st_ino));
        if let Some(known) = node.and_then(|node| self.by_node.get_mut(node)) {
            (known.parent, known.name) = (parent, name.bytes().into());
        }
    }

    pub(super) fn pin(&mut self, node: Node) {
        if let Some(known) = self.by_node.get_mut(&node) {
            known.opens += 1;
        }
    }

    /// Gives how many are left.
    pub(super) fn unpin(&mut self, node: Node) -> u64 {
        let Some(known) = self.by_node.get_mut(&node) else { return 0 };
        known.opens = known.opens.saturating_sub(1);
        known.opens
    }

    pub(super) fn forget(&mut self, node: Node, times: u64) {
        let Some(known) = self.by_node.get_mut(&node).filter(|_| node != Node::ROOT) else { return };
        known.lookups = known.lookups.saturating_sub(times);
        if known.lookups > 0 {
            return;
        }
        if let Some(known) = self.by_node.remove(&node) {
            if self.by_identity.get(&known.identity) == Some(&node) {
                self.by_identity.remove(&known.identity);
            }
            self.files -= usize::from(known.file.is_some());
        }
    }

    /// Counts a descriptor; where there are too many, the half that was not used for longest goes.
    fn opened_one(&mut self) {
        self.files += 1;
        if self.files <= self.most.files {
            return;
        }
        let mut idle: Vec<(u64, Node)> = self
            .by_node
            .iter()
            .filter(|(_, known)| known.file.is_some() && known.opens == 0)
            .map(|(node, known)| (known.used, *node))
            .collect();
        idle.sort_unstable();
        for (_, node) in idle.iter().take(self.most.files / 2) {
            if let Some(known) = self.by_node.get_mut(node).filter(|known| known.used < self.clock) {
                known.file = None;
                self.files -= 1;
            }
        }
    }
}

impl Known {
    /// Whether what was found is this file, and no other that has its number now. While there is a descriptor the number
    /// is not given to another.
    fn is_still(&self, found: &Found) -> bool {
        let same_link = self.kind != Kind::Link || self.file.is_some() || self.told == told(&found.stat);
        self.kind == found.kind && self.is_sealed == found.is_sealed && same_link
    }
}

/// The kind of a file as it is served. Of a directory of the host devices are not there. In a whole root a device is a file that nobody can open, as it is in
/// namespaces: by one of them is covered what a person hides.
pub(super) fn kind(mode: u32, way: Way) -> Option<Kind> {
    let is_device =
        matches!(FileType::from_raw_mode(mode), FileType::CharacterDevice | FileType::BlockDevice);
    match way {
        Way::AllMounts if is_device => Some(Kind::File),
        _ => Kind::from_bits(mode),
    }
}

/// Opens a name of a directory as a place: no link is followed.
pub(super) fn find(directory: BorrowedFd<'_>, name: Name<'_>, way: Way) -> Result<Found> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = match way {
        // A single name that is no `..` cannot lead anywhere else. The newer call, whose arguments a filter cannot see, is
        // refused in some sandboxes.
        Way::AllMounts => rustix::fs::openat(directory, name.bytes(), flags, Mode::empty())?,
        Way::OneMount => match rustix::fs::openat2(directory, name.bytes(), flags, Mode::empty(), WITHIN) {
            Err(Errno::XDEV) => return Err(Errno::ACCESS),
            other => other?,
        },
    };
    let stat = rustix::fs::fstat(&file)?;
    let kind = kind(stat.st_mode, way).ok_or(Errno::NOENT)?;
    Ok(Found { file, stat, kind, is_sealed: false })
}

/// How a single name is resolved within a mount.
pub(super) const WITHIN: ResolveFlags = ResolveFlags::BENEATH
    .union(ResolveFlags::NO_SYMLINKS)
    .union(ResolveFlags::NO_MAGICLINKS)
    .union(ResolveFlags::NO_XDEV);
