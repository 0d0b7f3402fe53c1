//! Images of an archive come into the store.

use std::{
    fs::{self, File},
    io::{self, Read},
    os::unix::fs::OpenOptionsExt as _,
    path::Path,
};

use airlock_files::layers::compression::{Compression, TELLING};
use serde::Deserialize;

use super::{
    Error, Form,
    intake::{Intake, told},
};
use crate::{
    digest::Digest,
    manifest::{self, Descriptor, Document, Index, Manifest, Platform, media},
    reference::Reference,
    store::{Hold, Image, Record},
};

/// An image that came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Loaded {
    /// The image.
    pub image: Image,
    /// The names that it came with; it may have others.
    pub names: Vec<Reference>,
}

/// One entry of `manifest.json`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Entry {
    config: String,
    #[serde(default)]
    repo_tags: Option<Vec<String>>,
    #[serde(default)]
    layers: Option<Vec<String>>,
}

/// Where builders write a whole name, and where OCI writes a tag or a whole name.
pub(super) const NAME: &str = "io.containerd.image.name";
pub(super) const REF_NAME: &str = "org.opencontainers.image.ref.name";

/// Most images of one archive.
const MOST_IMAGES: usize = 1_000;
/// The deepest index in an index.
const DEEPEST: usize = 3;

/// Loads every image of an archive, which may be compressed. `progress` hears of bytes that were written.
pub fn load(hold: &Hold, from: impl Read, progress: &mut dyn FnMut(u64)) -> Result<Vec<Loaded>, Error> {
    let mut intake = Intake::new(hold, progress);
    intake.archive(Form::decode(from).map_err(Error::Read)?)?;
    Loading { hold, intake }.images()
}

/// Loads every image of an OCI layout, or an unpacked docker-archive, in a directory.
pub fn load_directory(hold: &Hold, top: &Path, progress: &mut dyn FnMut(u64)) -> Result<Vec<Loaded>, Error> {
    let mut intake = Intake::new(hold, progress);
    let mut names = vec!["oci-layout".to_owned(), "index.json".to_owned(), "manifest.json".to_owned()];
    let blobs = fs::read_dir(top.join("blobs/sha256")).into_iter().flatten().flatten();
    names.extend(blobs.filter_map(|entry| Some(format!("blobs/sha256/{}", entry.file_name().to_str()?))));
    for name in names {
        // A pipe that nobody writes to is not waited for.
        let flags = rustix::fs::OFlags::NONBLOCK | rustix::fs::OFlags::NOFOLLOW;
        let flags = i32::try_from(flags.bits()).unwrap_or(0);
        let file = match File::options().read(true).custom_flags(flags).open(top.join(&name)) {
            Ok(file) => file,
            Err(err) if err.kind() == io::ErrorKind::NotFound => continue,
            Err(err) => return Err(Error::Read(err)),
        };
        let found = file.metadata().map_err(Error::Read)?;
        if found.is_file() {
            intake.file(&name, found.len(), &mut file.take(found.len()))?;
        }
    }
    Loading { hold, intake }.images()
}

/// An archive whose content is in the store.
struct Loading<'a> {
    hold: &'a Hold,
    intake: Intake<'a>,
}

