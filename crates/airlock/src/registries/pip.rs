//! pip (and uv, which reads variables of its own): `index-url` and `extra-index-url`.

use super::{Settings, Told, ini};
use std::path::PathBuf;

const VARIABLES: [&str; 6] = [
    "PIP_INDEX_URL",
    "PIP_EXTRA_INDEX_URL",
    "UV_DEFAULT_INDEX",
    "UV_INDEX",
    "UV_INDEX_URL",
    "UV_EXTRA_INDEX_URL",
];

pub(super) fn told(settings: &Settings<'_>) -> Vec<Told> {
    let variables = VARIABLES.iter().filter_map(|name| settings.in_variable(name)).map(without_names);
    let files = files(settings).into_iter().filter_map(|path| settings.in_file(&path, urls));
    variables.chain(files).collect()
}

/// uv allows `name=URL`.
fn without_names(told: Told) -> Told {
    let bare = |url: String| match url.split_once('=') {
        Some((name, url)) if !name.contains('/') => url.to_owned(),
        _ => url,
    };
    Told { urls: told.urls.into_iter().map(bare).collect(), ..told }
}

fn files(settings: &Settings<'_>) -> Vec<PathBuf> {
    let named = settings.variable("PIP_CONFIG_FILE").map(PathBuf::from);
    let usual = ["/etc/pip.conf", "/etc/xdg/pip/pip.conf"].map(PathBuf::from);
    named
        .into_iter()
        .chain(settings.user_config("pip/pip.conf"))
        .chain(settings.home(".pip/pip.conf"))
        .chain(usual)
        .collect()
}

fn urls(text: &str) -> Vec<String> {
    let is_index = |key: &str| {
        let key = key.rsplit('.').next().unwrap_or(key).replace('_', "-");
        key == "index-url" || key == "extra-index-url"
    };
    let pairs = ini::pairs(text).into_iter().filter(|(key, _)| is_index(key));
    pairs.flat_map(|(_, value)| value.split_whitespace().map(str::to_owned).collect::<Vec<_>>()).collect()
}

#[cfg(test)]
mod tests {
    use super::super::tests::{expected, told_on};

    #[test]
    fn indexes_of_variables_and_files_are_found() {
        let variables = [
            ("HOME", "/home/ada"),
            ("PIP_EXTRA_INDEX_URL", "https://a.example.com/simple https://b.example.com/simple"),
            ("UV_INDEX", "acme=https://uv.example.com/simple"),
        ];
        let files = [
            (
                "/home/ada/.config/pip/pip.conf",
                "[global]\nindex-url = https://u:p@pip.example.com/simple\n[install]\nextra-index-url =\n  https://x.example.com:8081/\n",
            ),
            ("/etc/pip.conf", "[global]\ntimeout = 60\n"),
        ];
        let hosts: &[(&str, &[&str])] = &[
            ("PIP_EXTRA_INDEX_URL", &["a.example.com", "b.example.com"]),
            ("UV_INDEX", &["uv.example.com"]),
            ("/home/ada/.config/pip/pip.conf", &["pip.example.com", "x.example.com:8081"]),
        ];
        assert_eq!(told_on("pypi", &variables, &files), expected(hosts));
    }
}
