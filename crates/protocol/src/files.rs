//! What of files a sandbox is given besides its root: volumes, programmable mounts, and which paths of its workspace
//! are protected or hidden.

use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, path::PathBuf};

/// A volume shown inside. It outlives the sandbox, and several may share it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VolumeUse {
    /// Its name in the state directory.
    pub volume: String,
    /// Absolute path inside, or one below the home directory there that begins with `~/`.
    pub target: PathBuf,
    /// Writes are refused.
    #[serde(default)]
    pub read_only: bool,
    /// The project whose directory it keeps (`--persist`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub project: Option<PathBuf>,
}

/// What is written down of a volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Volume {
    /// What a person calls it.
    pub name: String,
    /// When it was made (RFC 3339, UTC).
    pub created_at: String,
    /// What a person wants to know of it.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// What it keeps for a project (`--persist`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub persist: Option<Persist>,
    /// Whose its files are; nothing as long as no sandbox has used it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ids: Option<VolumeIds>,
}

/// What a volume keeps for a project.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Persist {
    /// The project's directory on the host.
    pub project: PathBuf,
    /// The directory inside, as it was asked for.
    pub directory: PathBuf,
}

/// Whose the files of a volume are on the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "ids", rename_all = "snake_case")]
pub enum VolumeIds {
    /// Host root's volumes: ids of a range of their own, which every sandbox sees as the ids inside.
    Range {
        /// The id on the host that is 0 inside.
        first: u32,
    },
    /// An ordinary user's: the user's own id stands for this user inside, ids of the ranges for all others.
    Own {
        /// The user inside.
        uid: u32,
        /// The group inside.
        gid: u32,
    },
    /// An ordinary user's without ranges: all files are the user's.
    Single,
}

/// A programmable mount: files that the keeper serves.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Provided {
    /// Absolute path inside.
    pub target: PathBuf,
    /// What serves it.
    pub provider: Provider,
    /// What is refused there, whatever serves it.
    #[serde(default)]
    pub hooks: Vec<Hook>,
}

/// What serves a programmable mount.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum Provider {
    /// Files in the keeper's memory, gone with the sandbox.
    Memory {
        /// Most bytes of all files.
        #[serde(default)]
        size: Option<u64>,
    },
    /// A directory of the host.
    Real {
        /// Absolute path on the host.
        source: PathBuf,
    },
    /// Another one, which cannot be written.
    Readonly {
        /// Which.
        of: Box<Provider>,
    },
    /// Two others: changes go to the upper, what it does not have is the lower's.
    Overlay {
        /// Read from.
        lower: Box<Provider>,
        /// Written to.
        upper: Box<Provider>,
    },
    /// Several, each below a name of its own.
    Router {
        /// In no order; no path is a part of another one.
        routes: Vec<Route>,
    },
}

/// One part of a router.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Route {
    /// Where, from the root of the router: no `..`, not absolute.
    pub path: PathBuf,
    /// What serves it.
    pub provider: Provider,
}

/// Something that is refused (EACCES) or told in a programmable mount.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hook {
    /// Which paths, as a glob from the mount's root (`*` stops at `/`, `**` does not).
    pub paths: String,
    /// When.
    pub on: Vec<Touch>,
    /// What is done.
    #[serde(rename = "do")]
    pub action: Action,
}

/// What is done to a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Touch {
    /// Opened, for reading or writing.
    Open,
    /// Written or cut.
    Write,
    /// Given another name.
    Rename,
    /// Removed.
    Remove,
    /// Made.
    Create,
}

/// What a hook does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// The call fails, and the ledger says so.
    Deny,
    /// The call goes on, and an event tells of it.
    Tell,
}

/// Which paths of the workspace are protected or hidden, besides those that always are.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Paths {
    /// Also protected, as globs from the workspace; one without `/` is meant at any depth.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub protected: Vec<String>,
    /// Not protected after all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unprotected: Vec<String>,
    /// Also hidden.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hidden: Vec<String>,
    /// Not hidden after all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub shown: Vec<String>,
    /// Definitions of CI jobs are protected too.
    #[serde(default)]
    pub protect_ci: bool,
    /// How a hidden file looks inside.
    #[serde(default)]
    pub hide_as: HideAs,
}

/// How a hidden file looks inside.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HideAs {
    /// It is there and cannot be read: "permission denied".
    #[default]
    Denied,
    /// It is there and empty.
    Empty,
}
