//! One stream at one of its ends. Pure but for the descriptor: it says what is to be sent.
//!
//! Each direction ends with exactly one `End` of who sends and one `HangUp` of who receives; then its number means nothing
//! any more at either end.

use super::{
    Violation,
    endpoint::{Endpoint, Read, Written},
};
use airlock_protocol::carry::{MOST_DATA, Message, WINDOW};
use rustix::event::PollFlags;
use serde::{Deserialize, Serialize};
use std::{
    collections::VecDeque,
    os::fd::{AsFd as _, BorrowedFd},
};

/// Which ways bytes go, seen from this end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ways {
    /// From the descriptor to the other end.
    Out,
    /// From the other end to the descriptor.
    In,
    /// Both.
    Both,
}

/// A stream.
#[derive(Debug)]
pub(super) struct Stream {
    number: u32,
    endpoint: Option<Endpoint>,
    sending: Option<Sending>,
    receiving: Option<Receiving>,
}

#[derive(Debug)]
struct Sending {
    credit: u32,
    sent: u64,
    ended: bool,
    /// Until so much is sent somebody waits.
    mark: Option<u64>,
}

#[derive(Debug, Default)]
struct Receiving {
    queue: VecDeque<u8>,
    received: u64,
    written: u64,
    credited: u64,
    ended: bool,
    hung_up: bool,
    mark: Option<u64>,
}

