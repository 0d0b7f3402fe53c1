//! What differs between the workspace on the host and the sandbox's copy of it.

use super::tree::Tree;
use rustix::fs::{FileType, Stat};
use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};

/// All changes, and the two trees they are between.
#[derive(Debug)]
pub struct Changes {
    pub(super) tree: Tree,
    pub(super) list: Vec<Change>,
    pub(super) left_out: Vec<LeftOut>,
}

/// One path that differs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// Relative to the workspace.
    pub path: PathBuf,
    /// What the host has there now.
    pub was: Option<Seen>,
    /// What the sandbox has there.
    pub is: Option<Seen>,
    /// Whether the contents (or the target of a link) differ, not only the mode.
    pub content: bool,
    /// For a new file: the deleted one with the same content.
    pub renamed_from: Option<PathBuf>,
    /// For a deleted file: the new one with the same content.
    pub renamed_to: Option<PathBuf>,
    /// Made of a file of the host, as the overlay remembers it.
    pub has_origin: bool,
}

/// What stands at a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    /// What it is.
    pub kind: Kind,
    /// Permission bits, without set-user-id, set-group-id and sticky.
    pub mode: u32,
    /// Bytes.
    pub size: u64,
    /// When its content changed: seconds and nanoseconds.
    pub mtime: (i64, u32),
    /// When anything about it changed.
    pub ctime: (i64, u32),
    /// Which file it is on its file system.
    pub inode: u64,
    /// User and group it belongs to.
    pub owner: (u32, u32),
    /// The layer it is in, topmost 0; of no meaning on the host.
    pub layer: usize,
}

/// What can be in a workspace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Link,
    /// A device, a socket, a named pipe: never leaves the sandbox.
    Special,
}

/// Something of the sandbox that can never reach the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeftOut {
    /// Relative to the workspace.
    pub path: PathBuf,
    /// Why.
    pub why: Why,
}

/// Why something can never reach the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    /// It is a device, a socket or a named pipe.
    Special,
    /// Another file system is mounted there on the host.
    Mount,
    /// It lies too deep, or its path is too long.
    Deep,
}

/// The word for a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verb {
    /// New.
    Added,
    /// Gone.
    Deleted,
    /// Gone, and its content is at another path.
    MovedAway,
    /// New, with the content of one that is gone.
    Renamed,
    /// Other content.
    Modified,
    /// Only other permissions.
    Mode,
    /// A file became a directory, a link a file, and so on.
    Kind,
}

impl Changes {
    /// Whether nothing differs that could reach the host.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// How many files (and links) differ. New and gone directories count only where they are empty.
    pub fn files(&self) -> usize {
        self.list.iter().filter(|change| change.is_counted(self)).count()
    }

    /// Every change, in the order of paths.
    pub fn list(&self) -> &[Change] {
        &self.list
    }

    /// What can never reach the host.
    pub fn left_out(&self) -> &[LeftOut] {
        &self.left_out
    }

    /// Keeps only what lies at or below one of these paths. None at all means everything.
    pub fn keep_below(&mut self, paths: &[PathBuf]) {
        if !paths.is_empty() {
            self.list.retain(|change| paths.iter().any(|path| change.is_needed_for(path)));
            self.left_out.retain(|left| paths.iter().any(|path| left.path.starts_with(path)));
            self.part_renames();
        }
    }

    /// Half of a rename is a new or a deleted file.
    fn part_renames(&mut self) {
        let paths: BTreeSet<PathBuf> = self.list.iter().map(|change| change.path.clone()).collect();
        for change in &mut self.list {
            let is_whole = |path: &PathBuf| paths.contains(path);
            change.renamed_from.take_if(|path| !is_whole(path));
            change.renamed_to.take_if(|path| !is_whole(path));
        }
    }

    /// Whether the change right after this one, in the order of paths, lies below it.
    fn has_below(&self, path: &Path) -> bool {
        let after = self.list.partition_point(|change| change.path.as_path() <= path);
        self.list.get(after).is_some_and(|next| next.path.starts_with(path))
    }
}

impl Change {
    /// The word for it.
    pub fn verb(&self) -> Verb {
        match (&self.was, &self.is) {
            (None, _) if self.renamed_from.is_some() => Verb::Renamed,
            (None, _) => Verb::Added,
            (Some(_), None) if self.renamed_to.is_some() => Verb::MovedAway,
            (Some(_), None) => Verb::Deleted,
            (Some(was), Some(is)) if was.kind != is.kind => Verb::Kind,
            (Some(_), Some(_)) if self.content => Verb::Modified,
            (Some(_), Some(_)) => Verb::Mode,
        }
    }

    /// What it is now, or was where it is gone.
    pub fn kind(&self) -> Kind {
        self.is.as_ref().or(self.was.as_ref()).map_or(Kind::Special, |seen| seen.kind)
    }

    /// Whether it lies at or below a path, or is a new directory above it.
    fn is_needed_for(&self, path: &Path) -> bool {
        let is_directory =
            |seen: &Option<Seen>| seen.as_ref().is_some_and(|seen| seen.kind == Kind::Directory);
        let is_new_directory = is_directory(&self.is) && !is_directory(&self.was);
        self.path.starts_with(path) || (is_new_directory && path.starts_with(&self.path))
    }

    fn is_counted(&self, all: &Changes) -> bool {
        match self.verb() {
            Verb::MovedAway => false,
            Verb::Added | Verb::Deleted if self.kind() == Kind::Directory => !all.has_below(&self.path),
            _ => true,
        }
    }
}

impl Verb {
    /// The word in JSON.
    pub fn word(self) -> &'static str {
        match self {
            Verb::Added => "added",
            Verb::Deleted => "deleted",
            Verb::MovedAway => "moved_away",
            Verb::Renamed => "renamed",
            Verb::Modified => "modified",
            Verb::Mode => "mode",
            Verb::Kind => "kind",
        }
    }
}

impl Kind {
    /// The word in JSON.
    pub fn word(self) -> &'static str {
        match self {
            Kind::File => "file",
            Kind::Directory => "directory",
            Kind::Link => "symlink",
            Kind::Special => "special",
        }
    }
}

impl Seen {
    /// From what the kernel says.
    pub(super) fn new(stat: &Stat, layer: usize) -> Seen {
        let kind = match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => Kind::File,
            FileType::Directory => Kind::Directory,
            FileType::Symlink => Kind::Link,
            _ => Kind::Special,
        };
        let nanoseconds = |value: u64| u32::try_from(value).unwrap_or(0);
        Seen {
            kind,
            mode: stat.st_mode & 0o777,
            size: u64::try_from(stat.st_size).unwrap_or(0),
            mtime: (stat.st_mtime, nanoseconds(stat.st_mtime_nsec)),
            ctime: (stat.st_ctime, nanoseconds(stat.st_ctime_nsec)),
            inode: stat.st_ino,
            owner: (stat.st_uid, stat.st_gid),
            layer,
        }
    }

    /// The mode as git writes it: kind and permissions.
    pub fn git_mode(&self) -> u32 {
        match self.kind {
            Kind::File | Kind::Special => 0o100_000 | self.mode,
            Kind::Directory => 0o040_000,
            Kind::Link => 0o120_000,
        }
    }
}
