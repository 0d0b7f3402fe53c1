//! What there is on this host. Everything here is read or tried; what it means is decided elsewhere.

use crate::{
    plan::ids::{self, Caller},
    store::Store,
};
use airlock_linux::{
    cgroup::{self, Cannot, Controller, Hierarchy, Reason, UserManager, Version},
    fence::{Applied, Fence},
    idmap,
    probe::{
        devices::Devices,
        nesting::Nesting,
        place::Place,
        programs::Program,
        switches::Switches,
        trial::{self, Trial, Wanted},
    },
};
use airlock_protocol::{SandboxId, guest::User};
use std::{
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

/// Who asks, and from where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Asker {
    /// The state directory, whether or not it is there.
    pub home: PathBuf,
    /// The file this program was started from.
    pub binary: PathBuf,
    /// `$XDG_RUNTIME_DIR`.
    pub runtime_dir: Option<PathBuf>,
}

/// What was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts {
    /// Whose sandboxes it is about.
    pub person: Person,
    /// The file this program was started from.
    pub binary: PathBuf,
    /// How packages are installed here.
    pub packages: Packages,
    /// Settings of the kernel.
    pub switches: Switches,
    /// `newuidmap`.
    pub newuidmap: Program,
    /// `newgidmap`.
    pub newgidmap: Program,
    /// `mkfs.ext4`.
    pub mkfs: Program,
    /// Device nodes.
    pub devices: Devices,
    /// The second fence.
    pub landlock: Applied,
    /// What is around this process.
    pub nesting: Nesting,
    /// The state directory.
    pub state: StateDirectory,
    /// What can be limited.
    pub limits: Vec<Limit>,
    /// Whether the user's own systemd can be asked for a group.
    pub manager: UserManager,
    /// What a scope that the user's systemd makes for a sandbox could limit; nothing where no scope is needed.
    pub scope: Vec<Controller>,
    /// Whether a limit of memory covers swap.
    pub is_swap_bounded: bool,
    /// What the kernel said to the steps of building a sandbox.
    pub trial: Trial,
}

/// Whose sandboxes it is about.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Person {
    /// Their number.
    pub uid: u32,
    /// Their name, or the number again.
    pub name: String,
    /// Their ranges in `/etc/subuid`.
    pub user_ranges: Vec<(u32, u32)>,
    /// Their ranges in `/etc/subgid`.
    pub group_ranges: Vec<(u32, u32)>,
    /// The first id from which on nobody has ranges.
    pub next_range: u32,
}

/// The state directory.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StateDirectory {
    /// Where it is or will be.
    pub path: PathBuf,
    /// Whether it is there.
    pub exists: bool,
    /// Why it may not be used.
    pub refused: Option<String>,
    /// Its file system, or that of the nearest directory that is there.
    pub place: Place,
}

/// Something a control group can limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limit {
    /// What.
    pub controller: Controller,
    /// Why it cannot be limited here.
    pub cannot: Option<Cannot>,
}

/// How packages are installed on this host.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Packages {
    /// Debian, Ubuntu.
    Apt,
    /// Fedora, Red Hat.
    Dnf,
    /// SUSE.
    Zypper,
    /// Arch.
    Pacman,
    /// Alpine.
    Apk,
    /// Something else.
    #[default]
    Unknown,
}

/// Where the first ranges begin, shadow's `SUB_UID_MIN`.
const FIRST_RANGE: u32 = 100_000;
const CONTROLLERS: [Controller; 4] =
    [Controller::Memory, Controller::Pids, Controller::Cpu, Controller::Freezer];
/// By what a keeper is put into a scope.
const SYSTEMD_RUN: &str = "/usr/bin/systemd-run";
/// Directories of the host whose file systems must be able to show shifted ids.
const SHOWN: [&str; 4] = ["/usr", "/etc", "/var", "/opt"];

impl Facts {
    /// Looks at this host as this process, and tries most of a sandbox. The process must have one thread.
    #[must_use]
    pub fn gather(asker: &Asker) -> Facts {
        let caller = Caller::current();
        let facts = Facts::read(asker, caller.uid);
        let user = User { uid: 0, gid: 0, groups: Vec::new() };
        let Ok(ids) = ids::map(&caller, ids::shifted_base(&SandboxId::from_random([0; 6])), &user) else {
            return facts;
        };
        let mut shown: Vec<PathBuf> =
            SHOWN.iter().map(PathBuf::from).filter(|path| is_directory(path)).collect();
        shown.extend(std::env::current_dir());
        let trial = trial::run(&Wanted { place: &nearest(&asker.home), ids: &ids, shown: &shown });
        Facts { trial, ..facts }
    }

