//! Host paths that may be shown inside, and where.

use super::{Caller, refusal};
use airlock_linux::mount::Access;
use airlock_protocol::{
    control::Refusal,
    spec::{Mount, Spec, Tmpfs, Workspace},
};
use rustix::{
    fs::{AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags},
    io::Errno,
};
use std::{
    ffi::{OsStr, OsString},
    fs,
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::ffi::OsStrExt as _,
    },
    path::{Component, Path, PathBuf},
};

/// A host path shown inside.
#[derive(Debug)]
pub struct Bind {
    /// What it is, held open: the path may change, this does not.
    pub source: OwnedFd,
    /// Its path on the host when it was opened.
    pub host: PathBuf,
    /// Where it appears.
    pub target: PathBuf,
    /// What may be done with it.
    pub access: Access,
    /// Whether it is a directory or a file.
    pub kind: Kind,
    /// Its owner on the host.
    pub owner: (u32, u32),
    /// How its owners appear inside.
    pub shown_as: ShownAs,
    /// Sockets of the host below it, and directories that could not be searched for them; relative, to be covered.
    pub sockets: Vec<PathBuf>,
}

/// How the owners of what a bind shows appear inside, where this host can map them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ShownAs {
    /// The owner of the bind is the user inside, everybody else is nobody.
    User,
    /// Every id of the volumes' range is the one it stands for.
    Volume,
}

/// What a bind shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A directory.
    Directory,
    /// A regular file.
    File,
}

/// Opens and checks everything of the host that the spec wants inside.
pub fn binds(spec: &Spec, caller: &Caller, home: &Path) -> Result<Vec<Bind>, Refusal> {
    let workspace = match &spec.workspace {
        Workspace::None => None,
        Workspace::Cow { .. } => {
            let fix = "--workspace rw (writes go to the host), ro or none";
            return Err(refusal(125, "a copy-on-write workspace cannot be made", None, Some(fix)));
        }
        Workspace::Rw { path } => Some((path, Access::ReadWrite)),
        Workspace::Ro { path } => Some((path, Access::ReadOnly)),
    };
    let refused = Refused { homes: homes(caller), airlock: home.to_owned() };
    let mut binds = Vec::new();
    if let Some((path, access)) = workspace {
        let mount =
            Mount { source: path.clone(), target: path.clone(), read_only: access == Access::ReadOnly };
        binds.push(bind(&mount, &refused, "workspace")?);
    }
    for mount in &spec.mounts {
        binds.push(bind(mount, &refused, "mount source")?);
    }
    Ok(binds)
}

/// Checks where directories in memory are wanted.
pub fn check_tmpfs(wanted: &[Tmpfs]) -> Result<Vec<Tmpfs>, Refusal> {
    wanted.iter().map(|tmpfs| check_target(&tmpfs.target).map(|()| tmpfs.clone())).collect()
}

/// Directories of the host that hold the system; neither they nor anything in them is a project.
const SYSTEM: [&str; 12] =
    ["/boot", "/dev", "/etc", "/proc", "/run", "/sys", "/usr", "/bin", "/sbin", "/lib", "/lib64", "/lib32"];
/// Directories that hold what is not one project; directories below them may be.
const SHARED: [&str; 8] = ["/", "/home", "/media", "/mnt", "/opt", "/srv", "/tmp", "/var"];
/// Places inside that are always the sandbox's own.
const OWN: [&str; 4] = ["/", "/dev", "/proc", "/sys"];
/// Most entries of a workspace looked at for sockets.
const MOST_ENTRIES: usize = 2_000_000;
/// Most entries of a workspace that are covered.
const MOST_COVERED: usize = 4_096;
/// Directories with longer paths below a workspace are covered whole: the kernel takes no path beyond 4096 bytes.
const LONGEST_SEARCHED: usize = 3_000;

struct Refused {
    homes: Vec<PathBuf>,
    airlock: PathBuf,
}

