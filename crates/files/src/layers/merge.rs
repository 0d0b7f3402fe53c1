//! Trees one upon the other, as an overlay of them would show them, entry by entry, without mounting anything.
//!
//! A name is what the topmost tree that knows it says. Directories are joined, down to the first that is opaque. The trees
//! may be hostile: no link is followed, and depth costs no stack; descriptors are bounded.

use super::{
    Error, failed,
    pack::{Form, Packed, pack_all},
    tree,
    walk::{Entry, Step},
};
use rustix::{
    fs::{AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, Stat},
    io::Errno,
};
use std::{
    collections::BTreeSet,
    ffi::{CStr, CString, OsStr},
    io::{self, Write},
    os::{
        fd::{AsFd as _, BorrowedFd, OwnedFd},
        unix::ffi::OsStrExt as _,
    },
};

/// Directories that are open at once, all trees together.
const MOST_OPEN: usize = 512;
/// Names that are held in memory at once.
const MOST_NAME_BYTES: usize = 128 << 20;

/// Writes what trees hold together, topmost first, as one archive in which nothing is deleted any more.
pub fn pack(
    trees: &[BorrowedFd<'_>],
    form: Form<'_>,
    out: &mut dyn Write,
    progress: &mut dyn FnMut(u64),
) -> Result<Packed, Error> {
    let Some(top) = trees.first() else {
        return Err(failed("pack", b".")(io::Error::from(io::ErrorKind::NotFound)));
    };
    pack_all(*top, form, out, progress, &mut |visit| walk(trees, visit))
}

/// Walks what `trees` hold together, topmost first, names in order.
pub fn walk(
    trees: &[BorrowedFd<'_>],
    visit: &mut dyn FnMut(Step<'_>) -> Result<(), Error>,
) -> Result<(), Error> {
    let mut walking = Walking { trees, levels: Vec::new(), path: Vec::new(), open: 0, held: 0 };
    let all: Vec<usize> = (0..trees.len()).collect();
    let opened = walking.reopen(&all).map_err(failed("open", b"."))?;
    walking.enter(all, opened, None)?;
    while let Some(level) = walking.levels.last_mut() {
        let Some(name) = level.left.pop() else {
            walking.leave(visit)?;
            continue;
        };
        walking.held -= name.as_bytes_with_nul().len();
        walking.meet(&name, visit)?;
    }
    Ok(())
}

struct Walking<'a> {
    trees: &'a [BorrowedFd<'a>],
    levels: Vec<Level>,
    path: Vec<u8>,
    open: usize,
    held: usize,
}

/// A directory that has been entered.
struct Level {
    /// The trees that have it, topmost first.
    which: Vec<usize>,
    /// It in each of them; none where there were too many and it is to be opened again.
    opened: Vec<OwnedFd>,
    /// The names in it, the last in order first.
    left: Vec<CString>,
    path_length: usize,
    stat: Option<Stat>,
}

impl Walking<'_> {
    fn enter(&mut self, which: Vec<usize>, opened: Vec<OwnedFd>, stat: Option<Stat>) -> Result<(), Error> {
        let left = self.names(&opened)?;
        self.open += opened.len();
        self.levels.push(Level { which, opened, left, path_length: self.path.len(), stat });
        let mut levels = self.levels.iter_mut().rev().skip(1).rev();
        while self.open > MOST_OPEN
            && let Some(level) = levels.next()
        {
            self.open -= level.opened.len();
            level.opened.clear();
        }
        Ok(())
    }

    fn leave(&mut self, visit: &mut dyn FnMut(Step<'_>) -> Result<(), Error>) -> Result<(), Error> {
        let Some(level) = self.levels.pop() else { return Ok(()) };
        self.open -= level.opened.len();
        if let Some(above) = self.levels.last() {
            self.path.truncate(above.path_length);
        }
        level.stat.map_or(Ok(()), |stat| visit(Step::Leave(&stat)))
    }

    fn meet(
        &mut self,
        name: &CStr,
        visit: &mut dyn FnMut(Step<'_>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let above = self.path.len();
        let here = self.here().map_err(failed("open", &self.path))?;
        if above > 0 {
            self.path.push(b'/');
        }
        self.path.extend_from_slice(name.to_bytes());
        let met = look(&here.1, name).map_err(failed("look at", &self.path))?;
        let (which, here) = here;
        let outcome = match met {
            Met::Nothing => Ok(()),
            Met::Other(number, stat) => {
                let parent = here.get(number).ok_or(io::ErrorKind::NotFound);
                let parent = parent.map_err(failed("open", &self.path))?.as_fd();
                visit(Step::Meet(Entry { parent, name, path: &self.path, stat: &stat, directory: None }))
            }
            Met::Directory(found, stat) => {
                let numbers = found.iter().filter_map(|(number, _)| which.get(*number).copied()).collect();
                let parent = found.first().and_then(|(number, _)| here.get(*number));
                if let (Some(parent), Some((_, directory))) = (parent, found.first()) {
                    let (parent, directory) = (parent.as_fd(), Some(directory.as_fd()));
                    visit(Step::Enter(Entry { parent, name, path: &self.path, stat: &stat, directory }))?;
                }
                self.back(here);
                return self.enter(numbers, found.into_iter().map(|(_, fd)| fd).collect(), Some(stat));
            }
        };
        self.back(here);
        self.path.truncate(above);
        outcome
    }

    /// The directory we are in: in which trees, and it in each. To be given [`Walking::back`].
    fn here(&mut self) -> io::Result<(Vec<usize>, Vec<OwnedFd>)> {
        let Some(level) = self.levels.last_mut() else { return Ok((Vec::new(), Vec::new())) };
        let (which, opened) = (level.which.clone(), std::mem::take(&mut level.opened));
        if !opened.is_empty() {
            return Ok((which, opened));
        }
        let opened = self.reopen(&which)?;
        self.open += opened.len();
        Ok((which, opened))
    }

    fn back(&mut self, opened: Vec<OwnedFd>) {
        if let Some(level) = self.levels.last_mut() {
            level.opened = opened;
        }
    }

    fn reopen(&self, which: &[usize]) -> io::Result<Vec<OwnedFd>> {
        let path = if self.path.is_empty() { b"." } else { self.path.as_slice() };
        let open = |number: &usize| {
            let tree = self.trees.get(*number).ok_or(Errno::NOENT)?;
            open_below(*tree, OsStr::from_bytes(path))
        };
        Ok(which.iter().map(open).collect::<Result<_, Errno>>()?)
    }

    fn names(&mut self, opened: &[OwnedFd]) -> Result<Vec<CString>, Error> {
        let mut names = BTreeSet::new();
        for directory in opened {
            for entry in Dir::read_from(directory).map_err(failed("read", &self.path))? {
                let entry = entry.map_err(failed("read", &self.path))?;
                let name = entry.file_name();
                if name == c"." || name == c".." || !names.insert(name.to_owned()) {
                    continue;
                }
                self.held += name.to_bytes_with_nul().len();
                if self.held > MOST_NAME_BYTES {
                    let source = io::Error::other("there are too many entries in its directories");
                    return Err(failed("read", &self.path)(source));
                }
            }
        }
        Ok(names.into_iter().rev().collect())
    }
}

/// What a name stands for.
enum Met {
    Nothing,
    /// Of which of the directories.
    Other(usize, Stat),
    /// In which of them, and the topmost's looks.
    Directory(Vec<(usize, OwnedFd)>, Stat),
}

fn look(directories: &[OwnedFd], name: &CStr) -> Result<Met, Errno> {
    let mut found = Vec::new();
    let mut first = None;
    for (number, directory) in directories.iter().enumerate() {
        let stat = match rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => continue,
            other => other?,
        };
        if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
            match first {
                None if tree::is_whiteout(&stat) => return Ok(Met::Nothing),
                None => return Ok(Met::Other(number, stat)),
                Some(_) => break,
            }
        }
        let below = open_below(directory.as_fd(), OsStr::from_bytes(name.to_bytes()))?;
        let is_opaque = is_opaque(&below);
        first.get_or_insert(stat);
        found.push((number, below));
        if is_opaque {
            break;
        }
    }
    Ok(first.map_or(Met::Nothing, |stat| Met::Directory(found, stat)))
}

