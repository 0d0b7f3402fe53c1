//! The device: its descriptor is the machine's end of the cable.

use crate::net::seat::{During as _, Error};
use rustix::{
    fs::{Mode, OFlags},
    net::{AddressFamily, SocketType},
};
use std::{
    io,
    os::fd::{AsRawFd, OwnedFd},
    path::Path,
};

/// What TAPs are made of.
pub const DEVICE: &str = "/dev/net/tun";
/// Its numbers.
const NUMBERS: (u32, u32) = (10, 200);
/// What the TAP is called in its network namespace.
pub const NAME: &str = "machine";
/// Each frame has this before it, as machines expect it (linux/virtio_net.h, `struct virtio_net_hdr_mrg_rxbuf`).
pub(super) const HEADER: usize = 12;

// linux/if_tun.h
const SET_DEVICE: libc::Ioctl = 0x4004_54ca;
const SET_HEADER: libc::Ioctl = 0x4004_54d8;
const SET_LASTING: libc::Ioctl = 0x4004_54cb;
const TAP: libc::c_short = 0x0002;
const NO_PROTOCOL: libc::c_short = 0x1000;
const WITH_HEADER: libc::c_short = 0x4000;

/// Opens what TAPs are made of, for the network namespace this process is in. Whoever opens it needs no power there, only
/// leave to open the file.
pub fn open() -> io::Result<OwnedFd> {
    let device = crate::mount::open_device(Path::new(DEVICE), NUMBERS.0, NUMBERS.1)?;
    let path = format!("/proc/self/fd/{}", device.as_raw_fd());
    Ok(rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK, Mode::empty())?)
}

/// Makes the TAP, which is down and goes when its descriptor is closed. Gives back its index.
pub(in crate::net) fn make(device: &OwnedFd) -> Result<u32, Error> {
    // SAFETY: all-zero is a valid request.
    let mut wanted: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in wanted.ifr_name.iter_mut().zip(NAME.bytes()) {
        *to = from.cast_signed() as libc::c_char;
    }
    wanted.ifr_ifru.ifru_flags = TAP | NO_PROTOCOL | WITH_HEADER;
    // SAFETY: the request takes a whole `ifreq`, which outlives the call.
    let made = unsafe { libc::ioctl(device.as_raw_fd(), SET_DEVICE, &raw mut wanted) };
    done(made).during("make a TAP for the machine (tun)")?;
    let header =
        libc::c_int::try_from(HEADER).map_err(io::Error::other).during("set up the machine's TAP")?;
    // SAFETY: the request takes an `int`, which outlives the call.
    let set = unsafe { libc::ioctl(device.as_raw_fd(), SET_HEADER, &raw const header) };
    done(set).during("set up the machine's TAP")?;
    index(NAME).during("find the machine's TAP")
}

/// Lets go of a TAP, which stays in its network: whoever is there and may open the file takes it by its name. It goes with that network.
pub fn leave(device: OwnedFd) -> io::Result<()> {
    // SAFETY: the request takes a number.
    done(unsafe { libc::ioctl(device.as_raw_fd(), SET_LASTING, 1) })
}

/// The index of a device of this network.
pub(super) fn index(name: &str) -> io::Result<u32> {
    let socket = super::super::sockets::socket(AddressFamily::INET, SocketType::DGRAM)?;
    Ok(rustix::net::netdevice::name_to_index(socket, name)?)
}

fn done(result: libc::c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
