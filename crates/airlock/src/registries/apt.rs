//! apt: `sources.list`, and `sources.list.d` in both its forms.

use super::{Settings, Told};
use std::path::{Path, PathBuf};

pub(super) fn told(settings: &Settings<'_>) -> Vec<Told> {
    let mut files = vec![PathBuf::from("/etc/apt/sources.list")];
    files.extend((settings.list)(Path::new("/etc/apt/sources.list.d")));
    files.iter().filter_map(|path| told_by(settings, path)).collect()
}

fn told_by(settings: &Settings<'_>, path: &Path) -> Option<Told> {
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("list") => settings.in_file(path, lines),
        Some("sources") => settings.in_file(path, paragraphs),
        _ => None,
    }
}

/// `deb [options] URI suite component…`.
fn lines(text: &str) -> Vec<String> {
    let uri = |line: &str| {
        let line = line.split('#').next().unwrap_or(line);
        let (kind, rest) = line.trim().split_once([' ', '\t'])?;
        if kind != "deb" && kind != "deb-src" {
            return None;
        }
        let rest = rest.trim_start();
        let rest = rest
            .strip_prefix('[')
            .map_or(Some(rest), |options| options.split_once(']').map(|(_, rest)| rest))?;
        rest.split_whitespace().next().map(str::to_owned)
    };
    text.lines().filter_map(uri).collect()
}

/// Paragraphs with `URIs:`, which may go on in further lines (deb822).
fn paragraphs(text: &str) -> Vec<String> {
    let mut urls = Vec::new();
    for paragraph in text.replace('\r', "").split("\n\n") {
        let mut fields: Vec<(String, String)> = Vec::new();
        for line in paragraph.lines().filter(|line| !line.starts_with('#')) {
            match (line.starts_with([' ', '\t']), fields.last_mut(), line.split_once(':')) {
                (true, Some((_, value)), _) => *value = format!("{value} {}", line.trim()),
                (false, _, Some((name, value))) => {
                    fields.push((name.trim().to_lowercase(), value.trim().to_owned()))
                }
                _ => {}
            }
        }
        let field =
            |wanted: &str| fields.iter().find(|(name, _)| name == wanted).map(|(_, value)| value.as_str());
        if field("enabled").is_none_or(|value| !["no", "false"].contains(&value.to_lowercase().as_str())) {
            urls.extend(field("uris").unwrap_or_default().split_whitespace().map(str::to_owned));
        }
    }
    urls
}

#[cfg(test)]
mod tests {
    use super::super::tests::{expected, told_on};
    use proptest::prelude::*;

    #[test]
    fn both_forms_are_read_and_what_is_switched_off_is_not() {
        let list = "# deb http://old.example.com/ x main\ndeb http://deb.example.com/debian bookworm main\n\
                    deb-src [arch=amd64 signed-by=/x] https://src.example.com:8443/debian bookworm main\ndeb cdrom:[x]/ y main\n";
        let sources = "Types: deb\nURIs: https://a.example.com/debian\n  https://b.example.com/debian\nSuites: x\n\n\
                       Enabled: no\nTypes: deb\nURIs: https://off.example.com/\n";
        let files = [
            ("/etc/apt/sources.list", list),
            ("/etc/apt/sources.list.d/x.sources", sources),
            ("/etc/apt/sources.list.d/y.list.save", "deb http://saved.example.com/ x main\n"),
        ];
        let hosts: &[(&str, &[&str])] = &[
            ("/etc/apt/sources.list", &["deb.example.com", "src.example.com:8443"]),
            ("/etc/apt/sources.list.d/x.sources", &["a.example.com", "b.example.com"]),
        ];
        assert_eq!(told_on("debian", &[], &files), expected(hosts));
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "[\\PC\n\t]{0,200}") {
            let _ = (super::lines(&text), super::paragraphs(&text));
        }
    }
}
