//! What airlock itself says: to stderr, dim, one line, and only where a person reads it.

use crate::{clean::clean_line, failure::Failure};
use airlock_linux::tty;
use std::io::{self, IsTerminal, Write};

/// Whether a person wants to hear from us.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Voice {
    /// On a terminal.
    Normal,
    /// Only errors (`-q`).
    Quiet,
}

/// Says a sentence, such as `airlock: removed 3 sandboxes`.
pub(crate) fn say(voice: Voice, sentence: &str) {
    let mut stderr = io::stderr();
    if voice == Voice::Quiet || !stderr.is_terminal() {
        return;
    }
    let sentence = clean_line(sentence);
    // A terminal that cannot be written to has nobody in front of it.
    let _ = match wants_colour() {
        true => writeln!(stderr, "\x1b[2mairlock: {sentence}\x1b[0m"),
        false => writeln!(stderr, "airlock: {sentence}"),
    };
}

/// Says a sentence that somebody has to hear also where stderr is no terminal: something waits for an answer, or is broken.
pub(crate) fn say_anyway(voice: Voice, sentence: &str) {
    let mut stderr = io::stderr();
    match stderr.is_terminal() {
        true => say(voice, sentence),
        false if voice == Voice::Quiet => {}
        false => drop(writeln!(stderr, "airlock: {}", clean_line(sentence))),
    }
}

/// Says why something failed; also where stderr is no terminal.
pub(crate) fn say_failure(failure: &Failure) {
    let mut stderr = io::stderr();
    let mark = if stderr.is_terminal() && wants_colour() { "\x1b[1;31m" } else { "" };
    let _ = stderr.write_all(failure.words(mark).as_bytes());
}

/// Columns of the terminal that stdout is, or `None` if it is none.
pub(crate) fn terminal_width() -> Option<usize> {
    tty::size(io::stdout()).map(|(_, columns)| usize::from(columns))
}

/// Whether a person who sees a terminal wants colours there.
pub(crate) fn wants_colour() -> bool {
    std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
        && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}
