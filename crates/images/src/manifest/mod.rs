//! What describes an image: manifests, indexes and configs, as OCI and Docker (schema 2) write them.
//!
//! - [`Descriptor`]: which content, of which kind, how large
//! - [`Manifest`]: one config and its layers; [`Index`]: manifests for several platforms; [`read`] tells them apart
//! - [`Config`]: what an image is and how it is run
//! - [`Platform`]: what a program runs on
//!
//! Fields that have no name here are kept in `other` and written again. The bytes that came are what has the digest: who
//! changes one of these values makes another image.

mod config;
pub mod media;
mod platform;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use thiserror::Error;

pub use config::{Config, Healthcheck, History, RootFs, RunConfig};
pub use platform::{ParsePlatformError, Platform};

use crate::digest::Digest;

/// The largest manifest, index or config that is read.
pub const MOST_BYTES: u64 = 4 << 20;

/// The most layers of one image: overlayfs stacks no more (`OVL_MAX_STACK` in fs/overlayfs/overlayfs.h).
pub const MOST_LAYERS: usize = 500;

/// Fields without a name here.
pub type Other = Map<String, Value>;

/// Some content: its kind, its name, its length.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Descriptor {
    /// What it is ([`media`]).
    pub media_type: String,
    /// Its name.
    pub digest: Digest,
    /// How many bytes it has.
    pub size: u64,
    /// For which platform, in an index.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub platform: Option<Platform>,
    /// What else is said of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub annotations: Option<BTreeMap<String, String>>,
    /// Everything else.
    #[serde(flatten)]
    pub other: Other,
}

/// One image for one platform.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Manifest {
    /// Always 2.
    pub schema_version: u32,
    /// What it is, if it says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub media_type: Option<String>,
    /// Where the [`Config`] is.
    pub config: Descriptor,
    /// The layers, lowest first.
    pub layers: Vec<Descriptor>,
    /// What else is said of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub annotations: Option<BTreeMap<String, String>>,
    /// Everything else.
    #[serde(flatten)]
    pub other: Other,
}

/// Manifests of one image for several platforms, or of several images.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Index {
    /// Always 2.
    pub schema_version: u32,
    /// What it is, if it says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub media_type: Option<String>,
    /// The manifests.
    pub manifests: Vec<Descriptor>,
    /// What else is said of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub annotations: Option<BTreeMap<String, String>>,
    /// Everything else.
    #[serde(flatten)]
    pub other: Other,
}

/// What a name in a registry, or an entry of an index, can lead to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Document {
    /// One image.
    Manifest(Box<Manifest>),
    /// A choice of images.
    Index(Index),
}

/// Why a manifest, an index or a config is refused.
#[derive(Debug, Error)]
pub enum Error {
    /// It is no JSON of this kind.
    #[error("it is no {what} of an image")]
    Json {
        /// What was expected.
        what: &'static str,
        /// What is wrong with it.
        #[source]
        source: serde_json::Error,
    },
    /// Which of the two it is would depend on who reads it.
    #[error("it is a manifest and an index at once")]
    Ambiguous,
    /// Its kind or its generation is not known here.
    #[error("its kind is not known here: {0}")]
    Kind(String),
    /// More layers than the kernel stacks.
    #[error("it has {0} layers, and overlayfs stacks at most {MOST_LAYERS}")]
    Layers(usize),
    /// The config names other layers than the manifest.
    #[error("its manifest has {manifest} layers and its config {config}")]
    Differ {
        /// Layers of the manifest.
        manifest: usize,
        /// Layers of the config.
        config: usize,
    },
    /// Nothing in an index is for a platform.
    #[error("it has no image for {wanted}, but for {there}")]
    Platform {
        /// What was wanted.
        wanted: String,
        /// What there is.
        there: String,
    },
}

