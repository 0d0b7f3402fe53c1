//! TLS at both ends of an opened connection.
//!
//! | module | what |
//! |---|---|
//! | `authority` | certificates that the sandbox trusts, made as they are needed |

#![expect(dead_code, reason = "what carries requests comes next")]

mod authority;

pub use authority::{Authority, CannotMake};
