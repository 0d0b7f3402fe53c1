//! The certificate authority of one sandbox.
//!
//! It is made anew at each start. Its key and the key of its leaves are only in memory; what leaves this process is its
//! certificate, which the sandbox trusts.

use super::provider;
use airlock_gate::host::Target;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType, ExtendedKeyUsagePurpose,
    IsCa, KeyPair, KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, SanType, SerialNumber,
};
use std::{
    cell::{Cell, RefCell},
    collections::HashMap,
    fmt,
    sync::Arc,
    time::{Duration, SystemTime},
};
use tokio_rustls::rustls::{
    self, DEFAULT_VERSIONS, ServerConfig,
    crypto::CryptoProvider,
    pki_types::PrivateKeyDer,
    server::{NoServerSessionStorage, ProducesTickets},
    sign::{CertifiedKey, SigningKey, SingleCertAndKey},
    version::TLS12,
};

/// Names whose leaves are kept; the one that was used least lately goes first.
const MOST_LEAVES: usize = 512;
/// A clock inside or a program's idea of time may be behind ours.
const BEFORE: Duration = Duration::from_secs(60 * 60);
/// How long it is valid.
const VALID: Duration = Duration::from_secs(30 * 24 * 60 * 60);
/// A leaf older than this is made anew.
const FRESH: Duration = Duration::from_secs(24 * 60 * 60);

/// The authority of one sandbox.
///
/// ```
/// let authority = airlock_net::tls::Authority::new().unwrap();
/// assert!(authority.pem().starts_with("-----BEGIN CERTIFICATE-----"));
/// ```
pub struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    /// The one key of all leaves.
    leaf: KeyPair,
    signer: Arc<dyn SigningKey>,
    tickets: Arc<dyn ProducesTickets>,
    provider: Arc<CryptoProvider>,
    kept: RefCell<HashMap<Target, Kept>>,
    uses: Cell<u64>,
}

struct Kept {
    used: u64,
    made: SystemTime,
    key: Arc<CertifiedKey>,
    /// By what is spoken with them.
    configs: Vec<(Speaks, Version, Arc<ServerConfig>)>,
}

/// What the near side speaks after the handshake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Speaks {
    /// Nothing was agreed on.
    Unsaid,
    /// HTTP/1.1.
    Http1,
    /// HTTP/2.
    Http2,
}

/// The version of TLS on the near side: the server's, as far as there is a choice. A program then gets the sessions that it would
/// have with the server, and whoever resumes one of TLS 1.2 need not agree on a new key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Version {
    /// TLS 1.2, and no other.
    Tls12,
    /// The newest that both ends speak.
    Newest,
}

