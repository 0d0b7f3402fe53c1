//! What the keeper passes, as streams: which way bytes go is told by what a descriptor is.

use crate::mux::{Endpoint, Owner, Ways};
use airlock_protocol::carry::{Kind, Modes, Size, Terminal};
use rustix::{
    fs::{FileType, OFlags},
    termios::{OptionalActions, SpecialCodeIndex},
};
use std::{
    io,
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
};

/// Each a control character, in the order of `c_cc`.
pub(crate) const CHARACTERS: [SpecialCodeIndex; 17] = [
    SpecialCodeIndex::VINTR,
    SpecialCodeIndex::VQUIT,
    SpecialCodeIndex::VERASE,
    SpecialCodeIndex::VKILL,
    SpecialCodeIndex::VEOF,
    SpecialCodeIndex::VTIME,
    SpecialCodeIndex::VMIN,
    SpecialCodeIndex::VSWTC,
    SpecialCodeIndex::VSTART,
    SpecialCodeIndex::VSTOP,
    SpecialCodeIndex::VSUSP,
    SpecialCodeIndex::VEOL,
    SpecialCodeIndex::VREPRINT,
    SpecialCodeIndex::VDISCARD,
    SpecialCodeIndex::VWERASE,
    SpecialCodeIndex::VLNEXT,
    SpecialCodeIndex::VEOL2,
];

/// `/dev/null`
const NULL: (u32, u32) = (1, 3);

/// What a descriptor is; `place` is its place among those of its message: who reads from the first writes to the others.
pub(super) fn look(descriptor: &OwnedFd, place: usize) -> io::Result<Kind> {
    let stat = rustix::fs::fstat(descriptor)?;
    let device = (rustix::fs::major(stat.st_rdev), rustix::fs::minor(stat.st_rdev));
    let kind = FileType::from_raw_mode(stat.st_mode);
    if kind == FileType::CharacterDevice && device == NULL {
        return Ok(Kind::Nothing);
    }
    if rustix::termios::isatty(descriptor) {
        return Ok(Kind::Terminal(terminal(descriptor)?));
    }
    let access = rustix::fs::fcntl_getfl(descriptor)? & OFlags::RWMODE;
    Ok(match (access, kind) {
        (_, FileType::Socket) => Kind::Both,
        (OFlags::RDONLY, _) => Kind::Input,
        (OFlags::WRONLY, _) => Kind::Output,
        // Reading ahead in a file would move where the next write goes.
        _ if place == 0 => Kind::Input,
        _ => Kind::Output,
    })
}

/// Whether both are the same open file, as far as can be told: then they are one stream, and keep the order of what is
/// written to them.
pub(super) fn are_one(a: &OwnedFd, b: &OwnedFd) -> bool {
    let facts = |fd: &OwnedFd| -> io::Result<_> {
        let stat = rustix::fs::fstat(fd)?;
        let access = rustix::fs::fcntl_getfl(fd)? & OFlags::RWMODE;
        let position = rustix::fs::tell(fd).unwrap_or(0);
        Ok((stat.st_dev, stat.st_ino, stat.st_rdev, access, position))
    };
    matches!((facts(a), facts(b)), (Ok(a), Ok(b)) if a == b)
}

/// A descriptor as this end of a stream; `None` where there is none.
pub(super) fn endpoint(descriptor: OwnedFd, kind: &Kind) -> io::Result<Option<(Endpoint, Ways)>> {
    let (owner, ways) = match kind {
        Kind::Nothing => return Ok(None),
        Kind::Input => (Owner::Others, Ways::Out),
        Kind::Output => (Owner::Others, Ways::In),
        Kind::Both => (Owner::Others, Ways::Both),
        Kind::Terminal(_) => {
            pass_everything(&descriptor)?;
            // The keeper made it for this program, and holds the other side of it.
            (Owner::Us, Ways::Both)
        }
    };
    Ok(Some((Endpoint::new(descriptor, owner)?, ways)))
}

/// The size of a terminal now; nothing of what is none.
pub(super) fn size(terminal: BorrowedFd<'_>) -> Option<Size> {
    let size = rustix::termios::tcgetwinsize(terminal).ok()?;
    Some(Size { rows: size.ws_row, columns: size.ws_col })
}

fn terminal(descriptor: &OwnedFd) -> io::Result<Terminal> {
    let modes = rustix::termios::tcgetattr(descriptor)?;
    let characters = CHARACTERS.iter().map(|index| modes.special_codes[*index]).collect();
    Ok(Terminal {
        size: size(descriptor.as_fd()).unwrap_or(Size { rows: 0, columns: 0 }),
        modes: Modes {
            input: modes.input_modes.bits(),
            output: modes.output_modes.bits(),
            control: modes.control_modes.bits(),
            local: modes.local_modes.bits(),
            characters,
        },
    })
}

/// The terminal in the machine does what a terminal does; this one only passes bytes.
fn pass_everything(terminal: &OwnedFd) -> io::Result<()> {
    let mut modes = rustix::termios::tcgetattr(terminal)?;
    modes.make_raw();
    Ok(rustix::termios::tcsetattr(terminal, OptionalActions::Now, &modes)?)
}
