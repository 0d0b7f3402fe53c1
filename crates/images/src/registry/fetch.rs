//! Documents and blobs, verified.

use super::{
    Error, Event, State, Watch,
    client::{self, Client},
    resume::{self, Meaning, Said},
};
use crate::{
    digest::Digest,
    manifest::{self, Config, Descriptor, Document, Manifest, media},
    reference::{DEFAULT_TAG, Reference},
    store::{self, Arrival, Hold, Incoming, Store},
};
use airlock_net::errand::{Answer, Ask, Unanswered};
use http::{HeaderMap, HeaderName, StatusCode, header};
use std::{
    cell::Cell,
    pin::pin,
    time::{Duration, Instant},
};

/// What documents are wanted.
const KINDS: [&str; 4] = [media::OCI_INDEX, media::OCI_MANIFEST, media::DOCKER_INDEX, media::DOCKER_MANIFEST];
/// Indexes that lead to indexes.
const MOST_INDEXES: usize = 3;
/// Most bytes of a list of tags, and tags that are repeated to a person.
const MOST_TAGS: usize = 64 * 1024;
const SHOWN_TAGS: usize = 10;

/// So much has to come before failures are counted anew.
const PROGRESS: u64 = 1 << 20;
/// So much has to come within a minute, or the server is taken for one that does not want to.
const SLOWEST: u64 = 4 << 10;
const MINUTE: Duration = Duration::from_secs(60);
/// How long nothing comes until it is told how far it is, and until it is told again.
const STILL: Duration = Duration::from_millis(200);
const LONGER: Duration = Duration::from_secs(1);
/// How often one looks whether another process has got something.
const GLANCE: Duration = Duration::from_millis(50);
/// How often those who watch are told.
const TELL: u64 = 512 << 10;

/// The digest of the content that a registry says it sends.
const CONTENT_DIGEST: HeaderName = HeaderName::from_static("docker-content-digest");

/// What a name leads to, without its layers.
#[derive(Debug, Clone)]
pub struct Remote {
    /// What the name itself leads to: an index, or the manifest.
    pub digest: Digest,
    /// The manifest of the platform.
    pub manifest_digest: Digest,
    /// Its bytes.
    pub manifest_bytes: Vec<u8>,
    /// What they say.
    pub manifest: Manifest,
    /// The config.
    pub config: Config,
    /// Its bytes.
    pub config_bytes: Vec<u8>,
    /// The indexes on the way, from the name on.
    pub indexes: Vec<Vec<u8>>,
}

/// What a name leads to: documents only. Those that `store` has are taken from there.
pub(super) async fn remote(
    client: &Client<'_>,
    reference: &Reference,
    store: Option<&Store>,
) -> Result<Remote, Error> {
    let known = |digest: &Digest| {
        store.filter(|store| store.has_blob(digest))?.read_blob(digest, manifest::MOST_BYTES).ok()
    };
    let unusable = |source| Error::Document { what: reference.to_string(), source };
    let name = match (&reference.digest, &reference.tag) {
        (Some(digest), _) => digest.to_string(),
        (None, Some(tag)) => tag.clone(),
        (None, None) => DEFAULT_TAG.to_owned(),
    };
    let (mut bytes, mut kind) = document(client, &name, reference.digest.as_ref()).await?;
    let digest = Digest::of(&bytes);
    let mut indexes = Vec::new();
    let manifest = loop {
        match manifest::read(&bytes, kind.as_deref()).map_err(unusable)? {
            Document::Manifest(manifest) => break *manifest,
            Document::Index(_) if indexes.len() == MOST_INDEXES => {
                return Err(client.lies("an image", "indexes lead to indexes"));
            }
            Document::Index(index) => {
                let chosen = index.choose(&client.settings().platform).map_err(unusable)?;
                indexes.push(bytes);
                kind = Some(chosen.media_type.clone());
                bytes = match known(&chosen.digest) {
                    Some(bytes) => bytes,
                    None => document(client, &chosen.digest.to_string(), Some(&chosen.digest)).await?.0,
                };
            }
        }
    };
    check_kinds(reference, &manifest)?;
    let config_bytes = match known(&manifest.config.digest) {
        Some(bytes) => bytes,
        None => small_blob(client, &manifest.config).await?,
    };
    let config = manifest::read_config(&config_bytes).map_err(unusable)?;
    manifest.layers_of(&config).map_err(unusable)?;
    let manifest_digest = Digest::of(&bytes);
    Ok(Remote { digest, manifest_digest, manifest_bytes: bytes, manifest, config, config_bytes, indexes })
}

