//! How much room images take: what each has alone, and what several share.

use std::collections::{BTreeMap, BTreeSet};

use super::{Error, Image, Store};
use crate::digest::Digest;

/// What one image takes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Share {
    /// The image.
    pub image: Image,
    /// Bytes of blobs and unpacked layers.
    pub bytes: u64,
    /// Of these, what other images have too.
    pub shared: u64,
    /// Of these, what goes if this image goes.
    pub own: u64,
    /// Bytes of unpacked layers alone.
    pub unpacked: u64,
}

/// What all of them take.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Usage {
    /// Each image.
    pub images: Vec<Share>,
    /// Bytes of blobs.
    pub blobs: u64,
    /// Bytes of unpacked layers.
    pub unpacked: u64,
    /// Bytes of downloads that are not finished.
    pub incoming: u64,
    /// Bytes that `prune --all` would free.
    pub reclaimable: u64,
}

/// A part of an image, and what it takes.
type Parts = BTreeMap<String, (u64, Taken)>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Taken {
    Blob,
    Tree,
}

impl Store {
    /// How much room images take. `in_use` are those that sandboxes need.
    pub fn usage(&self, in_use: &BTreeSet<Digest>) -> Result<Usage, Error> {
        let images = self.list()?;
        let parts: Vec<Parts> = images.iter().map(|image| self.parts(image)).collect();
        let mut holders: BTreeMap<&String, Vec<&Digest>> = BTreeMap::new();
        for (image, parts) in images.iter().zip(&parts) {
            parts.keys().for_each(|part| holders.entry(part).or_default().push(&image.id));
        }
        let mut usage = Usage { incoming: self.incoming_bytes(), ..Usage::default() };
        let mut counted = BTreeSet::new();
        for (part, (bytes, taken)) in parts.iter().flatten() {
            if !counted.insert(part) {
                continue;
            }
            match taken {
                Taken::Blob => usage.blobs += bytes,
                Taken::Tree => usage.unpacked += bytes,
            }
            let is_needed = holders.get(part).is_some_and(|ids| ids.iter().any(|id| in_use.contains(id)));
            usage.reclaimable += if is_needed { 0 } else { *bytes };
        }
        usage.reclaimable += usage.incoming;
        usage.images = images
            .iter()
            .zip(&parts)
            .map(|(image, parts)| {
                let is_own = |part: &String| holders.get(part).is_none_or(|ids| ids.len() < 2);
                let sum = |counts: &dyn Fn(&String, Taken) -> bool| -> u64 {
                    parts
                        .iter()
                        .filter(|(part, (_, taken))| counts(part, *taken))
                        .map(|(_, (bytes, _))| bytes)
                        .sum()
                };
                Share {
                    image: image.clone(),
                    bytes: sum(&|_, _| true),
                    shared: sum(&|part, _| !is_own(part)),
                    own: sum(&|part, _| is_own(part)),
                    unpacked: sum(&|_, taken| taken == Taken::Tree),
                }
            })
            .collect();
        Ok(usage)
    }

    fn parts(&self, image: &Image) -> Parts {
        let mut parts = Parts::new();
        let layers = image.layers.iter().map(|(layer, _)| layer.digest);
        for digest in layers.chain([image.id, image.manifest_digest]) {
            let bytes = self.blob_size(&digest).unwrap_or(0);
            parts.insert(digest.hex(), (bytes, Taken::Blob));
        }
        for (_, diff) in &image.layers {
            for (folder, made) in self.trees(diff) {
                parts.insert(folder.to_string_lossy().into_owned(), (made.bytes, Taken::Tree));
            }
        }
        parts
    }

    fn incoming_bytes(&self) -> u64 {
        let Ok(entries) = std::fs::read_dir(self.folder().join("incoming")) else { return 0 };
        entries.flatten().filter_map(|entry| Some(entry.metadata().ok()?.len())).sum()
    }
}
