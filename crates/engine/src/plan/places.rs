//! Host paths that may be shown inside, and where.

use super::{
    Caller,
    ids::is_of_volumes,
    placeholder, refusal,
    search::{self, Found, Wish},
};
use airlock_files::{paths::Lists, provider::Source};
use airlock_linux::mount::Access;
use airlock_protocol::{
    control::Refusal,
    files::{Hook, Paths, Provided, Provider},
    spec::{Mount, Spec, Tmpfs, Workspace},
    state::Placeholder,
};
use rustix::{
    fs::{CWD, FileType, Mode, OFlags, ResolveFlags},
    io::Errno,
};
use std::{
    fs,
    os::fd::{AsRawFd, OwnedFd},
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
    /// Where what is written goes.
    pub writes: Writes,
    /// Whether it is a directory or a file.
    pub kind: Kind,
    /// Its owner on the host.
    pub owner: (u32, u32),
    /// How its owners appear inside.
    pub shown_as: ShownAs,
    /// What below it is covered, hidden and not to be written.
    pub found: Found,
    /// What is to stand for protected paths that are not there.
    pub placeholders: Vec<Placeholder>,
}

/// Where what is written to a bind goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Writes {
    /// To the host.
    Host,
    /// To a copy on the sandbox's disk.
    Copy,
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

impl Bind {
    /// Whether the program inside can change files of the host through it.
    pub fn reaches_host(&self) -> bool {
        self.access == Access::ReadWrite && self.writes == Writes::Host
    }
}

/// Opens and checks everything of the host that the spec wants inside.
pub fn binds(spec: &Spec, caller: &Caller, home: &Path) -> Result<Vec<Bind>, Refusal> {
    let refused = Refused { homes: homes(caller), airlock: home.to_owned() };
    let mut binds = Vec::new();
    if let Some(path) = spec.workspace.path() {
        let read_only = matches!(spec.workspace, Workspace::Ro { .. });
        let writes = match spec.workspace {
            Workspace::Cow { .. } => Writes::Copy,
            _ => Writes::Host,
        };
        let mount = Mount { source: path.clone(), target: path.clone(), read_only };
        let lists = lists(&spec.paths)?;
        binds.push(bind(&mount, writes, Some(&lists), &refused)?);
    }
    for mount in &spec.mounts {
        binds.push(bind(mount, Writes::Host, None, &refused)?);
    }
    Ok(binds)
}

/// Checks a directory of the host that is to be a sandbox's root; gives its real path.
pub fn rootfs(path: &Path, caller: &Caller, home: &Path) -> Result<PathBuf, Refusal> {
    let source = open_source(path, "root file system")?;
    let host = real_path(&source, path)?;
    let refused = Refused { homes: homes(caller), airlock: home.to_owned() };
    let what = format!("{} cannot be a root file system", host.display());
    if let Some(why) = refused.why(&host) {
        return Err(refusal(125, &what, Some(&why), Some("unpack one into a directory of its own")));
    }
    let stat = rustix::fs::fstat(&source).map_err(|err| refusal(125, &what, Some(&err.to_string()), None))?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory => Ok(host),
        _ => Err(refusal(125, &what, Some("it is not a directory"), None)),
    }
}

/// A programmable mount whose directories of the host were checked and opened.
#[derive(Debug)]
pub struct Served {
    /// Where it appears.
    pub target: PathBuf,
    /// What serves it.
    pub provider: Provider,
    /// Its directories of the host, in the order in which they stand in `provider`.
    pub sources: Vec<Source>,
    /// What is refused or told there.
    pub hooks: Vec<Hook>,
}

/// Opens and checks a further host path for a sandbox that runs.
pub fn further_bind(mount: &Mount, caller: &Caller, home: &Path) -> Result<Bind, Refusal> {
    let refused = Refused { homes: homes(caller), airlock: home.to_owned() };
    bind(mount, Writes::Host, None, &refused)
}

/// Opens and checks what programmable mounts show of the host.
pub fn served(wanted: &[Provided], caller: &Caller, home: &Path) -> Result<Vec<Served>, Refusal> {
    if !wanted.is_empty() {
        check_device()?;
    }
    let refused = Refused { homes: homes(caller), airlock: home.to_owned() };
    let one = |provided: &Provided| {
        check_target(&provided.target)?;
        let mut sources = Vec::new();
        collect_sources(&provided.provider, &refused, &mut sources)?;
        let Provided { target, provider, hooks } = provided.clone();
        Ok(Served { target, provider, sources, hooks })
    };
    wanted.iter().map(one).collect()
}

