//! Where messages come from and answers go: the kernel's device, which keeps them apart, or a stream, in which they come
//! back to back and each begins with its length.

use super::{pace::Pace, request::HEAD};
use airlock_linux::fuse;
use rustix::{
    event::{PollFd, PollFlags, Timespec},
    io::Errno,
    net::{RecvFlags, SendFlags, Shutdown},
};
use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{Mutex, MutexGuard, PoisonError},
};

/// Bytes of a stream that are taken before it is known whose they are.
const AHEAD: usize = 64 << 10;

/// A wait that is none.
const AT_ONCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

/// A connection to a kernel.
pub(super) enum Channel {
    /// Its device. Who waits for a message is woken by the event.
    Device { device: OwnedFd, wake: OwnedFd, reading: Mutex<()>, pace: Pace },
    /// A stream socket to somebody who carries the messages.
    Stream { socket: OwnedFd, inlet: Mutex<Inlet>, sending: Mutex<()> },
}

impl Channel {
    pub(super) fn device(device: OwnedFd, wake: OwnedFd) -> io::Result<Channel> {
        airlock_linux::fd::set_nonblocking(device.as_fd())?;
        Ok(Channel::Device { device, wake, reading: Mutex::default(), pace: Pace::default() })
    }

    pub(super) fn stream(socket: OwnedFd) -> Channel {
        Channel::Stream { socket, inlet: Mutex::new(Inlet::new(HEAD)), sending: Mutex::default() }
    }

    /// Readies a thread for the work: files are made with exactly the mode that was asked for. A thread in a sealed
    /// process has no mask of its own: there the mask of the process is 0 already.
    pub(super) fn enter(&self) -> io::Result<()> {
        match self {
            Channel::Device { .. } => fuse::own_umask(),
            Channel::Stream { .. } => Ok(()),
        }
    }

    /// The next message; none when there will be no more. One waits at a time.
    pub(super) fn next<'b>(&self, buffer: &'b mut [u8]) -> Option<&'b [u8]> {
        match self {
            Channel::Device { device, wake, reading, pace } => {
                let came = pace.soon(|| read_device(device.as_fd(), buffer));
                let came = came.unwrap_or_else(|| {
                    let _turn = lock(reading);
                    wait_for_device(device.as_fd(), wake.as_fd(), buffer)
                });
                pace.came();
                match came {
                    Came::Message(length) => buffer.get(..length),
                    Came::End => None,
                }
            }
            Channel::Stream { socket, inlet, .. } => {
                let read = |into: &mut [u8]| {
                    rustix::net::recv(socket, into, RecvFlags::empty()).map(|(count, _)| count)
                };
                let length = lock(inlet).next(buffer, read)?;
                buffer.get(..length)
            }
        }
    }

    /// Whether a message waits to be read. What comes over a stream is slow now and then: there one always may.
    pub(super) fn is_asked(&self) -> bool {
        let Channel::Device { device, .. } = self else { return true };
        let mut ready = [PollFd::new(device, PollFlags::IN)];
        rustix::event::poll(&mut ready, Some(&AT_ONCE)).is_ok_and(|count| count > 0)
    }

    /// Sends an answer, whole. It may be that nobody waits for it any more.
    pub(super) fn send(&self, bytes: &[u8]) {
        match self {
            Channel::Device { device, pace, .. } => {
                let _ = rustix::io::write(device, bytes);
                pace.answered();
            }
            Channel::Stream { socket, sending, .. } => {
                let _turn = lock(sending);
                if send_all(socket.as_fd(), bytes).is_err() {
                    // Half an answer would be read as the beginning of the next.
                    let _ = rustix::net::shutdown(socket, Shutdown::Both);
                }
            }
        }
    }

    /// Nobody waits for a message any more.
    pub(super) fn end(&self) {
        match self {
            Channel::Device { wake, .. } => drop(rustix::io::write(wake, &1u64.to_ne_bytes())),
            Channel::Stream { socket, .. } => drop(rustix::net::shutdown(socket, Shutdown::Both)),
        }
    }

    /// The kernel's device, if it is one.
    pub(super) fn as_device(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Channel::Device { device, .. } => Some(device.as_fd()),
            Channel::Stream { .. } => None,
        }
    }
}

/// What came of the device.
enum Came {
    /// A message of so many bytes.
    Message(usize),
    /// There will be no more.
    End,
}

fn wait_for_device(device: BorrowedFd<'_>, wake: BorrowedFd<'_>, buffer: &mut [u8]) -> Came {
    loop {
        let mut ready = [PollFd::new(&device, PollFlags::IN), PollFd::new(&wake, PollFlags::IN)];
        match rustix::event::poll(&mut ready, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(_) => return Came::End,
        }
        if ready.last().is_some_and(|wake| wake.revents().contains(PollFlags::IN)) {
            return Came::End;
        }
        if let Some(came) = read_device(device, buffer) {
            return came;
        }
    }
}

/// What is there now; nothing where that is nothing yet.
fn read_device(device: BorrowedFd<'_>, buffer: &mut [u8]) -> Option<Came> {
    match rustix::io::read(device, buffer) {
        Ok(count) if count >= HEAD => Some(Came::Message(count)),
        // It was taken back before it was read, or was nothing yet.
        Err(Errno::NOENT | Errno::INTR | Errno::AGAIN) => None,
        _ => Some(Came::End),
    }
}

