//! Connections across the wall. The only crate that dials.
//!
//! | module | what |
//! |---|---|
//! | [`wall`] | everything of one sandbox, put together |
//! | [`resolver`], [`dns`], [`names`] | the sandbox's name server, its messages, the addresses that stand for names |
//! | [`accept`] | one connection of the sandbox: where to, whether, dialled, relayed |
//! | [`sniff`], `greeting` | the first bytes of TLS, and what they must say |
//! | [`filter`] | what looks at and changes requests: secrets, packages, scripts, and an embedder's own |
//! | `packages` | which versions of packages come in |
//! | [`scripts`] | a person's script that looks at requests |
//! | [`egress`] | the only dialler |
//! | [`errand`] | HTTP of a person's own commands |
//! | [`tls`], `http` | connections that are opened: both handshakes, and the requests inside |
//! | [`ssh`] | git inside SSH |
//! | [`relay`], `awake` | bytes between two ends, and how the next are waited for |
//! | [`flows`] | what lives, and what rules no longer allow |
//! | [`publish`] | ports of the host that lead inside |

pub mod accept;
mod awake;
pub mod dns;
pub mod egress;
pub mod errand;
pub mod flows;
#[cfg(test)]
mod fuzz;
mod greeting;
mod http;
pub mod names;
mod packages;
pub mod publish;
pub mod relay;
pub mod resolver;
pub mod scripts;
mod secrets;
pub mod sniff;
pub mod ssh;
#[cfg(test)]
mod tests;
pub mod tls;
pub mod wall;
pub mod webhook;

pub use http::filter;
