//! Java's trust stores. Every Java reads the older of its two forms, whatever the file was before (`keystore.type.compat`),
//! and that one is simple: so it is the one written.
//!
//! A store of this form is: magic, version, number of entries; for each a tag, a name, a time, a kind and a certificate; and a digest
//! over the password and all of it (`sun.security.provider.JavaKeyStore`).

use super::der::element;
use sha1::{Digest as _, Sha1};

/// Where Java's stores are, besides `$JAVA_HOME`.
pub const STORES: [&str; 4] = [
    "/etc/ssl/certs/java/cacerts",
    "/etc/pki/ca-trust/extracted/java/cacerts",
    "/etc/pki/java/cacerts",
    "/opt/java/openjdk/lib/security/cacerts",
];
/// Directories that hold one Java each.
pub const HOMES: [&str; 2] = ["/usr/lib/jvm", "/opt"];
/// The store of a Java, from its own directory: of today's, and of Java 8.
pub const IN_HOME: [&str; 2] = ["lib/security/cacerts", "jre/lib/security/cacerts"];

const MAGIC: u32 = 0xfeed_feed;
const VERSION: u32 = 2;
const TRUSTED: u32 = 2;
/// What ours is called there.
const ALIAS: &[u8] = b"airlock";
/// What `keytool` and Java assume.
const PASSWORD: &str = "changeit";
const SALT: &[u8] = b"Mighty Aphrodite";

/// Why a certificate cannot be added to a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("it is neither a plain Java store nor is there a file of certificates to make one from")]
pub struct CannotAdd;

/// A trust store with the certificates of `existing` and one more. Where they cannot be read (encrypted, another form), those of
/// the root's own `bundle` in PEM stand in for them.
pub fn add(existing: &[u8], bundle: &[u8], certificate: &[u8]) -> Result<Vec<u8>, CannotAdd> {
    let mut entries = match read(existing) {
        Some(entries) => entries,
        None => numbered(
            Some(in_pkcs12(existing))
                .filter(|found| !found.is_empty())
                .unwrap_or_else(|| super::certificates(bundle)),
        ),
    };
    if entries.is_empty() {
        return Err(CannotAdd);
    }
    entries.retain(|entry| entry.alias != ALIAS);
    entries.push(Entry { alias: ALIAS.to_vec(), certificate: certificate.to_vec() });
    write(&entries).ok_or(CannotAdd)
}

struct Entry {
    alias: Vec<u8>,
    certificate: Vec<u8>,
}

fn numbered(certificates: Vec<Vec<u8>>) -> Vec<Entry> {
    let entry = |(number, certificate)| Entry { alias: format!("root-{number}").into_bytes(), certificate };
    certificates.into_iter().enumerate().map(entry).collect()
}

/// The certificates of a store in the older form; nothing if it is not one, or holds keys.
fn read(bytes: &[u8]) -> Option<Vec<Entry>> {
    let mut rest = Rest(bytes);
    if rest.number()? != MAGIC || rest.number()? != VERSION {
        return None;
    }
    let count = rest.number()?;
    let mut entries = Vec::new();
    for _ in 0..count {
        if rest.number()? != TRUSTED {
            return None;
        }
        let alias = rest.short()?.to_vec();
        rest.take(8)?;
        if rest.short()? != b"X.509" {
            return None;
        }
        let length = usize::try_from(rest.number()?).ok()?;
        entries.push(Entry { alias, certificate: rest.take(length)?.to_vec() });
    }
    Some(entries)
}

fn write(entries: &[Entry]) -> Option<Vec<u8>> {
    let mut store = Vec::new();
    for number in [MAGIC, VERSION, u32::try_from(entries.len()).ok()?] {
        store.extend_from_slice(&number.to_be_bytes());
    }
    for Entry { alias, certificate } in entries {
        store.extend_from_slice(&TRUSTED.to_be_bytes());
        short(&mut store, alias)?;
        // When it was added: nobody asks.
        store.extend_from_slice(&[0; 8]);
        short(&mut store, b"X.509")?;
        store.extend_from_slice(&u32::try_from(certificate.len()).ok()?.to_be_bytes());
        store.extend_from_slice(certificate);
    }
    let mut digest = Sha1::new();
    digest.update(PASSWORD.encode_utf16().flat_map(u16::to_be_bytes).collect::<Vec<u8>>());
    digest.update(SALT);
    digest.update(&store);
    store.extend_from_slice(&digest.finalize());
    Some(store)
}

