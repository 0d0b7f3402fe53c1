//! Where the programs of a root file system look for certificates they trust, and what must lie there so that they trust
//! one more. Pure; whoever builds the root reads what is there and mounts what is made here over it.
//!
//! ```
//! use airlock_images::trust;
//! assert_eq!(trust::bundle(b"roots", "ours\n"), b"roots\nours\n");
//! assert!(trust::is_hashed(b"5f3c9e1a.0") && !trust::is_hashed(b"README"));
//! ```

mod der;
mod hash;
pub mod java;
mod pem;

pub use hash::subject_hash;
pub use pem::certificates;

/// Files of certificates in PEM: Debian, Alpine and Red Hat, and what openSUSE has.
pub const BUNDLES: [&str; 8] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/ssl/cert.pem",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/pki/tls/cert.pem",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/ssl/ca-bundle.pem",
    "/var/lib/ca-certificates/ca-bundle.pem",
    "/usr/local/share/certs/ca-root-nss.crt",
];

/// Directories in which OpenSSL finds a certificate by a hash of its subject.
pub const DIRECTORIES: [&str; 4] = [
    "/etc/ssl/certs",
    "/etc/pki/tls/certs",
    "/etc/pki/ca-trust/extracted/pem/directory-hash",
    "/var/lib/ca-certificates/openssl",
];

/// Where the files of the sandbox itself are, for programs that are told by a variable.
pub const OWN: &str = "/run/airlock/tls";
/// The one certificate, in [`OWN`].
pub const OWN_CERTIFICATE: &str = "ca.pem";
/// The root's own certificates and the one, in [`OWN`].
pub const OWN_BUNDLE: &str = "bundle.pem";

/// Which keys of hosts programs believe, in [`OWN`].
pub const OWN_KNOWN_HOSTS: &str = "known_hosts";
/// Where programs of SSH read what everybody here believes.
pub const SSH_CONFIG: &str = "/etc/ssh/ssh_config";

/// A store that is larger is not read.
pub const LARGEST: usize = 8 << 20;
/// A directory with more entries is not copied.
pub const MOST_ENTRIES: usize = 4096;

/// Variables that name a file of every certificate that is trusted.
const WHOLE: [&str; 10] = [
    "SSL_CERT_FILE",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "GIT_SSL_CAINFO",
    "CARGO_HTTP_CAINFO",
    "PIP_CERT",
    "AWS_CA_BUNDLE",
    "NIX_SSL_CERT_FILE",
    "HEX_CACERTS_PATH",
    "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH",
];
/// Variables that name a file of certificates that are trusted besides those the program brings along.
const FURTHER: [&str; 2] = ["NODE_EXTRA_CA_CERTS", "DENO_CERT"];

/// Variables that lead programs to the certificates, each with its value.
pub fn variables() -> impl Iterator<Item = (&'static str, String)> {
    let whole = WHOLE.iter().map(|name| (*name, format!("{OWN}/{OWN_BUNDLE}")));
    whole.chain(FURTHER.iter().map(|name| (*name, format!("{OWN}/{OWN_CERTIFICATE}"))))
}

/// The settings of SSH, with one more file of known hosts. What is said first counts there.
///
/// ```
/// let new = airlock_images::trust::ssh_config(b"Host *\n");
/// assert!(new.starts_with(b"GlobalKnownHostsFile /run/airlock/tls/known_hosts ") && new.ends_with(b"\nHost *\n"));
/// ```
pub fn ssh_config(existing: &[u8]) -> Vec<u8> {
    let usual = "/etc/ssh/ssh_known_hosts /etc/ssh/ssh_known_hosts2";
    let line = format!("GlobalKnownHostsFile {OWN}/{OWN_KNOWN_HOSTS} {usual}\n");
    [line.as_bytes(), existing].concat()
}

/// A file of certificates with one more.
pub fn bundle(existing: &[u8], certificate: &str) -> Vec<u8> {
    let mut all = existing.to_vec();
    if !all.is_empty() && !all.ends_with(b"\n") {
        all.push(b'\n');
    }
    all.extend_from_slice(certificate.as_bytes());
    all
}

/// Whether a name in a directory is one that OpenSSL looks for: eight hexadecimal digits, a dot, a number.
pub fn is_hashed(name: &[u8]) -> bool {
    let Some((hash, [b'.', number @ ..])) = name.split_at_checked(8) else { return false };
    let is_hex = |byte: &u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(byte);
    hash.iter().all(is_hex) && !number.is_empty() && number.iter().all(u8::is_ascii_digit)
}

/// The first free name for a certificate whose subject has this hash.
pub fn free_name<'n>(hash: &str, taken: impl Fn(&str) -> bool + 'n) -> Option<String> {
    (0..100).map(|number| format!("{hash}.{number}")).find(|name| !taken(name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_name_that_is_taken_is_left_alone() {
        let taken = |name: &str| name == "0a1b2c3d.0" || name == "0a1b2c3d.1";
        assert_eq!(free_name("0a1b2c3d", taken).as_deref(), Some("0a1b2c3d.2"));
        assert_eq!(free_name("0a1b2c3d", |_| true), None);
    }

    #[test]
    fn only_names_that_openssl_looks_for_are_hashed() {
        for (name, hashed) in [
            ("002c0b4f.0", true),
            ("002c0b4f.12", true),
            ("002c0b4f.r0", false),
            ("002C0B4F.0", false),
            ("a.0", false),
        ] {
            assert_eq!(is_hashed(name.as_bytes()), hashed, "{name}");
        }
    }

    proptest! {
        #[test]
        fn nothing_of_a_bundle_is_lost(existing: Vec<u8>) {
            let all = bundle(&existing, "ours\n");
            prop_assert!(all.starts_with(&existing) && all.ends_with(b"ours\n"));
            let _ = is_hashed(&existing);
        }
    }
}
