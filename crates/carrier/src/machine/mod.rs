//! The end in the machine: `/init`.
//!
//! - [`boot`]: what every machine does first
//! - [`prepared`]: what is made before it knows what it is for; when that is done a warm machine is saved
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
mod prepared;
mod published;
mod rest;
mod serve;
mod settle;

use crate::{
    link::{Link, Peer},
    mux::Mux,
};
use airlock_linux::fd;
use airlock_protocol::carry::{Configure, MOST_WORDS, Message};
use files::Files;
use prepared::Prepared;
use rustix::process::Pid;
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
    if let Err(failed) = boot_and_work() {
        eprintln!("airlock-carrier: {failed}");
    }
    // What lies on a disk of its own is there at the next start.
    rustix::fs::sync();
    // Every VMM takes a restart for the end; not every one has a switch to turn off.
    rustix::system::reboot(rustix::system::RebootCommand::Restart)?;
    Ok(())
}

fn boot_and_work() -> Result<(), Failed> {
    boot::boot()?;
    let prepared = prepared::make()?;
    // Who saves a warm machine does it when both are open.
    let ports = boot::open_ports()?;
    let configure = orders::wait(&ports.link)?;
    work(prepared, ports, &configure)
}

/// Builds what was ordered and carries. What fails is told to the host.
fn work(prepared: Prepared, ports: boot::Ports, configure: &Configure) -> Result<(), Failed> {
    let told = ports.link.try_clone().during("keep the port")?;
    let tell = |failed: Failed| {
        let why = failed.to_string().chars().take(MOST_WORDS / 4).collect();
        let bytes = Message::Failed(why).encode().unwrap_or_default();
        let _ = rustix::io::write(&told, &bytes);
        failed
    };
    let mut served = build(prepared, ports, configure).map_err(tell)?;
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

fn build(prepared: Prepared, ports: boot::Ports, configure: &Configure) -> Result<serve::Served, Failed> {
    let machine = &configure.machine;
    let Prepared { guest, link, talk } = prepared;
    orders::follow(configure)?;
    orders::limit(machine)?;
    let terminals = inside::terminals(machine)?;
    // From here on this process has more than one thread.
    let files = Arc::new(Files::mount(ports.files).during("mount the served files")?);
    let disks = machine.disks.as_ref().map(|_| disk::mount()).transpose()?;
    let root = disks.as_ref().map(|(root, _)| root.as_fd());
    let told = inside::told(machine).during("speak to the guest's process")?;
    let given: Vec<_> = [told.as_fd(), terminals.as_fd(), files.tree()].into_iter().chain(root).collect();
    fd::send_all(talk.as_fd(), b"r", &given).during("speak to the guest's process")?;
    await_guest(&talk)?;
    let names = names_of(guest);
    let guest = Link::new(link).during("speak to the guest")?;
    let mux = Mux::new(ports.link).during("use the port")?;
    published::take_in().during("take in published connections")?;
    let (settled, own) = (files.clone(), disks.map(|(_, own)| own));
    let settle = move || {
        drop(settled.settle());
        let _ = own.as_ref().map(rustix::fs::syncfs);
    };
    let settling = settle::Settling::start(settle).during("start a thread")?;
    let inside = serve::Inside { terminals, names, files };
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
