//! Keys typed while a prompt stands. Pure: time is handed in.
//!
//! The program cannot type, but it can make a terminal answer (a report of its title or cursor), and a person may be in the
//! middle of a word when a prompt appears. So nothing counts until
//!
//! 1. the terminal has answered a question of ours, which it does after everything it was asked before, and
//! 2. nothing at all has arrived for a moment.
//!
//! After that, whole sequences and pasted text are no keys, and neither are several characters at once.

/// How long nothing may have arrived before a key counts.
const QUIET_MS: u64 = 500;
/// How long the terminal's answer is waited for; some terminals have none.
const ANSWER_MS: u64 = 2_000;
/// After an ESC alone for so long, it was the key.
const ESCAPE_MS: u64 = 100;

/// What was pressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Key {
    /// A character.
    Char(u8),
    /// The escape key.
    Escape,
}

/// Makes keys of bytes.
#[derive(Debug)]
pub(crate) struct Keys {
    /// Where the cursor was put for the terminal to tell: row and column.
    mark: (u16, u16),
    is_answered: bool,
    is_armed: bool,
    is_pasting: bool,
    opened: u64,
    last: u64,
    state: State,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum State {
    Text,
    Escape,
    /// After `ESC [` (or `ESC O`).
    Control(Vec<u8>),
    /// After `ESC ]`, `P`, `X`, `^`, `_`; whether the last byte was ESC.
    Word(bool),
}

impl Keys {
    /// From now on. `mark` is where [`Keys::question`] puts the cursor.
    pub(crate) fn new(mark: (u16, u16), now: u64) -> Keys {
        let flags = (false, false, false);
        let (is_answered, is_armed, is_pasting) = flags;
        Keys { mark, is_answered, is_armed, is_pasting, opened: now, last: now, state: State::Text }
    }

    /// Puts the cursor at the mark and asks the terminal where it is.
    pub(crate) fn question(&self) -> String {
        format!("\x1b[{};{}H\x1b[6n", self.mark.0, self.mark.1)
    }

    /// Bytes as they were read; the key, if they are one that counts.
    pub(crate) fn typed(&mut self, bytes: &[u8], now: u64) -> Option<Key> {
        let was_armed = self.arm(now);
        let mut keys = Vec::new();
        let mut were_sequences = false;
        for byte in bytes {
            let state = std::mem::replace(&mut self.state, State::Text);
            let (state, key) = self.step(state, *byte);
            self.state = state;
            were_sequences |= self.state != State::Text;
            keys.extend(key.filter(|_| !self.is_pasting));
        }
        self.last = now;
        match (was_armed, keys.as_slice()) {
            (true, [key]) if !were_sequences => Some(*key),
            (true, []) => None,
            // Too many at once, or too early: wait for silence again.
            _ => {
                self.is_armed = false;
                None
            }
        }
    }

    /// The escape key, once it is certain that nothing follows.
    pub(crate) fn tick(&mut self, now: u64) -> Option<Key> {
        if self.state != State::Escape || now.saturating_sub(self.last) < ESCAPE_MS {
            return None;
        }
        self.state = State::Text;
        self.is_armed.then_some(Key::Escape)
    }

    /// Milliseconds after which [`Keys::tick`] has something to say.
    pub(crate) fn due(&self, now: u64) -> Option<u64> {
        (self.state == State::Escape).then(|| ESCAPE_MS.saturating_sub(now.saturating_sub(self.last)))
    }

    fn arm(&mut self, now: u64) -> bool {
        let is_settled = self.is_answered || now.saturating_sub(self.opened) >= ANSWER_MS;
        let is_quiet = now.saturating_sub(self.last) >= QUIET_MS;
        // What began before the silence and never ended is not waited for.
        if is_quiet && self.state != State::Escape {
            self.state = State::Text;
            self.is_pasting = false;
        }
        self.is_armed |= is_settled && is_quiet;
        self.is_armed
    }

    fn step(&mut self, state: State, byte: u8) -> (State, Option<Key>) {
        match (state, byte) {
            (State::Word(true), b'\\') | (State::Word(_), 0x07 | 0x18) => (State::Text, None),
            (State::Word(_), byte) => (State::Word(byte == 0x1b), None),
            (_, 0x1b) => (State::Escape, None),
            (State::Text, byte) => (State::Text, Some(Key::Char(byte))),
            (State::Escape, b'[' | b'O') => (State::Control(Vec::new()), None),
            (State::Escape, b']' | b'P' | b'X' | b'^' | b'_') => (State::Word(false), None),
            (State::Escape, _) => (State::Text, None),
            (State::Control(mut text), b' '..=b'?') if text.len() < 64 => {
                text.push(byte);
                (State::Control(text), None)
            }
            (State::Control(text), last) => {
                self.control(&text, last);
                (State::Text, None)
            }
        }
    }

