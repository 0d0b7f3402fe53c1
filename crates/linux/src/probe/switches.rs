//! Settings of the kernel that decide whether sandboxes work. Each is a small file; a file that is not there is `None`.

use std::fs;

/// What the files say.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Switches {
    /// `uname -r`.
    pub release: String,
    /// `user.max_user_namespaces`: 0 switches them off.
    pub max_user_namespaces: Option<u64>,
    /// Other kinds of namespaces of which none may be made (`user.max_net_namespaces` and its like are 0).
    pub forbidden_namespaces: Vec<String>,
    /// `kernel.unprivileged_userns_clone`, a switch of Debian's older kernels and of Arch.
    pub unprivileged_userns_clone: Option<u64>,
    /// `kernel.apparmor_restrict_unprivileged_userns`, Ubuntu's switch.
    pub apparmor_restricts: Option<u64>,
    /// The AppArmor profile this process runs under, `unconfined` for none.
    pub apparmor_label: Option<String>,
    /// `vm.memfd_noexec`.
    pub memfd_noexec: Option<u64>,
    /// `kernel.core_pattern`.
    pub core_pattern: Option<String>,
    /// What is mounted over a part of `/proc`, which makes the kernel refuse a fresh one.
    pub proc_masks: Vec<String>,
    /// What is mounted over a part of `/sys`.
    pub sys_masks: Vec<String>,
    /// Whether `/proc/sys` is read-only.
    pub is_proc_sys_read_only: bool,
    /// Whether this process can gain no power by executing a program.
    pub has_no_new_privs: bool,
    /// Whether the host swaps.
    pub has_swap: bool,
}

/// The kinds of namespaces beside the user namespace that a sandbox has.
const KINDS: [&str; 7] = ["cgroup", "ipc", "mnt", "net", "pid", "time", "uts"];
/// Directories the kernel keeps empty for a mount: what is mounted there hides nothing.
const EMPTY: [&str; 3] = ["/proc/sys/fs/binfmt_misc", "/proc/fs/nfsd", "/proc/openprom"];

impl Switches {
    /// Reads them: a dozen small files, nothing else.
    #[must_use]
    pub fn read() -> Switches {
        let mounts =
            String::from_utf8_lossy(&fs::read("/proc/self/mountinfo").unwrap_or_default()).into_owned();
        let is_zero = |kind: &&&str| number(&format!("/proc/sys/user/max_{kind}_namespaces")) == Some(0);
        let label = text("/proc/self/attr/apparmor/current").or_else(|| text("/proc/self/attr/current"));
        Switches {
            release: text("/proc/sys/kernel/osrelease").unwrap_or_default(),
            max_user_namespaces: number("/proc/sys/user/max_user_namespaces"),
            forbidden_namespaces: KINDS.iter().filter(is_zero).map(|kind| (*kind).to_owned()).collect(),
            unprivileged_userns_clone: number("/proc/sys/kernel/unprivileged_userns_clone"),
            apparmor_restricts: number("/proc/sys/kernel/apparmor_restrict_unprivileged_userns"),
            apparmor_label: label,
            memfd_noexec: number("/proc/sys/vm/memfd_noexec"),
            core_pattern: text("/proc/sys/kernel/core_pattern"),
            proc_masks: masks(&mounts, "/proc"),
            sys_masks: masks(&mounts, "/sys"),
            is_proc_sys_read_only: is_read_only(&mounts, "/proc/sys"),
            has_no_new_privs: rustix::thread::no_new_privs().unwrap_or(false),
            has_swap: text("/proc/swaps").is_some_and(|swaps| swaps.lines().count() > 1),
        }
    }
}

