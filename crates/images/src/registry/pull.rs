//! An image comes from a registry: its documents, then its layers, several at once, each unpacked as soon as it is there.

use super::{
    Error, Event, Settings, State, Watch, alone,
    client::{Client, Rights},
    fetch::{self, Layer, Remote, stored},
    unpack::Unpack,
    verify,
};
use crate::{
    digest::Digest,
    layer::Ids,
    manifest::Descriptor,
    reference::Reference,
    store::{Hold, Image, Record, Store},
};
use futures_util::stream::{FuturesUnordered, TryStreamExt as _};
use std::{cell::RefCell, collections::BTreeSet};
use tokio::sync::Semaphore;

/// Layers that travel at the same time.
const MOST_AT_ONCE: usize = 4;

/// Pulls an image. Its layers are unpacked for `ids`, if there are any. This process must have one thread.
///
/// What travelled stays in the store when this ends early, and is gone on with the next time.
pub fn pull(
    store: &Store,
    reference: &Reference,
    settings: &Settings,
    ids: Option<&Ids>,
    progress: &mut dyn FnMut(&Event),
) -> Result<Image, Error> {
    let hold = store.hold().map_err(stored)?;
    let watch: Watch<'_> = RefCell::new(progress);
    alone(async {
        let client = Client::new(reference, settings, Rights::Pull)?;
        let remote = fetch::remote(&client, reference, Some(store)).await?;
        let signatures = verify::check_remote(&client, reference, &remote).await?;
        let pull = Pull {
            client: &client,
            hold: &hold,
            watch: &watch,
            ids,
            travelling: Semaphore::new(MOST_AT_ONCE),
            unpacking: Semaphore::new(std::thread::available_parallelism().map_or(2, Into::into)),
        };
        pull.layers(&remote).await?;
        for digest in [remote.digest, remote.manifest_digest] {
            if !signatures.is_empty() {
                verify::keep(store, &digest, &signatures).map_err(|err| Error::Store(Box::new(err)))?;
            }
        }
        record(&hold, reference, &remote)
    })
}

fn record(hold: &Hold, reference: &Reference, remote: &Remote) -> Result<Image, Error> {
    let manifest = hold.put(&remote.manifest_bytes).map_err(stored)?;
    let config = hold.put(&remote.config_bytes).map_err(stored)?;
    let mut record = Record::new(config, manifest);
    if reference.tag.is_some() || reference.digest.is_none() {
        record = record.named(reference);
    }
    record.digests.push(reference.at(remote.digest));
    hold.add(record).map_err(stored)
}

struct Pull<'a, 'w> {
    client: &'a Client<'a>,
    hold: &'a Hold,
    watch: &'a Watch<'w>,
    ids: Option<&'a Ids>,
    travelling: Semaphore,
    unpacking: Semaphore,
}

impl Pull<'_, '_> {
    async fn layers(&self, remote: &Remote) -> Result<(), Error> {
        let unusable = |source| Error::Document { what: remote.digest.to_string(), source };
        let layers = remote.manifest.layers_of(&remote.config).map_err(unusable)?;
        let bytes = layers.iter().fold(0u64, |sum, (layer, _)| sum.saturating_add(layer.size));
        let found = Event::Found { digest: remote.digest, bytes, layers: layers.len() };
        (self.watch.borrow_mut())(&found);
        self.check_room(&layers)?;
        let mut seen = BTreeSet::new();
        let different = layers.iter().filter(|(layer, diff)| seen.insert((layer.digest, *diff)));
        let at_work: FuturesUnordered<_> =
            different.map(|(descriptor, diff)| self.layer(descriptor, diff)).collect();
        at_work.try_collect().await
    }

    /// Nothing is begun that cannot fit.
    fn check_room(&self, layers: &[(Descriptor, Digest)]) -> Result<(), Error> {
        let missing = layers.iter().filter(|(layer, _)| !self.hold.has_blob(&layer.digest));
        let needed = missing.fold(0u64, |sum, (layer, _)| sum.saturating_add(layer.size));
        let Ok(disk) = rustix::fs::statvfs(self.hold.folder()) else { return Ok(()) };
        let free = disk.f_bavail.saturating_mul(disk.f_frsize);
        if needed > free { Err(Error::NoRoom { needed, free }) } else { Ok(()) }
    }

    async fn layer(&self, descriptor: &Descriptor, diff: &Digest) -> Result<(), Error> {
        let layer = Layer { client: self.client, hold: self.hold, descriptor, watch: self.watch };
        self.fetch(&layer).await?;
        if let Some(ids) = self.ids
            && self.hold.layer(diff, ids).is_none()
        {
            let _place = self.unpacking.acquire().await;
            let unpack = Unpack { hold: self.hold, descriptor, diff, ids };
            match unpack.run(|bytes| layer.tell(State::Unpacks(bytes))).await {
                // What was here was damaged on the disk, and is thrown away.
                Err(err) if !self.hold.has_blob(&descriptor.digest) => {
                    layer.tell(State::Retries(err.to_string()));
                    self.fetch(&layer).await?;
                    unpack.run(|bytes| layer.tell(State::Unpacks(bytes))).await?;
                }
                other => other?,
            }
        }
        layer.tell(State::Done);
        Ok(())
    }

    async fn fetch(&self, layer: &Layer<'_, '_>) -> Result<(), Error> {
        let _place = self.travelling.acquire().await;
        layer.fetch().await
    }
}
