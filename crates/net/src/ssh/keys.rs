//! Keys of hosts: the sandbox's own, and the signatures of others.

use super::wire::{Cut, Reader, Writer};
use aws_lc_rs::{
    rand,
    signature::{
        self, ECDSA_P256_SHA256_FIXED, ECDSA_P384_SHA384_FIXED, ECDSA_P521_SHA512_FIXED, ED25519,
        Ed25519KeyPair, KeyPair as _, RSA_PKCS1_2048_8192_SHA256, RSA_PKCS1_2048_8192_SHA512,
        RsaPublicKeyComponents, UnparsedPublicKey,
    },
};

/// Signatures that we know how to verify, best first.
pub(crate) const ALGORITHMS: [&str; 6] = [
    "ssh-ed25519",
    "ecdsa-sha2-nistp256",
    "ecdsa-sha2-nistp384",
    "ecdsa-sha2-nistp521",
    "rsa-sha2-512",
    "rsa-sha2-256",
];

const ED25519_NAME: &str = "ssh-ed25519";
/// A key with a certificate.
pub(crate) const CERTIFIED: &str = "ssh-ed25519-cert-v01@openssh.com";
/// Signatures that we make.
pub(crate) const OWN_ALGORITHMS: [&str; 2] = [CERTIFIED, ED25519_NAME];
/// A certificate of a host, not of a user.
const OF_HOST: u32 = 2;

/// The kind of key that a kind of signature is made with.
pub(crate) fn key_of(algorithm: &str) -> &str {
    if algorithm.starts_with("rsa-sha2-") { "ssh-rsa" } else { algorithm }
}

/// A key was rejected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BadKey {
    /// It is no key, or the signature no signature.
    #[error("a key or a signature of SSH is malformed")]
    Malformed,
    /// It is of another kind than was agreed on.
    #[error("a key or a signature of SSH is of another kind than was agreed on")]
    Kind,
    /// The signature is not of this key.
    #[error("the signature was not made with this key")]
    Forged,
    /// The system's random numbers, or the library.
    #[error("no key can be made")]
    Unmade,
}

impl From<Cut> for BadKey {
    fn from(_: Cut) -> BadKey {
        BadKey::Malformed
    }
}

/// An Ed25519 key of ours.
pub(crate) struct OwnKey(Ed25519KeyPair);

impl OwnKey {
    /// A new one, in memory.
    pub(crate) fn make() -> Result<OwnKey, BadKey> {
        Ed25519KeyPair::generate().map(OwnKey).map_err(|_| BadKey::Unmade)
    }

    /// From its two halves.
    pub(crate) fn of(seed: &[u8], public: &[u8]) -> Result<OwnKey, BadKey> {
        Ed25519KeyPair::from_seed_and_public_key(seed, public).map(OwnKey).map_err(|_| BadKey::Malformed)
    }

    /// The public half, as SSH writes it.
    pub(crate) fn public(&self) -> Vec<u8> {
        let key = self.0.public_key();
        Writer::default().string(ED25519_NAME.as_bytes()).string(key.as_ref()).done()
    }

    /// A certificate that this is the key of `host`, signed by itself (OpenSSH's `PROTOCOL.certkeys`).
    pub(crate) fn certify(&self, host: &str) -> Result<Vec<u8>, BadKey> {
        let mut nonce = [0; 32];
        rand::fill(&mut nonce).map_err(|_| BadKey::Unmade)?;
        let hosts = Writer::default().string(host.as_bytes()).done();
        let text = Writer::default()
            .string(CERTIFIED.as_bytes())
            .string(&nonce)
            .string(self.0.public_key().as_ref())
            .bytes(&0u64.to_be_bytes())
            .number(OF_HOST)
            .string(b"airlock")
            .string(&hosts)
            .bytes(&0u64.to_be_bytes())
            .bytes(&u64::MAX.to_be_bytes())
            .string(b"")
            .string(b"")
            .string(b"")
            .string(&self.public());
        let signature = self.sign(&text.clone().done());
        Ok(text.string(&signature).done())
    }

    /// A signature, as SSH writes it.
    pub(crate) fn sign(&self, text: &[u8]) -> Vec<u8> {
        let signature = self.0.sign(text);
        Writer::default().string(ED25519_NAME.as_bytes()).string(signature.as_ref()).done()
    }
}

/// Whether `signature` of `text` was made with `key`, in the way that was agreed on.
pub(crate) fn verify(algorithm: &str, key: &[u8], signature: &[u8], text: &[u8]) -> Result<(), BadKey> {
    let (mut key, mut signature) = (Reader::new(key), Reader::new(signature));
    if key.text()? != key_of(algorithm) || signature.text()? != algorithm {
        return Err(BadKey::Kind);
    }
    let signed = signature.string()?;
    let is_right = match algorithm {
        ED25519_NAME => UnparsedPublicKey::new(&ED25519, key.string()?).verify(text, signed).is_ok(),
        "rsa-sha2-512" => verify_rsa(&RSA_PKCS1_2048_8192_SHA512, &mut key, text, signed)?,
        "rsa-sha2-256" => verify_rsa(&RSA_PKCS1_2048_8192_SHA256, &mut key, text, signed)?,
        "ecdsa-sha2-nistp256" => {
            verify_curve(&ECDSA_P256_SHA256_FIXED, ("nistp256", 32), &mut key, text, signed)?
        }
        "ecdsa-sha2-nistp384" => {
            verify_curve(&ECDSA_P384_SHA384_FIXED, ("nistp384", 48), &mut key, text, signed)?
        }
        "ecdsa-sha2-nistp521" => {
            verify_curve(&ECDSA_P521_SHA512_FIXED, ("nistp521", 66), &mut key, text, signed)?
        }
        _ => return Err(BadKey::Kind),
    };
    if is_right { Ok(()) } else { Err(BadKey::Forged) }
}

fn verify_rsa(
    algorithm: &'static signature::RsaParameters,
    key: &mut Reader<'_>,
    text: &[u8],
    signed: &[u8],
) -> Result<bool, BadKey> {
    let (e, n) = (key.large()?, key.large()?);
    Ok(RsaPublicKeyComponents { n, e }.verify(algorithm, text, signed).is_ok())
}

fn verify_curve(
    algorithm: &'static signature::EcdsaVerificationAlgorithm,
    (curve, width): (&str, usize),
    key: &mut Reader<'_>,
    text: &[u8],
    signed: &[u8],
) -> Result<bool, BadKey> {
    if key.text()? != curve {
        return Err(BadKey::Kind);
    }
    let point = key.string()?;
    let mut signed = Reader::new(signed);
    let mut fixed = Vec::with_capacity(2 * width);
    for number in [signed.large()?, signed.large()?] {
        let zeros = width.checked_sub(number.len()).ok_or(BadKey::Malformed)?;
        fixed.resize(fixed.len() + zeros, 0);
        fixed.extend_from_slice(number);
    }
    Ok(UnparsedPublicKey::new(algorithm, point).verify(text, &fixed).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signature_is_of_one_key_and_one_text() {
        let (one, other) = (OwnKey::make().unwrap(), OwnKey::make().unwrap());
        let signature = one.sign(b"text");

        assert_eq!(verify("ssh-ed25519", &one.public(), &signature, b"text"), Ok(()));
        assert_eq!(verify("ssh-ed25519", &one.public(), &signature, b"texT"), Err(BadKey::Forged));
        assert_eq!(verify("ssh-ed25519", &other.public(), &signature, b"text"), Err(BadKey::Forged));
        assert_eq!(verify("rsa-sha2-512", &one.public(), &signature, b"text"), Err(BadKey::Kind));
    }
}
