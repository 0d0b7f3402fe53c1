//! The end in the machine: `/init`.
//!
//! - [`boot`]: until it waits for its orders; there a warm machine is saved
//! - [`orders`]: what it is for
//! - [`files`]: the root, which the host serves
//! - [`disk`]: a root on disks, and what is served over it
//! - [`inside`]: the process that becomes the guest
//! - [`published`]: connections from outside to its loopback address
//! - [`rest`]: standing still, so that its memory can be saved
//! - [`serve`], [`descriptors`]: messages and streams between host and guest
//! - [`settle`]: everything is written before an end is told

mod boot;
mod descriptors;
mod disk;
mod files;
mod inside;
mod orders;
mod published;
mod rest;
mod serve;
mod settle;

use crate::{
    link::{Link, Peer},
    mux::Mux,
};
use airlock_linux::{
    clone::{self, Namespaces, Side},
    fd,
};
use airlock_protocol::carry::{Configure, MOST_WORDS, Message};
use files::Files;
use rustix::{
    fs::{Mode, OFlags},
    process::Pid,
};
use std::{
    fmt::Display,
    io,
    os::fd::{AsFd as _, OwnedFd},
    path::PathBuf,
    sync::Arc,
};

/// Something that could not be done, and why not.
#[derive(Debug, thiserror::Error)]
#[error("could not {step}: {why}")]
struct Failed {
    step: String,
    why: String,
}

trait During<T> {
    /// Says what was being done.
    fn during(self, step: &str) -> Result<T, Failed>;
}

impl<T, E: Display> During<T> for Result<T, E> {
    fn during(self, step: &str) -> Result<T, Failed> {
        self.map_err(|err| Failed { step: step.to_owned(), why: err.to_string() })
    }
}

/// Runs until the guest or the host is gone, then ends the machine.
pub(crate) fn run() -> io::Result<()> {
    let ended = match boot::boot() {
        Err(failed) => Err(failed),
        Ok(ports) => orders::wait(&ports.link).and_then(|configure| work(ports, &configure)),
    };
    if let Err(failed) = ended {
        eprintln!("airlock-carrier: {failed}");
    }
    // What lies on a disk of its own is there at the next start.
    rustix::fs::sync();
    // Every VMM takes a restart for the end; not every one has a switch to turn off.
    rustix::system::reboot(rustix::system::RebootCommand::Restart)?;
    Ok(())
}

/// Builds what was ordered and carries. What fails is told to the host.
fn work(ports: boot::Ports, configure: &Configure) -> Result<(), Failed> {
    let told = ports.link.try_clone().during("keep the port")?;
    let tell = |failed: Failed| {
        let why = failed.to_string().chars().take(MOST_WORDS / 4).collect();
        let bytes = Message::Failed(why).encode().unwrap_or_default();
        let _ = rustix::io::write(&told, &bytes);
        failed
    };
    let mut served = build(ports, configure).map_err(tell)?;
    served.say(&Message::Ready).during("say that the machine is ready")?;
    loop {
        match served.turn() {
            Ok(Peer::There) => {}
            Ok(Peer::Gone) => {
                served.say(&Message::Failed("its guest has ended".to_owned())).during("say goodbye")?;
                served.finish();
                return Ok(());
            }
            Err(broken) => return Err(broken).during("carry on").map_err(tell),
        }
    }
}

fn build(ports: boot::Ports, configure: &Configure) -> Result<serve::Served, Failed> {
    let machine = &configure.machine;
    orders::follow(configure)?;
    orders::network(machine)?;
    let group = orders::group(machine)?;
    let terminals = inside::terminals(machine)?;
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let guest = rustix::fs::open("/guest", flags, Mode::empty()).during("open the guest")?;
    let (link, their_link) = fd::pair().during("make a socket pair")?;
    let (talk, their_talk) = fd::pair().during("make a socket pair")?;
    let forked =
        clone::fork(Namespaces::WITHIN, Some(group.as_fd())).during("make the guest's namespaces")?;
    let child = match forked {
        Side::Child => {
            drop((link, talk, ports));
            let (machine, terminals) = (machine.clone(), terminals);
            inside::run(inside::Inside { machine, terminals, guest, link: their_link, talk: their_talk })
        }
        Side::Parent(child) => child,
    };
    drop((their_link, their_talk));
    // From here on this process has more than one thread.
    let files = Arc::new(Files::mount(ports.files).during("mount the served files")?);
    let disks = machine.disks.as_ref().map(|_| disk::mount()).transpose()?;
    let root = disks.as_ref().map(|(root, _)| root.as_fd());
    let trees: Vec<_> = [files.tree()].into_iter().chain(root).collect();
    fd::send_all(talk.as_fd(), b"r", &trees).during("speak to the guest's process")?;
    await_guest(&talk)?;
    let guest = Link::new(link).during("speak to the guest")?;
    let mux = Mux::new(ports.link).during("use the port")?;
    published::take_in().during("take in published connections")?;
    let (settled, own) = (files.clone(), disks.map(|(_, own)| own));
    let settle = move || {
        drop(settled.settle());
        let _ = own.as_ref().map(rustix::fs::syncfs);
    };
    let settling = settle::Settling::start(settle).during("start a thread")?;
    let inside = serve::Inside { terminals, names: names_of(child.pid), files };
    serve::Served::new(guest, mux, inside, settling).during("watch the files")
}

/// The namespace in which a process's host name is.
fn names_of(process: Pid) -> PathBuf {
    format!("/proc/{}/ns/uts", process.as_raw_nonzero()).into()
}

/// The process says why it cannot become the guest; where it does, nothing is said and this end closes.
fn await_guest(talk: &OwnedFd) -> Result<(), Failed> {
    let (mut words, mut bytes) = (Vec::new(), [0; 512]);
    loop {
        match rustix::io::read(talk, &mut bytes) {
            Ok(0) if words.is_empty() => return Ok(()),
            Ok(0) => return Err(String::from_utf8_lossy(&words)).during("start the guest"),
            Ok(count) => words.extend_from_slice(bytes.get(..count).unwrap_or_default()),
            Err(rustix::io::Errno::INTR) => {}
            Err(err) => return Err(err).during("start the guest"),
        }
    }
}
