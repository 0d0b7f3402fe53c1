//! What this host offers to this process: which hierarchy has which controller, and where in it we may make groups.
//!
//! [`parse`] is pure and total; [`layout`] reads the files and asks the kernel what we may write.
//!
//! ```
//! use airlock_linux::cgroup::{Version, parse};
//! let mounts = "24 20 0:22 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
//! let found = parse(mounts, "0::/user.slice/session-1.scope\n");
//! assert_eq!(found[0].version, Version::V2);
//! assert_eq!(found[0].own.as_deref(), Some("/sys/fs/cgroup/user.slice/session-1.scope".as_ref()));
//! ```

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path, PathBuf};
use std::{fmt, fs, io};

use rustix::fs::{Access, AtFlags, CWD, accessat};

use crate::made_up;

use super::cannot::{Cannot, Reason, delegated_name};

/// What can be limited or done to all processes of a sandbox together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Controller {
    /// Bytes of memory.
    Memory,
    /// Number of processes and threads.
    Pids,
    /// Share of the processors.
    Cpu,
    /// Stopping and resuming everything at once.
    Freezer,
}

/// The two kinds of control groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    /// One hierarchy per controller, cgroups(7) "version 1".
    V1,
    /// One hierarchy for all.
    V2,
}

/// One mounted hierarchy as the two files of `/proc` describe it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hierarchy {
    /// Which kind.
    pub version: Version,
    /// The controllers it has; those of version 2 are not in the two texts and are filled in by [`layout`].
    pub controllers: Vec<Controller>,
    /// Where it is mounted.
    pub mount: PathBuf,
    /// The directory of the group we are in, if it lies below the mount.
    pub own: Option<PathBuf>,
}

/// Where in a hierarchy groups of ours may be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// As `airlock-<id>` in this directory (the group we are in, version 1).
    Beside(PathBuf),
    /// As `<id>` in this directory, which exists (given to us, version 1).
    Given(PathBuf),
    /// As `airlock/<id>` below the root of the version 2 hierarchy.
    Root(PathBuf),
    /// As `airlock-<id>` in this delegated version 2 group, whose processes must first move into a leaf of their own.
    Delegated(PathBuf),
    /// Nowhere.
    Closed(Reason),
}

/// What this host offers to this process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    hierarchies: Vec<(Hierarchy, Place)>,
    /// Controllers that the host has in version 2 but that were not handed down to us.
    withheld: Vec<Controller>,
    uid: u32,
}

impl fmt::Display for Controller {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Memory => "memory",
            Self::Pids => "pids",
            Self::Cpu => "cpu",
            Self::Freezer => "freezing",
        })
    }
}

impl Controller {
    fn from_name(name: &str) -> Option<Self> {
        match name {
            "memory" => Some(Self::Memory),
            "pids" => Some(Self::Pids),
            "cpu" => Some(Self::Cpu),
            "freezer" => Some(Self::Freezer),
            _ => None,
        }
    }
}

impl Layout {
    /// Whether groups with this controller can be made, else why not and the fix.
    ///
    /// # Errors
    /// [`Cannot`] if a limit of this kind would not be enforced.
    pub fn can(&self, controller: Controller) -> Result<(), Cannot> {
        self.place_of(controller).map(|_| ())
    }

    /// Which kind of hierarchy has the controller, whether or not we may use it.
    #[must_use]
    pub fn version_of(&self, controller: Controller) -> Option<Version> {
        self.hierarchy_of(controller).map(|(hierarchy, _)| hierarchy.version)
    }

    /// Whether we are an ordinary user in a version 2 group that systemd has not delegated to us: the user manager can
    /// make a scope that is ours, see [`super::systemd_scope`].
    #[must_use]
    pub fn is_undelegated_session(&self) -> bool {
        let closed = |place: &Place| {
            matches!(
                place,
                Place::Closed(Reason::NotOurs { .. } | Reason::Managed { .. } | Reason::Hidden { .. })
            )
        };
        self.uid != 0 && self.hierarchies.iter().any(|(found, place)| is_useful_v2(found) && closed(place))
    }

    /// The place for groups with this controller and the hierarchy it is in.
    pub(super) fn place_of(&self, controller: Controller) -> Result<(Version, &Place), Cannot> {
        let Some((hierarchy, place)) = self.hierarchy_of(controller) else {
            return Err(self.cannot(controller, self.absent(controller)));
        };
        match place {
            Place::Closed(reason) => Err(self.cannot(controller, reason.clone())),
            open => Ok((hierarchy.version, open)),
        }
    }

