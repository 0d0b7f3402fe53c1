//! HTTP of a person's own commands: a registry is asked for an image. No sandbox has a say in where it goes.
//!
//! HTTP/1.1 over the one dialler, through the person's proxy, with servers verified by what this host trusts. Connections are
//! kept and used again. Nothing here needs a thread or a task: whoever waits for an answer moves its connection along.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use airlock_net::errand::{Ask, Errands, Site};
//! let errands = Errands::new(&airlock_protocol::spec::Egress::default())?;
//! let site: Site = "https://registry.example".parse()?;
//! let mut answer = errands.ask(&site, &Ask::get("/v2/")).await?;
//! while let Some(piece) = answer.piece().await? {
//!     println!("{} bytes", piece.len());
//! }
//! # Ok(()) }
//! ```

mod content;
mod line;
mod site;
#[cfg(test)]
mod tests;

pub use content::Content;
pub use site::{BadSite, Scheme, Site};

use crate::{
    egress::{BadProxy, DialError, Egress},
    tls::{Stream, Untrusted, Wire},
};
use airlock_gate::host::Target;
use airlock_protocol::spec;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use hyper::body::{Body as _, Bytes, Incoming};
use line::Line;
use std::{
    cell::{Cell, RefCell},
    rc::Rc,
    time::{Duration, Instant},
};

/// How long nothing may happen, either way.
const PATIENCE: Duration = Duration::from_secs(60);
/// Connections that wait to be used again.
const MOST_IDLE: usize = 8;
/// Connections that have waited longer are not used again: the server may have left.
const IDLE: Duration = Duration::from_secs(20);

/// Asks servers, and keeps connections to them.
pub struct Errands {
    egress: Egress,
    idle: RefCell<Vec<Idle>>,
    patience: Duration,
}

struct Idle {
    site: Site,
    line: Line,
    since: Instant,
}

/// What is asked.
#[derive(Debug, Clone)]
pub struct Ask {
    /// The method.
    pub method: Method,
    /// Path and query.
    pub path: String,
    /// Besides those of the connection.
    pub headers: HeaderMap,
    /// What goes along.
    pub content: Content,
}

/// What was answered; its content comes in pieces.
pub struct Answer<'a> {
    /// The status.
    pub status: StatusCode,
    /// The headers.
    pub headers: HeaderMap,
    body: Incoming,
    site: Site,
    line: Option<Line>,
    errands: &'a Errands,
}

/// Why there is no answer, or not all of it.
#[derive(Debug, thiserror::Error)]
pub enum Unanswered {
    /// There is no way there.
    #[error("{host} cannot be reached")]
    Unreachable {
        /// The server.
        host: String,
        /// Why.
        #[source]
        source: DialError,
    },
    /// It is not who it should be.
    #[error("the certificate of {host} cannot be trusted: {why}")]
    Untrusted {
        /// The server.
        host: String,
        /// Why.
        why: String,
    },
    /// It does not speak TLS with us.
    #[error("{host} does not speak TLS: {why}")]
    NoTls {
        /// The server.
        host: String,
        /// What was seen.
        why: String,
    },
    /// The TLS handshake broke off.
    #[error("{host} broke off the TLS handshake")]
    Handshake {
        /// The server.
        host: String,
    },
    /// The connection broke off, or what came is no HTTP.
    #[error("the connection to {host} broke off: {why}")]
    Lost {
        /// The server.
        host: String,
        /// What was seen.
        why: String,
    },
    /// Nothing came for too long.
    #[error("{host} was silent for {} s", patience.as_secs())]
    Silent {
        /// The server.
        host: String,
        /// How long was waited.
        patience: Duration,
    },
    /// More came than such an answer has.
    #[error("{host} sent more than {most} bytes")]
    TooLong {
        /// The server.
        host: String,
        /// How many are taken.
        most: usize,
    },
    /// What should be asked cannot be.
    #[error("{host} cannot be asked this: {why}")]
    Ask {
        /// The server.
        host: String,
        /// Why.
        why: String,
    },
}

