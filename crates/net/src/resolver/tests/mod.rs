mod answers;
mod sockets;

use super::*;
use crate::names::Bounds;
use crate::tests::setup;
use airlock_gate::policy;
use airlock_protocol::{
    event::Event,
    ledger::{Crossing as Recorded, Entry},
    policy::Policy,
};
use hickory_proto::op::{Edns, Message, MessageType, OpCode, Query as Wire, ResponseCode};
use hickory_proto::rr::{Name, RData, RecordType};
use std::cell::Cell;
use std::time::Duration;
use tokio::sync::broadcast;

/// A sandbox's name server with everything behind it.
struct World {
    resolver: Rc<Resolver>,
    gate: Rc<Gate>,
    opened: Rc<Opened>,
    events: broadcast::Receiver<Event>,
    _folder: tempfile::TempDir,
}

/// An opener that remembers.
#[derive(Default)]
struct Opened {
    calls: RefCell<Vec<(String, Ipv4Addr, Vec<Ports>)>>,
    is_broken: Cell<bool>,
}

impl Opener for Opened {
    fn open(&self, name: &HostName, address: Ipv4Addr, ports: &[Ports]) -> io::Result<()> {
        if self.is_broken.get() {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.calls.borrow_mut().push((name.to_string(), address, ports.to_vec()));
        Ok(())
    }
}

fn rules(text: &str) -> Policy {
    policy::parse_toml("airlock.toml", text).unwrap().policy
}

fn world(text: &str) -> World {
    world_with(rules(text), Bounds::default())
}

fn world_with(policy: Policy, bounds: Bounds) -> World {
    let folder = tempfile::tempdir().unwrap();
    let gate = Rc::new(Gate::new(setup(folder.path(), policy)).unwrap());
    let opened = Rc::new(Opened::default());
    let itself =
        Itself { hostname: "Web".to_owned(), v4: "198.18.0.1".parse().unwrap(), v6: "fd61::1".parse().ok() };
    let names = Rc::new(RefCell::new(Names::new(bounds)));
    let opener: Rc<dyn Opener> = Rc::<Opened>::clone(&opened);
    let resolver = Rc::new(Resolver::new(Rc::clone(&gate), names, opener, itself));
    let events = gate.events();
    World { resolver, gate, opened, events, _folder: folder }
}

impl World {
    async fn ask(&self, name: &str, kind: RecordType) -> Message {
        self.ask_bytes(&question(name, kind)).await
    }

    async fn ask_bytes(&self, asked: &[u8]) -> Message {
        let reply = self.resolver.answer(asked, Transport::Udp).await.unwrap();
        Message::from_vec(&reply).unwrap()
    }

    /// The address answered for a name, or the code.
    async fn address(&self, name: &str) -> Result<IpAddr, ResponseCode> {
        let reply = self.ask(name, RecordType::A).await;
        match reply.answers.first().map(|record| &record.data) {
            Some(RData::A(address)) => Ok(address.0.into()),
            _ => Err(reply.metadata.response_code),
        }
    }

    /// What the ledger got since the last look: `name kind verdict reason times`.
    fn recorded(&mut self) -> Vec<String> {
        let mut lines = Vec::new();
        while let Ok(event) = self.events.try_recv() {
            let Event::Crossing(record) = event else { continue };
            let Entry::Decision {
                crossing: Recorded::Resolve { host, question },
                verdict,
                reason,
                times,
                ..
            } = record.entry
            else {
                continue;
            };
            let reason = reason.unwrap_or_default();
            let times = times.map(|times| format!(" x{times}")).unwrap_or_default();
            lines.push(format!("{host} {question} {verdict:?} {reason}{times}"));
        }
        lines
    }
}

fn question(name: &str, kind: RecordType) -> Vec<u8> {
    let mut message = Message::new(7, MessageType::Query, OpCode::Query);
    message.metadata.recursion_desired = true;
    let labels = name.split('.').filter(|label| !label.is_empty()).map(str::as_bytes);
    message.add_query(Wire::query(Name::from_labels(labels).unwrap(), kind));
    message.set_edns(Edns::new());
    message.to_vec().unwrap()
}

fn text_of(reply: &Message) -> String {
    let option = reply.edns.as_ref().unwrap().option(15.into()).unwrap();
    let hickory_proto::rr::rdata::opt::EdnsOption::Unknown(15, bytes) = option else { panic!("{option:?}") };
    String::from_utf8(bytes[2..].to_vec()).unwrap()
}
