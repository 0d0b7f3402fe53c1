//! What the indexes of all registries have in common, and the two simplest of them: cargo's lines and Go's list. Pure.

use super::rules::Since;
use std::collections::HashSet;

/// Versions and since when they are public, as an index tells it.
pub(super) type Told = Vec<(String, Since)>;

/// Chooses what is hidden.
pub(super) type Hide<'a> = &'a dyn Fn(&Told) -> HashSet<String>;

/// An index without what is hidden.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Rewritten {
    /// The new text.
    pub(super) body: Vec<u8>,
    /// All that the old one told.
    pub(super) told: Told,
}

/// An index that cannot be read, and why.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the registry's index cannot be read: {0}")]
pub(super) struct Unreadable(pub(super) &'static str);

/// Seconds since 1970 of a time as RFC 3339 writes it.
pub(super) fn seconds(text: &str) -> Since {
    let time: jiff::Timestamp = text.trim().parse().ok()?;
    u64::try_from(time.as_second()).ok()
}

/// Seconds since 1970 of a date of HTTP; none where it is too early to be believed.
pub(super) fn http_date(text: &str) -> Since {
    let parser = jiff::fmt::rfc2822::DateTimeParser::new();
    let time = parser.parse_timestamp(text.trim()).ok()?;
    // Files without a time of their own have 1970, 1980 or 1985.
    u64::try_from(time.as_second()).ok().filter(|seconds| *seconds > EARLIEST)
}

/// The beginning of 2000.
const EARLIEST: u64 = 946_684_800;

#[derive(serde::Deserialize)]
struct Line {
    vers: String,
    #[serde(default)]
    pubtime: Option<String>,
}

/// cargo's sparse index: a line of JSON for each version.
pub(super) fn crates(body: &[u8], hide: Hide<'_>) -> Result<Rewritten, Unreadable> {
    let text = std::str::from_utf8(body).map_err(|_| Unreadable("it is not UTF-8"))?;
    let mut lines = Vec::new();
    for line in text.lines().filter(|line| !line.trim().is_empty()) {
        let read: Line = serde_json::from_str(line).map_err(|_| Unreadable("a line is not cargo's"))?;
        lines.push((line, read.vers, read.pubtime.as_deref().and_then(seconds)));
    }
    let told: Told = lines.iter().map(|(_, version, since)| (version.clone(), *since)).collect();
    let hidden = hide(&told);
    let mut body = Vec::new();
    for (line, ..) in lines.iter().filter(|(_, version, _)| !hidden.contains(version)) {
        body.extend_from_slice(line.as_bytes());
        body.push(b'\n');
    }
    Ok(Rewritten { body, told })
}

/// The versions of Go's `@v/list`, a line each.
pub(super) fn go_versions(body: &[u8]) -> Result<Vec<String>, Unreadable> {
    let text = std::str::from_utf8(body).map_err(|_| Unreadable("it is not UTF-8"))?;
    let lines = text.lines().filter_map(|line| line.split_whitespace().next());
    Ok(lines.map(str::to_owned).collect())
}

/// A list of Go without what is hidden.
pub(super) fn go_list(versions: &[String], hidden: &HashSet<String>) -> Vec<u8> {
    let left = versions.iter().filter(|version| !hidden.contains(*version));
    left.flat_map(|version| [version.as_bytes(), b"\n"].concat()).collect()
}

/// What Go's `.info` and `@latest` say.
pub(super) fn go_info(body: &[u8]) -> Result<(String, Since), Unreadable> {
    #[derive(serde::Deserialize)]
    struct Info {
        #[serde(rename = "Version")]
        version: String,
        #[serde(rename = "Time", default)]
        time: Option<String>,
    }
    let info: Info = serde_json::from_slice(body).map_err(|_| Unreadable("it is not Go's"))?;
    Ok((info.version, info.time.as_deref().and_then(seconds)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn lines_of_cargo_are_kept_as_they_are_or_not_at_all() {
        let text = "{\"name\":\"a\",\"vers\":\"1.0.0\",\"pubtime\":\"2023-11-14T22:13:20Z\",\"x\":1.50}\n{\"name\":\"a\",\"vers\":\"1.1.0\"}\n";
        let hidden = HashSet::from(["1.1.0".to_owned()]);

        let rewritten = crates(text.as_bytes(), &|_| hidden.clone()).unwrap();

        assert_eq!(rewritten.told, [("1.0.0".to_owned(), Some(1_700_000_000)), ("1.1.0".to_owned(), None)]);
        assert_eq!(
            rewritten.body,
            text.lines().next().unwrap().as_bytes().to_vec().into_iter().chain([b'\n']).collect::<Vec<_>>()
        );
        assert!(crates(b"<html>", &|_| hidden.clone()).is_err());
    }

    #[test]
    fn lists_and_times_of_go_are_read() {
        let versions = go_versions(b"v1.0.0\nv1.1.0 2023-01-01T00:00:00Z\n\n").unwrap();
        assert_eq!(versions, ["v1.0.0", "v1.1.0"]);
        assert_eq!(go_list(&versions, &HashSet::from(["v1.1.0".to_owned()])), b"v1.0.0\n");
        let info = go_info(br#"{"Version":"v1.0.0","Time":"2023-11-14T22:13:20Z","Origin":{}}"#).unwrap();
        assert_eq!(info, ("v1.0.0".to_owned(), Some(1_700_000_000)));
        assert!(go_info(b"not found").is_err());
    }

    #[test]
    fn dates_of_http_are_believed_if_they_can_be_true() {
        assert_eq!(http_date("Tue, 14 Nov 2023 22:13:20 GMT"), Some(1_700_000_000));
        for text in ["Thu, 01 Jan 1970 00:00:01 GMT", "Sat, 26 Oct 1985 08:15:00 GMT", "yesterday", ""] {
            assert_eq!(http_date(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_panic(body in any::<Vec<u8>>(), text in ".{0,40}") {
            let _ = (crates(&body, &|_| HashSet::new()), go_versions(&body), go_info(&body));
            let _ = (seconds(&text), http_date(&text));
        }

        #[test]
        fn only_hidden_lines_go(versions in proptest::collection::vec(("[0-9]\\.[0-9]\\.[0-9]", any::<bool>()), 0..10)) {
            let text: String = versions.iter().map(|(version, _)| format!("{{\"vers\":\"{version}\"}}\n")).collect();
            let hidden: HashSet<String> = versions.iter().filter(|(_, hide)| *hide).map(|(own, _)| own.clone()).collect();
            let body = crates(text.as_bytes(), &|_| hidden.clone()).unwrap().body;
            let left: String = text.lines().filter(|line| !hidden.iter().any(|own| line.contains(&format!("\"{own}\"")))).map(|line| format!("{line}\n")).collect();
            prop_assert_eq!(String::from_utf8(body).unwrap(), left);
        }
    }
}
