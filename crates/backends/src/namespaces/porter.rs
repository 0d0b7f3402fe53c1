//! Who brings published connections in: a process of the keeper's in user namespace A and the sandbox's network. It makes
//! one socket for each byte it hears, nothing else; connecting is the keeper's.

use super::{During, Failed, outer::Outer};
use airlock_engine::{Loopback, Porter};
use airlock_linux::{
    clone::{self, Dumpable, Namespaces, Side},
    fd,
};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use std::{
    io,
    os::fd::{AsFd, OwnedFd},
};

/// Forks it into the sandbox's network.
pub(super) fn start(outer: &Outer) -> Result<Porter, Failed> {
    let (ours, theirs) = fd::pair().during("make a socket pair")?;
    match clone::fork(Namespaces::NONE, None).during("fork the porter")? {
        Side::Parent(child) => Ok(Porter { child, socket: ours, loopback: Loopback::Here }),
        Side::Child => {
            // It has the keeper's memory, and needs none of it.
            if outer.enter().is_ok()
                && clone::set_dumpable(Dumpable::No).is_ok()
                && clone::die_with_parent().is_ok()
                && fd::close_all_but(theirs.as_fd()).is_ok()
            {
                let _ = serve(&theirs);
            }
            clone::exit_now(0)
        }
    }
}

/// Until the keeper hangs up.
fn serve(keeper: &OwnedFd) -> io::Result<()> {
    let mut byte = [0u8; 1];
    while fd::receive_with_fds(keeper.as_fd(), &mut byte, &mut Vec::new())? != 0 {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        match rustix::net::socket_with(AddressFamily::INET, SocketType::STREAM, flags, None) {
            Ok(socket) => fd::send_all(keeper.as_fd(), b"s", &[socket.as_fd()])?,
            Err(_) => fd::send_all(keeper.as_fd(), b"!", &[])?,
        }
    }
    Ok(())
}
