//! Images leave the store in one archive.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{self, Write},
};

use serde_json::{Value, json};
use tar::{Builder, EntryType, Header};

use super::{
    Error, Form,
    load::{NAME, REF_NAME},
};
use crate::{
    digest::{Digest, Hasher},
    manifest::{self, Descriptor, Manifest, media},
    reference::Reference,
    store::{self, Hold, Image},
};

/// How an archive of images is laid out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// As docker 28 saves it: layers are not compressed, and both `manifest.json` and `index.json` tell what is there.
    Docker,
    /// An OCI layout with manifests and layers as they came.
    Oci,
}

/// Writes images to one archive, each with the names that are asked for. `progress` hears of bytes.
pub fn save<'a>(
    hold: &'a Hold,
    images: &[(Image, Vec<Reference>)],
    layout: Layout,
    to: &'a mut dyn Write,
    progress: &'a mut dyn FnMut(u64),
) -> Result<(), Error> {
    let to = Builder::new(to);
    let mut saving = Saving { hold, to, written: BTreeSet::new(), sizes: BTreeMap::new(), progress };
    saving.directory("blobs/")?;
    saving.directory("blobs/sha256/")?;
    let (mut index, mut entries, mut repositories) = (Vec::new(), Vec::new(), json!({}));
    for (image, names) in images {
        let manifest = match layout {
            Layout::Docker => saving.plain(image)?,
            Layout::Oci => saving.as_it_came(image)?,
        };
        entries.push(entry(image, names, &manifest.1));
        index.extend(described(&manifest.0, names));
        for name in names {
            if let (Some(repository), Some(tag), Some(top)) =
                (repositories.as_object_mut(), &name.tag, image.layers.last())
            {
                let tags = repository.entry(name.name()).or_insert_with(|| json!({}));
                if let Some(tags) = tags.as_object_mut() {
                    tags.insert(tag.clone(), json!(top.1.hex()));
                }
            }
        }
    }
    let index = json!({"schemaVersion": 2, "mediaType": media::OCI_INDEX, "manifests": index});
    saving.small("index.json", &index)?;
    if layout == Layout::Docker {
        saving.small("manifest.json", &json!(entries))?;
    }
    saving.small("oci-layout", &json!({"imageLayoutVersion": "1.0.0"}))?;
    if layout == Layout::Docker {
        saving.small("repositories", &repositories)?;
    }
    saving.to.into_inner().and_then(|to| to.flush()).map_err(Error::Write)
}

/// An archive being written.
struct Saving<'a> {
    hold: &'a Hold,
    to: Builder<&'a mut dyn Write>,
    written: BTreeSet<Digest>,
    /// How long layers are that were decompressed.
    sizes: BTreeMap<Digest, u64>,
    progress: &'a mut dyn FnMut(u64),
}

