//! Agreeing on keys (RFC 4253, sections 7 and 8; RFC 8731), as a state machine without I/O: bytes in, bytes out.
//!
//! Both sides are here, since they differ in little: the server signs with its key, the client compares it with those it knows. New
//! keys are agreed on whenever the other side asks. Until the first are there, no message is taken that does not belong to that, so
//! that nobody in between can count on one being passed over (OpenSSH's `PROTOCOL`, "strict key exchange").

use super::{
    Broken,
    keys::{self, OwnKey},
    packet::{self, Cipher, Sealed},
    wire::{Flag, Reader, Writer},
};
use aws_lc_rs::{
    agreement::{PrivateKey, UnparsedPublicKey, X25519, agree},
    digest::{SHA256, digest},
    rand,
};
use std::rc::Rc;
use zeroize::Zeroizing;

const DISCONNECT: u8 = 1;
const IGNORE: u8 = 2;
const UNIMPLEMENTED: u8 = 3;
const DEBUG: u8 = 4;
const EXT_INFO: u8 = 7;
const KEXINIT: u8 = 20;
const NEWKEYS: u8 = 21;
const ECDH_INIT: u8 = 30;
const ECDH_REPLY: u8 = 31;

/// What we say we are.
const OURS: &str = "SSH-2.0-airlock";
const EXCHANGES: [&str; 2] = ["curve25519-sha256", "curve25519-sha256@libssh.org"];
const STRICT: [&str; 2] = ["kex-strict-c-v00@openssh.com", "kex-strict-s-v00@openssh.com"];
/// A seal needs no further code, but lists may not be empty.
const CODES: &str = "hmac-sha2-256";
/// Lines and bytes of a server before it says what it is (RFC 4253, section 4.2).
const MOST_BEFORE: usize = 4096;
const LONGEST_LINE: usize = 255;
/// What waits to be written to an end that does not read.
const MOST_WAITING: usize = 4 << 20;

/// Which side we are.
pub(crate) enum Side {
    /// The server, with its key and a certificate of it.
    Server(Rc<OwnKey>, Vec<u8>),
    /// The client, with the keys that the server may have.
    Client(Vec<Vec<u8>>),
}

/// One connection.
pub(crate) struct Machine {
    side: Side,
    /// What the other side says it is.
    theirs: Option<String>,
    pub(crate) input: Vec<u8>,
    pub(crate) output: Vec<u8>,
    opens: Option<Sealed>,
    seals: Option<Sealed>,
    /// The hash of the first exchange.
    session: Option<Vec<u8>>,
    state: State,
    /// Messages that wait for new keys.
    held: Vec<Vec<u8>>,
    /// Packets that came, for those that are not understood.
    count: u32,
}

enum State {
    /// Nothing is under way.
    Settled,
    /// Ours is sent.
    Begun { ours: Vec<u8> },
    /// Both are there.
    Agreed(Box<Agreed>),
    /// Keys are agreed on; theirs count once they say so.
    Awaits { opens: Box<Sealed> },
}

struct Agreed {
    ours: Vec<u8>,
    theirs: Vec<u8>,
    algorithm: &'static str,
    /// From the client, and from the server.
    ciphers: [Cipher; 2],
    private: PrivateKey,
    /// The next message was a guess that is wrong.
    skips: bool,
}

impl Machine {
    /// Says who we are, and what we can.
    pub(crate) fn new(side: Side) -> Result<Machine, Broken> {
        let mut machine = Machine {
            side,
            theirs: None,
            input: Vec::new(),
            output: format!("{OURS}\r\n").into_bytes(),
            opens: None,
            seals: None,
            session: None,
            state: State::Settled,
            held: Vec::new(),
            count: 0,
        };
        machine.begin()?;
        Ok(machine)
    }

    /// Whether the first keys are agreed on.
    pub(crate) fn is_private(&self) -> bool {
        self.session.is_some() && self.opens.is_some()
    }

    /// What signatures of users are made over.
    pub(crate) fn session(&self) -> &[u8] {
        self.session.as_deref().unwrap_or_default()
    }

    /// Sends a message, after new keys if some are being agreed on.
    pub(crate) fn send(&mut self, message: Vec<u8>) -> Result<(), Broken> {
        match self.state {
            State::Settled | State::Awaits { .. } => self.write(&message),
            State::Begun { .. } | State::Agreed(_) => {
                self.held.push(message);
                self.within_bounds()
            }
        }
    }

