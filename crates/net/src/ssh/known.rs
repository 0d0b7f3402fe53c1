//! `known_hosts`: which keys a host may have (`sshd(8)`, "SSH_KNOWN_HOSTS FILE FORMAT").
//!
//! Lines for authorities (`@cert-authority`) are passed over: a host that shows a certificate shows its key too, or is not known.

use aws_lc_rs::hmac::{self, HMAC_SHA1_FOR_LEGACY_USE_ONLY};
use data_encoding::BASE64;

/// The keys that `host` may have at `port`, as SSH writes them; none of those that are revoked.
///
/// ```text
/// keys("git.example.com ssh-ed25519 AAAA…", "git.example.com", 22)
/// ```
pub(crate) fn keys(text: &str, host: &str, port: u16) -> Vec<Vec<u8>> {
    let place = if port == 22 { host.to_owned() } else { format!("[{host}]:{port}") };
    let lines: Vec<Line> = text.lines().filter_map(Line::read).filter(|line| line.is_about(&place)).collect();
    let is_revoked = |key: &Vec<u8>| lines.iter().any(|line| line.is_revoked && line.key == *key);
    let known = lines.iter().filter(|line| !line.is_revoked).map(|line| line.key.clone());
    known.filter(|key| !is_revoked(key)).collect()
}

struct Line<'a> {
    is_revoked: bool,
    hosts: &'a str,
    key: Vec<u8>,
}

impl Line<'_> {
    fn read(line: &str) -> Option<Line<'_>> {
        let mut words = line.split_ascii_whitespace();
        let mut hosts = words.next().filter(|word| !word.starts_with('#'))?;
        let is_revoked = hosts == "@revoked";
        if is_revoked {
            hosts = words.next()?;
        } else if hosts.starts_with('@') {
            return None;
        }
        let kind = words.next()?;
        let key = BASE64.decode(words.next()?.as_bytes()).ok()?;
        let is_so = super::wire::Reader::new(&key).text().is_ok_and(|inside| inside == kind);
        is_so.then_some(Line { is_revoked, hosts, key })
    }

    /// Whether one of its patterns is this host, and none excludes it.
    fn is_about(&self, place: &str) -> bool {
        let mut is_about = false;
        for pattern in self.hosts.split(',') {
            match pattern.strip_prefix('!') {
                Some(excluded) if matches(excluded, place) => return false,
                Some(_) => {}
                None => is_about |= matches(pattern, place),
            }
        }
        is_about
    }
}

fn matches(pattern: &str, place: &str) -> bool {
    match pattern.strip_prefix("|1|") {
        Some(hashed) => matches_hash(hashed, place).unwrap_or(false),
        None => matches_wild(pattern.to_ascii_lowercase().as_bytes(), place.as_bytes()),
    }
}

/// `SALT|HASH`, both in base64.
fn matches_hash(hashed: &str, place: &str) -> Option<bool> {
    let (salt, hash) = hashed.split_once('|')?;
    let salt = BASE64.decode(salt.as_bytes()).ok()?;
    let hash = BASE64.decode(hash.as_bytes()).ok()?;
    let key = hmac::Key::new(HMAC_SHA1_FOR_LEGACY_USE_ONLY, &salt);
    Some(hmac::verify(&key, place.as_bytes(), &hash).is_ok())
}

/// `*` is anything, `?` one character; in time that grows with both lengths and no more.
fn matches_wild(pattern: &[u8], text: &[u8]) -> bool {
    let (mut p, mut t, mut star) = (0, 0, None);
    while let Some(byte) = text.get(t) {
        match pattern.get(p) {
            Some(b'*') => {
                star = Some((p, t));
                p += 1;
            }
            Some(wanted) if wanted == byte || *wanted == b'?' => (p, t) = (p + 1, t + 1),
            _ => {
                let Some((at, begun)) = star else { return false };
                star = Some((at, begun + 1));
                (p, t) = (at + 1, begun + 1);
            }
        }
    }
    pattern.get(p..).unwrap_or_default().iter().all(|byte| *byte == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ONE: &str = "AAAAC3NzaC1lZDI1NTE5AAAAIAEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEB";
    const OTHER: &str = "AAAAC3NzaC1lZDI1NTE5AAAAIAICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgIC";

    fn known(text: &str, host: &str, port: u16) -> Vec<String> {
        keys(text, host, port).iter().map(|key| BASE64.encode(key)).collect()
    }

    #[test]
    fn a_host_is_found_by_name_pattern_and_port() {
        let text = format!(
            "# comment\n\na.test,b.test ssh-ed25519 {ONE} me@host\n*.c.test,!x.c.test ssh-ed25519 {ONE}\n[a.test]:2222 ssh-ed25519 {OTHER}\n"
        );
        assert_eq!(known(&text, "a.test", 22), [ONE]);
        assert_eq!(known(&text, "b.test", 22), [ONE]);
        assert_eq!(known(&text, "a.test", 2222), [OTHER]);
        assert_eq!(known(&text, "y.c.test", 22), [ONE]);
        assert_eq!(known(&text, "x.c.test", 22), Vec::<String>::new());
        assert_eq!(known(&text, "z.test", 22), Vec::<String>::new());
    }

    #[test]
    fn a_hashed_name_is_found() {
        let key = hmac::Key::new(HMAC_SHA1_FOR_LEGACY_USE_ONLY, b"salt of some kind");
        let hash = hmac::sign(&key, b"a.test");
        let line = format!(
            "|1|{}|{} ssh-ed25519 {ONE}",
            BASE64.encode(b"salt of some kind"),
            BASE64.encode(hash.as_ref())
        );
        assert_eq!(known(&line, "a.test", 22), [ONE]);
        assert_eq!(known(&line, "b.test", 22), Vec::<String>::new());
    }

    #[test]
    fn what_is_revoked_or_about_an_authority_is_not_known() {
        let text = format!(
            "a.test ssh-ed25519 {ONE}\n@revoked * ssh-ed25519 {ONE}\n@cert-authority a.test ssh-ed25519 {OTHER}\na.test ssh-rsa {OTHER}\n"
        );
        assert_eq!(known(&text, "a.test", 22), Vec::<String>::new());
    }

    proptest! {
        #[test]
        fn any_text_is_taken(text in ".{0,200}", line in "(\\||1|,|\\*|!|@revoked| |a|[+/=]){0,30}") {
            let _ = (keys(&text, "a.test", 22), keys(&line, "a.test", 22));
        }

        #[test]
        fn a_pattern_matches_as_a_slow_one_does(pattern in "[ab*?]{0,8}", text in "[ab]{0,8}") {
            fn slow(pattern: &[u8], text: &[u8]) -> bool {
                match (pattern.split_first(), text.split_first()) {
                    (None, None) => true,
                    (Some((b'*', rest)), _) => slow(rest, text) || text.split_first().is_some_and(|(_, text)| slow(pattern, text)),
                    (Some((one, rest)), Some((byte, text))) => (one == byte || *one == b'?') && slow(rest, text),
                    _ => false,
                }
            }
            prop_assert_eq!(matches_wild(pattern.as_bytes(), text.as_bytes()), slow(pattern.as_bytes(), text.as_bytes()));
        }
    }
}
