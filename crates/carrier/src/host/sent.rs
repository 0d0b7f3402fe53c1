//! Ports of a monitor that has none when it is started: they come over the sockets that stand for them.

use super::{Ended, PATIENCE, await_monitor};
use airlock_linux::fd;
use rustix::{
    event::{PollFd, PollFlags, Timespec},
    net::{AddressFamily, SocketType, sockopt},
};
use std::{
    io,
    os::fd::{AsFd as _, OwnedFd},
};

/// The port that comes over this socket. Who sends it is hostile.
pub(super) fn port(socket: &OwnedFd) -> io::Result<OwnedFd> {
    let ended = |ended: Ended| io::Error::other(ended);
    let patience = Timespec::try_from(PATIENCE).unwrap_or(Timespec { tv_sec: 120, tv_nsec: 0 });
    let mut polled = [PollFd::new(socket, PollFlags::IN)];
    if rustix::io::retry_on_intr(|| rustix::event::poll(&mut polled, Some(&patience)))? == 0 {
        return Err(ended(Ended::Late));
    }
    let mut sent = Vec::new();
    let count = fd::receive_with_fds(socket.as_fd(), &mut [0u8; 1], &mut sent)?;
    match sent.pop() {
        Some(port) if sent.is_empty() && is_stream(&port) => Ok(port),
        None if count == 0 => Err(ended(await_monitor().map_or(Ended::Gone, Ended::Monitor))),
        _ => Err(io::Error::new(io::ErrorKind::InvalidData, "the machine's monitor makes no sense")),
    }
}

/// Of a file or a device, reads may never end.
fn is_stream(port: &OwnedFd) -> bool {
    sockopt::socket_domain(port) == Ok(AddressFamily::UNIX)
        && sockopt::socket_type(port) == Ok(SocketType::STREAM)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs::File, os::unix::net::UnixDatagram};

    fn port_of(sent: &[OwnedFd]) -> Option<OwnedFd> {
        let (here, there) = fd::pair().unwrap();
        let sent: Vec<_> = sent.iter().map(OwnedFd::as_fd).collect();
        fd::send_all(there.as_fd(), b"p", &sent).unwrap();
        port(&here).ok()
    }

    #[test]
    fn a_port_is_one_connection_and_nothing_else() {
        let stream = || fd::pair().unwrap().0;
        assert!(port_of(&[stream()]).is_some());
        assert!(port_of(&[]).is_none());
        assert!(port_of(&[stream(), stream()]).is_none());
        assert!(port_of(&[File::open("/dev/zero").unwrap().into()]).is_none());
        assert!(port_of(&[UnixDatagram::unbound().unwrap().into()]).is_none());
    }
}
