//! Text that came from inside a sandbox, made safe for a person's terminal. Pure and total.
//!
//! Escape sequences, control characters and characters that turn the reading direction around are taken out.

/// Many lines: line feeds and tabs stay.
pub(crate) fn clean_text(text: &str) -> String {
    clean(text, |c| if c == '\n' || c == '\t' { Some(c) } else { None })
}

/// One line: line feeds, carriage returns and tabs become spaces.
pub(crate) fn clean_line(text: &str) -> String {
    clean(text, |c| matches!(c, '\n' | '\r' | '\t').then_some(' '))
}

fn clean(text: &str, keep: impl Fn(char) -> Option<char>) -> String {
    let mut cleaned = String::with_capacity(text.len());
    let mut within = Within::Text;
    for c in text.chars() {
        let (next, visible) = within.step(c);
        within = next;
        if !visible {
            continue;
        }
        if !is_dangerous(c) {
            cleaned.push(c);
        } else if let Some(kept) = keep(c) {
            cleaned.push(kept);
        }
    }
    cleaned
}

/// Where in an escape sequence (ECMA-48) a text stands.
#[derive(Clone, Copy)]
enum Within {
    Text,
    /// After ESC.
    Escape,
    /// After `ESC [`: parameters, up to a letter.
    Control,
    /// After `ESC ]`, `P`, `X`, `^`, `_`: a string, up to BEL or `ESC \`. A line feed ends it too: a sequence that
    /// is never closed must not swallow the rest of a log.
    String,
}

impl Within {
    /// Where the text stands after `c`, and whether `c` is to be seen.
    fn step(self, c: char) -> (Within, bool) {
        match (self, c) {
            (_, '\x1b') => (Within::Escape, false),
            (Within::Text, '\u{9b}') | (Within::Escape, '[') => (Within::Control, false),
            (Within::Text, '\u{9d}' | '\u{90}') | (Within::Escape, ']' | 'P' | 'X' | '^' | '_') => {
                (Within::String, false)
            }
            (Within::Text, _) => (Within::Text, true),
            (_, '\n') => (Within::Text, true),
            (Within::Escape, ' '..='/') => (Within::Escape, false),
            (Within::Escape, _) => (Within::Text, false),
            (Within::Control, '\x20'..='\x3f') => (Within::Control, false),
            (Within::Control, _) => (Within::Text, false),
            (Within::String, '\x07' | '\u{9c}') => (Within::Text, false),
            (Within::String, _) => (Within::String, false),
        }
    }
}

fn is_dangerous(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{2028}' | '\u{2029}')
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn colours_titles_and_cursor_moves_vanish() {
        assert_eq!(clean_text("\x1b[31mred\x1b[0m \x1b]0;title\x07x\x1b[2J\x1b(By\u{9b}1mz"), "red xyz");
    }

    #[test]
    fn lines_stay_lines_and_a_line_stays_one() {
        assert_eq!(clean_text("a\tb\r\nc\x08"), "a\tb\nc");
        assert_eq!(clean_line("a\tb\nc"), "a b c");
    }

    #[test]
    fn a_sequence_that_never_ends_hides_only_its_line() {
        assert_eq!(clean_text("a\x1b]0;b\nc"), "a\nc");
    }

    #[test]
    fn text_cannot_turn_its_direction() {
        assert_eq!(clean_line("user\u{202e}txt.exe"), "usertxt.exe");
    }

    proptest! {
        #[test]
        fn nothing_dangerous_survives(text in any::<String>()) {
            prop_assert!(clean_line(&text).chars().all(|c| !is_dangerous(c)));
        }

        #[test]
        fn harmless_text_is_left_alone(text in "[a-zA-Z0-9 äöü漢字.,;-]{0,40}") {
            prop_assert_eq!(clean_text(&text), text);
        }
    }
}