    pub(super) fn cannot(&self, controller: Controller, reason: Reason) -> Cannot {
        Cannot { controller, reason, uid: self.uid }
    }

    /// Version 1 first: where a controller is bound to it, version 2 does not have it. Freezing alone is in both, and a
    /// host that mixes them uses version 2 to follow its services, which we do not disturb.
    fn hierarchy_of(&self, controller: Controller) -> Option<&(Hierarchy, Place)> {
        self.hierarchies.iter().find(|(hierarchy, _)| hierarchy.controllers.contains(&controller))
    }

    fn absent(&self, controller: Controller) -> Reason {
        let v2 = self.hierarchies.iter().find(|(hierarchy, _)| hierarchy.version == Version::V2);
        match v2 {
            Some((Hierarchy { own: Some(dir), .. }, _)) if self.withheld.contains(&controller) => {
                Reason::NotHandedDown { dir: dir.clone() }
            }
            _ => Reason::Absent,
        }
    }

    /// Decides where groups may be made, asking `probe` about the directories of each hierarchy.
    pub(super) fn decide(hierarchies: Vec<Hierarchy>, uid: u32, probe: &dyn Probe) -> Self {
        let mut withheld = Vec::new();
        let mut placed: Vec<(Hierarchy, Place)> = hierarchies
            .into_iter()
            .map(|mut hierarchy| match hierarchy.version {
                Version::V1 => {
                    let place = place_v1(&hierarchy, uid, probe);
                    (hierarchy, place)
                }
                Version::V2 => {
                    let place = place_v2(&hierarchy, probe);
                    let offered = probe.controllers(&hierarchy.mount);
                    let here = match &place {
                        Place::Delegated(dir) => probe.controllers(dir),
                        _ => offered.clone(),
                    };
                    withheld = offered.into_iter().filter(|one| !here.contains(one)).collect();
                    hierarchy.controllers = here;
                    hierarchy.controllers.push(Controller::Freezer);
                    (hierarchy, place)
                }
            })
            .collect();
        placed.sort_by_key(|(hierarchy, _)| hierarchy.version == Version::V2);
        Self { hierarchies: placed, withheld, uid }
    }
}

/// What the decision needs to know about directories; the kernel answers, or a table in a test.
pub(super) trait Probe {
    /// `Ok` if we may write to this file or make directories in this directory, else why the kernel says no.
    fn may_write(&self, path: &Path) -> rustix::io::Result<()>;
    /// Whether this version 2 directory is the root of the whole hierarchy (which alone may hold both processes and groups).
    fn is_hierarchy_root(&self, mount: &Path) -> bool;
    /// Whether systemd has marked the group as delegated, systemd.io/CGROUP_DELEGATION.
    fn is_marked_delegated(&self, dir: &Path) -> bool;
    /// The controllers of a version 2 group.
    fn controllers(&self, dir: &Path) -> Vec<Controller>;
}

/// Reads what this host offers to this process.
///
/// # Errors
/// If `/proc/self/mountinfo` or `/proc/self/cgroup` cannot be read.
pub fn layout() -> io::Result<Layout> {
    let text = |path: &str| Ok::<_, io::Error>(String::from_utf8_lossy(&made_up::read(path)?).into_owned());
    let (mountinfo, cgroup) = (text("/proc/self/mountinfo")?, text("/proc/self/cgroup")?);
    Ok(Layout::decide(parse(&mountinfo, &cgroup), rustix::process::geteuid().as_raw(), &Kernel))
}

/// The hierarchies in `/proc/self/mountinfo` that have a controller we use, with the place `/proc/self/cgroup` gives us in them.
/// Lines that make no sense are passed over.
#[must_use]
pub fn parse(mountinfo: &str, cgroup: &str) -> Vec<Hierarchy> {
    let mut found: Vec<Hierarchy> = Vec::new();
    for mounted in mountinfo.lines().filter_map(parse_mount) {
        let Some(own) = own_path(cgroup, &mounted) else { continue };
        let hierarchy = Hierarchy {
            version: mounted.version,
            own: below_mount(&mounted, own),
            controllers: mounted.controllers,
            mount: mounted.point,
        };
        let same = found
            .iter_mut()
            .find(|one| one.version == hierarchy.version && one.controllers == hierarchy.controllers);
        match same {
            // The same hierarchy once more: the mount in which we see ourselves is the one to use.
            Some(earlier) if earlier.own.is_none() => *earlier = hierarchy,
            Some(_) => {}
            None => found.push(hierarchy),
        }
    }
    found
}

