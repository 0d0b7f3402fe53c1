//! Being a keeper: what runs behind `airlock keep`. Nobody types it.
//!
//! The command that starts a sandbox leaves two descriptors open: its connection (3) and the lock (4).

use crate::{
    args::KeepArgs,
    failure::{Failure, Outcome},
    home,
    place::{self, Place},
    visit,
};
use airlock_backends::namespaces::perform_inside;
use airlock_doors::control::server::{self, First};
use airlock_engine::{
    inside,
    keeper::{
        self, Keeper, Tasks,
        birth::{self, Born, Guest, Keep, Wish},
        life::{self, News},
    },
    store::{Lock, Sandbox},
};
use airlock_linux::fd;
use airlock_protocol::{
    control::{Begin, Owner, Refusal, Reply},
    frame::{Decoder, Frame},
    secret::Values,
    spec::Spec,
    state::{Cause, Exit, Status},
};
use std::{
    io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::net::UnixListener,
    },
    rc::Rc,
};

/// The program that becomes PID 1 of every sandbox.
pub(crate) static GUEST: Guest<'static> =
    Guest { id: env!("AIRLOCK_GUEST_ID"), program: include_bytes!(env!("AIRLOCK_GUEST")) };

const CONNECTION: i32 = 3;
const LOCK: i32 = 4;

/// Owns the sandbox until it ends. Whoever started it may know its spec already.
pub(crate) fn run(args: &KeepArgs, spec: Option<Spec>) -> Outcome {
    let inherited = |number| {
        fd::inherited(number)
            .map_err(|_| Failure::new("`airlock keep` is started by airlock itself, for each sandbox"))
    };
    let (socket, lock) = (inherited(CONNECTION)?, Lock::inherited(inherited(LOCK)?));
    let sandbox = home::store()?.sandbox(&args.id);
    let first = hear(&socket);
    if let Ok(first) = &first
        && first.begin.owner == Owner::Visit
    {
        return visit::keep(&sandbox, lock, socket, &first.begin);
    }
    match begin(first, &sandbox, spec) {
        Ok((born, place, listener, first)) => keep(&sandbox, lock, (born, &place), listener, (socket, first)),
        Err(refusal) => Ok(refuse(&sandbox, lock, &socket, refusal)),
    }
}

/// Says that nothing runs, when nothing is left of it.
fn refuse(sandbox: &Sandbox, lock: Lock, socket: &OwnedFd, refusal: Refusal) -> u8 {
    lay_down(sandbox, lock, &refusal);
    let code = refusal.code;
    let _ = say(socket, &Reply::Refused(refusal));
    code
}

/// Changes the mounts of a running sandbox, as its keeper says.
pub(crate) fn inside() -> Outcome {
    let socket = fd::inherited(inside::SOCKET)
        .map_err(|_| Failure::new("`airlock inside` is started by the keeper of a sandbox"))?;
    perform_inside(&socket)?;
    Ok(0)
}

/// Nothing ran: a sandbox that never was leaves nothing behind, one that was started anew is stopped as before. Whoever
/// hears of the refusal finds it so.
fn lay_down(sandbox: &Sandbox, lock: Lock, refusal: &Refusal) {
    let done = match sandbox.state() {
        Ok(mut state) if state.started_at.is_some() || has_files(sandbox) => {
            let cause = Cause::NotStarted { why: refusal.what.clone() };
            state.status = Status::Stopped;
            state.exit = Some(Exit { code: refusal.code, cause, at: airlock_engine::store::now() });
            (state.keeper_pid, state.init_pid) = (None, None);
            state.cgroups.clear();
            sandbox.write_state(&state)
        }
        _ => {
            return sandbox.clone().remove(lock).unwrap_or_else(|err| keeper::note(&err.to_string()));
        }
    };
    if let Err(err) = done {
        keeper::note(&err.to_string());
    }
    drop(lock);
}

/// Whether it goes on from files of another.
fn has_files(sandbox: &Sandbox) -> bool {
    sandbox.chain().map_or(true, |chain| !chain.layers.is_empty())
}

/// What the first client sent.
struct Started {
    begin: Begin,
    passed: Vec<OwnedFd>,
}

