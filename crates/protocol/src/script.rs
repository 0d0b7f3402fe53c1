//! What a keeper and the program that runs a sandbox's script say to each other: length (u32, big-endian) and JSON, a question
//! and then its answer.
//!
//! The script's program knows another serde_json than the rest: no type here is flattened or tagged inside.

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::{
    collections::BTreeMap,
    io::{self, Read, Write},
};

/// Longest message.
pub const LONGEST: usize = 64 << 20;

/// A question to the script.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ask {
    /// Reads the script. The first question, and asked once.
    Load {
        /// What it is called in errors.
        name: String,
        /// Its text.
        text: String,
        /// Placeholders of secrets, by the names of those.
        secrets: BTreeMap<String, String>,
        /// Statements that one call may execute.
        steps: u64,
    },
    /// `is_host_allowed(host, port)`.
    Host {
        /// The name or address.
        host: String,
        /// The port.
        port: u16,
    },
    /// `on_request(request)`.
    Request(Request),
    /// `on_response(request, response)`.
    Response(Request, Response),
}

/// A request as a script sees it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// `GET`, `POST`, …
    pub method: String,
    /// The name or address.
    pub host: String,
    /// The port.
    pub port: u16,
    /// The decoded path.
    pub path: String,
    /// The query as it is sent.
    pub query: String,
    /// Names in lower case.
    pub headers: Vec<(String, String)>,
    /// Where the rule shows it, and it is text.
    pub body: Option<String>,
}

/// An answer as a script sees it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Response {
    /// The status.
    pub status: u16,
    /// Names in lower case.
    pub headers: Vec<(String, String)>,
    /// Where the rule shows it, and it is text.
    pub body: Option<String>,
}

/// What the script answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    /// What it says.
    pub said: Said,
    /// What it printed meanwhile.
    pub printed: Vec<String>,
}

/// What a script says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Said {
    /// It was read; it has these functions.
    Ready(Hooks),
    /// It goes on as it is.
    Pass,
    /// It goes on with these headers, and this body where there was one.
    Request(Vec<(String, String)>, Option<String>),
    /// It goes on so.
    Response(Response),
    /// It does not go on.
    Deny(String),
    /// The script failed.
    Failed(String),
}

/// Which functions a script has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hooks {
    /// `is_host_allowed`.
    pub host: bool,
    /// `on_request`.
    pub request: bool,
    /// `on_response`.
    pub response: bool,
}

/// A message as it is sent.
pub fn encode<T: Serialize>(message: &T) -> io::Result<Vec<u8>> {
    let body = serde_json::to_vec(message).map_err(io::Error::other)?;
    let length = u32::try_from(body.len()).ok().filter(|_| body.len() <= LONGEST);
    let length = length.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "a message is too long"))?;
    Ok([&length.to_be_bytes()[..], &body].concat())
}

/// How long the body is that this head announces.
pub fn length(head: [u8; 4]) -> io::Result<usize> {
    match usize::try_from(u32::from_be_bytes(head)) {
        Ok(length) if length <= LONGEST => Ok(length),
        _ => Err(io::Error::new(io::ErrorKind::InvalidData, "a message is too long")),
    }
}

/// The message of a body.
pub fn decode<T: DeserializeOwned>(body: &[u8]) -> io::Result<T> {
    serde_json::from_slice(body).map_err(|err| io::Error::new(io::ErrorKind::InvalidData, err))
}

/// Reads one message; none at the end.
pub fn read<T: DeserializeOwned>(from: &mut impl Read) -> io::Result<Option<T>> {
    let mut head = [0; 4];
    match from.read_exact(&mut head) {
        Err(err) if err.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        other => other?,
    }
    let mut body = Vec::new();
    let length = length(head)?;
    let wanted = u64::try_from(length).unwrap_or(u64::MAX);
    if from.take(wanted).read_to_end(&mut body)? < length {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    decode(&body).map(Some)
}

/// Writes one message.
pub fn write<T: Serialize>(to: &mut impl Write, message: &T) -> io::Result<()> {
    to.write_all(&encode(message)?)?;
    to.flush()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_is_written_is_read() {
        let ask = Ask::Response(
            Request { method: "GET".into(), port: 443, body: Some("é\u{0}".into()), ..Request::default() },
            Response { status: 200, headers: vec![("a".into(), "b".into())], body: None },
        );
        let mut bytes = Vec::new();
        write(&mut bytes, &ask).unwrap();
        let mut rest = bytes.as_slice();
        assert_eq!(read::<Ask>(&mut rest).unwrap(), Some(ask));
        assert_eq!(read::<Ask>(&mut rest).unwrap(), None);
        assert!(read::<Ask>(&mut &bytes[..bytes.len() - 1]).is_err());
        assert!(length([0xff; 4]).is_err());
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in any::<Vec<u8>>()) {
            let _ = read::<Answer>(&mut bytes.as_slice());
        }
    }
}
