//! The keeper's side of the control socket: each connection is one client, translated into calls of [`Keeper`].

use super::connection;
use airlock_engine::{
    keeper::{Keeper, life::News},
    store::Sandbox,
};
use airlock_linux::fd;
use airlock_protocol::control::Owner;
use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    os::unix::net::UnixListener,
    rc::Rc,
    time::Duration,
};
use tokio::{sync::mpsc, task::JoinSet, time::timeout};

/// The first client: the command that started the sandbox.
pub struct First {
    /// Its connection.
    pub socket: OwnedFd,
    /// Whether the sandbox's life hangs on it.
    pub owner: Owner,
    /// What it hears of the program.
    pub news: mpsc::Receiver<News>,
}

/// Most clients at once; more wait to be accepted.
const MOST: usize = 64;
/// After an accept that failed for want of descriptors.
const PAUSE: Duration = Duration::from_millis(50);
/// How long the last replies may take to be read.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// Listens where clients of this sandbox look. The socket is open to its owner only.
pub fn listen(sandbox: &Sandbox) -> io::Result<UnixListener> {
    let path = sandbox.control_path().map_err(io::Error::other)?;
    match std::fs::remove_file(path.path()) {
        Err(err) if err.kind() != io::ErrorKind::NotFound => return Err(err),
        _ => {}
    }
    let listener = UnixListener::bind(path.path())?;
    std::fs::set_permissions(path.path(), std::os::unix::fs::PermissionsExt::from_mode(0o600))?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Serves clients until the sandbox has ended and they have heard of it.
pub async fn serve(keeper: Rc<Keeper>, listener: UnixListener, first: First) {
    let mut clients = JoinSet::new();
    clients.spawn_local(connection::owner(keeper.clone(), first));
    match tokio::net::UnixListener::from_std(listener) {
        Ok(listener) => accept(&keeper, &listener, &mut clients).await,
        Err(err) => airlock_engine::keeper::note(&format!("nobody can connect: {err}")),
    }
    keeper.wait().await;
    let _ = timeout(LAST_WORDS, async { while clients.join_next().await.is_some() {} }).await;
    clients.shutdown().await;
}

/// Serves the one client of a sandbox that is only visited, until it is done.
pub async fn serve_visitor(keeper: Rc<Keeper>, socket: OwnedFd) {
    if fd::set_nonblocking(socket.as_fd()).is_ok() {
        connection::client(keeper, socket).await;
    }
}

async fn accept(keeper: &Rc<Keeper>, listener: &tokio::net::UnixListener, clients: &mut JoinSet<()>) {
    loop {
        tokio::select! {
            biased;
            _ = keeper.wait() => return,
            Some(_) = clients.join_next() => {}
            accepted = listener.accept(), if clients.len() < MOST => {
                let Ok(stream) = accepted.and_then(|(stream, _)| stream.into_std()) else {
                    tokio::time::sleep(PAUSE).await;
                    continue;
                };
                let socket = OwnedFd::from(stream);
                if is_ours(&socket) && fd::set_nonblocking(socket.as_fd()).is_ok() {
                    clients.spawn_local(connection::client(keeper.clone(), socket));
                }
            }
        }
    }
}

/// Only the owner of the sandbox (or host root) may speak to its keeper, whatever the socket's mode says.
fn is_ours(socket: &OwnedFd) -> bool {
    let own = rustix::process::geteuid();
    rustix::net::sockopt::socket_peercred(socket).is_ok_and(|peer| peer.uid == own || peer.uid.is_root())
}
