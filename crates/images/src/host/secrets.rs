//! Which names of the host are never shown, whoever may read them there: the rules made of the lists in
//! [`super::credentials`] and of what the caller names.
//!
//! ```ignore
//! let rules = Rules::new(&["/var/lib/airlock".into()]);
//! let etc = rules.below(&rules.start(), b"etc");
//! assert!(matches!(rules.verdict(&etc, b"shadow-"), Some(Then::Hide)));
//! ```

use super::credentials::{ANYWHERE, COVERED, HIDDEN, HIDDEN_WITH_PASSWORD};
use airlock_protocol::fingerprint::fingerprint;
use std::{
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

/// What happens to an entry that a rule names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Then {
    /// It is not there.
    Hide,
    /// It is not there if its text holds a password or a token.
    HideIfItHoldsAPassword,
    /// A directory is there by name only: the sandbox has one of its own in its place.
    Cover,
}

/// The rules for one host.
#[derive(Debug)]
pub(super) struct Rules {
    rules: Vec<Rule>,
}

/// The rules that may still match somewhere below a directory: (rule, names already matched).
pub(super) type Live = Vec<(usize, usize)>;

#[derive(Debug)]
struct Rule {
    names: Vec<Name>,
    then: Then,
}

#[derive(Debug)]
enum Name {
    Exactly(Vec<u8>),
    /// `*` stands for any bytes.
    Like(Vec<u8>),
}

impl Rules {
    /// The lists above, and `hidden` (absolute paths, taken literally).
    pub(super) fn new(hidden: &[PathBuf]) -> Self {
        let listed = [
            (HIDDEN, Then::Hide),
            (HIDDEN_WITH_PASSWORD, Then::HideIfItHoldsAPassword),
            (COVERED, Then::Cover),
        ];
        let mut rules: Vec<Rule> = Vec::new();
        for (paths, then) in listed {
            rules.extend(paths.iter().map(|path| Rule { names: names(path), then }));
        }
        rules.extend(hidden.iter().map(|path| Rule { names: literal_names(path), then: Then::Hide }));
        rules.retain(|rule| !rule.names.is_empty());
        Self { rules }
    }

    /// Every rule, as it stands at the host's root directory.
    pub(super) fn start(&self) -> Live {
        (0..self.rules.len()).map(|rule| (rule, 0)).collect()
    }

    /// The rules that may match below `name`, of those that may match beside it.
    pub(super) fn below(&self, live: &Live, name: &[u8]) -> Live {
        live.iter()
            .filter(|(rule, depth)| {
                self.rules.get(*rule).is_some_and(|rule| {
                    rule.names.len() > depth.saturating_add(1)
                        && rule.names.get(*depth).is_some_and(|n| n.is(name))
                })
            })
            .map(|(rule, depth)| (*rule, depth.saturating_add(1)))
            .collect()
    }

    /// What is said of `name` in the directory that `live` stands for; the strictest if several rules name it.
    pub(super) fn verdict(&self, live: &Live, name: &[u8]) -> Option<Then> {
        if name.first() == Some(&b'.') && ANYWHERE.contains(&name) {
            return Some(Then::Hide);
        }
        let mut found = None;
        for (rule, depth) in live {
            let Some(rule) = self.rules.get(*rule) else { continue };
            let is_last = rule.names.len() == depth.saturating_add(1);
            if is_last && rule.names.get(*depth).is_some_and(|n| n.is(name)) {
                if rule.then == Then::Hide {
                    return Some(Then::Hide);
                }
                found = Some(rule.then);
            }
        }
        found
    }

    /// Follows `path` (relative to the host's root) down: the rules live inside it, or what a rule says of it or of a
    /// directory above it.
    pub(super) fn descend(&self, path: &Path) -> Result<Live, Then> {
        let mut live = self.start();
        for name in path.iter() {
            match self.verdict(&live, name.as_bytes()) {
                Some(then @ (Then::Hide | Then::Cover)) => return Err(then),
                Some(Then::HideIfItHoldsAPassword) | None => {}
            }
            live = self.below(&live, name.as_bytes());
        }
        Ok(live)
    }
}

