//! What the two ends of a carrier say to each other, across the port `airlock.link` of a machine.
//!
//! The keeper passes descriptors, a port passes bytes: so each descriptor becomes a numbered stream. A frame is a header of
//! 9 bytes (kind, u8; stream, u32; length of the body, u32; big-endian) and a body. The end at the host opens streams, and
//! nobody sends more of one than the other has given credit for. What comes out of a machine is hostile input.
//!
//! ```
//! use airlock_protocol::carry::{Decoder, Message};
//! let bytes = Message::Data { stream: 3, bytes: b"hello".to_vec() }.encode()?;
//! let mut decoder = Decoder::default();
//! decoder.feed(&bytes);
//! assert_eq!(decoder.next()?, Some(Message::Data { stream: 3, bytes: b"hello".to_vec() }));
//! # Ok::<(), airlock_protocol::carry::Malformed>(())
//! ```

use crate::frame;
use serde::{Deserialize, Serialize, de::DeserializeOwned};

/// The port that carries messages and streams.
pub const LINK_PORT: &str = "airlock.link";
/// The port that carries files, as messages of FUSE.
pub const FILES_PORT: &str = "airlock.files";
/// The same two where a monitor has no ports but a vsock: ports of the host, with which the machine connects.
pub const LINK_VSOCK: u32 = 1024;
/// The one for files.
pub const FILES_VSOCK: u32 = 1025;
/// A word on the kernel's command line: the ports are these.
pub const BY_VSOCK: &str = "airlock.ports=vsock";
/// What the end at the host finds under these numbers: the socket to [`LINK_PORT`].
pub const LINK_SOCKET: i32 = 4;
/// The socket to [`FILES_PORT`].
pub const FILES_SOCKET: i32 = 5;
/// Where it writes [`READY`], or [`NOT_READY`] and why; closed after it.
pub const OUTCOME: i32 = 6;
/// A pipe with [`Orders`] in JSON.
pub const ORDERS: i32 = 7;
/// Where a machine goes on from its memory: the file with what the end at the host knew ([`Orders::resumes`]).
pub const KNOWN: i32 = 8;
/// The machine is ready.
pub const READY: u8 = b'.';
/// It is not; the reason follows.
pub const NOT_READY: u8 = b'!';

/// How much of a stream may be on its way before the receiver has taken it.
pub const WINDOW: u32 = 256 * 1024;
/// Most bytes in one piece of a stream.
pub const MOST_DATA: usize = 32 * 1024;
/// Longest reason.
pub const MOST_WORDS: usize = 4096;
/// Longest body a reader accepts: a message of keeper and guest, and the descriptors beside it.
pub const MOST_BODY: usize = frame::MAX_BODY + MOST_DESCRIPTORS;
const MOST_DESCRIPTORS: usize = 16 * 1024;
const HEADER: usize = 9;

/// What a machine has to know of its sandbox. No secrets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// Host name inside.
    pub hostname: String,
    /// Capabilities of programs, by name.
    pub capabilities: Vec<String>,
    /// Whether sandboxes may be made inside.
    pub nested: bool,
    /// Whether set-user-id modes may be given to files.
    pub set_id: bool,
    /// Most processes.
    pub processes: u64,
    /// Bytes of `/dev/shm`.
    pub shared_memory: u64,
    /// Who owns terminals that programs make.
    pub user: u32,
    /// Its root on disks of its own; nothing where the root is served.
    #[serde(default)]
    pub disks: Option<Disks>,
}

/// What the end at the host is told.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Orders {
    /// The machine.
    pub machine: Machine,
    /// Whether it goes on from its memory, with programs in it.
    #[serde(default)]
    pub resumes: bool,
    /// Whether the sockets to the ports bring the ports, one each, when the machine has connected with them ([`Starting`]).
    #[serde(default)]
    pub ports_are_sent: bool,
}

/// The path of the carrier where it starts a monitor that has an API.
pub const STARTER: &str = "/starter";

/// What it is told then, in JSON, as its only argument. The sockets to the ports are its descriptors from 3 on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Starting {
    /// The monitor and its arguments.
    pub command: Vec<String>,
    /// The path of the socket at which it takes requests.
    pub api: String,
    /// Paths and bodies of what is asked of it, until the machine runs.
    pub requests: Vec<(String, serde_json::Value)>,
    /// The paths of the sockets with which it connects for the machine: messages, then files.
    pub ports: [String; 2],
}

