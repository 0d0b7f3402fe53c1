//! What `COPY` and `ADD` put where. Pure and total: from names and metadata to the entries of a layer.

use super::{
    chmod::Chmod,
    glob::{self, Pattern},
    ignore::Ignore,
    path,
    tree::{Kind, Loop, Node, Tree},
};
use std::collections::BTreeMap;

/// One thing that is copied.
#[derive(Debug, Clone)]
pub struct Source<'t> {
    /// Where it is.
    pub tree: &'t Tree,
    /// Which of the build's sources that tree is; content is asked for by it.
    pub origin: usize,
    /// The path in the tree, links followed.
    pub path: Vec<u8>,
    /// The name it has where it goes, if it is no directory; with `--parents`, the path.
    pub name: Vec<u8>,
}

/// Where to, and how.
#[derive(Debug, Clone, Default)]
pub struct Target {
    /// The absolute path as written, joined to the working directory.
    pub path: String,
    /// Whether it was written as a directory.
    pub is_directory: bool,
    /// `--chown`
    pub owner: Option<(u32, u32)>,
    /// `--chmod`
    pub mode: Option<Chmod>,
    /// `--exclude`
    pub exclude: Ignore,
    /// `--parents`
    pub parents: bool,
}

/// One entry of the layer that is made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Item {
    /// What it is.
    pub node: Node,
    /// Which source its content is from. `None`: it has none, or it is a directory that was there.
    pub origin: Option<usize>,
}

/// The entries of a layer, in their order.
pub type Items = BTreeMap<Vec<u8>, Item>;

