//! The sockets of the seat, and what is special about connections that were redirected to them.

use super::{
    links::Families,
    seat::{During as _, Error, LISTENER_PORT, RESOLVER_PORT},
};
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    os::fd::{AsRawFd, BorrowedFd, OwnedFd},
};

/// As many connections may wait to be accepted as the kernel lets by default.
const BACKLOG: i32 = 4096;

/// Room for questions that wait to be read: some thousand, so that a flood of them drowns no other's. The kernel gives less
/// where its own bound is lower (`net.core.rmem_max`).
const WAITING_QUESTIONS: usize = 1 << 20;

/// Listeners and resolver sockets of one address family.
pub(super) struct Sockets {
    pub(super) tcp: OwnedFd,
    pub(super) dns_udp: OwnedFd,
    pub(super) dns_tcp: OwnedFd,
}

/// Makes them. Only redirected connections reach them (see `wall`).
pub(super) fn make(address: IpAddr) -> Result<Sockets, Error> {
    let tcp = bound(SocketType::STREAM, address, LISTENER_PORT).during("make the listener")?;
    let dns_tcp = bound(SocketType::STREAM, address, RESOLVER_PORT).during("make the resolver's listener")?;
    let dns_udp = bound(SocketType::DGRAM, address, RESOLVER_PORT).during("make the resolver's socket")?;
    sockopt::set_socket_recv_buffer_size(&dns_udp, WAITING_QUESTIONS)
        .map_err(io::Error::from)
        .during("make room for questions")?;
    for listener in [&tcp, &dns_tcp] {
        rustix::net::listen(listener, BACKLOG).map_err(io::Error::from).during("listen")?;
        // Connections inherit it.
        sockopt::set_tcp_nodelay(listener, true).map_err(io::Error::from).during("set up the listener")?;
    }
    Ok(Sockets { tcp, dns_udp, dns_tcp })
}

/// Which address families this host knows.
pub(super) fn families() -> io::Result<Families> {
    match socket(AddressFamily::INET6, SocketType::DGRAM) {
        Ok(_) => Ok(Families::Both),
        Err(err) if err.raw_os_error() == Some(libc::EAFNOSUPPORT) => Ok(Families::V4),
        Err(err) => Err(err),
    }
}

fn bound(kind: SocketType, address: IpAddr, port: u16) -> io::Result<OwnedFd> {
    let family = if address.is_ipv6() { AddressFamily::INET6 } else { AddressFamily::INET };
    let socket = socket(family, kind)?;
    rustix::net::bind(&socket, &SocketAddr::new(address, port))?;
    Ok(socket)
}

/// A socket that never waits and closes on exec.
pub(super) fn socket(family: AddressFamily, kind: SocketType) -> io::Result<OwnedFd> {
    Ok(rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)?)
}

/// Where the program wanted to connect when it reached the listener, `from` the address that accepting told.
pub fn original_destination(socket: BorrowedFd<'_>, from: SocketAddr) -> io::Result<SocketAddr> {
    const ORIGINAL_DESTINATION: libc::c_int = 80;
    match from {
        SocketAddr::V4(_) => {
            // SAFETY: all-zero is a valid address, and any bytes the kernel writes are one too.
            let found: libc::sockaddr_in =
                unsafe { read_option(socket, libc::SOL_IP, ORIGINAL_DESTINATION) }?;
            let address = Ipv4Addr::from(u32::from_be(found.sin_addr.s_addr));
            Ok(SocketAddr::new(address.into(), u16::from_be(found.sin_port)))
        }
        SocketAddr::V6(_) => {
            // SAFETY: as above.
            let found: libc::sockaddr_in6 =
                unsafe { read_option(socket, libc::SOL_IPV6, ORIGINAL_DESTINATION) }?;
            let address = Ipv6Addr::from(found.sin6_addr.s6_addr);
            Ok(SocketAddr::new(address.into(), u16::from_be(found.sin6_port)))
        }
    }
}

/// Has the kernel reset the connection when it is closed, instead of ending it in good order.
pub fn reset_on_close(socket: BorrowedFd<'_>) -> io::Result<()> {
    Ok(sockopt::set_socket_linger(socket, Some(std::time::Duration::ZERO))?)
}

/// # Safety
///
/// `T` must be valid with all bytes zero and with any bytes.
unsafe fn read_option<T>(socket: BorrowedFd<'_>, level: libc::c_int, name: libc::c_int) -> io::Result<T> {
    // SAFETY: the caller says so.
    let mut value: T = unsafe { std::mem::zeroed() };
    let whole = libc::socklen_t::try_from(size_of::<T>()).map_err(io::Error::other)?;
    let mut length = whole;
    // SAFETY: `value` and `length` are alive and as long as they say.
    let done = unsafe {
        libc::getsockopt(socket.as_raw_fd(), level, name, (&raw mut value).cast(), &raw mut length)
    };
    match done {
        0 if length == whole => Ok(value),
        0 => Err(io::ErrorKind::InvalidData.into()),
        _ => Err(io::Error::last_os_error()),
    }
}
