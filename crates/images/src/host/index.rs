//! What the last scan found, as the text that is kept beside a layer.
//!
//! Records end with a NUL, fields are divided by spaces, a path is always the last field: no path can break it. The text
//! is our own; one that cannot be read back is treated as absent and made again.
//!
//! ```ignore
//! let text = index.write();
//! assert_eq!(Index::read(&text), Some(index));
//! ```

use super::{judge::FIRST_PERSON, mounts::Mount};
use std::{
    collections::BTreeSet,
    ffi::OsStr,
    io::Write as _,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

/// Everything that one generation of the layer stands on. Paths are relative to the host's root.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Index {
    /// For whom and under which rules; another key means another scan.
    pub(super) key: String,
    /// The last full scan began then (seconds since 1970).
    pub(super) checked: i64,
    /// The last scan of everything but the package manager's trees began then.
    pub(super) looked: i64,
    /// How many entries that scan met.
    pub(super) entries: u64,
    /// Home directories of people that lie below the trees.
    pub(super) homes: Vec<PathBuf>,
    /// The shown trees, parents first.
    pub(super) trees: Vec<PathBuf>,
    /// Those of them in which nothing is hidden.
    pub(super) plain: Vec<PathBuf>,
    /// The mounts that the scan took into account.
    pub(super) mounts: Vec<Mount>,
    /// Directories that the sandbox has one of its own of.
    pub(super) covered: Vec<PathBuf>,
    /// Directories whose change is noticed at every start.
    pub(super) watched: Vec<Stamp>,
    /// Hidden entries, sorted by path.
    pub(super) hidden: Vec<Hidden>,
}

/// A hidden entry.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Hidden {
    pub(super) path: PathBuf,
    pub(super) is_directory: bool,
}

/// How a directory looked when it was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Stamp {
    pub(super) path: PathBuf,
    /// None if it was changed so short before that a later change might not show in its times.
    pub(super) seen: Option<Times>,
}

/// What changes when an entry of a directory is added, removed or renamed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Times {
    pub(super) inode: u64,
    pub(super) changed: (i64, u32),
    pub(super) modified: (i64, u32),
}

impl Index {
    /// Whether `path` or a directory above it is hidden or covered.
    pub(super) fn is_out_of_sight(&self, path: &Path) -> bool {
        path.ancestors().any(|at| self.is_hidden(at) || self.covered.iter().any(|covered| covered == at))
    }

    /// The tree that shows `path`, with its number: the deepest one above it.
    pub(super) fn tree_of(&self, path: &Path) -> Option<(usize, &Path)> {
        let above = self.trees.iter().enumerate().filter(|(_, tree)| path.starts_with(tree));
        above.max_by_key(|(_, tree)| tree.as_os_str().len()).map(|(number, tree)| (number, tree.as_path()))
    }

    /// Brings everything into its order, and notes which trees hide nothing.
    pub(super) fn settle(&mut self) {
        self.hidden.sort();
        self.hidden.dedup();
        self.covered.sort();
        self.trees.sort();
        self.mounts.retain({
            let seen = self.clone();
            move |mount| !seen.is_out_of_sight(&mount.at)
        });
        let hiding: BTreeSet<usize> = self
            .hidden
            .iter()
            .filter_map(|hidden| self.tree_of(&hidden.path))
            .map(|(number, _)| number)
            .collect();
        self.plain = self
            .trees
            .iter()
            .enumerate()
            .filter(|(number, _)| !hiding.contains(number))
            .map(|(_, tree)| tree.clone())
            .collect();
    }

    /// Whether both would make the same layer.
    pub(super) fn shows_the_same_as(&self, other: &Self) -> bool {
        self.trees == other.trees
            && self.covered == other.covered
            && self.hidden == other.hidden
            && self.mounts == other.mounts
    }

