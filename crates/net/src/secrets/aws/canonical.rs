//! What a signature is made over: the canonical form of a request. Pure.
//!
//! Clients agree on the form but for two things: whether the path, which is encoded once on the wire, is encoded once more, and
//! whether what they leave bare in a query is encoded. So there are [`Style`]s, and the right one is that by which the
//! signature of the client comes out.

use super::read::{Form, Signed};
use crate::secrets::{
    forms::{Habit, UNRESERVED},
    query::Decoded,
};
use http::{HeaderMap, header, request};

/// A way to write the canonical form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Style {
    /// Whether the path is encoded once more: every service but S3.
    is_path_twice: bool,
    /// Whether the query is taken as it is.
    is_query_bare: bool,
}

/// Every style, likely ones first.
pub(super) const STYLES: [Style; 4] = [
    Style { is_path_twice: false, is_query_bare: false },
    Style { is_path_twice: true, is_query_bare: false },
    Style { is_path_twice: false, is_query_bare: true },
    Style { is_path_twice: true, is_query_bare: true },
];

/// Slashes stay in paths.
const PATH: Habit = Habit { left: b"-._~/", plus: false, small: false };
const COMPONENT: Habit = Habit { left: UNRESERVED, plus: false, small: false };

/// The canonical form; `None` if a header that is signed is not there.
pub(super) fn request(head: &request::Parts, signed: &Signed, style: Style, payload: &str) -> Option<String> {
    let path = match (head.uri.path(), style.is_path_twice) {
        ("", _) => "/".to_owned(),
        (path, true) => PATH.encode(path.as_bytes()),
        (path, false) => path.to_owned(),
    };
    let query = query(head.uri.query().unwrap_or_default(), signed.form, style);
    let mut headers = String::new();
    for name in &signed.headers {
        headers.push_str(&format!("{name}:{}\n", field(head, name)?));
    }
    let method = &head.method;
    Some(format!("{method}\n{path}\n{query}\n{headers}\n{}\n{payload}", signed.headers.join(";")))
}

fn query(query: &str, form: Form, style: Style) -> String {
    let pairs = query.split('&').filter(|pair| !pair.is_empty());
    let pairs = pairs.map(|pair| pair.split_once('=').unwrap_or((pair, "")));
    let write = |text: &str| match style.is_query_bare {
        true => text.to_owned(),
        false => COMPONENT.encode(&Decoded::new(text).bytes),
    };
    let mut pairs: Vec<(String, String)> = pairs
        .filter(|(name, _)| form == Form::Header || *name != "X-Amz-Signature")
        .map(|(name, value)| (write(name), write(value)))
        .collect();
    pairs.sort();
    let pairs: Vec<String> = pairs.into_iter().map(|(name, value)| format!("{name}={value}")).collect();
    pairs.join("&")
}

/// A header as it is signed: its values joined, each without needless spaces.
fn field(head: &request::Parts, name: &str) -> Option<String> {
    if name == "host" {
        return host(&head.headers).or_else(|| head.uri.authority().map(ToString::to_string));
    }
    let values: Vec<String> = head
        .headers
        .get_all(name)
        .iter()
        .map(|value| {
            String::from_utf8_lossy(value.as_bytes()).split_whitespace().collect::<Vec<_>>().join(" ")
        })
        .collect();
    (!values.is_empty()).then(|| values.join(","))
}

fn host(headers: &HeaderMap) -> Option<String> {
    headers.get(header::HOST)?.to_str().ok().map(|host| host.trim().to_owned())
}
