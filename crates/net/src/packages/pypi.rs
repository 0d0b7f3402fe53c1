//! pip's index (the simple API): files of a project, as JSON (PEP 691) with their times (PEP 700), or as HTML without. Pure.

use super::{
    asked::python_file,
    index::{Hide, Rewritten, Told, Unreadable, seconds},
    rules::Since,
};
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// The type of the index that has times.
pub(super) const JSON: &str = "application/vnd.pypi.simple.v1+json";
/// The one that older clients read.
pub(super) const HTML: &str = "text/html; charset=utf-8";

/// The index as JSON without the files of versions that `hide` hides. A version is as young as its youngest file; a file whose
/// version cannot be told is left out.
pub(super) fn rewrite(body: &[u8], hide: Hide<'_>) -> Result<Rewritten, Unreadable> {
    let mut top: Map<String, Value> =
        serde_json::from_slice(body).map_err(|_| Unreadable("it is not a JSON object"))?;
    let Some(Value::Array(files)) = top.remove("files") else {
        return Err(Unreadable("it names no files"));
    };
    let mut versions: BTreeMap<String, Since> = BTreeMap::new();
    for file in &files {
        let Some((version, since)) = version_of(file) else { continue };
        let known = versions.entry(version).or_insert(since);
        *known = (*known).zip(since).map(|(a, b)| a.max(b));
    }
    let told: Told = versions.into_iter().collect();
    let hidden = hide(&told);
    let is_left = |file: &Value| version_of(file).is_some_and(|(version, _)| !hidden.contains(&version));
    let files: Vec<Value> = files.into_iter().filter(is_left).collect();
    top.insert("files".to_owned(), Value::Array(files));
    if let Some(Value::Array(versions)) = top.get_mut("versions") {
        versions.retain(|version| version.as_str().is_none_or(|version| !hidden.contains(version)));
    }
    let body = serde_json::to_vec(&top).map_err(|_| Unreadable("it cannot be written anew"))?;
    Ok(Rewritten { body, told })
}

fn version_of(file: &Value) -> Option<(String, Since)> {
    let (_, version) = python_file(file.get("filename")?.as_str()?)?;
    Some((version, file.get("upload-time").and_then(Value::as_str).and_then(seconds)))
}

/// The same index as HTML, for a client that reads no JSON.
pub(super) fn html(body: &[u8]) -> Result<Vec<u8>, Unreadable> {
    let top: Map<String, Value> =
        serde_json::from_slice(body).map_err(|_| Unreadable("it is not a JSON object"))?;
    let files = top.get("files").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let mut page =
        "<!DOCTYPE html>\n<html><head><meta name=\"pypi:repository-version\" content=\"1.1\"></head><body>\n"
            .to_owned();
    for file in files {
        let text = |key: &str| file.get(key).and_then(Value::as_str).unwrap_or_default();
        let hashes = file.get("hashes").and_then(Value::as_object);
        let sha256 = hashes.and_then(|hashes| hashes.get("sha256")).and_then(Value::as_str);
        let fragment = sha256.map(|hash| format!("#sha256={hash}")).unwrap_or_default();
        let mut more = String::new();
        if !text("requires-python").is_empty() {
            more = format!(" data-requires-python=\"{}\"", escaped(text("requires-python")));
        }
        let yanked = file.get("yanked").is_some_and(|yanked| *yanked != Value::Bool(false));
        if yanked {
            more.push_str(" data-yanked=\"\"");
        }
        let url = escaped(&format!("{}{fragment}", text("url")));
        page.push_str(&format!("<a href=\"{url}\"{more}>{}</a><br>\n", escaped(text("filename"))));
    }
    page.push_str("</body></html>\n");
    Ok(page.into_bytes())
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;

    const INDEX: &str = r#"{"meta":{"api-version":"1.1"},"name":"a","versions":["1.0","2.0"],"files":[
        {"filename":"a-1.0.tar.gz","url":"../../f/a-1.0.tar.gz","hashes":{"sha256":"ab"},"upload-time":"2023-11-14T22:13:20.5Z","requires-python":">=3.8"},
        {"filename":"a-2.0-py3-none-any.whl","url":"x","hashes":{},"upload-time":"2023-11-14T22:13:20Z"},
        {"filename":"a-2.0.tar.gz","url":"y","hashes":{},"upload-time":"2023-11-14T22:13:30Z"},
        {"filename":"odd.exe","url":"z","hashes":{}}]}"#;

    #[test]
    fn a_version_is_as_young_as_its_youngest_file_and_goes_with_all_of_them() {
        let hidden = HashSet::from(["2.0".to_owned()]);

        let rewritten = rewrite(INDEX.as_bytes(), &|_| hidden.clone()).unwrap();

        assert_eq!(
            rewritten.told,
            [("1.0".to_owned(), Some(1_700_000_000)), ("2.0".to_owned(), Some(1_700_000_010))]
        );
        let text = String::from_utf8(rewritten.body).unwrap();
        assert!(
            !text.contains("2.0") && !text.contains("odd.exe") && text.contains("a-1.0.tar.gz"),
            "{text}"
        );
    }

    #[test]
    fn an_old_client_gets_the_same_as_html() {
        let page = String::from_utf8(html(INDEX.as_bytes()).unwrap()).unwrap();
        assert!(
            page.contains("<a href=\"../../f/a-1.0.tar.gz#sha256=ab\" data-requires-python=\"&gt;=3.8\">a-1.0.tar.gz</a>"),
            "{page}"
        );
    }

    proptest! {
        #[test]
        fn no_bytes_panic(body in any::<Vec<u8>>()) {
            let _ = (rewrite(&body, &|_| HashSet::new()), html(&body));
        }

        #[test]
        fn html_cannot_be_broken_out_of(name in "[\"<>&a-z=' ]{0,12}", url in "[\"<>&a-z=' ]{0,12}") {
            let index = serde_json::json!({"files": [{"filename": name, "url": url}]});
            let page = String::from_utf8(html(index.to_string().as_bytes()).unwrap()).unwrap();
            prop_assert_eq!(page.matches("<a href=").count(), 1);
            prop_assert_eq!(page.matches('"').count(), 6);
        }
    }
}
