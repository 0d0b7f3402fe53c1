//! One fetch of a token, over TLS whose server is verified.

use crate::secrets::forms::Habit;
use crate::{egress::Egress, tls::Wire};
use airlock_gate::{
    host::{Destination, Target},
    secrets::{self, Value},
};
use airlock_protocol::secret::Grant;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::{Request, Uri, body::Bytes, header};
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use std::{rc::Rc, time::Duration};
use tokio::time::timeout;
use tokio_rustls::client::TlsStream;
use zeroize::{Zeroize as _, Zeroizing};

/// How long it may take.
const PATIENCE: Duration = Duration::from_secs(30);
/// Most bytes of an answer.
const MOST_ANSWER: usize = 64 * 1024;

/// Fetches tokens.
pub(in crate::secrets) struct Fetcher {
    egress: Rc<Egress>,
}

/// What is asked for.
pub(super) struct Ask {
    pub(super) target: Target,
    pub(super) port: u16,
    authority: String,
    path: String,
    form: Zeroizing<String>,
}

/// What a token is fetched with.
pub(super) struct Form<'a> {
    pub(super) grant: Grant,
    pub(super) client_id: &'a str,
    pub(super) client_secret: Option<Rc<Value>>,
    /// The refresh token, or the client's own secret.
    pub(super) value: Rc<Value>,
    pub(super) scope: Option<&'a str>,
}

/// What came.
pub(super) struct Fetched {
    pub(super) token: Value,
    pub(super) lasts: Option<Duration>,
    pub(super) refresh: Option<Value>,
}

/// Why nothing came. Shows nothing of what was sent or answered.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unfetched {
    /// There is no way there.
    #[error("{0} cannot be reached")]
    Unreachable(String),
    /// It is not who it should be.
    #[error("{0} could not be spoken to in private")]
    Private(String),
    /// It did not answer.
    #[error("{0} did not answer")]
    Silent(String),
    /// It refused.
    #[error("{0} answered {1}")]
    Status(String, u16),
    /// Its answer is none.
    #[error("the answer of {0} holds no token that can be used")]
    Answer(String),
}

/// RFC 6749, 5.1.
#[derive(Deserialize)]
struct Answer {
    access_token: String,
    #[serde(default)]
    expires_in: Option<f64>,
    #[serde(default)]
    refresh_token: Option<String>,
}

impl Drop for Answer {
    fn drop(&mut self) {
        self.access_token.zeroize();
        self.refresh_token.zeroize();
    }
}

impl Ask {
    /// `None` if the address is not one of https.
    pub(super) fn new(url: &str, form: &Form<'_>) -> Option<Ask> {
        let uri: Uri = url.parse().ok()?;
        if uri.scheme_str() != Some("https") {
            return None;
        }
        let destination: Destination = uri.authority()?.as_str().parse().ok()?;
        Some(Ask {
            port: destination.port_or_https(),
            target: destination.target,
            authority: uri.authority()?.to_string(),
            path: uri.path_and_query().map_or("/", |path| path.as_str()).to_owned(),
            form: form.written(),
        })
    }
}

impl Form<'_> {
    /// As it is sent.
    fn written(&self) -> Zeroizing<String> {
        let value = self.value.reveal();
        let (refresh, secret) = match self.grant {
            Grant::RefreshToken => (Some(value), self.client_secret.as_ref().map(|secret| secret.reveal())),
            Grant::ClientCredentials => (None, Some(value)),
        };
        let mut form = Zeroizing::new(format!("grant_type={}", self.grant.word()));
        for (name, text) in [
            ("refresh_token", refresh),
            ("client_id", Some(self.client_id)),
            ("client_secret", secret),
            ("scope", self.scope),
        ] {
            let Some(text) = text else { continue };
            form.push('&');
            form.push_str(name);
            form.push('=');
            form.push_str(&Zeroizing::new(Habit::STRICT.encode(text.as_bytes())));
        }
        form
    }
}

impl Fetcher {
    /// Goes out, and trusts, as connections of the sandbox do.
    pub(in crate::secrets) fn new(egress: Rc<Egress>) -> Fetcher {
        Fetcher { egress }
    }

    /// Fetches a token.
    pub(super) async fn fetch(&self, ask: &Ask) -> Result<Fetched, Unfetched> {
        let fetched = timeout(PATIENCE, self.fetch_in_time(ask)).await;
        fetched.map_err(|_| Unfetched::Silent(ask.target.to_string()))?
    }

