//! Which destinations reach the listener, changed while the sandbox runs.

use super::{
    nft::{self, Edit, Element, Set, Transaction},
    openings::{Change, Difference, Opening, Openings, Span},
    wall::{OPEN_V4, OPEN_V6, REFUSED},
};
use std::{
    io,
    net::IpAddr,
    os::fd::{AsFd, OwnedFd},
};

/// The keeper's hand on the rules of a sandbox: it opens and closes destinations, and nothing else.
///
/// Works in any process that owns the sandbox's user namespace.
///
/// ```no_run
/// # fn demo(seat: airlock_linux::net::seat::Seat) -> std::io::Result<()> {
/// use airlock_linux::net::seat::{Opening, Rules};
/// let mut rules = Rules::new(seat.rules);
/// let name = Opening { address: "198.18.1.7".parse().unwrap(), prefix: 32, first: 443, last: 443 };
/// rules.open(&[name])?;
/// rules.close(&[name])
/// # }
/// ```
#[derive(Debug)]
pub struct Rules {
    socket: OwnedFd,
    v4: Openings,
    v6: Openings,
}

/// No transaction is longer than what every socket takes.
const LONGEST: usize = 128 * 1024;
/// So many elements are put in before the length is looked at.
const STEP: usize = 400;

impl Rules {
    /// Takes over [`super::seat::Seat::rules`] of a new seat, where nothing is open.
    pub fn new(socket: OwnedFd) -> Rules {
        Rules { socket, v4: Openings::default(), v6: Openings::default() }
    }

    /// Opens destinations. One that is open already stays so.
    ///
    /// All or nothing, up to some thousand at once; beyond that a failure half-way closes everything.
    pub fn open(&mut self, openings: &[Opening]) -> io::Result<()> {
        self.change(openings, Change::Open)
    }

    /// Closes what was opened by the same values. What another opening covers stays open; what is not open is passed
    /// over.
    pub fn close(&mut self, openings: &[Opening]) -> io::Result<()> {
        self.change(openings, Change::Close)
    }

    /// Opens these and closes all others.
    pub fn replace(&mut self, openings: &[Opening]) -> io::Result<()> {
        let mut v4 = self.v4.close_all();
        let mut v6 = self.v6.close_all();
        sort(openings, Change::Open, &mut v4, &mut v6)?;
        self.apply(&v4, &v6)
    }

    /// How many packets have been refused since the seat was built, also those that [`super::seat::Refusals`] left out.
    pub fn refused(&self) -> io::Result<u64> {
        nft::read_counter(self.socket.as_fd(), REFUSED)
    }

    fn change(
        &mut self,
        openings: &[Opening],
        change: fn(super::openings::Prefix, (u16, u16)) -> Change,
    ) -> io::Result<()> {
        let (mut v4, mut v6) = (Vec::new(), Vec::new());
        sort(openings, change, &mut v4, &mut v6)?;
        self.apply(&v4, &v6)
    }

    fn apply(&mut self, v4: &[Change], v6: &[Change]) -> io::Result<()> {
        let (different_v4, undo_v4) = self.v4.apply(v4);
        let (different_v6, undo_v6) = self.v6.apply(v6);
        let transactions = transactions(&different_v4, &different_v6);
        for (at, transaction) in transactions.into_iter().enumerate() {
            let Err(refused) = transaction.commit(self.socket.as_fd()) else { continue };
            if at == 0 {
                self.v4.apply(&undo_v4);
                self.v6.apply(&undo_v6);
            } else {
                self.close_everything()?;
            }
            return Err(refused.into());
        }
        Ok(())
    }

    fn close_everything(&mut self) -> io::Result<()> {
        self.v4 = Openings::default();
        self.v6 = Openings::default();
        let mut transaction = Transaction::begin();
        for set in [OPEN_V4, OPEN_V6] {
            transaction.empty(set.name);
        }
        Ok(transaction.commit(self.socket.as_fd())?)
    }
}

fn sort(
    openings: &[Opening],
    change: fn(super::openings::Prefix, (u16, u16)) -> Change,
    v4: &mut Vec<Change>,
    v6: &mut Vec<Change>,
) -> io::Result<()> {
    for opening in openings {
        let Some((prefix, ports)) = opening.parts() else {
            let what = format!(
                "{}/{} with ports {} to {} is no destination",
                opening.address, opening.prefix, opening.first, opening.last
            );
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        };
        match opening.address {
            IpAddr::V4(_) => v4.push(change(prefix, ports)),
            IpAddr::V6(_) => v6.push(change(prefix, ports)),
        }
    }
    Ok(())
}

/// What is to be removed comes first: nothing that takes its place may meet it.
fn transactions(v4: &Difference, v6: &Difference) -> Vec<Transaction> {
    let edits = [
        (Edit::Remove, OPEN_V4, &v4.remove),
        (Edit::Remove, OPEN_V6, &v6.remove),
        (Edit::Add, OPEN_V4, &v4.add),
        (Edit::Add, OPEN_V6, &v6.add),
    ];
    let mut done = Vec::new();
    let mut current: Option<Transaction> = None;
    for (edit, set, spans) in edits {
        for some in spans.chunks(STEP) {
            let elements: Vec<Element> = some.iter().map(|span| element(set, *span)).collect();
            let transaction = current.get_or_insert_with(Transaction::begin);
            transaction.elements(edit, set.name, &elements);
            if transaction.len() > LONGEST {
                done.extend(current.take());
            }
        }
    }
    done.extend(current);
    done
}

/// The address in its own length, then the port in a word of four bytes.
fn element(set: Set, span: Span) -> Element {
    let key = |address: u128, port: u16| {
        let skipped = if set.address_length == 4 { 12 } else { 0 };
        let mut key: Vec<u8> = address.to_be_bytes().into_iter().skip(skipped).collect();
        key.extend(port.to_be_bytes());
        key.extend([0; 2]);
        key
    };
    Element { first: key(span.addresses.0, span.ports.0), last: key(span.addresses.1, span.ports.1) }
}