fn begin(
    first: io::Result<Started>,
    sandbox: &Sandbox,
    spec: Option<Spec>,
) -> Result<(Born, Place, UnixListener, Started), Refusal> {
    let refused = |what: &str| {
        let what = what.to_owned();
        move |err: io::Error| Refusal { code: 125, what, why: Some(err.to_string()), fix: None }
    };
    keeper::forbid_memory_images().map_err(refused("memory images of the keeper cannot be forbidden"))?;
    let mut first = first.map_err(refused("the command that starts this sandbox said nothing"))?;
    let listener = server::listen(sandbox).map_err(refused("nobody could connect to this sandbox"))?;
    let spec = spec.map_or_else(|| birth::spec_of(sandbox), Ok)?;
    let place = place::choose(sandbox, &spec)?;
    let wish = Wish { spec, passed: &first.passed, begin: &first.begin };
    let born = birth::build(sandbox, place.backend(), place.first(), wish)?;
    // They are the gate's now.
    first.begin.values = Values::default();
    Ok((born, place, listener, first))
}

fn keep(
    sandbox: &Sandbox,
    lock: Lock,
    (born, place): (Born, &Place),
    listener: UnixListener,
    (socket, first): (OwnedFd, Started),
) -> Outcome {
    let failed = |err: io::Error| Failure::because(format!("could not keep sandbox {}", sandbox.id()), &err);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
    let local = tokio::task::LocalSet::new();
    let lived = local.block_on(&runtime, live((born, place), listener, socket, first));
    drop(local);
    drop(runtime);
    match lived.map_err(failed)? {
        Lived::Whole { keeper, keep, code } => {
            match Rc::try_unwrap(keeper) {
                Ok(keeper) => birth::bury(keeper, place.backend(), lock, keep),
                Err(_) => keeper::note("something still holds the sandbox"),
            }
            Ok(code)
        }
        Lived::Never { keeper, refusal, socket } => {
            match Rc::try_unwrap(keeper) {
                Ok(keeper) => birth::give_up(keeper),
                Err(_) => keeper::note("something still holds the sandbox"),
            }
            Ok(refuse(sandbox, lock, &socket, refusal))
        }
    }
}

/// How a sandbox ended.
enum Lived {
    /// It had a program.
    Whole { keeper: Rc<Keeper>, keep: Keep, code: u8 },
    /// It was not sealed.
    Never { keeper: Rc<Keeper>, refusal: Refusal, socket: OwnedFd },
}

async fn live(
    (born, place): (Born, &Place),
    listener: UnixListener,
    socket: OwnedFd,
    first: Started,
) -> io::Result<Lived> {
    let mut tasks = Tasks::new();
    let mut awake = born.wake(first.passed, &mut tasks)?;
    let keeper = awake.keeper;
    awake.life.ask_ahead(&keeper, &mut tasks).await;
    if let Err(refusal) = birth::sealed(&keeper, place.backend()).await {
        drop(awake.life);
        tasks.shutdown().await;
        return Ok(Lived::Never { keeper, refusal, socket });
    }
    let news = awake.life.news.clone();
    let first = First { socket, owner: first.begin.owner, news: awake.news };
    let mut door = Tasks::new();
    door.spawn_local(server::serve(keeper.clone(), listener, first));
    let outcome = life::run(&keeper, awake.life, &mut tasks).await;
    let outcome = outcome.map_err(|refusal| keeper.farewell(place.backend()).unwrap_or(refusal));
    birth::finish(&keeper, &outcome, &news).await;
    let stays = keeper.stays() && outcome.is_ok();
    let keep = if stays { Keep::Yes } else { Keep::No(keeper.retire()) };
    let exit = match outcome {
        Ok(exit) => exit,
        Err(refusal) => {
            let exit = Exit {
                code: refusal.code,
                cause: Cause::NotStarted { why: refusal.what.clone() },
                at: airlock_engine::store::now(),
            };
            let _ = news.send(News::Refused(refusal)).await;
            exit
        }
    };
    drop(news);
    let code = exit.code;
    keeper.announce(exit);
    while door.join_next().await.is_some() {}
    tasks.shutdown().await;
    Ok(Lived::Whole { keeper, keep, code })
}

/// Waits for the first message, which carries the program's streams.
fn hear(socket: &OwnedFd) -> io::Result<Started> {
    let mut decoder = Decoder::default();
    let mut passed = Vec::new();
    let mut bytes = [0u8; 4096];
    loop {
        let count = fd::receive_with_fds(socket.as_fd(), &mut bytes, &mut passed)?;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        decoder.feed(bytes.get(..count).unwrap_or_default());
        if let Some(frame) = decoder.next().map_err(io::Error::other)? {
            return Ok(Started { begin: frame.parse().map_err(io::Error::other)?, passed });
        }
    }
}

pub(crate) fn say(socket: &OwnedFd, reply: &Reply) -> io::Result<()> {
    let frame = Frame::message(reply, 0).map_err(io::Error::other)?;
    fd::send_all(socket.as_fd(), &frame.encode(), &[])
}
