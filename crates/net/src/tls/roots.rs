//! Whom this host trusts.

use std::path::{Path, PathBuf};
use tokio_rustls::rustls::{
    RootCertStore,
    pki_types::{CertificateDer, pem::PemObject as _},
};

/// Certificates that cannot be used.
#[derive(Debug, Clone, thiserror::Error)]
#[error("the certificates in {} cannot be used: {why}", path.display())]
pub struct BadCertificates {
    path: PathBuf,
    why: String,
}

/// The certificates of a file that `extra_ca` names; at least one.
pub fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, BadCertificates> {
    let bad = |why: String| BadCertificates { path: path.to_owned(), why };
    let found = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    match found {
        Ok(found) if found.is_empty() => Err(bad("there is no certificate in it".to_owned())),
        Ok(found) => Ok(found),
        Err(err) => {
            let said = err.to_string();
            Err(bad(said.split(" (os error").next().unwrap_or_default().to_owned()))
        }
    }
}

/// What this host trusts, and the certificates in `extra`. Reads files.
pub(crate) fn trusted(extra: Option<&Path>) -> Result<RootCertStore, BadCertificates> {
    let mut roots = RootCertStore::empty();
    // A store with a broken certificate in it is a store all the same.
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if let Some(path) = extra {
        roots.add_parsable_certificates(certificates(path)?);
    }
    Ok(roots)
}
