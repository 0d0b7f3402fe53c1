//! Heads as a script sees and changes them. Pure.

use http::{HeaderMap, HeaderName, HeaderValue};

/// Headers that say how a message is framed and where it goes: a script neither sees nor sets them.
const OURS: [&str; 14] = [
    "host",
    "content-length",
    "transfer-encoding",
    "connection",
    "keep-alive",
    "proxy-connection",
    "proxy-authorization",
    "proxy-authenticate",
    "te",
    "trailer",
    "upgrade",
    "expect",
    "http2-settings",
    "content-encoding",
];
/// Most headers that a script may set.
const MOST: usize = 200;

/// The headers that a script was shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Seen(Vec<(String, String)>);

impl Seen {
    /// Those that are text, and not about framing.
    pub(super) fn of(headers: &HeaderMap) -> Seen {
        let text = |(name, value): (&HeaderName, &HeaderValue)| {
            let value = value.to_str().ok()?;
            (!OURS.contains(&name.as_str())).then(|| (name.as_str().to_owned(), value.to_owned()))
        };
        Seen(headers.iter().filter_map(text).collect())
    }

    /// As the script sees them.
    pub(super) fn shown(&self) -> Vec<(String, String)> {
        self.0.clone()
    }

    /// Puts what the script returned in place of what it saw.
    pub(super) fn change(&self, headers: &mut HeaderMap, new: &[(String, String)]) -> Result<(), String> {
        if new.len() > MOST {
            return Err(format!("the script sets more than {MOST} headers"));
        }
        let mut read = Vec::new();
        for (name, value) in new {
            let bad = || {
                format!("the script cannot set the header {:?}", name.chars().take(60).collect::<String>())
            };
            let name: HeaderName = name.parse().map_err(|_| bad())?;
            if OURS.contains(&name.as_str()) {
                return Err(bad());
            }
            read.push((name, HeaderValue::from_str(value).map_err(|_| bad())?));
        }
        for (name, _) in &self.0 {
            headers.remove(name.as_str());
        }
        for (name, _) in &read {
            headers.remove(name);
        }
        for (name, value) in read {
            headers.append(name, value);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        pairs
            .iter()
            .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)))
            .collect()
    }

    fn pair(name: &str, value: &str) -> (String, String) {
        (name.to_owned(), value.to_owned())
    }

    #[test]
    fn what_is_about_framing_is_neither_seen_nor_set() {
        let mut all = headers(&[("host", "a"), ("content-length", "3"), ("accept", "x"), ("cookie", "c")]);
        let seen = Seen::of(&all);

        assert_eq!(seen.shown(), [pair("accept", "x"), pair("cookie", "c")]);
        seen.change(&mut all, &[pair("accept", "y"), pair("x-new", "1"), pair("x-new", "2")]).unwrap();
        assert_eq!(all, {
            let mut wanted = headers(&[("host", "a"), ("content-length", "3"), ("accept", "y")]);
            wanted.append("x-new", HeaderValue::from_static("1"));
            wanted.append("x-new", HeaderValue::from_static("2"));
            wanted
        });
        for bad in [
            pair("host", "b"),
            pair("Transfer-Encoding", "chunked"),
            pair("a b", "c"),
            pair("a", "b\r\nc: d"),
        ] {
            let before = all.clone();
            assert!(seen.change(&mut all, &[bad]).is_err());
            assert_eq!(all, before, "what cannot be set changes nothing");
        }
    }

    proptest! {
        #[test]
        fn whatever_a_script_sets_is_never_about_framing(new in proptest::collection::vec((".{0,12}", ".{0,12}"), 0..5)) {
            let mut all = headers(&[("host", "a")]);
            let _ = Seen::of(&all.clone()).change(&mut all, &new);
            prop_assert_eq!(all.get("host").unwrap(), "a");
            prop_assert!(!all.contains_key("content-length") && !all.contains_key("transfer-encoding"));
        }
    }
}
