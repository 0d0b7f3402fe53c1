//! The question a person is asked in the terminal of a foreground run.
//!
//! It stands alone on an empty screen, while the program's output is held back, and carries two words that were shown
//! before the program began. A program can paint anything, this too; but what is typed at its painting goes to the program
//! and answers nothing, and what is typed at a real question never reaches the program. See `docs/approvals.md`.

mod keys;
mod page;
mod screen;

pub(crate) use screen::Screen;

use airlock_protocol::{
    approval::{Given, Pending, Scope},
    spec::WindowSize,
};
use keys::{Key, Keys};

/// One question on the screen.
#[derive(Debug)]
pub(crate) struct Prompt {
    pub(crate) pending: Pending,
    words: String,
    keys: Keys,
    /// When it is refused unanswered, on the clock of whoever asks.
    until: u64,
    /// Whether the screen shows all that matters.
    is_whole: bool,
}

/// What a person did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reaction {
    /// Answered.
    Answered(Given, Scope),
    /// Put it off, or let the time run out.
    Later,
}

impl Prompt {
    /// A question that is asked at `now` and waits for `wait` milliseconds.
    pub(crate) fn new(pending: Pending, words: &str, (now, wait): (u64, u64), random: [u8; 2]) -> Prompt {
        // A place that every terminal has, and that no program can know.
        let [row, column] = random;
        let mark = (u16::from(row % 20) + 2, u16::from(column % 60) + 2);
        Prompt {
            pending,
            words: words.to_owned(),
            keys: Keys::new(mark, now),
            until: now.saturating_add(wait),
            is_whole: false,
        }
    }

    /// The question as bytes for an empty screen of this size. What is not wholly shown cannot be allowed.
    pub(crate) fn draw(&mut self, size: WindowSize) -> Vec<u8> {
        let page = page::page(&self.pending, &self.words, size);
        self.is_whole = page.is_whole;
        let mut text = String::from("\x1b[2J\x1b[H");
        for line in &page.lines {
            text += line;
            text += "\r\n";
        }
        text += &self.keys.question();
        text.into_bytes()
    }

    /// What was typed.
    pub(crate) fn typed(&mut self, bytes: &[u8], now: u64) -> Option<Reaction> {
        self.keys.typed(bytes, now).and_then(|key| self.reaction(key))
    }

    /// What time alone does.
    pub(crate) fn tick(&mut self, now: u64) -> Option<Reaction> {
        match now >= self.until {
            true => Some(Reaction::Later),
            false => self.keys.tick(now).and_then(|key| self.reaction(key)),
        }
    }

    /// Milliseconds after which [`Prompt::tick`] has something to say.
    pub(crate) fn due(&self, now: u64) -> u64 {
        let end = self.until.saturating_sub(now);
        self.keys.due(now).map_or(end, |escape| escape.min(end))
    }

    fn reaction(&self, key: Key) -> Option<Reaction> {
        reaction(key)
            .filter(|reaction| self.is_whole || !matches!(reaction, Reaction::Answered(Given::Approved, _)))
    }
}

