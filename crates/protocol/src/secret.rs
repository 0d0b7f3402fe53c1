//! What a sandbox may use and never sees. No type here holds a value, but [`Values`], which is never written down.

use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, fmt, path::PathBuf};

/// A secret that requests of a sandbox may carry, to the places it is bound to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Secret {
    /// Its name, and the variable inside that holds the placeholder.
    pub name: String,
    /// Where its value comes from.
    pub from: From,
    /// What stands for it inside: the shape and length of the value, nothing of its bytes but a known prefix.
    pub placeholder: String,
    /// Names and `*.suffix` it may be sent to, over verified TLS only.
    pub hosts: Vec<String>,
    /// Only in requests with one of these; any where empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub methods: Vec<String>,
    /// Only in requests to paths of these patterns; any where empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub paths: Vec<String>,
    /// Where in a request.
    pub places: Vec<Place>,
    /// What else has to be done with it.
    #[serde(default, skip_serializing_if = "Use::is_plain")]
    pub use_as: Use,
}

/// Where a value comes from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum From {
    /// A variable of whoever starts the sandbox.
    Env(String),
    /// A file of the host, without its last line end.
    File(PathBuf),
    /// What a command of the host prints, without its last line end.
    Command(String),
    /// The host's secret service, `SERVICE/ACCOUNT`.
    Keychain(String),
    /// The settings of a package client of the host.
    Client {
        /// Which: `npm`, `pypi`, `crates`.
        group: String,
        /// Where in them.
        key: String,
    },
}

impl fmt::Display for From {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            From::Env(name) => write!(f, "env:{name}"),
            From::File(path) => write!(f, "file:{}", path.display()),
            From::Command(command) => write!(f, "command:{command}"),
            From::Keychain(place) => write!(f, "keychain:{place}"),
            From::Client { group, key } => write!(f, "{group}:{key}"),
        }
    }
}

/// A place in a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Place {
    /// The value of a header.
    Header,
    /// The credentials of `Authorization: Basic`, after decoding.
    Basic,
    /// The query of the URL.
    Query,
    /// The body.
    Body,
}

/// What is done with a secret besides putting it in place of its placeholder.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Use {
    /// Nothing.
    #[default]
    Plain,
    /// It is the secret key that belongs to an access key of AWS: requests signed with the placeholder are signed anew.
    AwsKey {
        /// The secret that holds the access key's id, or the id itself.
        access_key: String,
    },
    /// Access tokens are fetched with it, for which the placeholder stands.
    OAuth {
        /// Where tokens are fetched.
        token_url: String,
        /// Who we are there.
        client_id: String,
        /// Whether there is a secret of ours, by its name.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        client_secret: Option<String>,
        /// What the value is there.
        #[serde(default, skip_serializing_if = "Grant::is_refresh")]
        grant: Grant,
        /// What the tokens are to be good for.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        scope: Option<String>,
    },
}

/// What a token is fetched with (RFC 6749).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Grant {
    /// The value is a refresh token (section 6).
    #[default]
    RefreshToken,
    /// The value is the client's own secret (section 4.4).
    ClientCredentials,
}

impl Grant {
    /// As RFC 6749 and a person write it.
    pub fn word(self) -> &'static str {
        match self {
            Grant::RefreshToken => "refresh_token",
            Grant::ClientCredentials => "client_credentials",
        }
    }

    /// Whether the value is a refresh token.
    pub fn is_refresh(&self) -> bool {
        *self == Grant::RefreshToken
    }
}

impl Place {
    /// As a person writes it.
    pub fn word(self) -> &'static str {
        match self {
            Place::Header => "header",
            Place::Basic => "basic",
            Place::Query => "query",
            Place::Body => "body",
        }
    }
}

impl Use {
    /// Whether nothing else is done.
    pub fn is_plain(&self) -> bool {
        *self == Use::Plain
    }
}

/// Values by the names of their secrets, on their way from the command line to the keeper. Shown by no `Debug`.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Values(pub BTreeMap<String, String>);

impl fmt::Debug for Values {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}
