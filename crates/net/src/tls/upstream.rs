//! The handshake with the server: it is always verified, by what this host trusts and by the rule's pins.

use super::{provider, roots, wire::Wire};
use airlock_gate::host::Target;
use data_encoding::BASE64;
use sha2::{Digest as _, Sha256};
use std::{io, path::PathBuf, sync::Arc, time::Duration};
use tokio::{sync::OnceCell, time::timeout};
use tokio_rustls::{
    TlsConnector,
    client::TlsStream,
    rustls::{
        self, ClientConfig, RootCertStore,
        pki_types::{CertificateDer, ServerName},
    },
};

/// How long a handshake may take.
const HANDSHAKE: Duration = Duration::from_secs(30);

/// Whom connections of this sandbox trust. Read when the first is opened.
pub(crate) struct Upstream {
    extra: Option<PathBuf>,
    connector: OnceCell<TlsConnector>,
}

/// Why there is no private connection to a server.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Untrusted {
    /// Its certificate is not to be trusted.
    #[error("{0}")]
    Certificate(String),
    /// It does not speak TLS as it should.
    #[error("the server does not speak TLS with us: {0}")]
    Tls(String),
    /// It is gone.
    #[error("the connection to the server was lost during the TLS handshake")]
    Lost,
    /// It takes too long.
    #[error("the server did not finish the TLS handshake within {} s", HANDSHAKE.as_secs())]
    Late,
}

impl Upstream {
    /// Trusts what this host trusts, and the certificates in `extra`.
    pub(crate) fn new(extra: Option<PathBuf>) -> Upstream {
        Upstream { extra, connector: OnceCell::new() }
    }

    /// Trusts these and nobody else.
    #[cfg(test)]
    pub(crate) fn trusting(roots: RootCertStore) -> Upstream {
        Upstream { extra: None, connector: OnceCell::new_with(Some(connector(roots))) }
    }

    /// Finishes the handshake as a client of `target`, offering these protocols; and the server's key, as a pin.
    pub(crate) async fn connect(
        &self,
        target: &Target,
        pins: &[String],
        offers: &[&[u8]],
        wire: Wire,
    ) -> Result<(TlsStream<Wire>, Option<String>), Untrusted> {
        let connector = self.connector.get_or_try_init(|| self.load()).await?;
        let name = match target {
            Target::Name(name) => ServerName::try_from(name.as_str().to_owned())
                .map_err(|_| Untrusted::Certificate(format!("no certificate can be for {name}")))?,
            Target::Address(address) => ServerName::from(*address),
        };
        let offers = offers.iter().map(|offer| offer.to_vec()).collect();
        let connecting = connector.with_alpn(offers).connect(name, wire);
        let stream = timeout(HANDSHAKE, connecting).await.map_err(|_| Untrusted::Late)?.map_err(untrusted)?;
        let (_, session) = stream.get_ref();
        let leaf = session.peer_certificates().and_then(<[CertificateDer<'_>]>::first);
        match leaf.and_then(pin) {
            found if pins.is_empty() => Ok((stream, found)),
            Some(found) if pins.contains(&found) => Ok((stream, Some(found))),
            Some(found) => {
                Err(Untrusted::Certificate(format!("its key is {found}, which the rule's pins do not name")))
            }
            None => Err(Untrusted::Certificate("its key cannot be read".to_owned())),
        }
    }

    async fn load(&self) -> Result<TlsConnector, Untrusted> {
        let extra = self.extra.clone();
        let unread = |why: String| Untrusted::Certificate(why);
        let roots = tokio::task::spawn_blocking(move || roots::trusted(extra.as_deref())).await;
        let roots = roots.map_err(|err| unread(err.to_string()))?.map_err(|err| unread(err.to_string()))?;
        trusting(roots)
    }

    /// Reads whom to trust in this thread: for a process that must not have another.
    pub(crate) fn load_here(&self) -> Result<(), Untrusted> {
        if self.connector.get().is_none() {
            let roots = roots::trusted(self.extra.as_deref());
            let roots = roots.map_err(|err| Untrusted::Certificate(err.to_string()))?;
            // Whoever was quicker read the same.
            let _ = self.connector.set(trusting(roots)?);
        }
        Ok(())
    }
}

fn trusting(roots: RootCertStore) -> Result<TlsConnector, Untrusted> {
    match roots.is_empty() {
        true => Err(Untrusted::Certificate("no trusted certificates were found on this host".to_owned())),
        false => Ok(connector(roots)),
    }
}

/// One that verifies by `roots`, and resumes sessions.
pub(crate) fn connector(roots: RootCertStore) -> TlsConnector {
    let builder = ClientConfig::builder_with_provider(provider::provider());
    // What the library can do it can also do in another order.
    let builder = builder.with_safe_default_protocol_versions().unwrap_or_else(|_| ClientConfig::builder());
    let config = builder.with_root_certificates(roots).with_no_client_auth();
    TlsConnector::from(Arc::new(config))
}

/// A certificate's key as a pin.
fn pin(certificate: &CertificateDer<'_>) -> Option<String> {
    let parsed = webpki::EndEntityCert::try_from(certificate).ok()?;
    let hash = Sha256::digest(parsed.subject_public_key_info());
    Some(format!("sha256/{}", BASE64.encode(&hash)))
}

fn untrusted(err: io::Error) -> Untrusted {
    let inner = err.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    match inner {
        Some(rustls::Error::InvalidCertificate(why)) => Untrusted::Certificate(why.to_string()),
        Some(rustls::Error::NoCertificatesPresented) => Untrusted::Certificate("it has none".to_owned()),
        Some(other) => Untrusted::Tls(other.to_string()),
        None => Untrusted::Lost,
    }
}
