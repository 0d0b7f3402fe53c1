//! Bytes after an upgrade: both ways, through the filters, until either side ends.

use super::{
    filter::{Change, Filter, Passing, Way},
    flight::{Flight, Waits, Why},
    flow::Flow,
    line::Switched,
    strict::Strict,
};
use crate::tls::Stream;
use airlock_gate::Reason;
use hyper::{body::Bytes, upgrade::OnUpgrade};
use hyper_util::rt::TokioIo;
use std::{future::poll_fn, io, rc::Rc, task::Poll};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, split},
    sync::oneshot,
};

/// Read at once.
const PIECE: usize = 16 * 1024;

/// The program's side of an upgraded connection, once it has its answer.
pub(super) enum Near {
    /// As the library of HTTP/1 has it.
    Library(OnUpgrade),
    /// As [`turns`](super::turns) has it.
    Turns(oneshot::Receiver<Switched<Strict<Stream>>>),
}

/// Both sides of an upgraded connection.
pub(super) struct Both {
    pub(super) near: Near,
    pub(super) far: Switched<Stream>,
    pub(super) flight: Rc<Flight>,
    pub(super) flow: Rc<Flow>,
    /// Out and in.
    pub(super) changes: [Vec<Box<dyn Change>>; 2],
}

/// What the filters do with upgraded bytes of this direction, in the order in which they pass.
pub(super) fn changes(
    filters: &[Rc<dyn Filter>],
    passing: Option<&Passing>,
    way: Way,
) -> Vec<Box<dyn Change>> {
    let Some(passing) = passing else { return Vec::new() };
    let all = filters.iter().filter_map(|filter| filter.upgraded(passing, way));
    match way {
        Way::Out => all.collect(),
        Way::In => all.rev().collect(),
    }
}

/// Copies until both directions have ended, one failed, or the request was stopped.
pub(super) async fn carry(both: Both) {
    let Both { near, far, flight, flow, changes } = both;
    match near {
        Near::Library(near) => {
            let Ok(near) = near.await else { return };
            copy((TokioIo::new(near), far), &flight, changes).await;
        }
        Near::Turns(near) => {
            let Ok(near) = near.await else { return };
            copy((near, far), &flight, changes).await;
        }
    }
    drop(flow);
}

async fn copy(
    (near, far): (impl AsyncRead + AsyncWrite, Switched<Stream>),
    flight: &Rc<Flight>,
    [out, inward]: [Vec<Box<dyn Change>>; 2],
) {
    let (near_read, near_write) = split(near);
    let (far_read, far_write) = split(far);
    let outward = Direction { way: Way::Out, changes: out, flight: Rc::clone(flight) };
    let inward = Direction { way: Way::In, changes: inward, flight: Rc::clone(flight) };
    let copied =
        async { tokio::try_join!(outward.copy(near_read, far_write), inward.copy(far_read, near_write)) };
    let stopped = poll_fn(|cx| {
        flight.watch(Waits::Head, cx);
        if flight.is_stopped() { Poll::Ready(()) } else { Poll::Pending }
    });
    tokio::select! {
        biased;
        () = stopped => {}
        done = copied => if done.is_ok() { flight.over() },
    }
}

struct Direction {
    way: Way,
    changes: Vec<Box<dyn Change>>,
    flight: Rc<Flight>,
}

impl Direction {
    async fn copy(
        mut self,
        mut from: impl AsyncRead + Unpin,
        mut to: impl AsyncWrite + Unpin,
    ) -> io::Result<()> {
        let mut piece = bytes_of(PIECE);
        loop {
            let read = from.read(&mut piece).await?;
            let bytes = Bytes::copy_from_slice(piece.get(..read).unwrap_or_default());
            let changed = if read == 0 { self.kept_back()? } else { self.changed(bytes, 0)? };
            self.take(changed.len()).await?;
            if !changed.is_empty() {
                to.write_all(&changed).await?;
                to.flush().await?;
            }
            if read == 0 {
                return to.shutdown().await;
            }
        }
    }

    /// A piece through the changes from the one at `first` on.
    fn changed(&mut self, mut piece: Bytes, first: usize) -> io::Result<Bytes> {
        for change in self.changes.iter_mut().skip(first) {
            if piece.is_empty() {
                break;
            }
            piece = change.piece(piece).map_err(|stop| stopped(&self.flight, Why::Filter(stop)))?;
        }
        Ok(piece)
    }

    fn kept_back(&mut self) -> io::Result<Bytes> {
        let mut all = Vec::new();
        for place in 0..self.changes.len() {
            let Some(change) = self.changes.get_mut(place) else { break };
            let rest = change.end().map_err(|stop| stopped(&self.flight, Why::Filter(stop)))?;
            all.extend_from_slice(&self.changed(rest, place + 1)?);
        }
        Ok(all.into())
    }

    async fn take(&self, bytes: usize) -> io::Result<()> {
        if !self.flight.meter.is_unbounded() {
            match self.flight.meter.take(u64::try_from(bytes).unwrap_or(u64::MAX)) {
                Ok(wait) if wait.is_zero() => {}
                Ok(wait) => tokio::time::sleep(wait).await,
                Err(_) => {
                    self.flight.note(Reason::Bytes);
                    return Err(stopped(&self.flight, Why::Spent));
                }
            }
        }
        self.flight.count(self.way, bytes);
        Ok(())
    }
}

fn bytes_of(length: usize) -> Vec<u8> {
    vec![0; length]
}

fn stopped(flight: &Flight, why: Why) -> io::Error {
    flight.stop(why);
    io::ErrorKind::ConnectionAborted.into()
}
