//! What the program's output has done to the terminal, as far as a prompt must undo and restore it. Pure.

use std::collections::BTreeSet;

/// Longest control sequence that is looked at.
const LONGEST: usize = 64;
/// Ways to the second screen.
const SECOND_SCREEN: [u16; 3] = [47, 1047, 1049];
/// Private modes that would spoil a prompt (or its keys) and are switched off meanwhile: cursor keys, reversed colours,
/// origin, mouse and focus reports, margins, pasting, held drawing.
const SPOILING: [u16; 14] = [1, 5, 6, 9, 69, 1000, 1001, 1002, 1003, 1004, 1005, 1006, 1015, 2004];

/// Follows the output.
#[derive(Debug, Default)]
pub(crate) struct Screen {
    modes: BTreeSet<u16>,
    is_cursor_hidden: bool,
    region: Option<String>,
    has_own_colours: bool,
    state: State,
}

#[derive(Debug, Default, Clone, PartialEq, Eq)]
enum State {
    #[default]
    Text,
    Escape,
    /// After `ESC [`.
    Control(String),
    /// After `ESC ]` and its like; whether it was `ESC ]`, and the last byte was ESC.
    Word {
        escaped: bool,
    },
}

impl Screen {
    /// Takes note of bytes as they are shown.
    pub(crate) fn shown(&mut self, bytes: &[u8]) {
        for byte in bytes {
            let state = std::mem::take(&mut self.state);
            self.state = self.step(state, *byte);
        }
    }

    /// Whether the program has the second screen for itself: it will have to draw it anew.
    pub(crate) fn is_second(&self) -> bool {
        SECOND_SCREEN.iter().any(|mode| self.modes.contains(mode))
    }

    /// Bytes that give an empty screen in plain colours with a hidden cursor, whatever was shown before. Pasted text is
    /// marked as such.
    pub(crate) fn take(&self) -> Vec<u8> {
        // CAN and ST end any sequence that the output was cut in.
        let mut text = String::from("\x18\x1b\\");
        text += if self.is_second() { "\x1b7" } else { "\x1b[?1049h" };
        for mode in self.modes.iter().filter(|mode| SPOILING.contains(mode)) {
            text += &format!("\x1b[?{mode}l");
        }
        if self.has_own_colours {
            text += "\x1b]104\x1b\\\x1b]110\x1b\\\x1b]111\x1b\\";
        }
        text += "\x1b[?2026l\x1b[r\x1b[4l\x1b(B\x0f\x1b[?7h\x1b[0m\x1b[?25l\x1b[?2004h\x1b[2J\x1b[H";
        text.into_bytes()
    }

    /// Bytes that give the terminal back as the program had it.
    pub(crate) fn give_back(&self) -> Vec<u8> {
        let mut text = String::from("\x1b[0m\x1b[2J\x1b[?2004l");
        if let Some(region) = &self.region {
            text += &format!("\x1b[{region}r");
        }
        for mode in self.modes.iter().filter(|mode| SPOILING.contains(mode)) {
            text += &format!("\x1b[?{mode}h");
        }
        text += if self.is_second() { "\x1b8" } else { "\x1b[?1049l" };
        text += if self.is_cursor_hidden { "\x1b[?25l" } else { "\x1b[?25h" };
        text.into_bytes()
    }

    fn step(&mut self, state: State, byte: u8) -> State {
        match (state, byte) {
            (State::Word { escaped: true }, b'\\') | (State::Word { .. }, 0x07 | 0x18 | 0x1a) => State::Text,
            (State::Word { .. }, byte) => State::Word { escaped: byte == 0x1b },
            (_, 0x1b) => State::Escape,
            (_, 0x18 | 0x1a) | (State::Text, _) => State::Text,
            (State::Escape, b'[') => State::Control(String::new()),
            (State::Escape, b']') => {
                self.has_own_colours = true;
                State::Word { escaped: false }
            }
            (State::Escape, b'P' | b'X' | b'^' | b'_') => State::Word { escaped: false },
            (State::Escape, b'c') => {
                *self = Screen { has_own_colours: self.has_own_colours, ..Screen::default() };
                State::Text
            }
            (State::Escape, b' '..=b'/') => State::Escape,
            (State::Escape, _) => State::Text,
            (State::Control(mut text), b' '..=b'?') if text.len() < LONGEST => {
                text.push(char::from(byte));
                State::Control(text)
            }
            (State::Control(text), b'@'..=b'~') => {
                self.control(&text, byte);
                State::Text
            }
            // Control characters inside a sequence are obeyed and do not end it.
            (State::Control(text), 0..0x20) => State::Control(text),
            (State::Control(_), _) => State::Text,
        }
    }