fn send_all(socket: BorrowedFd<'_>, mut bytes: &[u8]) -> Result<(), Errno> {
    while !bytes.is_empty() {
        match rustix::net::send(socket, bytes, SendFlags::NOSIGNAL) {
            Ok(count) => bytes = bytes.get(count..).unwrap_or_default(),
            Err(Errno::INTR) => {}
            Err(err) => return Err(err),
        }
    }
    Ok(())
}

/// What was read of a stream of messages and is not yet given out. Each begins with its length.
pub struct Inlet {
    bytes: Box<[u8]>,
    least: usize,
    from: usize,
    to: usize,
}

impl Inlet {
    /// For messages that have at least so many bytes.
    pub fn new(least: usize) -> Inlet {
        Inlet { bytes: vec![0; AHEAD].into(), least: least.max(LENGTH), from: 0, to: 0 }
    }

    /// Reads one message into `buffer`; gives its length. None at the end of the stream, in a message too, and when a
    /// length is none: shorter than a message can be or longer than there is room for.
    pub fn next(
        &mut self,
        buffer: &mut [u8],
        mut read: impl FnMut(&mut [u8]) -> Result<usize, Errno>,
    ) -> Option<usize> {
        while self.to - self.from < LENGTH {
            self.fill(&mut read)?;
        }
        let length =
            self.bytes.get(self.from..)?.first_chunk::<LENGTH>().map(|four| u32::from_ne_bytes(*four))?;
        let length = usize::try_from(length).ok().filter(|length| *length >= self.least)?;
        let message = buffer.get_mut(..length)?;
        let mut count = length.min(self.to - self.from);
        message.get_mut(..count)?.copy_from_slice(self.bytes.get(self.from..self.from + count)?);
        self.from += count;
        while count < length {
            count += more(&mut read, message.get_mut(count..)?)?;
        }
        Some(length)
    }

    fn fill(&mut self, read: &mut impl FnMut(&mut [u8]) -> Result<usize, Errno>) -> Option<()> {
        self.bytes.copy_within(self.from..self.to, 0);
        (self.from, self.to) = (0, self.to - self.from);
        self.to += more(read, self.bytes.get_mut(self.to..)?)?;
        Some(())
    }
}

/// Bytes of the length that a message begins with.
const LENGTH: usize = 4;

fn more(read: &mut impl FnMut(&mut [u8]) -> Result<usize, Errno>, into: &mut [u8]) -> Option<usize> {
    loop {
        match read(into) {
            Ok(0) => return None,
            Ok(count) => return Some(count.min(into.len())),
            Err(Errno::INTR) => {}
            Err(_) => return None,
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// All messages of a stream that comes in pieces of these sizes, one after another and over again.
    fn messages(stream: &[u8], pieces: &[usize], most: usize) -> Vec<Vec<u8>> {
        let (mut rest, mut pieces) = (stream, pieces.iter().cycle());
        let mut read = |into: &mut [u8]| {
            let count = pieces.next().copied().unwrap_or(1).min(into.len()).min(rest.len());
            let (now, later) = rest.split_at(count);
            into[..count].copy_from_slice(now);
            rest = later;
            Ok(count)
        };
        let (mut inlet, mut buffer, mut all) = (Inlet::new(HEAD), vec![0; most], Vec::new());
        while let Some(length) = inlet.next(&mut buffer, &mut read) {
            all.push(buffer[..length].to_vec());
        }
        all
    }

    fn message(body: &[u8]) -> Vec<u8> {
        let length = u32::try_from(HEAD + body.len()).unwrap();
        [&length.to_ne_bytes()[..], &[7; HEAD - 4], body].concat()
    }

    proptest! {
        #[test]
        fn messages_come_out_as_they_were_however_the_stream_is_cut(
            bodies in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..3000), 0..60),
            pieces in prop::collection::vec(1..9000usize, 1..20),
        ) {
            let sent: Vec<Vec<u8>> = bodies.iter().map(|body| message(body)).collect();
            prop_assert_eq!(messages(&sent.concat(), &pieces, 4096), sent);
        }

        #[test]
        fn no_bytes_harm_it_and_no_message_is_longer_than_there_is_room_for(
            stream in prop::collection::vec(any::<u8>(), 0..5000),
            pieces in prop::collection::vec(1..100usize, 1..20),
        ) {
            prop_assert!(messages(&stream, &pieces, 500).iter().all(|message| (HEAD..=500).contains(&message.len())));
        }
    }

    #[test]
    fn a_length_that_is_none_ends_the_stream() {
        let good = message(b"x");
        for length in [0u32, 39, 501, u32::MAX] {
            let bad = [&length.to_ne_bytes()[..], &[0; 1000]].concat();
            assert_eq!(messages(&[good.clone(), bad].concat(), &[64], 500), std::slice::from_ref(&good));
        }
    }

    #[test]
    fn a_stream_that_ends_within_a_message_ends_before_it() {
        let good = message(b"text");
        for cut in 1..good.len() {
            assert_eq!(messages(&[&good, &good[..cut]].concat(), &[7], 500), std::slice::from_ref(&good));
        }
    }
}