    /// Looks at this host for somebody, by files only. Nothing is tried.
    #[must_use]
    pub fn read(asker: &Asker, uid: u32) -> Facts {
        let hierarchies = hierarchies();
        let manager = cgroup::user_manager(asker.runtime_dir.as_deref());
        Facts {
            person: Person::read(uid),
            binary: asker.binary.clone(),
            packages: Packages::of(&fs::read_to_string("/etc/os-release").unwrap_or_default()),
            switches: Switches::read(),
            newuidmap: Program::find("newuidmap"),
            newgidmap: Program::find("newgidmap"),
            mkfs: Program::find("mkfs.ext4"),
            devices: Devices::read(),
            landlock: Fence::prepare().offers(),
            nesting: Nesting::read(),
            state: StateDirectory::read(&asker.home),
            limits: limits(uid, &hierarchies),
            manager,
            scope: scope(uid, manager, &hierarchies),
            is_swap_bounded: hierarchies.iter().all(bounds_swap),
            trial: Trial::default(),
        }
    }

    /// Whether it is about root of this host.
    #[must_use]
    pub fn is_root(&self) -> bool {
        self.person.uid == 0
    }
}

impl Person {
    fn read(uid: u32) -> Person {
        let file = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let name = name_of(&file("/etc/passwd"), uid).unwrap_or_else(|| uid.to_string());
        let (users, groups) = (file("/etc/subuid"), file("/etc/subgid"));
        Person {
            uid,
            user_ranges: idmap::subordinate(&users, &name, uid),
            group_ranges: idmap::subordinate(&groups, &name, uid),
            next_range: end_of_ranges(&users).max(end_of_ranges(&groups)),
            name,
        }
    }
}

impl StateDirectory {
    fn read(path: &Path) -> StateDirectory {
        let exists = path.symlink_metadata().is_ok();
        let nearest = nearest(path);
        StateDirectory {
            path: path.to_owned(),
            exists,
            refused: if exists { refused(path) } else { unmakeable(&nearest) },
            place: Place::of(&nearest).unwrap_or_default(),
        }
    }
}

impl Packages {
    /// From the text of os-release(5).
    #[must_use]
    pub fn of(text: &str) -> Packages {
        let value = |key: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
            line.unwrap_or_default().trim_matches('"').to_owned()
        };
        let (id, like) = (value("ID"), value("ID_LIKE"));
        let names = std::iter::once(id.as_str()).chain(like.split(' '));
        let known = names.filter_map(|name| match name {
            "debian" | "ubuntu" => Some(Packages::Apt),
            "fedora" | "rhel" | "centos" => Some(Packages::Dnf),
            "suse" | "opensuse" | "sles" => Some(Packages::Zypper),
            "arch" => Some(Packages::Pacman),
            "alpine" => Some(Packages::Apk),
            _ => None,
        });
        known.into_iter().next().unwrap_or_default()
    }
}

/// What the store itself would say, without making anything.
fn refused(home: &Path) -> Option<String> {
    if home.join("sandboxes").is_dir() {
        return Store::open(home).err().map(|err| crate::plan::chain(&err));
    }
    let meta = match fs::metadata(home) {
        Ok(meta) => meta,
        Err(err) => return Some(format!("could not look at {}: {err}", home.display())),
    };
    let me = rustix::process::geteuid().as_raw();
    let why = match (meta.is_dir(), meta.uid() == me, meta.mode() & 0o077) {
        (false, _, _) => "it is not a directory".to_owned(),
        (_, false, _) => format!("it belongs to user {}, and you are user {me}", meta.uid()),
        (_, _, 0) => return None,
        _ => format!("others may enter it (mode {:o})", meta.mode() & 0o7777),
    };
    Some(format!("the state directory {} is not safe to use: {why}", home.display()))
}

fn unmakeable(nearest: &Path) -> Option<String> {
    let flags = rustix::fs::AtFlags::EACCESS;
    let writable = rustix::fs::accessat(rustix::fs::CWD, nearest, rustix::fs::Access::WRITE_OK, flags);
    writable.err().map(|err| format!("it cannot be made in {}: {err}", nearest.display()))
}

fn nearest(path: &Path) -> PathBuf {
    path.ancestors().find(|part| is_directory(part)).unwrap_or(Path::new("/")).to_owned()
}