    /// The text of it.
    pub(super) fn write(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(64 * (self.hidden.len() + self.watched.len() + 16));
        record(
            &mut out,
            &format!("{HEADER} {} {} {} ", self.checked, self.looked, self.entries),
            OsStr::new(&self.key),
        );
        for (tag, paths) in [
            ("home ", &self.homes),
            ("tree ", &self.trees),
            ("plain ", &self.plain),
            ("cover ", &self.covered),
        ] {
            for path in paths {
                record(&mut out, tag, path.as_os_str());
            }
        }
        for mount in &self.mounts {
            record(&mut out, if mount.is_local { "local " } else { "far " }, mount.at.as_os_str());
        }
        for stamp in &self.watched {
            let seen = match stamp.seen {
                Some(t) => format!(
                    "dir {} {} {} {} {} ",
                    t.inode, t.changed.0, t.changed.1, t.modified.0, t.modified.1
                ),
                None => "racy ".to_owned(),
            };
            record(&mut out, &seen, stamp.path.as_os_str());
        }
        for hidden in &self.hidden {
            record(
                &mut out,
                if hidden.is_directory { "hide-dir " } else { "hide " },
                hidden.path.as_os_str(),
            );
        }
        record(&mut out, "end ", OsStr::new(""));
        out
    }

    /// Reads the text back; None if it is not whole.
    pub(super) fn read(text: &[u8]) -> Option<Self> {
        let mut records = text.strip_suffix(b"\0")?.split(|byte| *byte == 0);
        let mut index = Self::default();
        let header = records.next()?.strip_prefix(HEADER.as_bytes())?.strip_prefix(b" ")?;
        let (checked, rest) = field(header)?;
        let (looked, rest) = field(rest)?;
        let (entries, key) = field(rest)?;
        (index.checked, index.looked, index.entries) = (number(checked)?, number(looked)?, number(entries)?);
        index.key = std::str::from_utf8(key).ok()?.to_owned();
        let mut is_whole = false;
        for text in records {
            if is_whole {
                return None;
            }
            let (tag, rest) = field(text)?;
            if tag == b"end" {
                is_whole = true;
            } else {
                index.take(tag, rest)?;
            }
        }
        is_whole.then_some(index)
    }

    fn take(&mut self, tag: &[u8], rest: &[u8]) -> Option<()> {
        match tag {
            b"home" => self.homes.push(path(rest)),
            b"tree" => self.trees.push(path(rest)),
            b"plain" => self.plain.push(path(rest)),
            b"cover" => self.covered.push(path(rest)),
            b"local" => self.mounts.push(Mount { at: path(rest), is_local: true }),
            b"far" => self.mounts.push(Mount { at: path(rest), is_local: false }),
            b"hide" => self.hidden.push(Hidden { path: path(rest), is_directory: false }),
            b"hide-dir" => self.hidden.push(Hidden { path: path(rest), is_directory: true }),
            b"racy" => self.watched.push(Stamp { path: path(rest), seen: None }),
            b"dir" => self.watched.push(read_stamp(rest)?),
            _ => return None,
        }
        Some(())
    }

    fn is_hidden(&self, path: &Path) -> bool {
        self.hidden.binary_search_by(|hidden| hidden.path.as_path().cmp(path)).is_ok()
    }
}

const HEADER: &str = "airlock-host-1";

/// The home directories of people (not of services) in a passwd file that lie in one of `tops`, with their owners, at
/// least two names deep.
pub(super) fn homes_of_people(passwd: &str, tops: &[PathBuf]) -> Vec<(PathBuf, u32)> {
    let mut homes: Vec<(PathBuf, u32)> = Vec::new();
    for account in super::etc::accounts(passwd) {
        let is_person =
            account.uid == 0 || (account.uid >= FIRST_PERSON && account.uid != super::etc::NOBODY);
        let Ok(home) = Path::new(account.home).strip_prefix("/") else { continue };
        let is_plain = home.components().all(|part| matches!(part, std::path::Component::Normal(_)));
        if is_person && is_plain && home.iter().count() > 1 && tops.iter().any(|top| home.starts_with(top)) {
            homes.push((home.to_owned(), account.uid));
        }
    }
    homes.sort();
    homes.dedup();
    homes
}

