//! One client of a keeper.

use super::server::First;
use airlock_engine::keeper::{
    Keeper,
    life::{GRACE, News},
    program::{Event, Program},
    terminal::Terminal,
    watched,
};
use airlock_linux::{fd, signal};
use airlock_protocol::{
    control::{Exec, Owner, Refusal, Reply, Request, TERMINAL},
    frame::{Decoder, Frame, Kind, Malformed},
    spec::WindowSize,
};
use std::{
    cell::RefCell,
    collections::VecDeque,
    io,
    os::fd::{AsFd, OwnedFd},
    rc::Rc,
    time::Duration,
};
use tokio::{
    io::{Interest, unix::AsyncFd},
    sync::{Notify, broadcast, mpsc},
    task::JoinSet,
    time::timeout,
};

/// Descriptors that came but belong to no frame yet.
const MOST_DESCRIPTORS: usize = 16;
/// How long a client may take to read its last replies.
const FLUSH: Duration = Duration::from_secs(1);

/// Frames on their way to a client, each with the descriptor that travels along.
type Replies = mpsc::Sender<(Vec<u8>, Option<OwnedFd>)>;

/// Serves the command that started the sandbox.
pub(super) async fn owner(keeper: Rc<Keeper>, first: First) {
    let owner = first.owner;
    let Ok(mut connection) = Connection::new(keeper.clone(), first.socket) else { return };
    connection.follow_main(first.news);
    let closed = connection.run().await;
    if closed == Closed::ByClient && owner == Owner::Foreground {
        keeper.end(signal::HUP, GRACE).await;
    }
}

