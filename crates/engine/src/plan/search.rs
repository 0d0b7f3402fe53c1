//! One look through a directory of the host that is about to be shown inside: what has to be covered there, and what may
//! not be written. Only directories are opened, and nothing is followed; what holds a hidden name is read a little
//! ([`super::secret`]).
//!
//! An earlier program may have made what is found here: depth, number and names are hostile.

use super::{refusal, secret};
use airlock_files::paths::Lists;
use airlock_protocol::control::Refusal;
use rustix::{
    fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags},
    io::Errno,
};
use std::{
    ffi::{OsStr, OsString},
    os::{fd::OwnedFd, unix::ffi::OsStrExt as _},
    path::{Path, PathBuf},
};

/// What is looked for.
#[derive(Debug, Clone, Copy)]
pub struct Wish<'a> {
    /// Sockets: a program inside could connect to them.
    pub sockets: bool,
    /// Files with secrets, as these lists name them.
    pub hidden: Option<&'a Lists>,
    /// What the host obeys or executes, as these lists name it.
    pub protected: Option<&'a Lists>,
}

/// What was found, as paths from the directory.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Found {
    /// Sockets, and directories that could not be searched.
    pub covered: Vec<PathBuf>,
    /// What holds secrets.
    pub hidden: Vec<PathBuf>,
    /// The topmost of what is protected, and what it was then.
    pub protected: Vec<Protected>,
    /// Directories in which git keeps a repository.
    pub repositories: Vec<PathBuf>,
}

/// Something that may not be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Protected {
    /// Where.
    pub path: PathBuf,
    /// Its inode: another one means that it was replaced.
    pub inode: u64,
    /// Whether it is a symbolic link, over which nothing can be mounted.
    pub is_link: bool,
}

/// Most entries that are looked at.
const MOST_ENTRIES: usize = 2_000_000;
/// Most entries of each kind that are found.
const MOST_FOUND: usize = 4_096;
/// Directories with longer paths are covered whole: the kernel takes no path beyond 4096 bytes.
const LONGEST_SEARCHED: usize = 3_000;
/// Directories of packages and objects: many, and none of the project's own secrets in them.
const OF_OTHERS: [&str; 2] = ["node_modules", "site-packages"];

/// Looks through a directory.
pub fn search(directory: &OwnedFd, host: &Path, wish: Wish<'_>) -> Result<Found, Refusal> {
    let mut walk = Walk { directory, wish, found: Found::default() };
    let mut open = vec![Here { path: PathBuf::from("."), hides: true, protects: true }];
    let mut seen = 0;
    while let Some(here) = open.pop() {
        let (opened, entries) = match list(directory, &here.path) {
            Ok(listed) => listed,
            // It is gone, or something else by now.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => continue,
            Err(err) if here.path == Path::new(".") => {
                return Err(too_much(host, &std::io::Error::from(err).to_string()));
            }
            Err(_) => {
                walk.found.covered.push(here.path);
                continue;
            }
        };
        seen += entries.len();
        if seen > MOST_ENTRIES {
            return Err(too_much(host, &format!("it holds more than {MOST_ENTRIES} entries")));
        }
        for entry in entries {
            open.extend(walk.entry(&here, &opened, entry));
        }
        if let Some(what) = walk.found.is_too_many() {
            return Err(too_much(host, &format!("it holds more than {MOST_FOUND} {what}")));
        }
    }
    Ok(walk.found)
}

fn too_much(host: &Path, why: &str) -> Refusal {
    let what = format!("{} cannot be searched for sockets and secrets", host.display());
    refusal(125, &what, Some(why), Some("use --workspace none and mount what the program needs"))
}

/// A directory that is to be looked through, and what still counts below it.
struct Here {
    path: PathBuf,
    hides: bool,
    protects: bool,
}

struct Walk<'a> {
    directory: &'a OwnedFd,
    wish: Wish<'a>,
    found: Found,
}

/// One entry of a directory.
struct Entry {
    name: OsString,
    kind: FileType,
    inode: u64,
}

