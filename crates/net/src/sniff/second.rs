//! What a client says after its first hello: perhaps another one.
//!
//! A server may answer the first with a `HelloRetryRequest` and read the name in the second (RFC 8446 section 4.1.4).
//! The second must name what the first did. It is the last one in the clear, so the watch ends with it or with the first
//! sign that there is none.

use super::{CLIENT_HELLO, HANDSHAKE, Hello, Sniffed, Sniffer};

/// Where a server refuses early data it skips it and reads on. None skips more than this.
const SKIPPED_MAX: usize = 1 << 20;

/// A second hello is as long as the first, but for a cookie and fewer keys. It is kept until it is whole.
const SECOND_MAX: usize = 16 * 1024;

/// Whether the next bytes may go on their way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Further {
    /// They may; show the next ones too.
    Watch,
    /// They may, and nothing after them need be shown.
    Over,
    /// They may not: without them, what went before is worth nothing to the server.
    Refuse(&'static str),
}

/// Follows the records of a client from the end of its first hello.
#[derive(Debug)]
pub struct Second {
    first: Hello,
    state: State,
    skipped: usize,
}

#[derive(Debug)]
enum State {
    /// In a record's header, and the byte behind it.
    Head(Vec<u8>),
    /// So many bytes before the next record.
    Skip(usize),
    /// In a second hello.
    Hello(Sniffer),
}

impl Second {
    /// Begins behind `first`.
    pub fn new(first: Hello) -> Second {
        // The protocols are not compared, and may be many.
        let first = Hello { alpn: Vec::new(), ..first };
        Second { first, state: State::Head(Vec::new()), skipped: 0 }
    }

    /// Bytes that are kept.
    pub fn held(&self) -> usize {
        match &self.state {
            State::Head(head) => head.len(),
            State::Skip(_) => 0,
            State::Hello(sniffer) => sniffer.held(),
        }
    }

    /// Looks at what comes next.
    pub fn look(&mut self, mut bytes: &[u8]) -> Further {
        while !bytes.is_empty() {
            let step = match &mut self.state {
                State::Skip(left) => {
                    let now = bytes.len().min(*left);
                    bytes = bytes.get(now..).unwrap_or_default();
                    *left -= now;
                    self.skipped += now;
                    if *left == 0 {
                        self.state = State::Head(Vec::new());
                    }
                    Further::Watch
                }
                State::Hello(sniffer) => return again(&self.first, &sniffer.push(bytes)),
                State::Head(head) => {
                    let (byte, rest) = bytes.split_first().unwrap_or((&0, &[]));
                    bytes = rest;
                    head.push(*byte);
                    let head = std::mem::take(head);
                    self.begin(head)
                }
            };
            if step != Further::Watch || self.skipped > SKIPPED_MAX {
                return if step == Further::Watch { Further::Over } else { step };
            }
        }
        Further::Watch
    }

    /// Decides by a record's header, once it is there.
    fn begin(&mut self, head: Vec<u8>) -> Further {
        let [kind, 3, _, high, low, rest @ ..] = head.as_slice() else {
            let is_short = head.len() < 5 && head.get(1).is_none_or(|major| *major == 3);
            self.state = State::Head(head);
            return if is_short {
                Further::Watch
            } else {
                Further::Refuse("no TLS record follows the ClientHello")
            };
        };
        let length = usize::from(u16::from_be_bytes([*high, *low]));
        match (*kind, rest.first()) {
            (HANDSHAKE, None) => {
                self.state = State::Head(head);
                Further::Watch
            }
            (HANDSHAKE, Some(&CLIENT_HELLO)) => {
                let mut sniffer = Sniffer::for_at_most(SECOND_MAX);
                let seen = sniffer.push(&head);
                self.state = State::Hello(sniffer);
                again(&self.first, &seen)
            }
            (HANDSHAKE, Some(_)) => Further::Over,
            // Data: encrypted, so the server has chosen, unless they are early.
            (23, _) if !self.first.early => Further::Over,
            (20 | 21 | 23, _) => {
                self.skipped += 5;
                self.state = State::Skip(length);
                if length == 0 {
                    self.state = State::Head(Vec::new());
                }
                Further::Watch
            }
            _ => Further::Refuse("no TLS record follows the ClientHello"),
        }
    }
}

fn again(first: &Hello, seen: &Sniffed) -> Further {
    match seen {
        Sniffed::NeedMore => Further::Watch,
        Sniffed::Hello(second) if second.sni == first.sni && second.ech == first.ech => Further::Over,
        Sniffed::Hello(_) => Further::Refuse("the second ClientHello names another host than the first"),
        Sniffed::Malformed(why) => Further::Refuse(why),
        Sniffed::NotTls => Further::Refuse("no TLS record follows the ClientHello"),
    }
}