/// Serves anybody else.
pub(super) async fn client(keeper: Rc<Keeper>, socket: OwnedFd) {
    let Ok(connection) = Connection::new(keeper, socket) else { return };
    connection.run().await;
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Closed {
    ByClient,
    ByUs,
}

/// What a client's signals, sizes and keys go to.
#[derive(Default)]
struct Own {
    process: Option<u32>,
    terminal: Option<Rc<Terminal>>,
}

struct Connection {
    keeper: Rc<Keeper>,
    incoming: Incoming,
    replies: Replies,
    own: Rc<RefCell<Own>>,
    follows: bool,
    finished: Rc<Notify>,
    tasks: JoinSet<()>,
    programs: JoinSet<()>,
    /// Who tells of events; they end when the client's own business does.
    watchers: JoinSet<()>,
    /// Whether the sandbox is frozen for this client.
    holds: bool,
}

impl Connection {
    fn new(keeper: Rc<Keeper>, socket: OwnedFd) -> io::Result<Connection> {
        fd::set_nonblocking(socket.as_fd())?;
        let socket = Rc::new(watched(socket, Interest::READABLE | Interest::WRITABLE)?);
        let (replies, queue) = mpsc::channel(64);
        let mut tasks = JoinSet::new();
        tasks.spawn_local(write(socket.clone(), queue));
        let incoming = Incoming { socket, decoder: Decoder::default(), descriptors: VecDeque::new() };
        let (own, finished) = (Rc::default(), Rc::default());
        let (programs, watchers) = (JoinSet::new(), JoinSet::new());
        let (follows, holds) = (false, false);
        Ok(Connection { keeper, incoming, replies, own, follows, finished, tasks, programs, watchers, holds })
    }

    async fn run(mut self) -> Closed {
        let keeper = self.keeper.clone();
        let closed = loop {
            tokio::select! {
                biased;
                () = self.finished.notified() => break Closed::ByUs,
                _ = keeper.wait(), if !self.follows => break Closed::ByUs,
                frame = self.incoming.next() => match frame {
                    Ok(Some((frame, descriptors))) => self.heard(frame, descriptors).await,
                    Ok(None) | Err(_) => break Closed::ByClient,
                },
            }
        };
        if self.holds {
            self.keeper.release().await;
        }
        let process = self.own.borrow().process;
        if closed == Closed::ByClient
            && let Some(process) = process
        {
            let _ = self.keeper.signal(process, signal::HUP).await;
        }
        self.programs.shutdown().await;
        self.watchers.shutdown().await;
        drop(self.replies);
        let _ = timeout(FLUSH, async { while self.tasks.join_next().await.is_some() {} }).await;
        closed
    }

    async fn heard(&mut self, frame: Frame, descriptors: Vec<OwnedFd>) {
        if frame.kind == Kind::Data {
            let terminal = self.own.borrow().terminal.clone();
            if let Some(terminal) = terminal.filter(|_| frame.stream == TERMINAL) {
                let _ = terminal.write(&frame.body).await;
            }
            return;
        }
        let reply = match frame.parse::<Request>() {
            Ok(request) => self.asked(request, descriptors).await,
            Err(err) => Some(Reply::Refused(unreadable(&err))),
        };
        if let Some(reply) = reply {
            say(&self.replies, &reply).await;
        }
    }

    async fn asked(&mut self, request: Request, descriptors: Vec<OwnedFd>) -> Option<Reply> {
        let done = |done: Result<(), Refusal>| Some(done.map_or_else(Reply::Refused, |()| Reply::Done));
        match request {
            Request::Get => Some(Reply::State(Box::new(self.keeper.state()))),
            Request::Exec(exec) => self.exec(exec, descriptors).await,
            Request::Copy(copy) => {
                if self.follows {
                    return Some(Reply::Refused(refusal("this connection already has a program")));
                }
                let copying = self.keeper.copy(copy, descriptors).await;
                self.follow(copying).await
            }
            Request::Signal { signal } => {
                let own = self.own.borrow().process;
                let sent = match own {
                    Some(process) => self.keeper.signal(process, signal).await,
                    None => self.keeper.signal_main(signal).await,
                };
                if self.follows { None } else { done(sent) }
            }
            Request::Resize(size) => self.resize(size).await,
            Request::Stop { grace_ms } => {
                let exit = self.keeper.end(self.keeper.stop_signal(), Duration::from_millis(grace_ms)).await;
                exit.map(Reply::Ended)
            }
            Request::Restart { grace_ms } => done(self.keeper.restart(Duration::from_millis(grace_ms)).await),
            Request::Wait => self.keeper.wait().await.map(Reply::Ended),
            Request::Pause => done(self.keeper.freeze(None).await),
            Request::Resume => done(self.keeper.thaw().await),
            Request::Hold => {
                let held = self.keeper.hold().await;
                self.holds |= held.as_ref().is_ok_and(|held| *held);
                done(held.map(drop))
            }
            Request::Policy => Some(Reply::Policy(self.keeper.gate().policy())),
            Request::SetPolicy(policy) => done(self.keeper.set_policy(policy, "set")),
            Request::AddRules { rules } => done(self.keeper.add_rules(rules, "command line")),
            Request::SetSecrets(values) => done(self.keeper.set_secrets(&values)),
            Request::Approvals => Some(Reply::Approvals { pending: self.keeper.gate().pending() }),
            Request::Answer(answer) => done(self.keeper.answer(&answer, "command line")),
            Request::Mount(shown) => done(self.keeper.mount(shown).await),
            Request::Unmount { target } => done(self.keeper.unmount(&target).await),
            Request::Rest => self.rest(descriptors).await,
            Request::Layer => self.handed(self.keeper.workspace_layer()).await,
            Request::Disk => self.handed(self.keeper.disk()).await,
            Request::Watch => {
                let (events, replies) = (self.keeper.gate().events(), self.replies.clone());
                self.watchers.spawn_local(tell_events(events, replies));
                Some(Reply::Done)
            }
        }
    }

    async fn resize(&self, size: WindowSize) -> Option<Reply> {
        let (terminal, process) = {
            let own = self.own.borrow();
            (own.terminal.clone(), own.process)
        };
        if terminal.is_some_and(|terminal| terminal.resize(size).is_ok()) {
            let _ = self.keeper.resized(process).await;
        }
        None
    }

    /// Has the machine stand still, and answers with whom to ask for its memory.
    async fn rest(&mut self, mut descriptors: Vec<OwnedFd>) -> Option<Reply> {
        let Some(known) = descriptors.pop() else {
            return Some(Reply::Refused(refusal(
                "a file for what is known of the machine has to travel along",
            )));
        };
        match self.keeper.rest(known).await {
            Ok((monitor, key)) => {
                self.holds = true;
                hand(&self.replies, &Reply::Resting { key }, monitor).await;
                None
            }
            Err(refusal) => Some(Reply::Refused(refusal)),
        }
    }

    /// Answers with a directory.
    async fn handed(&self, directory: Result<OwnedFd, Refusal>) -> Option<Reply> {
        match directory {
            Ok(directory) => {
                hand(&self.replies, &Reply::Layer, directory).await;
                None
            }
            Err(refusal) => Some(Reply::Refused(refusal)),
        }
    }

    async fn exec(&mut self, exec: Exec, passed: Vec<OwnedFd>) -> Option<Reply> {
        if self.follows {
            return Some(Reply::Refused(refusal("this connection already has a program")));
        }
        let started = self.keeper.exec(exec, passed, &mut self.programs).await;
        self.follow(started).await
    }

    /// Tells the client of a program of its own.
    async fn follow(&mut self, started: Result<Program, Refusal>) -> Option<Reply> {
        let program = match started {
            Err(refusal) => return Some(Reply::Refused(refusal)),
            Ok(program) => program,
        };
        say(&self.replies, &Reply::Started { pid: program.pid }).await;
        self.follows = true;
        self.own.replace(Own { process: Some(program.process), terminal: program.terminal.clone() });
        let (replies, finished, own) = (self.replies.clone(), self.finished.clone(), self.own.clone());
        self.tasks.spawn_local(async move {
            follow_program(program, &replies).await;
            own.borrow_mut().process = None;
            finished.notify_one();
        });
        None
    }

    fn follow_main(&mut self, news: mpsc::Receiver<News>) {
        self.follows = true;
        let (keeper, replies) = (self.keeper.clone(), self.replies.clone());
        let (finished, own) = (self.finished.clone(), self.own.clone());
        self.tasks.spawn_local(async move {
            follow_main(&keeper, news, &replies, &own).await;
            finished.notify_one();
        });
    }
}

/// Tells the client of its program until it has ended, output first.
async fn follow_program(mut program: Program, replies: &Replies) {
    let mut shown = program.terminal.as_ref().map(|terminal| terminal.watch());
    let end = loop {
        tokio::select! {
            Some(bytes) = next_shown(&mut shown) => show(replies, &bytes).await,
            event = program.events.recv() => match event {
                Some(Event::Ended(end)) => break Some(end),
                Some(Event::Stopped { signal }) => say(replies, &Reply::Stopped { signal }).await,
                Some(_) => {}
                None => break None,
            },
        }
    };
    {
        let mut read = std::pin::pin!(program.output_read());
        loop {
            tokio::select! {
                biased;
                Some(bytes) = next_shown(&mut shown) => show(replies, &bytes).await,
                () = &mut read => break,
            }
        }
    }
    show_rest(&mut shown, replies).await;
    let last = match end {
        Some(end) => Reply::ProgramEnded { end },
        None => Reply::Refused(refusal("the sandbox ended before the program did")),
    };
    say(replies, &last).await;
}

/// Tells the first client of the main program, through all its restarts.
async fn follow_main(keeper: &Keeper, mut news: mpsc::Receiver<News>, replies: &Replies, own: &RefCell<Own>) {
    let mut shown = None;
    let exit = loop {
        tokio::select! {
            biased;
            Some(bytes) = next_shown(&mut shown) => show(replies, &bytes).await,
            Some(item) = news.recv() => match item {
                News::Started { pid, terminal } => {
                    shown = terminal.as_ref().map(|terminal| terminal.watch());
                    own.borrow_mut().terminal = terminal;
                    say(replies, &Reply::Started { pid }).await;
                }
                News::Stopped { signal } => say(replies, &Reply::Stopped { signal }).await,
                News::Told(event) => say(replies, &Reply::Event(event)).await,
                News::Refused(refusal) => {
                    say(replies, &Reply::Refused(refusal)).await;
                    return;
                }
            },
            exit = keeper.wait() => break exit,
        }
    };
    show_rest(&mut shown, replies).await;
    if let Some(exit) = exit {
        say(replies, &Reply::Ended(exit)).await;
    }
}

/// Passes on what happens. A client that reads too slowly misses some of it; the gate never waits.
async fn tell_events(mut events: broadcast::Receiver<airlock_protocol::event::Event>, replies: Replies) {
    loop {
        match events.recv().await {
            Ok(event) => say(&replies, &Reply::Event(event)).await,
            Err(broadcast::error::RecvError::Lagged(_)) => {}
            Err(broadcast::error::RecvError::Closed) => return,
        }
    }
}

type Shown = Option<mpsc::Receiver<Vec<u8>>>;

async fn next_shown(shown: &mut Shown) -> Option<Vec<u8>> {
    shown.as_mut()?.recv().await
}

async fn show_rest(shown: &mut Shown, replies: &Replies) {
    while let Some(Ok(bytes)) = shown.as_mut().map(mpsc::Receiver::try_recv) {
        show(replies, &bytes).await;
    }
}

async fn show(replies: &Replies, bytes: &[u8]) {
    let _ = replies.send((Frame::data(TERMINAL, bytes).encode(), None)).await;
}

async fn say(replies: &Replies, reply: &Reply) {
    if let Ok(frame) = Frame::message(reply, 0) {
        let _ = replies.send((frame.encode(), None)).await;
    }
}

/// As [`say`], with a descriptor.
async fn hand(replies: &Replies, reply: &Reply, descriptor: OwnedFd) {
    if let Ok(frame) = Frame::message(reply, 1) {
        let _ = replies.send((frame.encode(), Some(descriptor))).await;
    }
}

async fn write(socket: Rc<AsyncFd<OwnedFd>>, mut queue: mpsc::Receiver<(Vec<u8>, Option<OwnedFd>)>) {
    while let Some((bytes, mut descriptor)) = queue.recv().await {
        let mut rest = bytes.as_slice();
        while !rest.is_empty() {
            let sent = socket
                .async_io(Interest::WRITABLE, |socket| {
                    let handed: Vec<_> = descriptor.iter().map(AsFd::as_fd).collect();
                    fd::send_with_fds(socket.as_fd(), rest, &handed)
                })
                .await;
            match sent {
                Ok(count) => rest = rest.get(count..).unwrap_or_default(),
                Err(_) => return,
            }
            // It went with the first bytes.
            descriptor = None;
        }
    }
}

/// Frames of a client with the descriptors that came with them.
struct Incoming {
    socket: Rc<AsyncFd<OwnedFd>>,
    decoder: Decoder,
    descriptors: VecDeque<OwnedFd>,
}

impl Incoming {
    async fn next(&mut self) -> io::Result<Option<(Frame, Vec<OwnedFd>)>> {
        loop {
            if let Some(frame) = self.decoder.next().map_err(io::Error::other)? {
                let count = usize::from(frame.descriptors).min(self.descriptors.len());
                return Ok(Some((frame, self.descriptors.drain(..count).collect())));
            }
            let mut bytes = [0u8; 32 * 1024];
            let mut descriptors = Vec::new();
            let count = self
                .socket
                .async_io(Interest::READABLE, |socket| {
                    fd::receive_with_fds(socket.as_fd(), &mut bytes, &mut descriptors)
                })
                .await?;
            if count == 0 || self.descriptors.len() + descriptors.len() > MOST_DESCRIPTORS {
                return Ok(None);
            }
            self.descriptors.extend(descriptors);
            self.decoder.feed(bytes.get(..count).unwrap_or_default());
        }
    }
}

fn unreadable(err: &Malformed) -> Refusal {
    let mut refusal = refusal("the keeper does not understand this request");
    refusal.why = Some(err.to_string());
    refusal.fix = Some("use the version of airlock that started the sandbox".to_owned());
    refusal
}

fn refusal(what: &str) -> Refusal {
    Refusal { code: 125, what: what.to_owned(), why: None, fix: None }
}
