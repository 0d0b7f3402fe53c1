//! A program's connection to a server of our own, opened on its way.

use crate::tests::setup;
use crate::{
    egress::Egress,
    flows::{Flows, What},
    http::{Carrier, filter::Filter},
    relay::Pool,
    secrets::Guard,
    tls::{Authority, Speaks, Upstream, Version},
};
use airlock_gate::{Crossing, Gate, Setup, host::Target, policy::parse_toml, secrets::Secrets};
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body_util::{BodyExt as _, Full, combinators::UnsyncBoxBody};
use hyper::{
    body::{Body, Bytes, Frame, Incoming},
    client::conn::{http1, http2},
    service::service_fn,
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use std::{
    cell::RefCell,
    convert::Infallible,
    rc::Rc,
    sync::{Arc, Mutex, atomic::AtomicU64},
    time::Duration,
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    task::{JoinSet, LocalSet},
};
use tokio_rustls::{
    TlsAcceptor, TlsConnector,
    client::TlsStream,
    rustls::{
        ClientConfig, DEFAULT_VERSIONS, RootCertStore, SupportedProtocolVersion,
        pki_types::{CertificateDer, ServerName, pem::PemObject as _},
    },
};

pub(super) type Sent = UnsyncBoxBody<Bytes, Infallible>;

/// Runs a test that starts local tasks.
pub(super) fn run<T>(test: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    LocalSet::new().block_on(&runtime, test)
}

/// What servers have seen.
pub(super) type Log = Arc<Mutex<Vec<String>>>;

/// The wall of one sandbox, and servers outside, which all are `a.test`.
pub(super) struct World {
    pub(super) carrier: Rc<Carrier>,
    pub(super) folder: tempfile::TempDir,
    pub(super) port: u16,
    pub(super) log: Log,
    sent: Arc<AtomicU64>,
    tasks: RefCell<JoinSet<()>>,
}

/// How a server is set up.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Server {
    Http1,
    Http2,
    /// Without TLS.
    Plain,
    /// The same, and says what [`super::answered`] has it say.
    Raw,
    /// With a certificate that nobody trusts.
    Untrusted,
    /// Says something before each answer, see [`hint`].
    Hinting,
    /// The same in HTTP/2, see [`hint_streams`].
    Hinting2,
    /// With TLS 1.2 only.
    Tls12,
}

fn roots(authority: &Authority) -> RootCertStore {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(authority.pem().as_bytes()).unwrap()).unwrap();
    roots
}

/// Rules that allow the server.
pub(super) fn allowing(port: u16) -> String {
    format!("[[rule]]\nallow = 'a.test'\nports = [{port}]")
}

impl World {
    pub(super) async fn new(server: Server) -> World {
        World::with(server, Vec::new()).await
    }

    pub(super) async fn with(server: Server, filters: Vec<Rc<dyn Filter>>) -> World {
        World::guarding(server, filters, Secrets::default()).await
    }

    /// With secrets, which are looked after behind the other filters.
    pub(super) async fn guarding(server: Server, filters: Vec<Rc<dyn Filter>>, secrets: Secrets) -> World {
        World::guarding_at(server, filters, |_| secrets).await
    }

    /// With secrets that know the server's port.
    pub(super) async fn guarding_at(
        server: Server,
        mut filters: Vec<Rc<dyn Filter>>,
        secrets: impl FnOnce(u16) -> Secrets,
    ) -> World {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let folder = tempfile::tempdir().unwrap();
        let policy = parse_toml("airlock.toml", &allowing(port)).unwrap().policy;
        let gate =
            Gate::new(Setup { secrets: secrets(port), can_open: true, ..setup(folder.path(), policy) });
        let theirs = Authority::new().unwrap();
        let mut egress = Egress::to_loopback(&["a.test"]);
        let other = Authority::new().unwrap();
        let trusted = if server == Server::Untrusted { &other } else { &theirs };
        egress.trust = Upstream::trusting(roots(trusted));
        let (gate, egress) = (Rc::new(gate.unwrap()), Rc::new(egress));
        if !gate.secrets().is_empty() {
            filters.push(Rc::new(Guard::new(Rc::clone(&gate), Rc::clone(&egress))));
        }
        let carrier = Rc::new(Carrier {
            gate,
            egress,
            flows: Rc::new(Flows::new(None)),
            pool: Rc::new(Pool::new()),
            authority: Some(Rc::new(Authority::new().unwrap())),
            ssh: None,
            filters,
            spares: Rc::default(),
        });
        let (log, sent) = (Log::default(), Arc::new(AtomicU64::new(0)));
        let mut tasks = JoinSet::new();
        tasks.spawn_local(serve(listener, server, theirs, (Arc::clone(&log), Arc::clone(&sent))));
        World { carrier, folder, port, log, sent, tasks: RefCell::new(tasks) }
    }