impl Unanswered {
    /// Whether it may go better another time.
    pub fn is_passing(&self) -> bool {
        match self {
            Unanswered::Lost { .. } | Unanswered::Silent { .. } | Unanswered::Handshake { .. } => true,
            Unanswered::Unreachable { source, .. } => {
                matches!(source, DialError::Unreachable { .. } | DialError::TimedOut { .. })
            }
            Unanswered::Untrusted { .. }
            | Unanswered::NoTls { .. }
            | Unanswered::TooLong { .. }
            | Unanswered::Ask { .. } => false,
        }
    }
}

impl Ask {
    /// Asks for what is at a path.
    pub fn get(path: impl Into<String>) -> Ask {
        Ask::new(Method::GET, path)
    }

    /// With any method, and nothing along.
    pub fn new(method: Method, path: impl Into<String>) -> Ask {
        Ask { method, path: path.into(), headers: HeaderMap::new(), content: Content::None }
    }

    /// With one header more. A value that cannot be one is left out.
    #[must_use]
    pub fn header(mut self, name: HeaderName, value: &str) -> Ask {
        if let Ok(value) = HeaderValue::from_str(value) {
            self.headers.insert(name, value);
        }
        self
    }

    /// With this along.
    #[must_use]
    pub fn content(self, content: Content) -> Ask {
        Ask { content, ..self }
    }
}

impl Errands {
    /// Goes out, and trusts, as `settings` say.
    pub fn new(settings: &spec::Egress) -> Result<Errands, BadProxy> {
        Ok(Errands { egress: Egress::new(settings)?, idle: RefCell::default(), patience: PATIENCE })
    }

    /// Waits so long for anything to happen.
    #[must_use]
    pub fn with_patience(self, patience: Duration) -> Errands {
        Errands { patience, ..self }
    }

    /// Asks. Any answer is an answer, whatever its status; redirects are not followed.
    pub async fn ask(&self, site: &Site, ask: &Ask) -> Result<Answer<'_>, Unanswered> {
        // A server may close a connection just when it is used again: that says nothing of the request.
        while let Some(line) = self.take(site) {
            match self.exchange(site, ask, line).await {
                Err(Unanswered::Lost { .. }) => {}
                answer => return answer,
            }
        }
        let line = self.connect(site).await?;
        self.exchange(site, ask, line).await
    }

    async fn exchange(&self, site: &Site, ask: &Ask, mut line: Line) -> Result<Answer<'_>, Unanswered> {
        let pulse = Rc::new(Cell::new(Instant::now()));
        let mut request = http::Request::builder().method(&ask.method).uri(&ask.path);
        if let Some(headers) = request.headers_mut() {
            headers.extend(ask.headers.clone());
            let authority = HeaderValue::from_str(&site.authority());
            headers.insert(header::HOST, authority.map_err(|err| cannot(site, &err))?);
            headers.entry(header::USER_AGENT).or_insert(HeaderValue::from_static("airlock"));
        }
        let request = request.body(ask.content.body(Rc::clone(&pulse))).map_err(|err| cannot(site, &err))?;
        let response = {
            let sent = line.send(request);
            let mut sent = std::pin::pin!(sent);
            loop {
                let until = pulse.get() + self.patience;
                match tokio::time::timeout_at(until.into(), &mut sent).await {
                    Ok(response) => break response.map_err(|err| lost(site, &err))?,
                    // What goes along may have moved meanwhile.
                    Err(_) if pulse.get() + self.patience > until => {}
                    Err(_) => return Err(silent(site, self.patience)),
                }
            }
        };
        let (head, body) = response.into_parts();
        let mut line = Some(line);
        if body.is_end_stream()
            && let Some(mut over) = line.take()
        {
            over.settle().await;
            self.keep(site, over);
        }
        Ok(Answer {
            status: head.status,
            headers: head.headers,
            body,
            site: site.clone(),
            line,
            errands: self,
        })
    }

    async fn connect(&self, site: &Site) -> Result<Line, Unanswered> {
        let unreachable = |source| Unanswered::Unreachable { host: site.to_string(), source };
        let stream = self.egress.reach_errand(&site.host, site.port).await.map_err(unreachable)?;
        let wire = Wire::new(stream);
        let stream = match site.scheme {
            Scheme::Http => Stream::Plain(wire),
            Scheme::Https => {
                let target: Target = site.host.parse().map_err(|err| cannot(site, &err))?;
                self.egress.trust.load_here().map_err(|err| untrusted(site, &err))?;
                let offers: [&[u8]; 1] = [b"http/1.1"];
                let connected = self.egress.trust.connect(&target, &[], &offers, wire).await;
                Stream::Far(Box::new(connected.map_err(|err| untrusted(site, &err))?.0))
            }
        };
        Line::open(stream).await.map_err(|err| lost(site, &err))
    }

    fn take(&self, site: &Site) -> Option<Line> {
        let mut idle = self.idle.borrow_mut();
        idle.retain(|idle| idle.since.elapsed() < IDLE);
        let at = idle.iter().position(|idle| idle.site == *site)?;
        Some(idle.swap_remove(at).line)
    }

    fn keep(&self, site: &Site, line: Line) {
        let mut idle = self.idle.borrow_mut();
        if idle.len() < MOST_IDLE && line.is_open() {
            idle.push(Idle { site: site.clone(), line, since: Instant::now() });
        }
    }
}

