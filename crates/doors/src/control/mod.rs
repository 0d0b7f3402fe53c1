//! The control socket of a keeper: frames of `protocol::control` over a Unix socket.
//!
//! | module | side |
//! |---|---|
//! | [`client`] | the command line: blocking, one thread, no runtime |

pub mod client;
