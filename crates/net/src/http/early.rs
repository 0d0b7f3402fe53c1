//! What a server says before its answer: `103 Early Hints` and its like.
//!
//! It passes in either version of HTTP, scrubbed as answers are. `100` is said by ourselves, and `101` is an answer.

use super::{Session, filter::Passing, framing, strict::Hints};
use http::{HeaderMap, Request, StatusCode, header};
use std::{
    mem::take,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Waker},
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

/// Those of one request that came and were not passed on yet.
#[derive(Clone, Default)]
pub(super) struct Early(Arc<Mutex<Came>>);

#[derive(Default)]
struct Came {
    heads: Vec<(StatusCode, HeaderMap)>,
    count: usize,
    waits: Option<Waker>,
}

impl Early {
    /// Asks for them.
    pub(super) fn listen<B>(&self, request: &mut Request<B>) {
        let early = self.clone();
        hyper::ext::on_informational(request, move |response| {
            early.came(response.status(), response.headers());
        });
    }

    /// One came.
    pub(super) fn came(&self, status: StatusCode, headers: &HeaderMap) {
        if matches!(status, StatusCode::CONTINUE | StatusCode::SWITCHING_PROTOCOLS) {
            return;
        }
        let mut came = self.lock();
        came.count = came.count.saturating_add(1);
        if came.count <= MOST {
            came.heads.push((status, headers.clone()));
        }
        if let Some(waker) = came.waits.take() {
            waker.wake();
        }
    }

    /// Passes on what came, through every filter that looks. Whoever polls is woken when there is more.
    pub(super) fn pass_on(
        &self,
        session: &Session,
        passing: Option<&Passing>,
        told: &Told,
        cx: &Context<'_>,
    ) {
        let heads = {
            let mut came = self.lock();
            came.waits = Some(cx.waker().clone());
            take(&mut came.heads)
        };
        for (status, mut headers) in heads {
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

    fn lock(&self) -> MutexGuard<'_, Came> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
