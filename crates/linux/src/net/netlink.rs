//! Messages to the kernel: written into one buffer, sent at once, and their answers read.
//!
//! Errors are told for every message; success only for the last one, which asks for it. So one answer stands for all.

use rustix::{
    io::Errno,
    net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink},
};
use std::{
    io,
    os::fd::{BorrowedFd, OwnedFd},
};

// linux/netlink.h
pub(super) const REQUEST: u16 = 0x1;
pub(super) const ACK: u16 = 0x4;
pub(super) const REPLACE: u16 = 0x100;
pub(super) const DUMP: u16 = 0x300;
pub(super) const EXCLUSIVE: u16 = 0x200;
pub(super) const CREATE: u16 = 0x400;
pub(super) const APPEND: u16 = 0x800;
const NESTED: u16 = 0x8000;
const ERROR: u16 = 0x2;
const HEADER: usize = 16;

/// Messages that are sent together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Messages {
    bytes: Vec<u8>,
    /// What each message is for; its index is its sequence number.
    purposes: Vec<&'static str>,
    /// Where the newest one begins.
    newest: usize,
}

/// The inside of a message or of an attribute.
pub(super) struct Body<'a>(&'a mut Vec<u8>);

/// A message the kernel refused.
#[derive(Debug, thiserror::Error)]
#[error("could not {purpose}")]
pub(super) struct Refused {
    /// What the message was for.
    pub(super) purpose: &'static str,
    /// What the kernel said.
    #[source]
    pub(super) source: io::Error,
}

impl From<Refused> for io::Error {
    fn from(refused: Refused) -> io::Error {
        io::Error::new(refused.source.kind(), refused)
    }
}

impl Messages {
    /// None yet. The rules of the wall take 6 kB.
    pub(super) fn new() -> Messages {
        Messages { bytes: Vec::with_capacity(8 * 1024), purposes: Vec::with_capacity(64), newest: 0 }
    }

    /// Adds a message of this kind, which begins with the structure `fixed`. `purpose` completes "could not …".
    pub(super) fn add(
        &mut self,
        purpose: &'static str,
        (kind, flags): (u16, u16),
        fixed: &[u8],
        fill: impl FnOnce(&mut Body<'_>),
    ) {
        let start = self.bytes.len();
        self.newest = start;
        let sequence = u32::try_from(self.purposes.len()).unwrap_or(u32::MAX);
        self.purposes.push(purpose);
        self.bytes.extend([0; 4]);
        self.bytes.extend(kind.to_ne_bytes());
        self.bytes.extend((flags | REQUEST).to_ne_bytes());
        self.bytes.extend(sequence.to_ne_bytes());
        self.bytes.extend([0; 4]);
        self.bytes.extend(fixed);
        pad(&mut self.bytes);
        fill(&mut Body(&mut self.bytes));
        let length = u32::try_from(self.bytes.len().saturating_sub(start)).unwrap_or(u32::MAX);
        put(&mut self.bytes, start, &length.to_ne_bytes());
    }

    /// How long they are together.
    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Has the kernel answer the newest message also if all is well. Gives back its number, for [`Messages::send`].
    pub(super) fn ask_for_answer(&mut self) -> usize {
        let at = self.newest.saturating_add(6);
        let flags = self.bytes.get(at..at.saturating_add(2)).and_then(|bytes| bytes.try_into().ok());
        let flags = u16::from_ne_bytes(flags.unwrap_or_default()) | ACK;
        put(&mut self.bytes, at, &flags.to_ne_bytes());
        self.purposes.len().saturating_sub(1)
    }

    /// Sends them and waits for the answer to message `last`, or for a refusal of any.
    pub(super) fn send(&self, socket: BorrowedFd<'_>, last: usize) -> Result<(), Refused> {
        self.exchange(socket, last, |_, _| {})
    }

    /// Sends them; the answers are the caller's to read.
    pub(super) fn begin(&self, socket: BorrowedFd<'_>) -> io::Result<()> {
        let kernel = netlink::SocketAddrNetlink::new(0, 0);
        Ok(rustix::net::sendto(socket, &self.bytes, SendFlags::empty(), &kernel).map(drop)?)
    }

    /// The same; what the kernel says besides is given to `heard` as kind and body.
    pub(super) fn exchange(
        &self,
        socket: BorrowedFd<'_>,
        last: usize,
        heard: impl FnMut(u16, &[u8]),
    ) -> Result<(), Refused> {
        let kernel = netlink::SocketAddrNetlink::new(0, 0);
        let done = match rustix::net::sendto(socket, &self.bytes, SendFlags::empty(), &kernel) {
            Ok(_) => self.hear(socket, last, heard),
            Err(err) => Err(self.refused(last, err.into())),
        };
        if done.is_err() {
            // Refusals of further messages must not be taken for answers to later ones.
            let mut bytes = [0u8; 1024];
            while rustix::net::recv(socket, &mut bytes[..], RecvFlags::DONTWAIT).is_ok() {}
        }
        done
    }

    fn hear(
        &self,
        socket: BorrowedFd<'_>,
        last: usize,
        mut heard: impl FnMut(u16, &[u8]),
    ) -> Result<(), Refused> {
        let mut bytes = [0u8; 8192];
        loop {
            // The kernel has answered when sending returns, so a socket that would wait is an error.
            let (_, count) = rustix::net::recv(socket, &mut bytes[..], RecvFlags::DONTWAIT)
                .map_err(|err| self.refused(last, err.into()))?;
            let mut rest = bytes.get(..count).unwrap_or_default();
            while let Some((kind, sequence, body)) = next_message(&mut rest) {
                let Some(error) = error_in(kind, body) else {
                    heard(kind, body);
                    continue;
                };
                let sequence = usize::try_from(sequence).unwrap_or(usize::MAX);
                if error != 0 {
                    let source = Errno::from_raw_os_error(error.wrapping_neg());
                    return Err(self.refused(sequence, source.into()));
                }
                if sequence == last {
                    return Ok(());
                }
            }
        }
    }

    fn refused(&self, sequence: usize, source: io::Error) -> Refused {
        Refused { purpose: self.purposes.get(sequence).unwrap_or(&"speak to the kernel"), source }
    }
}

impl Body<'_> {
    pub(super) fn bytes(&mut self, kind: u16, value: &[u8]) {
        let length = u16::try_from(value.len().saturating_add(4)).unwrap_or(u16::MAX);
        self.0.extend(length.to_ne_bytes());
        self.0.extend(kind.to_ne_bytes());
        self.0.extend(value);
        pad(self.0);
    }

