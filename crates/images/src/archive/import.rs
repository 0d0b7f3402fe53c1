//! A root file system becomes an image of one layer.

use std::io::{self, Read};

use airlock_files::layers::archive::Reader;

use super::{Error, Form};
use crate::{
    manifest::{Config, Descriptor, History, Manifest, Platform, RunConfig, media},
    reference::Reference,
    store::{Hold, Image, Record},
};

/// What is made of a root file system.
#[derive(Debug, Clone)]
pub struct Import {
    /// What it is called.
    pub name: Option<Reference>,
    /// How it is run.
    pub run: RunConfig,
    /// What somebody said of it.
    pub message: Option<String>,
    /// What it runs on.
    pub platform: Platform,
    /// When it is made, in RFC 3339.
    pub created: String,
}

/// Makes an image of one layer of a root file system: an archive, which may be compressed. The same archive gives the same
/// image, if `created` is the same.
pub fn import(
    hold: &Hold,
    from: impl Read,
    wish: Import,
    progress: &mut dyn FnMut(u64),
) -> Result<Image, Error> {
    let mut plain = Form::decode(from).map_err(Error::Read)?;
    let mut spool = hold.spool()?;
    loop {
        let count = match plain.fill_buf() {
            Ok([]) => break,
            Ok(bytes) => {
                spool.append(bytes)?;
                bytes.len()
            }
            Err(err) if err.kind() == io::ErrorKind::Interrupted => continue,
            Err(err) => return Err(Error::Read(err)),
        };
        plain.consume(count);
        progress(u64::try_from(count).unwrap_or(0));
    }
    let size = spool.length();
    let layer = spool.finish()?;
    check(hold.open_blob(&layer)?)?;
    let mut config = Config::of(&wish.platform, wish.created.clone());
    config.config = wish.run;
    config.rootfs.diff_ids.push(layer);
    config.history.push(History { created: Some(wish.created), comment: wish.message, ..History::default() });
    let bytes = config.to_bytes().map_err(|err| Error::Read(err.into()))?;
    let id = hold.put(&bytes)?;
    let described = Descriptor::of(media::OCI_CONFIG, id, u64::try_from(bytes.len()).unwrap_or(0));
    let manifest = Manifest::of(described, vec![Descriptor::of(media::OCI_LAYER, layer, size)]);
    let manifest = serde_json::to_vec(&manifest).map_err(|err| Error::Read(err.into()))?;
    let mut record = Record::new(id, hold.put(&manifest)?);
    if let Some(name) = &wish.name {
        record = record.named(name);
    }
    Ok(hold.add(record)?)
}

/// Whether it is an archive that can be read to its end, and not an image in an archive.
fn check(blob: impl Read) -> Result<(), Error> {
    let mut reader = Reader::new(io::BufReader::with_capacity(256 << 10, blob));
    let (mut entries, mut is_image) = (0u64, false);
    while let Some(entry) = reader.next_entry().map_err(Error::Read)? {
        entries += 1;
        is_image |= matches!(entry.path.as_slice(), b"manifest.json" | b"oci-layout");
    }
    match (entries, is_image) {
        (0, _) => Err(Error::Refused("it is empty".to_owned())),
        (_, true) => Err(Error::Refused("it is an image: `airlock images load` takes it".to_owned())),
        _ => Ok(()),
    }
}