struct Mounted {
    version: Version,
    controllers: Vec<Controller>,
    root: PathBuf,
    point: PathBuf,
}

/// One line of proc_pid_mountinfo(5): `id parent dev root point options tags… - type source super`.
fn parse_mount(line: &str) -> Option<Mounted> {
    let (before, after) = line.split_once(" - ")?;
    let mut before = before.split(' ').skip(3);
    let (root, point) = (before.next()?, before.next()?);
    let mut after = after.split(' ');
    let (kind, _source, options) = (after.next()?, after.next()?, after.next().unwrap_or_default());
    let controllers: Vec<Controller> = options.split(',').filter_map(Controller::from_name).collect();
    let (version, controllers) = match kind {
        "cgroup" if !controllers.is_empty() => (Version::V1, controllers),
        "cgroup2" => (Version::V2, Vec::new()),
        _ => return None,
    };
    Some(Mounted { version, controllers, root: unescape(root), point: unescape(point) })
}

/// Blanks, tabs, newlines and backslashes are written as three octal digits.
fn unescape(field: &str) -> PathBuf {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field.as_bytes();
    while let Some((&first, tail)) = rest.split_first() {
        let octal = tail.get(..3).filter(|_| first == b'\\').and_then(octal_byte);
        bytes.push(octal.unwrap_or(first));
        rest = if octal.is_some() { tail.get(3..).unwrap_or_default() } else { tail };
    }
    PathBuf::from(OsString::from_vec(bytes))
}

fn octal_byte(digits: &[u8]) -> Option<u8> {
    u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok()
}

/// The path `/proc/self/cgroup` names for this hierarchy (`0::/path` or `4:memory:/path`).
fn own_path<'a>(cgroup: &'a str, mounted: &Mounted) -> Option<&'a str> {
    cgroup.lines().find_map(|line| {
        let (_number, rest) = line.split_once(':')?;
        let (names, path) = rest.split_once(':')?;
        let is_it = match mounted.version {
            Version::V2 => names.is_empty(),
            Version::V1 => names
                .split(',')
                .filter_map(Controller::from_name)
                .any(|one| mounted.controllers.contains(&one)),
        };
        is_it.then_some(path)
    })
}

/// A path with `..` lies above the root of our control group namespace.
fn below_mount(mounted: &Mounted, own: &str) -> Option<PathBuf> {
    let below = Path::new(own).strip_prefix(&mounted.root).ok()?;
    let is_plain = below.components().all(|part| matches!(part, Component::Normal(_)));
    is_plain
        .then(|| if below.as_os_str().is_empty() { mounted.point.clone() } else { mounted.point.join(below) })
}

fn is_useful_v2(hierarchy: &Hierarchy) -> bool {
    hierarchy.version == Version::V2 && hierarchy.controllers.iter().any(|one| *one != Controller::Freezer)
}

fn place_v1(hierarchy: &Hierarchy, uid: u32, probe: &dyn Probe) -> Place {
    let mount = &hierarchy.mount;
    let Some(own) = &hierarchy.own else {
        return Place::Closed(Reason::Hidden { mount: mount.clone() });
    };
    // Below the group we are in: whatever bounds us bounds the sandboxes too.
    let refused = match probe.may_write(own) {
        Ok(()) => return Place::Beside(own.clone()),
        Err(refused) => refused,
    };
    for given in [own.join("airlock"), mount.join(delegated_name(uid))] {
        if probe.may_write(&given).is_ok() {
            return Place::Given(given);
        }
    }
    Place::Closed(refusal(refused, hierarchy, own))
}

fn place_v2(hierarchy: &Hierarchy, probe: &dyn Probe) -> Place {
    let mount = &hierarchy.mount;
    if probe.is_hierarchy_root(mount) && probe.may_write(mount).is_ok() {
        return Place::Root(mount.clone());
    }
    let Some(own) = &hierarchy.own else {
        return Place::Closed(Reason::Hidden { mount: mount.clone() });
    };
    // A keeper before us, or we ourselves, have already moved into the leaf.
    let base = match own.parent() {
        Some(parent) if own.file_name() == Some(OsStr::new(super::make::LEAF)) && own != mount => parent,
        _ => own,
    };
    let needed = [base.to_path_buf(), base.join("cgroup.procs"), base.join("cgroup.subtree_control")];
    if let Some(refused) = needed.iter().find_map(|path| probe.may_write(path).err()) {
        return Place::Closed(refusal(refused, hierarchy, base));
    }
    if is_systemd_unit(base) && !is_own_scope(base) && !probe.is_marked_delegated(base) {
        return Place::Closed(Reason::Managed { dir: base.to_path_buf() });
    }
    Place::Delegated(base.to_path_buf())
}

