//! What is signed: a payload of the kind "simple signing" (containers/image, "container-signature"). Pure.

use super::key::Key;
use crate::digest::Digest;
use data_encoding::BASE64;
use serde::{Deserialize, Serialize};

/// What cosign writes into its payloads.
const TYPE: &str = "cosign container image signature";

/// A payload and its signature.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Signature {
    payload: Vec<u8>,
    signature: Vec<u8>,
}

/// Why a signature says nothing of an image.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum Why {
    /// Somebody else made it, or changed what it is about.
    #[error("no key that is demanded made it")]
    Key,
    /// It is for another image.
    #[error("it is for {0}")]
    Other(String),
    /// It is for no image.
    #[error("what is signed is no statement about an image")]
    Payload,
}

/// As `cosign download signature` prints it, and as it is kept here.
#[derive(Serialize, Deserialize)]
pub(super) struct Line {
    #[serde(rename = "Base64Signature")]
    signature: String,
    #[serde(rename = "Payload")]
    payload: String,
}

#[derive(Deserialize)]
struct Statement {
    critical: Critical,
}

#[derive(Deserialize)]
struct Critical {
    image: Image,
    #[serde(rename = "type")]
    kind: String,
}

#[derive(Deserialize)]
struct Image {
    #[serde(rename = "docker-manifest-digest")]
    digest: String,
}

impl Signature {
    /// A payload, and its signature in base 64.
    pub fn new(payload: Vec<u8>, signature: &str) -> Option<Signature> {
        let signature = BASE64.decode(signature.trim().as_bytes()).ok()?;
        Some(Signature { payload, signature })
    }

    pub(super) fn from_line(line: &Line) -> Option<Signature> {
        Signature::new(BASE64.decode(line.payload.trim().as_bytes()).ok()?, &line.signature)
    }

    pub(super) fn to_line(&self) -> Line {
        Line { signature: BASE64.encode(&self.signature), payload: BASE64.encode(&self.payload) }
    }

    /// Whether one of the keys signed one of these digests. The signature is checked before anything is read of what it is
    /// about.
    pub(super) fn is_of(&self, keys: &[Key], digests: &[Digest]) -> Result<(), Why> {
        if !keys.iter().any(|key| key.signed(&self.payload, &self.signature)) {
            return Err(Why::Key);
        }
        let statement: Statement = serde_json::from_slice(&self.payload).map_err(|_| Why::Payload)?;
        if statement.critical.kind != TYPE {
            return Err(Why::Payload);
        }
        let signed: Digest = statement.critical.image.digest.parse().map_err(|_| Why::Payload)?;
        match digests.contains(&signed) {
            true => Ok(()),
            false => Err(Why::Other(signed.to_string())),
        }
    }
}
