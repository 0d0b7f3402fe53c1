//! What a program is told where its request does not go on.
//!
//! ```json
//! {"error":"denied","reason":"rule","what":"POST /admin at api.test:443","rule":"deny api.test (policy.toml:3)",
//!  "detail":null,"hint":"airlock allow web api.test:443"}
//! ```
//!
//! A client of gRPC reads no body, so it gets a status of gRPC's own with the same words. The handshake of a WebSocket is
//! an ordinary request: it fails with the JSON.

use super::Bad;
use airlock_gate::{Denial, Reason};
use http::{
    HeaderValue, Response, StatusCode,
    header::{CACHE_CONTROL, CONTENT_TYPE, HeaderName},
    request,
};
use http_body_util::Full;
use hyper::body::Bytes;
use serde_json::{Value, json};
use std::fmt::Write as _;

/// Tells programs apart from the server's own 403: the reason in a word.
const DENIED: HeaderName = HeaderName::from_static("airlock-denied");
const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");

/// Codes of gRPC.
const PERMISSION_DENIED: u16 = 7;
const RESOURCE_EXHAUSTED: u16 = 8;
/// Longest message of gRPC; headers are small.
const LONGEST_MESSAGE: usize = 4096;

/// A denial, in the form that the program can read: JSON with 403 (or 429), or what gRPC has for it.
pub(crate) fn denied(denial: &Denial, head: &request::Parts) -> Response<Full<Bytes>> {
    let word = denial.reason.word();
    if is_grpc(head) {
        return grpc(denial, head);
    }
    let Denial { what, rule, detail, hint, .. } = denial;
    let body = json!({
        "error": "denied", "reason": word, "what": what, "rule": rule, "detail": detail, "hint": hint,
    });
    answer(if is_spent(denial.reason) { 429 } else { 403 }, word, &body)
}

/// A request that cannot be judged: 400 or 421.
pub(crate) fn bad(bad: &Bad) -> Response<Full<Bytes>> {
    let word = bad.reason.word();
    answer(bad.status, word, &json!({ "error": "refused", "reason": word, "detail": bad.why }))
}

/// A request that was permitted and could not be carried: 502 and its kind. `reason` is a word (`certificate`,
/// `unreachable`).
pub(crate) fn failed(status: u16, reason: &str, why: &str) -> Response<Full<Bytes>> {
    answer(status, reason, &json!({ "error": "failed", "reason": reason, "detail": why }))
}

/// A request that is answered here, with a document of JSON.
pub(crate) fn given(document: Bytes) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(document));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

fn answer(status: u16, word: &str, body: &Value) -> Response<Full<Bytes>> {
    let mut response = given(Bytes::from(format!("{body}\n")));
    *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::BAD_GATEWAY);
    if let Ok(word) = HeaderValue::from_str(word) {
        response.headers_mut().insert(DENIED, word);
    }
    response
}

/// gRPC's answer without a body: the trailers are the head (`Trailers-Only`).
fn grpc(denial: &Denial, head: &request::Parts) -> Response<Full<Bytes>> {
    let code = if is_spent(denial.reason) { RESOURCE_EXHAUSTED } else { PERMISSION_DENIED };
    let mut response = Response::new(Full::new(Bytes::new()));
    let headers = response.headers_mut();
    if let Some(content_type) = head.headers.get(CONTENT_TYPE) {
        headers.insert(CONTENT_TYPE, content_type.clone());
    }
    headers.insert(GRPC_STATUS, HeaderValue::from(code));
    if let Ok(message) = HeaderValue::from_str(&encoded(&denial.to_string())) {
        headers.insert(GRPC_MESSAGE, message);
    }
    headers.insert(DENIED, HeaderValue::from_static(denial.reason.word()));
    response
}

/// `application/grpc`, `application/grpc+proto`, `application/grpc-web`, …
fn is_grpc(head: &request::Parts) -> bool {
    let content_type = head.headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes).unwrap_or_default();
    let Some((kind, rest)) = content_type.split_at_checked(b"application/grpc".len()) else { return false };
    kind.eq_ignore_ascii_case(b"application/grpc") && matches!(rest, [] | [b'+' | b';' | b'-' | b' ', ..])
}

/// Whether it may work later.
fn is_spent(reason: Reason) -> bool {
    reason == Reason::Rate
}