fn refusal(refused: rustix::io::Errno, hierarchy: &Hierarchy, dir: &Path) -> Reason {
    let mount = hierarchy.mount.clone();
    if refused == rustix::io::Errno::ROFS {
        return Reason::ReadOnly { mount };
    }
    Reason::NotOurs { dir: dir.to_path_buf(), mount, version: hierarchy.version }
}

fn is_systemd_unit(dir: &Path) -> bool {
    let suffix = dir.extension().and_then(OsStr::to_str);
    matches!(suffix, Some("scope" | "service" | "slice"))
}

/// The scope we asked for is ours even where an older systemd sets no mark.
fn is_own_scope(dir: &Path) -> bool {
    let name = dir.file_name().and_then(OsStr::to_str).unwrap_or_default();
    name.starts_with("airlock-") && name.ends_with(".scope")
}

/// Asks the running kernel.
pub(super) struct Kernel;

impl Probe for Kernel {
    fn may_write(&self, path: &Path) -> rustix::io::Result<()> {
        accessat(CWD, path, Access::WRITE_OK, AtFlags::EACCESS)
    }

    fn is_hierarchy_root(&self, mount: &Path) -> bool {
        accessat(CWD, mount.join("cgroup.type"), Access::EXISTS, AtFlags::empty())
            == Err(rustix::io::Errno::NOENT)
    }

    fn is_marked_delegated(&self, dir: &Path) -> bool {
        ["user.delegate", "trusted.delegate"].iter().any(|name| {
            let mut value = [0_u8; 8];
            rustix::fs::getxattr(dir, *name, &mut value) == Ok(1) && value.first() == Some(&b'1')
        })
    }

    fn controllers(&self, dir: &Path) -> Vec<Controller> {
        let text = fs::read_to_string(dir.join("cgroup.controllers")).unwrap_or_default();
        text.split_whitespace().filter_map(Controller::from_name).collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::cgroup::{UserManager, systemd_scope};

    const V2_MOUNT: &str = "30 23 0:26 / /sys/fs/cgroup rw,nosuid,nodev,noexec,relatime shared:9 - cgroup2 cgroup2 rw,nsdelegate,memory_recursiveprot\n";
    const V2_SESSION: &str = "0::/user.slice/user-1000.slice/session-3.scope\n";
    const HYBRID_MOUNTS: &str = "\
        31 23 0:28 / /sys/fs/cgroup ro,nosuid - tmpfs tmpfs ro,mode=755\n\
        32 31 0:29 / /sys/fs/cgroup/unified rw shared:10 - cgroup2 cgroup2 rw,nsdelegate\n\
        33 31 0:30 / /sys/fs/cgroup/systemd rw shared:11 - cgroup cgroup rw,xattr,name=systemd\n\
        34 31 0:31 / /sys/fs/cgroup/cpu,cpuacct rw shared:15 - cgroup cgroup rw,cpu,cpuacct\n\
        35 31 0:32 / /sys/fs/cgroup/memory rw shared:16 - cgroup cgroup rw,memory\n\
        36 31 0:33 / /sys/fs/cgroup/pids rw shared:17 - cgroup cgroup rw,pids\n\
        37 31 0:34 / /sys/fs/cgroup/freezer rw shared:18 - cgroup cgroup rw,freezer\n";
    const HYBRID_OWN: &str = "\
        8:pids:/user.slice/user-1000.slice/session-2.scope\n\
        7:freezer:/\n\
        6:cpu,cpuacct:/user.slice\n\
        5:memory:/user.slice/user-1000.slice/session-2.scope\n\
        1:name=systemd:/user.slice/user-1000.slice/session-2.scope\n\
        0::/user.slice/user-1000.slice/session-2.scope\n";
    const DOCKER_V1_MOUNTS: &str = "\
        700 690 0:29 /docker/abc /sys/fs/cgroup/memory ro,nosuid master:16 - cgroup cgroup rw,memory\n\
        701 690 0:30 /docker/abc /sys/fs/cgroup/pids ro,nosuid master:17 - cgroup cgroup rw,pids\n";
    const DOCKER_V1_OWN: &str = "5:memory:/docker/abc\n4:pids:/docker/abc/inner\n0::/\n";

    /// A host on which these paths are writable, the others not.
    struct Host {
        writable: &'static [&'static str],
        refusal: rustix::io::Errno,
        is_root_mount: bool,
        is_marked: bool,
        handed_down: &'static [Controller],
    }

