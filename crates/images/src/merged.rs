//! Small files of a stack of trees, as an overlay of them would show them, without mounting anything. The trees are hostile:
//! no link leads out of them, nothing but plain files is read, and never more than a bound.
//!
//! ```no_run
//! use airlock_images::merged::Stack;
//! let stack = Stack::open(["/layers/upper", "/layers/base"])?;
//! let passwd = stack.read("/etc/passwd".as_ref(), 1 << 20)?;
//! # Ok::<(), std::io::Error>(())
//! ```

use rustix::{
    fs::{AtFlags, CWD, FileType, Mode, OFlags, Stat},
    io::Errno,
};
use std::{
    collections::VecDeque,
    ffi::{OsStr, OsString},
    fs::File,
    io::{self, Read as _},
    os::{
        fd::{AsRawFd as _, OwnedFd},
        unix::ffi::OsStringExt as _,
    },
    path::{Component, Path, PathBuf},
    rc::Rc,
};

/// Trees, topmost first.
#[derive(Debug)]
pub struct Stack {
    trees: Vec<Rc<OwnedFd>>,
}

/// How many links are followed, as the kernel has it.
const MOST_LINKS: u32 = 40;
/// How many parts a path may have in all.
const MOST_PARTS: u32 = 4096;

/// What a name of a merged directory stands for.
enum Found {
    Nothing,
    Directory(Vec<Rc<OwnedFd>>),
    Other(OwnedFd, Stat),
}

impl Stack {
    /// Opens directories, topmost first; those that are not there are left out.
    pub fn open<P: AsRef<Path>>(trees: impl IntoIterator<Item = P>) -> io::Result<Stack> {
        let mut opened = Vec::new();
        for tree in trees {
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            match rustix::fs::openat(CWD, tree.as_ref(), flags, Mode::empty()) {
                Ok(tree) => opened.push(Rc::new(tree)),
                Err(Errno::NOENT) => {}
                Err(err) => return Err(err.into()),
            }
        }
        Ok(Stack { trees: opened })
    }

    /// The content of a plain file; nothing where there is none, or links lead nowhere. One with more than `most` bytes is an
    /// error.
    pub fn read(&self, path: &Path, most: u64) -> io::Result<Option<Vec<u8>>> {
        let Some(found) = self.find(path)? else { return Ok(None) };
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let name = format!("/proc/self/fd/{}", found.as_raw_fd());
        let file = File::from(rustix::fs::open(name, flags, Mode::empty())?);
        let mut bytes = Vec::new();
        file.take(most.saturating_add(1)).read_to_end(&mut bytes)?;
        match u64::try_from(bytes.len()).is_ok_and(|length| length <= most) {
            true => Ok(Some(bytes)),
            false => Err(io::Error::other(format!("{} has more than {most} bytes", path.display()))),
        }
    }

    /// The plain file that a path leads to.
    fn find(&self, path: &Path) -> io::Result<Option<OwnedFd>> {
        let mut here = vec![self.trees.clone()];
        let mut rest: VecDeque<OsString> = parts(path).collect();
        let (mut links, mut seen) = (0, 0);
        while let Some(name) = rest.pop_front() {
            seen += 1;
            if seen > MOST_PARTS {
                return Ok(None);
            }
            if name == ".." {
                here.truncate(here.len().saturating_sub(1).max(1));
                continue;
            }
            match here.last().map_or(Ok(Found::Nothing), |dirs| look(dirs, &name))? {
                Found::Nothing => return Ok(None),
                Found::Directory(dirs) => here.push(dirs),
                Found::Other(link, stat) if kind(&stat) == FileType::Symlink => {
                    links += 1;
                    if links > MOST_LINKS {
                        return Ok(None);
                    }
                    let target = rustix::fs::readlinkat(&link, "", Vec::new())?;
                    let target = PathBuf::from(OsString::from_vec(target.into_bytes()));
                    if target.is_absolute() {
                        here.truncate(1);
                    }
                    parts(&target)
                        .collect::<Vec<_>>()
                        .into_iter()
                        .rev()
                        .for_each(|part| rest.push_front(part));
                }
                Found::Other(file, stat) => {
                    let is_it = rest.is_empty() && kind(&stat) == FileType::RegularFile;
                    return Ok(is_it.then_some(file));
                }
            }
        }
        Ok(None)
    }
}