fn is_directory(path: &Path) -> bool {
    path.is_dir()
}

fn name_of(passwd: &str, uid: u32) -> Option<String> {
    passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)?.parse() == Ok(uid)).then(|| name.to_owned())
    })
}

fn end_of_ranges(text: &str) -> u32 {
    let end = |line: &str| {
        let mut fields = line.split(':').skip(1).map(|field| field.trim().parse::<u32>());
        fields.next()?.ok()?.checked_add(fields.next()?.ok()?)
    };
    text.lines().filter_map(end).max().unwrap_or(0).max(FIRST_RANGE)
}

fn hierarchies() -> Vec<Hierarchy> {
    let read = |path: &str| String::from_utf8_lossy(&fs::read(path).unwrap_or_default()).into_owned();
    cgroup::parse(&read("/proc/self/mountinfo"), &read("/proc/self/cgroup"))
}

/// For this process the kernel's own answer; for somebody else what root has given them, as far as files tell.
fn limits(uid: u32, hierarchies: &[Hierarchy]) -> Vec<Limit> {
    let mine = cgroup::layout().ok().filter(|_| uid == rustix::process::geteuid().as_raw());
    let cannot = |controller: Controller| match &mine {
        Some(layout) => layout.can(controller).err(),
        None => {
            let reason = withheld(uid, controller, hierarchies)?;
            Some(Cannot { controller, reason, uid })
        }
    };
    CONTROLLERS.map(|controller| Limit { controller, cannot: cannot(controller) }).to_vec()
}

/// The controllers systemd has given to the manager of this user, if a keeper would ask it for a scope.
fn scope(uid: u32, manager: UserManager, hierarchies: &[Hierarchy]) -> Vec<Controller> {
    let asks =
        cgroup::layout().is_ok_and(|layout| cgroup::systemd_scope(&layout, manager, "doctor").is_some());
    let v2 = hierarchies.iter().find(|found| found.version == Version::V2);
    let Some(Hierarchy { mount, .. }) = v2.filter(|_| asks && Path::new(SYSTEMD_RUN).exists()) else {
        return Vec::new();
    };
    let group = mount.join(format!("user.slice/user-{uid}.slice/user@{uid}.service/cgroup.controllers"));
    let names = fs::read_to_string(group).unwrap_or_default();
    CONTROLLERS
        .into_iter()
        .filter(|one| names.split_whitespace().any(|name| name == one.to_string()))
        .collect()
}

fn withheld(uid: u32, controller: Controller, hierarchies: &[Hierarchy]) -> Option<Reason> {
    let v1 = hierarchies.iter().find(|found| found.controllers.contains(&controller));
    if let Some(Hierarchy { mount, own, .. }) = v1 {
        let given = fs::metadata(mount.join(format!("airlock.{uid}"))).is_ok_and(|meta| meta.uid() == uid);
        let dir = own.clone().unwrap_or_else(|| mount.clone());
        return (!given).then(|| Reason::NotOurs { dir, mount: mount.clone(), version: Version::V1 });
    }
    let v2 = hierarchies.iter().find(|found| found.version == Version::V2)?;
    let handed_down = Path::new(super::limits::DROP_IN).exists();
    (!handed_down).then(|| Reason::NotHandedDown { dir: v2.mount.clone() })
}

fn bounds_swap(hierarchy: &Hierarchy) -> bool {
    let Some(own) = &hierarchy.own else { return true };
    match hierarchy.version {
        Version::V1 if hierarchy.controllers.contains(&Controller::Memory) => {
            own.join("memory.memsw.limit_in_bytes").exists()
        }
        // Only groups below the root have the files.
        Version::V2 if own.join("memory.max").exists() => own.join("memory.swap.max").exists(),
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_known_by_what_it_is_like() {
        let found = [
            "ID=debian\n",
            "ID=linuxmint\nID_LIKE=\"ubuntu debian\"\n",
            "ID=\"rocky\"\nID_LIKE=\"rhel fedora\"\n",
            "",
        ]
        .map(Packages::of);
        assert_eq!(found, [Packages::Apt, Packages::Apt, Packages::Dnf, Packages::Unknown]);
    }

    #[test]
    fn new_ranges_begin_where_all_others_end() {
        assert_eq!(end_of_ranges("a:100000:65536\nb:165536:65536\nnonsense\n"), 231_072);
        assert_eq!(end_of_ranges(""), 100_000);
    }
}
