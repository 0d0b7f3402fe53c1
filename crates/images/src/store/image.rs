//! One image as it is in the store.

use jiff::Timestamp;

use super::{Error, Record, Store, records::Kind};
use crate::{
    digest::Digest,
    manifest::{self, Config, Descriptor, Document, History, Manifest},
    reference::Reference,
};

/// An image: what is recorded of it, and what its manifest and config say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Image {
    /// The digest of its config.
    pub id: Digest,
    /// The digest of its manifest.
    pub manifest_digest: Digest,
    /// Its manifest.
    pub manifest: Manifest,
    /// What it is, and how it is run.
    pub config: Config,
    /// Its layers, lowest first: the blob, and the digest of the uncompressed archive in it.
    pub layers: Vec<(Descriptor, Digest)>,
    /// Why it is kept.
    pub kind: Kind,
    /// Names with a tag.
    pub names: Vec<Reference>,
    /// Names with a digest, as registries know it.
    pub digests: Vec<Reference>,
    /// What it was built from, if that was here.
    pub parent: Option<Digest>,
    /// When it came here.
    pub added_at: String,
    /// Bytes of its layers as they came, of its config and its manifest.
    pub size: u64,
}

/// A step of an image's history, with the layer that it made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// What the config says of it.
    pub said: History,
    /// The layer, if it made one.
    pub layer: Option<(Descriptor, Digest)>,
}

impl Image {
    pub(super) fn read(store: &Store, record: Record) -> Result<Self, Error> {
        let refused = |source| Error::Manifest { what: record.id.short(), source };
        let bytes = store.read_blob(&record.manifest, manifest::MOST_BYTES)?;
        let Document::Manifest(manifest) = manifest::read(&bytes, None).map_err(refused)? else {
            return Err(refused(manifest::Error::Ambiguous));
        };
        let written = store.read_blob(&record.id, manifest::MOST_BYTES)?;
        let config = manifest::read_config(&written).map_err(refused)?;
        let layers = manifest.layers_of(&config).map_err(refused)?;
        let small = [bytes.len(), written.len()].map(|length| u64::try_from(length).unwrap_or(0));
        let size = layers.iter().map(|(layer, _)| layer.size).chain(small).fold(0, u64::saturating_add);
        Ok(Self {
            id: record.id,
            manifest_digest: record.manifest,
            manifest: *manifest,
            config,
            layers,
            kind: record.kind,
            names: record.names,
            digests: record.digests,
            parent: record.parent,
            added_at: record.added_at,
            size,
        })
    }

    /// When it was made, if its config tells.
    pub fn created(&self) -> Option<Timestamp> {
        self.config.created.as_deref()?.parse().ok()
    }

    /// What a person calls it: its first name, or the beginning of its id.
    pub fn label(&self) -> String {
        self.names.first().map_or_else(|| self.id.short(), ToString::to_string)
    }

    /// How it came to be, newest first. Layers that the history does not tell of come last.
    pub fn history(&self) -> Vec<Step> {
        let mut layers = self.layers.iter().cloned();
        let mut steps: Vec<Step> = Vec::new();
        for said in &self.config.history {
            let layer = if said.empty_layer { None } else { layers.next() };
            steps.push(Step { said: said.clone(), layer });
        }
        let untold = layers.map(|layer| Step { said: History::default(), layer: Some(layer) });
        let mut all: Vec<Step> = untold.collect();
        all.extend(steps);
        all.reverse();
        all
    }

    /// Youngest first, and always in the same order.
    pub(super) fn order(&self) -> (Option<Timestamp>, &str, &Digest) {
        (self.created(), &self.added_at, &self.id)
    }
}
