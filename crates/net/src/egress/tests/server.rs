//! A small name server on this host's loopback.

use hickory_proto::op::{Message, ResponseCode};
use hickory_proto::rr::{RData, Record, RecordType};
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::task::JoinSet;

/// What it says about a name.
#[derive(Clone)]
pub(super) enum Says {
    /// These addresses, with this TTL.
    Addresses(Vec<IpAddr>, u32),
    /// One list after the other, the last one for ever.
    Turns(Vec<Vec<IpAddr>>),
    /// Only an alias of this name.
    Alias(&'static str),
    /// Too much for UDP; then these addresses.
    Truncated(Vec<IpAddr>),
    /// A code.
    Code(ResponseCode),
    /// Nothing.
    Silence,
}

pub(super) struct NameServer {
    pub(super) address: SocketAddr,
    pub(super) asked: Arc<Mutex<Vec<String>>>,
    _tasks: JoinSet<()>,
}

pub(super) fn addresses(texts: &[&str]) -> Says {
    Says::Addresses(parsed(texts), 60)
}

pub(super) fn parsed(texts: &[&str]) -> Vec<IpAddr> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

impl NameServer {
    pub(super) async fn start(names: &[(&str, Says)]) -> NameServer {
        let tcp = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = tcp.local_addr().unwrap();
        let udp = UdpSocket::bind(address).await.unwrap();
        let names: HashMap<String, Says> =
            names.iter().map(|(name, says)| (format!("{name}."), says.clone())).collect();
        let zone = Arc::new(Zone { names, asked: Arc::default(), turns: Mutex::default() });
        let asked = Arc::clone(&zone.asked);
        let mut tasks = JoinSet::new();
        tasks.spawn(serve_udp(udp, Arc::clone(&zone)));
        tasks.spawn(serve_tcp(tcp, zone));
        NameServer { address, asked, _tasks: tasks }
    }

    /// How often it was asked for A of any name.
    pub(super) fn questions(&self, kind: &str) -> usize {
        self.asked.lock().unwrap().iter().filter(|asked| asked.ends_with(kind)).count()
    }
}

struct Zone {
    names: HashMap<String, Says>,
    asked: Arc<Mutex<Vec<String>>>,
    turns: Mutex<usize>,
}

impl Zone {
    fn answer(&self, bytes: &[u8], over_udp: bool) -> Option<Vec<u8>> {
        let query = Message::from_vec(bytes).unwrap();
        let question = query.queries[0].clone();
        let kind = question.query_type();
        let name = question.name().to_ascii();
        let way = if over_udp { "udp" } else { "tcp" };
        self.asked.lock().unwrap().push(format!("{way} {name} {kind}"));
        let mut reply = Message::response(query.metadata.id, query.metadata.op_code);
        reply.metadata.recursion_available = true;
        reply.add_query(question.clone());
        let mut add = |addresses: &[IpAddr], ttl| {
            for address in addresses {
                if address.is_ipv4() == (kind == RecordType::A) {
                    reply.add_answer(Record::from_rdata(question.name().clone(), ttl, RData::from(*address)));
                }
            }
        };
        match self.names.get(&name) {
            Some(Says::Addresses(addresses, ttl)) => add(addresses, *ttl),
            Some(Says::Turns(turns)) => {
                let mut turn = self.turns.lock().unwrap();
                add(&turns[(*turn).min(turns.len() - 1)], 0);
                *turn += usize::from(kind == RecordType::A);
            }
            Some(Says::Alias(to)) => {
                let to = hickory_proto::rr::Name::from_ascii(to).unwrap();
                let alias = hickory_proto::rr::rdata::CNAME(to);
                reply.add_answer(Record::from_rdata(question.name().clone(), 60, RData::CNAME(alias)));
            }
            Some(Says::Truncated(_)) if over_udp => reply.metadata.truncation = true,
            Some(Says::Truncated(addresses)) => add(addresses, 60),
            Some(Says::Code(code)) => reply.metadata.response_code = *code,
            Some(Says::Silence) => return None,
            None => reply.metadata.response_code = ResponseCode::NXDomain,
        }
        Some(reply.to_vec().unwrap())
    }
}

async fn serve_udp(socket: UdpSocket, zone: Arc<Zone>) {
    let mut buffer = [0; 4096];
    loop {
        let (length, from) = socket.recv_from(&mut buffer).await.unwrap();
        if let Some(reply) = zone.answer(&buffer[..length], true) {
            socket.send_to(&reply, from).await.unwrap();
        }
    }
}

async fn serve_tcp(listener: TcpListener, zone: Arc<Zone>) {
    let mut streams = JoinSet::new();
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        streams.spawn(serve_stream(stream, Arc::clone(&zone)));
    }
}

async fn serve_stream(mut stream: TcpStream, zone: Arc<Zone>) {
    while let Ok(length) = stream.read_u16().await {
        let mut bytes = vec![0; usize::from(length)];
        stream.read_exact(&mut bytes).await.unwrap();
        let reply = zone.answer(&bytes, false).unwrap();
        stream.write_u16(u16::try_from(reply.len()).unwrap()).await.unwrap();
        stream.write_all(&reply).await.unwrap();
    }
}