/// Reads a manifest or an index. Which of them it is stands in the document itself; one that could be read as both is refused
/// (CVE-2021-41190). `said` is what a registry or a descriptor called it.
pub fn read(bytes: &[u8], said: Option<&str>) -> Result<Document, Error> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Look {
        schema_version: u32,
        media_type: Option<String>,
        manifests: Option<serde::de::IgnoredAny>,
        config: Option<serde::de::IgnoredAny>,
        layers: Option<serde::de::IgnoredAny>,
    }
    let look: Look = from_json(bytes, "manifest")?;
    if look.schema_version != 2 {
        return Err(Error::Kind(format!("schema version {}", look.schema_version)));
    }
    let is_index = look.manifests.is_some();
    let is_manifest = look.layers.is_some() || look.config.is_some();
    if is_index && is_manifest {
        return Err(Error::Ambiguous);
    }
    for kind in look.media_type.as_deref().into_iter().chain(said) {
        let is_other = if is_index { media::is_manifest(kind) } else { media::is_index(kind) };
        if is_other {
            return Err(Error::Ambiguous);
        }
    }
    if is_index {
        return from_json(bytes, "index").map(Document::Index);
    }
    let manifest: Manifest = from_json(bytes, "manifest")?;
    if manifest.layers.len() > MOST_LAYERS {
        return Err(Error::Layers(manifest.layers.len()));
    }
    Ok(Document::Manifest(Box::new(manifest)))
}

/// Reads a config.
pub fn read_config(bytes: &[u8]) -> Result<Config, Error> {
    from_json(bytes, "config")
}

fn from_json<'a, T: Deserialize<'a>>(bytes: &'a [u8], what: &'static str) -> Result<T, Error> {
    serde_json::from_slice(bytes).map_err(|source| Error::Json { what, source })
}

impl Descriptor {
    /// Content that is described by no more than its kind.
    pub fn of(media_type: &str, digest: Digest, size: u64) -> Self {
        Self {
            media_type: media_type.to_owned(),
            digest,
            size,
            platform: None,
            annotations: None,
            other: Other::new(),
        }
    }
}

impl Manifest {
    /// An OCI manifest of these parts.
    pub fn of(config: Descriptor, layers: Vec<Descriptor>) -> Self {
        Self {
            schema_version: 2,
            media_type: Some(media::OCI_MANIFEST.to_owned()),
            config,
            layers,
            annotations: None,
            other: Other::new(),
        }
    }

    /// What it is called where kinds are told.
    pub fn kind(&self) -> &str {
        self.media_type.as_deref().unwrap_or(media::OCI_MANIFEST)
    }

    /// Its layers with the digests of their uncompressed archives, lowest first. The config must name as many.
    pub fn layers_of(&self, config: &Config) -> Result<Vec<(Descriptor, Digest)>, Error> {
        let (manifest, named) = (self.layers.len(), config.rootfs.diff_ids.len());
        if manifest != named {
            return Err(Error::Differ { manifest, config: named });
        }
        Ok(self.layers.iter().cloned().zip(config.rootfs.diff_ids.iter().copied()).collect())
    }
}

impl Index {
    /// The manifest for this platform: the first that runs there, the closest variant before others.
    pub fn choose(&self, wanted: &Platform) -> Result<&Descriptor, Error> {
        let mut best: Option<(u32, &Descriptor)> = None;
        for descriptor in &self.manifests {
            let Some(platform) = &descriptor.platform else { continue };
            let Some(closeness) = wanted.runs(platform) else { continue };
            if best.is_none_or(|(before, _)| closeness > before) {
                best = Some((closeness, descriptor));
            }
        }
        if let Some((_, descriptor)) = best {
            return Ok(descriptor);
        }
        if let [only] = self.manifests.as_slice()
            && only.platform.is_none()
        {
            return Ok(only);
        }
        let there: Vec<_> =
            self.manifests.iter().filter_map(|descriptor| descriptor.platform.as_ref()).take(20).collect();
        let there: Vec<_> =
            there.iter().filter(|platform| platform.os != "unknown").map(ToString::to_string).collect();
        Err(Error::Platform { wanted: wanted.to_string(), there: there.join(", ") })
    }
}

#[cfg(test)]
mod tests;