/// One name in a directory that several trees have.
fn look(dirs: &[Rc<OwnedFd>], name: &OsStr) -> io::Result<Found> {
    let mut merged = Vec::new();
    for dir in dirs {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let entry = match rustix::fs::openat(&**dir, name, flags, Mode::empty()) {
            Ok(entry) => entry,
            Err(Errno::NOENT) => continue,
            Err(err) => return Err(err.into()),
        };
        let stat = rustix::fs::statat(&entry, "", AtFlags::EMPTY_PATH)?;
        match kind(&stat) {
            FileType::Directory => {
                let is_last = is_opaque(&entry);
                merged.push(Rc::new(entry));
                if is_last {
                    break;
                }
            }
            FileType::CharacterDevice if stat.st_rdev == 0 => break,
            _ if merged.is_empty() => return Ok(Found::Other(entry, stat)),
            _ => break,
        }
    }
    Ok(if merged.is_empty() { Found::Nothing } else { Found::Directory(merged) })
}

/// Whether a directory hides what the trees below have in it (overlayfs.rst, "whiteouts and opaque directories").
fn is_opaque(directory: &OwnedFd) -> bool {
    let mut value = [0u8; 2];
    let name = format!("/proc/self/fd/{}", directory.as_raw_fd());
    rustix::fs::getxattr(name, "user.overlay.opaque", &mut value[..])
        .is_ok_and(|count| value.get(..count) == Some(b"y"))
}

fn kind(stat: &Stat) -> FileType {
    FileType::from_raw_mode(stat.st_mode)
}

fn parts(path: &Path) -> impl Iterator<Item = OsString> {
    path.components().filter_map(|part| match part {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, os::unix::fs::symlink};

    fn trees<const N: usize>() -> ([tempfile::TempDir; N], [PathBuf; N]) {
        let dirs = [(); N].map(|()| tempfile::tempdir().unwrap());
        let paths = dirs.each_ref().map(|dir| dir.path().to_owned());
        (dirs, paths)
    }

    fn read(trees: &[PathBuf], path: &str) -> Option<String> {
        let bytes = Stack::open(trees).unwrap().read(Path::new(path), 64).unwrap();
        bytes.map(|bytes| String::from_utf8(bytes).unwrap())
    }

    #[test]
    fn the_topmost_tree_counts_and_directories_are_joined() {
        let (_dirs, paths) = trees::<2>();
        fs::create_dir(paths[0].join("etc")).unwrap();
        fs::create_dir(paths[1].join("etc")).unwrap();
        fs::write(paths[0].join("etc/passwd"), "upper").unwrap();
        fs::write(paths[1].join("etc/passwd"), "lower").unwrap();
        fs::write(paths[1].join("etc/group"), "group").unwrap();

        assert_eq!(read(&paths, "/etc/passwd").as_deref(), Some("upper"));
        assert_eq!(read(&paths, "/etc/group").as_deref(), Some("group"));
        assert_eq!(read(&paths, "/etc"), None);
        assert_eq!(read(&paths, "/etc/none"), None);
    }

    #[test]
    fn a_link_never_leads_out_of_the_trees_and_a_loop_leads_nowhere() {
        let (_dirs, paths) = trees::<2>();
        symlink("/real", paths[0].join("etc")).unwrap();
        fs::create_dir(paths[1].join("real")).unwrap();
        symlink("../../../../real/file", paths[1].join("real/link")).unwrap();
        fs::write(paths[1].join("real/file"), "inside").unwrap();
        symlink("loop", paths[0].join("loop")).unwrap();
        symlink("/etc/hostname", paths[1].join("real/out")).unwrap();
        symlink("/proc/self/environ", paths[1].join("real/magic")).unwrap();

        assert_eq!(read(&paths, "/etc/link").as_deref(), Some("inside"));
        for nowhere in ["/loop", "/etc/out", "/etc/magic", "/../../../etc/hostname"] {
            assert_eq!(read(&paths, nowhere), None, "{nowhere}");
        }
    }

    #[test]
    fn a_file_hides_a_directory_below_it_and_a_huge_one_is_an_error() {
        let (_dirs, paths) = trees::<2>();
        fs::write(paths[0].join("etc"), "file").unwrap();
        fs::create_dir(paths[1].join("etc")).unwrap();
        fs::write(paths[1].join("etc/passwd"), "lower").unwrap();
        fs::write(paths[1].join("huge"), [b'x'; 65]).unwrap();

        assert_eq!(read(&paths, "/etc/passwd"), None);
        assert!(Stack::open(&paths).unwrap().read(Path::new("/huge"), 64).is_err());
    }
}