/// As gRPC encodes messages: visible ASCII and spaces as they are, but for `%`.
fn encoded(message: &str) -> String {
    let mut text = String::new();
    for byte in message.bytes().take(LONGEST_MESSAGE) {
        match byte {
            b' '..=b'~' if byte != b'%' => text.push(char::from(byte)),
            _ => {
                let _ = write!(text, "%{byte:02X}");
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::Request;
    use http_body_util::BodyExt as _;
    use proptest::prelude::*;

    fn head(content_type: &str) -> request::Parts {
        Request::builder().header("content-type", content_type).body(()).unwrap().into_parts().0
    }

    fn denial(reason: Reason) -> Denial {
        Denial {
            reason,
            what: "POST /admin at api.test:443".to_owned(),
            rule: Some("deny api.test (policy.toml:3)".to_owned()),
            detail: None,
            hint: "airlock allow web api.test:443".to_owned(),
        }
    }

    fn body(response: Response<Full<Bytes>>) -> Bytes {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(response.into_body().collect()).unwrap().to_bytes()
    }

    fn header(response: &Response<Full<Bytes>>, name: &str) -> String {
        response.headers().get(name).map(|value| value.to_str().unwrap().to_owned()).unwrap_or_default()
    }

    #[test]
    fn a_denial_names_rule_and_hint_in_json() {
        let response = denied(&denial(Reason::Rule), &head("text/plain"));
        assert_eq!(response.status(), 403);
        assert_eq!(header(&response, "content-type"), "application/json");
        assert_eq!(header(&response, "airlock-denied"), "rule");
        assert_eq!(
            serde_json::from_slice::<Value>(&body(response)).unwrap(),
            json!({
                "error": "denied", "reason": "rule", "what": "POST /admin at api.test:443",
                "rule": "deny api.test (policy.toml:3)", "detail": null, "hint": "airlock allow web api.test:443",
            })
        );
        assert_eq!(denied(&denial(Reason::Rate), &head("text/plain")).status(), 429);
    }

    #[test]
    fn grpc_gets_a_status_of_its_own() {
        for content_type in ["application/grpc", "application/grpc+proto", "Application/GRPC-web; x=y"] {
            let response = denied(&denial(Reason::Rule), &head(content_type));
            assert_eq!(response.status(), 200);
            assert_eq!(header(&response, "grpc-status"), "7");
            assert_eq!(header(&response, "content-type"), content_type);
            let message = header(&response, "grpc-message");
            assert!(message.starts_with("POST /admin at api.test:443 is not allowed"), "{message}");
            assert_eq!(body(response), "");
        }
        assert_eq!(header(&denied(&denial(Reason::Rate), &head("application/grpc")), "grpc-status"), "8");
        assert_eq!(denied(&denial(Reason::Rule), &head("application/grpcx")).status(), 403);
    }

    #[test]
    fn other_refusals_are_json_too() {
        let refused = bad(&Bad { status: 421, reason: Reason::Host, why: "for \"another\" host".to_owned() });
        assert_eq!((refused.status().as_u16(), header(&refused, "airlock-denied").as_str()), (421, "host"));
        assert_eq!(
            serde_json::from_slice::<Value>(&body(refused)).unwrap(),
            json!({ "error": "refused", "reason": "host", "detail": "for \"another\" host" })
        );
        let unreachable = failed(502, "unreachable", "nobody\nthere");
        assert_eq!(unreachable.status(), 502);
        assert_eq!(
            serde_json::from_slice::<Value>(&body(unreachable)).unwrap(),
            json!({ "error": "failed", "reason": "unreachable", "detail": "nobody\nthere" })
        );
    }

    proptest! {
        #[test]
        fn any_denial_is_json_and_a_message(
            what in "\\PC{0,60}\\p{Cc}{0,3}", rule in proptest::option::of(".{0,40}"), hint in "\\PC{0,40}[\r\n\0\"]{0,3}"
        ) {
            let denial = Denial { what: what.clone(), rule: rule.clone(), hint, ..denial(Reason::NoRule) };
            let read: Value = serde_json::from_slice(&body(denied(&denial, &head("text/plain")))).unwrap();
            prop_assert_eq!(&read["what"], &what);
            prop_assert_eq!(&read["rule"], &json!(rule));
            let grpc = denied(&denial, &head("application/grpc"));
            prop_assert!(grpc.headers().contains_key("grpc-message"));
        }
    }
}
