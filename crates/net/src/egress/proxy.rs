//! Connections through a proxy of the company (`CONNECT`, RFC 9110, section 9.3.6).
//!
//! The proxy resolves names, so their addresses are not ours to check: what a permitted name points at, private addresses
//! included, is up to the proxy. Literals are checked as ever. The proxy's own address is the operator's choice and is
//! not checked.

use airlock_gate::address::Cidr;
use airlock_gate::host::{Destination, HostName, Target};
use data_encoding::BASE64;
use std::fmt;
use std::io;
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;

/// Longest answer to `CONNECT`.
const LONGEST_HEAD: usize = 8 * 1024;
/// Longest text of a status that is repeated to a person.
const LONGEST_REASON: usize = 80;
/// A proxy without a port listens here; one inside TLS, there.
const PORT: u16 = 80;
const TLS_PORT: u16 = 443;

/// A proxy, and what does not go through it. Its `Debug` does not tell the password.
pub(super) struct Proxy {
    pub(super) target: Target,
    pub(super) port: u16,
    /// Whether it is spoken to in TLS.
    pub(super) is_tls: bool,
    authorization: Option<String>,
}

/// What is dialled directly although there is a proxy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Direct {
    /// Everything.
    All,
    /// The name, and all names below it.
    Domain(HostName),
    /// The names below it.
    Below(HostName),
    /// Addresses.
    Range(Cidr),
}

/// Why a setting cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum BadProxy {
    /// Neither `http://…` nor `https://…`.
    #[error(
        "a proxy is written http://[USER:PASSWORD@]HOST[:PORT], or https://…; other schemes are not spoken"
    )]
    Scheme,
    /// Something behind the host.
    #[error("a proxy has no path")]
    Path,
    /// User or password cannot be sent.
    #[error("user or password of the proxy have a character that is not written as %XX")]
    Credentials,
    /// Neither name nor address.
    #[error("the host of the proxy cannot be used")]
    Host(#[source] airlock_gate::host::BadHost),
    /// An entry of `no_proxy`.
    #[error("no_proxy entry {0:?} is neither a name, nor a domain, nor a range of addresses, nor *")]
    Direct(String),
}

impl BadProxy {
    /// What a person can do.
    pub fn fix(&self) -> &'static str {
        match self {
            BadProxy::Direct(_) => {
                "correct no_proxy under [network] in config.toml: [\"corp.example\", \"10.0.0.0/8\"]"
            }
            _ => "correct proxy under [network] in config.toml: \"http://proxy.example:3128\"",
        }
    }
}

/// Why a proxy did not let us through.
#[derive(Debug, Error)]
pub enum ProxyError {
    /// It said no.
    #[error("the proxy answered {status} {reason}")]
    Refused {
        /// The status.
        status: u16,
        /// Its text, printable and cut.
        reason: String,
    },
    /// It does not speak HTTP, or too much of it.
    #[error("the proxy did not answer in HTTP")]
    NotHttp,
    /// It cannot be spoken to in private.
    #[error("the proxy cannot be spoken to in private: {0}")]
    Untrusted(String),
    /// The connection to it failed.
    #[error("the connection to the proxy failed")]
    Io(#[from] io::Error),
}

impl Proxy {
    /// Reads `http[s]://[user:password@]host[:port]`.
    pub(super) fn parse(text: &str) -> Result<Proxy, BadProxy> {
        let (is_tls, rest) = match (text.strip_prefix("http://"), text.strip_prefix("https://")) {
            (Some(rest), _) => (false, rest),
            (None, Some(rest)) => (true, rest),
            (None, None) => return Err(BadProxy::Scheme),
        };
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        if rest.contains(['/', '?', '#']) {
            return Err(BadProxy::Path);
        }
        let (credentials, host) = match rest.rsplit_once('@') {
            Some((credentials, host)) => (Some(credentials), host),
            None => (None, rest),
        };
        let destination: Destination = host.parse().map_err(BadProxy::Host)?;
        let authorization = match credentials {
            Some(text) => Some(format!("Basic {}", BASE64.encode(&decoded(text)?))),
            None => None,
        };
        let port = destination.port.unwrap_or(if is_tls { TLS_PORT } else { PORT });
        Ok(Proxy { target: destination.target, port, is_tls, authorization })
    }

    /// Asks for a way through to `target` on a fresh connection to the proxy.
    pub(super) async fn connect(
        &self,
        stream: &mut TcpStream,
        target: &Target,
        port: u16,
    ) -> Result<(), ProxyError> {
        stream.write_all(self.request(target, port).as_bytes()).await?;
        answered(read_head(stream).await?)
    }

    /// The same inside TLS.
    pub(super) async fn connect_inside<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        stream: &mut S,
        target: &Target,
        port: u16,
    ) -> Result<(), ProxyError> {
        stream.write_all(self.request(target, port).as_bytes()).await?;
        stream.flush().await?;
        answered(read_head_inside(stream).await?)
    }