/// Changes whenever the lists do: a layer made from other lists is made again.
pub(super) fn revision() -> u64 {
    let lists = [HIDDEN, HIDDEN_WITH_PASSWORD, COVERED].into_iter().flatten().map(|path| path.as_bytes());
    lists
        .chain(ANYWHERE.iter().copied())
        .fold(0, |sum: u64, name| sum.rotate_left(1) ^ fingerprint(name.iter().copied()))
}

/// Whether settings hold what looks like a password or a token: one in an address, or a setting that is named so.
pub(super) fn holds_password(text: &[u8]) -> bool {
    text.split(|byte| *byte == b'\n').any(|line| {
        let line = line.trim_ascii();
        let is_comment = matches!(line.first(), None | Some(b'#' | b';'));
        !is_comment && (has_password_in_address(line) || has_secret_setting(line))
    })
}

impl Name {
    fn is(&self, name: &[u8]) -> bool {
        match self {
            Self::Exactly(wanted) => wanted == name,
            Self::Like(pattern) => is_like(pattern, name),
        }
    }
}

fn names(path: &str) -> Vec<Name> {
    path.split('/')
        .filter(|name| !name.is_empty())
        .map(|name| match name.contains('*') {
            true => Name::Like(name.as_bytes().to_vec()),
            false => Name::Exactly(name.as_bytes().to_vec()),
        })
        .collect()
}

fn literal_names(path: &Path) -> Vec<Name> {
    path.components()
        .filter_map(|part| match part {
            std::path::Component::Normal(name) => Some(Name::Exactly(name.as_bytes().to_vec())),
            _ => None,
        })
        .collect()
}

/// Matches `*` in linear space and without recursion: on a mismatch the last `*` takes one byte more.
fn is_like(pattern: &[u8], name: &[u8]) -> bool {
    let (mut p, mut n) = (0_usize, 0_usize);
    let mut retry: Option<(usize, usize)> = None;
    while n < name.len() {
        match pattern.get(p) {
            Some(b'*') => {
                p = p.saturating_add(1);
                retry = Some((p, n));
            }
            Some(byte) if name.get(n) == Some(byte) => {
                p = p.saturating_add(1);
                n = n.saturating_add(1);
            }
            _ => {
                let Some((after_star, taken)) = retry else { return false };
                p = after_star;
                n = taken.saturating_add(1);
                retry = Some((after_star, n));
            }
        }
    }
    pattern.get(p..).is_some_and(|rest| rest.iter().all(|byte| *byte == b'*'))
}

/// `scheme://user:password@host`, not `scheme://user:$VARIABLE@host`.
fn has_password_in_address(line: &[u8]) -> bool {
    let mut rest = line;
    while let Some(at) = rest.windows(3).position(|window| window == b"://") {
        rest = rest.get(at.saturating_add(3)..).unwrap_or_default();
        let end =
            rest.iter().position(|b| b.is_ascii_whitespace() || b"/\"'<>".contains(b)).unwrap_or(rest.len());
        let authority = rest.get(..end).unwrap_or_default();
        let Some(sign) = authority.iter().rposition(|byte| *byte == b'@') else { continue };
        let login = authority.get(..sign).unwrap_or_default();
        let password = login
            .iter()
            .position(|byte| *byte == b':')
            .and_then(|colon| login.get(colon.saturating_add(1)..));
        if password.is_some_and(|password| !matches!(password.first(), None | Some(b'$'))) {
            return true;
        }
    }
    false
}

