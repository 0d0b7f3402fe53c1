//! Heads that a server sends before its answer (RFC 9110, 15.2), on their way to a program that speaks HTTP/1.1.
//!
//! The parser's side writes none. So they are written beside it, before the first byte of the answer and behind the last of the
//! answer before it; what is still there when that cannot be any more is dropped.

use http::{HeaderMap, StatusCode};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Bytes of those that wait: whoever does not read gets no more.
const MOST: usize = 64 * 1024;

/// Takes hints for one connection. Clones are for the same one.
#[derive(Debug, Clone, Default)]
pub(crate) struct Hints(Arc<Mutex<Waiting>>);

#[derive(Debug, Default)]
struct Waiting {
    bytes: Vec<u8>,
    /// Whether the parser's side has the answer.
    is_over: bool,
}

impl Hints {
    /// One more; nothing where too many wait. Whoever polls the connection next writes it.
    pub(crate) fn add(&self, status: StatusCode, headers: &HeaderMap) {
        let mut head =
            format!("HTTP/1.1 {} {}\r\n", status.as_u16(), status.canonical_reason().unwrap_or("Hint"))
                .into_bytes();
        for (name, value) in headers {
            head.extend_from_slice(name.as_str().as_bytes());
            head.extend_from_slice(b": ");
            head.extend_from_slice(value.as_bytes());
            head.extend_from_slice(b"\r\n");
        }
        head.extend_from_slice(b"\r\n");
        let bytes = &mut self.lock().bytes;
        if bytes.len().saturating_add(head.len()) <= MOST {
            bytes.extend(head);
        }
    }

    /// The next request begins.
    pub(crate) fn begin(&self) {
        *self.lock() = Waiting::default();
    }

    /// Its answer is about to be written.
    pub(crate) fn end(&self) {
        self.lock().is_over = true;
    }

    /// All that wait.
    pub(super) fn take(&self) -> Vec<u8> {
        std::mem::take(&mut self.lock().bytes)
    }

    /// Something is written that may be the answer already.
    pub(super) fn too_late(&self) {
        let mut waiting = self.lock();
        if waiting.is_over {
            waiting.bytes.clear();
        }
    }

    /// Whether none waits.
    pub(super) fn is_empty(&self) -> bool {
        self.lock().bytes.is_empty()
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