impl Walk<'_> {
    /// Judges one entry; gives the directory that is to be looked through because of it.
    fn entry(&mut self, here: &Here, opened: &OwnedFd, entry: Entry) -> Option<Here> {
        let Entry { name, kind, inode } = entry;
        let path = if here.path == Path::new(".") { PathBuf::from(&name) } else { here.path.join(&name) };
        let is_directory = kind == FileType::Directory;
        let protects = here.protects && !self.protect(&path, kind, inode);
        let hides = match self.wish.hidden.filter(|_| here.hides) {
            Some(lists) => self.hide(lists, opened, &path, kind)?,
            None => here.hides,
        };
        if matches!(kind, FileType::Socket | FileType::Unknown) && self.wish.sockets {
            self.found.covered.push(path);
            return None;
        }
        if !is_directory {
            return None;
        }
        if path.as_os_str().len() > LONGEST_SEARCHED {
            self.found.covered.push(path);
            return None;
        }
        let of_others = OF_OTHERS.iter().any(|other| name == *other);
        let hides = hides && !of_others && !is_of_git(&path);
        let protects = protects && !is_of_git(&path);
        let needed = self.wish.sockets
            || (hides && self.wish.hidden.is_some())
            || (protects && self.wish.protected.is_some());
        needed.then_some(Here { path, hides, protects })
    }

    /// Notes what is protected and repositories. `true` if nothing below has to be judged.
    fn protect(&mut self, path: &Path, kind: FileType, inode: u64) -> bool {
        let Some(lists) = self.wish.protected else { return false };
        if path.file_name().is_none_or(|name| !lists.concerns(name)) {
            return false;
        }
        let is_repository = kind == FileType::Directory && lists.names_git(path);
        if is_repository {
            self.found.repositories.push(path.to_owned());
        }
        let leads_git = lists.names_git(path) && !is_repository;
        if !leads_git && !lists.is_protected(path) {
            return false;
        }
        let is_link = kind == FileType::Symlink;
        self.found.protected.push(Protected { path: path.to_owned(), inode, is_link });
        true
    }

    /// Notes what is hidden. `None` if nothing below has to be judged at all, else whether names below may be hidden.
    fn hide(&mut self, lists: &Lists, opened: &OwnedFd, path: &Path, kind: FileType) -> Option<bool> {
        let name = path.file_name()?;
        if !lists.concerns(name) || !lists.is_hidden(path) {
            return Some(true);
        }
        match kind {
            FileType::Directory if secret::is_environment(opened, name) => return Some(false),
            FileType::Directory => {}
            FileType::Symlink => {
                self.found.hidden.extend(secret::target(self.directory, path));
                return Some(true);
            }
            _ if !secret::is_secret(opened, name) => return Some(true),
            _ => {}
        }
        self.found.hidden.push(path.to_owned());
        if self.wish.sockets { Some(false) } else { None }
    }
}

impl Found {
    fn is_too_many(&self) -> Option<&'static str> {
        let counts = [
            (self.covered.len(), "sockets or closed directories"),
            (self.hidden.len(), "files with secrets"),
            (self.protected.len(), "protected paths"),
            (self.repositories.len(), "repositories"),
        ];
        counts.into_iter().find(|(count, _)| *count > MOST_FOUND).map(|(_, what)| what)
    }
}

/// Whether a directory is one of git's in which names are those of objects and branches.
fn is_of_git(path: &Path) -> bool {
    let is_git = path.parent().and_then(Path::file_name).is_some_and(|name| name == ".git");
    is_git && path.file_name().is_some_and(|name| ["objects", "refs", "logs"].iter().any(|of| name == *of))
}