    fn control(&mut self, text: &str, last: u8) {
        match (text.strip_prefix('?'), last) {
            (Some(modes), b'h') => {
                modes.split(';').filter_map(|mode| mode.parse().ok()).for_each(|mode| self.set(mode))
            }
            (Some(modes), b'l') => {
                modes.split(';').filter_map(|mode| mode.parse().ok()).for_each(|mode| self.reset(mode))
            }
            (None, b'r') if text.bytes().all(|byte| byte.is_ascii_digit() || byte == b';') => {
                self.region = (!text.is_empty()).then(|| text.to_owned());
            }
            (None, b'p') if text == "!" => {
                self.region = None;
                self.is_cursor_hidden = false;
                self.modes.retain(|mode| SECOND_SCREEN.contains(mode));
            }
            _ => {}
        }
    }

    fn set(&mut self, mode: u16) {
        match mode {
            25 => self.is_cursor_hidden = false,
            mode if SPOILING.contains(&mode) || SECOND_SCREEN.contains(&mode) => {
                self.modes.insert(mode);
            }
            _ => {}
        }
    }

    fn reset(&mut self, mode: u16) {
        match mode {
            25 => self.is_cursor_hidden = true,
            mode if SECOND_SCREEN.contains(&mode) => self.modes.retain(|mode| !SECOND_SCREEN.contains(mode)),
            mode => {
                self.modes.remove(&mode);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn after(text: &str) -> Screen {
        let mut screen = Screen::default();
        screen.shown(text.as_bytes());
        screen
    }

    fn given_back(text: &str) -> String {
        String::from_utf8(after(text).give_back()).unwrap()
    }

    #[test]
    fn a_plain_screen_is_put_aside_and_brought_back() {
        let plain = after("hello\x1b[31mred");
        assert!(String::from_utf8(plain.take()).unwrap().contains("\x1b[?1049h"));
        assert_eq!(given_back("hello"), "\x1b[0m\x1b[2J\x1b[?2004l\x1b[?1049l\x1b[?25h");
    }

    #[test]
    fn a_program_that_has_the_second_screen_keeps_it() {
        let editor = after("\x1b[?1049h\x1b[?1;25l\x1b[?1000;1006;2004h\x1b[2;20r");
        assert!(editor.is_second());
        assert!(!String::from_utf8(editor.take()).unwrap().contains("1049"));
        let back = String::from_utf8(editor.give_back()).unwrap();
        assert_eq!(
            back,
            "\x1b[0m\x1b[2J\x1b[?2004l\x1b[2;20r\x1b[?1000h\x1b[?1006h\x1b[?2004h\x1b8\x1b[?25l"
        );
        assert!(!after("\x1b[?1049h\x1b[?1049l").is_second());
        assert!(!after("\x1b[?1049h\x1bc").is_second());
    }

    #[test]
    fn reports_of_the_mouse_are_off_while_asking() {
        let taken = String::from_utf8(after("\x1b[?1003h").take()).unwrap();
        assert!(taken.contains("\x1b[?1003l"));
    }

    #[test]
    fn what_stands_in_a_title_is_no_sequence() {
        assert!(!after("\x1b]0;\x1b[?1049h\x07").is_second() || after("\x1b]0;x\x07\x1b[?1049h").is_second());
        assert!(after("\x1b]0;x\x1b\\\x1b[?1049h").is_second());
    }

    proptest! {
        #[test]
        fn no_output_panics_and_memory_is_bounded(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let mut screen = Screen::default();
            screen.shown(&bytes);
            prop_assert!(screen.give_back().len() < 400);
            if let State::Control(text) = &screen.state {
                prop_assert!(text.len() <= LONGEST);
            }
        }

        #[test]
        fn it_does_not_matter_how_output_is_cut(text in "(\x1b\\[\\?(1049|25|1000)[hl]|[a-z]|\x1b\\]0;x\x07){0,12}", cut in 1usize..5) {
            let whole = after(&text);
            let mut pieces = Screen::default();
            text.as_bytes().chunks(cut).for_each(|piece| pieces.shown(piece));
            prop_assert_eq!(whole.give_back(), pieces.give_back());
        }
    }
}