fn record(out: &mut Vec<u8>, head: &str, path: &OsStr) {
    // Writing to a vector cannot fail.
    let _ = out.write_all(head.as_bytes());
    let _ = out.write_all(path.as_bytes());
    out.push(0);
}

fn read_stamp(text: &[u8]) -> Option<Stamp> {
    let (inode, rest) = field(text)?;
    let (changed, rest) = field(rest)?;
    let (changed_ns, rest) = field(rest)?;
    let (modified, rest) = field(rest)?;
    let (modified_ns, rest) = field(rest)?;
    let times = Times {
        inode: number(inode)?,
        changed: (number(changed)?, number(changed_ns)?),
        modified: (number(modified)?, number(modified_ns)?),
    };
    Some(Stamp { path: path(rest), seen: Some(times) })
}

fn field(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let space = text.iter().position(|byte| *byte == b' ')?;
    Some((text.get(..space)?, text.get(space.checked_add(1)?..)?))
}

fn number<T: std::str::FromStr>(text: &[u8]) -> Option<T> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

fn path(text: &[u8]) -> PathBuf {
    PathBuf::from(OsStr::from_bytes(text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn index(names: &[Vec<u8>], times: (u64, i64, u32)) -> Index {
        let paths: Vec<PathBuf> = names.iter().map(|name| path(name)).collect();
        let seen = Times { inode: times.0, changed: (times.1, times.2), modified: (-times.1 / 2, times.2) };
        let stamp = |(n, p): (usize, &PathBuf)| Stamp { path: p.clone(), seen: (n % 2 == 0).then_some(seen) };
        let hidden = |(n, p): (usize, &PathBuf)| Hidden { path: p.clone(), is_directory: n % 2 == 0 };
        Index {
            key: "root x y".into(),
            checked: times.1,
            looked: -times.1,
            entries: times.0,
            homes: paths.clone(),
            trees: paths.clone(),
            plain: paths.clone(),
            mounts: paths
                .iter()
                .map(|at| Mount { at: at.clone(), is_local: times.0.is_multiple_of(2) })
                .collect(),
            covered: paths.clone(),
            watched: paths.iter().enumerate().map(stamp).collect(),
            hidden: paths.iter().enumerate().map(hidden).collect(),
        }
    }

    #[test]
    fn homes_of_people_below_the_trees_are_found() {
        let passwd = "root:x:0:0::/var/roothome:/bin/sh\nann:x:1000:1000::/var/home/ann:/bin/sh\nbob:x:1001:1001::/home/bob:/bin/sh\n\
            www:x:33:33::/var/www:/bin/sh\neve:x:1002:1002::/var:/bin/sh\nzed:x:1003:1003::/var/../etc/x:/bin/sh\n";
        let homes = homes_of_people(passwd, &["var".into()]);
        assert_eq!(homes, vec![("var/home/ann".into(), 1000), ("var/roothome".into(), 0)]);
    }

    #[test]
    fn a_path_below_a_hidden_directory_is_out_of_sight() {
        let mut index = index(&[], (0, 0, 0));
        index.hidden = vec![Hidden { path: "var/lib/docker".into(), is_directory: true }];
        assert!(index.is_out_of_sight(Path::new("var/lib/docker/overlay2/x/merged")));
        assert!(!index.is_out_of_sight(Path::new("var/lib/dockerx")));
    }

    proptest! {
        #[test]
        fn an_index_is_read_back_as_written(
            names in proptest::collection::vec(proptest::collection::vec(1_u8..=255, 1..20), 0..6),
            times in (any::<u64>(), -5_000_000_000_i64..5_000_000_000, 0_u32..1_000_000_000),
        ) {
            let index = index(&names, times);
            let text = index.write();
            prop_assert_eq!(Index::read(&text), Some(index));
            let cut = text.len().saturating_sub(1);
            prop_assert_eq!(Index::read(&text[..cut]), None);
        }

        #[test]
        fn any_bytes_are_read(text in proptest::collection::vec(any::<u8>(), 0..256)) {
            let _ = Index::read(&text);
        }
    }
}
