//! Public keys of ECDSA on the curve P-256.

use aws_lc_rs::signature::{ECDSA_P256_SHA256_ASN1, UnparsedPublicKey};
use data_encoding::BASE64;
use std::fmt;

/// What stands before the point of a key on this curve (RFC 5480, section 2): its algorithm and its curve.
const HEAD: [u8; 26] = [
    0x30, 0x59, 0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08, 0x2a, 0x86,
    0x48, 0xce, 0x3d, 0x03, 0x01, 0x07, 0x03, 0x42, 0x00,
];
/// A point that is not compressed: 4 and two numbers of 32 bytes.
const POINT: usize = 65;
/// Longest file of a key.
const LONGEST: usize = 16 * 1024;

/// A public key.
#[derive(Clone, PartialEq, Eq)]
pub struct Key {
    point: Vec<u8>,
}

/// Why a text is no such key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadKey {
    /// No PEM of a public key.
    #[error("it holds no public key in PEM (-----BEGIN PUBLIC KEY-----)")]
    Pem,
    /// Another algorithm or curve.
    #[error("it holds a key of another kind; ECDSA on P-256 is understood")]
    Kind,
}

impl Key {
    /// The first public key of a PEM file.
    pub fn from_pem(text: &str) -> Result<Key, BadKey> {
        let text = text.get(..LONGEST.min(text.len())).ok_or(BadKey::Pem)?;
        let (_, rest) = text.split_once("-----BEGIN PUBLIC KEY-----").ok_or(BadKey::Pem)?;
        let (body, _) = rest.split_once("-----END PUBLIC KEY-----").ok_or(BadKey::Pem)?;
        let digits: String = body.chars().filter(|c| !c.is_ascii_whitespace()).collect();
        let der = BASE64.decode(digits.as_bytes()).map_err(|_| BadKey::Pem)?;
        match der.strip_prefix(&HEAD) {
            Some(point) if point.len() == POINT && point.first() == Some(&4) => {
                Ok(Key { point: point.to_vec() })
            }
            _ => Err(BadKey::Kind),
        }
    }

    /// Whether it signed this.
    pub(super) fn signed(&self, payload: &[u8], signature: &[u8]) -> bool {
        UnparsedPublicKey::new(&ECDSA_P256_SHA256_ASN1, &self.point).verify(payload, signature).is_ok()
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({})", crate::digest::Digest::of(&self.point).short())
    }
}
