//! Streams as descriptors again.

use crate::{
    host::descriptors::CHARACTERS,
    mux::{Endpoint, Owner, Ways},
};
use airlock_linux::{fd, pty};
use airlock_protocol::{
    carry::{Kind, Terminal},
    guest::User,
};
use rustix::{
    fs::{Gid, Uid},
    termios::{ControlModes, InputModes, LocalModes, OptionalActions, OutputModes},
};
use std::{
    fs::File,
    io,
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
};

/// What a program gets, and this end of its stream.
pub(super) struct Made {
    pub(super) theirs: OwnedFd,
    pub(super) ours: Option<(Endpoint, Ways)>,
}

/// Makes the descriptor of a stream; `user` owns a pipe, so that `/dev/stdout` can be opened.
pub(super) fn make(kind: &Kind, terminals: BorrowedFd<'_>, user: Option<&User>) -> io::Result<Made> {
    let (theirs, ours, ways) = match kind {
        Kind::Nothing => {
            let null = File::options().read(true).write(true).open("/dev/null")?;
            return Ok(Made { theirs: null.into(), ours: None });
        }
        Kind::Input => {
            let (read, write) = io::pipe()?;
            (OwnedFd::from(read), OwnedFd::from(write), Ways::In)
        }
        Kind::Output => {
            let (read, write) = io::pipe()?;
            (OwnedFd::from(write), OwnedFd::from(read), Ways::Out)
        }
        Kind::Both => {
            let (theirs, ours) = fd::pair()?;
            (theirs, ours, Ways::Both)
        }
        Kind::Terminal(terminal) => {
            let pty = pty::open(terminals)?;
            dress(&pty.slave, terminal)?;
            (pty.slave, pty.master, Ways::Both)
        }
    };
    if let (Kind::Input | Kind::Output, Some(user)) = (kind, user) {
        rustix::fs::fchown(&theirs, Some(Uid::from_raw(user.uid)), Some(Gid::from_raw(user.gid)))?;
    }
    Ok(Made { theirs, ours: Some((Endpoint::new(ours, Owner::Us)?, ways)) })
}

/// Gives a terminal the size and the modes of the one it stands for.
fn dress(slave: &OwnedFd, like: &Terminal) -> io::Result<()> {
    let mut modes = rustix::termios::tcgetattr(slave)?;
    modes.input_modes = InputModes::from_bits_retain(like.modes.input);
    modes.output_modes = OutputModes::from_bits_retain(like.modes.output);
    modes.control_modes = ControlModes::from_bits_retain(like.modes.control);
    modes.local_modes = LocalModes::from_bits_retain(like.modes.local);
    for (index, character) in CHARACTERS.iter().zip(&like.modes.characters) {
        modes.special_codes[*index] = *character;
    }
    rustix::termios::tcsetattr(slave.as_fd(), OptionalActions::Now, &modes)?;
    pty::resize(slave, like.size.rows, like.size.columns)
}
