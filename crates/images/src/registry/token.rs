//! Tokens of a registry's token service (Docker's token authentication, and its OAuth2 form). What is asked, and what the
//! answer means. Pure.

use super::{
    Login,
    challenge::Bearer,
    place::{escaped, with_query},
};
use airlock_net::errand::{Ask, Content};
use data_encoding::BASE64;
use http::{Method, header};
use serde::Deserialize;

/// Most bytes of an answer.
pub(super) const MOST_ANSWER: usize = 256 * 1024;
/// Longest token.
const LONGEST: usize = 64 * 1024;

/// What is asked of the token service: at `path` of its server, for `scope`.
pub(super) fn ask(path: &str, bearer: &Bearer, scope: &str, login: Option<&Login>) -> Ask {
    let service = bearer.service.as_deref().unwrap_or_default();
    if let Some(Login::Identity(token)) = login {
        let form = format!(
            "grant_type=refresh_token&client_id=airlock&service={}&scope={}&refresh_token={}",
            escaped(service),
            escaped(scope),
            escaped(token)
        );
        return Ask::new(Method::POST, path)
            .header(header::CONTENT_TYPE, "application/x-www-form-urlencoded")
            .content(Content::Bytes(form.into()));
    }
    let mut path = path.to_owned();
    if !service.is_empty() {
        path = with_query(&path, "service", service);
    }
    path = with_query(&path, "scope", scope);
    match login {
        Some(Login::Password { user, password }) => {
            let ask = Ask::get(with_query(&path, "account", user));
            ask.header(header::AUTHORIZATION, &basic(user, password))
        }
        _ => Ask::get(path),
    }
}

/// As `Authorization` has a user and a password.
pub(super) fn basic(user: &str, password: &str) -> String {
    format!("Basic {}", BASE64.encode(format!("{user}:{password}").as_bytes()))
}

/// The token in an answer, if it can stand in a header.
pub(super) fn read(body: &[u8]) -> Option<String> {
    #[derive(Deserialize)]
    struct Answer {
        #[serde(default)]
        token: Option<String>,
        #[serde(default)]
        access_token: Option<String>,
    }
    let answer: Answer = serde_json::from_slice(body).ok()?;
    let token = answer.token.filter(|token| !token.is_empty()).or(answer.access_token)?;
    let can_stand =
        !token.is_empty() && token.len() <= LONGEST && token.bytes().all(|byte| byte.is_ascii_graphic());
    can_stand.then_some(token)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn bearer() -> Bearer {
        Bearer { realm: String::new(), service: Some("a b".into()), scope: None }
    }

    #[test]
    fn a_token_is_asked_for_with_what_there_is() {
        let anonymous = ask("/token?x=1", &bearer(), "repository:a/b:pull", None);
        assert_eq!(anonymous.path, "/token?x=1&service=a%20b&scope=repository:a/b:pull");
        let login = Login::Password { user: "me".into(), password: "pw".into() };
        let known = ask("/token", &bearer(), "s", Some(&login));
        assert_eq!(known.path, "/token?service=a%20b&scope=s&account=me");
        assert_eq!(known.headers[header::AUTHORIZATION], "Basic bWU6cHc=");
        let identity = ask("/token", &bearer(), "s", Some(&Login::Identity("x&y".into())));
        assert_eq!(identity.method, Method::POST);
        assert!(format!("{:?}", identity.content).starts_with("Bytes("));
    }

    #[test]
    fn either_name_of_a_token_is_read_and_none_that_breaks_a_header() {
        assert_eq!(read(br#"{"token":"t","access_token":"u"}"#).as_deref(), Some("t"));
        assert_eq!(read(br#"{"token":"","access_token":"u"}"#).as_deref(), Some("u"));
        assert_eq!(read(br#"{"token":"a\r\nb"}"#), None);
        assert_eq!(read(br#"{"access_token":""}"#), None);
        assert_eq!(read(b"[]"), None);
    }

    proptest! {
        #[test]
        fn any_answer_is_taken(body in prop::collection::vec(any::<u8>(), 0..200), token in "\\PC{0,20}") {
            read(&body);
            let text = serde_json::json!({ "token": token }).to_string();
            if let Some(read) = read(text.as_bytes()) {
                prop_assert!(http::HeaderValue::from_str(&read).is_ok());
            }
        }
    }
}
