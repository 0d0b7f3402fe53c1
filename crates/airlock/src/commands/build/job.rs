//! One build: what it is of, where it is kept, and what its stages share.

use super::told::Told;
use crate::failure::{Excerpt, Failure};
use airlock_files::layers::compression::Compression;
use airlock_images::{
    build::{
        Fault,
        context::Context,
        dockerfile::Dockerfile,
        ignore::Ignore,
        instruction::Instruction,
        scope::Scope,
        tree::{
            Tree,
            index::{self, Entry, Whiteouts},
            take::Taken,
        },
    },
    digest::{Digest, Hasher},
    manifest::{Config, Descriptor, Manifest, Platform, media},
    store::{Hold, Image, Kind, Record},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs::File,
    io::{BufReader, Read, Seek as _},
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// A layer: its blob, and the digest of the archive in it.
pub(super) type Layer = (Descriptor, Digest);

/// A build, as far as its stages share it.
#[derive(Debug)]
pub(super) struct Job {
    /// The Dockerfile, with what base images demand.
    pub(super) file: Dockerfile,
    /// What errors call it.
    pub(super) file_name: String,
    /// Arguments.
    pub(super) scope: Scope,
    /// Keeps everything that is made from being collected.
    pub(super) hold: Hold,
    /// Images that are built upon or copied from, by the name in the file, expanded, and the platform.
    pub(super) images: BTreeMap<(String, String), Image>,
    /// Where the context is.
    pub(super) context: Where,
    /// What stays out of it.
    pub(super) ignore: Ignore,
    /// The context's files, once somebody asked.
    pub(super) opened: Mutex<Option<Context>>,
    /// What is told.
    pub(super) told: Told,
    /// Whether the cache counts.
    pub(super) cache: Cache,
    /// The time of everything that is made.
    pub(super) epoch: u64,
    /// The same as text.
    pub(super) created: String,
    /// What it is built for.
    pub(super) platform: Platform,
    /// What may be reached.
    pub(super) allow: Vec<String>,
    /// Secrets, by id.
    pub(super) secrets: BTreeMap<String, super::secret::Source>,
    /// What layers hold, once somebody asked.
    pub(super) indexes: Mutex<BTreeMap<Digest, Arc<Vec<Entry>>>>,
}

/// Where a context is.
#[derive(Debug)]
pub(super) enum Where {
    /// A directory.
    Directory(PathBuf),
    /// An archive, and what it holds.
    Archive(File, Vec<Entry>),
    /// Nowhere: it is empty.
    Nothing,
}

/// Whether what was built before counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cache {
    /// It does.
    Used,
    /// It does not (`--no-cache`), but what is made now will.
    Refreshed,
}

impl Job {
    /// What is wrong with an instruction.
    pub(super) fn fail(&self, instruction: &Instruction, why: impl Into<String>) -> Failure {
        self.fault(&Fault::new(instruction.line, &instruction.text, why))
    }

    /// What is wrong with the Dockerfile.
    pub(super) fn fault(&self, fault: &Fault) -> Failure {
        failure(&self.file_name, fault)
    }