/// The first message a machine gets that rested, whether it is itself or a copy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resume {
    /// Host name inside.
    pub hostname: String,
    /// As in [`Configure`].
    pub seed: Vec<u8>,
    /// The time.
    pub now: Now,
    /// Whether it is a copy: nobody is at the other side of its connections.
    pub is_copy: bool,
}

/// The time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Now {
    /// Seconds since 1970.
    pub seconds: i64,
    /// And nanoseconds.
    pub nanoseconds: u32,
}

/// A root on disks: the image, read-only, and a disk for what programs change in it. The served files lie over it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Disks {
    /// Where served files are shown; told by who serves them.
    pub shown: Vec<Shown>,
    /// Served files that are copied into the root where it has none, as a program would find them.
    pub copied: Vec<String>,
    /// Directories that are there in any case.
    pub directories: Vec<String>,
    /// Whether the root cannot be written.
    pub read_only: bool,
}

/// One place of a root at which served files are shown.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Shown {
    /// Where.
    pub path: String,
    /// Whether it is a directory.
    pub is_directory: bool,
}

/// How a machine knows the disk with the image.
pub const IMAGE_DISK: &str = "airlock-image";
/// How it knows its own disk.
pub const OWN_DISK: &str = "airlock-own";

/// The first message a machine gets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Configure {
    /// What it is.
    pub machine: Machine,
    /// Bytes that nobody else has, for its random numbers: [`SEED`] of them.
    pub seed: Vec<u8>,
    /// Seconds since 1970.
    pub seconds: i64,
    /// And nanoseconds.
    pub nanoseconds: u32,
}

/// Bytes in a seed.
pub const SEED: usize = 64;

/// One message on the port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Message {
    /// To the machine, once and first.
    Configure(Box<Configure>),
    /// From the machine: the guest runs.
    Ready,
    /// From the machine: it cannot go on, and why.
    Failed(String),
    /// A message of `protocol::guest` as it is, with what came beside it.
    Guest {
        /// The descriptors in their order; one number twice means the same one twice.
        descriptors: Vec<Descriptor>,
        /// JSON.
        message: Vec<u8>,
    },
    /// Bytes of a stream.
    Data {
        /// Which one.
        stream: u32,
        /// At most [`MOST_DATA`].
        bytes: Vec<u8>,
    },
    /// So many more bytes of a stream may be sent.
    Credit {
        /// Which one.
        stream: u32,
        /// How many.
        bytes: u32,
    },
    /// Nothing more is sent on a stream.
    End {
        /// Which one.
        stream: u32,
    },
    /// Nothing more is taken from a stream: whoever writes there is told so.
    HangUp {
        /// Which one.
        stream: u32,
    },
    /// A terminal has another size.
    Resize {
        /// Which one.
        stream: u32,
        /// Its size.
        size: Size,
    },
    /// To the machine: what time it is.
    Clock(Now),
    /// To the machine: stand still. Nothing more is said before it has answered.
    Rest,
    /// From the machine: everything stands still, and nothing is on its way.
    Resting,
    /// From the machine: it cannot stand still, and goes on.
    Restless,
    /// To a machine that rests, which answers [`Message::Ready`] and still rests.
    Resume(Box<Resume>),
    /// To a machine that is ready after a rest: go on.
    Rise,
}

/// A descriptor and its stream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Descriptor {
    /// The stream's number, new unless it stands in the same message before.
    pub stream: u32,
    /// What it is.
    pub kind: Kind,
}

/// What a descriptor is for the program inside.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// It reads from it.
    Input,
    /// It writes to it.
    Output,
    /// Both, as with a socket.
    Both,
    /// `/dev/null`: no stream at all.
    Nothing,
    /// A terminal.
    Terminal(Terminal),
}

/// A terminal as it is when it is passed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Terminal {
    /// Its size.
    pub size: Size,
    /// Its modes, as in `struct termios`.
    pub modes: Modes,
}

/// Rows and columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Size {
    /// Rows.
    pub rows: u16,
    /// Columns.
    pub columns: u16,
}