    const CLOSED: Host = Host {
        writable: &[],
        refusal: rustix::io::Errno::ACCESS,
        is_root_mount: true,
        is_marked: false,
        handed_down: &[Controller::Cpu, Controller::Memory, Controller::Pids],
    };

    impl Probe for Host {
        fn may_write(&self, path: &Path) -> rustix::io::Result<()> {
            let dir = if path.to_string_lossy().contains("/cgroup.") { path.parent().unwrap() } else { path };
            let is_writable = self.writable.iter().any(|one| Path::new(one) == dir);
            if is_writable { Ok(()) } else { Err(self.refusal) }
        }
        fn is_hierarchy_root(&self, _mount: &Path) -> bool {
            self.is_root_mount
        }
        fn is_marked_delegated(&self, _dir: &Path) -> bool {
            self.is_marked
        }
        fn controllers(&self, dir: &Path) -> Vec<Controller> {
            if dir == Path::new("/sys/fs/cgroup") {
                CLOSED.handed_down.to_vec()
            } else {
                self.handed_down.to_vec()
            }
        }
    }

    fn place(layout: &Layout, controller: Controller) -> Result<Place, Reason> {
        layout.place_of(controller).map(|(_, place)| place.clone()).map_err(|cannot| cannot.reason)
    }

    #[test]
    fn root_on_a_pure_version_2_host_uses_the_root_of_the_hierarchy() {
        let host = Host { writable: &["/sys/fs/cgroup"], ..CLOSED };

        let layout = Layout::decide(parse(V2_MOUNT, V2_SESSION), 0, &host);

        assert_eq!(place(&layout, Controller::Memory), Ok(Place::Root("/sys/fs/cgroup".into())));
        assert_eq!(layout.version_of(Controller::Freezer), Some(Version::V2));
        assert_eq!(systemd_scope(&layout, UserManager::Running, "7f"), None);
    }

    #[test]
    fn a_login_session_asks_the_user_manager_for_a_scope() {
        let layout = Layout::decide(parse(V2_MOUNT, V2_SESSION), 1000, &CLOSED);

        let refused = layout.can(Controller::Memory).unwrap_err();
        let argv = systemd_scope(&layout, UserManager::Running, "7f").unwrap();

        assert_eq!(
            refused.to_string(),
            "cannot limit memory here: /sys/fs/cgroup/user.slice/user-1000.slice/session-3.scope does not belong to us"
        );
        assert_eq!(refused.fix(), "systemd-run --user --scope -p Delegate=yes airlock …");
        assert_eq!(
            argv.join(" "),
            "systemd-run --user --scope --quiet --collect -p Delegate=yes --unit=airlock-7f --"
        );
        assert_eq!(systemd_scope(&layout, UserManager::Absent, "7f"), None);
    }

    const TERMINAL: &str = "/sys/fs/cgroup/user.slice/user-1000.slice/user@1000.service/app.slice/term.scope";

    fn in_terminal(host: &Host) -> Layout {
        let own = format!("0::{}\n", TERMINAL.strip_prefix("/sys/fs/cgroup").unwrap());
        Layout::decide(parse(V2_MOUNT, &own), 1000, host)
    }

    #[test]
    fn a_scope_that_is_writable_but_not_delegated_stays_with_systemd() {
        let layout = in_terminal(&Host { writable: &[TERMINAL], ..CLOSED });

        assert_eq!(place(&layout, Controller::Pids), Err(Reason::Managed { dir: TERMINAL.into() }));
        assert!(systemd_scope(&layout, UserManager::Running, "7f").is_some());
    }

    #[test]
    fn a_delegated_scope_is_used_and_a_withheld_controller_named() {
        let host = Host {
            writable: &[TERMINAL],
            is_marked: true,
            handed_down: &[Controller::Memory, Controller::Pids],
            ..CLOSED
        };

        let layout = in_terminal(&host);

        assert_eq!(place(&layout, Controller::Memory), Ok(Place::Delegated(TERMINAL.into())));
        assert_eq!(place(&layout, Controller::Cpu), Err(Reason::NotHandedDown { dir: TERMINAL.into() }));
        assert_eq!(systemd_scope(&layout, UserManager::Running, "7f"), None);
    }

