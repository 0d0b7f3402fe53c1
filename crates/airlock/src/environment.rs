//! The environment that enters a sandbox: a short safe list, and what was named. Pure, given the host's variables.

use crate::args::values::{EnvWord, env_word};
use std::collections::BTreeMap;

/// Variables of the host that enter as they are.
const PASSED: [&str; 5] = ["TERM", "COLORTERM", "NO_COLOR", "LANG", "TZ"];
/// Those that an image knows nothing about.
const ABOUT_TERMINAL: [&str; 3] = ["TERM", "COLORTERM", "NO_COLOR"];
/// Where programs are looked for in any case.
const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// Directories of the host that are inside too, with whatever is below them.
const INSIDE: [&str; 5] = ["/usr", "/bin", "/sbin", "/opt", "/lib"];

/// A line of an environment file that says nothing sensible.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct BadLine {
    /// Counted from 1.
    pub(crate) number: usize,
    /// The line itself.
    pub(crate) text: String,
    /// What is wrong with it.
    pub(crate) why: String,
}

/// The environment of a program: the safe list as user `user` of the sandbox, then `words` in their order.
pub(crate) fn environment(
    host: &BTreeMap<String, String>,
    user: &str,
    words: impl IntoIterator<Item = EnvWord>,
) -> BTreeMap<String, String> {
    let mut env: BTreeMap<String, String> = host
        .iter()
        .filter(|(name, _)| PASSED.contains(&name.as_str()) || name.starts_with("LC_"))
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect();
    env.insert("PATH".to_owned(), search_path(host.get("PATH").map_or("", String::as_str)));
    env.extend(identity(user));
    env.extend(named(host, words));
    env
}

/// The environment of a program of an image: its own variables, what tells about the terminal, then `words` in their order.
pub(crate) fn in_image(
    host: &BTreeMap<String, String>,
    image: BTreeMap<String, String>,
    hostname: &str,
    words: impl IntoIterator<Item = EnvWord>,
) -> BTreeMap<String, String> {
    let told = host.iter().filter(|(name, _)| ABOUT_TERMINAL.contains(&name.as_str()));
    let mut env: BTreeMap<String, String> = told.map(|(name, value)| (name.clone(), value.clone())).collect();
    env.insert("HOSTNAME".to_owned(), hostname.to_owned());
    env.extend(image);
    env.extend(named(host, words));
    env
}

/// What words name: their value, or the host's where it has one.
pub(crate) fn named(
    host: &BTreeMap<String, String>,
    words: impl IntoIterator<Item = EnvWord>,
) -> BTreeMap<String, String> {
    let chosen = words.into_iter().filter_map(|word| match word {
        EnvWord::Set(name, value) => Some((name, value)),
        EnvWord::FromHost(name) => host.get(&name).map(|value| (name.clone(), value.clone())),
    });
    chosen.collect()
}

/// The words of a file as docker has it: `NAME=VALUE` or `NAME` a line, empty lines and `#` lines skipped, nothing
/// unquoted or expanded.
pub(crate) fn parse_file(text: &str) -> Result<Vec<EnvWord>, BadLine> {
    let lines = text.trim_start_matches('\u{feff}').lines().enumerate();
    let meant = lines.map(|(index, line)| (index + 1, line.trim_start()));
    let meant = meant.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    meant
        .map(|(number, line)| env_word(line).map_err(|why| BadLine { number, text: line.to_owned(), why }))
        .collect()
}

/// The host's search path as far as it exists inside, then the usual directories.
fn search_path(host: &str) -> String {
    let exists = |dir: &&str| {
        let plain = !dir.split('/').any(|part| part == ".." || part == ".");
        plain
            && INSIDE
                .iter()
                .any(|top| dir.strip_prefix(top).is_some_and(|rest| rest.is_empty() || rest.starts_with('/')))
    };
    let mut path: Vec<&str> = Vec::new();
    for dir in host.split(':').filter(exists).chain(DEFAULT_PATH.split(':')) {
        if !path.contains(&dir) {
            path.push(dir);
        }
    }
    path.join(":")
}

/// `HOME` and `USER`, where the user's name tells. A bare number's home is known only inside.
fn identity(user: &str) -> Vec<(String, String)> {
    let name = user.split(':').next().unwrap_or(user);
    let (home, name) = match name {
        "0" | "root" => ("/root".to_owned(), "root"),
        number if number.bytes().all(|byte| byte.is_ascii_digit()) => return Vec::new(),
        name => (format!("/home/{name}"), name),
    };
    vec![("HOME".to_owned(), home), ("USER".to_owned(), name.to_owned())]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host() -> BTreeMap<String, String> {
        let pairs = [
            ("PATH", "/home/ada/bin:/usr/bin:/opt/tool/bin:/usr/../etc:/usrlocal:relative"),
            ("HOME", "/home/ada"),
            ("USER", "ada"),
            ("LC_ALL", "C"),
            ("TERM", "xterm"),
            ("AWS_SECRET_ACCESS_KEY", "x"),
            ("SSH_AUTH_SOCK", "/run/agent"),
        ];
        pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).into()
    }

    fn text(env: &BTreeMap<String, String>) -> String {
        env.iter().map(|(name, value)| format!("{name}={value}\n")).collect()
    }

    #[test]
    fn only_the_safe_list_enters_unasked() {
        let expected = "\
HOME=/root
LC_ALL=C
PATH=/usr/bin:/opt/tool/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/sbin:/bin
TERM=xterm
USER=root
";
        assert_eq!(text(&environment(&host(), "0", [])), expected);
    }

    #[test]
    fn named_variables_enter_the_last_one_wins_and_missing_ones_do_not() {
        let words = ["A=1", "A=2", "SSH_AUTH_SOCK", "MISSING", "HOME=/x"].map(|word| env_word(word).unwrap());
        let env = environment(&host(), "root", words);
        assert_eq!(env["A"], "2");
        assert_eq!(env["SSH_AUTH_SOCK"], "/run/agent");
        assert_eq!(env["HOME"], "/x");
        assert!(!env.contains_key("MISSING"));
    }

    #[test]
    fn a_user_has_its_own_home() {
        assert_eq!(environment(&host(), "bob:staff", [])["HOME"], "/home/bob");
        assert!(!environment(&host(), "1000", []).contains_key("HOME"));
    }

    #[test]
    fn a_file_is_read_as_docker_does() {
        let words = parse_file("\u{feff}# comment\n\nA=\"quoted\"\n  B\nC=x # not a comment\n").unwrap();
        let expected = ["A=\"quoted\"", "B", "C=x # not a comment"].map(|word| env_word(word).unwrap());
        assert_eq!(words, expected);
    }

    #[test]
    fn a_bad_line_is_named() {
        let bad = parse_file("A=1\n\nexport B=2\n").unwrap_err();
        assert_eq!((bad.number, bad.text.as_str()), (3, "export B=2"));
    }
}