/// The entries of a directory and what they are; no part of its path may be a symbolic link.
fn list(directory: &OwnedFd, path: &Path) -> rustix::io::Result<(OwnedFd, Vec<Entry>)> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let opened = rustix::fs::openat2(directory, path, flags, Mode::empty(), resolve)?;
    let mut entries = Vec::new();
    for entry in rustix::fs::Dir::read_from(&opened)? {
        let entry = entry?;
        let name = entry.file_name();
        if name == c"." || name == c".." {
            continue;
        }
        let kind = match entry.file_type() {
            FileType::Unknown => rustix::fs::statat(&opened, name, AtFlags::SYMLINK_NOFOLLOW)
                .map_or(FileType::Unknown, |stat| FileType::from_raw_mode(stat.st_mode)),
            told => told,
        };
        entries.push(Entry { name: OsStr::from_bytes(name.to_bytes()).to_owned(), kind, inode: entry.ino() });
    }
    Ok((opened, entries))
}

#[cfg(test)]
mod tests {
    use super::*;
    use airlock_protocol::files::Paths;
    use std::fs;

    fn opened(path: &Path) -> OwnedFd {
        fs::File::open(path).unwrap().into()
    }

    fn lists() -> Lists {
        Lists::new(&Paths::default()).unwrap()
    }

    fn find(path: &Path) -> Found {
        let lists = lists();
        let wish = Wish { sockets: true, hidden: Some(&lists), protected: Some(&lists) };
        let mut found = search(&opened(path), path, wish).unwrap();
        found.hidden.sort();
        found.protected.sort_by(|a, b| a.path.cmp(&b.path));
        found
    }

    fn write(root: &Path, name: &str, text: &str) {
        let path = root.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    #[test]
    fn sockets_are_found_at_any_depth() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("a/node_modules/b")).unwrap();
        let socket = dir.path().join("a/node_modules/b/s");
        let _listener = std::os::unix::net::UnixListener::bind(socket).unwrap();
        assert_eq!(find(dir.path()).covered, [PathBuf::from("a/node_modules/b/s")]);
    }

    #[test]
    fn what_lies_too_deep_to_be_searched_is_covered_whole() {
        let dir = tempfile::tempdir().unwrap();
        let name = "d".repeat(250);
        let mut here = opened(dir.path());
        for _ in 0..20 {
            rustix::fs::mkdirat(&here, &name, Mode::RWXU).unwrap();
            here = rustix::fs::openat(&here, &name, OFlags::DIRECTORY, Mode::empty()).unwrap();
        }

        let found = find(dir.path()).covered;

        assert_eq!(found.len(), 1);
        assert!(found.iter().all(|path| (3_000..3_300).contains(&path.as_os_str().len())));
    }

    #[test]
    fn secrets_are_found_and_packages_and_certificates_are_not_taken_for_them() {
        let dir = tempfile::tempdir().unwrap();
        for name in [".env", "a/b/.env.local", "id_rsa", "node_modules/x/.env", ".env.example", "ca.pem"] {
            write(dir.path(), name, "-----BEGIN CERTIFICATE-----\n");
        }
        write(dir.path(), "tls/server.pem", "-----BEGIN PRIVATE KEY-----\n");
        write(dir.path(), "old/.env/pyvenv.cfg", "");
        write(dir.path(), "old/.env/lib/x.key", "");
        std::os::unix::fs::symlink("../tls/server.pem", dir.path().join("a/.env")).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", dir.path().join("a/b/.env")).unwrap();

        let mut hidden = find(dir.path()).hidden;
        hidden.dedup();

        let expected = [".env", "a/b/.env.local", "id_rsa", "tls/server.pem"];
        assert_eq!(hidden, expected.map(PathBuf::from));
    }

    #[test]
    fn what_the_host_obeys_is_found_with_its_repositories() {
        let dir = tempfile::tempdir().unwrap();
        for name in
            [".git/hooks/x", ".git/config", ".git/objects/config", ".git/modules/m/config", "a/.vscode/y"]
        {
            write(dir.path(), name, "");
        }
        write(dir.path(), "sub/.git", "gitdir: ../.git/modules/m\n");

        let found = find(dir.path());

        let paths: Vec<_> = found.protected.iter().map(|one| one.path.to_str().unwrap()).collect();
        assert_eq!(paths, [".git/config", ".git/hooks", ".git/modules/m/config", "a/.vscode", "sub/.git"]);
        assert_eq!(found.repositories, [PathBuf::from(".git")]);
    }
}
