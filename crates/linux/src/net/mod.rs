//! The network namespace of a sandbox: only `lo` (and a TAP where a machine is behind it), and the [`seat`] of the keeper in
//! it.
//!
//! | module | what |
//! |---|---|
//! | [`seat`] | what the rest of the house uses: addresses, ports, [`seat::build`], [`seat::prove`] |
//! | `links` | the device, its addresses, the default routes |
//! | `wall` | the rules, as one transaction |
//! | `rules`, `openings` | which destinations reach the listener, changed while the sandbox runs |
//! | `refusals` | what the rules refused |
//! | `sockets` | listeners, original destinations |
//! | `prove` | the trial from inside, before the program starts |
//! | [`machine`] | the same for a machine, and the machine's own side |
//! | `nft`, `netlink` | messages to the kernel, as bytes |

mod links;
pub mod machine;
mod netlink;
mod nft;
mod openings;
mod prove;
mod refusals;
mod rules;
pub mod seat;
mod settings;
mod sockets;
#[cfg(test)]
mod tests;
mod wall;
