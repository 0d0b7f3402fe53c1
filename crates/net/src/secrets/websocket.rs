//! Messages of WebSocket: placeholders on their way out, values on their way in. Frames keep their lengths and masks.

use super::{
    Shared,
    body::{Filling, same_length},
    frames::{Frames, Seen},
    table::{Found, Needles},
    tables::{Fit, Tables},
};
use crate::http::filter::{Change, Stop};
use hyper::body::Bytes;
use std::rc::Rc;

/// Most bytes that wait for the rest of what may be a secret.
const MOST_WAITING: usize = 256 * 1024;

/// One direction after an upgrade.
pub(super) struct Socket {
    frames: Frames,
    /// What was not passed on yet.
    waiting: Vec<u8>,
    data: Track,
    control: Track,
    swaps: Swaps,
}

/// What is put in place of what.
pub(super) enum Swaps {
    /// Values in place of placeholders.
    Out(Box<Filling>),
    /// Placeholders in place of values.
    In(Rc<Shared>),
}

/// Payload that is not decided yet.
#[derive(Debug, Default)]
struct Track {
    text: Vec<u8>,
    /// For each byte, where it waits and what it is masked with.
    places: Vec<(usize, u8)>,
}

/// Whether a message may go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Open,
    Closed,
}

impl Socket {
    pub(super) fn new(swaps: Swaps) -> Socket {
        Socket {
            frames: Frames::default(),
            waiting: Vec::new(),
            data: Track::default(),
            control: Track::default(),
            swaps,
        }
    }

    fn take(&mut self, piece: &[u8]) -> Result<(), Stop> {
        let tables = self.swaps.tables()?;
        let Socket { frames, waiting, data, control, swaps } = self;
        let mut trouble = Ok(());
        let read = frames.each(piece, |seen| {
            let settled = match seen {
                Seen::Head(byte) => {
                    waiting.push(byte);
                    Ok(())
                }
                Seen::Data(byte, mask) => {
                    data.push(waiting, byte, mask);
                    Ok(())
                }
                Seen::Control(byte, mask) => {
                    control.push(waiting, byte, mask);
                    Ok(())
                }
                Seen::MessageEnd => data.settle(&tables, swaps, waiting, End::Closed),
                Seen::ControlEnd => control.settle(&tables, swaps, waiting, End::Closed),
            };
            if trouble.is_ok() {
                trouble = settled;
            }
        });
        trouble?;
        read.map_err(|err| Stop::Failed(format!("the messages cannot be read: {err}")))?;
        self.data.settle(&tables, &mut self.swaps, &mut self.waiting, End::Open)
    }

    /// What nothing undecided stands before.
    fn released(&mut self) -> Vec<u8> {
        let first = |track: &Track| track.places.first().map(|(place, _)| *place);
        let end = [first(&self.data), first(&self.control)]
            .into_iter()
            .flatten()
            .min()
            .unwrap_or(self.waiting.len());
        let rest = self.waiting.split_off(end.min(self.waiting.len()));
        for (place, _) in self.data.places.iter_mut().chain(&mut self.control.places) {
            *place -= end;
        }
        std::mem::replace(&mut self.waiting, rest)
    }
}

impl Change for Socket {
    fn piece(&mut self, piece: Bytes) -> Result<Bytes, Stop> {
        self.take(&piece)?;
        let out = self.released();
        match self.waiting.len() > MOST_WAITING {
            true => Err(Stop::Failed("too much waits behind what may be a secret".to_owned())),
            false => Ok(out.into()),
        }
    }

    fn end(&mut self) -> Result<Bytes, Stop> {
        let tables = self.swaps.tables()?;
        self.data.settle(&tables, &mut self.swaps, &mut self.waiting, End::Closed)?;
        self.control.settle(&tables, &mut self.swaps, &mut self.waiting, End::Closed)?;
        Ok(std::mem::take(&mut self.waiting).into())
    }

    fn keeps_length(&self) -> bool {
        true
    }
}

impl Swaps {
    fn tables(&self) -> Result<Rc<Tables>, Stop> {
        match self {
            Swaps::Out(filling) => Ok(filling.tables()),
            Swaps::In(shared) => shared.tables(),
        }
    }

    fn needles<'a>(&self, tables: &'a Tables) -> &'a Needles {
        match self {
            Swaps::Out(..) => tables.outward.needles(),
            Swaps::In(_) => tables.inward.needles(),
        }
    }

    fn instead(&mut self, tables: &Tables, found: Found) -> Result<Vec<u8>, Stop> {
        match self {
            Swaps::Out(filling) => filling.instead(found).and_then(|text| same_length(text, found)),
            Swaps::In(_) => same_length(tables.inward.instead(found, Fit::Same), found),
        }
    }
}

impl Track {
    fn push(&mut self, waiting: &mut Vec<u8>, byte: u8, mask: u8) {
        self.places.push((waiting.len(), mask));
        self.text.push(byte ^ mask);
        waiting.push(byte);
    }

    /// Decides on as much as can be, and writes what changes to where it waits.
    fn settle(
        &mut self,
        tables: &Tables,
        swaps: &mut Swaps,
        waiting: &mut [u8],
        end: End,
    ) -> Result<(), Stop> {
        let needles = swaps.needles(tables);
        let held_from = |text: &[u8], at| if end == End::Open { needles.held(text, at) } else { text.len() };
        let mut held = held_from(&self.text, 0);
        let mut at = 0;
        while let Some(found) = needles.find(&self.text, at).filter(|found| found.start < held) {
            let made = swaps.instead(tables, found)?;
            let places = self.places.get(found.start..found.end).unwrap_or_default();
            for (byte, (place, mask)) in made.iter().zip(places) {
                if let Some(there) = waiting.get_mut(*place) {
                    *there = byte ^ mask;
                }
            }
            at = found.end;
            if at > held {
                held = held_from(&self.text, at);
            }
        }
        self.text.drain(..held);
        self.places.drain(..held);
        Ok(())
    }
}
