//! Where the standard streams of a program lead.

use super::{Keeper, Tasks, log::Log, plan, terminal::Terminal, watched};
use airlock_linux::{fd, pty};
use airlock_protocol::{
    control::Refusal,
    log::Output,
    spec::{Stdio, Stream},
};
use std::{
    fs::File,
    io,
    os::fd::{AsFd, OwnedFd},
    rc::Rc,
    time::Duration,
};
use tokio::{io::Interest, sync::watch};

/// The streams of one program.
pub(super) struct Streams {
    /// The three descriptors the program gets.
    pub(super) theirs: Vec<OwnedFd>,
    /// Its terminal, if any of them is one.
    pub(super) terminal: Option<Rc<Terminal>>,
    /// Ends when everything it wrote has been read.
    pub(super) written: Written,
}

/// Waits for readers of what a program wrote.
#[derive(Default)]
pub(super) struct Written {
    readers: Vec<watch::Receiver<()>>,
}

/// How long a background process may keep the end of a program from being told.
const LINGER: Duration = Duration::from_millis(200);

/// Opens the streams of a program; `passed` are the client's descriptors, in order.
pub(super) fn open(
    keeper: &Keeper,
    stdio: &Stdio,
    passed: Vec<OwnedFd>,
    tasks: &mut Tasks,
) -> Result<Streams, Refusal> {
    let failed = |what: &str| {
        let what = format!("could not make {what} for the program");
        move |err: io::Error| plan::refusal(125, &what, Some(&err.to_string()), None)
    };
    let mut passed = passed.into_iter();
    let mut written = Written::default();
    let mut terminal: Option<(Rc<Terminal>, OwnedFd)> = None;
    let mut theirs = Vec::new();
    for (number, stream) in stdio.streams().into_iter().enumerate() {
        let descriptor = match stream {
            Stream::Null => null().map_err(failed("an empty stream"))?,
            Stream::Passed => {
                let given =
                    passed.next().ok_or_else(|| plan::refusal(125, "a stream is missing", None, None))?;
                check(keeper, &given)?;
                given
            }
            Stream::Captured => {
                let output = if number == 2 { Output::Stderr } else { Output::Stdout };
                let (read, write) = capture(keeper).map_err(failed("a pipe"))?;
                written.readers.push(pump(read, output, keeper.log.clone(), tasks));
                write
            }
            Stream::Terminal => {
                if terminal.is_none() {
                    let (made, slave) = make_terminal(keeper, stdio, tasks, &mut written)?;
                    terminal = Some((made, slave));
                }
                let slave = terminal.as_ref().map(|(_, slave)| slave.try_clone());
                slave.unwrap_or_else(null).map_err(failed("a terminal"))?
            }
        };
        theirs.push(descriptor);
    }
    Ok(Streams { theirs, terminal: terminal.map(|(terminal, _)| terminal), written })
}

impl Written {
    /// Returns when all output has been read, or a background process keeps it open for too long.
    pub(super) async fn wait(&mut self) {
        let all = async {
            for reader in &mut self.readers {
                // The sender is dropped when the reader is done.
                while reader.changed().await.is_ok() {}
            }
        };
        let _ = tokio::time::timeout(LINGER, all).await;
    }
}

fn null() -> io::Result<OwnedFd> {
    Ok(File::options().read(true).write(true).open("/dev/null")?.into())
}

/// Only bytes may be handed in, never a directory or the person's own terminal.
fn check(keeper: &Keeper, given: &OwnedFd) -> Result<(), Refusal> {
    let refused = |why: &str| {
        plan::refusal(125, "a standard stream of this command cannot be handed to a sandbox", Some(why), None)
    };
    match fd::check_stream(given.as_fd()) {
        Ok(Ok(())) => {}
        Ok(Err(fd::Unfit::Directory)) => return Err(refused("it is a directory of the host")),
        Ok(Err(fd::Unfit::PathOnly)) => return Err(refused("it stands for a path of the host")),
        Ok(Err(fd::Unfit::BlockDevice)) => return Err(refused("it is a disk of the host")),
        Err(err) => return Err(refused(&err.to_string())),
    }
    if rustix::termios::isatty(given) {
        return Err(refused("it is a terminal of the host"));
    }
    keeper.own_pipe(given);
    Ok(())
}

impl Keeper {
    /// As host root, a pipe belongs to the user inside, so that `/dev/stdout` can be opened there.
    fn own_pipe(&self, pipe: &OwnedFd) {
        let Some((user, group)) = self.shifted.get() else { return };
        if fd::is_pipe(pipe) {
            let (user, group) = (rustix::fs::Uid::from_raw(user), rustix::fs::Gid::from_raw(group));
            let _ = rustix::fs::fchown(pipe, Some(user), Some(group));
        }
    }
}

fn capture(keeper: &Keeper) -> io::Result<(OwnedFd, OwnedFd)> {
    let (read, write) = io::pipe()?;
    let (read, write) = (OwnedFd::from(read), OwnedFd::from(write));
    fd::set_nonblocking(read.as_fd())?;
    keeper.own_pipe(&write);
    Ok((read, write))
}

fn pump(read: OwnedFd, output: Output, log: Rc<Log>, tasks: &mut Tasks) -> watch::Receiver<()> {
    let (alive, done) = watch::channel(());
    tasks.spawn_local(async move {
        let Ok(read) = watched(read, Interest::READABLE) else { return };
        let mut bytes = vec![0u8; 64 * 1024];
        loop {
            let count =
                read.async_io(Interest::READABLE, |read| Ok(rustix::io::read(read, &mut bytes)?)).await;
            match count {
                Ok(0) | Err(_) => break,
                Ok(count) => log.write(output, bytes.get(..count).unwrap_or_default()),
            }
        }
        log.finish(output);
        drop(alive);
    });
    done
}

fn make_terminal(
    keeper: &Keeper,
    stdio: &Stdio,
    tasks: &mut Tasks,
    written: &mut Written,
) -> Result<(Rc<Terminal>, OwnedFd), Refusal> {
    let failed =
        |err: io::Error| plan::refusal(125, "could not make a terminal", Some(&err.to_string()), None);
    let Some(terminals) = keeper.launched.terminals.get() else {
        return Err(plan::refusal(125, "this sandbox has no terminals", None, None));
    };
    let pty = pty::open(terminals.as_fd()).map_err(failed)?;
    if let Some(size) = stdio.size {
        pty::resize(&pty.master, size.rows, size.columns).map_err(failed)?;
    }
    let (terminal, done) = Terminal::run(pty.master, keeper.log.clone(), tasks).map_err(failed)?;
    written.readers.push(done);
    Ok((terminal, pty.slave))
}