impl Loading<'_> {
    /// By `manifest.json` if there is one, as docker does, or by `index.json`.
    fn images(&self) -> Result<Vec<Loaded>, Error> {
        let records = if let Some(bytes) = self.intake.small("manifest.json")? {
            let entries: Vec<Entry> = read(&bytes, "manifest.json")?;
            bounded(entries.len())?;
            entries.iter().map(|entry| self.entry(entry)).collect::<Result<Vec<_>, _>>()?
        } else if let Some(bytes) = self.intake.small("index.json")? {
            let index: Index = read(&bytes, "index.json")?;
            bounded(index.manifests.len())?;
            index.manifests.iter().map(|entry| self.described(entry)).collect::<Result<Vec<_>, _>>()?
        } else {
            return Err(Error::Refused("it has neither a manifest.json nor an index.json".to_owned()));
        };
        if records.is_empty() {
            return Err(Error::Refused("it names none".to_owned()));
        }
        let mut all: Vec<Loaded> = Vec::new();
        for record in records {
            let mut names = record.names.clone();
            let image = self.hold.add(record)?;
            if let Some(before) = all.iter().position(|before| before.image.id == image.id) {
                names.splice(..0, all.remove(before).names);
            }
            all.push(Loaded { image, names });
        }
        Ok(all)
    }

    /// An image by its config and its layers: a manifest is made for it.
    fn entry(&self, entry: &Entry) -> Result<Record, Error> {
        let bytes = self.intake.small(&entry.config)?;
        let bytes = bytes.ok_or_else(|| missing(&entry.config))?;
        let config = manifest::read_config(&bytes)
            .map_err(|source| Error::Part { what: told(&entry.config), source })?;
        let id = self.hold.put(&bytes)?;
        let layers = entry.layers.as_deref().unwrap_or_default();
        if layers.len() > manifest::MOST_LAYERS {
            let source = manifest::Error::Layers(layers.len());
            return Err(Error::Part { what: "manifest.json".to_owned(), source });
        }
        let layers: Vec<Descriptor> = layers.iter().map(|name| self.layer(name)).collect::<Result<_, _>>()?;
        let size = u64::try_from(bytes.len()).unwrap_or(0);
        let manifest = Manifest::of(Descriptor::of(media::OCI_CONFIG, id, size), layers);
        check(&manifest, &config)?;
        let bytes = serde_json::to_vec(&manifest).map_err(|err| Error::Read(err.into()))?;
        let mut record = Record::new(id, self.hold.put(&bytes)?);
        for name in entry.repo_tags.iter().flatten() {
            record = record.named(&name.parse()?);
        }
        Ok(record)
    }

    fn layer(&self, name: &str) -> Result<Descriptor, Error> {
        let digest = self.intake.blob(name).ok_or_else(|| missing(name))?;
        let mut start = Vec::new();
        let telling = u64::try_from(TELLING).unwrap_or(4);
        let blob = self.hold.open_blob(&digest)?;
        let size = blob.metadata().map_err(Error::Read)?.len();
        blob.take(telling).read_to_end(&mut start).map_err(Error::Read)?;
        let kind = match Compression::of(&start) {
            Some(Compression::Plain) => media::OCI_LAYER,
            Some(Compression::Gzip) => media::OCI_LAYER_GZIP,
            Some(Compression::Zstd) => media::OCI_LAYER_ZSTD,
            None => return Err(Error::Refused(format!("{} is compressed as no layer is", told(name)))),
        };
        Ok(Descriptor::of(kind, digest, size))
    }

    /// An image by its manifest, which an index of the archive names.
    fn described(&self, entry: &Descriptor) -> Result<Record, Error> {
        let mut descriptor = entry.clone();
        for _ in 0..DEEPEST {
            let what = descriptor.digest.to_string();
            let bytes = self.intake.small(&blob_name(&descriptor.digest))?;
            let bytes = bytes.ok_or_else(|| missing(&what))?;
            let document = manifest::read(&bytes, Some(&descriptor.media_type))
                .map_err(|source| Error::Part { what: what.clone(), source })?;
            match document {
                Document::Index(index) => {
                    let chosen = index.choose(&Platform::here());
                    descriptor = chosen.map_err(|source| Error::Part { what, source })?.clone();
                }
                Document::Manifest(manifest) => return self.manifest(&bytes, &manifest, entry),
            }
        }
        Err(Error::Refused("its indexes are too deep".to_owned()))
    }

    fn manifest(&self, bytes: &[u8], manifest: &Manifest, entry: &Descriptor) -> Result<Record, Error> {
        let id = manifest.config.digest;
        let config = self.intake.small(&blob_name(&id))?;
        let config = config.ok_or_else(|| missing(&id.to_string()))?;
        let config =
            manifest::read_config(&config).map_err(|source| Error::Part { what: id.to_string(), source })?;
        check(manifest, &config)?;
        for layer in &manifest.layers {
            if !media::is_layer(&layer.media_type) {
                return Err(Error::Refused(format!("{} is no layer", told(&layer.media_type))));
            }
            self.intake.blob(&blob_name(&layer.digest)).ok_or_else(|| missing(&layer.digest.to_string()))?;
        }
        let record = Record::new(id, self.hold.put(bytes)?);
        Ok(match name(entry)? {
            Some(name) => record.named(&name),
            None => record,
        })
    }
}

/// The name that an index gives to an image. A mere tag names nothing.
fn name(entry: &Descriptor) -> Result<Option<Reference>, Error> {
    let Some(annotations) = &entry.annotations else { return Ok(None) };
    if let Some(name) = annotations.get(NAME) {
        return Ok(Some(name.parse()?));
    }
    let whole = annotations.get(REF_NAME).filter(|name| name.contains([':', '/']));
    Ok(whole.map(|name| name.parse()).transpose()?)
}

/// As many layers in one as in the other.
fn check(manifest: &Manifest, config: &manifest::Config) -> Result<(), Error> {
    let layers = manifest.layers_of(config);
    layers.map(drop).map_err(|source| Error::Part { what: "an image".to_owned(), source })
}

fn read<'a, T: Deserialize<'a>>(bytes: &'a [u8], what: &'static str) -> Result<T, Error> {
    let read = serde_json::from_slice(bytes);
    read.map_err(|source| Error::Part {
        what: what.to_owned(),
        source: manifest::Error::Json { what, source },
    })
}

fn bounded(images: usize) -> Result<(), Error> {
    match images > MOST_IMAGES {
        true => Err(Error::Refused("it names too many images".to_owned())),
        false => Ok(()),
    }
}

fn blob_name(digest: &Digest) -> String {
    format!("blobs/sha256/{}", digest.hex())
}

fn missing(name: &str) -> Error {
    Error::Refused(format!("{} is missing", told(name)))
}
