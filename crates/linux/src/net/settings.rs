//! Settings of the network namespace. Each is one file of `/proc/sys/net`.

use super::seat::{During as _, Error, LISTENER_PORT, RESOLVER_PORT};
use std::{fs, io};

/// Writes them, in the network namespace, while `/proc/sys` is writable.
pub(super) fn write() -> Result<(), Error> {
    set("ip_unprivileged_port_start", "0").during("let programs inside use low ports")?;
    allow_ping().during("let programs inside ping themselves")?;
    // Both ports are the keeper's; nobody gets one of them by chance.
    set("ip_local_reserved_ports", &format!("{LISTENER_PORT},{RESOLVER_PORT}"))
        .during("reserve the ports of the wall")?;
    // What the host uses between machines (BBR) halves the speed inside one. Every kernel has reno.
    set("tcp_congestion_control", "reno").during("set the congestion control")
}

/// A host without ping sockets has no such file; ping then needs what no sandbox has.
fn allow_ping() -> io::Result<()> {
    match set("ping_group_range", "0 4294967294") {
        Err(err) if err.raw_os_error() == Some(libc::EINVAL) => {
            // A namespace with a single group, which is ours.
            let group = rustix::process::getgid().as_raw();
            set("ping_group_range", &format!("{group} {group}"))
        }
        Err(err) if err.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

fn set(name: &str, value: &str) -> io::Result<()> {
    fs::write(format!("/proc/sys/net/ipv4/{name}"), value)
}