/// Registries hold other things besides images.
fn check_kinds(reference: &Reference, manifest: &Manifest) -> Result<(), Error> {
    let no_image = |part, kind: &str| {
        let kind = kind.chars().take(100).collect();
        Err(Error::NoImage { name: reference.to_string(), part, kind })
    };
    if !media::is_config(&manifest.config.media_type) {
        return no_image("config", &manifest.config.media_type);
    }
    match manifest.layers.iter().find(|layer| !media::is_layer(&layer.media_type)) {
        Some(layer) => no_image("layer", &layer.media_type),
        None => Ok(()),
    }
}

/// A manifest or an index, and what the registry calls it.
pub(super) async fn document(
    client: &Client<'_>,
    name: &str,
    digest: Option<&Digest>,
) -> Result<(Vec<u8>, Option<String>), Error> {
    let what = format!("{}:{name}", client.place.repository).replace(":sha256:", "@sha256:");
    let ask = Ask::get(client.place.manifest(name)).header(header::ACCEPT, &KINDS.join(", "));
    let answer = client.ask(&ask, &format!("asking for {what}")).await?;
    match answer.status {
        StatusCode::OK => {}
        StatusCode::NOT_FOUND => return Err(missing(client, &what).await),
        _ => return Err(client.refusal(answer, &format!("pull {what}")).await),
    }
    let kind = text(&answer.headers, &header::CONTENT_TYPE).map(ToOwned::to_owned);
    let kind = kind.and_then(|kind| kind.split(';').next().map(|kind| kind.trim().to_owned()));
    let named = text(&answer.headers, &CONTENT_DIGEST).and_then(|text| text.parse::<Digest>().ok());
    let most = usize::try_from(manifest::MOST_BYTES).unwrap_or(usize::MAX);
    let unanswered = |source| Error::Unanswered { what: format!("reading {what}"), source };
    let bytes = answer.all(most).await.map_err(unanswered)?;
    let found = Digest::of(&bytes);
    match digest.copied().or(named) {
        Some(wanted) if wanted != found => Err(client.lies(&what, format!("its digest is {found}"))),
        _ => Ok((bytes, kind)),
    }
}

async fn missing(client: &Client<'_>, what: &str) -> Error {
    #[derive(serde::Deserialize)]
    struct Tags {
        #[serde(default)]
        tags: Option<Vec<String>>,
    }
    let mut found = Vec::new();
    let ask = Ask::get(client.place.tags());
    if let Ok(answer) = client.ask_once(&client.place.site, &ask, "asking for tags").await
        && answer.status == StatusCode::OK
        && let Ok(body) = answer.all(MOST_TAGS).await
        && let Ok(Tags { tags: Some(tags) }) = serde_json::from_slice(&body)
    {
        let is_tag = |tag: &String| tag.len() <= 128 && tag.bytes().all(|byte| byte.is_ascii_graphic());
        found = tags.into_iter().filter(is_tag).take(SHOWN_TAGS).collect();
    }
    Error::Missing { registry: client.place.registry.clone(), what: what.to_owned(), tags: found }
}

