//! pip (and uv, which reads variables of its own): `index-url` and `extra-index-url`.

use super::{
    Settings, Told, destination, ini,
    tokens::{Found, without_login},
};
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

/// Passwords in URLs; inside, the client finds them by the host.
pub(super) fn tokens(settings: &Settings<'_>) -> Vec<Found> {
    told(settings).into_iter().flat_map(|told| told.urls).filter_map(token).collect()
}

/// Which indexes there are, as the client inside reads it.
pub(super) fn settings_inside(settings: &Settings<'_>) -> String {
    let mut found = [("index-url", "PIP_INDEX_URL"), ("extra-index-url", "PIP_EXTRA_INDEX_URL")]
        .map(|(key, variable)| (key, settings.variable(variable).map(str::to_owned)));
    for path in files(settings) {
        for (key, value) in ini::pairs(&(settings.read)(&path).unwrap_or_default()) {
            let bare = key.rsplit('.').next().unwrap_or(&key).replace('_', "-");
            let slot = found.iter_mut().find(|(own, known)| *own == bare && known.is_none());
            slot.into_iter().for_each(|(_, slot)| *slot = Some(value.clone()));
        }
    }
    let plain = |urls: String| urls.split_whitespace().map(without_login).collect::<Vec<_>>().join(" ");
    let lines = found.into_iter().filter_map(|(key, urls)| Some(format!("{key} = {}\n", plain(urls?))));
    let lines: String = lines.collect();
    if lines.is_empty() { lines } else { format!("[global]\n{lines}") }
}

fn token(url: String) -> Option<Found> {
    let (scheme, rest) = url.split_once("://")?;
    let authority = rest.split(['/', '?', '#']).next()?;
    let (login, host) = authority.rsplit_once('@')?;
    let (user, password) = login.split_once(':')?;
    let (user, password) = (decoded(user)?, decoded(password)?);
    let is_plain = user.bytes().all(|byte| byte.is_ascii_graphic());
    let machine = destination(&url)?.target.to_string();
    let (key, name) = (format!("{scheme}://{user}@{host}"), user.clone());
    let render = Box::new(move |here: &str| format!("machine {machine} login {name} password {here}\n"));
    is_plain.then_some(Found { key, url, value: password, path: ".netrc", render })
}

/// `%41` is `A`.
fn decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((byte, after)) = rest.split_first() {
        match (byte, after) {
            (b'%', [high, low, behind @ ..]) => {
                let digit =
                    |digit: u8| char::from(digit).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
                bytes.push(digit(*high)? << 4 | digit(*low)?);
                rest = behind;
            }
            _ => {
                bytes.push(*byte);
                rest = after;
            }
        }
    }
    String::from_utf8(bytes).ok()
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