impl Saving<'_> {
    /// Layers that are not compressed, named by what they are then, and a manifest that says so.
    fn plain(&mut self, image: &Image) -> Result<(Descriptor, Vec<Descriptor>), Error> {
        let mut layers = Vec::new();
        for (layer, diff) in &image.layers {
            let size = self.plain_layer(layer, diff)?;
            layers.push(Descriptor::of(media::OCI_LAYER, *diff, size));
        }
        let config = self.hold.read_blob(&image.id, manifest::MOST_BYTES)?;
        self.bytes(&image.id, &config)?;
        let size = u64::try_from(config.len()).unwrap_or(0);
        let manifest = Manifest::of(Descriptor::of(media::OCI_CONFIG, image.id, size), layers.clone());
        let bytes = serde_json::to_vec(&manifest).map_err(|err| Error::Write(err.into()))?;
        let digest = Digest::of(&bytes);
        self.bytes(&digest, &bytes)?;
        let size = u64::try_from(bytes.len()).unwrap_or(0);
        Ok((Descriptor::of(media::OCI_MANIFEST, digest, size), layers))
    }

    fn plain_layer(&mut self, layer: &Descriptor, diff: &Digest) -> Result<u64, Error> {
        if let Some(size) = self.sizes.get(diff) {
            return Ok(*size);
        }
        let file = self.hold.open_blob(&layer.digest)?;
        let size = if layer.digest == *diff {
            let size = file.metadata().map_err(Error::Read)?.len();
            self.stream(diff, size, file)?;
            size
        } else {
            // How long it becomes must be known before it is written.
            let mut spool = self.hold.spool()?;
            let mut hasher = Hasher::new();
            let mut plain = Form::decode(file).map_err(Error::Read)?;
            let copied = copy(&mut plain, &mut Both(&mut spool, &mut hasher));
            let (size, found) = (hasher.bytes(), hasher.finish());
            if copied.is_err() || found != *diff {
                self.hold.check_blob(&layer.digest)?;
            }
            copied.map_err(Error::Read)?;
            if found != *diff {
                return Err(store::Error::Differs { wanted: *diff, found }.into());
            }
            self.stream(diff, size, spool.into_file()?)?;
            size
        };
        self.sizes.insert(*diff, size);
        Ok(size)
    }

    fn as_it_came(&mut self, image: &Image) -> Result<(Descriptor, Vec<Descriptor>), Error> {
        for (layer, _) in &image.layers {
            let file = self.hold.open_blob(&layer.digest)?;
            let size = file.metadata().map_err(Error::Read)?.len();
            self.stream(&layer.digest, size, file)?;
        }
        let mut size = 0;
        for digest in [image.id, image.manifest_digest] {
            let bytes = self.hold.read_blob(&digest, manifest::MOST_BYTES)?;
            self.bytes(&digest, &bytes)?;
            size = u64::try_from(bytes.len()).unwrap_or(0);
        }
        let descriptor = Descriptor::of(image.manifest.kind(), image.manifest_digest, size);
        Ok((descriptor, image.manifest.layers.clone()))
    }

    /// A blob, once.
    fn stream(&mut self, digest: &Digest, size: u64, from: impl io::Read) -> Result<(), Error> {
        if !self.written.insert(*digest) {
            return Ok(());
        }
        let header = header(&blob_name(digest), size, EntryType::Regular).map_err(Error::Write)?;
        let mut from = Hashed(from.take(size), Hasher::new());
        self.to.append(&header, &mut from).map_err(Error::Write)?;
        let found = from.1.finish();
        if found != *digest {
            // Where the content was decompressed, it is no blob of this name.
            self.hold.check_blob(digest)?;
            return Err(store::Error::Differs { wanted: *digest, found }.into());
        }
        (self.progress)(size);
        Ok(())
    }

    fn bytes(&mut self, digest: &Digest, bytes: &[u8]) -> Result<(), Error> {
        self.stream(digest, u64::try_from(bytes.len()).unwrap_or(0), bytes)
    }

    fn small(&mut self, name: &str, value: &Value) -> Result<(), Error> {
        let bytes = serde_json::to_vec(value).map_err(|err| Error::Write(err.into()))?;
        let size = u64::try_from(bytes.len()).unwrap_or(0);
        let header = header(name, size, EntryType::Regular).map_err(Error::Write)?;
        self.to.append(&header, bytes.as_slice()).map_err(Error::Write)
    }

    fn directory(&mut self, name: &str) -> Result<(), Error> {
        let header = header(name, 0, EntryType::Directory).map_err(Error::Write)?;
        self.to.append(&header, io::empty()).map_err(Error::Write)
    }
}

/// An entry of `manifest.json`.
fn entry(image: &Image, names: &[Reference], layers: &[Descriptor]) -> Value {
    let tags = (!names.is_empty()).then_some(names);
    let files: Vec<String> = layers.iter().map(|layer| blob_name(&layer.digest)).collect();
    let sources: BTreeMap<String, Value> =
        layers.iter().map(|layer| (layer.digest.to_string(), json!(layer))).collect();
    json!({"Config": blob_name(&image.id), "RepoTags": tags, "Layers": files, "LayerSources": sources})
}

/// Entries of `index.json`: one for each name.
fn described(manifest: &Descriptor, names: &[Reference]) -> Vec<Descriptor> {
    let named = |name: &Reference| {
        let tag = name.tag.clone().unwrap_or_default();
        let annotations = [(NAME.to_owned(), name.to_string()), (REF_NAME.to_owned(), tag)];
        Descriptor { annotations: Some(annotations.into()), ..manifest.clone() }
    };
    match names {
        [] => vec![manifest.clone()],
        names => names.iter().map(named).collect(),
    }
}

fn blob_name(digest: &Digest) -> String {
    format!("blobs/sha256/{}", digest.hex())
}

fn header(name: &str, size: u64, kind: EntryType) -> io::Result<Header> {
    // GNU's form has room for the size of a layer above 8 GiB.
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_path(name)?;
    header.set_size(size);
    header.set_mode(if kind == EntryType::Directory { 0o755 } else { 0o644 });
    header.set_mtime(0);
    header.set_cksum();
    Ok(header)
}

fn copy(from: &mut dyn io::Read, to: &mut dyn Write) -> io::Result<()> {
    let mut piece = vec![0u8; 256 << 10];
    loop {
        match from.read(&mut piece) {
            Ok(0) => return Ok(()),
            Ok(count) => to.write_all(piece.get(..count).unwrap_or_default())?,
            Err(err) if err.kind() == io::ErrorKind::Interrupted => {}
            Err(err) => return Err(err),
        }
    }
}

/// Reads, and hashes what was read.
struct Hashed<R>(R, Hasher);

impl<R: io::Read> io::Read for Hashed<R> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let count = self.0.read(bytes)?;
        self.1.update(bytes.get(..count).unwrap_or_default());
        Ok(count)
    }
}

/// Writes to the first, and tells the second what was written.
struct Both<'a, A, B>(&'a mut A, &'a mut B);

impl<A: Write, B: Write> Write for Both<'_, A, B> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.0.write(bytes)?;
        self.1.write_all(bytes.get(..count).unwrap_or_default())?;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}
