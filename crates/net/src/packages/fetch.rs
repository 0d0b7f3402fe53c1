//! Asking registries over connections of the keeper's own: asked of the gate and recorded like those of the sandbox.

use super::{
    answers::gunzip,
    lookup::{Ask, Fetched, Lookup},
};
use crate::{
    egress::Egress,
    http::filter::Local,
    tls::{Stream, Wire},
};
use airlock_gate::{Crossing, Finished, Gate, Trace, request::Request as Judged};
use http::{Request, header};
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::{body::Bytes, client::conn::http1};
use hyper_util::rt::TokioIo;
use std::{rc::Rc, time::Instant};

/// Most bytes of an answer after decoding.
const MOST_DECODED: u64 = 128 << 20;

/// Asks registries for a sandbox.
pub(crate) struct Registries {
    /// Who decides, and records.
    pub(crate) gate: Rc<Gate>,
    /// How connections leave.
    pub(crate) egress: Rc<Egress>,
}

impl Lookup for Registries {
    fn ask<'a>(&'a self, ask: Ask) -> Local<'a, Option<Fetched>> {
        Box::pin(self.fetch(ask))
    }
}

impl Registries {
    async fn fetch(&self, ask: Ask) -> Option<Fetched> {
        let (target, port) = (ask.place.target.clone(), ask.place.port);
        let permit = self.gate.ask(Crossing::Connect { target, port }).await.ok()?;
        let pins = permit.pins().to_vec();
        let flow = Flow::new(&self.gate, permit.trace());
        let judged = self.gate.ask(Crossing::Request(Rc::new(judged(&ask)))).await.ok()?;
        let request = Flow::new(&self.gate, judged.trace());
        let dialled = self.egress.dial(permit).await.ok()?;
        let wire = Wire::new(dialled.stream);
        let stream = match ask.place.is_tls {
            false => Stream::Plain(wire),
            true => {
                let offers: [&[u8]; 1] = [b"http/1.1"];
                let (tls, _) =
                    self.egress.trust.connect(&ask.place.target, &pins, &offers, wire).await.ok()?;
                Stream::Far(Box::new(tls))
            }
        };
        let fetched = exchange(stream, &ask).await?;
        request.end(Some(&fetched));
        flow.end(None);
        Some(fetched)
    }
}

/// As rules look at it.
fn judged(ask: &Ask) -> Judged {
    let path = ask.path.replace("%2f", "/");
    Judged {
        target: ask.place.target.clone(),
        port: ask.place.port,
        is_tls: ask.place.is_tls,
        method: ask.method.to_string(),
        path,
        read_as: None,
        query: Vec::new(),
        headers: Vec::new(),
        websocket: false,
        git: None,
        is_ssh: false,
    }
}

async fn exchange(stream: Stream, ask: &Ask) -> Option<Fetched> {
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.ok()?;
    let authority = match (&ask.place.target, ask.place.port) {
        (target, 80 | 443) => target.to_string(),
        (target, port) => format!("{target}:{port}"),
    };
    let request = Request::builder()
        .method(ask.method.clone())
        .uri(&ask.path)
        .header(header::HOST, authority)
        .header(header::ACCEPT, ask.accept)
        .header(header::ACCEPT_ENCODING, "gzip")
        .header(header::USER_AGENT, "airlock")
        .body(Empty::<Bytes>::new())
        .ok()?;
    let answered = async {
        let (head, body) = sender.send_request(request).await.ok()?.into_parts();
        let body = Limited::new(body, ask.most).collect().await.ok()?.to_bytes();
        let is_zipped = head.headers.get(header::CONTENT_ENCODING).is_some_and(|coding| coding == "gzip");
        let body = match is_zipped && !body.is_empty() {
            true => gunzip(&body, MOST_DECODED).ok()?,
            false => body.to_vec(),
        };
        Some(Fetched { status: head.status.as_u16(), headers: head.headers, body })
    };
    let mut answered = std::pin::pin!(answered);
    tokio::select! {
        fetched = &mut answered => fetched,
        // What has come is still read.
        _ = connection => answered.await,
    }
}

/// A permitted flow, told when it ends.
struct Flow<'a> {
    gate: &'a Gate,
    trace: Trace,
    begun: Instant,
    status: &'static str,
    received: u64,
    code: Option<u16>,
}

impl<'a> Flow<'a> {
    fn new(gate: &'a Gate, trace: Trace) -> Flow<'a> {
        Flow { gate, trace, begun: Instant::now(), status: "unreachable", received: 0, code: None }
    }

    fn end(mut self, fetched: Option<&Fetched>) {
        self.status = "closed";
        self.received = fetched.and_then(|fetched| u64::try_from(fetched.body.len()).ok()).unwrap_or(0);
        self.code = fetched.map(|fetched| fetched.status);
    }
}

impl Drop for Flow<'_> {
    fn drop(&mut self) {
        self.gate.finish(&Finished {
            trace: &self.trace,
            address: None,
            sent: 0,
            received: self.received,
            lasted: self.begun.elapsed(),
            status: self.status,
            code: self.code,
        });
    }
}