    /// The context's files. They are looked at once.
    pub(super) fn context(&self) -> Result<MutexGuard<'_, Option<Context>>, Failure> {
        let mut opened = lock(&self.opened);
        if opened.is_none() {
            *opened = Some(match &self.context {
                Where::Directory(path) => Context::open(path, &self.ignore)
                    .map_err(|err| Failure::because("the build's context cannot be used", &err))?,
                Where::Archive(_, entries) => Context::of_archive(entries, &self.ignore),
                Where::Nothing => Context::of_archive(&[], &self.ignore),
            });
        }
        Ok(opened)
    }

    /// The content of one file of the context.
    pub(super) fn context_file(&self, context: &Context, place: &[u8]) -> Result<File, Failure> {
        let fail = |err: &dyn std::error::Error| {
            Failure::because(format!("{} cannot be read", String::from_utf8_lossy(place)), err)
        };
        let Where::Archive(archive, _) = &self.context else {
            return context.file(place).map_err(|err| fail(&err));
        };
        let mut taken = Taken::new(self.hold.spool()?.into_file()?);
        let wanted = BTreeSet::from([place.to_vec()]);
        taken.add(0, rewound(archive)?, &wanted).map_err(|err| fail(&err))?;
        taken.into_file().map_err(|err| fail(&err))
    }

    /// The image that a stage begins with, expanded.
    pub(super) fn expanded_base(&self, at: usize) -> Result<String, Failure> {
        let Some(stage) = self.file.stages.get(at) else {
            return Err(Failure::new("there is no such stage"));
        };
        let values = |name: &str| self.scope.global(name);
        let image = self.file.expanded(&stage.from.image, &stage.from, &values);
        let image = image.map_err(|fault| self.fault(&fault))?;
        if image.is_empty() {
            return Err(self.fault(&Fault::new(
                stage.from.line,
                &stage.from.text,
                "the image's name is empty",
            )));
        }
        Ok(image)
    }

    /// What a stage is built for: what its `FROM` says, else what the build is for.
    pub(super) fn stage_platform(&self, at: usize) -> Result<Platform, Failure> {
        let Some(stage) = self.file.stages.get(at) else { return Ok(self.platform.clone()) };
        let Some(text) = &stage.from.platform else { return Ok(self.platform.clone()) };
        let values = |name: &str| self.scope.global(name);
        let text = self.file.expanded(text, &stage.from, &values).map_err(|fault| self.fault(&fault))?;
        if text.is_empty() {
            return Ok(self.platform.clone());
        }
        let bad = |err: airlock_images::manifest::ParsePlatformError| {
            self.fault(&Fault::new(stage.from.line, &stage.from.text, err.to_string()))
        };
        text.parse().map_err(bad)
    }

    /// An image that stage `at` begins with or copies from.
    pub(super) fn image(&self, name: &str, at: usize) -> Result<Option<&Image>, Failure> {
        Ok(self.images.get(&(name.to_owned(), self.stage_platform(at)?.to_string())))
    }

    /// What an image of these layers holds.
    pub(super) fn tree(&self, layers: &[Layer]) -> Result<Tree, Failure> {
        let mut tree = Tree::default();
        for layer in layers {
            tree.stack(&self.index(layer)?);
        }
        Ok(tree)
    }

    fn index(&self, layer: &Layer) -> Result<Arc<Vec<Entry>>, Failure> {
        if let Some(known) = lock(&self.indexes).get(&layer.1) {
            return Ok(Arc::clone(known));
        }
        let read = index::read(self.plain(layer)?, Whiteouts::Mean).map_err(|err| {
            Failure::because(format!("layer {} cannot be read", layer.0.digest.short()), &err)
        })?;
        let read = Arc::new(read);
        lock(&self.indexes).insert(layer.1, Arc::clone(&read));
        Ok(read)
    }

    /// The archive of a layer, decompressed.
    pub(super) fn plain(&self, layer: &Layer) -> Result<Box<dyn Read>, Failure> {
        let blob = self.hold.open_blob(&layer.0.digest)?;
        decompressed(blob)
            .map_err(|err| Failure::because(format!("layer {} cannot be read", layer.0.digest.short()), &err))
    }

    /// The step that a key leads to, if it was done before.
    pub(super) fn cached(&self, key: &str) -> Result<Option<Vec<Layer>>, Failure> {
        if self.cache == Cache::Refreshed {
            return Ok(None);
        }
        let Some(image) = self.hold.cached(key)? else { return Ok(None) };
        let is_whole = image.layers.iter().all(|(blob, _)| self.hold.has_blob(&blob.digest));
        Ok(is_whole.then_some(image.layers))
    }

    /// Keeps what a step made as an image without anything but its layers, and returns its id.
    pub(super) fn keep(&self, layers: &[Layer], keys: Vec<String>) -> Result<Digest, Failure> {
        let mut config = Config::of(&self.platform, self.created.clone());
        config.rootfs.diff_ids = layers.iter().map(|(_, diff)| *diff).collect();
        let (id, manifest) = self.put(&config, layers)?;
        let mut record = Record::new(id, manifest);
        record.kind = Kind::Cache;
        record.keys = keys;
        self.hold.add(record)?;
        Ok(id)
    }

    /// Writes config and manifest of an image. Nothing names them yet.
    pub(super) fn put(&self, config: &Config, layers: &[Layer]) -> Result<(Digest, Digest), Failure> {
        let json = |err: serde_json::Error| Failure::because("the image cannot be described", &err);
        let bytes = config.to_bytes().map_err(json)?;
        let id = self.hold.put(&bytes)?;
        let size = u64::try_from(bytes.len()).unwrap_or(0);
        let described = Descriptor::of(media::DOCKER_CONFIG, id, size);
        let manifest = Manifest::of(described, layers.iter().map(|(blob, _)| blob.clone()).collect());
        let manifest = self.hold.put(&serde_json::to_vec(&manifest).map_err(json)?)?;
        Ok((id, manifest))
    }

    /// A key of the cache: what kind of step, upon which layers, and everything that makes a difference.
    pub(super) fn key(&self, kind: &str, layers: &[Layer], parts: &[&str]) -> String {
        let mut hasher = Hasher::new();
        let platform = self.platform.to_string();
        let epoch = self.epoch.to_string();
        let below: Vec<String> = layers.iter().map(|(_, diff)| diff.hex()).collect();
        let below = below.join(" ");
        for part in ["airlock build 1", kind, &platform, &epoch, &below].iter().chain(parts) {
            // The length goes first, so that no two lists of parts are one.
            hasher.update(format!("{}:", part.len()).as_bytes());
            hasher.update(part.as_bytes());
        }
        hasher.finish().hex()
    }
}

/// What a file holds, decompressed if it is compressed as layers are.
pub(super) fn decompressed(file: File) -> std::io::Result<Box<dyn Read>> {
    let mut reader = BufReader::with_capacity(256 << 10, file);
    let start = std::io::BufRead::fill_buf(&mut reader)?;
    let compression = Compression::of(start)
        .ok_or_else(|| std::io::Error::other("it is compressed in a way that is not taken here"))?;
    compression.decode(reader)
}

/// An archive from its beginning, decompressed.
pub(super) fn rewound(file: &File) -> Result<Box<dyn Read>, Failure> {
    let open = || {
        let mut file = file.try_clone()?;
        file.rewind()?;
        decompressed(file)
    };
    open().map_err(|err: std::io::Error| Failure::because("an archive cannot be read", &err))
}

/// What is locked, also if a stage panicked meanwhile: it holds nothing half-done.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What is wrong with a Dockerfile, as a person reads it.
pub(super) fn failure(file: &str, fault: &Fault) -> Failure {
    let excerpt = Excerpt { line: fault.line, column: 1, text: fault.text.clone() };
    Failure::new(format!("{file}:{}: {}", fault.line, fault.why)).code(1).excerpt(excerpt)
}
