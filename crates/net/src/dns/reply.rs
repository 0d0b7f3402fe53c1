//! Answers, as bytes that fit what carries them.

use super::{Query, Transport};
use hickory_proto::op::{Edns, Message, OpCode, ResponseCode};
use hickory_proto::rr::rdata::opt::EdnsOption;
use hickory_proto::rr::rdata::{A, AAAA, PTR, SOA};
use hickory_proto::rr::{Name, RData, Record, RecordType};
use std::net::{Ipv4Addr, Ipv6Addr};

/// Seconds an answer may be kept. Addresses stay; rules change.
pub const TTL: u32 = 60;
/// Seconds that nothing there may be kept.
pub const NEGATIVE_TTL: u32 = 5;
/// What we say we can receive, and the most we send over UDP.
const PAYLOAD: u16 = 1232;
/// What every client can receive over UDP.
const LEAST_PAYLOAD: u16 = 512;
/// Extended DNS errors (RFC 8914).
const EDE: u16 = 15;
const EDE_OTHER: u16 = 0;
const EDE_BLOCKED: u16 = 15;
/// Bytes of text in an extended error.
const LONGEST_TEXT: usize = 240;

/// What stands behind a question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// A name with these addresses; any other type has no record.
    Host {
        /// For `A`.
        v4: Option<Ipv4Addr>,
        /// For `AAAA`.
        v6: Option<Ipv6Addr>,
    },
    /// An address with this name, for `PTR`.
    Pointer(String),
    /// Not for this sandbox: no such name, and why.
    Denied(String),
    /// We could not; a client may ask again.
    Failed(String),
}

impl Query {
    /// The answer as bytes that fit what carried the question.
    pub fn reply(&self, answer: &Answer) -> Vec<u8> {
        fitting(self.message(answer), self.limit())
    }

    fn limit(&self) -> usize {
        match (self.transport, self.edns) {
            (Transport::Tcp, _) => usize::from(u16::MAX),
            (Transport::Udp, Some(asked)) => usize::from(asked.payload.clamp(LEAST_PAYLOAD, PAYLOAD)),
            (Transport::Udp, None) => usize::from(LEAST_PAYLOAD),
        }
    }

    pub(super) fn message(&self, answer: &Answer) -> Message {
        match answer {
            Answer::Host { v4, v6 } => self.found(match self.wire.query_type() {
                RecordType::A => v4.map(|address| RData::A(A(address))),
                RecordType::AAAA => v6.map(|address| RData::AAAA(AAAA(address))),
                _ => None,
            }),
            Answer::Pointer(name) => self.found(match self.wire.query_type() {
                RecordType::PTR => {
                    Name::from_ascii(name).ok().map(absolute).map(|name| RData::PTR(PTR(name)))
                }
                _ => None,
            }),
            Answer::Denied(why) => {
                let mut message = self.start(ResponseCode::NXDomain, Some((EDE_BLOCKED, why)));
                message.add_authority(negative());
                message
            }
            Answer::Failed(why) => self.start(ResponseCode::ServFail, Some((EDE_OTHER, why))),
        }
    }

    fn found(&self, record: Option<RData>) -> Message {
        let mut message = self.start(ResponseCode::NoError, None);
        match record {
            Some(record) => message.add_answer(Record::from_rdata(self.wire.name().clone(), TTL, record)),
            None => message.add_authority(negative()),
        };
        message
    }

    fn start(&self, code: ResponseCode, error: Option<(u16, &str)>) -> Message {
        let mut message = Message::response(self.id, OpCode::Query);
        message.metadata.recursion_desired = self.recursion_desired;
        message.metadata.recursion_available = true;
        message.metadata.checking_disabled = self.checking_disabled;
        message.metadata.response_code = code;
        message.add_query(self.wire.clone());
        if let Some(asked) = self.edns {
            let mut edns = Edns::new();
            edns.set_max_payload(PAYLOAD).set_version(0).set_dnssec_ok(asked.dnssec_ok);
            if let Some((code, text)) = error {
                edns.options_mut().insert(extended(code, text));
            }
            message.set_edns(edns);
        }
        message
    }
}

/// An answer that says only `code`.
pub(super) fn bare(query: &Query, code: ResponseCode) -> Vec<u8> {
    encode(&query.start(code, None))
}

/// An answer to a message whose question could not be read.
pub(super) fn headless(id: u16, op_code: OpCode, recursion_desired: bool, code: ResponseCode) -> Vec<u8> {
    let mut message = Message::response(id, op_code);
    message.metadata.recursion_desired = recursion_desired;
    message.metadata.recursion_available = true;
    message.metadata.response_code = code;
    encode(&message)
}

/// Encodes within `limit`: without the text of an error if need be, and with nothing but the question at worst.
pub(super) fn fitting(message: Message, limit: usize) -> Vec<u8> {
    let bytes = encode(&message);
    if bytes.len() <= limit {
        return bytes;
    }
    let short = without_text(message);
    let bytes = encode(&short);
    if bytes.len() <= limit { bytes } else { encode(&truncated(short)) }
}

/// Nothing of what we send can fail to encode; were it so, the client hears nothing and asks again.
fn encode(message: &Message) -> Vec<u8> {
    message.to_vec().unwrap_or_default()
}

fn without_text(mut message: Message) -> Message {
    if let Some(edns) = message.edns.as_mut() {
        edns.options_mut().options.clear();
    }
    message
}

fn truncated(mut message: Message) -> Message {
    message.answers.clear();
    message.authorities.clear();
    message.metadata.truncation = true;
    message
}

fn extended(code: u16, text: &str) -> EdnsOption {
    let mut bytes = code.to_be_bytes().to_vec();
    let end = text.floor_char_boundary(LONGEST_TEXT);
    bytes.extend_from_slice(text.get(..end).unwrap_or_default().as_bytes());
    EdnsOption::Unknown(EDE, bytes)
}

/// The record that bounds how long a negative answer is kept (RFC 2308, section 5).
fn negative() -> Record {
    let us = Name::from_ascii("gate.airlock.").unwrap_or_default();
    let ttl = i32::try_from(NEGATIVE_TTL).unwrap_or_default();
    let soa = SOA::new(us.clone(), us, 1, ttl, ttl, ttl, NEGATIVE_TTL);
    Record::from_rdata(Name::root(), NEGATIVE_TTL, RData::SOA(soa))
}

fn absolute(mut name: Name) -> Name {
    name.set_fqdn(true);
    name
}
