//! Signatures of AWS (Signature Version 4). Pure.

use super::read::{ALGORITHM, Scope, Signed};
use data_encoding::HEXLOWER;
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::{Digest as _, Sha256};
use zeroize::Zeroizing;

/// The SHA-256 of nothing.
pub(super) const NOTHING: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

/// A key for one day, region and service. Wiped when dropped.
pub(super) struct SigningKey(Zeroizing<Vec<u8>>);

impl SigningKey {
    pub(super) fn new(secret: &str, scope: &Scope) -> SigningKey {
        let start = Zeroizing::new(format!("AWS4{secret}").into_bytes());
        let steps = [scope.date.as_str(), &scope.region, &scope.service, "aws4_request"];
        let mac = |key: Zeroizing<Vec<u8>>, step: &&str| Zeroizing::new(hmac(&key, step.as_bytes()));
        SigningKey(steps.iter().fold(start, mac))
    }

    /// The signature of a request, in hexadecimal.
    pub(super) fn request(&self, signed: &Signed, canonical: &str) -> String {
        let hash = sha256(canonical.as_bytes());
        self.text(&format!("{ALGORITHM}\n{}\n{}\n{hash}", signed.stamp, signed.scope.words()))
    }

    /// The signature of a text, in hexadecimal.
    pub(super) fn text(&self, text: &str) -> String {
        HEXLOWER.encode(&hmac(&self.0, text.as_bytes()))
    }
}

/// In hexadecimal.
pub(super) fn sha256(bytes: &[u8]) -> String {
    HEXLOWER.encode(&Sha256::digest(bytes))
}

fn hmac(key: &[u8], text: &[u8]) -> Vec<u8> {
    // A key of any length is a key of HMAC.
    let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(key) else { return Vec::new() };
    mac.update(text);
    mac.finalize().into_bytes().to_vec()
}
