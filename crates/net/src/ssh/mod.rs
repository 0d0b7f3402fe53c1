//! git inside SSH: a connection that the keeper ends and begins anew, so that rules can speak of repositories.
//!
//! ```text
//! git inside ──ssh──▶ server here (a key made for this sandbox) ─ judged ─ client here ──ssh──▶ the host
//!                     anybody may log in; one command is taken         the person's agent and known_hosts
//! ```
//!
//! | module | what |
//! |---|---|
//! | [`wire`], [`packet`], [`exchange`], [`keys`] | the protocol, without I/O |
//! | [`known`] | which keys a host may have |
//! | [`talk`] | a connection that speaks it |
//! | [`near`] | the program's side: up to the one command that it asks for |
//! | [`command`] | what that command may be |
//! | [`far`], [`agent`] | the server's side: who we are there |
//! | [`pump`] | bytes between the two |
//!
//! It is written for this and no more: one exchange, two ciphers, one channel. The cryptography itself is that of TLS
//! ([ADR 29](../../../../docs/adr/0029-git-inside-ssh.md)).

mod agent;
mod command;
mod exchange;
mod far;
mod keys;
mod known;
mod near;
mod packet;
mod pump;
mod talk;
#[cfg(test)]
mod tests;
mod wire;

pub(crate) use command::Command;
pub(crate) use far::{Far, Unreached, Wish, known_keys};
pub(crate) use near::{Asked, hear};
pub(crate) use pump::{Between, Counted, Ended};

use airlock_protocol::control::Ssh;
use keys::{BadKey, OwnKey};
use std::{io, rc::Rc};

/// A connection ends that should not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Broken {
    /// The other side says so.
    #[error("the other side ended it")]
    Disconnected,
    /// It is closed, reset, or not there.
    #[error("the connection is lost")]
    Lost,
    /// It did not say what it is.
    #[error("it does not speak SSH 2")]
    Greeting,
    /// A message at a time at which it may not be.
    #[error("a message of SSH came at the wrong time")]
    Early,
    /// Nothing of this sort that both know.
    #[error("there is no {0} that both sides know")]
    Nothing(&'static str),
    /// No secret was agreed on.
    #[error("no keys could be agreed on")]
    Agreement,
    /// The server's key is none of those that are known.
    #[error("its key is none that known_hosts has for it")]
    Stranger,
    /// It does not read what is said to it.
    #[error("it does not read what is said to it")]
    Silent,
    /// It sent more than it may.
    #[error("it sent more than it was let")]
    Flood,
    /// A message is malformed.
    #[error(transparent)]
    Cut(#[from] wire::Cut),
    /// A packet is.
    #[error(transparent)]
    Seal(#[from] packet::Broken),
    /// A key or a signature is.
    #[error(transparent)]
    Key(#[from] BadKey),
}

/// What stands between git inside and hosts outside.
#[derive(Clone)]
pub struct Gateway {
    /// Whom the sandbox meets.
    pub key: HostKey,
    /// Who we are outside.
    pub outside: Ssh,
}

/// The key that the sandbox meets in place of those of hosts. Made for it, in memory.
#[derive(Clone)]
pub struct HostKey(Rc<OwnKey>);

impl HostKey {
    /// A new one.
    pub fn make() -> io::Result<HostKey> {
        OwnKey::make().map(|key| HostKey(Rc::new(key))).map_err(io::Error::other)
    }

    /// What `known_hosts` says of it: it vouches for every host that shows a certificate of it. What is known of other hosts stays
    /// as it is.
    pub fn known_hosts(&self) -> String {
        format!("@cert-authority * ssh-ed25519 {}\n", data_encoding::BASE64.encode(&self.0.public()))
    }
}
