//! What a keeper tells whoever watches.

use crate::{DEADLINE, World};
use serde_json::{Value, json};
use std::{
    fs::File,
    io::{Read as _, Write as _},
    os::{fd::AsRawFd as _, unix::net::UnixStream},
};

/// What a keeper tells whoever watches, as its control socket has it: a length, a kind, and one object.
pub struct Events(UnixStream);

impl Events {
    /// Of this sandbox, from now on.
    #[must_use]
    pub fn of(world: &World, sandbox: &str) -> Events {
        // The path itself may be too long for a socket.
        let folder =
            File::open(world.home().join("sandboxes").join(sandbox)).expect("the folder of the sandbox");
        let socket = format!("/proc/self/fd/{}/control.sock", folder.as_raw_fd());
        let mut stream = UnixStream::connect(socket).expect("a keeper that listens");
        let body = json!({ "ask": "watch" }).to_string();
        let length = u32::try_from(body.len()).expect("a short question");
        stream
            .write_all(&[&length.to_be_bytes()[..], &[0; 4], body.as_bytes()].concat())
            .expect("a question");
        stream.set_read_timeout(Some(DEADLINE)).expect("a deadline");
        let mut events = Events(stream);
        events.until(|reply| reply["reply"] == "done");
        events
    }

    /// The next that is meant; others are passed over.
    pub fn until(&mut self, is_meant: impl Fn(&Value) -> bool) -> Value {
        loop {
            let mut head = [0; 8];
            self.0.read_exact(&mut head).expect("another event");
            let [a, b, c, d, ..] = head;
            let mut body = vec![0; u32::from_be_bytes([a, b, c, d]).try_into().expect("a length")];
            self.0.read_exact(&mut body).expect("a whole event");
            let event: Value = serde_json::from_slice(&body).expect("one object");
            if is_meant(&event) {
                return event;
            }
        }
    }
}
