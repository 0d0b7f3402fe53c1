//! The cryptography of both sides.

use std::sync::Arc;
use tokio_rustls::rustls::crypto::{
    CryptoProvider,
    aws_lc_rs::{cipher_suite::TLS13_AES_128_GCM_SHA256, default_provider},
};

/// What both sides use. The suite that browsers like best goes first: its handshake takes less time than that of the one
/// which the library puts first, and processors hash for it in hardware.
pub(super) fn provider() -> Arc<CryptoProvider> {
    let mut provider = default_provider();
    provider.cipher_suites.sort_by_key(|suite| suite.suite() != TLS13_AES_128_GCM_SHA256.suite());
    Arc::new(provider)
}