/// A blob that is a document: a config, or what was signed.
pub(super) async fn small_blob(client: &Client<'_>, descriptor: &Descriptor) -> Result<Vec<u8>, Error> {
    let what = descriptor.digest.to_string();
    if descriptor.size > manifest::MOST_BYTES {
        return Err(client.lies(&what, format!("{} bytes are too many for a document", descriptor.size)));
    }
    let ask = Ask::get(client.place.blob(&descriptor.digest));
    let mut number = 0;
    let bytes = loop {
        number += 1;
        let answer = client.ask(&ask, &format!("asking for {what}")).await?;
        if answer.status != StatusCode::OK {
            return Err(client.refusal(answer, &format!("pull {what}")).await);
        }
        let most = usize::try_from(descriptor.size).unwrap_or(usize::MAX);
        match answer.all(most).await {
            Ok(bytes) => break bytes,
            Err(err) if err.is_passing() && client::wait(number).await => {}
            Err(source) => return Err(Error::Unanswered { what: format!("reading {what}"), source }),
        }
    };
    match descriptor.digest.is_of(&bytes) {
        true => Ok(bytes),
        false => Err(client.lies(&what, format!("its digest is {}", Digest::of(&bytes)))),
    }
}

/// A layer on its way into the store.
pub(super) struct Layer<'a, 'w> {
    pub(super) client: &'a Client<'a>,
    pub(super) hold: &'a Hold,
    pub(super) descriptor: &'a Descriptor,
    pub(super) watch: &'a Watch<'w>,
}

impl Layer<'_, '_> {
    /// Gets it, unless it is there; waits for whoever gets it already.
    pub(super) async fn fetch(&self) -> Result<(), Error> {
        let Descriptor { digest, size, .. } = self.descriptor;
        let (mut is_awaited, mut has_differed) = (false, false);
        loop {
            let incoming = match self.hold.incoming(digest, *size).map_err(stored)? {
                Arrival::There if is_awaited => return self.settle(State::Arrived),
                Arrival::There => return self.settle(State::Exists),
                Arrival::Busy => {
                    if !is_awaited {
                        self.tell(State::Awaited);
                    }
                    is_awaited = true;
                    tokio::time::sleep(GLANCE).await;
                    continue;
                }
                Arrival::Ours(incoming) => incoming,
            };
            let goes_on = incoming.length() > 0;
            match self.arrive(incoming).await? {
                Ok(()) => return self.settle(State::Arrived),
                // What was there before may have been wrong.
                Err(_) if goes_on && !has_differed => has_differed = true,
                Err(found) => {
                    let why = format!("its digest is {found}");
                    return Err(self.client.lies(&digest.to_string(), why));
                }
            }
        }
    }

    /// Gets the rest of it; the digest if that is another in the end.
    async fn arrive(&self, mut incoming: Incoming) -> Result<Result<(), Digest>, Error> {
        let (mut number, mut tries) = (0, 0u32);
        while incoming.length() < self.descriptor.size {
            let before = incoming.length();
            let attempted = self.attempt(&mut incoming).await;
            let Err(err) = attempted else { continue };
            number = if incoming.length() >= before.saturating_add(PROGRESS) {
                1
            } else {
                number + 1 + err.weight()
            };
            tries += 1;
            if !err.is_passing() || tries > MOST_TRIES {
                return Err(err);
            }
            self.tell(State::Retries(because(&err)));
            if !client::wait(number).await {
                return Err(err);
            }
        }
        match incoming.finish() {
            Ok(()) => Ok(Ok(())),
            Err(store::Error::Differs { found, .. }) => Ok(Err(found)),
            Err(err) => Err(stored(err)),
        }
    }

