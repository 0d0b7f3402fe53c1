//! What a registry wants before it answers: `WWW-Authenticate` (RFC 9110, section 11.6.1) as registries use it. Pure.

/// Longest header that is looked at.
const LONGEST: usize = 8 * 1024;

/// One way to be let in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Challenge {
    /// A user and a password.
    Basic,
    /// A token of somebody else.
    Bearer(Bearer),
}

/// Where a token is to be had.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Bearer {
    /// Whom to ask.
    pub(super) realm: String,
    /// For whom it is.
    pub(super) service: Option<String>,
    /// What it lets one do.
    pub(super) scope: Option<String>,
}

/// The ways that a header names and that are known here, in its order. What makes no sense is passed over.
pub(super) fn parse(text: &str) -> Vec<Challenge> {
    let mut reader = Reader { rest: text.get(..LONGEST).unwrap_or(text) };
    let mut found = Vec::new();
    while let Some(scheme) = reader.scheme() {
        let parameters = reader.parameters();
        let value = |name: &str| {
            parameters
                .iter()
                .find(|(known, _)| known.eq_ignore_ascii_case(name))
                .map(|(_, value)| value.clone())
        };
        if scheme.eq_ignore_ascii_case("basic") {
            found.push(Challenge::Basic);
        } else if scheme.eq_ignore_ascii_case("bearer")
            && let Some(realm) = value("realm")
        {
            found.push(Challenge::Bearer(Bearer { realm, service: value("service"), scope: value("scope") }));
        }
    }
    found
}

struct Reader<'t> {
    rest: &'t str,
}

impl<'t> Reader<'t> {
    /// The next word that begins a challenge; whatever cannot is passed over.
    fn scheme(&mut self) -> Option<&'t str> {
        loop {
            self.skip(|c| c == ',' || c.is_ascii_whitespace());
            if self.rest.is_empty() {
                return None;
            }
            match self.token() {
                "" => self.skip_one(),
                word => return Some(word),
            }
        }
    }

    /// The parameters of a challenge: up to a word that is followed by no `=`.
    fn parameters(&mut self) -> Vec<(String, String)> {
        let mut found = Vec::new();
        loop {
            let mut ahead = Reader { rest: self.rest };
            ahead.skip(|c| c == ',' || c.is_ascii_whitespace());
            let name = ahead.token();
            ahead.skip(|c| c.is_ascii_whitespace());
            let Some(rest) = ahead.rest.strip_prefix('=').filter(|_| !name.is_empty()) else { return found };
            ahead.rest = rest;
            ahead.skip(|c| c.is_ascii_whitespace());
            let value = ahead.value();
            self.rest = ahead.rest;
            found.push((name.to_owned(), value));
        }
    }

    fn value(&mut self) -> String {
        let Some(quoted) = self.rest.strip_prefix('"') else { return self.token().to_owned() };
        let mut value = String::new();
        let mut is_escaped = false;
        for (at, c) in quoted.char_indices() {
            match c {
                '\\' if !is_escaped => is_escaped = true,
                '"' if !is_escaped => {
                    self.rest = quoted.get(at.saturating_add(1)..).unwrap_or_default();
                    return value;
                }
                c => {
                    is_escaped = false;
                    value.push(c);
                }
            }
        }
        self.rest = "";
        value
    }

    /// A token (RFC 9110, section 5.6.2), and what a token68 has besides.
    fn token(&mut self) -> &'t str {
        let is_of_it = |c: char| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~/:".contains(c);
        let end = self.rest.find(|c| !is_of_it(c)).unwrap_or(self.rest.len());
        let (token, rest) = self.rest.split_at(end);
        self.rest = rest;
        token
    }

    fn skip(&mut self, is_skipped: impl Fn(char) -> bool) {
        self.rest = self.rest.trim_start_matches(is_skipped);
    }

    fn skip_one(&mut self) {
        let mut rest = self.rest.chars();
        rest.next();
        self.rest = rest.as_str();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn bearer(realm: &str, service: Option<&str>, scope: Option<&str>) -> Challenge {
        let owned = |text: Option<&str>| text.map(ToOwned::to_owned);
        Challenge::Bearer(Bearer { realm: realm.to_owned(), service: owned(service), scope: owned(scope) })
    }

    #[test]
    fn registries_are_understood() {
        let text = r#"Bearer realm="https://auth.example/token",service="registry.example",scope="repository:a/b:pull,push""#;
        let expected =
            bearer("https://auth.example/token", Some("registry.example"), Some("repository:a/b:pull,push"));
        assert_eq!(parse(text), [expected]);
        assert_eq!(parse(r#"Basic realm="Registry Realm""#), [Challenge::Basic]);
        assert_eq!(parse("basic"), [Challenge::Basic]);
    }

    #[test]
    fn several_ways_in_one_header_are_all_seen() {
        let text = r#"Negotiate dG9rZW4=, , BEARER Realm = "https://a.example/\"t" , service=x, Basic realm="r, s=1""#;
        assert_eq!(parse(text), [bearer("https://a.example/\"t", Some("x"), None), Challenge::Basic]);
    }

    #[test]
    fn a_token_from_nowhere_is_no_way() {
        assert_eq!(parse(r#"Bearer service="x""#), []);
        assert_eq!(parse(""), []);
    }

    proptest! {
        #[test]
        fn no_header_panics_or_loops(text in "\\PC{0,200}", more in "[Bb]earer [a-z]{0,3}[= ,\"\\\\a-z]{0,40}") {
            parse(&text);
            prop_assert!(parse(&more).len() <= 40);
        }

        #[test]
        fn what_is_quoted_comes_back(realm in "[ -~]{1,40}") {
            let quoted = realm.replace('\\', "\\\\").replace('"', "\\\"");
            prop_assert_eq!(parse(&format!("Bearer realm=\"{quoted}\"")), [bearer(&realm, None, None)]);
        }
    }
}
