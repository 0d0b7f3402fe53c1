//! The way from a machine to its host where its monitor has no ports: sockets of a family of their own (vsock(7)).

use std::{
    io,
    os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd},
};

/// Connects with a port of the host.
pub fn connect(port: u32) -> io::Result<OwnedFd> {
    // SAFETY: takes numbers only.
    let made = unsafe { libc::socket(libc::AF_VSOCK, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) };
    if made < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: just made, and nobody else's.
    let socket = unsafe { OwnedFd::from_raw_fd(made) };
    // SAFETY: all-zero is a valid address.
    let mut host: libc::sockaddr_vm = unsafe { std::mem::zeroed() };
    host.svm_family = libc::sa_family_t::try_from(libc::AF_VSOCK).map_err(io::Error::other)?;
    (host.svm_cid, host.svm_port) = (libc::VMADDR_CID_HOST, port);
    let length = libc::socklen_t::try_from(size_of_val(&host)).map_err(io::Error::other)?;
    // SAFETY: the kernel reads `length` bytes of an address that outlives the call.
    let connected = unsafe { libc::connect(socket.as_raw_fd(), (&raw const host).cast(), length) };
    if connected < 0 { Err(io::Error::last_os_error()) } else { Ok(socket) }
}
