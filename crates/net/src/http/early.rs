//! What a server says before its answer: `103 Early Hints` and its like.
//!
//! It passes in either version of HTTP, scrubbed as answers are. `100` is said by ourselves, and `101` is an answer.

use super::{Session, filter::Passing, framing, strict::Hints};
use http::{HeaderMap, StatusCode, header};
use std::{
    mem::take,
    sync::{Arc, Mutex, PoisonError},
};

/// Of one request.
const MOST: usize = 16;

/// Where they go.
#[derive(Debug, Clone)]
pub(super) enum Told {
    /// A connection of HTTP/1.1.
    Http1(Hints),
    /// A stream of HTTP/2.
    Http2(Heads),
}

/// Those that whoever owns the stream is to send. Clones are the same ones.
#[derive(Debug, Clone, Default)]
pub(super) struct Heads(Arc<Mutex<Vec<(StatusCode, HeaderMap)>>>);

impl Heads {
    /// All that wait.
    pub(super) fn take(&self) -> Vec<(StatusCode, HeaderMap)> {
        take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Told {
    fn add(&self, status: StatusCode, headers: HeaderMap) {
        match self {
            Told::Http1(hints) => hints.add(status, &headers),
            Told::Http2(heads) => {
                heads.0.lock().unwrap_or_else(PoisonError::into_inner).push((status, headers));
            }
        }
    }
}

/// Those of one request.
#[derive(Default)]
pub(super) struct Early {
    count: usize,
}

impl Early {
    /// Passes on one that came, through every filter that looks.
    pub(super) fn came(
        &mut self,
        session: &Session,
        passing: Option<&Passing>,
        told: &Told,
        (status, mut headers): (StatusCode, HeaderMap),
    ) {
        self.count = self.count.saturating_add(1);
        if matches!(status, StatusCode::CONTINUE | StatusCode::SWITCHING_PROTOCOLS) || self.count > MOST {
            return;
        }
        framing::strip(&mut headers);
        for name in [header::CONTENT_LENGTH, header::TE] {
            headers.remove(name);
        }
        let looks = |passing: &Passing| {
            let filters = session.carrier.filters.iter();
            let mut looking =
                filters.filter(|filter| filter.looks_at(&passing.target, passing.port, &passing.path));
            looking.all(|filter| filter.hint(passing, &mut headers))
        };
        let is_passed = passing.is_none_or(looks);
        if is_passed {
            told.add(status, headers);
        }
    }
}
