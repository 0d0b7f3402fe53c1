//! The files of the machine: everything below this process's root, which is the sandbox's.

use airlock_files::{
    fuse::Server,
    provider::{Known, Real},
};
use rustix::{
    fs::{Mode, OFlags},
    process::{Resource, Rlimit},
};
use std::{io, os::fd::OwnedFd, sync::Arc};

/// Serves the root of this process to the machine at the other end of `socket`, until that ends or the server is dropped. `known` is
/// what the machine knows of it already. The file mask of this process becomes 0.
pub(crate) fn serve(socket: OwnedFd, known: Option<&Known>) -> io::Result<(Server, Arc<Real>)> {
    allow_descriptors()?;
    rustix::process::umask(Mode::empty());
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    serve_root(rustix::fs::open("/", flags, Mode::empty())?, socket, known)
}

pub(crate) fn serve_root(
    root: OwnedFd,
    socket: OwnedFd,
    known: Option<&Known>,
) -> io::Result<(Server, Arc<Real>)> {
    match known {
        None => {
            let real = Arc::new(Real::whole(root)?);
            Ok((Server::start_on_stream(socket, real.clone())?, real))
        }
        Some(known) => {
            let real = Arc::new(Real::resumed(root, known)?);
            Ok((Server::resume_on_stream(socket, real.clone())?, real))
        }
    }
}

/// Each file that is open in the machine is open here.
fn allow_descriptors() -> io::Result<()> {
    let maximum = rustix::process::getrlimit(Resource::Nofile).maximum;
    Ok(rustix::process::setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum })?)
}
