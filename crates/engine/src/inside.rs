//! What a short-lived process of the keeper's does in the mount namespace of a sandbox that runs: the keeper has threads,
//! and only a process with one can enter. It is this same program, started anew (`airlock inside`); a backend does the
//! work.

use airlock_linux::{fd, job};
use serde::{Deserialize, Serialize};
use std::{
    ffi::CString,
    fs::File,
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::PathBuf,
    time::Duration,
};
use tokio::{io::Interest, time::timeout};

/// How long it may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// Most bytes of its answer.
const MOST_SAID: usize = 64 << 10;
/// Under which number the process finds its socket.
pub const SOCKET: i32 = 3;

/// What is to be done. With it come the sandbox's outer user namespace and a pidfd of its PID 1.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Order {
    /// What.
    pub what: What,
    /// The user and group inside who makes mount points.
    pub builder: (u32, u32),
}

/// See [`Order`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum What {
    /// Show a path of the host.
    Bind {
        /// Which.
        host: PathBuf,
        /// Its device and inode, as it was checked.
        identity: (u64, u64),
        /// Where.
        target: PathBuf,
        /// Whether it is a directory.
        is_directory: bool,
        /// Whether it can only be read.
        is_read_only: bool,
        /// As host root: whose the files are.
        ids: Option<Ids>,
    },
    /// Mount something that the keeper will serve.
    Serve {
        /// Where.
        target: PathBuf,
        /// Whose its root is until it is served.
        owner: (u32, u32),
    },
    /// Take away one of these.
    Unmount {
        /// Where it is.
        target: PathBuf,
        /// Which it is.
        mount: u64,
    },
}

/// How ids of the host are shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ids {
    /// As those of the sandbox.
    Shifted,
    /// One user and group as others; nobody else.
    One {
        /// Of the files, and what they are for the sandbox outside.
        user: (u32, u32),
        /// See `user`.
        group: (u32, u32),
    },
}

/// What came of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Done {
    /// The number of the mount. A device comes along where it is to be served.
    Mounted(u64),
    /// It is gone.
    Unmounted,
    /// Why not.
    Failed(String),
}

/// Has it done.
pub(crate) async fn perform(
    order: &Order,
    namespaces: [BorrowedFd<'_>; 2],
) -> io::Result<(Done, Option<OwnedFd>)> {
    let (ours, theirs) = fd::pair()?;
    let null = File::options().read(true).write(true).open("/dev/null")?;
    let arguments: Vec<CString> = vec![c"airlock".into(), c"inside".into()];
    let pid = job::spawn_detached(&job::Detached {
        program: c"/proc/self/exe",
        arguments: &arguments,
        environment: &[],
        descriptors: &[null.as_fd(), null.as_fd(), null.as_fd(), theirs.as_fd()],
    })?;
    drop(theirs);
    let answered = timeout(PATIENCE, talk(order, namespaces, ours)).await;
    let pid = rustix::process::Pid::from_raw(pid).ok_or(io::ErrorKind::InvalidData)?;
    if answered.is_err() {
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
    }
    // It has said its last word, or was killed.
    let ended = move || rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::empty());
    let _ = tokio::task::spawn_blocking(ended).await;
    answered.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?
}

async fn talk(
    order: &Order,
    namespaces: [BorrowedFd<'_>; 2],
    socket: OwnedFd,
) -> io::Result<(Done, Option<OwnedFd>)> {
    let mut text = serde_json::to_vec(order)?;
    text.push(b'\n');
    fd::send_all(socket.as_fd(), &text, &namespaces)?;
    rustix::net::shutdown(&socket, rustix::net::Shutdown::Write)?;
    fd::set_nonblocking(socket.as_fd())?;
    let socket = crate::keeper::watched(socket, Interest::READABLE)?;
    let (mut said, mut descriptors) = (Vec::new(), Vec::new());
    loop {
        let mut bytes = [0u8; 4096];
        let hear = |socket: &OwnedFd| fd::receive_with_fds(socket.as_fd(), &mut bytes, &mut descriptors);
        let count = socket.async_io(Interest::READABLE, hear).await?;
        said.extend_from_slice(bytes.get(..count).unwrap_or_default());
        if count == 0 || said.len() > MOST_SAID {
            return Ok((serde_json::from_slice(&said)?, descriptors.pop()));
        }
    }
}