    fn control(&mut self, text: &[u8], last: u8) {
        match (text, last) {
            (b"200", b'~') => self.is_pasting = true,
            (b"201", b'~') => self.is_pasting = false,
            (text, b'R') => self.is_answered |= text == format!("{};{}", self.mark.0, self.mark.1).as_bytes(),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ANSWER: &[u8] = b"\x1b[7;31R";

    /// A prompt that stands since time 0 and whose terminal has answered.
    fn ready() -> Keys {
        let mut keys = Keys::new((7, 31), 0);
        assert_eq!(keys.typed(ANSWER, 10), None);
        keys
    }

    #[test]
    fn a_key_counts_after_the_answer_and_a_silence() {
        assert_eq!(ready().typed(b"y", 600), Some(Key::Char(b'y')));
        assert_eq!(ready().typed(b"y", 400), None);
    }

    #[test]
    fn whoever_goes_on_typing_answers_nothing() {
        let mut keys = ready();
        for (byte, at) in (b"yes yes yes").iter().zip((100..).step_by(200)) {
            assert_eq!(keys.typed(&[*byte], at), None);
        }
        assert_eq!(keys.typed(b"n", 3_000), Some(Key::Char(b'n')));
    }

    #[test]
    fn without_an_answer_nothing_counts_for_two_seconds() {
        let mut keys = Keys::new((7, 31), 0);
        assert_eq!(keys.typed(b"y", 1_500), None);
        assert_eq!(keys.typed(b"y", 2_500), Some(Key::Char(b'y')));
    }

    #[test]
    fn an_answer_with_another_place_is_to_another_question() {
        let mut keys = Keys::new((7, 31), 0);
        assert_eq!(keys.typed(b"\x1b[7;32R", 10), None);
        assert_eq!(keys.typed(b"y", 1_000), None);
    }

    #[test]
    fn reports_that_a_program_made_the_terminal_send_are_no_keys() {
        for report in [
            &b"\x1b]ly\x1b\\"[..],
            b"\x1b]Ly\x07",
            b"\x1bP1$ry\x1b\\",
            b"\x1b[?1;2c",
            b"\x1b[<0;3;4M",
            b"\x1bOy",
        ] {
            let mut keys = ready();
            assert_eq!(keys.typed(report, 1_000), None);
            assert_eq!(keys.tick(5_000), None);
            assert_eq!(keys.typed(b"n", 6_000), Some(Key::Char(b'n')), "{report:?}");
        }
    }

    #[test]
    fn pasted_text_and_several_characters_at_once_are_no_keys() {
        let mut keys = ready();
        assert_eq!(keys.typed(b"\x1b[200~y\x1b[201~", 1_000), None);
        assert_eq!(keys.typed(b"yes\r", 2_000), None);
        assert_eq!(keys.typed(b"y", 2_100), None);
        assert_eq!(keys.typed(b"y", 3_000), Some(Key::Char(b'y')));
    }

    #[test]
    fn an_escape_alone_is_the_key() {
        let mut keys = ready();
        assert_eq!(keys.typed(b"\x1b", 1_000), None);
        assert_eq!((keys.tick(1_010), keys.due(1_010)), (None, Some(90)));
        assert_eq!(keys.tick(1_100), Some(Key::Escape));
        assert_eq!(keys.typed(b"\x1b", 2_000), None);
        assert_eq!(keys.typed(b"[A", 2_010), None);
        assert_eq!(keys.tick(3_000), None);
    }

    proptest! {
        #[test]
        fn nothing_typed_before_the_silence_is_a_key(pieces in proptest::collection::vec((proptest::collection::vec(any::<u8>(), 1..8), 0u64..499), 0..20)) {
            let mut keys = Keys::new((7, 31), 0);
            let mut now = 0;
            for (bytes, pause) in pieces {
                now += pause;
                if now < ANSWER_MS {
                    prop_assert_eq!(keys.typed(&bytes, now), None);
                }
            }
        }
    }
}
