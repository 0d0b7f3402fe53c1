//! Whose signature an image must have: cosign's signatures, checked with public keys that a person gave, without asking anybody.
//!
//! A signature is made over a small document, the *payload*, which names the digest of a manifest or an index. In a registry
//! it lies beside the image, under the tag `sha256-<hex>.sig` (cosign, "SIGNATURE_SPEC.md"). What was found good is kept in the
//! store, and checked anew with the keys of the day whenever the image is used.
//!
//! - `key`: a public key of ECDSA P-256, as `cosign generate-key-pair` and `openssl ec -pubout` write it
//! - `payload`: what is signed (pure)
//! - `kept`: signatures in the store, and in a file of a person's own

mod kept;
mod key;
mod payload;

pub use kept::{keep, read_file};
pub use key::{BadKey, Key};
pub use payload::Signature;

use super::{
    Error,
    client::Client,
    fetch::{self, Remote},
};
use crate::{
    digest::Digest,
    manifest::{self, Document},
    reference::Reference,
    store::Store,
};
use payload::Why;
use std::{fmt, str::FromStr};

/// Most signatures of one image, and most bytes of one payload, that are looked at.
const MOST_SIGNATURES: usize = 32;
const MOST_PAYLOAD: u64 = 64 * 1024;
/// What a payload is called, and where its signature stands.
const PAYLOAD_KIND: &str = "application/vnd.dev.cosign.simplesigning.v1+json";
const SIGNATURE: &str = "dev.cosignproject.cosign/signature";

/// What is demanded. Nothing is, of a repository that no demand names.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Policy {
    /// All those that name a repository must be met.
    pub demands: Vec<Demand>,
}

/// One demand.
#[derive(Debug, Clone, PartialEq)]
pub struct Demand {
    /// Of which repositories.
    pub repository: Pattern,
    /// One of these must have signed.
    pub keys: Vec<Key>,
    /// Signatures besides those beside the image.
    pub signatures: Vec<Signature>,
}

/// Which repositories: `registry.example/team/app`, all below `registry.example/team/*`, or `*`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pattern(String);

/// Why an image may not be used.
#[derive(Debug, thiserror::Error)]
#[error("{name} is not signed as your config.toml demands")]
pub struct Unverified {
    name: String,
    #[source]
    why: Unsigned,
}

/// What is the matter with its signatures.
#[derive(Debug, thiserror::Error)]
enum Unsigned {
    #[error("there is no signature for {0}")]
    None(Digest),
    #[error("none of {count} signatures for {digest} counts: {why}")]
    Bad { digest: Digest, count: usize, why: Why },
}

impl Unverified {
    /// What a person can do.
    pub fn fix(&self) -> String {
        format!(
            "have it signed by the key of [[images.verify]] for {}, or change what is demanded there",
            self.name
        )
    }
}

impl FromStr for Pattern {
    type Err = String;

