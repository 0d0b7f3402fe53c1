//! Device nodes that can be opened. Opening is all that is done; nothing is made.

use super::{Answer, No};
use rustix::fs::{Mode, OFlags};
use std::{
    fs, io,
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::fs::MetadataExt,
    },
};

/// What this process may open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Devices {
    /// `/dev/fuse`.
    pub fuse: Answer,
    /// `/dev/net/tun`.
    pub tun: Answer,
    /// `/dev/kvm`, and whether it answers as a virtual machine monitor expects.
    pub kvm: Answer,
    /// Whether a group other than root's may use `/dev/kvm`.
    pub is_kvm_of_a_group: bool,
    /// `/dev/loop-control`.
    pub loops: Answer,
}

/// linux/kvm.h; the version has been 12 since 2007.
const KVM_GET_API_VERSION: libc::c_ulong = 0xAE00;
const KVM_API_VERSION: libc::c_int = 12;

impl Devices {
    /// Opens and closes each.
    #[must_use]
    pub fn read() -> Devices {
        Devices {
            fuse: open("/dev/fuse").into(),
            tun: open("/dev/net/tun").into(),
            kvm: kvm(),
            is_kvm_of_a_group: fs::metadata("/dev/kvm")
                .is_ok_and(|meta| meta.gid() != 0 && meta.mode() & 0o060 == 0o060),
            loops: open("/dev/loop-control").into(),
        }
    }
}

fn open(path: &str) -> io::Result<OwnedFd> {
    Ok(rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK, Mode::empty())?)
}

fn kvm() -> Answer {
    let device = match open("/dev/kvm") {
        Ok(device) => device,
        Err(err) => return Answer::No(No::from(&err)),
    };
    // SAFETY: the request takes no argument and the descriptor is open.
    let version = unsafe { libc::ioctl(device.as_raw_fd(), KVM_GET_API_VERSION as _, 0) };
    match version {
        KVM_API_VERSION => Answer::Yes,
        ..0 => Answer::No(No::from(&io::Error::last_os_error())),
        other => {
            Answer::No(No { errno: 0, said: format!("it speaks version {other} and not {KVM_API_VERSION}") })
        }
    }
}