/// Modes of a terminal, as in `struct termios`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Modes {
    /// `c_iflag`
    pub input: u32,
    /// `c_oflag`
    pub output: u32,
    /// `c_cflag`
    pub control: u32,
    /// `c_lflag`
    pub local: u32,
    /// `c_cc`
    pub characters: Vec<u8>,
}

/// Bytes that are no messages. The port is of no further use.
#[derive(Debug, thiserror::Error)]
pub enum Malformed {
    /// A body longer than its kind can have.
    #[error("a body of {0} bytes is too long")]
    TooLong(usize),
    /// A body that is too short or too long for its kind.
    #[error("a message of kind {0} has another body than expected")]
    Body(u8),
    /// A kind that does not exist.
    #[error("unknown kind {0}")]
    Kind(u8),
    /// JSON of another shape.
    #[error("unreadable message")]
    Json(#[source] serde_json::Error),
}

const CONFIGURE: u8 = 1;
const READY_KIND: u8 = 2;
const FAILED: u8 = 3;
const GUEST: u8 = 4;
const DATA: u8 = 5;
const CREDIT: u8 = 6;
const END: u8 = 7;
const HANG_UP: u8 = 8;
const RESIZE: u8 = 9;
const CLOCK: u8 = 10;
const REST: u8 = 11;
const RESTING: u8 = 12;
const RESTLESS: u8 = 13;
const RESUME: u8 = 14;
const RISE: u8 = 15;

impl Message {
    /// The bytes to send. Fails where a body is longer than any reader accepts.
    pub fn encode(&self) -> Result<Vec<u8>, Malformed> {
        let (kind, stream, body) = self.parts()?;
        if body.len() > longest(kind) {
            return Err(Malformed::TooLong(body.len()));
        }
        let length = u32::try_from(body.len()).map_err(|_| Malformed::TooLong(body.len()))?;
        let mut bytes = Vec::with_capacity(HEADER + body.len());
        bytes.push(kind);
        bytes.extend_from_slice(&stream.to_be_bytes());
        bytes.extend_from_slice(&length.to_be_bytes());
        bytes.extend_from_slice(&body);
        Ok(bytes)
    }

    fn parts(&self) -> Result<(u8, u32, Vec<u8>), Malformed> {
        Ok(match self {
            Message::Configure(configure) => (CONFIGURE, 0, to_json(configure)?),
            Message::Ready => (READY_KIND, 0, Vec::new()),
            Message::Failed(why) => (FAILED, 0, why.bytes().take(MOST_WORDS).collect()),
            Message::Guest { descriptors, message } => (GUEST, 0, guest(descriptors, message)?),
            Message::Data { stream, bytes } => (DATA, *stream, bytes.clone()),
            Message::Credit { stream, bytes } => (CREDIT, *stream, bytes.to_be_bytes().to_vec()),
            Message::End { stream } => (END, *stream, Vec::new()),
            Message::HangUp { stream } => (HANG_UP, *stream, Vec::new()),
            Message::Resize { stream, size } => {
                (RESIZE, *stream, [size.rows.to_be_bytes(), size.columns.to_be_bytes()].concat())
            }
            Message::Clock(now) => (CLOCK, 0, to_json(now)?),
            Message::Rest => (REST, 0, Vec::new()),
            Message::Resting => (RESTING, 0, Vec::new()),
            Message::Restless => (RESTLESS, 0, Vec::new()),
            Message::Resume(resume) => (RESUME, 0, to_json(resume)?),
            Message::Rise => (RISE, 0, Vec::new()),
        })
    }

