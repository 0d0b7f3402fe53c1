//! Bounds of text that came from outside: length, and no character that could steer a terminal.

use airlock_protocol::ledger::{Crossing, Entry};

/// Characters of a host name.
const NAME: usize = 255;
/// Characters of what is said for a person.
const DETAIL: usize = 512;
/// Characters of a word.
const WORD: usize = 64;

/// Cuts every text of an entry to its bound.
pub(super) fn bound(entry: &mut Entry) {
    match entry {
        Entry::Decision { crossing, rule, reason, detail, .. } => {
            bound_crossing(crossing);
            [(rule, DETAIL), (reason, WORD), (detail, DETAIL)].into_iter().for_each(|(text, most)| {
                if let Some(text) = text {
                    clip(text, most);
                }
            });
        }
        Entry::Flow { host, address, status, .. } => {
            clip(host, NAME);
            clip(status, WORD);
            if let Some(address) = address {
                clip(address, WORD);
            }
        }
        Entry::Policy { by, .. } => clip(by, WORD),
        Entry::Asked { request, crossing, rule } => {
            clip(request, WORD);
            bound_crossing(crossing);
            clip(rule, DETAIL);
        }
        Entry::Approval { request, by, .. } => {
            clip(request, WORD);
            clip(by, WORD);
        }
        Entry::Rotated { .. } | Entry::Torn { .. } => {}
    }
}

fn bound_crossing(crossing: &mut Crossing) {
    match crossing {
        Crossing::Resolve { host, question } => {
            clip(host, NAME);
            clip(question, WORD);
        }
        Crossing::Connect { host, protocol, .. } => {
            clip(host, NAME);
            clip(protocol, WORD);
        }
        Crossing::Request { host, method, path, .. } => {
            clip(host, NAME);
            clip(method, WORD);
            clip(path, DETAIL);
        }
        Crossing::Reveal { secret, host, .. } => {
            clip(secret, WORD);
            clip(host, NAME);
        }
        Crossing::Publish { from, .. } => clip(from, WORD),
        Crossing::Mount { source, target, access } => {
            clip(source, DETAIL);
            clip(target, DETAIL);
            clip(access, WORD);
        }
        Crossing::File { path, touch } => {
            clip(path, DETAIL);
            clip(touch, WORD);
        }
    }
}

/// A detail as the ledger has it, for a person.
pub(crate) fn shown(text: &str) -> String {
    let mut text = text.to_owned();
    clip(&mut text, DETAIL);
    text
}

/// At most `most` characters; what a terminal would obey becomes U+FFFD.
fn clip(text: &mut String, most: usize) {
    let is_plain = text.len() <= most && text.bytes().all(|byte| (0x20..0x7f).contains(&byte));
    if !is_plain {
        let shown = |char: char| if is_steering(char) { char::REPLACEMENT_CHARACTER } else { char };
        *text = text.chars().take(most).map(shown).collect();
    }
}

/// Control characters, and those that turn the direction of writing.
fn is_steering(char: char) -> bool {
    char.is_control()
        || matches!(char, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_cut_and_cannot_steer_a_terminal() {
        let mut entry = Entry::Decision {
            crossing: Crossing::Resolve {
                host: "a".repeat(300),
                question: "\u{1b}[2J\u{9b}1m\u{202e}x\n".into(),
            },
            verdict: airlock_protocol::policy::Verdict::Deny,
            audit_only: false,
            rule: None,
            reason: None,
            detail: Some("ö".repeat(600)),
            flow: None,
            times: None,
        };

        bound(&mut entry);

        let Entry::Decision { crossing: Crossing::Resolve { host, question }, detail, .. } = entry else {
            panic!()
        };
        assert_eq!(host, "a".repeat(255));
        assert_eq!(question, "\u{fffd}[2J\u{fffd}1m\u{fffd}x\u{fffd}");
        assert_eq!(detail, Some("ö".repeat(512)));
    }
}
