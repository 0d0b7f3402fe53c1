//! A request that was refused (401) for something that can be had anew, such as a token: it is sent once more.
//!
//! What it was before the filter that puts such things in is kept until its answer comes: the head, and as much of the body as
//! [`MOST`]. A longer body, one that has not come whole, and one with trailers are not sent again; the program gets the 401.

use super::{
    Session,
    body::Passed,
    exchange::{self, Permitted, Ready},
    filter::{Change, Stop, Way},
};
use http::{HeaderMap, request};
use http_body::Body as _;
use hyper::body::Bytes;
use std::{
    cell::{Cell, RefCell},
    rc::Rc,
};
use tokio::time::Instant;

/// Of a body that is kept.
const MOST: usize = 64 * 1024;

/// A request as it came to a filter.
pub(super) struct Copied {
    /// Which filter.
    place: usize,
    /// What could be had anew.
    names: Vec<String>,
    head: request::Parts,
    body: Rc<Copy>,
    since: Instant,
}

/// What went by of a body.
struct Copy {
    pieces: RefCell<Option<Vec<Bytes>>>,
    length: Cell<usize>,
    /// How much is to come, where that was announced.
    announced: Option<u64>,
    is_ended: Cell<bool>,
}

/// Sees what goes by.
struct Copying(Rc<Copy>);

impl Copied {
    /// Keeps what goes by from now on.
    pub(super) fn new(
        place: usize,
        names: Vec<String>,
        head: &request::Parts,
        passed: &mut Passed,
    ) -> Copied {
        let body = Rc::new(Copy {
            pieces: RefCell::new(Some(Vec::new())),
            length: Cell::new(0),
            announced: passed.size_hint().exact(),
            is_ended: Cell::new(false),
        });
        passed.change(Box::new(Copying(Rc::clone(&body))));
        Copied { place, names, head: head.clone(), body, since: Instant::now() }
    }
}

/// The request once more, where another can be made of it; nothing where the first answer is all there is.
pub(super) async fn again(session: &Session, permitted: &Permitted, copied: Option<Copied>) -> Option<Ready> {
    let Copied { place, names, head, body, since } = copied?;
    let whole = body.whole()?;
    let filter = session.carrier.filters.get(place)?;
    if !filter.renew(&names, since) {
        return None;
    }
    let body = Passed::remade(whole, Way::Out, Rc::clone(&permitted.flight));
    let filtered = exchange::filter_from(session, permitted, place, (head, body)).await;
    filtered.ok().map(|(ready, _)| ready)
}

impl Copy {
    fn keep(&self, piece: &Bytes) {
        let mut pieces = self.pieces.borrow_mut();
        self.length.set(self.length.get().saturating_add(piece.len()));
        match &mut *pieces {
            // A piece may be a small part of something large: only what is needed is kept.
            Some(kept) if self.length.get() <= MOST => kept.push(Bytes::copy_from_slice(piece)),
            _ => *pieces = None,
        }
    }

    /// All of it, if all of it was kept.
    fn whole(&self) -> Option<Bytes> {
        let is_announced = self.announced == u64::try_from(self.length.get()).ok();
        let pieces = self.pieces.take().filter(|_| self.is_ended.get() || is_announced)?;
        Some(pieces.concat().into())
    }
}

impl Change for Copying {
    fn piece(&mut self, piece: Bytes) -> Result<Bytes, Stop> {
        self.0.keep(&piece);
        Ok(piece)
    }

    fn end(&mut self) -> Result<Bytes, Stop> {
        self.0.is_ended.set(true);
        Ok(Bytes::new())
    }

    fn trailers(&mut self, _trailers: &mut HeaderMap) -> Result<(), Stop> {
        self.0.pieces.replace(None);
        Ok(())
    }

    fn keeps_length(&self) -> bool {
        true
    }
}
