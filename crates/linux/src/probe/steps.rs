//! The steps of a trial, each by the call that builds a real sandbox.

use super::trial::{Report, Step, Wanted};
use crate::{
    caps::CapSet,
    clone::{self, Namespaces},
    fd, idmap,
    idmap::{IdMap, Writer},
    mount::{self, Depth, Overlay},
    net,
    seccomp::{Filter, Nested, Relax, SetId},
    spawn,
};
use rustix::{
    fs::{AtFlags, CWD, Mode, OFlags},
    process::Pid,
};
use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
};

/// The file that is written through the overlay.
pub(super) const WRITTEN: &str = "airlock-doctor";
/// Nodes every sandbox shows: name, major, minor.
const DEVICES: [(&str, u32, u32); 6] =
    [("null", 1, 3), ("zero", 1, 5), ("full", 1, 7), ("random", 1, 8), ("urandom", 1, 9), ("tty", 5, 0)];

/// The keeper's part as host root: each directory shown with shifted ids. An error names the directory.
pub(super) fn shifted(wanted: &Wanted<'_>, child: Pid) -> io::Result<Vec<OwnedFd>> {
    if wanted.ids.writer != Writer::Direct {
        return Ok(Vec::new());
    }
    let ids = idmap::open_user_namespace(child)?;
    let shift = |path: &PathBuf| {
        let tree = mount::clone_tree(CWD, path, Depth::One)?;
        mount::map_ids(tree.as_fd(), ids.as_fd(), Depth::One)?;
        Ok(tree)
    };
    let named = |path: &PathBuf| {
        shift(path).map_err(|err: io::Error| io::Error::new(err.kind(), format!("{}: {err}", path.display())))
    };
    wanted.shown.iter().map(named).collect()
}

/// Sends the first tree: one is enough for an overlay to stand on.
pub(super) fn send(talk: &OwnedFd, trees: &[OwnedFd]) -> io::Result<()> {
    let first: Vec<BorrowedFd<'_>> = trees.iter().take(1).map(AsFd::as_fd).collect();
    fd::send_all(talk.as_fd(), b"t", &first)
}

/// The child's part.
pub(super) fn build(wanted: &Wanted<'_>, scratch: &Path, talk: &OwnedFd, report: &Report) {
    let _ = clone::die_with_parent();
    let opened = open_dir(CWD, scratch);
    let mut trees = Vec::new();
    let told = fd::receive_with_fds(talk.as_fd(), &mut [0u8; 1], &mut trees);
    if !told.is_ok_and(|count| count > 0)
        || !report.tell(Step::Root, become_root(wanted.ids))
        || !report.tell(Step::Mounts, mount::make_private())
    {
        return;
    }
    let families = net::seat::prepare(&wanted.ids.group_range());
    let known = *families.as_ref().unwrap_or(&net::seat::Families::V4);
    report.tell(Step::Network, families.map(drop).map_err(whole));
    let has_proc = report.tell(Step::Proc, fresh_proc());
    report.tell(Step::Sys, mount::sysfs().map(|_| ()));
    report.tell(Step::Devices, devices());
    if let Ok(scratch) = opened {
        report.tell(Step::Overlay, overlay(&scratch, trees.first()));
    }
    report.tell(Step::Nftables, net::seat::furnish(known).map(drop).map_err(whole));
    // The second pair of namespaces, as a sandbox enters it. Without a /proc of this PID namespace the map cannot be written by
    // number. It comes first, as in a start: a process whose children get a time namespace may be refused one that shares its memory.
    let inner = has_proc.then(|| idmap::inner(wanted.ids));
    report.tell(Step::Spaces, clone::unshare(Namespaces::CGROUP_AND_TIME));
    if let Some(inner) = inner {
        report.tell(Step::Inner, inner.and_then(|inner| idmap::enter_inner(inner.as_fd())));
    }
    report.tell(Step::Filter, filter());
}

/// With what the kernel said.
fn whole(err: net::seat::Error) -> io::Error {
    match &err {
        net::seat::Error::Step { source, .. } => io::Error::other(format!("{err}: {source}")),
        net::seat::Error::Open(_) => io::Error::other(err),
    }
}

fn become_root(ids: &IdMap) -> io::Result<()> {
    let first = |extents: &[idmap::Extent]| extents.first().map_or(0, |extent| extent.inside);
    match ids.user_outside(0) {
        Some(_) => spawn::become_user(0, ids.group_outside(0).map_or_else(|| first(&ids.groups), |_| 0), &[]),
        None => spawn::become_user(first(&ids.users), first(&ids.groups), &[]),
    }
}

/// Over the host's, in this mount namespace only: from here on `/proc/1` is this process and never the host's.
fn fresh_proc() -> io::Result<()> {
    let proc = mount::proc()?;
    let place = open_dir(CWD, Path::new("/proc"))?;
    mount::attach(proc.as_fd(), place.as_fd())
}

fn devices() -> io::Result<()> {
    for (name, major, minor) in DEVICES {
        let path = Path::new("/dev").join(name);
        mount::open_device(&path, major, minor)
            .and_then(|device| mount::clone_tree(device.as_fd(), Path::new(""), Depth::One))
            .map_err(|err| io::Error::new(err.kind(), format!("{}: {err}", path.display())))?;
    }
    mount::mqueue()?;
    mount::devpts(&[(c"ptmxmode", c"666"), (c"mode", c"620")]).map(|_| ())
}

/// Below: a tree with shifted ids, or the host's `/etc` as an ordinary user sees it. Above: the scratch directory.
fn overlay(scratch: &OwnedFd, tree: Option<&OwnedFd>) -> io::Result<()> {
    let staging = mount::tmpfs(&[(c"mode", c"700")])?;
    let place = open_dir(CWD, Path::new("/tmp"))?;
    mount::attach(staging.as_fd(), place.as_fd())?;
    let lower = match tree {
        Some(tree) => {
            let target = mount::make_dir(staging.as_fd(), Path::new("lower"))?;
            mount::attach(tree.as_fd(), target.as_fd())?;
            open_dir(staging.as_fd(), Path::new("lower"))?
        }
        None => open_dir(CWD, Path::new("/etc"))?,
    };
    let upper = mount::make_dir(scratch.as_fd(), Path::new("upper"))?;
    let work = mount::make_dir(scratch.as_fd(), Path::new("work"))?;
    let [lower, upper, work] =
        [&lower, &upper, &work].map(|fd| PathBuf::from(format!("/proc/self/fd/{}", fd.as_raw_fd())));
    let overlay = mount::overlay(&Overlay { lower: &[&lower], upper: Some((&upper, &work)) })?;
    let target = mount::make_dir(staging.as_fd(), Path::new("overlay"))?;
    mount::attach(overlay.as_fd(), target.as_fd())?;
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    rustix::fs::openat(&overlay, WRITTEN, flags, Mode::from_raw_mode(0o600))?;
    Ok(rustix::fs::unlinkat(&overlay, WRITTEN, AtFlags::empty())?)
}

fn filter() -> io::Result<()> {
    let caps = CapSet::adjust(&[], &[]).map_err(io::Error::other)?;
    let filter = Filter::compile(&Relax { caps, nested: Nested::No, set_id: SetId::Refused });
    rustix::thread::set_no_new_privs(true)?;
    filter.install()
}

fn open_dir(dir: BorrowedFd<'_>, path: &Path) -> io::Result<OwnedFd> {
    Ok(rustix::fs::openat(dir, path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?)
}