fn reaction(key: Key) -> Option<Reaction> {
    match key {
        Key::Char(b'y' | b'Y') => Some(Reaction::Answered(Given::Approved, Scope::Once)),
        Key::Char(b's' | b'S') => Some(Reaction::Answered(Given::Approved, Scope::Sandbox)),
        Key::Char(b'a' | b'A') => Some(Reaction::Answered(Given::Approved, Scope::Always)),
        Key::Char(b'n' | b'N') => Some(Reaction::Answered(Given::Refused, Scope::Once)),
        Key::Char(b'd' | b'D') => Some(Reaction::Answered(Given::Refused, Scope::Sandbox)),
        // Ctrl-C is meant for the program, which gets the next one.
        Key::Escape | Key::Char(0x03) => Some(Reaction::Later),
        Key::Char(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pending(host: &str) -> Pending {
        Pending {
            id: "3f9a0c2e7b14-1".into(),
            sandbox: "web".into(),
            since: "2026-01-31T12:00:00.000000Z".into(),
            until: "2026-01-31T12:01:00.000000Z".into(),
            kind: "connect".into(),
            host: host.into(),
            port: 443,
            rule: "ask *.example.com (airlock.toml:12)".into(),
            ..Pending::default()
        }
    }

    fn prompt(host: &str) -> Prompt {
        Prompt::new(pending(host), "calm-otter", (0, 60_000), [5, 29])
    }

    const SIZE: WindowSize = WindowSize { rows: 24, columns: 80 };

    #[test]
    fn a_question_says_who_wants_what_and_which_rule_asks() {
        let text = String::from_utf8(prompt("api.example.com").draw(SIZE)).unwrap();
        let expected = "\
airlock asks                                calm-otter

The sandbox web wants

    a connection to api.example.com port 443

Rule: ask *.example.com (airlock.toml:12)

  y    allow this connection, and others like it that wait now
  s    allow it as long as this sandbox lives
  a    allow it always: the rule is written down
  n    refuse
  d    refuse it as long as this sandbox lives
  Esc  later

Unanswered it is refused at 12:01:00 UTC.
`airlock approve 3f9a0c2e7b14-1` answers it from elsewhere.
The program is not shown meanwhile and sees no key.
";
        let shown = text.strip_prefix("\x1b[2J\x1b[H").unwrap().replace("\r\n", "\n");
        assert_eq!(shown.strip_suffix("\x1b[7;31H\x1b[6n").unwrap(), expected);
    }

    #[test]
    fn a_name_from_inside_moves_no_cursor() {
        let text = String::from_utf8(prompt("x\x1b[2J\x1b[Hy\u{202e}\n  y  refuse").draw(SIZE)).unwrap();
        assert_eq!(text.matches('\x1b').count(), 4);
        assert!(text.contains("a connection to xy   y  refuse port 443"));
    }

    #[test]
    fn what_is_not_wholly_shown_is_refused_or_put_off_and_never_allowed() {
        let answered = |size: WindowSize, key: &[u8]| {
            let mut prompt = prompt("api.example.com");
            prompt.draw(SIZE);
            prompt.draw(size);
            assert_eq!(prompt.typed(b"\x1b[7;31R", 10), None);
            prompt.typed(key, 1_000)
        };
        let small = WindowSize { rows: 3, columns: 30 };
        for key in [b"y", b"s", b"a"] {
            assert_eq!(answered(small, key), None);
            assert!(answered(SIZE, key).is_some());
        }
        assert_eq!(answered(small, b"n"), Some(Reaction::Answered(Given::Refused, Scope::Once)));
        assert_eq!(answered(small, b"d"), Some(Reaction::Answered(Given::Refused, Scope::Sandbox)));
        assert_eq!(answered(small, b"\x03"), Some(Reaction::Later));
    }

    #[test]
    fn keys_are_answers() {
        let answered = |key: &[u8]| {
            let mut prompt = prompt("x");
            prompt.draw(SIZE);
            assert_eq!(prompt.typed(b"\x1b[7;31R", 10), None);
            prompt.typed(key, 1_000)
        };
        assert_eq!(answered(b"y"), Some(Reaction::Answered(Given::Approved, Scope::Once)));
        assert_eq!(answered(b"s"), Some(Reaction::Answered(Given::Approved, Scope::Sandbox)));
        assert_eq!(answered(b"a"), Some(Reaction::Answered(Given::Approved, Scope::Always)));
        assert_eq!(answered(b"n"), Some(Reaction::Answered(Given::Refused, Scope::Once)));
        assert_eq!(answered(b"\x03"), Some(Reaction::Later));
        assert_eq!(answered(b"\r"), None);
    }

    #[test]
    fn a_question_ends_with_its_time() {
        let mut prompt = prompt("x");
        assert_eq!((prompt.tick(59_999), prompt.due(59_000)), (None, 1_000));
        assert_eq!(prompt.tick(60_000), Some(Reaction::Later));
    }
}
