//! A small client of Firecracker's API: HTTP over its socket, one request at a time. What it reads is bounded, and nothing it reads is trusted.

use super::Machine;
use serde_json::{Value, json};
use std::{
    io::{self, Read as _, Write as _},
    os::unix::net::UnixStream,
    time::Duration,
};

/// A connection that takes requests.
#[derive(Debug)]
pub struct Api {
    socket: UnixStream,
    unread: Vec<u8>,
}

/// Why a request was not done.
#[derive(Debug, thiserror::Error)]
pub enum Error {
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
    pub fn new(socket: UnixStream, patience: Duration) -> io::Result<Api> {
        socket.set_read_timeout(Some(patience))?;
        socket.set_write_timeout(Some(patience))?;
        Ok(Api { socket, unread: Vec::new() })
    }

    /// Describes a machine and starts it.
    pub fn boot(&mut self, machine: &Machine) -> Result<(), Error> {
        super::requests(machine).iter().try_for_each(|(path, body)| self.ask("PUT", path, body))
    }

    /// Stops its processors.
    pub fn pause(&mut self) -> Result<(), Error> {
        self.ask("PATCH", "/vm", &json!({ "state": "Paused" }))
    }

    /// Lets them go on.
    pub fn resume(&mut self) -> Result<(), Error> {
        self.ask("PATCH", "/vm", &json!({ "state": "Resumed" }))
    }

    /// Writes a machine that is paused into these files, names where it runs.
    pub fn save(&mut self, state: &str, memory: &str) -> Result<(), Error> {
        let body = json!({ "snapshot_type": "Full", "snapshot_path": state, "mem_file_path": memory });
        self.ask("PUT", "/snapshot/create", &body)
    }

    /// Goes on from such files; the first request on a fresh one.
    pub fn restore(&mut self, state: &str, memory: &str) -> Result<(), Error> {
        let (path, body) = super::restore(state, memory);
        self.ask("PUT", &path, &body)
    }

    fn ask(&mut self, method: &str, path: &str, body: &Value) -> Result<(), Error> {
        let body = body.to_string();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\nAccept: application/json\r\n\
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
        Err(Error::Refused { what: format!("{method} {path}"), why })
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
    use std::{
        io::{BufRead as _, BufReader},
        thread,
    };

    /// What a request must have, as Firecracker's description of its API says; only paths it knows.
    fn judge(method: &str, path: &str, body: &Value, started: bool) -> Result<(), String> {
        let needs: &[&str] = match (method, path) {
            ("PUT", "/machine-config") => &["vcpu_count", "mem_size_mib"],
            ("PUT", "/boot-source") => &["kernel_image_path"],
            ("PUT", "/network-interfaces/eth0") => &["iface_id", "host_dev_name"],
            ("PUT", "/vsock") => &["guest_cid", "uds_path"],
            ("PUT", "/balloon") => &["amount_mib", "deflate_on_oom"],
            ("PUT", "/actions") => &["action_type"],
            ("PATCH", "/vm") => &["state"],
            ("PUT", "/snapshot/create") => &["snapshot_path", "mem_file_path"],
            ("PUT", "/snapshot/load") => &["snapshot_path", "mem_backend"],
            _ => return Err(format!("Invalid request method and/or path: {method} {path}.")),
        };
        let late = started && !path.starts_with("/vm") && !path.starts_with("/snapshot/create");
        match needs.iter().find(|need| body.get(**need).is_none()) {
            Some(need) => Err(format!("missing field `{need}`")),
            None if late => {
                Err("The requested operation is not supported after starting the microVM.".to_owned())
            }
            None => Ok(()),
        }
    }

    /// A stand-in that speaks as Firecracker does; gives what it was asked.
    fn stand_in(socket: UnixStream) -> Vec<String> {
        let (mut asked, mut started) = (Vec::new(), false);
        let mut reader = BufReader::new(socket.try_clone().unwrap());
        let mut writer = socket;
        loop {
            let mut first = String::new();
            if reader.read_line(&mut first).unwrap() == 0 {
                return asked;
            }
            let mut length = 0;
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
            let words: Vec<&str> = first.split(' ').collect();
            let body = serde_json::from_slice(&body).unwrap();
            asked.push(format!("{} {}", words[0], words[1]));
            let answer = match judge(words[0], words[1], &body, started) {
                Ok(()) => {
                    "HTTP/1.1 204 \r\nServer: Firecracker API\r\nConnection: keep-alive\r\n\r\n".to_owned()
                }
                Err(why) => {
                    let body = json!({ "fault_message": why }).to_string();
                    format!(
                        "HTTP/1.1 400 \r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
                        body.len()
                    )
                }
            };
            started |= words[1] == "/actions" || words[1] == "/snapshot/load";
            writer.write_all(answer.as_bytes()).unwrap();
        }
    }

    fn machine() -> Machine {
        Machine {
            memory: 256 << 20,
            processors: 2,
            boot: ("/kernel".into(), "/initramfs".into()),
            tap: "tap0".into(),
            vsock: "/ports".into(),
        }
    }

    fn spoken(talk: impl FnOnce(&mut Api)) -> Vec<String> {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let server = thread::spawn(move || stand_in(theirs));
        let mut api = Api::new(ours, Duration::from_secs(5)).unwrap();
        talk(&mut api);
        drop(api);
        server.join().unwrap()
    }

    #[test]
    fn a_machine_is_described_before_it_is_started_and_is_saved_when_it_stands_still() {
        let asked = spoken(|api| {
            api.boot(&machine()).unwrap();
            api.pause().unwrap();
            api.save("/state", "/memory").unwrap();
            api.resume().unwrap();
        });
        let (described, rest) = asked.split_at(asked.len() - 4);
        let mut described = described.to_vec();
        described.sort();
        let expected = [
            "PUT /balloon",
            "PUT /boot-source",
            "PUT /machine-config",
            "PUT /network-interfaces/eth0",
            "PUT /vsock",
        ];
        assert_eq!(described, expected);
        assert_eq!(rest, ["PUT /actions", "PATCH /vm", "PUT /snapshot/create", "PATCH /vm"]);
    }

    #[test]
    fn a_saved_machine_goes_on_in_a_fresh_one() {
        assert_eq!(spoken(|api| api.restore("/state", "/memory").unwrap()), ["PUT /snapshot/load"]);
    }

    #[test]
    fn what_is_refused_is_told_in_its_words() {
        spoken(|api| {
            api.boot(&machine()).unwrap();
            let refused = api.boot(&machine()).unwrap_err().to_string();
            assert!(refused.contains("not supported after starting"), "{refused}");
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
