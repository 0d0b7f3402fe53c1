//! cargo: `[source.*] registry`, `[registries.*] index`, `CARGO_REGISTRIES_*_INDEX`.

use super::{Settings, Told};
use std::path::PathBuf;
use toml::de::{DeTable, DeValue};

pub(super) fn told(settings: &Settings<'_>) -> Vec<Told> {
    let is_index = |name: &&String| name.starts_with("CARGO_REGISTRIES_") && name.ends_with("_INDEX");
    let variables = settings.variables.keys().filter(is_index).filter_map(|name| settings.in_variable(name));
    let files = files(settings).into_iter().filter_map(|path| settings.in_file(&path, urls));
    variables.chain(files).collect()
}

fn files(settings: &Settings<'_>) -> Vec<PathBuf> {
    let home = settings.variable("CARGO_HOME").map(PathBuf::from).or_else(|| settings.home(".cargo"));
    home.into_iter().flat_map(|home| [home.join("config.toml"), home.join("config")]).collect()
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