    fn decode(kind: u8, stream: u32, body: &[u8]) -> Result<Message, Malformed> {
        let odd = || Malformed::Body(kind);
        let number = || body.try_into().map(u32::from_be_bytes).map_err(|_| odd());
        let empty = |message| if body.is_empty() { Ok(message) } else { Err(odd()) };
        match kind {
            CONFIGURE => Ok(Message::Configure(from_json(body)?)),
            READY_KIND => empty(Message::Ready),
            FAILED => Ok(Message::Failed(String::from_utf8_lossy(body).into_owned())),
            GUEST => {
                let (length, rest) = body.split_first_chunk::<2>().ok_or_else(odd)?;
                let length = usize::from(u16::from_be_bytes(*length));
                let (descriptors, message) = rest.split_at_checked(length).ok_or_else(odd)?;
                let descriptors = if length == 0 { Vec::new() } else { from_json(descriptors)? };
                Ok(Message::Guest { descriptors, message: message.to_vec() })
            }
            DATA => Ok(Message::Data { stream, bytes: body.to_vec() }),
            CREDIT => Ok(Message::Credit { stream, bytes: number()? }),
            END => empty(Message::End { stream }),
            HANG_UP => empty(Message::HangUp { stream }),
            RESIZE => {
                let [a, b, c, d] = *body else { return Err(odd()) };
                let (rows, columns) = (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
                Ok(Message::Resize { stream, size: Size { rows, columns } })
            }
            CLOCK => Ok(Message::Clock(from_json(body)?)),
            REST => empty(Message::Rest),
            RESTING => empty(Message::Resting),
            RESTLESS => empty(Message::Restless),
            RESUME => Ok(Message::Resume(from_json(body)?)),
            RISE => empty(Message::Rise),
            other => Err(Malformed::Kind(other)),
        }
    }
}

/// The longest body of a kind; nothing of one that does not exist.
fn longest(kind: u8) -> usize {
    match kind {
        CONFIGURE | GUEST => MOST_BODY,
        FAILED | CLOCK | RESUME => MOST_WORDS,
        DATA => MOST_DATA,
        CREDIT | RESIZE => 4,
        _ => 0,
    }
}

/// Length of the descriptors (u16), the descriptors, the message.
fn guest(descriptors: &[Descriptor], message: &[u8]) -> Result<Vec<u8>, Malformed> {
    let descriptors = if descriptors.is_empty() { Vec::new() } else { to_json(&descriptors)? };
    let length =
        u16::try_from(descriptors.len()).ok().filter(|length| usize::from(*length) < MOST_DESCRIPTORS);
    let length = length.ok_or(Malformed::TooLong(descriptors.len()))?;
    Ok([&length.to_be_bytes(), descriptors.as_slice(), message].concat())
}

fn to_json<T: Serialize>(value: &T) -> Result<Vec<u8>, Malformed> {
    serde_json::to_vec(value).map_err(Malformed::Json)
}

fn from_json<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Malformed> {
    serde_json::from_slice(bytes).map_err(Malformed::Json)
}

/// Collects what arrives and gives out whole messages. Holds no more than one of them and what was fed since.
#[derive(Debug, Default)]
pub struct Decoder {
    buffer: Vec<u8>,
    taken: usize,
}

impl Decoder {
    /// Adds bytes as they arrived.
    pub fn feed(&mut self, bytes: &[u8]) {
        if self.taken > 0 {
            self.buffer.drain(..self.taken);
            self.taken = 0;
        }
        self.buffer.extend_from_slice(bytes);
    }

