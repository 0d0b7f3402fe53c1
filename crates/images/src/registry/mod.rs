//! Registries: images are pulled from them, pushed to them, and looked at without being pulled (OCI distribution 1.1, and what
//! Docker's registry version 2 does besides).
//!
//! | module | what |
//! |---|---|
//! | `place`, `challenge`, `resume`, `retry`, `token` | what addresses and answers mean (pure) |
//! | `client` | requests: let in, redirected, tried again |
//! | `fetch`, `unpack`, `pull` | documents and layers, verified, into the store |
//! | `push` | the other way |
//! | [`verify`] | whose signature an image must have |
//!
//! Everything a registry says may be a lie: what it sends counts once its digest is the one that was asked for, and everything
//! it sends has a bound. One process has one thread here, so that layers can be unpacked by its children.

mod challenge;
mod client;
mod error;
mod fetch;
mod place;
mod pull;
mod push;
mod resume;
mod retry;
mod token;
mod unpack;
pub mod verify;

pub use error::Error;
pub use fetch::Remote;
pub use pull::pull;
pub use push::push;

use crate::{digest::Digest, manifest::Platform, reference::Reference};
use airlock_net::{egress::BadProxy, tls::BadCertificates};
use airlock_protocol::spec;
use std::{path::Path, rc::Rc};

/// How registries are spoken to.
#[derive(Clone)]
pub struct Settings {
    /// How connections leave, and whom they trust.
    pub egress: spec::Egress,
    /// Registries that are spoken to without TLS, as names have them: `HOST[:PORT]`.
    pub insecure: Vec<String>,
    /// Which platform's image is meant.
    pub platform: Platform,
    /// What lets one into a registry of this name; an error is told as it is.
    pub logins: Logins,
    /// Whose signature an image must have.
    pub policy: verify::Policy,
}

/// Says what lets one into a registry of a name.
pub type Logins = Rc<dyn Fn(&str) -> Result<Option<Login>, String>>;

/// What lets one in. Its `Debug` does not tell it.
#[derive(Clone, PartialEq, Eq)]
pub enum Login {
    /// A user and a password.
    Password {
        /// The user.
        user: String,
        /// The password.
        password: String,
    },
    /// What a registry's token service gave for a password once (`identitytoken`).
    Identity(String),
    /// A token for the registry itself (`registrytoken`).
    Token(String),
}

impl std::fmt::Debug for Login {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Login(…)")
    }
}

/// What goes on, for those who watch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// The image is known by now.
    Found {
        /// What its name led to.
        digest: Digest,
        /// Bytes of its layers, as they travel.
        bytes: u64,
        /// How many layers it has.
        layers: usize,
    },
    /// Something changed with a layer.
    Layer {
        /// Which.
        digest: Digest,
        /// Its bytes, as they travel.
        size: u64,
        /// What is with it now.
        state: State,
    },
}

/// What is with a layer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    /// It is there already, on this side or on the other.
    Exists,
    /// Another process gets it.
    Awaited,
    /// It travels; so many bytes of it did.
    Travels(u64),
    /// It broke off and is tried again.
    Retries(String),
    /// It has travelled, and is what it should be.
    Arrived,
    /// It is unpacked; so many bytes of it are.
    Unpacks(u64),
    /// Nothing more is to be done.
    Done,
}

/// Whoever watches.
pub(crate) type Watch<'a> = std::cell::RefCell<&'a mut dyn FnMut(&Event)>;

/// What a name leads to, without its layers.
pub fn look(reference: &Reference, settings: &Settings) -> Result<Remote, Error> {
    alone(async {
        let client = client::Client::new(reference, settings, client::Rights::Pull)?;
        fetch::remote(&client, reference, None).await
    })
}

/// Whether the certificates that are trusted besides can be read.
pub fn check_ca(path: &Path) -> Result<(), BadCertificates> {
    airlock_net::tls::certificates(path).map(drop)
}

/// Whether connections can leave like this.
pub fn check_proxy(egress: &spec::Egress) -> Result<(), BadProxy> {
    airlock_net::errand::Errands::new(egress).map(drop)
}

/// Runs in this thread, and makes no other.
fn alone<T>(work: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(Error::Runtime)?.block_on(work)
}