/// The mounts in a `mountinfo` that hide a part of the procfs or sysfs at `top`; none if a whole one is mounted elsewhere too.
#[must_use]
pub fn masks(mountinfo: &str, top: &str) -> Vec<String> {
    let kind = if top == "/proc" { "proc" } else { "sysfs" };
    let is_hidden = |point: &&str| {
        let below = point.strip_prefix(top).is_some_and(|rest| rest.starts_with('/'));
        below && !EMPTY.contains(point) && !(kind == "sysfs" && is_sysfs_place(point))
    };
    let points = || mountinfo.lines().filter_map(parse);
    let is_whole_elsewhere = points().any(|mount| {
        let inside = |other: &str| other.strip_prefix(mount.point).is_some_and(|rest| rest.starts_with('/'));
        mount.kind == kind
            && mount.root == "/"
            && mount.point != top
            && !points().any(|other| inside(other.point))
    });
    if is_whole_elsewhere {
        return Vec::new();
    }
    points().map(|mount| mount.point).filter(is_hidden).map(str::to_owned).collect()
}

struct Mount<'a> {
    root: &'a str,
    point: &'a str,
    options: &'a str,
    kind: &'a str,
}

/// One line of proc_pid_mountinfo(5).
fn parse(line: &str) -> Option<Mount<'_>> {
    let (before, after) = line.split_once(" - ")?;
    let mut before = before.split(' ').skip(3);
    let (root, point, options) = (before.next()?, before.next()?, before.next()?);
    Some(Mount { root, point, options, kind: after.split(' ').next()? })
}

/// Places in sysfs that exist to be mounted on.
fn is_sysfs_place(point: &str) -> bool {
    let places = [
        "/sys/fs/",
        "/sys/kernel/debug",
        "/sys/kernel/tracing",
        "/sys/kernel/security",
        "/sys/kernel/config",
    ];
    places.iter().any(|place| point.starts_with(place)) || point.starts_with("/sys/firmware/efi/efivars")
}

fn is_read_only(mountinfo: &str, path: &str) -> bool {
    let over = |mount: &Mount<'_>| {
        path.strip_prefix(mount.point).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    let last = mountinfo.lines().filter_map(parse).filter(over).max_by_key(|mount| mount.point.len());
    last.is_some_and(|mount| mount.options.split(',').any(|option| option == "ro"))
}

fn text(path: &str) -> Option<String> {
    Some(fs::read_to_string(path).ok()?.trim_end_matches(['\n', '\0']).to_owned())
}

fn number(path: &str) -> Option<u64> {
    text(path)?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const DOCKER: &str = "\
600 550 0:50 / / rw,relatime - overlay overlay rw
601 600 0:60 / /proc rw,nosuid - proc proc rw
602 601 0:60 /sys /proc/sys ro,nosuid - proc proc rw
603 601 0:61 / /proc/kcore rw - tmpfs tmpfs rw
604 600 0:62 / /sys ro - sysfs sysfs ro
605 604 0:63 / /sys/fs/cgroup ro - cgroup2 cgroup rw
606 604 0:64 / /sys/firmware ro - tmpfs tmpfs ro
";

    #[test]
    fn what_a_container_hides_of_proc_is_seen() {
        assert_eq!(masks(DOCKER, "/proc"), ["/proc/sys", "/proc/kcore"]);
        assert_eq!(masks(DOCKER, "/sys"), ["/sys/firmware"]);
        assert!(is_read_only(DOCKER, "/proc/sys"));
        assert!(!is_read_only(DOCKER, "/proc"));
    }

    #[test]
    fn a_mount_on_a_directory_that_is_always_empty_hides_nothing() {
        let host =
            "22 27 0:21 / /proc rw - proc proc rw\n30 22 0:4 / /proc/sys/fs/binfmt_misc rw - autofs s rw\n";
        assert_eq!(masks(host, "/proc"), [""; 0]);
    }

    #[test]
    fn a_whole_proc_elsewhere_is_enough_for_the_kernel() {
        let text = format!("{DOCKER}607 600 0:65 / /mnt/proc rw - proc proc rw\n");
        assert_eq!(masks(&text, "/proc"), [""; 0]);
    }

    proptest! {
        #[test]
        fn no_text_panics_the_reader(text in "[a-z0-9/ \n-]{0,120}") {
            let _ = masks(&text, "/proc");
            let _ = is_read_only(&text, "/proc/sys");
        }
    }
}