    /// The next whole message, or `None` until more has been fed.
    #[expect(clippy::should_implement_trait, reason = "it can fail, and more may be fed after None")]
    pub fn next(&mut self) -> Result<Option<Message>, Malformed> {
        let rest = self.buffer.get(self.taken..).unwrap_or_default();
        let Some((header, rest)) = rest.split_first_chunk::<HEADER>() else { return Ok(None) };
        let [kind, a, b, c, d, e, f, g, h] = *header;
        let length = u32::from_be_bytes([e, f, g, h]) as usize;
        if !(CONFIGURE..=RISE).contains(&kind) {
            return Err(Malformed::Kind(kind));
        }
        if length > longest(kind) {
            return Err(Malformed::TooLong(length));
        }
        let Some(body) = rest.get(..length) else { return Ok(None) };
        let message = Message::decode(kind, u32::from_be_bytes([a, b, c, d]), body)?;
        self.taken += HEADER + length;
        Ok(Some(message))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::{collection::vec, prelude::*};

    fn size() -> impl Strategy<Value = Size> {
        any::<(u16, u16)>().prop_map(|(rows, columns)| Size { rows, columns })
    }

    fn kind() -> impl Strategy<Value = Kind> {
        let modes = (any::<[u32; 4]>(), vec(any::<u8>(), 0..20)).prop_map(
            |([input, output, control, local], characters)| Modes {
                input,
                output,
                control,
                local,
                characters,
            },
        );
        prop_oneof![
            Just(Kind::Input),
            Just(Kind::Output),
            Just(Kind::Both),
            Just(Kind::Nothing),
            (size(), modes).prop_map(|(size, modes)| Kind::Terminal(Terminal { size, modes })),
        ]
    }

    fn configure() -> impl Strategy<Value = Configure> {
        let machine = (".{0,64}", vec("[A-Z_]{1,20}", 0..5), any::<[bool; 3]>(), any::<(u64, u64, u32)>());
        let machine = machine.prop_map(|(hostname, capabilities, switches, numbers)| Machine {
            hostname,
            capabilities,
            nested: switches[0],
            set_id: switches[1],
            disks: switches[0].then(|| Disks {
                shown: vec![Shown { path: "/etc/hosts".to_owned(), is_directory: switches[1] }],
                read_only: switches[2],
                ..Disks::default()
            }),
            processes: numbers.0,
            shared_memory: numbers.1,
            user: numbers.2,
        });
        (machine, vec(any::<u8>(), SEED), any::<(i64, u32)>()).prop_map(
            |(machine, seed, (seconds, nanoseconds))| Configure { machine, seed, seconds, nanoseconds },
        )
    }

    fn rest() -> impl Strategy<Value = Message> {
        let now = || any::<(i64, u32)>().prop_map(|(seconds, nanoseconds)| Now { seconds, nanoseconds });
        let resume = (".{0,64}", vec(any::<u8>(), SEED), now(), any::<bool>());
        let resume =
            resume.prop_map(|(hostname, seed, now, is_copy)| Resume { hostname, seed, now, is_copy });
        prop_oneof![
            now().prop_map(Message::Clock),
            Just(Message::Rest),
            Just(Message::Resting),
            Just(Message::Restless),
            resume.prop_map(|resume| Message::Resume(Box::new(resume))),
            Just(Message::Rise),
        ]
    }

    fn message() -> impl Strategy<Value = Message> {
        let descriptor = (any::<u32>(), kind()).prop_map(|(stream, kind)| Descriptor { stream, kind });
        prop_oneof![
            configure().prop_map(|configure| Message::Configure(Box::new(configure))),
            Just(Message::Ready),
            ".{0,200}".prop_map(Message::Failed),
            (vec(descriptor, 0..8), vec(any::<u8>(), 0..300))
                .prop_map(|(descriptors, message)| Message::Guest { descriptors, message }),
            (any::<u32>(), vec(any::<u8>(), 0..300))
                .prop_map(|(stream, bytes)| Message::Data { stream, bytes }),
            any::<(u32, u32)>().prop_map(|(stream, bytes)| Message::Credit { stream, bytes }),
            any::<u32>().prop_map(|stream| Message::End { stream }),
            any::<u32>().prop_map(|stream| Message::HangUp { stream }),
            (any::<u32>(), size()).prop_map(|(stream, size)| Message::Resize { stream, size }),
            rest(),
        ]
    }

    #[test]
    fn a_length_over_the_limit_is_refused_before_the_body_arrives() {
        let mut decoder = Decoder::default();
        decoder.feed(&[DATA, 0, 0, 0, 1, 0, 1, 0, 0]);
        assert!(matches!(decoder.next(), Err(Malformed::TooLong(65536))));
    }

    #[test]
    fn more_than_a_reader_accepts_is_not_sent() {
        let message = Message::Data { stream: 1, bytes: vec![0; MOST_DATA + 1] };
        assert!(matches!(message.encode(), Err(Malformed::TooLong(_))));
    }

    proptest! {
        #[test]
        fn messages_survive_any_cutting(messages in vec(message(), 0..8), cut in 1usize..50) {
            let bytes: Vec<u8> = messages.iter().flat_map(|message| message.encode().unwrap()).collect();
            let mut decoder = Decoder::default();
            let mut seen = Vec::new();
            for piece in bytes.chunks(cut) {
                decoder.feed(piece);
                while let Some(message) = decoder.next().unwrap() {
                    seen.push(message);
                }
            }
            prop_assert_eq!(seen, messages);
        }

        #[test]
        fn no_bytes_panic_the_decoder(bytes in vec(any::<u8>(), 0..200), kind in 0u8..18, length in 0u8..200) {
            let mut decoder = Decoder::default();
            decoder.feed(&[kind, 0, 0, 0, 1, 0, 0, 0, length]);
            decoder.feed(&bytes);
            while let Ok(Some(_)) = decoder.next() {}
        }
    }
}
