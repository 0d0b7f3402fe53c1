//! Maven's `maven-metadata.xml`: versions without times. No more of XML is read than is written there. Pure.

use super::index::Unreadable;
use aws_lc_rs::digest;
use data_encoding::HEXLOWER;
use std::collections::HashSet;

/// The versions, in the order in which they came.
pub(super) fn versions(text: &str) -> Result<Vec<String>, Unreadable> {
    if text.contains("<!DOCTYPE") || text.contains("<!ENTITY") || text.contains("<![CDATA[") {
        return Err(Unreadable("it holds more than Maven writes"));
    }
    let list = between(text, "<versions>", "</versions>").map(|(_, list, _)| list).unwrap_or_default();
    let mut versions = Vec::new();
    let mut rest = list;
    while let Some((_, version, behind)) = between(rest, "<version>", "</version>") {
        versions.push(version.trim().to_owned());
        rest = behind;
    }
    Ok(versions)
}

/// When anything changed last, as `lastUpdated` writes it (`20231114221320`), in seconds since 1970.
pub(super) fn last_updated(text: &str) -> Option<u64> {
    let (_, digits, _) = between(text, "<lastUpdated>", "</lastUpdated>")?;
    let digits = digits.trim();
    if digits.len() != 14 || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let part = |from: usize, to: usize| digits.get(from..to);
    let time = format!(
        "{}-{}-{}T{}:{}:{}Z",
        part(0, 4)?,
        part(4, 6)?,
        part(6, 8)?,
        part(8, 10)?,
        part(10, 12)?,
        part(12, 14)?
    );
    super::index::seconds(&time)
}

/// The document without hidden versions; `latest` and `release` lead to the last that is left.
pub(super) fn without(text: &str, hidden: &HashSet<String>) -> Result<String, Unreadable> {
    let versions = versions(text)?;
    let left: Vec<&String> = versions.iter().filter(|version| !hidden.contains(*version)).collect();
    let Some((before, _, after)) = between(text, "<versions>", "</versions>") else {
        return Ok(text.to_owned());
    };
    let list: String = left.iter().map(|version| format!("\n      <version>{version}</version>")).collect();
    let mut made = format!("{before}<versions>{list}\n    </versions>{after}");
    for tag in ["latest", "release"] {
        let (open, close) = (format!("<{tag}>"), format!("</{tag}>"));
        let Some((before, own, after)) = between(&made, &open, &close) else { continue };
        if hidden.contains(own.trim()) {
            let newest = left.last().map(|version| format!("{open}{version}{close}")).unwrap_or_default();
            made = format!("{before}{newest}{after}");
        }
    }
    Ok(made)
}

/// The digests of a document, by the endings of the files that clients look for them in.
pub(super) fn digests(document: &[u8]) -> [(&'static str, String); 3] {
    let made = |algorithm| HEXLOWER.encode(digest::digest(algorithm, document).as_ref());
    [
        (".sha1", made(&digest::SHA1_FOR_LEGACY_USE_ONLY)),
        (".sha256", made(&digest::SHA256)),
        (".sha512", made(&digest::SHA512)),
    ]
}

/// What stands before, between and behind the first two marks.
fn between<'t>(text: &'t str, open: &str, close: &str) -> Option<(&'t str, &'t str, &'t str)> {
    let (before, rest) = text.split_once(open)?;
    let (inside, after) = rest.split_once(close)?;
    Some((before, inside, after))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const DOCUMENT: &str = "<metadata>\n  <groupId>g</groupId>\n  <versioning>\n    <latest>2.0</latest>\n    <release>2.0</release>\n    \
        <versions>\n      <version>1.0</version>\n      <version>1.1</version>\n      <version>2.0</version>\n    </versions>\n    \
        <lastUpdated>20231114221320</lastUpdated>\n  </versioning>\n</metadata>\n";

    #[test]
    fn hidden_versions_go_and_the_newest_that_is_left_is_the_latest() {
        assert_eq!(versions(DOCUMENT).unwrap(), ["1.0", "1.1", "2.0"]);
        assert_eq!(last_updated(DOCUMENT), Some(1_700_000_000));

        let made = without(DOCUMENT, &HashSet::from(["2.0".to_owned()])).unwrap();

        assert_eq!(versions(&made).unwrap(), ["1.0", "1.1"]);
        assert!(made.contains("<latest>1.1</latest>") && made.contains("<release>1.1</release>"), "{made}");
        assert!(!made.contains("2.0<"));
    }

    #[test]
    fn what_maven_does_not_write_is_refused() {
        assert!(versions("<!DOCTYPE x [<!ENTITY a \"b\">]><versions></versions>").is_err());
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "(<versions>|</versions>|<version>|</version>|<latest>|</latest>|[a-z0-9. ]|é){0,30}", hidden in "[a-z0-9.]{0,3}") {
            let _ = (versions(&text), last_updated(&text), without(&text, &HashSet::from([hidden])));
        }
    }
}
