//! go: `GOPROXY` and `GOSUMDB`, from the environment, the user's `go/env`, or the tool chain's own `go.env`.

use super::{Settings, Told};
use std::path::PathBuf;

pub(super) fn told(settings: &Settings<'_>) -> Vec<Told> {
    let mut told = Vec::new();
    for name in ["GOPROXY", "GOSUMDB"] {
        let set =
            settings.variable(name).map(|value| Told { from: name.to_owned(), urls: urls_of(name, value) });
        let written = || {
            files(settings).into_iter().find_map(|path| {
                settings.in_file(&path, |text| {
                    written(text, name).map(|value| urls_of(name, value)).unwrap_or_default()
                })
            })
        };
        told.extend(set.or_else(written));
    }
    told
}

fn files(settings: &Settings<'_>) -> Vec<PathBuf> {
    let own = match settings.variable("GOENV") {
        Some("off") => None,
        Some(path) => Some(PathBuf::from(path)),
        None => settings.user_config("go/env"),
    };
    let root = settings.variable("GOROOT").map(|root| PathBuf::from(root).join("go.env"));
    let usual = ["/usr/local/go/go.env", "/usr/lib/go/go.env"].map(PathBuf::from);
    own.into_iter().chain(root).chain(usual).collect()
}

fn written<'t>(text: &'t str, name: &str) -> Option<&'t str> {
    let pairs = text.lines().filter_map(|line| line.trim().split_once('='));
    pairs.rev().find(|(key, value)| *key == name && !value.is_empty()).map(|(_, value)| value)
}

/// Proxies are parted by `,` or `|`; a checksum database is `NAME`, `NAME+KEY` or `NAME+KEY URL`.
fn urls_of(name: &str, value: &str) -> Vec<String> {
    if name == "GOPROXY" {
        return value.split([',', '|']).map(|url| url.trim().to_owned()).collect();
    }
    let mut words = value.split_whitespace();
    let database = words.next().unwrap_or_default().split('+').next().unwrap_or_default();
    match words.next() {
        Some(url) => vec![url.to_owned()],
        None if database == "off" => Vec::new(),
        None => vec![format!("https://{database}")],
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{expected, told_on};

    #[test]
    fn proxies_and_the_checksum_database_are_found() {
        let variables =
            [("HOME", "/home/ada"), ("GOPROXY", "https://a.example.com|https://b.example.com/x,direct")];
        let files = [("/home/ada/.config/go/env", "GOFLAGS=-x\nGOSUMDB=sum.example.com+033de0ae+Ac4\n")];
        let hosts: &[(&str, &[&str])] = &[
            ("GOPROXY", &["a.example.com", "b.example.com"]),
            ("/home/ada/.config/go/env", &["sum.example.com"]),
        ];
        assert_eq!(told_on("go", &variables, &files), expected(hosts));
    }

    #[test]
    fn the_tool_chain_has_the_last_word_and_off_means_none() {
        let files = [("/opt/go/go.env", "GOPROXY=https://proxy.example.com,direct\n")];
        let told = told_on("go", &[("GOROOT", "/opt/go"), ("GOSUMDB", "off")], &files);
        assert_eq!(told, expected(&[("/opt/go/go.env", &["proxy.example.com"])]));
    }
}