    /// The next message that is not about the connection itself; none until more has come.
    pub(crate) fn next(&mut self) -> Result<Option<Vec<u8>>, Broken> {
        if self.theirs.is_none() && !self.greeted()? {
            return Ok(None);
        }
        loop {
            let Some(message) = packet::read(self.opens.as_mut(), &mut self.input)? else { return Ok(None) };
            self.count = self.count.wrapping_add(1);
            if let State::Agreed(agreed) = &mut self.state
                && std::mem::take(&mut agreed.skips)
            {
                continue;
            }
            let kind = message.first().copied().unwrap_or_default();
            match kind {
                DISCONNECT => return Err(Broken::Disconnected),
                KEXINIT => self.agree(&message)?,
                ECDH_INIT => self.answer(&message)?,
                ECDH_REPLY => self.conclude(&message)?,
                NEWKEYS => self.settle()?,
                _ if !self.is_private() => return Err(Broken::Early),
                IGNORE | UNIMPLEMENTED | DEBUG | EXT_INFO => {}
                _ => return Ok(Some(message)),
            }
        }
    }

    /// Tells the other side that its last message is not understood.
    pub(crate) fn not_understood(&mut self) -> Result<(), Broken> {
        self.send(Writer::new(UNIMPLEMENTED).number(self.count.wrapping_sub(1)).done())
    }

    fn write(&mut self, message: &[u8]) -> Result<(), Broken> {
        packet::write(self.seals.as_mut(), message, &mut self.output)?;
        self.within_bounds()
    }

    fn within_bounds(&self) -> Result<(), Broken> {
        let held: usize = self.held.iter().map(Vec::len).sum();
        if self.output.len() + held > MOST_WAITING { Err(Broken::Silent) } else { Ok(()) }
    }

    /// Reads what the other side says it is.
    fn greeted(&mut self) -> Result<bool, Broken> {
        loop {
            let Some(end) = self.input.iter().position(|byte| *byte == b'\n') else {
                return if self.input.len() > MOST_BEFORE { Err(Broken::Greeting) } else { Ok(false) };
            };
            if end > MOST_BEFORE {
                return Err(Broken::Greeting);
            }
            let line: Vec<u8> = self.input.drain(..=end).collect();
            let line = line.trim_ascii_end();
            let is_server = matches!(self.side, Side::Client(_));
            match std::str::from_utf8(line) {
                Ok(text) if text.starts_with("SSH-2.0-") && line.len() <= LONGEST_LINE => {
                    self.theirs = Some(text.to_owned());
                    return Ok(true);
                }
                // A server may say something before; a client may not.
                _ if is_server && !line.starts_with(b"SSH-") => self.count += 1,
                _ => return Err(Broken::Greeting),
            }
            if self.count > 32 {
                return Err(Broken::Greeting);
            }
        }
    }

    /// Says what we can, unless that was said.
    fn begin(&mut self) -> Result<(), Broken> {
        let mut cookie = [0; 16];
        rand::fill(&mut cookie).map_err(|_| Broken::Seal(packet::Broken::Seal))?;
        let ciphers = Cipher::ALL.map(Cipher::name).join(",");
        let [strict_client, strict_server] = STRICT;
        let (algorithms, strict) = match &self.side {
            Side::Server(..) => (keys::OWN_ALGORITHMS.join(","), strict_server),
            Side::Client(known) => (algorithms(known).join(","), strict_client),
        };
        let exchanges = format!("{},{strict}", EXCHANGES.join(","));
        let lists = [&exchanges, &algorithms, &ciphers, &ciphers, CODES, CODES, "none", "none", "", ""];
        let ours = lists
            .iter()
            .fold(Writer::new(KEXINIT).bytes(&cookie), |writer, list| writer.string(list.as_bytes()))
            .flag(Flag::No)
            .number(0)
            .done();
        self.write(&ours)?;
        self.state = State::Begun { ours };
        Ok(())
    }

