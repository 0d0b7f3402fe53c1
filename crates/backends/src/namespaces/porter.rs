//! Who brings published connections in: a process of the keeper's in user namespace A and the sandbox's network. It makes
//! one socket for each byte it hears, nothing else; connecting is the keeper's.

use super::{During, Failed};
use airlock_engine::Porter;
use airlock_linux::{
    clone::{self, Child, Namespaces, Side},
    fd, idmap,
};
use rustix::{
    net::{AddressFamily, SocketFlags, SocketType},
    thread::{LinkNameSpaceType, move_into_link_name_space},
};
use std::{
    fs, io,
    os::fd::{AsFd, OwnedFd},
};

/// Forked while PID 1 is still in A.
pub(super) fn start(init: &Child) -> Result<Porter, Failed> {
    let outer = idmap::open_user_namespace(init.pid).during("open the sandbox's user namespace")?;
    let network = fs::File::open(format!("/proc/{}/ns/net", init.pid.as_raw_nonzero()))
        .during("open the sandbox's network namespace")?;
    let (ours, theirs) = fd::pair().during("make a socket pair")?;
    match clone::fork(Namespaces::NONE, None).during("fork the porter")? {
        Side::Parent(child) => Ok(Porter { child, socket: ours }),
        Side::Child => {
            let joined = move_into_link_name_space(outer.as_fd(), Some(LinkNameSpaceType::User))
                .and_then(|()| move_into_link_name_space(network.as_fd(), Some(LinkNameSpaceType::Network)));
            if joined.is_ok() && clone::die_with_parent().is_ok() && fd::close_all_but(theirs.as_fd()).is_ok()
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