    /// A program's socket to the server.
    pub(super) async fn connect(&self) -> TcpStream {
        let target: Target = "a.test".parse().unwrap();
        let crossing = Crossing::Connect { target: target.clone(), port: self.port };
        let permit = self.carrier.gate.ask(crossing).await.unwrap();
        let ticket = self.carrier.flows.enter().unwrap();
        ticket.decided(What::Out { target, port: self.port, asked: false });
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let program = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (near, _) = listener.accept().await.unwrap();
        let carrier = Rc::clone(&self.carrier);
        self.tasks
            .borrow_mut()
            .spawn_local(async move { crate::http::carry(&carrier, near, Vec::new(), permit, ticket).await });
        program
    }

    /// A program's TLS with the server, offering these protocols.
    pub(super) async fn tls(&self, offers: &[&[u8]]) -> TlsStream<TcpStream> {
        self.tls_of(DEFAULT_VERSIONS, offers).await
    }

    /// As [`World::tls`], of a program that speaks these versions.
    pub(super) async fn tls_of(
        &self,
        versions: &[&'static SupportedProtocolVersion],
        offers: &[&[u8]],
    ) -> TlsStream<TcpStream> {
        let socket = self.connect().await;
        let roots = roots(self.carrier.authority.as_ref().unwrap());
        let builder = ClientConfig::builder_with_protocol_versions(versions);
        let mut config = builder.with_root_certificates(roots).with_no_client_auth();
        config.alpn_protocols = offers.iter().map(|offer| offer.to_vec()).collect();
        let name = ServerName::try_from("a.test").unwrap();
        TlsConnector::from(Arc::new(config)).connect(name, socket).await.unwrap()
    }

    pub(super) async fn http1(&self) -> http1::SendRequest<Sent> {
        let tls = self.tls(&[b"http/1.1"]).await;
        let (sender, connection) = http1::handshake(TokioIo::new(tls)).await.unwrap();
        self.tasks.borrow_mut().spawn_local(async move {
            let _ = connection.with_upgrades().await;
        });
        sender
    }

    pub(super) async fn http2(&self) -> http2::SendRequest<Sent> {
        let tls = self.tls(&[b"h2"]).await;
        assert_eq!(tls.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
        let (sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(tls)).await.unwrap();
        self.tasks.borrow_mut().spawn_local(async move {
            let _ = connection.await;
        });
        sender
    }

    /// What the servers have seen.
    pub(super) fn seen(&self) -> Vec<String> {
        self.log.lock().unwrap().clone()
    }

    /// The lines of the ledger that hold all of `words`.
    pub(super) fn recorded(&self, words: &[&str]) -> usize {
        self.carrier.gate.pay().unwrap();
        let text = std::fs::read_to_string(self.folder.path().join("ledger.jsonl")).unwrap_or_default();
        text.lines().filter(|line| words.iter().all(|word| line.contains(word))).count()
    }

    /// Lets everything that is under way go on until `is_so`.
    pub(super) async fn until(&self, is_so: impl Fn(&World) -> bool) {
        let waits = async {
            while !is_so(self) {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), waits).await.expect("it never came to be");
    }

    /// Bytes that the server has sent to where its requests came from.
    pub(super) fn received(&self) -> u64 {
        self.sent.load(std::sync::atomic::Ordering::Relaxed)
    }

    pub(super) fn other_rules(&self, rules: &str) {
        self.carrier.gate.set_policy(parse_toml("airlock.toml", rules).unwrap().policy, "set").unwrap();
        self.carrier.rules_changed();
    }
}

pub(super) fn text(text: &str) -> Sent {
    Full::new(Bytes::from(text.to_owned())).boxed_unsync()
}

/// A body without a known length, and with a trailer.
pub(super) fn with_trailer(text: &str) -> Sent {
    let frames = [text.to_owned()].map(|text| Ok(Frame::data(Bytes::from(text)))).into_iter();
    let mut trailers = HeaderMap::new();
    trailers.insert("x-end", HeaderValue::from_static("yes"));
    let frames: Vec<_> = frames.chain([Ok(Frame::trailers(trailers))]).collect();
    UnsyncBoxBody::new(Framed(frames.into()))
}

/// Frames one after the other.
struct Framed(std::collections::VecDeque<Result<Frame<Bytes>, Infallible>>);

impl Body for Framed {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        std::task::Poll::Ready(self.0.pop_front())
    }
}

pub(super) async fn read(response: Response<Incoming>) -> (u16, String, Option<HeaderMap>) {
    let status = response.status().as_u16();
    let collected = response.into_body().collect().await.unwrap();
    let trailers = collected.trailers().cloned();
    (status, String::from_utf8(collected.to_bytes().to_vec()).unwrap(), trailers)
}

async fn serve(
    listener: TcpListener,
    server: Server,
    authority: Authority,
    (log, sent): (Log, Arc<AtomicU64>),
) {
    let mut tasks = JoinSet::new();
    loop {
        let (socket, _) = listener.accept().await.unwrap();
        log.lock().unwrap().push("connected".to_owned());
        let (log, sent) = (Arc::clone(&log), Arc::clone(&sent));
        let target = "a.test".parse().unwrap();
        let hinted = Arc::clone(&log);
        let service = service_fn(move |request| answer(request, Arc::clone(&log), Arc::clone(&sent)));
        if server == Server::Raw {
            tasks.spawn_local(super::answered::answer_raw(socket));
            continue;
        }
        if server == Server::Plain {
            tasks.spawn_local(async move {
                let builder = hyper::server::conn::http1::Builder::new();
                let _ = builder.serve_connection(TokioIo::new(socket), service).with_upgrades().await;
            });
            continue;
        }
        let speaks = match server {
            Server::Http2 | Server::Hinting2 => Speaks::Http2,
            _ => Speaks::Http1,
        };
        let version = if server == Server::Tls12 { Version::Tls12 } else { Version::Newest };
        let acceptor = TlsAcceptor::from(authority.server(&target, speaks, version).unwrap());
        tasks.spawn_local(async move {
            let Ok(tls) = acceptor.accept(socket).await else { return };
            match server {
                Server::Hinting => return hint(tls, &hinted).await,
                Server::Hinting2 => return hint_streams(tls).await,
                _ => {}
            }
            if tls.get_ref().1.alpn_protocol() == Some(b"h2") {
                let builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                let _ = builder.serve_connection(TokioIo::new(tls), service).await;
            } else {
                let builder = hyper::server::conn::http1::Builder::new();
                let _ = builder.serve_connection(TokioIo::new(tls), service).with_upgrades().await;
            }
        });
    }
}

/// Answers every request with a hint that holds its header `x-key`, one more hint, and `done`; for `/slow` it waits for `go` in
/// the log before the answer.
async fn hint(mut tls: tokio_rustls::server::TlsStream<TcpStream>, log: &Log) {
    let (mut came, mut piece) = (String::new(), [0; 4096]);
    while let Ok(read @ 1..) = tls.read(&mut piece).await {
        came.push_str(&String::from_utf8_lossy(&piece[..read]));
        while let Some((head, rest)) = came.split_once("\r\n\r\n").map(|(a, b)| (a.to_owned(), b.to_owned()))
        {
            came = rest;
            let key = head.lines().find_map(|line| line.strip_prefix("x-key: ")).unwrap_or("none");
            let hints = format!(
                "HTTP/1.1 103 Early Hints\r\nlink: </a.css>; rel=preload\r\nx-key: {key}\r\ncontent-length: 3\r\n\r\n\
                 HTTP/1.1 102 Processing\r\nconnection: x-hop\r\nx-hop: 1\r\n\r\n"
            );
            tls.write_all(hints.as_bytes()).await.unwrap();
            tls.flush().await.unwrap();
            while head.contains(" /slow ") && !log.lock().unwrap().iter().any(|line| line == "go") {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            tls.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\ndone").await.unwrap();
            tls.flush().await.unwrap();
        }
    }
}

/// As [`hint`]; nothing is waited for.
async fn hint_streams(tls: tokio_rustls::server::TlsStream<TcpStream>) {
    let mut connection = h2::server::handshake(tls).await.unwrap();
    while let Some(Ok((request, mut respond))) = connection.accept().await {
        let key = request.headers().get("x-key").cloned().unwrap_or(HeaderValue::from_static("none"));
        let hint =
            Response::builder().status(103).header("link", "</a.css>; rel=preload").header("x-key", key);
        respond.send_informational(hint.body(()).unwrap()).unwrap();
        let mut to = respond.send_response(Response::new(()), false).unwrap();
        to.send_data(Bytes::from_static(b"done"), true).unwrap();
    }
}

/// Whether this is the first request for what breaks once.
fn breaks(path: &str, log: &Log) -> bool {
    let asked = || log.lock().unwrap().iter().filter(|line| line.contains("/break-once")).count();
    path == "/break-once" && asked() == 1
}

/// The server breaks off.
#[derive(Debug, thiserror::Error)]
#[error("broken off")]
struct Broken;

/// The headers of a request, sorted.
fn heads(request: &Request<Incoming>) -> String {
    let line = |(name, value): (&http::HeaderName, &HeaderValue)| {
        format!("{name}={}", value.to_str().unwrap_or("?"))
    };
    let mut lines: Vec<String> = request.headers().iter().map(line).collect();
    lines.sort();
    lines.join("\n")
}

/// What the server does, by path.
async fn answer(
    mut request: Request<Incoming>,
    log: Log,
    sent: Arc<AtomicU64>,
) -> Result<Response<Sent>, Broken> {
    let line = format!("{} {} {:?}", request.method(), request.uri().path(), request.version());
    log.lock().unwrap().push(line);
    if breaks(request.uri().path(), &log) {
        return Err(Broken);
    }
    if let Some(key) = request.headers().get("x-key") {
        log.lock().unwrap().push(format!("key {}", key.to_str().unwrap()));
    }
    let response = match request.uri().path() {
        "/heads" => Response::new(text(&heads(&request))),
        "/trailer" => {
            let mut response = Response::new(with_trailer("body"));
            response.headers_mut().insert("trailer", HeaderValue::from_static("x-end"));
            response
        }
        "/token" | "/second" | "/never" => tokens(request, &log).await,
        "/endless" => Response::new(UnsyncBoxBody::new(Endless(sent))),
        "/close" => {
            let mut response = Response::new(text("bye"));
            if request.version() != http::Version::HTTP_2 {
                response.headers_mut().insert("connection", HeaderValue::from_static("close"));
            }
            response
        }
        "/socket" => {
            let upgrade = hyper::upgrade::on(&mut request);
            std::thread::spawn(move || {
                run(async move {
                    let mut upgraded = TokioIo::new(upgrade.await.unwrap());
                    let mut piece = [0; 5];
                    upgraded.read_exact(&mut piece).await.unwrap();
                    upgraded.write_all(&piece).await.unwrap();
                    let _ = upgraded.shutdown().await;
                });
            });
            let mut response = Response::new(text(""));
            *response.status_mut() = http::StatusCode::SWITCHING_PROTOCOLS;
            response.headers_mut().insert("upgrade", HeaderValue::from_static("websocket"));
            response.headers_mut().insert("connection", HeaderValue::from_static("upgrade"));
            response
        }
        "/empty" => Response::new(text("")),
        _ => {
            let collected = request.into_body().collect().await;
            let Ok(collected) = collected else { return Ok(Response::new(text("cut"))) };
            let trailers = collected.trailers().is_some();
            let body = String::from_utf8_lossy(&collected.to_bytes()).into_owned();
            log.lock().unwrap().push(format!("body {} trailers {trailers}", body.len()));
            Response::new(text(&body))
        }
    };
    Ok(response)
}

/// `/token` gives one, `/second` takes the second that was given and says what was sent, `/never` takes none.
async fn tokens(request: Request<Incoming>, log: &Log) -> Response<Sent> {
    if request.uri().path() == "/token" {
        let number = log.lock().unwrap().iter().filter(|line| line.contains("/token")).count();
        return Response::new(text(&format!("{{\"access_token\": \"access-token-{number}\"}}")));
    }
    let is_right =
        request.headers().get("authorization").is_some_and(|value| value == "Bearer access-token-2");
    let is_taken = is_right && request.uri().path() == "/second";
    let body = request.into_body().collect().await.unwrap().to_bytes();
    log.lock().unwrap().push(format!("second {is_taken} body {}", body.len()));
    let mut response = Response::new(text(&String::from_utf8_lossy(&body)));
    if !is_taken {
        *response.status_mut() = http::StatusCode::UNAUTHORIZED;
    }
    response
}

/// Frames without end.
struct Endless(Arc<AtomicU64>);

impl Body for Endless {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.fetch_add(16384, std::sync::atomic::Ordering::Relaxed);
        std::task::Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(&[b'x'; 16384])))))
    }
}