fn bind(mount: &Mount, refused: &Refused, what: &str) -> Result<Bind, Refusal> {
    let source = open_source(&mount.source, what)?;
    let host = real_path(&source, &mount.source)?;
    if let Some(why) = refused.why(&host) {
        let fix = match what {
            "workspace" => "change into a project directory first, or use --workspace none",
            _ => "mount only the directory the program needs",
        };
        return Err(refusal(125, &format!("{} cannot be a {what}", host.display()), Some(&why), Some(fix)));
    }
    check_target(&mount.target)?;
    let stat = rustix::fs::fstat(&source).map_err(|err| {
        refusal(125, &format!("{} cannot be read", host.display()), Some(&err.to_string()), None)
    })?;
    let kind = match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory => Kind::Directory,
        FileType::RegularFile => Kind::File,
        _ => {
            let why = "only directories and regular files of the host can be shown inside";
            return Err(refusal(125, &format!("{} cannot be a {what}", host.display()), Some(why), None));
        }
    };
    let access = if mount.read_only { Access::ReadOnly } else { Access::ReadWrite };
    let sockets = match kind {
        Kind::Directory => sockets_below(&source, &host)?,
        Kind::File => Vec::new(),
    };
    Ok(Bind {
        source,
        host,
        target: mount.target.clone(),
        access,
        kind,
        owner: (stat.st_uid, stat.st_gid),
        shown_as: ShownAs::User,
        sockets,
    })
}

/// Opens a path in which nothing is a symbolic link: a spec holds real paths. Another sandbox that may write above it could
/// have put a link there since, to lead the next start elsewhere.
fn open_source(path: &Path, what: &str) -> Result<OwnedFd, Refusal> {
    let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    rustix::fs::openat2(CWD, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), resolve).map_err(|err| {
        let (why, fix) = match err {
            Errno::LOOP => {
                let fix = "look who made the link; then start a new sandbox with the path that is meant";
                ("a part of it is a symbolic link".to_owned(), Some(fix))
            }
            err => (std::io::Error::from(err).to_string(), None),
        };
        refusal(125, &format!("{what} {} cannot be opened", path.display()), Some(&why), fix)
    })
}

fn real_path(source: &OwnedFd, asked: &Path) -> Result<PathBuf, Refusal> {
    fs::read_link(format!("/proc/self/fd/{}", source.as_raw_fd())).map_err(|err| {
        refusal(125, &format!("{} cannot be resolved", asked.display()), Some(&err.to_string()), None)
    })
}

impl Refused {
    /// Why this path of the host may not be shown inside.
    fn why(&self, path: &Path) -> Option<String> {
        if self.airlock.starts_with(path) || path.starts_with(&self.airlock) {
            return Some(format!("airlock keeps its own files in {}", self.airlock.display()));
        }
        if SHARED.iter().any(|shared| Path::new(shared) == path) {
            return Some("it holds far more than one project".to_owned());
        }
        if SYSTEM.iter().any(|system| path.starts_with(system)) {
            return Some("it belongs to the system".to_owned());
        }
        if self.homes.iter().any(|home| home == path) {
            return Some("it is a home directory, with keys and settings in it".to_owned());
        }
        None
    }
}

/// Home directories of people on this host, and the caller's own.
fn homes(caller: &Caller) -> Vec<PathBuf> {
    let passwd = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let person = |line: &str| {
        let mut fields = line.split(':').skip(2);
        let uid: u32 = fields.next()?.parse().ok()?;
        let home = fields.nth(2)?;
        let is_home = (uid == 0 || uid >= 1000 || uid == caller.uid) && home.len() > 1;
        is_home.then(|| fs::canonicalize(home).unwrap_or_else(|_| home.into()))
    };
    let mut homes: Vec<PathBuf> =
        passwd.lines().filter_map(person).filter(|home| home != Path::new("/nonexistent")).collect();
    homes.push(PathBuf::from("/root"));
    homes
}

pub(super) fn check_target(target: &Path) -> Result<(), Refusal> {
    let plain = target.is_absolute()
        && target.components().all(|part| matches!(part, Component::RootDir | Component::Normal(_)));
    if !plain {
        let what = format!("{} is not a place inside a sandbox", target.display());
        return Err(refusal(125, &what, Some("it must be an absolute path without `..`"), None));
    }
    let own = |own: &&&str| if **own == "/" { target == Path::new("/") } else { target.starts_with(own) };
    match OWN.iter().find(own) {
        Some(own) => {
            let why = format!("{own} is always the sandbox's own");
            let what = format!("nothing of the host can be shown at {}", target.display());
            Err(refusal(125, &what, Some(&why), Some("choose another path inside")))
        }
        None => Ok(()),
    }
}

