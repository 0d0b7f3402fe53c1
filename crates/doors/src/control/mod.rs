//! The control socket of a keeper: frames of `protocol::control` over a Unix socket.
//!
//! | module | side |
//! |---|---|
//! | [`client`] | the command line: blocking, one thread, no runtime |
//! | [`server`] | the keeper: accepts clients, serves each in a task of its own |

pub mod client;
mod connection;
pub mod server;
