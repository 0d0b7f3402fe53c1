//! The cryptography of both sides.

use std::sync::Arc;
use tokio_rustls::rustls::{
    CipherSuite,
    crypto::{CryptoProvider, aws_lc_rs::default_provider},
};

/// The suites that browsers like best, of both versions.
const FIRST: [CipherSuite; 3] = [
    CipherSuite::TLS13_AES_128_GCM_SHA256,
    CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
    CipherSuite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
];

/// What both sides use. The suites that browsers like best go first: their handshakes take less time than those of the ones
/// which the library puts first, since processors hash for them in hardware, and so do their bytes.
pub(super) fn provider() -> Arc<CryptoProvider> {
    let mut provider = default_provider();
    provider.cipher_suites.sort_by_key(|suite| !FIRST.contains(&suite.suite()));
    Arc::new(provider)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suites_that_processors_hash_for_go_first_in_both_versions() {
        let suites: Vec<CipherSuite> =
            provider().cipher_suites.iter().map(|suite| suite.suite()).take(FIRST.len()).collect();

        assert_eq!(suites, FIRST);
    }
}