/// `…password=x`, `_authToken: x`, `SECRET_KEY=x`: the part before the first `=` or `:` ends in such a word.
fn has_secret_setting(line: &[u8]) -> bool {
    const WORDS: &[&[u8]] =
        &[b"password", b"passwd", b"token", b"secret", b"secretkey", b"apikey", b"accesskey", b"auth"];
    line.split(|byte| b", \t".contains(byte)).any(|word| {
        let Some(sign) = word
            .iter()
            .rposition(|byte| *byte == b'=')
            .or_else(|| word.iter().rposition(|byte| *byte == b':'))
        else {
            return false;
        };
        let name: Vec<u8> = word
            .get(..sign)
            .unwrap_or_default()
            .iter()
            .filter(|b| b.is_ascii_alphanumeric())
            .map(u8::to_ascii_lowercase)
            .collect();
        let value = word.get(sign.saturating_add(1)..).unwrap_or_default();
        let is_reference = matches!(value.first(), Some(b'$' | b'`'));
        !value.is_empty() && !is_reference && WORDS.iter().any(|secret| name.ends_with(secret))
    }) || spaced_setting(line)
}

/// `password = x`, with spaces around the sign.
fn spaced_setting(line: &[u8]) -> bool {
    let Some(sign) = line.iter().position(|byte| *byte == b'=') else { return false };
    let name = line.get(..sign).unwrap_or_default().trim_ascii().to_ascii_lowercase();
    let value = line.get(sign.saturating_add(1)..).unwrap_or_default().trim_ascii();
    let is_secret =
        [&b"password"[..], b"passwd", b"token", b"secret"].iter().any(|word| name.ends_with(word));
    is_secret && !matches!(value.first(), None | Some(b'$'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn verdict(path: &str) -> Option<Then> {
        let rules = Rules::new(&["/var/lib/air*lock".into()]);
        let path = Path::new(path.trim_start_matches('/'));
        match rules.descend(path.parent().unwrap()) {
            Ok(live) => rules.verdict(&live, path.file_name().unwrap().as_bytes()),
            Err(then) => Some(then),
        }
    }

    #[test]
    fn credential_files_are_hidden_by_name() {
        for path in [
            "/etc/shadow",
            "/etc/shadow-",
            "/etc/ssh/ssh_host_ed25519_key",
            "/etc/kubernetes/admin.conf",
            "/var/lib/x/.ssh",
        ] {
            assert_eq!(verdict(path), Some(Then::Hide), "{path}");
        }
        for path in [
            "/etc/passwd",
            "/etc/ssh/ssh_host_ed25519_key.pub",
            "/etc/ssl/certs",
            "/usr/etc/shadow",
            "/var/lib/dpkg",
        ] {
            assert_eq!(verdict(path), None, "{path}");
        }
    }

    #[test]
    fn a_star_in_a_path_of_the_caller_is_only_a_star() {
        assert_eq!(verdict("/var/lib/air*lock"), Some(Then::Hide));
        assert_eq!(verdict("/var/lib/airXlock"), None);
    }

    #[test]
    fn a_password_in_settings_is_found() {
        for text in [
            "[global]\nindex-url = https://me:pa55@pypi.test/simple",
            "//npm.test/:_authToken=abc",
            "//nas/x /mnt cifs username=a,password=b 0 0",
            "password = hunter2",
            "deb [trusted=yes] https://u:p@deb.test/ stable main",
            "export API_TOKEN=abc",
        ] {
            assert!(holds_password(text.as_bytes()), "{text}");
        }
        for text in [
            "index-url = https://pypi.test/simple",
            "# password=x",
            "deb http://deb.test/a:b stable",
            "PASSWORD=$1",
            "token=",
            "",
        ] {
            assert!(!holds_password(text.as_bytes()), "{text}");
        }
    }

    proptest! {
        #[test]
        fn a_pattern_matches_what_it_was_made_from(a in "[a-z]{0,8}", b in "[a-z]{0,8}", c in "[a-z]{0,8}") {
            let (pattern, name, other) = (format!("{a}*{c}"), format!("{a}{b}{c}"), format!("X{a}{b}"));
            prop_assert!(is_like(pattern.as_bytes(), name.as_bytes()));
            prop_assert!(a.is_empty() || !is_like(pattern.as_bytes(), other.as_bytes()));
        }

        #[test]
        fn any_text_can_be_asked_about(text in proptest::collection::vec(any::<u8>(), 0..512)) {
            let _ = holds_password(&text);
            let _ = is_like(&text, &text);
        }
    }
}
