//! What a person asks the rules about: `HOST:PORT`, a URL, or a method and a URL.
//!
//! ```
//! use airlock_gate::url::Asked;
//! let asked: Asked = "POST https://api.example.com/v1/a%20b?x=1".parse()?;
//! let request = asked.request.ok_or("no request")?;
//! assert_eq!((request.method.as_str(), request.path.as_str()), ("POST", "/v1/a b"));
//! assert!("api.example.com:443".parse::<Asked>()?.request.is_none());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use crate::{
    conditions,
    host::{BadHost, Destination},
    request::{GitCall, Request},
};
use airlock_protocol::policy::Git;
use std::str::FromStr;

/// A connection or a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Asked {
    /// Where to.
    pub destination: Destination,
    /// The request, where a URL of HTTP or of WebSockets was given.
    pub request: Option<Request>,
    /// Whether a method was given; else the request is a `GET`.
    pub has_method: bool,
}

/// Why a text is neither.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadUrl {
    /// The host or the port.
    #[error(transparent)]
    Host(#[from] BadHost),
    /// The method.
    #[error("{0}")]
    Method(String),
    /// A method is for a URL of HTTP.
    #[error("a method stands before a URL of http, https, ws or wss; `fetch` or `push` before one of ssh")]
    Scheme,
    /// The path.
    #[error(
        "a path with `.`, `..`, an empty segment, a backslash or an encoded slash is refused before rules are asked"
    )]
    Path,
    /// What is behind a `%`.
    #[error("a `%` stands before two hexadecimal digits, and what they say is UTF-8")]
    Percent,
}

impl FromStr for Asked {
    type Err = BadUrl;

    fn from_str(text: &str) -> Result<Asked, BadUrl> {
        let (method, url) = match text.split_once(char::is_whitespace) {
            None => (None, text),
            Some((method, url)) => (Some(conditions::method(method).map_err(BadUrl::Method)?), url.trim()),
        };
        let destination: Destination = url.parse()?;
        let has_method = method.is_some();
        let scheme = url.split_once("://");
        if let (Some(("ssh", rest)), Some(wants)) = (scheme, method.as_deref().and_then(git_wants)) {
            let request = inside_ssh(&destination, wants, rest)?;
            return Ok(Asked { destination, request: Some(request), has_method });
        }
        let Some((scheme @ ("http" | "https" | "ws" | "wss"), rest)) = scheme else {
            return match has_method {
                true => Err(BadUrl::Scheme),
                false => Ok(Asked { destination, request: None, has_method }),
            };
        };
        let (path, query) = split(rest);
        let method = method.unwrap_or_else(|| "GET".to_owned());
        let ((path, read_as), query) = (slashed_path(path)?, pairs(query)?);
        let git = GitCall::of(&method, &path, &query, git_type(&path));
        let request = Request {
            target: destination.target.clone(),
            port: destination.port_or_https(),
            is_tls: matches!(scheme, "https" | "wss"),
            method,
            path,
            read_as,
            query,
            headers: Vec::new(),
            websocket: scheme.starts_with("ws"),
            git,
            is_ssh: false,
        };
        Ok(Asked { destination, request: Some(request), has_method })
    }
}

/// `fetch` and `push` before a URL of SSH.
fn git_wants(method: &str) -> Option<Git> {
    match method {
        "FETCH" => Some(Git::Fetch),
        "PUSH" => Some(Git::Push),
        _ => None,
    }
}

/// What git asks for there, as a request.
fn inside_ssh(destination: &Destination, wants: Git, rest: &str) -> Result<Request, BadUrl> {
    let path = checked_path(split(rest).0)?;
    let plain = path.trim_start_matches('/');
    let repository = plain.strip_suffix(".git").unwrap_or(plain).to_owned();
    let method = match wants {
        Git::Fetch => "git-upload-pack",
        Git::Push => "git-receive-pack",
    };
    Ok(Request {
        target: destination.target.clone(),
        port: destination.port.unwrap_or(22),
        is_tls: false,
        method: method.to_owned(),
        path,
        read_as: None,
        query: Vec::new(),
        headers: Vec::new(),
        websocket: false,
        git: Some(GitCall { wants, repository }),
        is_ssh: true,
    })
}

/// The content type with which git asks for this.
fn git_type(path: &str) -> Option<&'static str> {
    match path.rsplit('/').next() {
        Some("git-upload-pack") => Some("application/x-git-upload-pack-request"),
        Some("git-receive-pack") => Some("application/x-git-receive-pack-request"),
        _ => None,
    }
}