/// What must be covered in a directory that is shown as it is: sockets of the host, which a program inside could connect
/// to, and directories that cannot be searched for them. An earlier program may have closed one on purpose.
fn sockets_below(directory: &OwnedFd, host: &Path) -> Result<Vec<PathBuf>, Refusal> {
    let too_much = |why: String| {
        let what = format!("{} cannot be searched for sockets", host.display());
        refusal(125, &what, Some(&why), Some("use --workspace none and mount what the program needs"))
    };
    let mut found = Vec::new();
    let mut open = vec![PathBuf::from(".")];
    let mut seen = 0;
    while let Some(here) = open.pop() {
        let entries = match list(directory, &here) {
            Ok(entries) => entries,
            // It is gone, or something else by now.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => continue,
            Err(err) if here == Path::new(".") => {
                return Err(too_much(std::io::Error::from(err).to_string()));
            }
            Err(_) => {
                found.push(here);
                continue;
            }
        };
        seen += entries.len();
        for (name, kind) in entries {
            let path = if here == Path::new(".") { PathBuf::from(name) } else { here.join(name) };
            match kind {
                FileType::Directory if path.as_os_str().len() <= LONGEST_SEARCHED => open.push(path),
                FileType::Directory | FileType::Socket | FileType::Unknown => found.push(path),
                _ => {}
            }
        }
        if seen > MOST_ENTRIES {
            return Err(too_much(format!("it holds more than {MOST_ENTRIES} entries")));
        }
        if found.len() > MOST_COVERED {
            return Err(too_much(format!("it holds more than {MOST_COVERED} sockets or closed directories")));
        }
    }
    Ok(found)
}

/// The entries of a directory and what they are; no part of its path may be a symbolic link.
fn list(directory: &OwnedFd, path: &Path) -> rustix::io::Result<Vec<(OsString, FileType)>> {
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
        entries.push((OsStr::from_bytes(name.to_bytes()).to_owned(), kind));
    }
    Ok(entries)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused() -> Refused {
        Refused { homes: vec!["/home/ann".into()], airlock: "/home/ann/.airlock".into() }
    }

    #[test]
    fn system_directories_homes_and_our_own_files_are_refused() {
        let refused = refused();
        for bad in
            ["/", "/etc", "/usr/lib", "/home", "/home/ann", "/home/ann/.airlock/sandboxes", "/var", "/tmp"]
        {
            assert!(refused.why(Path::new(bad)).is_some(), "{bad}");
        }
    }

    #[test]
    fn a_project_below_a_home_is_fine() {
        let refused = refused();
        for good in ["/home/ann/project", "/tmp/x", "/var/www/site", "/srv/app", "/data"] {
            assert_eq!(refused.why(Path::new(good)), None, "{good}");
        }
    }

    #[test]
    fn nothing_is_shown_over_the_sandboxes_own_places() {
        for bad in ["/", "/proc", "/proc/sys", "/dev/sda", "relative", "/a/../etc", "/sys"] {
            assert!(check_target(Path::new(bad)).is_err(), "{bad}");
        }
        assert!(check_target(Path::new("/data")).is_ok());
    }

    #[test]
    fn sockets_are_found_at_any_depth() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("a/b")).unwrap();
        let _listener = std::os::unix::net::UnixListener::bind(dir.path().join("a/b/s")).unwrap();
        let opened = OwnedFd::from(fs::File::open(dir.path()).unwrap());
        assert_eq!(sockets_below(&opened, dir.path()).unwrap(), [PathBuf::from("a/b/s")]);
    }

    #[test]
    fn what_lies_too_deep_to_be_searched_is_covered_whole() {
        let dir = tempfile::tempdir().unwrap();
        let opened = OwnedFd::from(fs::File::open(dir.path()).unwrap());
        let name = "d".repeat(250);
        let mut here = opened.try_clone().unwrap();
        for _ in 0..20 {
            rustix::fs::mkdirat(&here, &name, Mode::RWXU).unwrap();
            here = rustix::fs::openat(&here, &name, OFlags::DIRECTORY, Mode::empty()).unwrap();
        }

        let found = sockets_below(&opened, dir.path()).unwrap();

        assert_eq!(found.len(), 1);
        assert!(found.iter().all(|path| (3_000..3_300).contains(&path.as_os_str().len())));
    }
}
