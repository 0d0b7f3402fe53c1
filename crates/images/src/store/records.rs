//! The records of images: `index.json`. Readers see the old or the new one, whole; who changes it holds `index.lock`.

use std::{
    collections::BTreeMap,
    fs::{self, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::PathBuf,
};

use serde::{Deserialize, Serialize};

use super::{Error, Hold, Image, Store, error::failed, lock::Lock};
use crate::{
    digest::Digest,
    reference::{Reference, is_beginning_of_id},
};

/// What is known of one image. Its config says what it is, and its manifest where its layers are.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// The digest of its config.
    pub id: Digest,
    /// The manifest by which it came, or that was made for it.
    pub manifest: Digest,
    /// Why it is kept.
    #[serde(default)]
    pub kind: Kind,
    /// When it came, in RFC 3339.
    pub added_at: String,
    /// Names with a tag and without a digest, oldest first.
    #[serde(default)]
    pub names: Vec<Reference>,
    /// Names with a digest, as registries know it.
    #[serde(default)]
    pub digests: Vec<Reference>,
    /// What it was built from, if that was here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<Digest>,
    /// The keys by which a build finds it again.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub keys: Vec<String>,
}

/// Why an image is kept.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// So that later builds are quicker.
    Cache,
    /// A person wanted it.
    #[default]
    Image,
}

/// What taking names away led to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Untagged {
    /// The image.
    pub id: Digest,
    /// The names that are gone, also those with a digest.
    pub gone: Vec<Reference>,
    /// The names that are left.
    pub left: Vec<Reference>,
}

/// Names that mean something else.
const RESERVED: [&str; 2] = ["host", "scratch"];

/// `index.json`.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Records {
    pub(super) images: BTreeMap<Digest, Record>,
}

impl Record {
    /// An image that came just now.
    pub fn new(id: Digest, manifest: Digest) -> Self {
        Self {
            id,
            manifest,
            kind: Kind::Image,
            added_at: now(),
            names: Vec::new(),
            digests: Vec::new(),
            parent: None,
            keys: Vec::new(),
        }
    }

    /// With a name, which is taken from whoever has it.
    #[must_use]
    pub fn named(mut self, name: &Reference) -> Self {
        self.names.push(name.as_tag());
        self
    }
}

impl Store {
    /// All images, youngest first; those that are only kept for builds too.
    pub fn list(&self) -> Result<Vec<Image>, Error> {
        let mut images = Vec::new();
        for record in self.records()?.images.into_values() {
            match Image::read(self, record) {
                Ok(image) => images.push(image),
                // One that a person removes meanwhile, or whose parts are gone or damaged: it is no image.
                Err(Error::Missing(_) | Error::Differs { .. }) => {}
                Err(err) => return Err(err),
            }
        }
        images.sort_by(|one, other| other.order().cmp(&one.order()));
        Ok(images)
    }

    /// The image with this name, this id or an unambiguous beginning of it, or `REPOSITORY@DIGEST`.
    pub fn find(&self, selector: &str) -> Result<Image, Error> {
        let mut records = self.records()?;
        let id = records.find(selector)?;
        let record = records.images.remove(&id).ok_or_else(|| no_such(selector))?;
        Image::read(self, record)
    }

    /// The image with exactly this id.
    pub fn image(&self, id: &Digest) -> Result<Image, Error> {
        let record = self.records()?.images.remove(id).ok_or_else(|| no_such(&id.to_string()))?;
        Image::read(self, record)
    }

    /// The image that a build left under this key.
    pub fn cached(&self, key: &str) -> Result<Option<Image>, Error> {
        let records = self.records()?.images.into_values();
        let found = records.into_iter().find(|record| record.keys.iter().any(|have| have == key));
        match found.map(|record| Image::read(self, record)).transpose() {
            // It is built again.
            Err(Error::Missing(_) | Error::Differs { .. }) => Ok(None),
            found => found,
        }
    }

    /// Takes one name away, or all of an image that is selected by its id. The image stays until it is collected.
    pub fn untag(&self, selector: &str) -> Result<Untagged, Error> {
        self.change(|records| records.untag(selector))
    }

    pub(super) fn records(&self) -> Result<Records, Error> {
        let path = self.index_path();
        match fs::read(&path) {
            Ok(text) => serde_json::from_slice(&text).map_err(|source| Error::Unreadable { path, source }),
            Err(err) if err.kind() == io::ErrorKind::NotFound => Ok(Records::default()),
            Err(err) => Err(failed("read", &path)(err)),
        }
    }

    /// Reads the records, changes them and writes them, while nobody else does.
    pub(super) fn change<T>(
        &self,
        change: impl FnOnce(&mut Records) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let _lock = Lock::exclusive(&self.folder().join("index.lock"))?;
        let mut records = self.records()?;
        let outcome = change(&mut records)?;
        self.write(&records)?;
        Ok(outcome)
    }

    fn write(&self, records: &Records) -> Result<(), Error> {
        let path = self.index_path();
        let text = serde_json::to_vec(records);
        let text = text.map_err(|source| Error::Unreadable { path: path.clone(), source })?;
        // Who writes it has the lock, so one name will do, and what a killed one left is written over.
        let new = self.folder().join("index.next");
        let written = (|| {
            let mut how = OpenOptions::new();
            let mut file = how.write(true).create(true).truncate(true).mode(0o600).open(&new)?;
            file.write_all(&text)?;
            file.sync_data()?;
            fs::rename(&new, &path)
        })();
        written.map_err(failed("replace", &path))
    }

    fn index_path(&self) -> PathBuf {
        self.folder().join("index.json")
    }
}

