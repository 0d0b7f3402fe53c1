//! The network of a machine: a sandbox whose programs have a kernel of their own.
//!
//! The network namespace has one device more, a TAP; what the machine's kernel sends comes out of it. The machine has the
//! addresses that programs have otherwise, and the TAP has those of the outside. It is a cable between two that know
//! each other: nobody is asked for a hardware address, and what comes from another address than the machine's is dropped.
//!
//! | module | what |
//! |---|---|
//! | `tap` | the device, its descriptor |
//! | `gateway` | addresses and routes on the host's side |
//! | `wall` | the rules for what comes out of the machine |
//! | `prove`, `frames` | the trial by the machine's own means, before there is one |
//! | `inside` | the machine's side: [`set_up`] |
//! | [`vsock`] | from a machine to its host, without a network |
//! | `connections` | those of a copy: [`reset_connections`] |

mod connections;
pub(super) mod frames;
pub(super) mod gateway;
mod inside;
pub(super) mod prove;
pub(super) mod tap;
pub mod vsock;
pub(super) mod wall;

pub use super::links::Families;
pub use connections::reset_connections;
pub use inside::set_up;
pub use tap::{DEVICE, NAME, leave, open};

/// The hardware address that a machine's device has to have. Every machine's: it is alone with its gateway.
pub const OWN_HARDWARE: [u8; 6] = [0x02, b'a', b'i', b'r', 0, 1];
/// That of the gateway.
pub const OUTSIDE_HARDWARE: [u8; 6] = [0x02, b'a', b'i', b'r', 0, 2];
/// The longest packet, on both sides: what a TAP takes at most (drivers/net/tun.c, `MAX_MTU`).
pub const LONGEST: u32 = 65_521;
/// The port of the machine's own address where connections to its loopback address are taken in, from
/// [`super::seat::OUTSIDE_V4`] only.
///
/// Who connects says the port (two bytes, the higher one first) and hears one byte: 0 if a server has been
/// reached, and then speaks with it; anything else if there is none.
pub const LOOPBACK_PORT: u16 = super::seat::LISTENER_PORT;
