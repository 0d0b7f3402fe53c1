//! Settings of the network. Each is one file of `/proc/sys/net`.

use super::{
    links::Families,
    seat::{During as _, Error, LISTENER_PORT, RESOLVER_PORT},
};
use rustix::fs::{CWD, Mode, OFlags};
use std::{
    io,
    ops::RangeInclusive,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::Path,
};

/// Writes them, in the network namespace, while `/proc/sys` is writable. `groups` are those that programs can have.
pub(super) fn write(groups: &RangeInclusive<u32>) -> Result<(), Error> {
    let dir = open(CWD, "/proc/sys/net/ipv4", OFlags::PATH | OFlags::DIRECTORY)
        .during("open the settings of the network")?;
    let set = |name: &str, value: &str| set(dir.as_fd(), name, value);
    set("ip_unprivileged_port_start", "0").during("let programs inside use low ports")?;
    allow_ping(groups, set).during("let programs inside ping themselves")?;
    // Both ports are ours; nobody gets one of them by chance.
    set("ip_local_reserved_ports", &format!("{LISTENER_PORT},{RESOLVER_PORT}"))
        .during("reserve the ports of the wall")?;
    // What the host uses between machines (BBR) halves the speed inside one. Every kernel has reno.
    set("tcp_congestion_control", "reno").during("set the congestion control")?;
    // Otherwise some ten thousand short connections to one name use up the ports for a minute.
    set("tcp_tw_reuse", "1").during("let ports be used again")
}

/// Settings of a cable's device, while it is down: its other end can only be the one that is named.
pub(super) fn write_device(name: &str, families: Families) -> Result<(), Error> {
    if families == Families::V4 {
        return Ok(());
    }
    let dir = Path::new("/proc/sys/net/ipv6/conf").join(name);
    for (setting, value) in [("addr_gen_mode", "1"), ("accept_ra", "0"), ("autoconf", "0")] {
        std::fs::write(dir.join(setting), value).during("keep the machine's device from looking around")?;
    }
    Ok(())
}

/// Has nothing sent on for others: a new network namespace may have been told so by the host.
pub(super) fn forbid_forwarding(families: Families) -> Result<(), Error> {
    let forbid = |path| std::fs::write(path, "0").during("forbid forwarding");
    forbid("/proc/sys/net/ipv4/ip_forward")?;
    match families {
        Families::V4 => Ok(()),
        Families::Both => forbid("/proc/sys/net/ipv6/conf/all/forwarding"),
    }
}

/// Has every refused packet answered, as on `lo`, so far as this kernel lets a namespace decide. Not part of the wall.
pub(super) fn answer_always() {
    for (path, value) in [
        ("/proc/sys/net/ipv4/icmp_ratelimit", "0"),
        ("/proc/sys/net/ipv6/icmp/ratelimit", "0"),
        ("/proc/sys/net/ipv4/icmp_msgs_per_sec", "100000"),
        ("/proc/sys/net/ipv4/icmp_msgs_burst", "5000"),
    ] {
        let _ = std::fs::write(path, value);
    }
}

/// Has ended connections forgotten soon: on `lo` nothing comes late. Not part of the wall, so it may fail, as it does
/// where the kernel shows these settings to nobody.
pub(super) fn shorten_memory() {
    let _ = std::fs::write("/proc/sys/net/netfilter/nf_conntrack_tcp_timeout_time_wait", "10");
}

fn allow_ping(groups: &RangeInclusive<u32>, set: impl Fn(&str, &str) -> io::Result<()>) -> io::Result<()> {
    const NAME: &str = "ping_group_range";
    let (first, last) = (groups.start(), groups.end());
    match set(NAME, &format!("{first} {last}")) {
        // To the kernel a range is one of ids outside; where these are not in order, only the first may ping.
        Err(err) if err.raw_os_error() == Some(libc::EINVAL) => set(NAME, &format!("{first} {first}")),
        // A host without ping sockets has no such file; ping then needs what no sandbox has.
        Err(err) if err.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

fn set(dir: BorrowedFd<'_>, name: &str, value: &str) -> io::Result<()> {
    rustix::io::write(open(dir, name, OFlags::WRONLY)?, value.as_bytes())?;
    Ok(())
}

fn open(dir: BorrowedFd<'_>, path: &str, flags: OFlags) -> io::Result<OwnedFd> {
    Ok(rustix::fs::openat(dir, path, flags | OFlags::CLOEXEC, Mode::empty())?)
}
