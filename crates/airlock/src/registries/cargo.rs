//! cargo: `[source.*] registry`, `[registries.*] index`, `CARGO_REGISTRIES_*_INDEX`.

use super::{
    Settings, Told,
    tokens::{Found, without_login},
};
use std::path::PathBuf;
use toml::de::{DeTable, DeValue};

pub(super) fn told(settings: &Settings<'_>) -> Vec<Told> {
    let is_index = |name: &&String| name.starts_with("CARGO_REGISTRIES_") && name.ends_with("_INDEX");
    let variables = settings.variables.keys().filter(is_index).filter_map(|name| settings.in_variable(name));
    let files = files(settings).into_iter().filter_map(|path| settings.in_file(&path, urls));
    variables.chain(files).collect()
}

/// `[registries.NAME] token` of the credentials, and `CARGO_REGISTRIES_NAME_TOKEN`, with the index of the same name.
pub(super) fn tokens(settings: &Settings<'_>) -> Vec<Found> {
    let read =
        |name: &str| home(settings).and_then(|home| (settings.read)(&home.join(name))).unwrap_or_default();
    let of_files =
        |names: [&str; 2], key: &str| names.iter().flat_map(|name| registries(&read(name), key)).collect();
    let indexes: Vec<(String, String)> = of_files(["config.toml", "config"], "index");
    let tokens: Vec<(String, String)> = of_files(["credentials.toml", "credentials"], "token");
    let one = |(name, url): &(String, String)| {
        let variable = format!("CARGO_REGISTRIES_{}_TOKEN", name.to_uppercase().replace('-', "_"));
        let told = settings.variable(&variable).map(str::to_owned);
        let value =
            told.or_else(|| tokens.iter().find(|(own, _)| own == name).map(|(_, token)| token.clone()))?;
        let is_plain = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte));
        let section = name.clone();
        let render = Box::new(move |here: &str| format!("[registries.{section}]\ntoken = \"{here}\"\n"));
        let (key, url) = (name.clone(), url.clone());
        is_plain.then_some(Found { key, url, value, path: ".cargo/credentials.toml", render })
    };
    indexes.iter().filter_map(one).collect()
}

/// Which registries there are, as the client inside reads it.
pub(super) fn settings_inside(settings: &Settings<'_>) -> String {
    let read =
        |name: &str| home(settings).and_then(|home| (settings.read)(&home.join(name))).unwrap_or_default();
    let mut known: Vec<(String, String)> = Vec::new();
    for (name, url) in ["config.toml", "config"].iter().flat_map(|name| registries(&read(name), "index")) {
        let is_plain = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte));
        if is_plain && !url.contains(['"', '\\']) && !known.iter().any(|(own, _)| *own == name) {
            known.push((name, without_login(&url)));
        }
    }
    // An index that wants a token gets one only where cargo is told from where (RFC 3139).
    let provider = "credential-provider = \"cargo:token\"";
    known.iter().map(|(name, url)| format!("[registries.{name}]\nindex = \"{url}\"\n{provider}\n")).collect()
}

/// Each registry that has this key, with its value.
fn registries(text: &str, key: &str) -> Vec<(String, String)> {
    let Ok(top) = DeTable::parse(text) else { return Vec::new() };
    let entries = top.get_ref().get("registries").and_then(|entries| entries.get_ref().as_table());
    let entries = entries.into_iter().flat_map(|entries| entries.iter());
    let value = |entry: &DeValue<'_>| Some(entry.get(key)?.get_ref().as_str()?.to_owned());
    entries.filter_map(|(name, entry)| Some((name.get_ref().to_string(), value(entry.get_ref())?))).collect()
}

fn home(settings: &Settings<'_>) -> Option<PathBuf> {
    settings.variable("CARGO_HOME").map(PathBuf::from).or_else(|| settings.home(".cargo"))
}

fn files(settings: &Settings<'_>) -> Vec<PathBuf> {
    home(settings).into_iter().flat_map(|home| [home.join("config.toml"), home.join("config")]).collect()
}

fn urls(text: &str) -> Vec<String> {
    let Ok(top) = DeTable::parse(text) else { return Vec::new() };
    let tables = [("source", ["registry", "local-registry"]), ("registries", ["index", "index"])];
    let mut urls = Vec::new();
    for (table, [key, other]) in tables {
        let entries = top.get_ref().get(table).and_then(|entries| entries.get_ref().as_table());
        for (_, entry) in entries.into_iter().flat_map(|entries| entries.iter()) {
            let entry: &DeValue<'_> = entry.get_ref();
            let url = entry.get(key).or_else(|| entry.get(other)).and_then(|url| url.get_ref().as_str());
            urls.extend(url.map(str::to_owned));
        }
    }
    urls
}

#[cfg(test)]
mod tests {
    use super::super::tests::{expected, told_on};

    #[test]
    fn replaced_sources_and_further_registries_are_found() {
        let text = "\
[source.crates-io]
replace-with = \"mirror\"
[source.mirror]
registry = \"sparse+https://crates.example.com/index/\"
[source.vendored]
directory = \"vendor\"
[registries.acme]
index = \"https://git.example.com/index\"
";
        let variables =
            [("CARGO_HOME", "/opt/cargo"), ("CARGO_REGISTRIES_X_INDEX", "sparse+http://x.example.com:8000/")];
        let hosts: &[(&str, &[&str])] = &[
            ("CARGO_REGISTRIES_X_INDEX", &["x.example.com:8000"]),
            ("/opt/cargo/config.toml", &["crates.example.com", "git.example.com"]),
        ];
        assert_eq!(told_on("crates", &variables, &[("/opt/cargo/config.toml", text)]), expected(hosts));
        assert!(told_on("crates", &[("CARGO_HOME", "/c")], &[("/c/config.toml", "not = = toml")]).is_empty());
    }
}
