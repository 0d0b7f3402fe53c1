//! The config of an image: what it is, how it is run, which layers it has.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use super::{Other, Platform};
use crate::digest::Digest;

/// The config. Its digest is the image's id.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Config {
    /// When it was made, in RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created: Option<String>,
    /// Who made it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub author: Option<String>,
    /// The processor it is for, with Go's name.
    #[serde(default)]
    pub architecture: String,
    /// Which of the processors.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub variant: Option<String>,
    /// The system it is for.
    #[serde(default)]
    pub os: String,
    /// How it is run.
    #[serde(default, deserialize_with = "or_default")]
    pub config: RunConfig,
    /// Its layers.
    #[serde(default, deserialize_with = "or_default")]
    pub rootfs: RootFs,
    /// How it came to be, oldest first.
    #[serde(default, deserialize_with = "or_default")]
    pub history: Vec<History>,
    /// Everything else.
    #[serde(flatten)]
    pub other: Other,
}

/// How an image is run, unless somebody says otherwise.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct RunConfig {
    /// The user inside: a name or a number, perhaps with a group after a colon. Empty is root.
    #[serde(default, deserialize_with = "or_default", skip_serializing_if = "String::is_empty")]
    pub user: String,
    /// Ports it listens on: `80/tcp`.
    #[serde(default, deserialize_with = "or_default", skip_serializing_if = "BTreeMap::is_empty")]
    pub exposed_ports: BTreeMap<String, Value>,
    /// Variables: `NAME=value`.
    #[serde(default, deserialize_with = "or_default", skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<String>,
    /// What is run, before the arguments.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entrypoint: Option<Vec<String>>,
    /// The arguments, or the program where there is no entrypoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cmd: Option<Vec<String>>,
    /// Whether, and how, its health is asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub healthcheck: Option<Healthcheck>,
    /// Directories that are not part of the image when it runs.
    #[serde(default, deserialize_with = "or_default", skip_serializing_if = "BTreeMap::is_empty")]
    pub volumes: BTreeMap<String, Value>,
    /// Where it begins. Empty is `/`.
    #[serde(default, deserialize_with = "or_default", skip_serializing_if = "String::is_empty")]
    pub working_dir: String,
    /// What people say of it.
    #[serde(default, deserialize_with = "or_default", skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// The signal that asks it to end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop_signal: Option<String>,
    /// Seconds until it is ended the hard way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop_timeout: Option<i64>,
    /// What runs commands in the shell form.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shell: Option<Vec<String>>,
    /// What happens in a build that begins with it.
    #[serde(default, deserialize_with = "or_default", skip_serializing_if = "Vec::is_empty")]
    pub on_build: Vec<String>,
    /// Everything else.
    #[serde(flatten)]
    pub other: Other,
}

/// How the health of a running image is asked. Times are in nanoseconds; zero is the default.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct Healthcheck {
    /// `NONE`, `CMD` and a program, or `CMD-SHELL` and a line. Empty is the one of the image below.
    #[serde(default, deserialize_with = "or_default", skip_serializing_if = "Vec::is_empty")]
    pub test: Vec<String>,
    /// Between two checks.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub interval: i64,
    /// For one check.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub timeout: i64,
    /// In which failures do not count.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub start_period: i64,
    /// Between two checks in that time.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub start_interval: i64,
    /// Failures in a row until it is unhealthy.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub retries: i64,
    /// Everything else.
    #[serde(flatten)]
    pub other: Other,
}

/// The layers of an image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RootFs {
    /// Always `layers`.
    #[serde(rename = "type", default)]
    pub kind: String,
    /// The digests of the uncompressed archives, lowest first.
    #[serde(default, deserialize_with = "or_default")]
    pub diff_ids: Vec<Digest>,
}

/// One step in which an image came to be.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct History {
    /// When, in RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created: Option<String>,
    /// By which command.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created_by: Option<String>,
    /// By whom.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub author: Option<String>,
    /// What somebody said of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub comment: Option<String>,
    /// Whether it made no layer.
    #[serde(default, deserialize_with = "or_default", skip_serializing_if = "is_false")]
    pub empty_layer: bool,
    /// Everything else.
    #[serde(flatten)]
    pub other: Other,
}

impl Config {
    /// A config without layers, made now or whenever `created` is.
    pub fn of(platform: &Platform, created: String) -> Self {
        Self {
            created: Some(created),
            author: None,
            architecture: platform.architecture.clone(),
            variant: platform.variant.clone(),
            os: platform.os.clone(),
            config: RunConfig::default(),
            rootfs: RootFs::default(),
            history: Vec::new(),
            other: Other::new(),
        }
    }

    /// What it runs on.
    pub fn platform(&self) -> Platform {
        Platform {
            architecture: self.architecture.clone(),
            os: self.os.clone(),
            variant: self.variant.clone().filter(|variant| !variant.is_empty()),
            other: Other::new(),
        }
    }

    /// Its bytes, of which the digest is the image's id.
    pub fn to_bytes(&self) -> Result<Vec<u8>, serde_json::Error> {
        serde_json::to_vec(self)
    }
}

impl Default for RootFs {
    fn default() -> Self {
        Self { kind: "layers".to_owned(), diff_ids: Vec::new() }
    }
}

/// `null` is written for what is not there.
fn or_default<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(
    deserializer: D,
) -> Result<T, D::Error> {
    Option::deserialize(deserializer).map(Option::unwrap_or_default)
}

fn is_zero(number: &i64) -> bool {
    *number == 0
}

fn is_false(claim: &bool) -> bool {
    !claim
}