    async fn fetch_in_time(&self, ask: &Ask) -> Result<Fetched, Unfetched> {
        let host = ask.target.to_string();
        let stream = self.egress.reach_errand(&host, ask.port).await;
        let stream = stream.map_err(|_| Unfetched::Unreachable(host.clone()))?;
        let stream = self.egress.trust.connect(&ask.target, &[], &[b"http/1.1"], Wire::new(stream)).await;
        let (stream, _) = stream.map_err(|_| Unfetched::Private(host))?;
        exchange(stream, ask).await
    }
}

async fn exchange(stream: TlsStream<Wire>, ask: &Ask) -> Result<Fetched, Unfetched> {
    let host = || ask.target.to_string();
    let request = Request::post(&ask.path)
        .header(header::HOST, &ask.authority)
        .header(header::CONTENT_TYPE, "application/x-www-form-urlencoded")
        .header(header::ACCEPT, "application/json")
        .header(header::USER_AGENT, "airlock")
        .body(Full::new(Bytes::copy_from_slice(ask.form.as_bytes())))
        .map_err(|_| Unfetched::Silent(host()))?;
    let silent = |_| Unfetched::Silent(host());
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(silent)?;
    let exchanged = async {
        let response = sender.send_request(request).await.map_err(silent)?;
        let status = response.status();
        let body = Limited::new(response.into_body(), MOST_ANSWER).collect().await;
        let body = body.map_err(|_| Unfetched::Answer(host()))?.to_bytes();
        match status.as_u16() {
            200 => read(&body).ok_or_else(|| Unfetched::Answer(host())),
            status => Err(Unfetched::Status(host(), status)),
        }
    };
    tokio::pin!(exchanged);
    tokio::select! {
        biased;
        fetched = &mut exchanged => fetched,
        ended = connection => match ended {
            Ok(()) => exchanged.await,
            Err(_) => Err(Unfetched::Silent(host())),
        },
    }
}

/// A token that can stand in a header.
fn read(body: &[u8]) -> Option<Fetched> {
    let answer: Answer = serde_json::from_slice(body).ok()?;
    secrets::check(&answer.access_token).ok()?;
    let refresh = answer.refresh_token.as_ref().filter(|token| secrets::check(token).is_ok());
    Some(Fetched {
        token: Value::new(&answer.access_token),
        lasts: answer.expires_in.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()),
        refresh: refresh.map(|token| Value::new(token)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_token_that_could_break_a_header_is_none() {
        assert!(read(br#"{"access_token": "good-token-1", "expires_in": 60}"#).is_some());
        assert!(read(br#"{"access_token": "bad\r\ntoken-1"}"#).is_none());
        assert!(read(br#"{"access_token": ""}"#).is_none());
        assert!(read(br#"{"error": "invalid_grant"}"#).is_none());
    }

    #[test]
    fn only_https_is_asked() {
        assert!(Ask::new("http://auth.example.com/token", &form(Grant::RefreshToken)).is_none());
        let ask = Ask::new("https://auth.example.com/token?x=1", &form(Grant::RefreshToken)).unwrap();
        assert_eq!((ask.path.as_str(), ask.port), ("/token?x=1", 443));
        assert_eq!(*ask.form, "grant_type=refresh_token&refresh_token=the%20value&client_id=me%26you");
    }

    #[test]
    fn a_client_shows_its_own_secret_and_says_what_for() {
        let form = Form { scope: Some("https://x.example/.default"), ..form(Grant::ClientCredentials) };
        assert_eq!(
            *form.written(),
            "grant_type=client_credentials&client_id=me%26you&client_secret=the%20value&scope=https%3A%2F%2Fx.example%2F.default"
        );
    }

    fn form(grant: Grant) -> Form<'static> {
        let value = Rc::new(Value::new("the value"));
        Form { grant, client_id: "me&you", client_secret: None, value, scope: None }
    }

    proptest! {
        #[test]
        fn any_answer_is_taken(body in prop::collection::vec(any::<u8>(), 0..200), seconds: f64) {
            let _ = read(&body);
            let _ = read(format!(r#"{{"access_token": "good-token-1", "expires_in": {seconds}}}"#).as_bytes());
        }
    }
}
