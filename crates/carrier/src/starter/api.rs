//! A small client of Firecracker's API: HTTP over its socket, one request at a time. What it reads is bounded, and nothing it reads is trusted.

use serde_json::Value;
use std::{
    io::{self, Read as _, Write as _},
    os::unix::net::UnixStream,
    time::Duration,
};

/// A connection that takes requests.
#[derive(Debug)]
pub(super) struct Api {
    socket: UnixStream,
    unread: Vec<u8>,
}

/// Why a request was not done.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    /// It ended, or said nothing in time.
    #[error("Firecracker does not answer")]
    Silent(#[from] io::Error),
    /// It said something that makes no sense.
    #[error("Firecracker makes no sense")]
    Nonsense,
    /// It refused.
    #[error("Firecracker refused {what}: {why}")]
    Refused {
        /// What.
        what: String,
        /// In its words.
        why: String,
    },
}

/// An answer: its status, and what it says.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Answer {
    status: u16,
    body: Vec<u8>,
}

/// Longest head and longest body of an answer.
const MOST_HEAD: usize = 8 << 10;
const MOST_BODY: usize = 64 << 10;

impl Api {
    /// Nothing is waited for longer than `patience`.
    pub(super) fn new(socket: UnixStream, patience: Duration) -> io::Result<Api> {
        socket.set_read_timeout(Some(patience))?;
        socket.set_write_timeout(Some(patience))?;
        Ok(Api { socket, unread: Vec::new() })
    }

