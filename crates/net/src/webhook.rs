//! Telling a webhook that somebody is asked.
//!
//! One POST for each question, its body the question as JSON. The header `airlock-signature` is
//! `t=<seconds since 1970>,v1=<hex>`, where the hex is HMAC-SHA-256 with the shared key over the seconds, a dot and the
//! body. An answer of 200 with `{"verdict": "approved" | "refused", "scope": "once" | "sandbox"}` settles the question, if it
//! has such a header too: over its seconds, a dot, the id of the question, a dot and the answer's body. So nobody answers
//! who merely took the port, and no answer counts for another question, or later. Any other success says that somebody will
//! answer later, by `airlock approve`.

use crate::{
    egress::{DialError, Egress},
    tls,
};
use airlock_protocol::approval::{Given, Pending, Scope};
use hmac::{Hmac, KeyInit as _, Mac as _};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::{Request, Uri, body::Bytes, header};
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use std::{io, path::Path, time::SystemTime};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
};
use tokio_rustls::{
    TlsConnector,
    rustls::{
        RootCertStore,
        pki_types::{CertificateDer, ServerName},
    },
};

/// Most bytes of an answer.
const MOST_ANSWER: usize = 16 * 1024;
/// Shortest key: shorter ones can be guessed.
const SHORTEST_KEY: usize = 16;
/// How far the clock of whoever answers may be from ours.
const OTHER_CLOCK: u64 = 300;
/// The header that signs, both ways.
const SIGNATURE: &str = "airlock-signature";

/// Where questions are told.
#[derive(Clone)]
pub struct Webhook {
    host: String,
    port: u16,
    path: String,
    authority: String,
    key: Vec<u8>,
    tls: Option<TlsConnector>,
}