/// Why no certificate could be made.
#[derive(Debug, thiserror::Error)]
pub enum CannotMake {
    /// The certificate.
    #[error("a certificate could not be made")]
    Certificate(#[from] rcgen::Error),
    /// What speaks TLS with it.
    #[error("a certificate could not be used")]
    Tls(#[from] rustls::Error),
}

impl Authority {
    /// A new one, with a new key.
    pub fn new() -> Result<Authority, CannotMake> {
        let mut params = CertificateParams::default();
        // Always the same words, so that the name under which OpenSSL looks for it is always the same.
        params.distinguished_name = name("airlock sandbox");
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        set_time(&mut params, BEFORE, VALID);
        params.serial_number = Some(serial());
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?)?;
        let leaf = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        let provider = provider::provider();
        let signer =
            provider.key_provider.load_private_key(PrivateKeyDer::Pkcs8(leaf.serialize_der().into()))?;
        let tickets = rustls::crypto::aws_lc_rs::Ticketer::new()?;
        Ok(Authority {
            issuer,
            leaf,
            signer,
            tickets,
            provider,
            kept: RefCell::default(),
            uses: Cell::new(0),
        })
    }

    /// Its certificate.
    pub fn pem(&self) -> String {
        self.issuer.pem()
    }

    /// What finishes the near side's handshake as `target`.
    pub(crate) fn server(
        &self,
        target: &Target,
        speaks: Speaks,
        version: Version,
    ) -> Result<Arc<ServerConfig>, CannotMake> {
        let used = self.uses.get().wrapping_add(1);
        self.uses.set(used);
        let mut all = self.kept.borrow_mut();
        if all.get(target).is_some_and(|kept| kept.made.elapsed().is_ok_and(|age| age > FRESH)) {
            all.remove(target);
        }
        if !all.contains_key(target) {
            let key = Arc::new(self.sign(target)?);
            if all.len() >= MOST_LEAVES
                && let Some(oldest) =
                    all.iter().min_by_key(|(_, kept)| kept.used).map(|(name, _)| name.clone())
            {
                all.remove(&oldest);
            }
            all.insert(target.clone(), Kept { used, made: SystemTime::now(), key, configs: Vec::new() });
        }
        let Some(kept) = all.get_mut(target) else {
            return Err(rcgen::Error::CouldNotParseCertificate.into());
        };
        kept.used = used;
        let known = kept.configs.iter().find(|(of, at, _)| (*of, *at) == (speaks, version));
        if let Some((_, _, config)) = known {
            return Ok(Arc::clone(config));
        }
        let config = Arc::new(self.config(&kept.key, speaks, version)?);
        kept.configs.push((speaks, version, Arc::clone(&config)));
        Ok(config)
    }

    /// A leaf for this name or address.
    fn sign(&self, target: &Target) -> Result<CertifiedKey, CannotMake> {
        let mut params = CertificateParams::default();
        params.distinguished_name = name("airlock");
        params.subject_alt_names = vec![match target {
            Target::Name(name) => SanType::DnsName(name.as_str().try_into()?),
            Target::Address(address) => SanType::IpAddress(*address),
        }];
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.use_authority_key_identifier_extension = true;
        set_time(&mut params, BEFORE, VALID);
        params.serial_number = Some(serial());
        let leaf = params.signed_by(&self.leaf, &self.issuer)?;
        Ok(CertifiedKey::new(vec![leaf.der().clone()], Arc::clone(&self.signer)))
    }

    fn config(
        &self,
        key: &Arc<CertifiedKey>,
        speaks: Speaks,
        version: Version,
    ) -> Result<ServerConfig, CannotMake> {
        let versions = match version {
            Version::Tls12 => &[&TLS12][..],
            Version::Newest => DEFAULT_VERSIONS,
        };
        let mut config = ServerConfig::builder_with_provider(Arc::clone(&self.provider))
            .with_protocol_versions(versions)?
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(SingleCertAndKey::from(Arc::clone(key))));
        // Sessions are in tickets that the client keeps: nothing to remember here.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.ticketer = Arc::clone(&self.tickets);
        config.send_tls13_tickets = 1;
        // The other end is on this machine: what is quickest is best.
        config.ignore_client_order = true;
        config.alpn_protocols = match speaks {
            Speaks::Unsaid => Vec::new(),
            Speaks::Http1 => vec![b"http/1.1".to_vec()],
            Speaks::Http2 => vec![b"h2".to_vec()],
        };
        Ok(config)
    }
}

impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Authority(…)")
    }
}

fn name(common: &str) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    name.push(DnType::OrganizationName, "Airlock");
    name.push(DnType::CommonName, common);
    name
}

fn set_time(params: &mut CertificateParams, before: Duration, valid: Duration) {
    let now = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
    let epoch = rcgen::date_time_ymd(1970, 1, 1);
    params.not_before = epoch + now.saturating_sub(before);
    params.not_after = epoch + now.saturating_add(valid);
}

/// Positive, and never given twice: programs refuse two certificates of one number.
fn serial() -> SerialNumber {
    let mut bytes = [0; 16];
    let drawn = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    if drawn.is_err() {
        let now = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
        bytes = now.as_nanos().to_be_bytes();
    }
    let [first, ..] = &mut bytes;
    *first = *first & 0x7f | 0x40;
    SerialNumber::from_slice(&bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leaf(authority: &Authority, target: &str) -> Vec<u8> {
        let target: Target = target.parse().unwrap();
        authority.server(&target, Speaks::Http2, Version::Newest).unwrap();
        authority.kept.borrow()[&target].key.cert[0].to_vec()
    }

    #[test]
    fn a_leaf_is_made_once_for_each_name() {
        let authority = Authority::new().unwrap();
        let first = leaf(&authority, "api.example.com");

        assert_eq!(leaf(&authority, "api.example.com"), first);
        assert_ne!(leaf(&authority, "www.example.com"), first);
        assert_ne!(leaf(&authority, "192.0.2.7"), first);
    }

    #[test]
    fn the_least_used_leaf_goes_first() {
        let authority = Authority::new().unwrap();
        let first = leaf(&authority, "a.test");
        for number in 0..MOST_LEAVES {
            leaf(&authority, "a.test");
            leaf(&authority, &format!("n{number}.test"));
        }

        assert_eq!(leaf(&authority, "a.test"), first);
        assert_eq!(authority.kept.borrow().len(), MOST_LEAVES);
    }
}