/// Whatever lies below a programmable mount would have to be made in it before anybody serves it.
pub fn refuse_below_served(spec: &Spec) -> Result<(), Refusal> {
    let others = spec.mounts.iter().map(|mount| &mount.target);
    let others = others.chain(spec.tmpfs.iter().map(|tmpfs| &tmpfs.target));
    let others = others.chain(spec.volumes.iter().map(|volume| &volume.target));
    let others: Vec<&PathBuf> = others.chain(spec.workspace.path()).collect();
    for (index, provided) in spec.provided.iter().enumerate() {
        let mut later = spec.provided.iter().skip(index + 1).map(|other| &other.target);
        let is_near =
            |other: &&PathBuf| other.starts_with(&provided.target) || provided.target.starts_with(other);
        let below = others.iter().copied().find(|other| other.starts_with(&provided.target));
        if let Some(other) = below.or_else(|| later.find(is_near)) {
            let (other, own) = (other.display(), provided.target.display());
            let what = format!("nothing can be mounted at {other}");
            let why = format!("{own} is a programmable mount, and one is a part of the other");
            let fix = "serve both by a router (docs/mounts.md), or choose another path inside";
            return Err(refusal(125, &what, Some(&why), Some(fix)));
        }
    }
    Ok(())
}

/// Programmable mounts need the kernel's device.
fn check_device() -> Result<(), Refusal> {
    let Err(err) = airlock_linux::fuse::open_device() else { return Ok(()) };
    let fix = match err.kind() {
        std::io::ErrorKind::PermissionDenied => "sudo chmod 666 /dev/fuse (as most distributions have it)",
        _ => "sudo modprobe fuse, or a kernel with FUSE",
    };
    let why = format!("/dev/fuse cannot be opened: {}", super::chain(&err));
    Err(refusal(5, "programmable mounts are not possible on this host", Some(&why), Some(fix)))
}

fn collect_sources(provider: &Provider, refused: &Refused, found: &mut Vec<Source>) -> Result<(), Refusal> {
    // The wire bounds how deep this can be.
    match provider {
        Provider::Memory { .. } => Ok(()),
        Provider::Real { source } => {
            found.push(served_directory(source, refused)?);
            Ok(())
        }
        Provider::Readonly { of } => collect_sources(of, refused, found),
        Provider::Overlay { lower, upper } => {
            collect_sources(lower, refused, found)?;
            collect_sources(upper, refused, found)
        }
        Provider::Router { routes } => {
            routes.iter().try_for_each(|route| collect_sources(&route.provider, refused, found))
        }
    }
}

fn served_directory(path: &Path, refused: &Refused) -> Result<Source, Refusal> {
    let directory = open_source(path, "mount source")?;
    let host = real_path(&directory, path)?;
    let what = format!("{} cannot be a mount source", host.display());
    if let Some(why) = refused.why(&host) {
        let fix = "mount only the directory the program needs";
        return Err(refusal(125, &what, Some(&why), Some(fix)));
    }
    let stat =
        rustix::fs::fstat(&directory).map_err(|err| refusal(125, &what, Some(&err.to_string()), None))?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
        return Err(refusal(125, &what, Some("only directories can be served"), Some("mount it as SRC:DST")));
    }
    Ok(Source { directory, owner: (stat.st_uid, stat.st_gid) })
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

struct Refused {
    homes: Vec<PathBuf>,
    airlock: PathBuf,
}

/// `lists` are those of the workspace; other paths of the host have none.
fn bind(mount: &Mount, writes: Writes, lists: Option<&Lists>, refused: &Refused) -> Result<Bind, Refusal> {
    let what = if lists.is_some() { "workspace" } else { "mount source" };
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
    let found = match kind {
        Kind::Directory => {
            // Sockets cannot be connected to through an overlay.
            let is_direct = writes == Writes::Host;
            let protected = lists.filter(|_| is_direct && access == Access::ReadWrite);
            search::search(&source, &host, Wish { sockets: is_direct, hidden: lists, protected })?
        }
        Kind::File => Found::default(),
    };
    let placeholders = match lists.filter(|_| writes == Writes::Host && access == Access::ReadWrite) {
        Some(lists) => placeholder::wanted(&source, &found, lists),
        None => Vec::new(),
    };
    Ok(Bind {
        source,
        host,
        target: mount.target.clone(),
        access,
        writes,
        kind,
        owner: (stat.st_uid, stat.st_gid),
        shown_as: if is_of_volumes(stat.st_uid) { ShownAs::Volume } else { ShownAs::User },
        found,
        placeholders,
    })
}

/// Which paths of the workspace are protected or hidden.
pub fn lists(paths: &Paths) -> Result<Lists, Refusal> {
    Lists::new(paths).map_err(|err| {
        let fix = "write globs from the workspace, such as \"deploy/**\" or \"*.secret\"";
        refusal(
            2,
            "the lists of protected and hidden paths cannot be read",
            Some(&super::chain(&err)),
            Some(fix),
        )
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
        // What a build made itself, for a secret that is to be nowhere but in memory.
        let below = path.strip_prefix("/dev/shm").ok().and_then(|below| below.to_str());
        if below.is_some_and(|below| below.starts_with("airlock-build-")) {
            return None;
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
}
