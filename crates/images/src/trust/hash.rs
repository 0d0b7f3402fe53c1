//! The name under which OpenSSL finds a certificate in a directory: four bytes of a digest over its subject, in canonical form
//! (`X509_NAME_hash_ex`, `crypto/x509/x_name.c`).

use super::der::{element, next, write};
use data_encoding::HEXLOWER;
use sha1::{Digest as _, Sha1};

const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
const UTF8: u8 = 0x0c;
/// UTF-8, printable and 7-bit strings: those that are put into canonical form byte by byte.
const PLAIN: [u8; 3] = [UTF8, 0x13, 0x16];

/// The hash of a certificate's subject in hexadecimal. Nothing if it is no certificate, or its subject is written in an
/// unusual alphabet.
pub fn subject_hash(certificate: &[u8]) -> Option<String> {
    let mut canonical = Vec::new();
    let mut names = subject(certificate)?;
    while !names.is_empty() {
        let (parts, rest) = element(names, SET)?;
        names = rest;
        canonical.extend(write(SET, &canonical_parts(parts)?));
    }
    let digest = Sha1::digest(&canonical);
    // The first four bytes, the least significant first.
    let first: Vec<u8> = digest.iter().take(4).rev().copied().collect();
    Some(HEXLOWER.encode(&first))
}

/// The subject of a certificate, without its own head.
fn subject(certificate: &[u8]) -> Option<&[u8]> {
    let (whole, _) = element(certificate, SEQUENCE)?;
    let (mut rest, _) = element(whole, SEQUENCE)?;
    if let Some((_, after)) = element(rest, 0xa0) {
        rest = after;
    }
    // Serial number, algorithm, issuer, validity.
    for _ in 0..4 {
        (_, _, rest) = next(rest)?;
    }
    Some(element(rest, SEQUENCE)?.0)
}

fn canonical_parts(parts: &[u8]) -> Option<Vec<u8>> {
    let mut canonical = Vec::new();
    let mut rest = parts;
    while !rest.is_empty() {
        let (part, after) = element(rest, SEQUENCE)?;
        rest = after;
        let (kind, value) = element(part, 0x06)?;
        let (tag, text, _) = next(value)?;
        if !PLAIN.contains(&tag) {
            return None;
        }
        let pair = [write(0x06, kind), write(UTF8, &canonical_text(text))].concat();
        canonical.extend(write(SEQUENCE, &pair));
    }
    Some(canonical)
}

/// In small letters, with one space where there were several, none at the ends.
fn canonical_text(text: &[u8]) -> Vec<u8> {
    let words = text.split(|byte| byte.is_ascii_whitespace()).filter(|word| !word.is_empty());
    words.collect::<Vec<_>>().join(&b' ').to_ascii_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// `openssl req -x509 -subj "/O=Airlock  Test/CN= This  Sandbox's CA"`; `openssl x509 -hash` says 5dcd4f51.
    const CERTIFICATE: &[u8] = b"-----BEGIN CERTIFICATE-----
MIIBwTCCAWegAwIBAgIUPCCVmb3F9g8RiNTE155hN9PqNEIwCgYIKoZIzj0EAwIw
NjEWMBQGA1UECgwNQWlybG9jayAgVGVzdDEcMBoGA1UEAwwTIFRoaXMgIFNhbmRi
b3gncyBDQTAeFw0yNjExMTYxMTI5NTlaFw0zNjExMTMxMTI5NTlaMDYxFjAUBgNV
BAoMDUFpcmxvY2sgIFRlc3QxHDAaBgNVBAMMEyBUaGlzICBTYW5kYm94J3MgQ0Ew
WTATBgcqhkjOPQIBBggqhkjOPQMBBwNCAARY7LMtwdjdGejwj6EJs5yVJsGIFp+q
AvyanOzk1jovsYv46CImKLUJgKYVM8txOCz+Y6neesqqkKGFS/CX9yHoo1MwUTAd
BgNVHQ4EFgQUkl9CHdrWFKz/Jz0rVRYo0LlVW98wHwYDVR0jBBgwFoAUkl9CHdrW
FKz/Jz0rVRYo0LlVW98wDwYDVR0TAQH/BAUwAwEB/zAKBggqhkjOPQQDAgNIADBF
AiA1XZPFH4iIRun5WQL4RoroD5IXmAN6Fs2BJZGhERWbgwIhAJGgIJTOM2S3t+HF
0yP4i2GVlixLzBO25qpkuBX4lUxO
-----END CERTIFICATE-----
";

    #[test]
    fn the_hash_is_the_one_that_openssl_looks_for() {
        let certificate = super::super::certificates(CERTIFICATE).remove(0);
        assert_eq!(subject_hash(&certificate).as_deref(), Some("5dcd4f51"));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read(bytes in proptest::collection::vec(any::<u8>(), 0..200), at in 0usize..400, other: u8) {
            let _ = subject_hash(&bytes);
            let mut certificate = super::super::certificates(CERTIFICATE).remove(0);
            if let Some(byte) = certificate.get_mut(at) {
                *byte = other;
            }
            let _ = subject_hash(&certificate);
        }
    }
}