    /// Chooses what both can; a client goes on at once.
    fn agree(&mut self, theirs: &[u8]) -> Result<(), Broken> {
        if matches!(self.state, State::Settled) {
            self.begin()?;
        }
        let State::Begun { ours } = std::mem::replace(&mut self.state, State::Settled) else {
            return Err(Broken::Early);
        };
        let (own, other) = (Offer::read(&ours)?, Offer::read(theirs)?);
        let is_client = matches!(self.side, Side::Client(_));
        let (client, server) = if is_client { (&own, &other) } else { (&other, &own) };
        let chosen = |which: fn(&Offer) -> &Vec<String>| first_of_both(which(client), which(server));
        chosen(|offer| &offer.exchanges).ok_or(Broken::Nothing("key exchange"))?;
        let algorithm = chosen(|offer| &offer.algorithms).ok_or(Broken::Nothing("kind of host key"))?;
        let out = chosen(|offer| &offer.out).and_then(cipher).ok_or(Broken::Nothing("cipher"))?;
        let back = chosen(|offer| &offer.back).and_then(cipher).ok_or(Broken::Nothing("cipher"))?;
        let algorithm =
            keys::OWN_ALGORITHMS.into_iter().chain(keys::ALGORITHMS).find(|known| *known == algorithm);
        let is_right = own.exchanges.first() == other.exchanges.first()
            && own.algorithms.first() == other.algorithms.first();
        let private = PrivateKey::generate(&X25519).map_err(|_| Broken::Agreement)?;
        let public = public(&private)?;
        self.state = State::Agreed(Box::new(Agreed {
            ours,
            theirs: theirs.to_vec(),
            algorithm: algorithm.ok_or(Broken::Nothing("kind of host key"))?,
            ciphers: [out, back],
            private,
            skips: other.follows && !is_right,
        }));
        if is_client { self.write(&Writer::new(ECDH_INIT).string(&public).done()) } else { Ok(()) }
    }

    /// The server's part: its key, its half, its signature.
    fn answer(&mut self, message: &[u8]) -> Result<(), Broken> {
        let (Side::Server(key, certificate), State::Agreed(agreed)) =
            (&self.side, std::mem::replace(&mut self.state, State::Settled))
        else {
            return Err(Broken::Early);
        };
        let key = Rc::clone(key);
        let shown = if agreed.algorithm == keys::CERTIFIED { certificate.clone() } else { key.public() };
        let theirs = Reader::new(message.get(1..).unwrap_or_default()).string()?;
        let ours = public(&agreed.private)?;
        let shared = shared(&agreed.private, theirs)?;
        let text = self.text(&agreed, &shown, [theirs, &ours], &shared);
        let hash = digest(&SHA256, &text);
        let reply = Writer::new(ECDH_REPLY).string(&shown).string(&ours).string(&key.sign(hash.as_ref()));
        self.write(&reply.done())?;
        self.change(&agreed, &shared, hash.as_ref())
    }

    /// The client's part: is it the right server?
    fn conclude(&mut self, message: &[u8]) -> Result<(), Broken> {
        let (Side::Client(known), State::Agreed(agreed)) =
            (&self.side, std::mem::replace(&mut self.state, State::Settled))
        else {
            return Err(Broken::Early);
        };
        let mut reader = Reader::new(message.get(1..).unwrap_or_default());
        let (key, theirs, signature) = (reader.string()?, reader.string()?, reader.string()?);
        if !known.iter().any(|known| known == key) {
            return Err(Broken::Stranger);
        }
        let ours = public(&agreed.private)?;
        let shared = shared(&agreed.private, theirs)?;
        let text = self.text(&agreed, key, [&ours, theirs], &shared);
        let hash = digest(&SHA256, &text);
        keys::verify(agreed.algorithm, key, signature, hash.as_ref())?;
        self.change(&agreed, &shared, hash.as_ref())
    }

    /// What the hash of an exchange is over.
    fn text(
        &self,
        agreed: &Agreed,
        key: &[u8],
        [client, server]: [&[u8]; 2],
        shared: &[u8],
    ) -> Zeroizing<Vec<u8>> {
        let theirs = self.theirs.as_deref().unwrap_or_default();
        let is_client = matches!(self.side, Side::Client(_));
        let (names, offers) = match is_client {
            true => ([OURS, theirs], [&agreed.ours, &agreed.theirs]),
            false => ([theirs, OURS], [&agreed.theirs, &agreed.ours]),
        };
        let writer = names.iter().fold(Writer::default(), |writer, name| writer.string(name.as_bytes()));
        let writer = offers.iter().fold(writer, |writer, offer| writer.string(offer));
        Zeroizing::new(writer.string(key).string(client).string(server).large(shared).done())
    }

