//! Secrets that a sandbox may use and never sees: which they are, where they may go, what stands for them inside.
//!
//! | module | |
//! |---|---|
//! | `placeholder` | what stands for a value inside |
//! | `value` | a value, in memory only |
//! | `bound` | one secret, and where it may go |
//!
//! The values live here and are wiped when they are replaced or dropped. No `Debug` shows one, and nothing here writes.

mod bound;
mod placeholder;
#[cfg(test)]
mod tests;
mod value;

pub use bound::{Bound, Misplaced, Request};
pub use placeholder::{BadValue, check, placeholder};
pub use value::Value;

use crate::{glob::BadGlob, host::Target, pattern::BadPattern};
use airlock_protocol::secret::{Secret, Use, Values};
use std::cell::Cell;

/// Where no HTTP is spoken: flows to these ports stay closed although a secret is bound to the host.
const NEVER_HTTP: [u16; 2] = [22, 9418];

/// The secrets of one sandbox. One thread owns them.
#[derive(Debug, Default)]
pub struct Secrets {
    bound: Vec<Bound>,
    generation: Cell<u64>,
}

/// Why secrets cannot be used. Never shows a value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadSecret {
    /// Two have the same name.
    #[error("there are two secrets with the name {0}")]
    Twice(String),
    /// Nobody gave a value.
    #[error("the secret {0} has no value")]
    Missing(String),
    /// A value for a secret that there is not.
    #[error("there is no secret with the name {0}")]
    Unknown(String),
    /// The value cannot be one.
    #[error("the value of the secret {name} cannot be used: {why}")]
    Value {
        /// Which secret.
        name: String,
        /// What is wrong.
        why: BadValue,
    },
    /// The placeholder cannot be one.
    #[error("the placeholder of the secret {name} cannot be used: {why}")]
    Placeholder {
        /// Which secret.
        name: String,
        /// What is wrong.
        why: &'static str,
    },
    /// It may go nowhere.
    #[error("the secret {0} is bound to no host")]
    NoHost(String),
    /// A host is none.
    #[error("the secret {name} cannot be bound to {host}: {why}")]
    Host {
        /// Which secret.
        name: String,
        /// What was given.
        host: String,
        /// What is wrong.
        why: BadPattern,
    },
    /// A secret is bound to names of which anybody may have one.
    #[error("the secret {name} cannot be bound to {host}: a secret goes to named hosts only")]
    Wide {
        /// Which secret.
        name: String,
        /// What was given.
        host: String,
    },
    /// A path pattern is none.
    #[error("the path {path} of the secret {name} cannot be used: {why}")]
    Path {
        /// Which secret.
        name: String,
        /// What was given.
        path: String,
        /// What is wrong.
        why: BadGlob,
    },
    /// It names another secret that there is not.
    #[error("the secret {name} needs the secret {other}, which there is not")]
    Needs {
        /// Which secret.
        name: String,
        /// What it needs.
        other: String,
    },
    /// Tokens cannot be fetched there.
    #[error("the secret {name} cannot fetch tokens at {url}: it must be https://HOST/PATH")]
    TokenUrl {
        /// Which secret.
        name: String,
        /// What was given.
        url: String,
    },
}

impl Secrets {
    /// Checks every secret and takes its value.
    pub fn new(secrets: &[Secret], values: &Values) -> Result<Secrets, BadSecret> {
        let mut bound: Vec<Bound> = Vec::with_capacity(secrets.len());
        for secret in secrets {
            let value = values.0.get(&secret.name).ok_or_else(|| BadSecret::Missing(secret.name.clone()))?;
            if bound.iter().any(|other| other.name() == secret.name) {
                return Err(BadSecret::Twice(secret.name.clone()));
            }
            if bound.iter().any(|other| overlap(other.placeholder(), &secret.placeholder)) {
                let why = "another secret has the same";
                return Err(BadSecret::Placeholder { name: secret.name.clone(), why });
            }
            bound.push(Bound::new(secret, value)?);
        }
        bound.iter().try_for_each(|secret| check_needs(secret, &bound))?;
        Ok(Secrets { bound, generation: Cell::new(0) })
    }

    /// Other values for some secrets, from the next request on. All of them, or none.
    pub fn set(&self, values: &Values) -> Result<(), BadSecret> {
        for (name, value) in &values.0 {
            let secret = self.find(name).ok_or_else(|| BadSecret::Unknown(name.clone()))?;
            secret.check_value(value)?;
        }
        for (name, value) in &values.0 {
            if let Some(secret) = self.find(name) {
                secret.set(value);
            }
        }
        self.generation.set(self.generation.get() + 1);
        Ok(())
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.bound.is_empty()
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &Bound> {
        self.bound.iter()
    }

    /// The one with this name.
    pub fn find(&self, name: &str) -> Option<&Bound> {
        self.bound.iter().find(|secret| secret.name() == name)
    }

    /// Whether any is bound to this host, so that its answers may hold a value.
    pub fn is_bound(&self, target: &Target) -> bool {
        self.bound.iter().any(|secret| secret.is_bound_to(target))
    }

    /// Whether flows to this place have to be opened, so that a secret can be put in, or whoever asks for a token can be answered.
    pub fn wants(&self, target: &Target, port: u16) -> bool {
        let fetches = || self.bound.iter().any(|secret| secret.fetches_from(target, port));
        !NEVER_HTTP.contains(&port) && (self.is_bound(target) || fetches())
    }

    /// Counts changes of values.
    pub fn generation(&self) -> u64 {
        self.generation.get()
    }
}

/// Whether two placeholders cannot be told apart everywhere.
fn overlap(one: &str, other: &str) -> bool {
    one.contains(other) || other.contains(one)
}

fn check_needs(secret: &Bound, all: &[Bound]) -> Result<(), BadSecret> {
    let Use::OAuth { client_secret, .. } = secret.use_as() else { return Ok(()) };
    match client_secret {
        Some(other) if !all.iter().any(|secret| secret.name() == other) => {
            Err(BadSecret::Needs { name: secret.name().to_owned(), other: other.clone() })
        }
        _ => Ok(()),
    }
}