impl Hold {
    /// Records an image whose manifest, config and layers are here. What is known of it already stays; names are taken
    /// from whoever has them. What a person wants is on the disk before it is recorded.
    pub fn add(&self, record: Record) -> Result<Image, Error> {
        record.names.iter().try_for_each(check_name)?;
        // Nothing is recorded that could not be read again.
        let image = Image::read(self, record.clone())?;
        if record.kind == Kind::Image {
            self.settle(&image)?;
        }
        let id = record.id;
        self.change(|records| {
            records.add(record);
            Ok(())
        })?;
        self.image(&id)
    }

    /// Gives an image one more name, which is taken from whoever has it.
    pub fn tag(&self, id: &Digest, name: &Reference) -> Result<(), Error> {
        let name = name.as_tag();
        check_name(&name)?;
        self.settle(&self.image(id)?)?;
        self.change(|records| {
            if !records.images.contains_key(id) {
                return Err(no_such(&id.to_string()));
            }
            records.take_name(&name);
            let record = records.images.get_mut(id).ok_or_else(|| no_such(&id.to_string()))?;
            record.names.push(name);
            record.kind = Kind::Image;
            Ok(())
        })
    }

    /// Notes by which digest a registry knows an image.
    pub fn note_digest(&self, id: &Digest, name: &Reference, digest: Digest) -> Result<(), Error> {
        let name = name.at(digest);
        self.change(|records| {
            let record = records.images.get_mut(id).ok_or_else(|| no_such(&id.to_string()))?;
            if !record.digests.contains(&name) {
                record.digests.push(name);
            }
            Ok(())
        })
    }
}

impl Records {
    fn add(&mut self, new: Record) {
        for name in &new.names {
            self.take_name(name);
        }
        for key in &new.keys {
            self.images.values_mut().for_each(|record| record.keys.retain(|have| have != key));
        }
        let record = self.images.entry(new.id).or_insert_with(|| Record {
            names: Vec::new(),
            digests: Vec::new(),
            keys: Vec::new(),
            ..new.clone()
        });
        record.manifest = new.manifest;
        record.kind = record.kind.max(new.kind);
        record.parent = record.parent.or(new.parent);
        record.names.extend(new.names);
        record.keys.extend(new.keys);
        for digest in new.digests {
            if !record.digests.contains(&digest) {
                record.digests.push(digest);
            }
        }
    }

    fn take_name(&mut self, name: &Reference) {
        self.images.values_mut().for_each(|record| record.names.retain(|have| have != name));
    }

    pub(super) fn find(&self, selector: &str) -> Result<Digest, Error> {
        if let Ok(name) = selector.parse::<Reference>()
            && let Some(id) = self.by_name(&name)
        {
            return Ok(id);
        }
        if !is_beginning_of_id(selector) {
            // What is neither is told by the grammar of names.
            let _: Reference = selector.parse()?;
            return Err(no_such(selector));
        }
        let digits = selector.strip_prefix("sha256:").unwrap_or(selector);
        let found: Vec<Digest> =
            self.images.keys().filter(|id| id.hex().starts_with(digits)).copied().collect();
        match found.as_slice() {
            [] => Err(no_such(selector)),
            [one] => Ok(*one),
            several => Err(Error::Ambiguous {
                selector: selector.to_owned(),
                candidates: several.iter().take(5).map(Digest::short).collect(),
            }),
        }
    }

    fn by_name(&self, name: &Reference) -> Option<Digest> {
        let mut records = self.images.values();
        let found = match name.digest {
            Some(digest) => records.find(|record| {
                let is_of_this = |have: &Reference| have.name() == name.name();
                record.digests.contains(&name.at(digest))
                    || record.manifest == digest && record.names.iter().any(is_of_this)
            }),
            None => {
                let name = name.as_tag();
                records.find(|record| record.names.contains(&name))
            }
        };
        found.map(|record| record.id)
    }

    fn untag(&mut self, selector: &str) -> Result<Untagged, Error> {
        let id = self.find(selector)?;
        let record = self.images.get_mut(&id).ok_or_else(|| no_such(selector))?;
        let name = selector.parse::<Reference>().ok();
        let is_by_name =
            name.as_ref().is_some_and(|name| name.digest.is_some() || record.names.contains(&name.as_tag()));
        let mut gone = Vec::new();
        match name.filter(|_| is_by_name) {
            Some(name) => {
                let goes = |have: &Reference| match name.digest {
                    Some(digest) => *have == name.at(digest),
                    None => *have == name.as_tag(),
                };
                gone.extend(record.names.extract_if(.., |have| goes(have)));
                gone.extend(record.digests.extract_if(.., |have| goes(have)));
                // With the last tag of a repository go its digests.
                let left: Vec<String> = record.names.iter().map(Reference::name).collect();
                let is_last = !left.contains(&name.name());
                gone.extend(record.digests.extract_if(.., |have| is_last && have.name() == name.name()));
            }
            None => {
                gone.append(&mut record.names);
                gone.append(&mut record.digests);
            }
        }
        Ok(Untagged { id, gone, left: record.names.clone() })
    }
}

/// The time now as every file of ours writes it.
fn now() -> String {
    format!("{:.6}", jiff::Timestamp::now())
}

fn check_name(name: &Reference) -> Result<(), Error> {
    match name.registry.is_none() && RESERVED.contains(&name.repository.as_str()) {
        true => Err(Error::Reserved(name.to_string())),
        false => Ok(()),
    }
}

fn no_such(selector: &str) -> Error {
    Error::NoSuch { selector: selector.to_owned() }
}