    fn request(&self, target: &Target, port: u16) -> String {
        let place = Destination { target: target.clone(), port: Some(port) };
        let authorization = match &self.authorization {
            Some(value) => format!("Proxy-Authorization: {value}\r\n"),
            None => String::new(),
        };
        format!("CONNECT {place} HTTP/1.1\r\nHost: {place}\r\n{authorization}\r\n")
    }
}

impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Proxy({}:{})", self.target, self.port)
    }
}

impl Direct {
    /// Reads one entry of `no_proxy`.
    pub(super) fn parse(text: &str) -> Result<Direct, BadProxy> {
        let bad = || BadProxy::Direct(text.to_owned());
        if text == "*" {
            return Ok(Direct::All);
        }
        if let Ok(range) = text.parse() {
            return Ok(Direct::Range(range));
        }
        match text.strip_prefix("*.").or_else(|| text.strip_prefix('.')) {
            Some(domain) => domain.parse().map(Direct::Below).map_err(|_| bad()),
            None => text.parse().map(Direct::Domain).map_err(|_| bad()),
        }
    }

    /// Whether `target` is meant.
    pub(super) fn matches(&self, target: &Target) -> bool {
        match (self, target) {
            (Direct::All, _) => true,
            (Direct::Domain(domain), Target::Name(name)) => name == domain || name.is_under(domain),
            (Direct::Below(domain), Target::Name(name)) => name.is_under(domain),
            (Direct::Range(range), Target::Address(address)) => range.contains(*address),
            (Direct::Range(_), Target::Name(_))
            | (Direct::Domain(_) | Direct::Below(_), Target::Address(_)) => false,
        }
    }
}

/// Undoes %XX. Credentials with a bare space, control or non-ASCII character are refused.
fn decoded(text: &str) -> Result<Vec<u8>, BadProxy> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        match byte {
            b'%' => {
                let mut digit = || rest.next().and_then(|byte| char::from(byte).to_digit(16));
                let (Some(high), Some(low)) = (digit(), digit()) else { return Err(BadProxy::Credentials) };
                bytes.push(u8::try_from(high * 16 + low).map_err(|_| BadProxy::Credentials)?);
            }
            b'!'..=b'~' => bytes.push(byte),
            _ => return Err(BadProxy::Credentials),
        }
    }
    Ok(bytes)
}

fn answered((status, reason): (u16, String)) -> Result<(), ProxyError> {
    if (200..300).contains(&status) { Ok(()) } else { Err(ProxyError::Refused { status, reason }) }
}

/// As [`read_head`], of a stream that has read ahead by itself.
async fn read_head_inside<S: AsyncRead + Unpin>(stream: &mut S) -> Result<(u16, String), ProxyError> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut next = [0];
        if stream.read(&mut next).await? == 0 || head.len() > LONGEST_HEAD || !may_be_http(&head) {
            return Err(ProxyError::NotHttp);
        }
        head.extend(next);
    }
    status(&head).ok_or(ProxyError::NotHttp)
}

fn may_be_http(head: &[u8]) -> bool {
    b"HTTP/1.".iter().zip(head).all(|(want, have)| want == have)
}

/// Reads the answer's head and not one byte more: what follows belongs to the connection.
async fn read_head(stream: &mut TcpStream) -> Result<(u16, String), ProxyError> {
    let mut head = Vec::new();
    let mut buffer = [0; 1024];
    loop {
        let seen = stream.peek(&mut buffer).await?;
        let fresh = buffer.get(..seen).unwrap_or_default();
        if fresh.is_empty() {
            return Err(ProxyError::NotHttp);
        }
        let before = head.len();
        head.extend_from_slice(fresh);
        let end = end_of_head(&head);
        let take = end.map_or(seen, |end| end.saturating_sub(before));
        stream.read_exact(buffer.get_mut(..take).unwrap_or_default()).await?;
        if let Some(end) = end {
            head.truncate(end);
            return status(&head).ok_or(ProxyError::NotHttp);
        }
        if head.len() > LONGEST_HEAD || !may_be_http(&head) {
            return Err(ProxyError::NotHttp);
        }
    }
}

/// Where the head ends: behind the first empty line.
fn end_of_head(head: &[u8]) -> Option<usize> {
    head.windows(4).position(|window| window == b"\r\n\r\n").map(|at| at.saturating_add(4))
}

/// Status and reason of a head.
fn status(head: &[u8]) -> Option<(u16, String)> {
    let line = head.split(|byte| *byte == b'\r').next()?;
    let rest = line.strip_prefix(b"HTTP/1.1 ").or_else(|| line.strip_prefix(b"HTTP/1.0 "))?;
    let (code, reason) = rest.split_at_checked(3)?;
    let code =
        std::str::from_utf8(code).ok().filter(|code| code.bytes().all(|byte| byte.is_ascii_digit()))?;
    if !matches!(reason.first(), None | Some(b' ')) {
        return None;
    }
    let printable = reason.iter().filter(|byte| matches!(byte, b' '..=b'~')).take(LONGEST_REASON);
    let reason: String = printable.map(|byte| char::from(*byte)).collect();
    Some((code.parse().ok()?, reason.trim().to_owned()))
}