fn is_opaque(directory: &OwnedFd) -> bool {
    let mut value = [0u8; 1];
    matches!(rustix::fs::fgetxattr(directory, tree::OPAQUE, &mut value), Ok(1) if value == *b"y")
}

/// A directory at a path that no link is part of.
fn open_below(directory: BorrowedFd<'_>, path: &OsStr) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let within = ResolveFlags::BENEATH | ResolveFlags::NO_XDEV | ResolveFlags::NO_SYMLINKS;
    rustix::fs::openat2(directory, path, flags, Mode::empty(), within)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        fs::{self, File},
        path::Path,
    };

    fn write(top: &Path, files: &[&str]) {
        for file in files {
            let path = top.join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, top.file_name().unwrap().as_encoded_bytes()).unwrap();
        }
    }

    /// Each path, with the bytes of files.
    fn seen(trees: &[&Path]) -> Vec<String> {
        let trees: Vec<File> = trees.iter().map(|tree| File::open(tree).unwrap()).collect();
        let trees: Vec<BorrowedFd<'_>> = trees.iter().map(|tree| tree.as_fd()).collect();
        let mut seen = Vec::new();
        walk(&trees, &mut |step| {
            seen.push(match step {
                Step::Enter(entry) => format!("> {}", String::from_utf8_lossy(entry.path)),
                Step::Meet(entry) => {
                    let file = tree::open_file(entry.parent, entry.name).unwrap();
                    format!("{} {}", String::from_utf8_lossy(entry.path), io::read_to_string(file).unwrap())
                }
                Step::Leave(_) => "<".to_owned(),
            });
            Ok(())
        })
        .unwrap();
        seen
    }

    #[test]
    fn the_topmost_tree_says_what_a_name_is() {
        let dir = tempfile::tempdir().unwrap();
        let [upper, middle, lower] = ["upper", "middle", "lower"].map(|name| dir.path().join(name));
        write(&lower, &["both/a", "both/b", "gone/x", "opaque/old", "kind/x", "only/x", "file"]);
        write(&middle, &["both/b", "opaque/older"]);
        write(&upper, &["both/c", "opaque/new", "kind"]);
        let opened = File::open(&upper).unwrap();
        tree::make_whiteout(opened.as_fd(), c"gone").unwrap();
        tree::make_whiteout(File::open(upper.join("both")).unwrap().as_fd(), c"a").unwrap();
        tree::set_attribute(File::open(upper.join("opaque")).unwrap().as_fd(), tree::OPAQUE, b"y").unwrap();

        let seen = seen(&[&upper, &middle, &lower]);

        assert_eq!(
            seen,
            [
                "> both",
                "both/b middle",
                "both/c upper",
                "<",
                "file lower",
                "kind upper",
                "> only",
                "only/x lower",
                "<",
                "> opaque",
                "opaque/new upper",
                "<"
            ]
        );
    }

    #[test]
    fn a_deep_tree_needs_no_more_descriptors_than_a_shallow_one() {
        let dir = tempfile::tempdir().unwrap();
        let deep = vec!["d"; 900].join("/");
        write(&dir.path().join("t"), &[&format!("{deep}/end"), &format!("{deep}/a/b"), "d/last"]);
        let top = dir.path().join("t");

        let seen = seen(&[&top, &top]);

        assert_eq!((seen.iter().filter(|step| *step == "<").count(), seen.len()), (901, 901 * 2 + 3));
    }
}
