//! One change of a body after another.

use crate::http::filter::{Change, Stop};
use http::HeaderMap;
use hyper::body::Bytes;

/// What each makes goes to the next.
struct Chain(Vec<Box<dyn Change>>);

/// All of these, in this order.
pub(super) fn of(mut changes: Vec<Box<dyn Change>>) -> Box<dyn Change> {
    match (changes.pop(), changes.is_empty()) {
        (Some(only), true) => only,
        (last, _) => {
            changes.extend(last);
            Box::new(Chain(changes))
        }
    }
}

impl Change for Chain {
    fn piece(&mut self, piece: Bytes) -> Result<Bytes, Stop> {
        self.0.iter_mut().try_fold(piece, |piece, change| change.piece(piece))
    }

    fn end(&mut self) -> Result<Bytes, Stop> {
        let mut last = Bytes::new();
        for change in &mut self.0 {
            let mut out = if last.is_empty() { Vec::new() } else { change.piece(last)?.to_vec() };
            out.extend_from_slice(&change.end()?);
            last = out.into();
        }
        Ok(last)
    }

    fn trailers(&mut self, trailers: &mut HeaderMap) -> Result<(), Stop> {
        self.0.iter_mut().try_for_each(|change| change.trailers(trailers))
    }

    fn keeps_length(&self) -> bool {
        self.0.iter().all(|change| change.keeps_length())
    }
}