    /// One request. Succeeds where all of it has come, or where another request is to be made at once.
    async fn attempt(&self, incoming: &mut Incoming) -> Result<(), Error> {
        let Descriptor { digest, size, .. } = self.descriptor;
        let what = digest.to_string();
        let have = incoming.length();
        let mut ask = Ask::get(self.client.place.blob(digest)).header(header::ACCEPT_ENCODING, "identity");
        if have > 0 {
            ask = ask.header(header::RANGE, &format!("bytes={have}-"));
        }
        let asking = format!("asking for {what}");
        let answer = self.client.ask_once(&self.client.place.site, &ask, &asking).await?;
        let said = Said {
            status: answer.status.as_u16(),
            range: text(&answer.headers, &header::CONTENT_RANGE),
            length: text(&answer.headers, &header::CONTENT_LENGTH),
            encoding: text(&answer.headers, &header::CONTENT_ENCODING),
        };
        match resume::judge(said, have, *size) {
            Meaning::GoesOn => {}
            Meaning::StartsOver => incoming.restart().map_err(stored)?,
            Meaning::AskForAll => return incoming.restart().map_err(stored),
            Meaning::Lies(why) => return Err(self.client.lies(&what, why)),
            Meaning::Refuses => return Err(self.client.refusal(answer, &format!("pull {what}")).await),
        }
        self.take(answer, incoming).await
    }

    async fn take(&self, mut answer: Answer<'_>, incoming: &mut Incoming) -> Result<(), Error> {
        let what = self.descriptor.digest.to_string();
        let reading = format!("reading {what}");
        let unanswered = |source| Error::Unanswered { what: reading.clone(), source };
        let told = Cell::new(incoming.length());
        let (mut since, mut at_least) = (Instant::now(), incoming.length().saturating_add(SLOWEST));
        self.tell(State::Travels(incoming.length()));
        loop {
            let piece = self.next(&mut answer, incoming, &told).await;
            let Some(piece) = piece.map_err(unanswered)? else { break };
            match incoming.append(piece.as_ref()) {
                Err(store::Error::Long { .. }) => {
                    incoming.restart().map_err(stored)?;
                    return Err(self.client.lies(&what, "it has more bytes than it should"));
                }
                appended => appended.map_err(stored)?,
            }
            let length = incoming.length();
            if length >= told.get().saturating_add(TELL) {
                told.set(length);
                self.tell(State::Travels(length));
            }
            if length >= at_least {
                (since, at_least) = (Instant::now(), length.saturating_add(SLOWEST));
            } else if since.elapsed() > MINUTE {
                let source = Unanswered::Silent { host: answer.site().to_string(), patience: MINUTE };
                return Err(unanswered(source));
            }
        }
        if incoming.length() < self.descriptor.size {
            let why = "it ended early".to_owned();
            let host = answer.site().to_string();
            return Err(unanswered(Unanswered::Lost { host, why }));
        }
        Ok(())
    }

    /// The next piece. Where none comes for a moment, it is told how far it is.
    async fn next(
        &self,
        answer: &mut Answer<'_>,
        incoming: &Incoming,
        told: &Cell<u64>,
    ) -> Result<Option<impl AsRef<[u8]> + use<>>, Unanswered> {
        let mut coming = pin!(answer.piece());
        let mut patience = STILL;
        loop {
            match tokio::time::timeout(patience, &mut coming).await {
                Ok(piece) => return piece,
                Err(_) => {
                    told.set(incoming.length());
                    self.tell(State::Travels(incoming.length()));
                    patience = LONGER;
                }
            }
        }
    }

    fn settle(&self, state: State) -> Result<(), Error> {
        self.tell(state);
        Ok(())
    }

    pub(super) fn tell(&self, state: State) {
        let Descriptor { digest, size, .. } = self.descriptor;
        let event = Event::Layer { digest: *digest, size: *size, state };
        (self.watch.borrow_mut())(&event);
    }
}

/// A download that breaks off again and again ends after so many times, however far it came each time.
const MOST_TRIES: u32 = 100;

pub(super) fn stored(err: store::Error) -> Error {
    Error::Store(Box::new(err))
}

fn because(err: &Error) -> String {
    std::error::Error::source(err).map_or_else(|| err.to_string(), ToString::to_string)
}

fn text<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}
