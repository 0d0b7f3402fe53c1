//! npm: `registry`, also of single scopes (`@acme:registry`).

use super::{
    Settings, Told, ini,
    tokens::{Found, without_login},
};
use data_encoding::BASE64;
use std::path::PathBuf;

pub(super) fn told(settings: &Settings<'_>) -> Vec<Told> {
    let variables = ["NPM_CONFIG_REGISTRY", "npm_config_registry"];
    let mut told: Vec<Told> =
        variables.iter().find_map(|name| settings.in_variable(name)).into_iter().collect();
    told.extend(
        files(settings).iter().filter_map(|path| settings.in_file(path, |text| urls(text, settings))),
    );
    told
}

fn files(settings: &Settings<'_>) -> Vec<PathBuf> {
    let named = |upper: &str, lower: &str| {
        settings.variable(upper).or_else(|| settings.variable(lower)).map(PathBuf::from)
    };
    let user = named("NPM_CONFIG_USERCONFIG", "npm_config_userconfig").or_else(|| settings.home(".npmrc"));
    let global = named("NPM_CONFIG_GLOBALCONFIG", "npm_config_globalconfig");
    let usual = ["/etc/npmrc", "/usr/etc/npmrc", "/usr/local/etc/npmrc"].map(PathBuf::from);
    user.into_iter().chain(global).chain(usual).collect()
}

fn urls(text: &str, settings: &Settings<'_>) -> Vec<String> {
    let is_registry = |key: &str| key == "registry" || (key.starts_with('@') && key.ends_with(":registry"));
    let pairs = ini::pairs(text).into_iter().filter(|(key, _)| is_registry(key));
    pairs.map(|(_, value)| expanded(&value, settings)).collect()
}

/// `//HOST/PATH/:_authToken`, and `_password` (in base64) with its user name.
pub(super) fn tokens(settings: &Settings<'_>) -> Vec<Found> {
    let mut found: Vec<Found> = Vec::new();
    for path in files(settings) {
        for (key, value) in ini::pairs(&(settings.read)(&path).unwrap_or_default()) {
            let value = expanded(&value, settings);
            if !found.iter().any(|known| known.key == key) {
                found.extend(token(key, value));
            }
        }
    }
    found
}

/// Which registries there are, as the client inside reads it: without them it would log in nowhere.
pub(super) fn settings_inside(settings: &Settings<'_>) -> String {
    let mut lines: Vec<(String, String)> = Vec::new();
    for path in files(settings) {
        for (key, value) in ini::pairs(&(settings.read)(&path).unwrap_or_default()) {
            let is_registry = key == "registry" || (key.starts_with('@') && key.ends_with(":registry"));
            let url = without_login(&expanded(&value, settings));
            if is_registry && !lines.iter().any(|(own, _)| *own == key) {
                lines.push((key, url));
            }
        }
    }
    lines.iter().map(|(key, url)| format!("{key}={url}\n")).collect()
}

fn token(key: String, value: String) -> Option<Found> {
    let (place, kind) = key.rsplit_once(':')?;
    let url = format!("https:{place}");
    if !place.starts_with("//") {
        return None;
    }
    let line = key.clone();
    match kind {
        "_authToken" => {
            let render = Box::new(move |here: &str| format!("{line}={here}\n"));
            Some(Found { key, url, value, path: ".npmrc", render })
        }
        "_auth" => {
            let login = String::from_utf8(BASE64.decode(value.as_bytes()).ok()?).ok()?;
            let (user, password) =
                login.split_once(':').map(|(user, word)| (user.to_owned(), word.to_owned()))?;
            let encoded = move |here: &str| BASE64.encode(format!("{user}:{here}").as_bytes());
            let render = Box::new(move |here: &str| format!("{line}={}\n", encoded(here)));
            Some(Found { key, url, value: password, path: ".npmrc", render })
        }
        _ => None,
    }
}

/// `${NAME}` stands for a variable.
fn expanded(value: &str, settings: &Settings<'_>) -> String {
    let mut text = String::new();
    let mut rest = value;
    while let Some((before, after)) = rest.split_once("${") {
        let Some((name, behind)) = after.split_once('}') else { break };
        text.push_str(before);
        text.push_str(settings.variable(name).unwrap_or_default());
        rest = behind;
    }
    text + rest
}

#[cfg(test)]
mod tests {
    use super::super::tests::{expected, told_on};

    #[test]
    fn registries_of_the_user_of_scopes_and_of_the_host_are_found() {
        let files = [
            (
                "/home/ada/.npmrc",
                "registry=https://npm.example.com/\n@acme:registry = https://${HOST}/npm/\n//npm.example.com/:_authToken=x\n",
            ),
            ("/etc/npmrc", "registry=https://mirror.example.org:8443\n"),
        ];
        let told = told_on("npm", &[("HOME", "/home/ada"), ("HOST", "acme.example.com")], &files);
        let hosts: &[(&str, &[&str])] = &[
            ("/home/ada/.npmrc", &["npm.example.com", "acme.example.com"]),
            ("/etc/npmrc", &["mirror.example.org:8443"]),
        ];
        assert_eq!(told, expected(hosts));
    }

    #[test]
    fn a_login_in_base64_is_written_anew_with_what_stands_for_it() {
        let found = super::token("//npm.example.com/:_auth".into(), "YW5uOnBhc3N3b3Jk".into()).unwrap();
        assert_eq!((found.value.as_str(), found.url.as_str()), ("password", "https://npm.example.com/"));
        assert_eq!((found.render)("HERE"), "//npm.example.com/:_auth=YW5uOkhFUkU=\n");
        assert!(super::token("registry".into(), "https://x".into()).is_none());
    }

    #[test]
    fn a_variable_names_a_registry_or_another_file() {
        let told = told_on("npm", &[("npm_config_registry", "https://npm.example.com")], &[]);
        assert_eq!(told, expected(&[("npm_config_registry", &["npm.example.com"])]));
        let files = [("/etc/other", "registry=https://other.example.com")];
        let told = told_on("npm", &[("HOME", "/home/ada"), ("NPM_CONFIG_USERCONFIG", "/etc/other")], &files);
        assert_eq!(told, expected(&[("/etc/other", &["other.example.com"])]));
    }
}
