//! One question, read from hostile bytes.

use super::{Transport, reply};
use hickory_proto::op::{Edns, Message, MessageType, OpCode, Query as Wire, ResponseCode};
use hickory_proto::rr::{DNSClass, Name, RecordType};
use hickory_proto::serialize::binary::BinDecodable;
use std::fmt::Write;
use std::net::IpAddr;

/// A header.
const HEADER: usize = 12;
/// Longest message read; a padded query of a modern client has 128 bytes.
const LONGEST: usize = 4096;
/// Most records behind the question: EDNS and a signature.
const MOST_ADDITIONAL: u16 = 2;

/// One well-formed question of class IN.
#[derive(Debug, Clone)]
pub struct Query {
    pub(super) id: u16,
    pub(super) recursion_desired: bool,
    pub(super) checking_disabled: bool,
    pub(super) wire: Wire,
    pub(super) edns: Option<Asked>,
    pub(super) transport: Transport,
}

/// What the EDNS record of a query says that matters here.
#[derive(Debug, Clone, Copy)]
pub(super) struct Asked {
    pub(super) payload: u16,
    pub(super) dnssec_ok: bool,
}

/// What a question is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Subject {
    /// A name in lower case without the last dot; letters, digits, `-` and `_` only, not yet checked further.
    Name(String),
    /// The name of an address (`1.0.18.198.in-addr.arpa`).
    Address(IpAddr),
    /// Anything else, escaped for a person to read: the root, or labels with other bytes in them.
    Other(String),
}

/// Why there is no question to look up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unanswered {
    /// Send this back.
    Reply(Vec<u8>),
    /// Send nothing: it is too short to answer, or an answer itself.
    Silence,
}

impl Query {
    /// Reads one message.
    pub fn read(bytes: &[u8], transport: Transport) -> Result<Query, Unanswered> {
        let head = Head::read(bytes).ok_or(Unanswered::Silence)?;
        if head.is_response {
            return Err(Unanswered::Silence);
        }
        if head.op_code != OpCode::Query {
            return Err(head.refusal(ResponseCode::NotImp));
        }
        if bytes.len() > LONGEST || head.counts != [1, 0, 0] || head.additional > MOST_ADDITIONAL {
            return Err(head.refusal(ResponseCode::FormErr));
        }
        let message = Message::from_vec(bytes).map_err(|_| head.refusal(ResponseCode::FormErr))?;
        Query::of(message, transport)
    }

    fn of(mut message: Message, transport: Transport) -> Result<Query, Unanswered> {
        let (Some(wire), OpCode::Query, MessageType::Query) =
            (message.queries.pop(), message.metadata.op_code, message.metadata.message_type)
        else {
            return Err(Unanswered::Silence);
        };
        let version = message.edns.as_ref().map_or(0, Edns::version);
        let query = Query {
            id: message.metadata.id,
            recursion_desired: message.metadata.recursion_desired,
            checking_disabled: message.metadata.checking_disabled,
            edns: message.edns.as_ref().map(Asked::of),
            wire,
            transport,
        };
        if version > 0 {
            return Err(Unanswered::Reply(reply::bare(&query, ResponseCode::BADVERS)));
        }
        match query.unfit() {
            Some(code) => Err(Unanswered::Reply(reply::bare(&query, code))),
            None => Ok(query),
        }
    }

    /// The code for a question that is never looked up.
    fn unfit(&self) -> Option<ResponseCode> {
        if self.wire.query_class() != DNSClass::IN {
            return Some(ResponseCode::Refused);
        }
        match self.wire.query_type() {
            RecordType::AXFR | RecordType::IXFR => Some(ResponseCode::Refused),
            RecordType::OPT | RecordType::TSIG | RecordType::ZERO => Some(ResponseCode::FormErr),
            _ => None,
        }
    }

    /// What the question is about.
    pub fn subject(&self) -> Subject {
        let name = self.wire.name();
        if let Some(address) = address_of(name) {
            return Subject::Address(address);
        }
        dotted(name).map_or_else(|| Subject::Other(escaped(name)), Subject::Name)
    }

    /// The name asked for, for a person: in lower case, or escaped where it is no name.
    pub fn name(&self) -> String {
        dotted(self.wire.name()).unwrap_or_else(|| escaped(self.wire.name()))
    }

    /// Whether an IPv4 address is asked for.
    pub fn is_for_address(&self) -> bool {
        self.wire.query_type() == RecordType::A
    }

    /// The type asked for, as people write it (`A`, `TXT`, `TYPE1234`).
    pub fn kind(&self) -> String {
        match self.wire.query_type() {
            RecordType::Unknown(code) => format!("TYPE{code}"),
            kind => kind.to_string(),
        }
    }
}

impl Asked {
    fn of(edns: &Edns) -> Asked {
        Asked { payload: edns.max_payload(), dnssec_ok: edns.flags().dnssec_ok }
    }
}

/// The fixed part of a message.
struct Head {
    id: u16,
    is_response: bool,
    op_code: OpCode,
    recursion_desired: bool,
    counts: [u16; 3],
    additional: u16,
}

impl Head {
    fn read(bytes: &[u8]) -> Option<Head> {
        let bytes: [u8; HEADER] = bytes.get(..HEADER)?.try_into().ok()?;
        let header = hickory_proto::op::Header::from_bytes(&bytes).ok()?;
        Some(Head {
            id: header.metadata.id,
            is_response: header.metadata.message_type == MessageType::Response,
            op_code: header.metadata.op_code,
            recursion_desired: header.metadata.recursion_desired,
            counts: [header.counts.queries, header.counts.answers, header.counts.authorities],
            additional: header.counts.additionals,
        })
    }

    fn refusal(&self, code: ResponseCode) -> Unanswered {
        Unanswered::Reply(reply::headless(self.id, self.op_code, self.recursion_desired, code))
    }
}

/// The address that a name below `in-addr.arpa` or `ip6.arpa` stands for, where it is a whole one.
fn address_of(name: &Name) -> Option<IpAddr> {
    let net = name.parse_arpa_name().ok()?;
    (net.prefix_len() == net.max_prefix_len()).then(|| net.addr())
}

/// The name with dots, where no label has a byte that could be mistaken for something else.
fn dotted(name: &Name) -> Option<String> {
    let mut text = String::with_capacity(name.len());
    for label in name.iter() {
        if !label.iter().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_')) {
            return None;
        }
        if !text.is_empty() {
            text.push('.');
        }
        text.extend(label.iter().map(|byte| char::from(byte.to_ascii_lowercase())));
    }
    (!text.is_empty()).then_some(text)
}

/// The name for a person: printable ASCII as it is, everything else as `\ddd` (RFC 1035, 5.1).
fn escaped(name: &Name) -> String {
    let mut text = String::new();
    for label in name.iter() {
        for byte in label {
            match byte {
                b'.' | b'\\' => text.extend(['\\', char::from(*byte)]),
                b'!'..=b'~' => text.push(char::from(*byte)),
                other => _ = write!(text, "\\{other:03}"),
            }
        }
        text.push('.');
    }
    if text.is_empty() {
        text.push('.');
    }
    text
}