    /// From here on we use the new keys, and they do when they say so.
    fn change(&mut self, agreed: &Agreed, shared: &[u8], hash: &[u8]) -> Result<(), Broken> {
        let session = self.session.get_or_insert_with(|| hash.to_vec()).clone();
        let derived = |letter: u8| {
            let text = Writer::default().large(shared).bytes(hash).bytes(&[letter]).bytes(&session).done();
            let text = Zeroizing::new(text);
            Zeroizing::new(digest(&SHA256, &text).as_ref().to_vec())
        };
        let sealed = |cipher: Cipher, nonce: u8, key: u8| {
            let (nonce, key) = (derived(nonce), derived(key));
            let (nonce, key) = (nonce.get(..12), key.get(..cipher.key_length()));
            Sealed::new(cipher, key.unwrap_or_default(), nonce.unwrap_or_default())
        };
        let [out, back] = agreed.ciphers;
        let (from_client, from_server) = (sealed(out, b'A', b'C')?, sealed(back, b'B', b'D')?);
        let (seals, opens) = match self.side {
            Side::Client(_) => (from_client, from_server),
            Side::Server(..) => (from_server, from_client),
        };
        self.write(&Writer::new(NEWKEYS).done())?;
        self.seals = Some(seals);
        self.state = State::Awaits { opens: Box::new(opens) };
        for message in std::mem::take(&mut self.held) {
            self.write(&message)?;
        }
        Ok(())
    }

    fn settle(&mut self) -> Result<(), Broken> {
        let State::Awaits { opens } = std::mem::replace(&mut self.state, State::Settled) else {
            return Err(Broken::Early);
        };
        self.opens = Some(*opens);
        Ok(())
    }
}

/// Kinds of signature that one of these keys makes, best first.
fn algorithms(known: &[Vec<u8>]) -> Vec<&'static str> {
    let kinds: Vec<&str> = known.iter().filter_map(|key| Reader::new(key).text().ok()).collect();
    keys::ALGORITHMS.into_iter().filter(|algorithm| kinds.contains(&keys::key_of(algorithm))).collect()
}

fn cipher(name: &str) -> Option<Cipher> {
    Cipher::ALL.into_iter().find(|cipher| cipher.name() == name)
}

fn public(private: &PrivateKey) -> Result<Vec<u8>, Broken> {
    let public = private.compute_public_key().map_err(|_| Broken::Agreement)?;
    Ok(public.as_ref().to_vec())
}

fn shared(private: &PrivateKey, theirs: &[u8]) -> Result<Zeroizing<Vec<u8>>, Broken> {
    let theirs = UnparsedPublicKey::new(&X25519, theirs);
    agree(private, theirs, Broken::Agreement, |shared| Ok(Zeroizing::new(shared.to_vec())))
}

/// The first of the client's that the server has too (RFC 4253, section 7.1).
fn first_of_both<'a>(client: &'a [String], server: &[String]) -> Option<&'a str> {
    client.iter().find(|name| server.contains(name)).map(String::as_str)
}

/// What a side can.
struct Offer {
    exchanges: Vec<String>,
    algorithms: Vec<String>,
    out: Vec<String>,
    back: Vec<String>,
    /// A guess comes after it.
    follows: bool,
}