/// Why a webhook cannot be used, or did not answer.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The address is not one.
    #[error("{url} is no address of a webhook: {why}")]
    Url {
        /// What was given.
        url: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// The key is too short.
    #[error("the webhook's key has {0} bytes; it needs at least {SHORTEST_KEY}")]
    Key(usize),
    /// The certificates that were named cannot be read.
    #[error(transparent)]
    ExtraCa(#[from] tls::BadCertificates),
    /// No certificate of this host can be trusted.
    #[error("no trusted certificates were found on this host")]
    Roots,
    /// It could not be reached.
    #[error("the webhook cannot be reached")]
    Reach(#[source] DialError),
    /// It is not who it should be.
    #[error("the webhook could not be spoken to in private")]
    Tls(#[source] io::Error),
    /// It does not speak HTTP.
    #[error("the webhook did not answer")]
    Http(#[source] hyper::Error),
    /// It refused.
    #[error("the webhook answered {0}")]
    Status(u16),
    /// Its answer could be anybody's.
    #[error("the webhook's answer does not count: {0}")]
    Unsigned(&'static str),
    /// Its answer is none.
    #[error("the webhook's answer cannot be read: {0}")]
    Answer(String),
}

/// What a webhook may answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settled {
    /// May it cross?
    pub verdict: Given,
    /// For how long; a webhook cannot write a person's files.
    pub scope: Scope,
}

/// The certificates of a file that `extra_ca` names; at least one.
pub fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, Error> {
    Ok(tls::certificates(path)?)
}

impl Error {
    /// What a person can do.
    pub fn fix(&self) -> String {
        let fix = match self {
            Error::Url { .. } => "correct webhook under [approvals] in config.toml: \"https://HOST/PATH\"",
            Error::Key(_) => "write a longer key into the file: head -c 32 /dev/urandom | base64",
            Error::ExtraCa(_) => "correct extra_ca under [network] in config.toml: a file in PEM",
            Error::Roots => "install the host's certificates, or name some by extra_ca under [network]",
            _ => "see whether the webhook is there",
        };
        fix.to_owned()
    }
}

impl Webhook {
    /// As [`Webhook::new`], trusting what this host trusts, and the certificates in `extra`.
    pub fn trusting_this_host(url: &str, key: Vec<u8>, extra: Option<&Path>) -> Result<Webhook, Error> {
        let roots = tls::trusted(extra)?;
        Webhook::new(url, key, roots)
    }

    /// `url` must be https, or http to this machine itself. `roots` are trusted besides nothing else.
    pub fn new(url: &str, key: Vec<u8>, roots: RootCertStore) -> Result<Webhook, Error> {
        let wrong = |why| Error::Url { url: url.to_owned(), why };
        let uri: Uri = url.trim().parse().map_err(|_| wrong("it cannot be parsed"))?;
        let host = uri.host().ok_or_else(|| wrong("it has no host"))?;
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        if key.len() < SHORTEST_KEY {
            return Err(Error::Key(key.len()));
        }
        let is_here =
            host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback());
        let (tls, standard) = match uri.scheme_str() {
            Some("https") => (Some(connector(roots)?), 443),
            Some("http") if is_here => (None, 80),
            Some("http") => return Err(wrong("http is for this machine only; use https")),
            _ => return Err(wrong("it must begin with https://")),
        };
        let path = uri.path_and_query().map_or("/", |path| path.as_str()).to_owned();
        let authority = uri.authority().map(ToString::to_string).unwrap_or_default();
        if authority.contains('@') {
            return Err(wrong("it holds a password; the key signs what is sent"));
        }
        Ok(Webhook { host, port: uri.port_u16().unwrap_or(standard), path, authority, key, tls })
    }

    /// Tells of a question. `None`: it will be answered later. Whoever waits for the answer sets the time.
    pub async fn deliver(&self, egress: &Egress, pending: &Pending) -> Result<Option<Settled>, Error> {
        let stream = egress.reach_errand(&self.host, self.port).await.map_err(Error::Reach)?;
        self.tell(stream, pending).await
    }

    async fn tell(&self, stream: TcpStream, pending: &Pending) -> Result<Option<Settled>, Error> {
        let body = serde_json::to_vec(pending).map_err(|err| Error::Answer(err.to_string()))?;
        let seconds = now();
        let signature = format!("t={seconds},v1={}", self.sign(seconds, &[&body]));
        let question = Question { id: &pending.id, body, signature };
        match &self.tls {
            None => self.exchange(stream, question).await,
            Some(tls) => {
                let name = ServerName::try_from(self.host.clone())
                    .map_err(|err| Error::Tls(io::Error::other(err)))?;
                let stream = tls.connect(name, stream).await.map_err(Error::Tls)?;
                self.exchange(stream, question).await
            }
        }
    }

    /// Over the seconds and the parts, with dots between.
    fn mac(&self, seconds: u64, parts: &[&[u8]]) -> Option<Hmac<sha2::Sha256>> {
        // A key of any length is a key of HMAC.
        let mut mac = Hmac::<sha2::Sha256>::new_from_slice(&self.key).ok()?;
        mac.update(seconds.to_string().as_bytes());
        for part in parts {
            mac.update(b".");
            mac.update(part);
        }
        Some(mac)
    }

    fn sign(&self, seconds: u64, parts: &[&[u8]]) -> String {
        let Some(mac) = self.mac(seconds, parts) else { return String::new() };
        data_encoding::HEXLOWER.encode(&mac.finalize().into_bytes())
    }

    /// Whether an answer comes from somebody who has the key, is for this question, and is of now.
    fn check(&self, signature: Option<&str>, id: &str, body: &[u8], now: u64) -> Result<(), &'static str> {
        let signature = signature.ok_or("it has no airlock-signature")?;
        let parts = signature.strip_prefix("t=").and_then(|rest| rest.split_once(",v1="));
        let (seconds, hex) = parts.ok_or("its signature is not of the form t=…,v1=…")?;
        let seconds: u64 = seconds.parse().map_err(|_| "its signature has no time")?;
        let code = unhex(hex).ok_or("its signature is not hexadecimal")?;
        let mac = self.mac(seconds, &[id.as_bytes(), body]).ok_or("there is no key")?;
        mac.verify_slice(&code).map_err(|_| "its signature is wrong")?;
        match seconds.abs_diff(now) <= OTHER_CLOCK {
            true => Ok(()),
            false => Err("its signature is too old, or one of the clocks is wrong"),
        }
    }

    async fn exchange(
        &self,
        stream: impl AsyncRead + AsyncWrite + Unpin + 'static,
        question: Question<'_>,
    ) -> Result<Option<Settled>, Error> {
        let request = Request::post(&self.path)
            .header(header::HOST, &self.authority)
            .header(header::CONTENT_TYPE, "application/json")
            .header(header::USER_AGENT, "airlock")
            .header(SIGNATURE, question.signature)
            .body(Full::new(Bytes::from(question.body)))
            .map_err(|err| Error::Answer(err.to_string()))?;
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(Error::Http)?;
        let exchanged = async {
            let response = sender.send_request(request).await.map_err(Error::Http)?;
            let status = response.status();
            if !status.is_success() {
                return Err(Error::Status(status.as_u16()));
            }
            let signature = response.headers().get(SIGNATURE).cloned();
            let body = Limited::new(response.into_body(), MOST_ANSWER).collect().await;
            let body = body.map_err(|err| Error::Answer(err.to_string()))?.to_bytes();
            let Some(settled) = read_answer(status.as_u16(), &body)? else { return Ok(None) };
            let signature = signature.as_ref().and_then(|value| value.to_str().ok());
            self.check(signature, question.id, &body, now()).map_err(Error::Unsigned)?;
            Ok(Some(settled))
        };
        tokio::pin!(exchanged);
        tokio::select! {
            biased;
            answer = &mut exchanged => answer,
            ended = connection => match ended {
                Ok(()) => exchanged.await,
                Err(err) => Err(Error::Http(err)),
            },
        }
    }
}

/// What is sent.
struct Question<'a> {
    id: &'a str,
    body: Vec<u8>,
    signature: String,
}

fn now() -> u64 {
    SystemTime::UNIX_EPOCH.elapsed().map_or(0, |elapsed| elapsed.as_secs())
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let pairs = text.as_bytes().chunks(2);
    pairs.map(|pair| Some(digit(*pair.first()?)? << 4 | digit(*pair.get(1)?)?)).collect()
}

fn connector(roots: RootCertStore) -> Result<TlsConnector, Error> {
    if roots.is_empty() {
        return Err(Error::Roots);
    }
    Ok(tls::connector(roots))
}

fn read_answer(status: u16, body: &[u8]) -> Result<Option<Settled>, Error> {
    if status != 200 || body.trim_ascii().is_empty() {
        return Ok(None);
    }
    let settled: Settled = serde_json::from_slice(body).map_err(|err| Error::Answer(err.to_string()))?;
    match settled.scope {
        Scope::Always => Err(Error::Answer("a webhook cannot answer for always".to_owned())),
        Scope::Once | Scope::Sandbox => Ok(Some(settled)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    fn pending() -> Pending {
        Pending {
            id: "abc-1".into(),
            sandbox: "calm-otter".into(),
            since: "2026-01-01T00:00:00Z".into(),
            until: "2026-01-01T00:01:00Z".into(),
            kind: "connect".into(),
            host: "api.example.com".into(),
            port: 443,
            rule: "ask api.example.com".into(),
            ..Pending::default()
        }
    }

    fn hook() -> Webhook {
        let roots = RootCertStore::empty();
        Webhook::new("http://127.0.0.1:1/hook?x=1", b"0123456789abcdef".to_vec(), roots).unwrap()
    }

    /// Answers one request with these bytes; gives back what was asked.
    async fn asked(answer: &[u8]) -> (Result<Option<Settled>, Error>, String) {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = Vec::new();
            while !request.ends_with(b"}") {
                assert_ne!(stream.read_buf(&mut request).await.unwrap(), 0);
            }
            stream.write_all(answer).await.unwrap();
            String::from_utf8(request).unwrap()
        };
        let hook = hook();
        let pending = pending();
        let client = async { hook.tell(TcpStream::connect(address).await.unwrap(), &pending).await };
        tokio::join!(client, server)
    }

    #[tokio::test]
    async fn the_question_is_signed_with_the_key() {
        let (answer, request) = asked(b"HTTP/1.1 204 No Content\r\n\r\n").await;

        assert_eq!(answer.unwrap(), None);
        assert!(request.starts_with("POST /hook?x=1 HTTP/1.1\r\n"), "{request}");
        let (head, body) = request.split_once("\r\n\r\n").unwrap();
        let signature = head.lines().find_map(|line| line.strip_prefix("airlock-signature: ")).unwrap();
        let (seconds, hex) = signature.strip_prefix("t=").unwrap().split_once(",v1=").unwrap();
        assert_eq!(hook().sign(seconds.parse().unwrap(), &[body.as_bytes()]), hex);
        assert_eq!(serde_json::from_str::<Pending>(body).unwrap(), pending());
    }

    /// An answer that is signed for the question `id` at `seconds`.
    fn signed(body: &str, id: &str, seconds: u64) -> Vec<u8> {
        let code = hook().sign(seconds, &[id.as_bytes(), body.as_bytes()]);
        let length = body.len();
        format!(
            "HTTP/1.1 200 OK\r\nairlock-signature: t={seconds},v1={code}\r\ncontent-length: {length}\r\n\r\n{body}"
        )
        .into_bytes()
    }

    const APPROVED: &str = r#"{"verdict":"approved","scope":"sandbox"}"#;

    #[tokio::test]
    async fn a_signed_answer_settles_the_question() {
        let settled = asked(&signed(APPROVED, "abc-1", now())).await.0.unwrap();
        assert_eq!(settled, Some(Settled { verdict: Given::Approved, scope: Scope::Sandbox }));
    }

    #[tokio::test]
    async fn an_answer_of_somebody_without_the_key_does_not_count() {
        let length = APPROVED.len();
        let plain = format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n{APPROVED}");
        let forged = String::from_utf8(signed(APPROVED, "abc-1", now())).unwrap();
        let forged =
            forged.replace("approved", "refused").replace(&length.to_string(), &(length - 1).to_string());
        let answers = [
            plain.into_bytes(),
            forged.into_bytes(),
            signed(APPROVED, "abc-2", now()),
            signed(APPROVED, "abc-1", now() - OTHER_CLOCK - 60),
            signed(APPROVED, "abc-1", now() + OTHER_CLOCK + 60),
        ];
        for answer in answers {
            let found = asked(&answer).await.0;
            assert!(
                matches!(found, Err(Error::Unsigned(_))),
                "{found:?} to {}",
                String::from_utf8_lossy(&answer)
            );
        }
    }

    #[test]
    fn a_signature_of_another_form_does_not_count() {
        for text in ["", "t=1", "t=x,v1=00", "t=1,v1=0", "t=1,v1=zz", "t=1,v1=", "t=1,v1=\u{e9}"] {
            assert!(hook().check(Some(text), "abc-1", b"{}", 1).is_err(), "{text}");
        }
        assert!(hook().check(None, "abc-1", b"{}", 1).is_err());
    }

    #[tokio::test]
    async fn the_question_sent_back_with_its_signature_is_no_answer() {
        let body = serde_json::to_vec(&pending()).unwrap();
        let code = hook().sign(7, &[&body]);
        assert!(hook().check(Some(&format!("t=7,v1={code}")), "abc-1", &body, 7).is_err());
    }

    #[tokio::test]
    async fn anything_else_settles_nothing() {
        let always = signed(r#"{"verdict":"approved","scope":"always"}"#, "abc-1", now());
        assert!(asked(&always).await.0.is_err());
        assert!(asked(b"HTTP/1.1 500 No\r\ncontent-length: 0\r\n\r\n").await.0.is_err());
        assert!(asked(b"SSH-2.0-x\r\n").await.0.is_err());
        assert!(asked(b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\ntrue").await.0.is_err());
    }

    #[test]
    fn an_unprotected_address_or_a_short_key_is_refused() {
        let new = |url: &str, key: &[u8]| Webhook::new(url, key.to_vec(), RootCertStore::empty());
        let key = b"0123456789abcdef";
        assert!(matches!(new("http://hooks.example.com/", key), Err(Error::Url { .. })));
        assert!(matches!(new("ftp://hooks.example.com/", key), Err(Error::Url { .. })));
        assert!(matches!(new("http://u:p@127.0.0.1/", key), Err(Error::Url { .. })));
        assert!(matches!(new("http://127.0.0.1/", b"short"), Err(Error::Key(5))));
        assert!(matches!(new("https://hooks.example.com/", key), Err(Error::Roots)));
    }
}
