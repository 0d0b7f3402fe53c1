//! Whether this is a container, and how deep.

use crate::clone::{self, Namespaces, Side};
use std::{
    fs,
    io::{self, Read as _, Write as _},
    os::unix::fs::MetadataExt,
    path::Path,
};

/// What there is around this process.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Nesting {
    /// The sign by which a container was recognised, such as `/.dockerenv`.
    pub container: Option<String>,
    /// How many user namespaces there are around this process: 0 on the host itself. `None` if it could not be found
    /// out.
    pub depth: Option<u32>,
}

/// The user namespace the kernel starts with has this inode, linux/proc_ns.h.
const INITIAL_USER_NAMESPACE: u64 = 0xEFFF_FFFD;
/// The kernel allows this many inside one another below the first.
const MOST: u32 = 33;
const SIGNS: [&str; 3] = ["/.dockerenv", "/run/.containerenv", "/run/systemd/container"];
const GROUPS: [&str; 5] = ["/docker", "/kubepods", "/lxc", "/libpod", "/containerd"];

impl Nesting {
    /// Looks for signs, and counts user namespaces where this process is not in the first one.
    #[must_use]
    pub fn read() -> Nesting {
        let sign = SIGNS.iter().find(|path| Path::new(path).exists()).map(|path| (*path).to_owned());
        let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let group = || {
            let named = groups.lines().find(|line| GROUPS.iter().any(|group| line.contains(group)));
            named.map(|line| format!("the control group {}", line.rsplit(':').next().unwrap_or(line)))
        };
        Nesting { container: sign.or_else(group), depth: depth() }
    }
}

fn depth() -> Option<u32> {
    let inode = fs::metadata("/proc/self/ns/user").ok()?.ino();
    if inode == INITIAL_USER_NAMESPACE {
        return Some(0);
    }
    count_further().ok().map(|further| MOST.saturating_sub(further))
}

/// How many more can be made inside one another. The only way to learn it is to make them.
fn count_further() -> io::Result<u32> {
    let (mut told, mut tell) = io::pipe()?;
    match clone::fork(Namespaces::NONE, None)? {
        Side::Child => {
            drop(told);
            let _ = clone::die_with_parent();
            let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
            let made = (0..MOST).take_while(|_| enter_another(uid, gid).is_ok()).count();
            let _ = tell.write_all(&[u8::try_from(made).unwrap_or(0)]);
            clone::exit_now(0)
        }
        Side::Parent(child) => {
            drop(tell);
            let mut count = [0u8; 1];
            let read = told.read_exact(&mut count);
            child.kill()?;
            child.wait()?;
            read.map(|()| u32::from(count[0]))
        }
    }
}

fn enter_another(uid: u32, gid: u32) -> io::Result<()> {
    clone::unshare(Namespaces::USER)?;
    fs::write("/proc/self/setgroups", "deny")?;
    fs::write("/proc/self/uid_map", format!("{uid} {uid} 1"))?;
    fs::write("/proc/self/gid_map", format!("{gid} {gid} 1"))
}
