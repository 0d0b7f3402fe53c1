//! What a server says before its answer: `103 Early Hints` and its like.
//!
//! It passes where both sides speak HTTP/1.1 (the library gives and takes none in HTTP/2), scrubbed as answers are. `100` is said
//! by ourselves, and `101` is an answer.

use super::{Session, filter::Passing, framing, strict::Hints};
use http::{HeaderMap, Request, StatusCode, header};
use std::{
    mem::take,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Waker},
};

/// Of one request.
const MOST: usize = 16;

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
            if !matches!(response.status(), StatusCode::CONTINUE | StatusCode::SWITCHING_PROTOCOLS) {
                early.came(response.status(), response.headers());
            }
        });
    }

    fn came(&self, status: StatusCode, headers: &HeaderMap) {
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
        hints: &Hints,
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
            if passing.is_none_or(looks) {
                hints.add(status, &headers);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Came> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