impl Offer {
    fn read(message: &[u8]) -> Result<Offer, Broken> {
        let mut reader = Reader::new(message);
        reader.bytes(17)?;
        let mut list =
            || -> Result<Vec<String>, Broken> { Ok(reader.text()?.split(',').map(str::to_owned).collect()) };
        let (mut exchanges, algorithms, out, back) = (list()?, list()?, list()?, list()?);
        // They are no exchanges, and both sides name them.
        exchanges.retain(|name| !STRICT.contains(&name.as_str()) && !name.starts_with("ext-info-"));
        for _ in 0..6 {
            list()?;
        }
        let follows = reader.flag()?;
        Ok(Offer { exchanges, algorithms, out, back, follows })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Moves bytes between both until nothing is left to say; the messages that each gets.
    fn talk(one: &mut Machine, other: &mut Machine) -> Result<[Vec<Vec<u8>>; 2], Broken> {
        let mut heard = [Vec::new(), Vec::new()];
        while !one.output.is_empty() || !other.output.is_empty() {
            other.input.append(&mut one.output);
            while let Some(message) = other.next()? {
                heard[1].push(message);
            }
            one.input.append(&mut other.output);
            while let Some(message) = one.next()? {
                heard[0].push(message);
            }
        }
        Ok(heard)
    }

    fn pair() -> (Machine, Machine) {
        let key = Rc::new(OwnKey::make().unwrap());
        let client = Machine::new(Side::Client(vec![key.public()])).unwrap();
        (client, Machine::new(Side::Server(key, Vec::new())).unwrap())
    }

    #[test]
    fn both_sides_agree_and_messages_arrive_in_private() {
        let (mut client, mut server) = pair();
        assert_eq!(talk(&mut client, &mut server), Ok([vec![], vec![]]));
        assert!(client.is_private() && server.is_private() && client.session() == server.session());

        client.send(b"\x50from the client".to_vec()).unwrap();
        server.send(b"\x50from the server".to_vec()).unwrap();
        assert!(!String::from_utf8_lossy(&client.output).contains("client"));

        let heard = [vec![b"\x50from the server".to_vec()], vec![b"\x50from the client".to_vec()]];
        assert_eq!(talk(&mut client, &mut server), Ok(heard));
    }

    #[test]
    fn a_server_with_another_key_is_a_stranger() {
        let (mut client, _) = pair();
        let mut other = Machine::new(Side::Server(Rc::new(OwnKey::make().unwrap()), Vec::new())).unwrap();

        assert_eq!(talk(&mut client, &mut other), Err(Broken::Stranger));
        assert!(!client.is_private());
    }

    #[test]
    fn keys_are_agreed_on_anew_while_messages_wait() {
        let (mut client, mut server) = pair();
        talk(&mut client, &mut server).unwrap();
        let session = client.session().to_vec();

        client.begin().unwrap();
        client.send(b"\x50waits".to_vec()).unwrap();
        server.send(b"\x50meanwhile".to_vec()).unwrap();

        let heard = [vec![b"\x50meanwhile".to_vec()], vec![b"\x50waits".to_vec()]];
        assert_eq!(talk(&mut client, &mut server), Ok(heard));
        assert_eq!(client.session(), session);
    }

    #[test]
    fn nothing_is_taken_before_there_are_keys() {
        for early in [IGNORE, DEBUG, 5, 50, 80, 94, NEWKEYS, ECDH_INIT] {
            let (_, mut server) = pair();
            server.input.extend_from_slice(b"SSH-2.0-x\r\n");
            packet::write(None, &[early, 0, 0, 0, 0, 0, 0, 0, 0], &mut server.input).unwrap();
            assert_eq!(server.next(), Err(Broken::Early), "{early}");
        }
    }

    #[test]
    fn a_client_says_what_it_is_first() {
        for said in ["GET / HTTP/1.1\r\n", "SSH-1.5-x\r\n", "hello\r\nSSH-2.0-x\r\n"] {
            let (_, mut server) = pair();
            server.input.extend_from_slice(said.as_bytes());
            assert_eq!(server.next(), Err(Broken::Greeting), "{said}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_taken_by_either_side(bytes in proptest::collection::vec(any::<u8>(), 0..200), greeted: bool) {
            let (client, server) = pair();
            for mut machine in [client, server] {
                if greeted {
                    machine.input.extend_from_slice(b"SSH-2.0-x\r\n");
                }
                machine.input.extend_from_slice(&bytes);
                let _ = machine.next();
            }
        }

        #[test]
        fn any_offer_is_taken(lists in proptest::collection::vec("[a-z,]{0,9}|curve25519-sha256|ssh-ed25519|aes128-gcm@openssh.com", 10), follows: bool) {
            let (_, mut server) = pair();
            server.input.extend_from_slice(b"SSH-2.0-x\r\n");
            let writer = lists.iter().fold(Writer::new(KEXINIT).bytes(&[0; 16]), |writer, list| writer.string(list.as_bytes()));
            let offer = writer.flag(if follows { Flag::Yes } else { Flag::No }).number(0).done();
            packet::write(None, &offer, &mut server.input).unwrap();
            let _ = server.next();
        }
    }
}