    /// A text with its end marked.
    pub(super) fn text(&mut self, kind: u16, value: &str) {
        self.nest_as(kind, |body| {
            body.0.extend(value.as_bytes());
            body.0.push(0);
        });
    }

    /// A number in the order of the network.
    pub(super) fn number(&mut self, kind: u16, value: u32) {
        self.bytes(kind, &value.to_be_bytes());
    }

    /// Attributes in an attribute.
    pub(super) fn nest(&mut self, kind: u16, fill: impl FnOnce(&mut Body<'_>)) {
        self.nest_as(kind | NESTED, fill);
    }

    fn nest_as(&mut self, kind: u16, fill: impl FnOnce(&mut Body<'_>)) {
        let start = self.0.len();
        self.0.extend([0; 2]);
        self.0.extend(kind.to_ne_bytes());
        fill(&mut Body(self.0));
        let length = u16::try_from(self.0.len().saturating_sub(start)).unwrap_or(u16::MAX);
        put(self.0, start, &length.to_ne_bytes());
        pad(self.0);
    }
}

fn pad(bytes: &mut Vec<u8>) {
    bytes.resize(bytes.len().next_multiple_of(4), 0);
}

fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    for (to, from) in bytes.iter_mut().skip(at).zip(value) {
        *to = *from;
    }
}

/// A netlink socket that never waits.
pub(super) fn socket(protocol: Protocol) -> io::Result<OwnedFd> {
    let protocol = match protocol {
        Protocol::Route => None,
        Protocol::Netfilter => Some(netlink::NETFILTER),
        Protocol::Sockets => Some(netlink::SOCK_DIAG),
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, protocol)?)
}

/// Which part of the kernel listens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Protocol {
    /// Devices, addresses, routes.
    Route,
    /// Rules and logs.
    Netfilter,
    /// Connections.
    Sockets,
}

/// What an answer says: 0 or the negative number of an error. `None` for any other message.
fn error_in(kind: u16, body: &[u8]) -> Option<i32> {
    (kind == ERROR).then(|| number(body, 0).map_or(-libc::EPROTO, u32::cast_signed))
}

/// Takes one message off: its kind, sequence number and body (as much of it as there is: refusals quote what they
/// refuse, at length). `None` at the end and at the first nonsense.
pub(super) fn next_message<'a>(bytes: &mut &'a [u8]) -> Option<(u16, u32, &'a [u8])> {
    let length = usize::try_from(number(bytes, 0)?).ok()?;
    let kind = u16::from_ne_bytes(bytes.get(4..6)?.try_into().ok()?);
    let sequence = number(bytes, 8)?;
    let body = bytes.get(HEADER..length.min(bytes.len()))?;
    *bytes = bytes.get(length.checked_next_multiple_of(4)?..).unwrap_or_default();
    Some((kind, sequence, body))
}

/// Takes one attribute off: its kind and value. `None` at the end and at the first nonsense.
pub(super) fn next_attribute<'a>(bytes: &mut &'a [u8]) -> Option<(u16, &'a [u8])> {
    let length = usize::from(u16::from_ne_bytes(bytes.get(..2)?.try_into().ok()?));
    let kind = u16::from_ne_bytes(bytes.get(2..4)?.try_into().ok()?);
    let value = bytes.get(4..length)?;
    *bytes = bytes.get(length.checked_next_multiple_of(4)?..).unwrap_or_default();
    Some((kind & !NESTED, value))
}

fn number(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at.checked_add(4)?)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn lengths_count_what_is_inside_and_padding_follows() {
        let mut messages = Messages::new();
        messages.add("try", (7, ACK), &[1, 2, 3, 4], |body| {
            body.nest(1, |body| body.bytes(2, &[9]));
            body.text(3, "lo");
        });

        let mut rest = messages.bytes.as_slice();
        let (kind, sequence, body) = next_message(&mut rest).unwrap();
        assert_eq!((kind, sequence, rest), (7, 0, &[][..]));
        let mut attributes = &body[4..];
        assert_eq!(next_attribute(&mut attributes), Some((1, &[5, 0, 2, 0, 9, 0, 0, 0][..])));
        assert_eq!(next_attribute(&mut attributes), Some((3, &b"lo\0"[..])));
        assert_eq!(next_attribute(&mut attributes), None);
    }

    proptest! {
        #[test]
        fn no_bytes_panic_the_readers(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            let mut rest = bytes.as_slice();
            while let Some((kind, _, body)) = next_message(&mut rest) {
                let _ = error_in(kind, body);
            }
            let mut rest = bytes.as_slice();
            while next_attribute(&mut rest).is_some() {}
        }
    }
}