/// Path and query of what stands behind the scheme.
fn split(rest: &str) -> (&str, &str) {
    let start = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let bare = rest.get(start..).unwrap_or("").split('#').next().unwrap_or("");
    let (path, query) = bare.split_once('?').unwrap_or((bare, ""));
    (if path.is_empty() { "/" } else { path }, query)
}

/// The path with encoded slashes as they are, and as it is without; see [`Request::path`].
fn slashed_path(path: &str) -> Result<(String, Option<String>), BadUrl> {
    let parts: Vec<&str> = path.split("%2F").flat_map(|part| part.split("%2f")).collect();
    if parts.len() == 1 {
        return Ok((checked_path(path)?, None));
    }
    let read_as = checked_path(&parts.join("/"))?;
    let kept = parts.iter().map(|part| decoded(part, Plus::Kept)).collect::<Result<Vec<_>, _>>()?;
    Ok((kept.join("%2F"), Some(read_as)))
}

fn checked_path(path: &str) -> Result<String, BadUrl> {
    let lower = path.to_ascii_lowercase();
    if ["%2f", "%5c", "%00"].iter().any(|bad| lower.contains(bad)) {
        return Err(BadUrl::Path);
    }
    let decoded = decoded(path, Plus::Kept)?;
    let is_bad = decoded.split('/').any(|segment| matches!(segment, "." | ".."))
        || decoded.contains("//")
        || decoded.contains('\\')
        || decoded.contains(char::is_control);
    if is_bad { Err(BadUrl::Path) } else { Ok(decoded) }
}

fn pairs(query: &str) -> Result<Vec<(String, String)>, BadUrl> {
    let one = |pair: &str| {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        Ok((decoded(name, Plus::Space)?, decoded(value, Plus::Space)?))
    };
    query.split('&').filter(|pair| !pair.is_empty()).map(one).collect()
}

/// What a plus stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Plus {
    Kept,
    Space,
}

fn decoded(text: &str, plus: Plus) -> Result<String, BadUrl> {
    let digit = |byte: Option<u8>| byte.and_then(|byte| char::from(byte).to_digit(16));
    let mut decoded = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        decoded.push(match byte {
            b'%' => {
                let (high, low) = (digit(bytes.next()), digit(bytes.next()));
                let value = high.zip(low).and_then(|(high, low)| u8::try_from(high * 16 + low).ok());
                value.ok_or(BadUrl::Percent)?
            }
            b'+' if plus == Plus::Space => b' ',
            byte => byte,
        });
    }
    String::from_utf8(decoded).map_err(|_| BadUrl::Percent)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn asked(text: &str) -> Result<Asked, BadUrl> {
        text.parse()
    }

    #[test]
    fn a_url_is_a_request_and_a_host_is_not() {
        let request = asked("wss://a.test:8443?x=1&y=a+b&z").unwrap().request.unwrap();
        assert_eq!((request.port, request.path.as_str(), request.websocket), (8443, "/", true));
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        assert_eq!(request.query, [pair("x", "1"), pair("y", "a b"), pair("z", "")]);
        assert!(asked("ssh://a.test").unwrap().request.is_none());
        assert!(asked("get https://a.test").unwrap().has_method);
    }

    #[test]
    fn git_inside_ssh_is_asked_about_by_what_it_does() {
        let push = asked("push ssh://git.test/acme/web.git").unwrap().request.unwrap();
        let call = push.git.clone().unwrap();
        assert_eq!((push.method.as_str(), push.port, push.is_ssh), ("git-receive-pack", 22, true));
        assert_eq!((call.wants, call.repository.as_str()), (Git::Push, "acme/web"));
        assert!(asked("GET ssh://git.test/acme/web.git").is_err());
    }

    #[test]
    fn what_the_wall_refuses_is_refused_here_too() {
        for path in ["/..", "/%2e%2E/x", "/a%2f%2fb", "/a%2F..", "/a\\b", "//x", "/%00", "/a/./b"] {
            assert_eq!(asked(&format!("https://a.test{path}")), Err(BadUrl::Path), "{path}");
        }
        assert_eq!(asked("https://a.test/%4"), Err(BadUrl::Percent));
        assert_eq!(asked("https://a.test/%ff"), Err(BadUrl::Percent));
        assert_eq!(asked("GET a.test:80"), Err(BadUrl::Scheme));
        assert!(matches!(asked("G@T https://a.test"), Err(BadUrl::Method(_))));
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in prop_oneof![".{0,60}", "(GET )?https?://a\\.test[/%.a-f0-9?&=+#]{0,30}"]) {
            if let Ok(Asked { request: Some(request), .. }) = text.parse::<Asked>() {
                prop_assert!(request.path.starts_with('/') && !request.path.contains("/../"));
            }
        }
    }
}
