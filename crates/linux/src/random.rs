//! The kernel's random numbers, in a machine that has been somebody else's before.

use rustix::fs::{Mode, OFlags};
use std::{
    io,
    os::fd::{AsRawFd as _, OwnedFd},
};

/// Most bytes of a seed.
pub const MOST: usize = 256;

/// `struct rand_pool_info` (include/uapi/linux/random.h) with room for a seed.
#[repr(C)]
struct Pool {
    entropy_bits: libc::c_int,
    bytes: libc::c_int,
    seed: [u8; MOST],
}

/// `_IOW('R', 0x03, int [2])`
const ADD_ENTROPY: libc::Ioctl = 0x4008_5203_u32 as libc::Ioctl;
/// `_IO('R', 0x07)`
const RESEED: libc::Ioctl = 0x5207;

/// Mixes `seed` into the kernel's random numbers; whoever asks from now on gets others than a copy of this kernel would.
/// Needs root of the machine.
pub fn seed(seed: &[u8]) -> io::Result<()> {
    let mut pool = Pool { entropy_bits: 0, bytes: 0, seed: [0; MOST] };
    let Some(room) = pool.seed.get_mut(..seed.len()) else { return Err(io::ErrorKind::InvalidInput.into()) };
    room.copy_from_slice(seed);
    pool.bytes = libc::c_int::try_from(seed.len()).map_err(io::Error::other)?;
    pool.entropy_bits = pool.bytes * 8;
    let device: OwnedFd = rustix::fs::open("/dev/urandom", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    // SAFETY: the request reads a `rand_pool_info` whose length lies inside it; it outlives the call.
    if unsafe { libc::ioctl(device.as_raw_fd(), ADD_ENTROPY, &raw const pool) } < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the request takes no argument.
    if unsafe { libc::ioctl(device.as_raw_fd(), RESEED) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_longer_than_its_room_is_refused() {
        assert_eq!(seed(&[0; MOST + 1]).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }
}
