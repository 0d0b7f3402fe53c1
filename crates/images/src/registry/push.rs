//! An image goes to a registry: its layers and its config, unless they are there, then its manifest.

use super::{
    Error, Event, Settings, State, Watch, alone,
    client::{self, Client, Rights},
    fetch::stored,
    place,
};
use crate::{
    digest::Digest,
    manifest::{self, Descriptor, Document},
    reference::{DEFAULT_TAG, Reference},
    store::{self, Image, Store},
};
use airlock_net::errand::{Answer, Ask, Content, Site};
use http::{Method, StatusCode, header};
use std::{
    cell::{Cell, RefCell},
    rc::Rc,
    time::Duration,
};

/// How often those who watch are told.
const TELL: Duration = Duration::from_millis(200);

/// Pushes an image under a name; the digest that it has there.
pub fn push(
    store: &Store,
    image: &Image,
    reference: &Reference,
    settings: &Settings,
    progress: &mut dyn FnMut(&Event),
) -> Result<Digest, Error> {
    let hold = store.hold().map_err(stored)?;
    let watch: Watch<'_> = RefCell::new(progress);
    alone(async {
        let client = Client::new(reference, settings, Rights::Push)?;
        let push =
            Push { client: &client, store: &hold, watch: &watch, from: other_repositories(image, &client) };
        push.all(image, reference).await
    })
}

/// Repositories of the same registry that have the image already.
fn other_repositories(image: &Image, client: &Client<'_>) -> Vec<String> {
    let registry = Some(&client.place.registry);
    let known = image.digests.iter().filter(|known| known.registry.as_ref() == registry);
    let mut found: Vec<String> = known.map(|known| known.repository.clone()).collect();
    found.retain(|repository| *repository != client.place.repository);
    found.dedup();
    found
}

struct Push<'a, 'w> {
    client: &'a Client<'a>,
    store: &'a Store,
    watch: &'a Watch<'w>,
    from: Vec<String>,
}

impl Push<'_, '_> {
    async fn all(&self, image: &Image, reference: &Reference) -> Result<Digest, Error> {
        let unusable = |source| Error::Document { what: reference.to_string(), source };
        let bytes = self.store.read_blob(&image.manifest_digest, manifest::MOST_BYTES).map_err(stored)?;
        let Document::Manifest(document) = manifest::read(&bytes, None).map_err(unusable)? else {
            return Err(self.client.lies("a manifest", "it is an index"));
        };
        let bytes_of_layers = document.layers.iter().fold(0u64, |sum, layer| sum.saturating_add(layer.size));
        (self.watch.borrow_mut())(&Event::Found {
            digest: image.manifest_digest,
            bytes: bytes_of_layers,
            layers: document.layers.len(),
        });
        for layer in document.layers.iter().chain([&document.config]) {
            self.blob(layer).await?;
        }
        let name = reference.tag.clone().unwrap_or_else(|| DEFAULT_TAG.to_owned());
        let ask = Ask::new(Method::PUT, self.client.place.manifest(&name))
            .header(header::CONTENT_TYPE, document.kind())
            .content(Content::Bytes(bytes.into()));
        let what = format!("push {reference}");
        let answer = self.client.ask(&ask, &what).await?;
        match answer.status {
            StatusCode::CREATED | StatusCode::OK | StatusCode::ACCEPTED => Ok(image.manifest_digest),
            _ => Err(self.client.refusal(answer, &what).await),
        }
    }

    async fn blob(&self, descriptor: &Descriptor) -> Result<(), Error> {
        if self.is_there(descriptor).await? || self.takes_over(descriptor).await? {
            self.tell(descriptor, State::Exists);
            return Ok(());
        }
        let mut number = 0;
        loop {
            number += 1;
            match self.upload(descriptor).await {
                Ok(()) => break,
                Err(err) if err.is_passing() => {
                    self.tell(descriptor, State::Retries(err.to_string()));
                    if !client::wait(number).await {
                        return Err(err);
                    }
                }
                Err(err) => {
                    // What the registry refuses may be damaged here.
                    let checked = self.store.check_blob(&descriptor.digest);
                    return Err(checked.err().filter(store::Error::is_damage).map_or(err, stored));
                }
            }
        }
        self.tell(descriptor, State::Done);
        Ok(())
    }

    async fn is_there(&self, descriptor: &Descriptor) -> Result<bool, Error> {
        let ask = Ask::new(Method::HEAD, self.client.place.blob(&descriptor.digest));
        let what = format!("push to {}", self.client.place.repository);
        let answer = self.client.ask(&ask, &what).await?;
        match answer.status {
            StatusCode::OK => Ok(true),
            StatusCode::NOT_FOUND => Ok(false),
            _ => Err(self.client.refusal(answer, &what).await),
        }
    }

    /// Whether the registry takes it over from another repository. One that does not begins an upload, which it forgets.
    async fn takes_over(&self, descriptor: &Descriptor) -> Result<bool, Error> {
        let Some(from) = self.from.first() else { return Ok(false) };
        let ask = Ask::new(Method::POST, self.client.place.mount(&descriptor.digest, from));
        let answer = self.client.ask(&ask, "taking over a layer").await?;
        Ok(answer.status == StatusCode::CREATED)
    }

    async fn upload(&self, descriptor: &Descriptor) -> Result<(), Error> {
        let what = format!("push {}", descriptor.digest);
        let ask = Ask::new(Method::POST, self.client.place.uploads());
        let answer = self.client.ask(&ask, &what).await?;
        if answer.status != StatusCode::ACCEPTED {
            return Err(self.client.refusal(answer, &what).await);
        }
        let Some((site, path)) = self.location(&answer, &ask.path) else {
            return Err(self.client.lies("a place to upload to", "it names none"));
        };
        drop(answer);
        place::may_lead(&self.client.place.site, &site)
            .map_err(|why| self.client.lies("a place to upload to", why))?;
        let sent = Rc::new(Cell::new(0u64));
        let path = place::with_query(&path, "digest", &descriptor.digest.to_string());
        let ask = Ask::new(Method::PUT, path)
            .header(header::CONTENT_TYPE, "application/octet-stream")
            .content(self.content(descriptor, &sent)?);
        let asked = self.client.ask_once(&site, &ask, &what);
        let mut asked = std::pin::pin!(asked);
        let answer = loop {
            tokio::select! {
                answer = &mut asked => break answer?,
                () = tokio::time::sleep(TELL) => self.tell(descriptor, State::Travels(sent.get())),
            }
        };
        match answer.status {
            StatusCode::CREATED | StatusCode::NO_CONTENT => Ok(()),
            _ => Err(self.client.refusal(answer, &what).await),
        }
    }

    fn location(&self, answer: &Answer<'_>, path: &str) -> Option<(Site, String)> {
        let location = answer.headers.get(header::LOCATION)?.to_str().ok()?;
        place::resolve(answer.site(), path, location)
    }

    fn content(&self, descriptor: &Descriptor, sent: &Rc<Cell<u64>>) -> Result<Content, Error> {
        if !self.store.has_blob(&descriptor.digest) {
            return Err(Error::Absent(descriptor.digest));
        }
        let file = Rc::new(self.store.open_blob(&descriptor.digest).map_err(stored)?);
        let sent = Rc::clone(sent);
        let told = Rc::new(move |bytes| sent.set(sent.get().saturating_add(bytes)));
        Ok(Content::File { file, length: descriptor.size, told })
    }

    fn tell(&self, descriptor: &Descriptor, state: State) {
        let event = Event::Layer { digest: descriptor.digest, size: descriptor.size, state };
        (self.watch.borrow_mut())(&event);
    }
}