    /// Asks for one thing.
    pub(super) fn put(&mut self, path: &str, body: &Value) -> Result<(), Error> {
        let body = body.to_string();
        let head = format!(
            "PUT {path} HTTP/1.1\r\nHost: localhost\r\nAccept: application/json\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        self.socket.write_all(head.as_bytes())?;
        self.socket.write_all(body.as_bytes())?;
        let Answer { status, body } = self.answer()?;
        if (200..300).contains(&status) {
            return Ok(());
        }
        let said: Value = serde_json::from_slice(&body).unwrap_or_default();
        let why = said.get("fault_message").and_then(Value::as_str).unwrap_or("no reason");
        let why = why.chars().filter(|letter| !letter.is_control()).take(400).collect();
        Err(Error::Refused { what: path.to_owned(), why })
    }

    fn answer(&mut self) -> Result<Answer, Error> {
        loop {
            if let Some((answer, length)) = parse(&self.unread)? {
                self.unread.drain(..length);
                return Ok(answer);
            }
            let mut bytes = [0u8; 4096];
            let count = self.socket.read(&mut bytes)?;
            if count == 0 {
                return Err(Error::Silent(io::ErrorKind::UnexpectedEof.into()));
            }
            self.unread.extend_from_slice(bytes.get(..count).unwrap_or_default());
        }
    }
}

/// One answer and how long it is; nothing while it is not whole. Pure.
fn parse(bytes: &[u8]) -> Result<Option<(Answer, usize)>, Error> {
    let end = bytes.windows(4).take(MOST_HEAD).position(|four| four == b"\r\n\r\n");
    let Some(end) = end else {
        return if bytes.len() > MOST_HEAD { Err(Error::Nonsense) } else { Ok(None) };
    };
    let head = std::str::from_utf8(bytes.get(..end).unwrap_or_default()).map_err(|_| Error::Nonsense)?;
    let mut lines = head.split("\r\n");
    let status = lines.next().and_then(|line| line.strip_prefix("HTTP/1.1 "));
    let status = status.and_then(|rest| rest.get(..3)?.parse().ok()).ok_or(Error::Nonsense)?;
    let mut length = 0usize;
    for line in lines {
        let (name, value) = line.split_once(':').ok_or(Error::Nonsense)?;
        if name.eq_ignore_ascii_case("content-length") {
            length = value.trim().parse().map_err(|_| Error::Nonsense)?;
        } else if name.eq_ignore_ascii_case("transfer-encoding") {
            return Err(Error::Nonsense);
        }
    }
    if length > MOST_BODY {
        return Err(Error::Nonsense);
    }
    let start = end + 4;
    let body = bytes.get(start..start + length).map(<[u8]>::to_vec);
    Ok(body.map(|body| (Answer { status, body }, start + length)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;
    use std::{
        io::{BufRead as _, BufReader},
        thread,
    };

    /// Answers each request with the next of these, as Firecracker does; gives what it was asked.
    fn answering(socket: UnixStream, answers: &[&str]) -> Vec<String> {
        let (mut asked, mut writer) = (Vec::new(), socket.try_clone().unwrap());
        let mut reader = BufReader::new(socket);
        for answer in answers {
            let (mut first, mut length) = (String::new(), 0);
            reader.read_line(&mut first).unwrap();
            loop {
                let mut line = String::new();
                reader.read_line(&mut line).unwrap();
                if line == "\r\n" {
                    break;
                }
                if let Some(value) = line.strip_prefix("Content-Length: ") {
                    length = value.trim().parse().unwrap();
                }
            }
            let mut body = vec![0; length];
            reader.read_exact(&mut body).unwrap();
            asked.push(format!("{} {}", first.trim(), String::from_utf8(body).unwrap()));
            writer.write_all(answer.as_bytes()).unwrap();
        }
        asked
    }

    fn spoken(answers: &'static [&str], talk: impl FnOnce(&mut Api)) -> Vec<String> {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let server = thread::spawn(move || answering(theirs, answers));
        talk(&mut Api::new(ours, Duration::from_secs(5)).unwrap());
        server.join().unwrap()
    }

    const DONE: &str = "HTTP/1.1 204 \r\nServer: Firecracker API\r\nConnection: keep-alive\r\n\r\n";
    const REFUSED: &str =
        "HTTP/1.1 400 \r\nContent-Length: 39\r\n\r\n{\"fault_message\":\"no\\u001bt \\u0007now\"}";

    #[test]
    fn one_connection_takes_one_request_after_the_other() {
        let asked = spoken(&[DONE, DONE], |api| {
            api.put("/vsock", &json!({ "guest_cid": 3 })).unwrap();
            api.put("/actions", &json!({})).unwrap();
        });
        assert_eq!(asked, ["PUT /vsock HTTP/1.1 {\"guest_cid\":3}", "PUT /actions HTTP/1.1 {}"]);
    }

    #[test]
    fn what_is_refused_is_told_in_its_words() {
        spoken(&[REFUSED], |api| {
            let refused = api.put("/balloon", &json!({})).unwrap_err().to_string();
            assert_eq!(refused, "Firecracker refused /balloon: not now");
        });
    }

    #[test]
    fn whoever_ends_in_the_middle_of_an_answer_does_not_answer() {
        spoken(&["HTTP/1.1 204"], |api| {
            assert!(matches!(api.put("/vm", &json!({})), Err(Error::Silent(_))));
        });
    }

    #[test]
    fn an_answer_is_taken_when_it_is_whole() {
        let text = b"HTTP/1.1 400 \r\ncontent-length: 2\r\n\r\n{}HTTP";
        for cut in 0..text.len() - 4 {
            assert!(matches!(parse(&text[..cut]), Ok(None)), "{cut}");
        }
        let (answer, length) = parse(text).unwrap().unwrap();
        assert_eq!((answer.status, answer.body.as_slice(), length), (400, b"{}".as_slice(), text.len() - 4));
        for wrong in
            ["HTTP/1.1 200 \r\nContent-Length: 99999999999\r\n\r\n", "HTTP/1.0 200 \r\n\r\n", "x\r\n\r\n"]
        {
            assert!(parse(wrong.as_bytes()).is_err(), "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn no_answer_harms_whoever_reads_it(text in prop::collection::vec(any::<u8>(), 0..300), status in 0u16..2000, length in any::<u32>()) {
            drop(parse(&text));
            let head = format!("HTTP/1.1 {status} x\r\nContent-Length: {length}\r\n\r\n");
            drop(parse(&[head.as_bytes(), &text].concat()));
        }
    }
}
