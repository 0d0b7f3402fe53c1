//! The network namespace of a sandbox. Sealed: it has a loopback device and no way out.

use std::{fs, io};

/// Brings up the loopback device and lets unprivileged programs inside use low ports and ping.
///
/// Called in the network namespace, with its power, while `/proc/sys` is writable.
pub fn prepare_sealed() -> io::Result<()> {
    bring_up_loopback()?;
    fs::write("/proc/sys/net/ipv4/ip_unprivileged_port_start", "0")?;
    // A host without ping sockets has no such file; ping then needs what no sandbox has.
    match fs::write("/proc/sys/net/ipv4/ping_group_range", "0 4294967294") {
        Err(err) if err.raw_os_error() == Some(libc::EINVAL) => {
            // A namespace with a single group, which is ours.
            let group = rustix::process::getgid().as_raw();
            fs::write("/proc/sys/net/ipv4/ping_group_range", format!("{group} {group}"))
        }
        Err(err) if err.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

fn bring_up_loopback() -> io::Result<()> {
    let socket = rustix::net::socket_with(
        rustix::net::AddressFamily::INET,
        rustix::net::SocketType::DGRAM,
        rustix::net::SocketFlags::CLOEXEC,
        None,
    )?;
    // SAFETY: all-zero is a valid `ifreq`.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(b"lo\0") {
        *to = libc::c_char::from_ne_bytes([*from]);
    }
    request.ifr_ifru.ifru_flags = libc::c_short::try_from(libc::IFF_UP).map_err(io::Error::other)?;
    let fd = std::os::fd::AsRawFd::as_raw_fd(&socket);
    // SAFETY: `request` is a filled `ifreq` that outlives the call.
    if unsafe { libc::ioctl(fd, libc::SIOCSIFFLAGS as _, &raw const request) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}
