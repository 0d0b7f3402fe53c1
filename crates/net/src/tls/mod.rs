//! TLS at both ends of an opened connection.
//!
//! | module | what |
//! |---|---|
//! | `authority` | certificates that the sandbox trusts, made as they are needed |
//! | `provider` | the cryptography of both |
//! | `roots`, `upstream` | whom this host trusts, and the handshake with the server |
//! | `wire`, `stream` | bytes of either side |

mod authority;
mod provider;
mod roots;
mod stream;
mod upstream;
mod wire;

pub use authority::{Authority, CannotMake};
pub(crate) use authority::{Speaks, Version};
pub(crate) use roots::trusted;
pub use roots::{BadCertificates, certificates};
pub(crate) use stream::Stream;
pub(crate) use upstream::{Untrusted, Upstream, connector};
pub(crate) use wire::{Counts, Wire};
