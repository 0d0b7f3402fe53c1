//! Bodies on their way: counted, metered, changed, never gathered unless a filter has to see them whole.

use super::{
    came::Came,
    filter::{Change, Stop, Way, Whole},
    flight::{Flight, Why},
    framing,
};
use airlock_gate::Reason;
use http::HeaderMap;
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Body as HttpBody, Bytes, Frame, SizeHint};
use std::{
    collections::VecDeque,
    pin::Pin,
    rc::Rc,
    task::{Context, Poll, ready},
};
use tokio::time::Sleep;

/// A message does not go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the message ends before it is whole")]
pub(crate) struct Cut;

/// The body of a message that we send.
pub(crate) enum Body {
    /// Our own words.
    Ours(Full<Bytes>),
    /// Somebody else's.
    Passed(Box<Passed>),
}

/// A body that passes through.
pub(crate) struct Passed {
    source: Source,
    way: Way,
    flight: Rc<Flight>,
    changes: Vec<Box<dyn Change>>,
    /// Whether the meter is asked, and bytes are counted.
    is_counted: bool,
    /// Data that the meter was not asked about yet.
    unmetered: Bytes,
    /// Data that may go on after a while.
    waiting: Option<(Pin<Box<Sleep>>, Bytes)>,
    trailers: Option<HeaderMap>,
    is_ended: bool,
    /// How many bytes are to come, where that was announced: nobody asks for more then.
    left: Option<Option<u64>>,
}

enum Source {
    Wire(Came),
    Whole(Bytes),
    /// What was gathered of a body that is too long, and the rest of it.
    Begun(VecDeque<Bytes>, Box<Passed>),
}

impl Passed {
    /// As it comes off the wire.
    pub(super) fn new(incoming: Came, way: Way, flight: Rc<Flight>) -> Passed {
        Passed::of(Source::Wire(incoming), way, flight)
    }

    fn of(source: Source, way: Way, flight: Rc<Flight>) -> Passed {
        Passed {
            source,
            way,
            flight,
            changes: Vec::new(),
            is_counted: true,
            unmetered: Bytes::new(),
            waiting: None,
            trailers: None,
            is_ended: false,
            left: None,
        }
    }

    /// Changes it, after whatever changes it already.
    pub(super) fn change(&mut self, change: Box<dyn Change>) {
        self.changes.push(change);
    }

    /// Whether it is as long as it was on the wire.
    pub(super) fn keeps_length(&self) -> bool {
        let source = match &self.source {
            Source::Wire(_) => true,
            Source::Whole(_) => false,
            Source::Begun(_, rest) => rest.keeps_length(),
        };
        source && self.changes.iter().all(|change| change.keeps_length())
    }

    /// Reads up to `most` bytes of it: all of it, or a body that still has everything.
    pub(super) async fn gather(mut self, most: usize) -> Result<(Whole, Option<Passed>), Cut> {
        self.is_counted = false;
        let (mut pieces, mut length) = (VecDeque::new(), 0usize);
        while let Some(frame) = self.frame().await {
            let Ok(piece) = frame?.into_data() else { continue };
            length = length.saturating_add(piece.len());
            pieces.push_back(piece);
            if length > most {
                let (way, flight) = (self.way, Rc::clone(&self.flight));
                let rest = Passed::of(Source::Begun(pieces, Box::new(self)), way, flight);
                return Ok((Whole::Over, Some(rest)));
            }
        }
        let mut whole = Vec::with_capacity(length);
        pieces.iter().for_each(|piece| whole.extend_from_slice(piece));
        Ok((Whole::Body(whole.into()), None))
    }

    /// A body that was gathered and made anew.
    pub(super) fn remade(whole: Bytes, way: Way, flight: Rc<Flight>) -> Passed {
        Passed::of(Source::Whole(whole), way, flight)
    }

