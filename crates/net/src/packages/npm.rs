//! npm's index: one JSON document with all versions of a package (`versions`), their times (`time`) and names for some of them
//! (`dist-tags`). Pure.

use super::{
    index::{Hide, Rewritten, Told, Unreadable, seconds},
    semver,
};
use serde_json::value::RawValue;
use std::collections::{BTreeMap, HashSet};

type Raw<'a> = BTreeMap<String, &'a RawValue>;

/// The document without what `hide` hides: also its times, and the tags that led there. `latest` leads to the greatest that is left.
pub(super) fn rewrite(body: &[u8], hide: Hide<'_>) -> Result<Rewritten, Unreadable> {
    let text = std::str::from_utf8(body).map_err(|_| Unreadable("it is not UTF-8"))?;
    let top: Raw<'_> = serde_json::from_str(text).map_err(|_| Unreadable("it is not a JSON object"))?;
    let Some(versions) = top.get("versions") else { return Err(Unreadable("it names no versions")) };
    let versions: Raw<'_> = object(versions)?;
    let times: BTreeMap<String, serde_json::Value> = match top.get("time") {
        Some(times) => object(times)?,
        None => BTreeMap::new(),
    };
    let since = |version: &String| times.get(version).and_then(|time| seconds(time.as_str()?));
    let told: Told = versions.keys().map(|version| (version.clone(), since(version))).collect();
    let hidden = hide(&told);
    let tags: BTreeMap<String, String> = match top.get("dist-tags") {
        Some(tags) => object(tags)?,
        None => BTreeMap::new(),
    };
    let left: Raw<'_> = versions.into_iter().filter(|(version, _)| !hidden.contains(version)).collect();
    let times: BTreeMap<_, _> = times.into_iter().filter(|(version, _)| !hidden.contains(version)).collect();
    let made = [
        ("versions", written(&left)?),
        ("time", written(&times)?),
        ("dist-tags", written(&repaired(tags, &left, &hidden))?),
    ];
    let mut all: BTreeMap<&str, &RawValue> = top.iter().map(|(key, value)| (key.as_str(), *value)).collect();
    for (key, value) in made.iter().filter(|(key, _)| top.contains_key(*key)) {
        all.insert(key, value);
    }
    let body = serde_json::to_vec(&all).map_err(|_| Unreadable("it cannot be written anew"))?;
    Ok(Rewritten { body, told })
}

fn object<'a, T: serde::Deserialize<'a>>(value: &'a RawValue) -> Result<T, Unreadable> {
    serde_json::from_str(value.get()).map_err(|_| Unreadable("it has another form than npm's"))
}

fn written<T: serde::Serialize>(value: &T) -> Result<Box<RawValue>, Unreadable> {
    serde_json::value::to_raw_value(value).map_err(|_| Unreadable("it cannot be written anew"))
}

/// Tags of what is hidden go; `latest` moves.
fn repaired(
    tags: BTreeMap<String, String>,
    left: &Raw<'_>,
    hidden: &HashSet<String>,
) -> BTreeMap<String, String> {
    let lost_latest = tags.get("latest").is_some_and(|version| hidden.contains(version));
    let mut tags: BTreeMap<_, _> =
        tags.into_iter().filter(|(_, version)| !hidden.contains(version)).collect();
    if lost_latest && let Some(version) = semver::greatest(left.keys().map(String::as_str)) {
        tags.insert("latest".to_owned(), version.to_owned());
    }
    tags
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const DOCUMENT: &str = r#"{"name":"a","dist-tags":{"latest":"2.0.0","next":"3.0.0-rc.1","old":"1.0.0"},
        "versions":{"1.0.0":{"dist":{"tarball":"https://r.test/a/-/a-1.0.0.tgz"}},"1.10.0":{},"1.9.0":{},"2.0.0":{"x":1.50},"3.0.0-rc.1":{}},
        "time":{"created":"2020-01-01T00:00:00.000Z","1.0.0":"2020-01-01T00:00:00.000Z","2.0.0":"2023-11-14T22:13:20.000Z","3.0.0-rc.1":null}}"#;

    fn hiding(versions: &[&str]) -> String {
        let hidden: HashSet<String> = versions.iter().map(|version| (*version).to_owned()).collect();
        let rewritten = rewrite(DOCUMENT.as_bytes(), &|_| hidden.clone()).unwrap();
        String::from_utf8(rewritten.body).unwrap()
    }

    #[test]
    fn hidden_versions_are_nowhere_and_latest_leads_to_the_greatest_that_is_left() {
        let document = hiding(&["2.0.0", "3.0.0-rc.1"]);
        assert!(!document.contains("2.0.0") && !document.contains("rc.1"), "{document}");
        assert!(document.contains(r#""dist-tags":{"latest":"1.10.0","old":"1.0.0"}"#), "{document}");
        assert!(document.contains(r#""tarball":"https://r.test/a/-/a-1.0.0.tgz""#), "{document}");
        assert!(hiding(&[]).contains(r#""2.0.0":{"x":1.50}"#), "what is left is as it was");
    }

    #[test]
    fn times_are_told_where_the_document_has_them() {
        let told = rewrite(DOCUMENT.as_bytes(), &|_| HashSet::new()).unwrap().told;
        let since = |version: &str| told.iter().find(|(own, _)| own == version).unwrap().1;
        assert_eq!((since("2.0.0"), since("1.9.0"), since("3.0.0-rc.1")), (Some(1_700_000_000), None, None));
    }

    #[test]
    fn what_is_no_such_document_is_refused() {
        for text in ["", "[]", "{}", r#"{"versions":[]}"#, r#"{"versions":{},"time":3}"#] {
            assert!(rewrite(text.as_bytes(), &|_| HashSet::new()).is_err(), "{text}");
        }
        assert!(rewrite(&[0xff], &|_| HashSet::new()).is_err());
    }

    proptest! {
        #[test]
        fn no_hidden_version_is_left_and_no_other_is_lost(
            versions in proptest::collection::btree_map("[0-9]\\.[0-9]\\.[0-9](-[a-z]{1,3})?", any::<bool>(), 0..12),
            latest in "[0-9]\\.[0-9]\\.[0-9]",
        ) {
            let all: BTreeMap<&String, serde_json::Value> =
                versions.keys().map(|version| (version, serde_json::json!({}))).collect();
            let document = serde_json::json!({"versions": all, "dist-tags": {"latest": latest}});
            let hidden: HashSet<String> =
                versions.iter().filter(|(_, hide)| **hide).map(|(version, _)| version.clone()).collect();

            let rewritten = rewrite(document.to_string().as_bytes(), &|_| hidden.clone()).unwrap();

            let made: serde_json::Value = serde_json::from_slice(&rewritten.body).unwrap();
            let left: Vec<&String> = made["versions"].as_object().unwrap().keys().collect();
            let wanted: Vec<&String> = versions.iter().filter(|(_, hide)| !**hide).map(|(own, _)| own).collect();
            prop_assert_eq!(left, wanted);
            let latest = made["dist-tags"].get("latest").and_then(|tag| tag.as_str());
            prop_assert!(latest.is_none_or(|tag| !hidden.contains(tag)));
        }

        #[test]
        fn no_bytes_panic(body in any::<Vec<u8>>()) {
            let _ = rewrite(&body, &|_| HashSet::new());
        }
    }
}