    fn from_str(text: &str) -> Result<Pattern, String> {
        let wrong = || {
            format!(
                "{text:?} names no repositories: write \"registry.example/team/app\" or \"registry.example/team/*\""
            )
        };
        let name = text.strip_suffix("/*").unwrap_or(text);
        if text == "*" {
            return Ok(Pattern(text.to_owned()));
        }
        // A registry alone is no name of an image, but may have a star behind it.
        let named = if text.ends_with("/*") { format!("{name}/x") } else { name.to_owned() };
        let reference: Reference = named.parse().map_err(|_| wrong())?;
        let is_plain = reference.tag.is_none() && reference.digest.is_none() && reference.registry.is_some();
        if is_plain { Ok(Pattern(text.to_owned())) } else { Err(wrong()) }
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Pattern {
    /// Whether it means the repository of this image. Short names are nobody's.
    pub fn matches(&self, reference: &Reference) -> bool {
        if reference.registry.is_none() {
            return false;
        }
        let name = reference.name().to_ascii_lowercase();
        let pattern = self.0.to_ascii_lowercase();
        match pattern.strip_suffix('*') {
            Some(beginning) => name.starts_with(beginning),
            None => name == pattern,
        }
    }
}

impl Policy {
    /// Whether anything is demanded of this image.
    pub fn demands_of(&self, reference: &Reference) -> bool {
        self.demands.iter().any(|demand| demand.repository.matches(reference))
    }

    /// Whether an image of these digests may be used under this name, given these signatures.
    pub fn check(
        &self,
        reference: &Reference,
        digests: &[Digest],
        signatures: &[Signature],
    ) -> Result<(), Unverified> {
        let mut matching = self.demands.iter().filter(|demand| demand.repository.matches(reference));
        let refused = |why| Unverified { name: reference.to_string(), why };
        matching.try_for_each(|demand| demand.check(digests, signatures)).map_err(refused)
    }

    /// Whether an image of the store may be used: under each of its names that something is demanded of. `digests` are those
    /// of its manifest and of what its names led to.
    pub fn check_stored(
        &self,
        store: &Store,
        names: &[Reference],
        digests: &[Digest],
    ) -> Result<(), Unverified> {
        if !names.iter().any(|name| self.demands_of(name)) {
            return Ok(());
        }
        let signatures: Vec<Signature> =
            digests.iter().flat_map(|digest| kept::read(store, digest)).collect();
        names.iter().try_for_each(|name| self.check(name, digests, &signatures))
    }
}

impl Demand {
    fn check(&self, digests: &[Digest], signatures: &[Signature]) -> Result<(), Unsigned> {
        let digest = digests.first().copied().unwrap_or_else(|| Digest::of(b""));
        let (mut count, mut worst) = (0, None);
        for signature in signatures.iter().chain(&self.signatures) {
            match signature.is_of(&self.keys, digests) {
                Ok(()) => return Ok(()),
                // What is signed for other images says nothing of this one.
                Err(Why::Other(_)) if count > 0 => {}
                Err(why) => {
                    count += 1;
                    worst = Some(why);
                }
            }
        }
        match worst {
            Some(why) => Err(Unsigned::Bad { digest, count, why }),
            None => Err(Unsigned::None(digest)),
        }
    }
}

/// Checks what is about to be pulled; its signatures are fetched, and given back to be kept.
pub(super) async fn check_remote(
    client: &Client<'_>,
    reference: &Reference,
    remote: &Remote,
) -> Result<Vec<Signature>, Error> {
    let policy = &client.settings().policy;
    if !policy.demands_of(reference) {
        return Ok(Vec::new());
    }
    let mut digests = vec![remote.digest];
    if remote.manifest_digest != remote.digest {
        digests.push(remote.manifest_digest);
    }
    let mut found = Vec::new();
    for digest in &digests {
        found.extend(signatures_of(client, digest).await?);
    }
    policy.check(reference, &digests, &found)?;
    Ok(found)
}

/// The signatures that lie beside an image.
async fn signatures_of(client: &Client<'_>, digest: &Digest) -> Result<Vec<Signature>, Error> {
    let tag = format!("sha256-{}.sig", digest.hex());
    let bytes = match fetch::document(client, &tag, None).await {
        Ok((bytes, _)) => bytes,
        Err(Error::Missing { .. }) => return Ok(Vec::new()),
        Err(err) => return Err(err),
    };
    let unusable = |source| Error::Document { what: tag.clone(), source };
    let Document::Manifest(document) = manifest::read(&bytes, None).map_err(unusable)? else {
        return Ok(Vec::new());
    };
    let mut found = Vec::new();
    for layer in document.layers.iter().take(MOST_SIGNATURES) {
        let annotations = layer.annotations.as_ref();
        let Some(signature) = annotations.and_then(|annotations| annotations.get(SIGNATURE)) else {
            continue;
        };
        if layer.media_type != PAYLOAD_KIND || layer.size > MOST_PAYLOAD {
            continue;
        }
        let payload = fetch::small_blob(client, layer).await?;
        found.extend(Signature::new(payload, signature));
    }
    Ok(found)
}

#[cfg(test)]
mod tests;