    fn poll_source(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Cut>>> {
        match &mut self.source {
            Source::Wire(incoming) => Pin::new(incoming).poll_frame(cx),
            Source::Whole(whole) => {
                let whole = std::mem::take(whole);
                Poll::Ready((!whole.is_empty()).then(|| Ok(Frame::data(whole))))
            }
            Source::Begun(pieces, rest) => match pieces.pop_front() {
                Some(piece) => Poll::Ready(Some(Ok(Frame::data(piece)))),
                None => Pin::new(&mut **rest).poll_frame(cx),
            },
        }
    }

    /// The next piece through all changes.
    fn changed(&mut self, mut piece: Bytes) -> Result<Bytes, Stop> {
        for change in &mut self.changes {
            if piece.is_empty() {
                break;
            }
            piece = change.piece(piece)?;
        }
        Ok(piece)
    }

    /// What the changes kept back; each passes those behind it.
    fn kept_back(&mut self) -> Result<Bytes, Stop> {
        let mut last = Bytes::new();
        for change in &mut self.changes {
            let before = if last.is_empty() { Bytes::new() } else { change.piece(last)? };
            let after = change.end()?;
            last = match (before.is_empty(), after.is_empty()) {
                (true, _) => after,
                (_, true) => before,
                _ => [before, after].concat().into(),
            };
        }
        Ok(last)
    }

    fn change_trailers(&mut self) -> Result<(), Stop> {
        let Some(trailers) = &mut self.trailers else { return Ok(()) };
        self.changes.iter_mut().try_for_each(|change| change.trailers(trailers))
    }

    fn stop(&mut self, why: Why) -> Cut {
        self.is_ended = true;
        self.flight.stop(why);
        Cut
    }

    /// Data that may go on now, or has to wait.
    fn metered(&mut self, mut data: Bytes) -> Result<Option<Bytes>, Cut> {
        if !self.is_counted {
            return Ok(Some(data));
        }
        if !self.flight.meter.is_unbounded() {
            let piece = usize::try_from(self.flight.meter.piece()).unwrap_or(usize::MAX).max(1);
            if data.len() > piece {
                self.unmetered = data.split_off(piece);
            }
            let bytes = u64::try_from(data.len()).unwrap_or(u64::MAX);
            match self.flight.meter.take(bytes) {
                Ok(wait) if wait.is_zero() => {}
                Ok(wait) => {
                    self.waiting = Some((Box::pin(tokio::time::sleep(wait)), data));
                    return Ok(None);
                }
                Err(_) => {
                    self.flight.note(Reason::Bytes);
                    return Err(self.stop(Why::Spent));
                }
            }
        }
        self.flight.count(self.way, data.len());
        Ok(Some(data))
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Cut>>> {
        loop {
            if self.flight.is_stopped() {
                return Poll::Ready(Some(Err(Cut)));
            }
            if let Some((sleep, _)) = &mut self.waiting {
                ready!(sleep.as_mut().poll(cx));
                let data = self.waiting.take().map(|(_, data)| data).unwrap_or_default();
                self.flight.count(self.way, data.len());
                return Poll::Ready(Some(Ok(Frame::data(data))));
            }
            if !self.unmetered.is_empty() {
                let data = std::mem::take(&mut self.unmetered);
                match self.metered(data)? {
                    Some(data) => return Poll::Ready(Some(Ok(Frame::data(data)))),
                    None => continue,
                }
            }
            if self.is_ended {
                let trailers = self.trailers.take().map(|trailers| Ok(Frame::trailers(trailers)));
                return Poll::Ready(trailers);
            }
            let data = match ready!(self.poll_source(cx)) {
                Some(Err(cut)) => return Poll::Ready(Some(Err(cut))),
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => self.changed(data),
                    Err(frame) => {
                        self.is_ended = true;
                        self.trailers = frame.into_trailers().ok();
                        if self.trailers.as_ref().is_some_and(|all| framing::check_trailers(all).is_err()) {
                            return Poll::Ready(Some(Err(Cut)));
                        }
                        self.kept_back().and_then(|rest| self.change_trailers().map(|()| rest))
                    }
                },
                None => {
                    self.is_ended = true;
                    self.kept_back()
                }
            };
            let data = match data {
                Ok(data) if data.is_empty() => continue,
                Ok(data) => data,
                Err(stop) => return Poll::Ready(Some(Err(self.stop(Why::Filter(stop))))),
            };
            if let Some(data) = self.metered(data)? {
                return Poll::Ready(Some(Ok(Frame::data(data))));
            }
        }
    }
}

impl HttpBody for Passed {
    type Data = Bytes;
    type Error = Cut;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Cut>>> {
        let this = self.get_mut();
        let mut left = this.left.unwrap_or_else(|| this.size_hint().exact());
        let next = this.poll_next(cx);
        let is_last = match &next {
            Poll::Pending => {
                this.flight.watch(this.way.into(), cx);
                false
            }
            Poll::Ready(None) => true,
            Poll::Ready(Some(Err(_))) => false,
            Poll::Ready(Some(Ok(frame))) => {
                let bytes = frame.data_ref().map_or(0, Bytes::len);
                left = left.map(|left| left.saturating_sub(u64::try_from(bytes).unwrap_or(u64::MAX)));
                left == Some(0)
            }
        };
        this.left = Some(left);
        if is_last && this.way == Way::In && this.is_counted {
            this.flight.over();
        }
        next
    }

    fn is_end_stream(&self) -> bool {
        let is_silent = match &self.source {
            Source::Wire(incoming) => self.changes.is_empty() && incoming.is_end_stream(),
            Source::Whole(whole) => self.changes.is_empty() && whole.is_empty(),
            Source::Begun(..) => false,
        };
        let is_over = (self.is_ended || is_silent)
            && self.trailers.is_none()
            && self.waiting.is_none()
            && self.unmetered.is_empty();
        if is_over && self.way == Way::In && self.is_counted {
            self.flight.over();
        }
        is_over
    }

    fn size_hint(&self) -> SizeHint {
        match &self.source {
            Source::Wire(incoming) if self.keeps_length() => incoming.size_hint(),
            Source::Whole(whole) if self.changes.iter().all(|change| change.keeps_length()) => {
                SizeHint::with_exact(u64::try_from(whole.len()).unwrap_or(u64::MAX))
            }
            _ => SizeHint::default(),
        }
    }
}

impl HttpBody for Body {
    type Data = Bytes;
    type Error = Cut;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Cut>>> {
        match self.get_mut() {
            Body::Ours(ours) => Pin::new(ours).poll_frame(cx).map_err(|never| match never {}),
            Body::Passed(passed) => Pin::new(&mut **passed).poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Body::Ours(ours) => ours.is_end_stream(),
            Body::Passed(passed) => passed.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Body::Ours(ours) => ours.size_hint(),
            Body::Passed(passed) => passed.size_hint(),
        }
    }
}