impl Answer<'_> {
    /// The next piece of the content; `None` when all of it has come.
    pub async fn piece(&mut self) -> Result<Option<Bytes>, Unanswered> {
        let Some(line) = &mut self.line else { return Ok(None) };
        let patience = self.errands.patience;
        let came = tokio::time::timeout(patience, line.piece(&mut self.body)).await;
        match came.map_err(|_| silent(&self.site, patience))? {
            Some(Ok(piece)) => Ok(Some(piece)),
            Some(Err(err)) => {
                self.line = None;
                Err(lost(&self.site, &err))
            }
            None => {
                if let Some(mut line) = self.line.take() {
                    line.settle().await;
                    self.errands.keep(&self.site, line);
                }
                Ok(None)
            }
        }
    }

    /// All of the content, if it is no longer than `most`.
    pub async fn all(mut self, most: usize) -> Result<Vec<u8>, Unanswered> {
        let mut whole = Vec::new();
        let until = Instant::now() + 2 * self.errands.patience;
        while let Some(piece) = self.piece().await? {
            if whole.len().saturating_add(piece.len()) > most {
                return Err(Unanswered::TooLong { host: self.site.to_string(), most });
            }
            whole.extend_from_slice(&piece);
            // A few bytes a minute are no answer either.
            if Instant::now() > until {
                return Err(silent(&self.site, self.errands.patience));
            }
        }
        Ok(whole)
    }

    /// Who answered.
    pub fn site(&self) -> &Site {
        &self.site
    }
}

fn untrusted(site: &Site, err: &Untrusted) -> Unanswered {
    let host = site.to_string();
    match err {
        Untrusted::Certificate(why) => Unanswered::Untrusted { host, why: why.clone() },
        Untrusted::Tls(why) => Unanswered::NoTls { host, why: why.clone() },
        Untrusted::Lost | Untrusted::Late => Unanswered::Handshake { host },
    }
}

fn lost(site: &Site, err: &hyper::Error) -> Unanswered {
    let mut why = err.to_string();
    let mut cause = std::error::Error::source(err);
    while let Some(inner) = cause {
        why = inner.to_string();
        cause = inner.source();
    }
    Unanswered::Lost {
        host: site.to_string(),
        why: why.split(" (os error").next().unwrap_or_default().to_owned(),
    }
}

fn cannot(site: &Site, err: &dyn std::error::Error) -> Unanswered {
    Unanswered::Ask { host: site.to_string(), why: err.to_string() }
}

fn silent(site: &Site, patience: Duration) -> Unanswered {
    Unanswered::Silent { host: site.to_string(), patience }
}
