//! Standing still, so that the memory of the machine can be saved: programs are frozen, everything they wrote is on the host, and
//! nothing is on its way on either port. What goes on is this machine, or a copy of it that somebody else carries.

use super::{orders, serve::Served};
use crate::mux::{Broken, Violation};
use airlock_protocol::carry::{Message, Resume};
use rustix::thread::LinkNameSpaceType;
use std::{
    fs, io,
    os::fd::AsFd as _,
    path::Path,
    thread,
    time::{Duration, Instant},
};

/// How long programs may take to stand still.
const PATIENCE: Duration = Duration::from_secs(20);
const PAUSE: Duration = Duration::from_millis(1);

/// Rests until the host says otherwise.
pub(super) fn rest(served: &mut Served) -> Result<(), Broken> {
    if !is_still(served) {
        served.files().rise();
        let _ = thaw();
        return served.say(&Message::Restless).map_err(Broken::Port);
    }
    served.say(&Message::Resting).map_err(Broken::Port)?;
    served.mux().drain()?;
    loop {
        match served.mux().await_message()? {
            Message::Resume(resume) => {
                come_to(served, &resume).map_err(Broken::Port)?;
                served.say(&Message::Ready).map_err(Broken::Port)?;
                served.mux().drain()?;
            }
            Message::Rise => break,
            _ => return Err(Broken::Rules(Violation::Unexpected)),
        }
    }
    served.files().rise();
    thaw().map_err(Broken::Port)
}

fn is_still(served: &Served) -> bool {
    let files = served.files();
    freeze().is_ok() && files.settle().is_ok() && files.rest()
}

/// The time, random numbers that no copy has, and its own name.
fn come_to(served: &Served, resume: &Resume) -> io::Result<()> {
    orders::set_clock(resume.now)?;
    airlock_linux::random::seed(&resume.seed)?;
    if !resume.is_copy {
        return Ok(());
    }
    airlock_linux::net::machine::reset_connections()?;
    rename(served.names(), &resume.hostname)
}

/// Sets the host name in the namespace of the programs.
fn rename(namespace: &Path, name: &str) -> io::Result<()> {
    let namespace = fs::File::open(namespace)?;
    let name = name.to_owned();
    let work = move || -> io::Result<()> {
        let kind = LinkNameSpaceType::HostNameAndNISDomainName;
        rustix::thread::move_into_link_name_space(namespace.as_fd(), Some(kind))?;
        Ok(rustix::system::sethostname(name.as_bytes())?)
    };
    // A thread of its own: it does not come back.
    let worker = thread::Builder::new().name("name".to_owned()).stack_size(64 << 10).spawn(work)?;
    worker.join().map_err(|_| io::Error::other("the thread that sets the host name died"))?
}

fn freeze() -> io::Result<()> {
    fs::write(Path::new(orders::GROUP).join("cgroup.freeze"), "1")?;
    let deadline = Instant::now() + PATIENCE;
    loop {
        let events = fs::read_to_string(Path::new(orders::GROUP).join("cgroup.events"))?;
        if events.lines().any(|line| line == "frozen 1") {
            return Ok(());
        }
        if Instant::now() >= deadline {
            return Err(io::ErrorKind::TimedOut.into());
        }
        thread::sleep(PAUSE);
    }
}

fn thaw() -> io::Result<()> {
    fs::write(Path::new(orders::GROUP).join("cgroup.freeze"), "0")
}