    #[test]
    fn our_own_scope_needs_no_mark_and_its_leaf_stands_for_it() {
        let base = "/sys/fs/cgroup/user.slice/airlock-7f.scope";
        let host = Host { writable: &["/sys/fs/cgroup/user.slice/airlock-7f.scope"], ..CLOSED };

        for own in ["0::/user.slice/airlock-7f.scope\n", "0::/user.slice/airlock-7f.scope/airlock-keeper\n"] {
            let layout = Layout::decide(parse(V2_MOUNT, own), 1000, &host);

            assert_eq!(place(&layout, Controller::Pids), Ok(Place::Delegated(base.into())));
        }
    }

    #[test]
    fn on_a_hybrid_host_each_controller_is_found_where_it_is() {
        let host = Host {
            writable: &["/sys/fs/cgroup/freezer", "/sys/fs/cgroup/memory/airlock.1000"],
            handed_down: &[],
            ..CLOSED
        };

        let layout = Layout::decide(parse(HYBRID_MOUNTS, HYBRID_OWN), 1000, &host);

        assert_eq!(layout.version_of(Controller::Memory), Some(Version::V1));
        assert_eq!(
            place(&layout, Controller::Memory),
            Ok(Place::Given("/sys/fs/cgroup/memory/airlock.1000".into()))
        );
        assert_eq!(place(&layout, Controller::Freezer), Ok(Place::Beside("/sys/fs/cgroup/freezer".into())));
        let fix = layout.can(Controller::Cpu).unwrap_err().fix();
        assert_eq!(fix, "sudo install -d -o 1000 /sys/fs/cgroup/cpu,cpuacct/airlock.1000");
        assert_eq!(systemd_scope(&layout, UserManager::Running, "7f"), None);
    }

    #[test]
    fn a_container_sees_its_own_part_and_that_it_is_read_only() {
        let host = Host { refusal: rustix::io::Errno::ROFS, ..CLOSED };

        let found = parse(DOCKER_V1_MOUNTS, DOCKER_V1_OWN);
        let layout = Layout::decide(found.clone(), 0, &host);

        assert_eq!(
            found.iter().map(|one| one.own.clone()).collect::<Vec<_>>(),
            [Some("/sys/fs/cgroup/memory".into()), Some("/sys/fs/cgroup/pids/inner".into())]
        );
        let refused = layout.can(Controller::Memory).unwrap_err();
        assert_eq!(refused.fix(), "mount -o remount,rw /sys/fs/cgroup/memory");
        assert_eq!(place(&layout, Controller::Cpu), Err(Reason::Absent));
    }

    #[test]
    fn a_group_above_our_namespace_is_hidden() {
        let layout = Layout::decide(parse(V2_MOUNT, "0::/../other\n"), 1000, &CLOSED);

        assert_eq!(
            place(&layout, Controller::Memory),
            Err(Reason::Hidden { mount: "/sys/fs/cgroup".into() })
        );
    }

    #[test]
    fn a_mount_point_with_a_blank_is_read_right() {
        let found = parse("1 2 0:3 / /c\\040d rw - cgroup cgroup rw,memory\n", "1:memory:/\n");

        assert_eq!(found.first().map(|one| one.mount.clone()), Some("/c d".into()));
    }

    proptest! {
        #[test]
        fn any_text_is_parsed_without_a_panic(mountinfo in ".*", cgroup in ".*") {
            let _ = parse(&mountinfo, &cgroup);
        }

        #[test]
        fn lines_of_the_right_shape_never_lead_out_of_the_mount(root in "/[a-z./]{0,12}", point in "/[a-z\\\\0-9]{0,12}", own in "/[a-z./]{0,20}") {
            let mountinfo = format!("1 2 0:3 {root} {point} rw - cgroup cgroup rw,memory\n2 2 0:4 {root} {point} rw - cgroup2 none rw\n");
            for found in parse(&mountinfo, &format!("3:memory:{own}\n0::{own}\n")) {
                let Some(own) = found.own else { continue };
                prop_assert!(own.starts_with(&found.mount));
                prop_assert!(own.components().all(|part| part != Component::ParentDir));
            }
        }
    }
}