fn short(store: &mut Vec<u8>, text: &[u8]) -> Option<()> {
    store.extend_from_slice(&u16::try_from(text.len()).ok()?.to_be_bytes());
    store.extend_from_slice(text);
    Some(())
}

/// What is still to be read.
struct Rest<'b>(&'b [u8]);

impl<'b> Rest<'b> {
    fn take(&mut self, count: usize) -> Option<&'b [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    fn number(&mut self) -> Option<u32> {
        self.take(4)?.try_into().ok().map(u32::from_be_bytes)
    }

    fn short(&mut self) -> Option<&'b [u8]> {
        let length = self.take(2)?.try_into().ok().map(u16::from_be_bytes)?;
        self.take(usize::from(length))
    }
}

/// The type of a certificate bag's content in PKCS #12 (RFC 7292, 4.2.3).
const X509: [u8; 12] = [0x06, 0x0a, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x09, 0x16, 0x01];

/// The certificates that stand unencrypted in a store of the newer form, as today's Java ships it.
fn in_pkcs12(bytes: &[u8]) -> Vec<Vec<u8>> {
    let mut found = Vec::new();
    let mut rest = bytes;
    while let Some(at) = rest.windows(X509.len()).position(|window| window == X509) {
        rest = rest.get(at.saturating_add(X509.len())..).unwrap_or_default();
        // [0] { OCTET STRING { certificate } }
        let certificate = element(rest, 0xa0).and_then(|(inner, _)| element(inner, 0x04));
        found.extend(certificate.map(|(certificate, _)| certificate.to_vec()));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_a_store_holds_stays_and_ours_is_there_once() {
        let old = write(&numbered(vec![vec![1, 2], vec![3; 300]])).unwrap();

        let new = add(&add(&old, b"", b"first").unwrap(), b"", b"ours").unwrap();

        let entries = read(&new).unwrap();
        let held: Vec<(&[u8], &[u8])> =
            entries.iter().map(|entry| (&*entry.alias, &*entry.certificate)).collect();
        assert_eq!(held, [(&b"root-0"[..], &[1, 2][..]), (b"root-1", &[3; 300]), (b"airlock", b"ours")]);
    }

    #[test]
    fn a_store_that_cannot_be_read_is_made_anew_from_the_bundle_or_not_at_all() {
        let bundle = b"-----BEGIN CERTIFICATE-----\nAAEC\n-----END CERTIFICATE-----\n";
        assert_eq!(read(&add(b"\x30\x82other", bundle, b"ours").unwrap()).unwrap().len(), 2);
        assert_eq!(add(b"\x30\x82other", b"", b"ours"), Err(CannotAdd));
    }

    #[test]
    fn certificates_that_stand_plain_in_the_newer_form_are_found() {
        let mut store = b"junk".to_vec();
        for content in [&b"one"[..], &[7; 200]] {
            store.extend_from_slice(&X509);
            let length = u8::try_from(content.len()).unwrap();
            match length {
                0..128 => store.extend([0xa0, length + 2, 0x04, length]),
                _ => store.extend([0xa0, 0x81, length + 3, 0x04, 0x81, length]),
            }
            store.extend_from_slice(content);
        }
        assert_eq!(in_pkcs12(&store), [b"one".to_vec(), vec![7; 200]]);
        assert_eq!(read(&add(&store, b"", b"ours").unwrap()).unwrap().len(), 3);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read(bytes in proptest::collection::vec(any::<u8>(), 0..200), valid: bool) {
            let mut bytes = bytes;
            if valid {
                bytes.splice(0..0, [0xfe, 0xed, 0xfe, 0xed, 0, 0, 0, 2]);
            }
            let _ = (read(&bytes), in_pkcs12(&bytes), add(&bytes, &bytes, &bytes));
        }
    }
}
