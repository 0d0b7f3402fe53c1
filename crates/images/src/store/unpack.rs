//! The layers of an image become trees, several at once.

use std::path::PathBuf;

use rustix::event::{PollFd, PollFlags};

use super::{Begun, Error, Hold, Image, Making, error::failed, layers::Wait};
use crate::{
    digest::Digest,
    layer::{self, Ids, Told},
    manifest::Descriptor,
};

/// A layer that is being unpacked.
struct Unpacking {
    making: Making,
    layer: Digest,
    work: layer::Work,
}

/// How many layers are unpacked at once: each keeps two processors busy.
const MOST_AT_ONCE: usize = 4;

impl Hold {
    /// The trees of an image's layers for these ids, lowest first; those that are not here are made, several at once.
    /// `progress` hears of bytes of blobs. This process must have one thread.
    pub fn make_layers(
        &self,
        image: &Image,
        ids: &Ids,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Vec<PathBuf>, Error> {
        let mut left = image.layers.iter();
        let mut at_once = Vec::new();
        loop {
            while at_once.len() < MOST_AT_ONCE
                && let Some((layer, diff)) = left.next()
            {
                if let Begun::Ours(making) = self.begin_layer(diff, ids, Wait::No)? {
                    at_once.push(Unpacking::begin(making, layer, ids)?);
                }
            }
            if at_once.is_empty() {
                break;
            }
            hear(&mut at_once, progress)?;
        }
        // What others were at. One after the other: who waits must not be waited for.
        image.layers.iter().map(|(layer, diff)| self.make_layer(layer, diff, ids, progress)).collect()
    }

    /// The tree of one layer for these ids; made if it is not here. This process must have one thread.
    pub fn make_layer(
        &self,
        layer: &Descriptor,
        diff: &Digest,
        ids: &Ids,
        progress: &mut dyn FnMut(u64),
    ) -> Result<PathBuf, Error> {
        loop {
            match self.begin_layer(diff, ids, Wait::Yes)? {
                Begun::There(tree) => return Ok(tree),
                Begun::Busy => {}
                Begun::Ours(making) => {
                    let mut one = vec![Unpacking::begin(making, layer, ids)?];
                    while !one.is_empty() {
                        hear(&mut one, progress)?;
                    }
                }
            }
        }
    }
}

impl Unpacking {
    fn begin(making: Making, layer: &Descriptor, ids: &Ids) -> Result<Self, Error> {
        let blob = making.hold.open_blob(&layer.digest)?;
        let work = layer::begin(ids, &blob, &making.made.diff_id, making.folder());
        let work = work.map_err(|source| Error::Unpack { layer: layer.digest, source })?;
        Ok(Self { making, layer: layer.digest, work })
    }

    fn listen(&mut self, progress: &mut dyn FnMut(u64)) -> Result<Option<Told>, Error> {
        let layer = self.layer;
        self.work.listen(progress).map_err(|source| match self.making.hold.check_blob(&layer) {
            // It came as it should: then it never was what the image says.
            Ok(()) => Error::Unpack { layer, source },
            Err(damaged) => damaged,
        })
    }
}

/// Waits until one of them has something to tell, and puts those that are done in their places.
fn hear(at_once: &mut Vec<Unpacking>, progress: &mut dyn FnMut(u64)) -> Result<(), Error> {
    let mut wait: Vec<PollFd<'_>> =
        at_once.iter().map(|unpacking| PollFd::new(&unpacking.work, PollFlags::IN)).collect();
    if let Some(first) = at_once.first() {
        rustix::io::retry_on_intr(|| rustix::event::poll(&mut wait, None))
            .map_err(|errno| failed("wait for", first.making.folder())(errno.into()))?;
    }
    let mut going_on = Vec::new();
    for mut unpacking in at_once.drain(..) {
        match unpacking.listen(progress)? {
            Some(told) => drop(unpacking.making.finish(told)?),
            None => going_on.push(unpacking),
        }
    }
    *at_once = going_on;
    Ok(())
}
