//! Why a registry was of no use.

use super::verify;
use crate::{digest::Digest, manifest};
use airlock_net::{
    egress::{BadProxy, DialError},
    errand::{BadSite, Unanswered},
};
use std::io;

/// Why an image was not pulled, pushed or looked at.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A short name, and no registry that short names are of.
    #[error("{name} names no registry")]
    NoRegistry {
        /// The name.
        name: String,
    },
    /// The registry is no server that can be dialled.
    #[error("{registry} is no address of a registry")]
    Address {
        /// The registry.
        registry: String,
        /// Why.
        #[source]
        source: BadSite,
    },
    /// The proxy cannot be used.
    #[error("the proxy cannot be used")]
    Proxy(#[from] BadProxy),
    /// There was no answer.
    #[error("{what} did not succeed")]
    Unanswered {
        /// What was tried.
        what: String,
        /// Why.
        #[source]
        source: Unanswered,
    },
    /// It lets nobody in, or not us.
    #[error("{registry} does not let us {what}")]
    Denied {
        /// The registry.
        registry: String,
        /// What was tried.
        what: String,
        /// What it said.
        said: String,
    },
    /// What lets one in could not be had.
    #[error("what lets us into {registry} could not be read: {why}")]
    Login {
        /// The registry.
        registry: String,
        /// Why.
        why: String,
    },
    /// There is no such thing.
    #[error("{registry} has no {what}")]
    Missing {
        /// The registry.
        registry: String,
        /// What was asked for.
        what: String,
        /// Some tags that there are.
        tags: Vec<String>,
    },
    /// It said something else.
    #[error("{registry} answered {status} to {what}")]
    Status {
        /// The registry.
        registry: String,
        /// What was asked.
        what: String,
        /// The status.
        status: u16,
        /// What it said.
        said: String,
    },
    /// What it sent is not what it should be.
    #[error("{registry} sent something else than {what}: {why}")]
    Lies {
        /// The registry.
        registry: String,
        /// What was asked for.
        what: String,
        /// How that is known.
        why: String,
    },
    /// It leads somewhere nobody should be led to.
    #[error("{registry} leads elsewhere, and there it does not go on: {why}")]
    Astray {
        /// The registry.
        registry: String,
        /// Why.
        why: String,
    },
    /// What came is no image that can be used.
    #[error("{what} cannot be used")]
    Document {
        /// What came.
        what: String,
        /// Why.
        #[source]
        source: manifest::Error,
    },
    /// It is something else that registries hold.
    #[error("{name} is no image: its {part} is of the kind {kind}")]
    NoImage {
        /// Its name.
        name: String,
        /// What of it.
        part: &'static str,
        /// The kind.
        kind: String,
    },
    /// It does not fit.
    #[error("the image needs {needed} more bytes, and {free} are free")]
    NoRoom {
        /// How many bytes are missing here.
        needed: u64,
        /// How many there are.
        free: u64,
    },
    /// A signature that is demanded is not there, or not right.
    #[error(transparent)]
    Unverified(#[from] verify::Unverified),
    /// Something that is pushed is not in the store.
    #[error("{0} is not in the store")]
    Absent(Digest),
    /// The store failed.
    #[error("the image could not be stored")]
    Store(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// A layer is no archive that can be unpacked, or there is no way to.
    #[error("layer {layer} could not be unpacked: {why}")]
    Unpack {
        /// Which.
        layer: Digest,
        /// Why.
        why: String,
    },
    /// The process itself could not go on.
    #[error("could not wait for connections")]
    Runtime(#[source] io::Error),
}

impl Error {
    /// What a person can do.
    pub fn fix(&self) -> Option<String> {
        let fix = match self {
            Error::NoRegistry { name } => format!(
                "write it as REGISTRY/{name}, or name a registry for short names: registry under [images] in config.toml"
            ),
            Error::Address { .. } => "write HOST[:PORT]/NAME[:TAG]".to_owned(),
            Error::Proxy(err) => err.fix().to_owned(),
            Error::Unanswered { source, .. } => return unanswered(source),
            Error::Denied { registry, .. } => format!(
                "docker login {registry}, or see whether the name is right: what one may not see looks like that too"
            ),
            Error::Login { .. } => "see ~/.docker/config.json and the helper that it names".to_owned(),
            Error::Missing { tags, .. } if !tags.is_empty() => format!("there are: {}", tags.join(", ")),
            Error::Missing { .. } => "see whether the name and the tag are right".to_owned(),
            Error::Status { status, .. } if super::retry::is_passing(*status) => "try again later".to_owned(),
            Error::Lies { .. } => "do not use this registry, or what is between it and this host".to_owned(),
            Error::Document { source: manifest::Error::Platform { .. }, .. } => {
                "--platform names one that there is".to_owned()
            }
            Error::NoRoom { .. } => "airlock images prune, or put $AIRLOCK_HOME on a larger disk".to_owned(),
            Error::Unverified(err) => err.fix(),
            _ => return None,
        };
        Some(fix)
    }

    /// What the registry said to it, if anything.
    pub fn said(&self) -> Option<&str> {
        match self {
            Error::Denied { said, .. } | Error::Status { said, .. } if !said.is_empty() => Some(said),
            _ => None,
        }
    }

    /// What `airlock` ends with: 4 where a rule of the person's own refuses.
    pub fn exit_code(&self) -> u8 {
        match self {
            Error::Unverified(_) => 4,
            Error::NoRegistry { .. } | Error::Address { .. } => 2,
            _ => 1,
        }
    }

    /// How many tries it counts for besides one: who was waited for in vain is not waited for so often.
    pub(super) fn weight(&self) -> u32 {
        match self {
            Error::Unanswered { source: Unanswered::Silent { .. }, .. } => 2,
            _ => 0,
        }
    }

    /// Whether it may go better another time.
    pub(super) fn is_passing(&self) -> bool {
        match self {
            Error::Unanswered { source, .. } => source.is_passing(),
            Error::Status { status, .. } => super::retry::is_passing(*status),
            _ => false,
        }
    }
}

fn unanswered(source: &Unanswered) -> Option<String> {
    let fix = match source {
        Unanswered::NoTls { host, .. } | Unanswered::Handshake { host } => {
            format!("if {host} speaks plain HTTP only: insecure = [\"{host}\"] under [images] in config.toml")
        }
        Unanswered::Untrusted { .. } => {
            "if its certificate is of an authority of your own: ca under [images] in config.toml names the file"
                .to_owned()
        }
        Unanswered::Unreachable { source: DialError::Proxy { .. }, .. } => {
            "see proxy and no_proxy under [network] in config.toml".to_owned()
        }
        Unanswered::Unreachable { .. } => "see whether the registry is there".to_owned(),
        _ => return None,
    };
    Some(fix)
}