/// A stream without its descriptor, for whoever goes on with it elsewhere.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Standing {
    number: u32,
    sending: Option<StandingOut>,
    receiving: Option<StandingIn>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct StandingOut {
    credit: u32,
    ended: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct StandingIn {
    queue: Vec<u8>,
    received: u64,
    written: u64,
    credited: u64,
    ended: bool,
    hung_up: bool,
}

impl Standing {
    pub(crate) fn number(&self) -> u32 {
        self.number
    }
}

/// A terminal or a background process that never pauses holds nobody up for longer.
const MOST_MARKED: u64 = 128 * 1024;

impl Stream {
    pub(super) fn new(number: u32, endpoint: Endpoint, ways: Ways) -> Stream {
        let sending = Sending { credit: WINDOW, sent: 0, ended: false, mark: None };
        Stream {
            number,
            endpoint: Some(endpoint),
            sending: (ways != Ways::In).then_some(sending),
            receiving: (ways != Ways::Out).then(Receiving::default),
        }
    }

    /// How it stands.
    pub(super) fn standing(&self) -> Standing {
        let sending = self.sending.as_ref();
        let receiving = self.receiving.as_ref();
        Standing {
            number: self.number,
            sending: sending.map(|sending| StandingOut { credit: sending.credit, ended: sending.ended }),
            receiving: receiving.map(|receiving| StandingIn {
                queue: receiving.queue.iter().copied().collect(),
                received: receiving.received,
                written: receiving.written,
                credited: receiving.credited,
                ended: receiving.ended,
                hung_up: receiving.hung_up,
            }),
        }
    }

    /// Goes on from how another one stood.
    pub(super) fn resumed(standing: Standing, endpoint: Endpoint) -> Stream {
        let sending = |StandingOut { credit, ended }| Sending {
            credit: credit.min(WINDOW),
            sent: 0,
            ended,
            mark: None,
        };
        let receiving = |stood: StandingIn| Receiving {
            queue: stood.queue.into(),
            received: stood.received,
            written: stood.written.min(stood.received),
            credited: stood.credited.min(stood.written).min(stood.received),
            ended: stood.ended,
            hung_up: stood.hung_up,
            mark: None,
        };
        let mut stream = Stream {
            number: standing.number,
            endpoint: Some(endpoint),
            sending: standing.sending.map(sending),
            receiving: standing.receiving.map(receiving),
        };
        stream.settle();
        stream
    }

    /// Whether nothing can be said of it any more.
    pub(super) fn is_over(&self) -> bool {
        self.sending.is_none() && self.receiving.is_none()
    }

    pub(super) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.endpoint.as_ref().map(Endpoint::as_fd)
    }

    /// The descriptor, where there is something to wait for.
    pub(super) fn interest(&self, has_room: bool) -> Option<(BorrowedFd<'_>, PollFlags)> {
        let endpoint = self.endpoint.as_ref()?;
        let mut flags = PollFlags::empty();
        if has_room && self.sending.as_ref().is_some_and(Sending::may_send) {
            flags |= PollFlags::IN;
        }
        if self.receiving.as_ref().is_some_and(|receiving| !receiving.queue.is_empty()) {
            flags |= PollFlags::OUT;
        }
        // A pipe that only is written tells when its reader goes, without being asked.
        let is_watched = self.sending.is_none() && !endpoint.is_socket();
        (is_watched || !flags.is_empty()).then(|| (endpoint.as_fd(), flags))
    }

    /// Does what the descriptor is ready for.
    pub(super) fn ready(&mut self, flags: PollFlags, say: &mut impl FnMut(Message)) {
        let failed = PollFlags::ERR | PollFlags::HUP | PollFlags::NVAL;
        if self.sending.is_none() && flags.intersects(failed) {
            self.stop_receiving(say);
        }
        if flags.intersects(PollFlags::OUT | failed) {
            self.write(say);
        }
        if flags.intersects(PollFlags::IN | failed) {
            self.read(flags, say);
        }
        self.settle();
    }

    fn read(&mut self, flags: PollFlags, say: &mut impl FnMut(Message)) {
        let (Some(endpoint), Some(sending)) = (&self.endpoint, &mut self.sending) else { return };
        let most = usize::try_from(sending.credit).unwrap_or(MOST_DATA).min(MOST_DATA);
        if !sending.may_send() {
            return;
        }
        let mut bytes = vec![0; most];
        match endpoint.read(&mut bytes) {
            Read::Bytes(count) => {
                bytes.truncate(count);
                let count = u32::try_from(count).unwrap_or(sending.credit);
                sending.credit = sending.credit.saturating_sub(count);
                sending.sent += u64::from(count);
                sending.mark = sending.mark.filter(|mark| sending.sent < *mark);
                say(Message::Data { stream: self.number, bytes });
            }
            Read::Later => sending.mark = None,
            Read::End => {
                // Nobody is left who could read either; a socket may only have been shut down one way.
                if !endpoint.is_socket() || flags.contains(PollFlags::HUP) {
                    self.stop_receiving(say);
                }
                self.stop_sending(say);
            }
        }
    }

    fn write(&mut self, say: &mut impl FnMut(Message)) {
        let (Some(endpoint), Some(receiving)) = (&self.endpoint, &mut self.receiving) else { return };
        let (first, _) = receiving.queue.as_slices();
        if first.is_empty() {
            return;
        }
        match endpoint.write(first) {
            Written::Bytes(count) => {
                receiving.queue.drain(..count.min(receiving.queue.len()));
                receiving.written += count as u64;
                receiving.mark = receiving.mark.filter(|mark| receiving.written < *mark);
                receiving.give_credit(self.number, say);
                self.finish_receiving(say);
            }
            Written::Later => {}
            Written::Gone => self.stop_receiving(say),
        }
    }

    /// What the other end says of this stream.
    pub(super) fn heard(&mut self, message: Message, say: &mut impl FnMut(Message)) -> Result<(), Violation> {
        match message {
            Message::Data { bytes, .. } => self.take(&bytes)?,
            Message::Credit { bytes, .. } => {
                let sending = self.sending.as_mut().ok_or(Violation::Closed)?;
                let credit = sending.credit.checked_add(bytes).filter(|credit| *credit <= WINDOW);
                sending.credit = credit.ok_or(Violation::Credit)?;
            }
            Message::End { .. } => {
                let receiving = self.receiving.as_mut().filter(|receiving| !receiving.ended);
                receiving.ok_or(Violation::Closed)?.ended = true;
                self.finish_receiving(say);
            }
            Message::HangUp { .. } => {
                if self.sending.is_none() {
                    return Err(Violation::Closed);
                }
                if let Some(endpoint) = self.endpoint.as_ref().filter(|_| self.is_sending()) {
                    endpoint.end_reading();
                }
                self.stop_sending(say);
                self.sending = None;
            }
            _ => return Err(Violation::Unexpected),
        }
        self.settle();
        Ok(())
    }

    fn take(&mut self, bytes: &[u8]) -> Result<(), Violation> {
        let receiving =
            self.receiving.as_mut().filter(|receiving| !receiving.ended).ok_or(Violation::Closed)?;
        let received = receiving.received + bytes.len() as u64;
        if bytes.is_empty() || received - receiving.credited > u64::from(WINDOW) {
            return Err(Violation::Credit);
        }
        receiving.received = received;
        if !receiving.hung_up {
            receiving.queue.extend(bytes);
        }
        Ok(())
    }

    /// Everything that came has been written, and nothing more comes.
    fn finish_receiving(&mut self, say: &mut impl FnMut(Message)) {
        let Some(receiving) = &self.receiving else { return };
        if !receiving.ended || !receiving.queue.is_empty() {
            return;
        }
        if !receiving.hung_up {
            say(Message::HangUp { stream: self.number });
        }
        self.receiving = None;
        if let Some(endpoint) = self.endpoint.as_ref().filter(|_| self.is_sending()) {
            endpoint.end_writing();
        }
    }

    /// Nobody takes what comes.
    fn stop_receiving(&mut self, say: &mut impl FnMut(Message)) {
        let Some(receiving) = self.receiving.as_mut().filter(|receiving| !receiving.hung_up) else { return };
        receiving.hung_up = true;
        receiving.queue = VecDeque::new();
        receiving.mark = None;
        say(Message::HangUp { stream: self.number });
        if receiving.ended {
            self.receiving = None;
        }
    }

    fn stop_sending(&mut self, say: &mut impl FnMut(Message)) {
        let Some(sending) = self.sending.as_mut().filter(|sending| !sending.ended) else { return };
        (sending.ended, sending.mark) = (true, None);
        say(Message::End { stream: self.number });
    }

    fn is_sending(&self) -> bool {
        self.sending.as_ref().is_some_and(|sending| !sending.ended)
    }

    /// Lets go of the descriptor when neither direction needs it.
    fn settle(&mut self) {
        let receives = self.receiving.as_ref().is_some_and(|receiving| !receiving.hung_up);
        if !receives && !self.is_sending() {
            self.endpoint = None;
        }
    }

    /// From now on [`Stream::is_marked`] until what can be read now has been sent.
    pub(super) fn mark_sending(&mut self) {
        let (Some(endpoint), Some(sending)) = (&self.endpoint, &mut self.sending) else { return };
        let waiting = endpoint.waiting().unwrap_or(MOST_MARKED).min(MOST_MARKED);
        sending.mark = Some(sending.sent + waiting).filter(|_| waiting > 0 && !sending.ended);
    }

    /// From now on [`Stream::is_marked`] until what has come by now has been written.
    pub(super) fn mark_receiving(&mut self) {
        if let Some(receiving) = self.receiving.as_mut().filter(|receiving| !receiving.queue.is_empty()) {
            receiving.mark = Some(receiving.received);
        }
    }

    /// Whether somebody waits for what was there when it was marked.
    pub(super) fn is_marked(&self) -> bool {
        self.is_to_be_tried() || self.receiving.as_ref().is_some_and(|receiving| receiving.mark.is_some())
    }

    /// Whether it is read even if nobody knows that there is something.
    pub(super) fn is_to_be_tried(&self) -> bool {
        self.sending.as_ref().is_some_and(|sending| sending.mark.is_some())
    }

    /// Bytes that are held for it.
    #[cfg(test)]
    pub(super) fn held(&self) -> usize {
        self.receiving.as_ref().map_or(0, |receiving| receiving.queue.len())
    }
}

impl Sending {
    fn may_send(&self) -> bool {
        self.credit > 0 && !self.ended
    }
}

impl Receiving {
    /// Now and then, so that a window is never used up by who writes steadily.
    fn give_credit(&mut self, stream: u32, say: &mut impl FnMut(Message)) {
        let owed = self.written - self.credited;
        if owed < u64::from(WINDOW / 4) {
            return;
        }
        self.credited = self.written;
        say(Message::Credit { stream, bytes: u32::try_from(owed).unwrap_or(WINDOW) });
    }
}