/// Why something cannot be copied.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Bad {
    /// It is not there.
    #[error("{0}: not found{1}")]
    Missing(String, &'static str),
    /// A pattern.
    #[error("{0}: {1}")]
    Pattern(String, glob::Bad),
    /// Links.
    #[error(transparent)]
    Loop(#[from] Loop),
    /// Something is in the way.
    #[error("cannot copy to {0}: {1}")]
    InTheWay(String, &'static str),
    /// Several into one.
    #[error("with several sources, the destination is a directory and ends with /")]
    Several,
}

/// The paths that a source, as written and expanded, means in a tree: itself, or what a pattern fits.
pub fn sources(tree: &Tree, written: &str) -> Result<Vec<Vec<u8>>, Bad> {
    let cleaned = path::joined("/", written);
    let cleaned = cleaned.trim_start_matches('/');
    if !glob::is_pattern(cleaned) {
        let found = tree.resolve(cleaned.as_bytes())?;
        return match tree.get(&found) {
            Some(_) => Ok(vec![cleaned.as_bytes().to_vec()]),
            None => Err(Bad::Missing(written.to_owned(), "")),
        };
    }
    let pattern = Pattern::of_go(cleaned).map_err(|bad| Bad::Pattern(written.to_owned(), bad))?;
    let depth = cleaned.split('/').count();
    let fits = |path: &[u8]| {
        path.split(|byte| *byte == b'/').count() == depth && pattern.matches(&String::from_utf8_lossy(path))
    };
    let found: Vec<Vec<u8>> =
        tree.below(b"").map(|(path, _)| path).filter(|path| fits(path)).map(<[u8]>::to_vec).collect();
    if found.is_empty() {
        return Err(Bad::Missing(written.to_owned(), " (nothing fits the pattern)"));
    }
    Ok(found)
}

/// The name of a source with `--parents`: what stands behind `/./`, else all of it.
pub fn kept_path(written: &str, path: &[u8]) -> Vec<u8> {
    let before = written.split_once("/./").map(|(before, _)| path::joined("/", before)).unwrap_or_default();
    let before = before.trim_start_matches('/').as_bytes();
    let rest = path.strip_prefix(before).unwrap_or(path);
    rest.strip_prefix(b"/").unwrap_or(rest).to_vec()
}

/// The entries of the layer that copying makes on top of `image`.
pub fn plan(image: &Tree, sources: &[Source<'_>], target: &Target) -> Result<Items, Bad> {
    if sources.len() > 1 && !target.is_directory {
        return Err(Bad::Several);
    }
    let mut plan = Plan { image, target, items: Items::new() };
    let to = image.resolve(target.path.as_bytes())?;
    for source in sources {
        let Some(node) = source.tree.get(&source.path) else {
            return Err(Bad::Missing(String::from_utf8_lossy(&source.path).into_owned(), ""));
        };
        if target.parents {
            plan.kept(source, node, &to)?;
        } else if node.is_directory() {
            plan.contents(source, &to)?;
        } else {
            plan.single(source, node, &to)?;
        }
    }
    Ok(plan.items)
}

/// The entries that make a directory, and those on the way to it that are missing. Nothing, if it is there.
pub fn directory(image: &Tree, wanted: &str, owner: (u32, u32)) -> Result<Items, Bad> {
    let to = image.resolve(wanted.as_bytes())?;
    if image.get(&to).is_some_and(Node::is_directory) {
        return Ok(Items::new());
    }
    let target = Target { owner: Some(owner), ..Target::default() };
    let mut plan = Plan { image, target: &target, items: Items::new() };
    plan.ensure(&to)?;
    Ok(plan.items)
}

struct Plan<'p> {
    image: &'p Tree,
    target: &'p Target,
    items: Items,
}

impl Plan<'_> {
    /// What a directory holds goes into the destination.
    fn contents(&mut self, source: &Source<'_>, to: &[u8]) -> Result<(), Bad> {
        self.ensure(to)?;
        for (name, node) in source.tree.below(&source.path) {
            if !self.is_excluded(name) {
                self.put(path::below(to, name), node, source.origin)?;
            }
        }
        Ok(())
    }

    /// A file or a link goes to the destination, or into it.
    fn single(&mut self, source: &Source<'_>, node: &Node, to: &[u8]) -> Result<(), Bad> {
        if self.is_excluded(&source.name) {
            return Ok(());
        }
        let is_into = self.target.is_directory || self.there(to).is_some_and(Node::is_directory);
        let to = if is_into { path::below(to, &source.name) } else { to.to_vec() };
        self.ensure(path::last(&to).0)?;
        self.put(to, node, source.origin)
    }

    /// Something with the directories of its path.
    fn kept(&mut self, source: &Source<'_>, node: &Node, to: &[u8]) -> Result<(), Bad> {
        self.ensure(to)?;
        let to = path::below(to, &source.name);
        self.ensure(path::last(&to).0)?;
        if !node.is_directory() {
            return self.put(to, node, source.origin);
        }
        self.put(to.clone(), node, source.origin)?;
        self.contents(source, &to)
    }

    fn is_excluded(&self, name: &[u8]) -> bool {
        self.target.exclude.ignores(&String::from_utf8_lossy(name))
    }

    fn there(&self, path: &[u8]) -> Option<&Node> {
        self.items.get(path).map(|item| &item.node).or_else(|| self.image.get(path))
    }

    fn put(&mut self, to: Vec<u8>, node: &Node, origin: usize) -> Result<(), Bad> {
        if node.kind == Kind::Other {
            return Ok(());
        }
        let shown = || format!("/{}", String::from_utf8_lossy(&to));
        match self.there(&to) {
            Some(there) if there.is_directory() && !node.is_directory() => {
                return Err(Bad::InTheWay(shown(), "a directory is there"));
            }
            Some(there) if !there.is_directory() && node.is_directory() => {
                return Err(Bad::InTheWay(shown(), "something that is no directory is there"));
            }
            _ => {}
        }
        let mut node = node.clone();
        if let Some((uid, gid)) = self.target.owner {
            (node.uid, node.gid) = (uid, gid);
        }
        if let Some(chmod) = self.target.mode.as_ref().filter(|_| !matches!(node.kind, Kind::Link(_))) {
            node.mode = chmod.applied(node.mode, node.is_directory());
        }
        let origin = matches!(node.kind, Kind::File { .. }).then_some(origin);
        self.items.insert(to, Item { node, origin });
        Ok(())
    }

    /// The directory and those on the way to it: as they are, or made.
    fn ensure(&mut self, directory: &[u8]) -> Result<(), Bad> {
        let mut ends: Vec<usize> =
            directory.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| at).collect();
        if !directory.is_empty() {
            ends.push(directory.len());
        }
        for end in ends {
            let path = directory.get(..end).unwrap_or_default();
            if self.items.contains_key(path) && self.there(path).is_some_and(Node::is_directory) {
                continue;
            }
            let node = match self.there(path) {
                Some(there) if there.is_directory() => there.clone(),
                Some(_) => {
                    let shown = format!("/{}", String::from_utf8_lossy(path));
                    return Err(Bad::InTheWay(shown, "something that is no directory is there"));
                }
                None => {
                    let (uid, gid) = self.target.owner.unwrap_or_default();
                    Node { uid, gid, ..Node::directory() }
                }
            };
            self.items.insert(path.to_vec(), Item { node, origin: None });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::build::tree::index::Entry;
    use proptest::prelude::*;

    fn tree(paths: &[(&str, Kind)]) -> Tree {
        let mut made = Tree::default();
        let entry = |(path, kind): &(&str, Kind)| {
            Entry::Node(path.as_bytes().to_vec(), Node { uid: 5, ..Node::of(kind.clone(), 0o700) })
        };
        made.stack(&paths.iter().map(entry).collect::<Vec<_>>());
        made
    }

    fn file() -> Kind {
        Kind::File { size: 1, sum: None }
    }

    fn planned(image: &Tree, context: &Tree, from: &str, to: &str) -> Result<Vec<String>, Bad> {
        let target = Target { path: to.to_owned(), is_directory: to.ends_with('/'), ..Target::default() };
        let sources: Vec<Source<'_>> = sources(context, from)?
            .into_iter()
            .map(|written| {
                let path = context.resolve(&written).unwrap();
                Source { tree: context, origin: 0, name: path::last(&written).1.to_vec(), path }
            })
            .collect();
        let items = plan(image, &sources, &target)?;
        Ok(items.keys().map(|path| String::from_utf8_lossy(path).into_owned()).collect())
    }

    #[test]
    fn files_and_directories_go_where_docker_puts_them() {
        let image = tree(&[
            ("dir", Kind::Directory),
            ("lib", Kind::Link(b"usr/lib".to_vec())),
            ("usr/lib", Kind::Directory),
            ("there", file()),
        ]);
        let context = tree(&[
            ("a.txt", file()),
            ("b.txt", file()),
            ("d", Kind::Directory),
            ("d/e", Kind::Directory),
            ("d/e/f", file()),
            ("link", Kind::Link(b"a.txt".to_vec())),
        ]);
        for (from, to, wanted) in [
            ("a.txt", "/x", vec!["x"]),
            ("a.txt", "/dir", vec!["dir", "dir/a.txt"]),
            ("a.txt", "/new/", vec!["new", "new/a.txt"]),
            ("a.txt", "/new/deep/x", vec!["new", "new/deep", "new/deep/x"]),
            ("a.txt", "/there", vec!["there"]),
            ("a.txt", "/lib/", vec!["usr", "usr/lib", "usr/lib/a.txt"]),
            ("d", "/dir", vec!["dir", "dir/e", "dir/e/f"]),
            ("d", "/", vec!["e", "e/f"]),
            (".", "/n", vec!["n", "n/a.txt", "n/b.txt", "n/d", "n/d/e", "n/d/e/f", "n/link"]),
            ("*.txt", "/n/", vec!["n", "n/a.txt", "n/b.txt"]),
            ("link", "/n", vec!["n"]),
            ("../../a.txt", "/n", vec!["n"]),
        ] {
            assert_eq!(planned(&image, &context, from, to).unwrap(), wanted, "{from} {to}");
        }
        assert_eq!(planned(&image, &context, "*.txt", "/n"), Err(Bad::Several));
        assert!(matches!(planned(&image, &context, "no", "/n"), Err(Bad::Missing(..))));
        assert!(matches!(planned(&image, &context, "d", "/there"), Err(Bad::InTheWay(..))));
        assert!(matches!(planned(&image, &context, "a.txt", "/there/x"), Err(Bad::InTheWay(..))));
    }

    #[test]
    fn a_directory_that_is_there_stays_as_it_is() {
        let image = tree(&[("dir", Kind::Directory)]);
        let context = tree(&[("a", file())]);
        let sources = [Source { tree: &context, origin: 0, path: b"a".to_vec(), name: b"a".to_vec() }];
        let owner = Some((1, 2));
        let target = Target {
            path: "/dir/n/".to_owned(),
            is_directory: true,
            owner,
            mode: Some(Chmod::Octal(0o640)),
            ..Target::default()
        };
        let items = plan(&image, &sources, &target).unwrap();
        let of = |path: &[u8]| {
            let node = &items[path].node;
            (node.uid, node.gid, node.mode)
        };
        assert_eq!((of(b"dir"), of(b"dir/n"), of(b"dir/n/a")), ((5, 0, 0o700), (1, 2, 0o755), (1, 2, 0o640)));
    }

    #[test]
    fn a_working_directory_is_made_where_it_is_missing() {
        let image = tree(&[("dir", Kind::Directory)]);
        assert_eq!(directory(&image, "/dir", (0, 0)).unwrap(), Items::new());
        let made = directory(&image, "/dir/a/b", (3, 4)).unwrap();
        assert_eq!(made.keys().collect::<Vec<_>>(), [b"dir".as_slice(), b"dir/a", b"dir/a/b"]);
    }

    proptest! {
        #[test]
        fn nothing_is_put_outside(from in "[ab*/.]{1,6}", to in "/[ab./]{0,8}") {
            let image = tree(&[("a", Kind::Link(b"../b".to_vec())), ("b", Kind::Directory)]);
            let context = tree(&[("a", Kind::Directory), ("a/b", file()), ("b", file())]);
            for path in planned(&image, &context, &from, &to).unwrap_or_default() {
                prop_assert!(!path.starts_with('/') && path.split('/').all(|part| part != ".."));
            }
        }
    }
}
