//! How far the layers of an image are: a line for each that changes on a terminal, plain lines elsewhere, or JSON.

use crate::say::Voice;
use airlock_images::{
    digest::Digest,
    registry::{Event, State},
};
use airlock_linux::tty;
use airlock_protocol::size;
use serde::Serialize;
use std::{
    io::{self, IsTerminal as _, Write as _},
    time::{Duration, Instant},
};

/// How often a terminal is written to, and how often a layer is told of elsewhere.
const OFTEN: Duration = Duration::from_millis(100);
const SELDOM: Duration = Duration::from_secs(10);
/// Characters of a bar.
const BAR: usize = 24;
/// Lines where the terminal does not say how many it has.
const LINES: usize = 20;

/// Which way layers go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// From a registry.
    Down,
    /// To a registry.
    Up,
}

/// Where it is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// Nowhere.
    Quiet,
    /// On a terminal, or in lines.
    Text,
    /// One object a line, on stdout.
    Json,
}

impl Form {
    /// What two flags mean.
    pub(crate) fn of(json: bool, quiet: bool) -> Form {
        match (json, quiet) {
            (true, _) => Form::Json,
            (false, true) => Form::Quiet,
            (false, false) => Form::Text,
        }
    }

    /// Whether a person wants to hear from us besides.
    pub(crate) fn voice(self) -> Voice {
        if self == Form::Text { Voice::Normal } else { Voice::Quiet }
    }
}

/// Shows what goes on.
pub(crate) struct Show {
    form: Form,
    way: Way,
    is_terminal: bool,
    layers: Vec<Layer>,
    /// Lines that are on the terminal.
    drawn: usize,
    next: Instant,
}

struct Layer {
    digest: Digest,
    size: u64,
    state: State,
    told: Instant,
}

impl Show {
    pub(crate) fn new(form: Form, way: Way) -> Show {
        let is_terminal = io::stderr().is_terminal();
        Show { form, way, is_terminal, layers: Vec::new(), drawn: 0, next: Instant::now() }
    }

    /// Something happened.
    pub(crate) fn event(&mut self, event: &Event) {
        match self.form {
            Form::Quiet => {}
            Form::Json => json(event),
            Form::Text => {
                if let Event::Layer { digest, size, state } = event {
                    self.layer(digest, *size, state);
                }
            }
        }
    }

    fn layer(&mut self, digest: &Digest, size: u64, state: &State) {
        let now = Instant::now();
        let layer = match self.layers.iter_mut().find(|layer| layer.digest == *digest) {
            Some(layer) => layer,
            None => {
                self.layers.push(Layer { digest: *digest, size, state: State::Awaited, told: now });
                let Some(layer) = self.layers.last_mut() else { return };
                layer
            }
        };
        let was_present = layer.state == State::Exists;
        let is_moving = matches!(state, State::Travels(_) | State::Unpacks(_));
        // One that was there and is unpacked already has nothing more to tell.
        if !(was_present && *state == State::Done) {
            layer.state = state.clone();
        }
        if !self.is_terminal {
            if (is_moving && now < layer.told + SELDOM) || (was_present && *state == State::Done) {
                return;
            }
            layer.told = now;
            let line = format!("{}: {}", digest.short(), words(self.way, size, state));
            let _ = writeln!(io::stderr(), "{line}");
            return;
        }
        if now >= self.next || !is_moving {
            self.next = now + OFTEN;
            self.draw();
        }
    }

    /// Draws every layer; where the terminal has fewer lines, the last ones that are not done.
    fn draw(&mut self) {
        let (rows, columns) = tty::size(io::stderr()).map_or((LINES, 80), |(rows, columns)| {
            (usize::from(rows).saturating_sub(2).max(1), usize::from(columns).max(20))
        });
        let is_over = |layer: &&Layer| matches!(layer.state, State::Exists | State::Done);
        let mut shown: Vec<&Layer> = self.layers.iter().collect();
        if shown.len() > rows {
            let (over, open): (Vec<_>, Vec<_>) = shown.into_iter().partition(is_over);
            shown = open.into_iter().chain(over).take(rows).collect();
        }
        let mut text = if self.drawn > 0 { format!("\x1b[{}A", self.drawn) } else { String::new() };
        for layer in &shown {
            let line = format!("{}  {}", layer.digest.short(), layer.line(self.way));
            let line: String = line.chars().take(columns.saturating_sub(1)).collect();
            text.push_str(&format!("\r\x1b[2K{line}\n"));
        }
        self.drawn = self.drawn.max(shown.len());
        if self.drawn > shown.len() {
            text.push_str(&"\x1b[2K\n".repeat(self.drawn.saturating_sub(shown.len())));
        }
        // A terminal that cannot be written to has nobody in front of it.
        let _ = io::stderr().write_all(text.as_bytes());
    }
}

impl Layer {
    fn line(&self, way: Way) -> String {
        let words = words(way, self.size, &self.state);
        match self.state {
            State::Travels(bytes) => format!("{} {words}", bar(bytes, self.size)),
            _ => words,
        }
    }
}

fn bar(done: u64, whole: u64) -> String {
    let cells = u64::try_from(BAR).unwrap_or(0);
    let full = done.min(whole).saturating_mul(cells).checked_div(whole.max(1)).unwrap_or(0);
    let full = usize::try_from(full).unwrap_or(0);
    format!("[{}{}]", "=".repeat(full), " ".repeat(BAR.saturating_sub(full)))
}

fn words(way: Way, whole: u64, state: &State) -> String {
    let whole = size::show(whole);
    match (state, way) {
        (State::Exists, _) => "exists".to_owned(),
        (State::Awaited, _) => "another process gets it".to_owned(),
        (State::Travels(bytes), Way::Down) => format!("downloading {} of {whole}", size::show(*bytes)),
        (State::Travels(bytes), Way::Up) => format!("uploading {} of {whole}", size::show(*bytes)),
        (State::Retries(why), _) => {
            format!("tries again: {}", why.chars().filter(|c| !c.is_control()).take(200).collect::<String>())
        }
        (State::Arrived, _) => format!("downloaded {whole}"),
        (State::Unpacks(bytes), _) => format!("unpacking {}", size::show(*bytes)),
        (State::Done, Way::Down) => format!("done, {whole}"),
        (State::Done, Way::Up) => format!("uploaded {whole}"),
    }
}

/// An event as a line of JSON has it.
#[derive(Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
enum Line<'a> {
    Found {
        digest: &'a Digest,
        bytes: u64,
        layers: usize,
    },
    Layer {
        digest: &'a Digest,
        size_bytes: u64,
        state: &'static str,
        bytes: Option<u64>,
        why: Option<&'a str>,
    },
}

fn json(event: &Event) {
    let line = match event {
        Event::Found { digest, bytes, layers } => Line::Found { digest, bytes: *bytes, layers: *layers },
        Event::Layer { digest, size, state } => {
            let (word, bytes, why) = match state {
                State::Exists => ("exists", None, None),
                State::Awaited => ("awaited", None, None),
                State::Travels(bytes) => ("travels", Some(*bytes), None),
                State::Retries(why) => ("retries", None, Some(why.as_str())),
                State::Arrived => ("arrived", Some(*size), None),
                State::Unpacks(bytes) => ("unpacks", Some(*bytes), None),
                State::Done => ("done", None, None),
            };
            Line::Layer { digest, size_bytes: *size, state: word, bytes, why }
        }
    };
    if let Ok(text) = serde_json::to_string(&line) {
        // Whoever does not read any more does not want the image less.
        let _ = writeln!(io::stdout(), "{text}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_is_as_long_as_what_is_done() {
        assert_eq!(bar(0, 100), format!("[{}]", " ".repeat(24)));
        assert_eq!(bar(50, 100), format!("[{}{}]", "=".repeat(12), " ".repeat(12)));
        assert_eq!(bar(500, 100), format!("[{}]", "=".repeat(24)));
        assert_eq!(bar(0, 0), format!("[{}]", " ".repeat(24)));
    }

    #[test]
    fn each_state_has_its_words() {
        assert_eq!(words(Way::Down, 2 << 20, &State::Travels(1 << 20)), "downloading 1M of 2M");
        assert_eq!(words(Way::Up, 2 << 20, &State::Done), "uploaded 2M");
        let evil = State::Retries("x\x1b[2Jy".to_owned());
        assert_eq!(words(Way::Down, 0, &evil), "tries again: x[2Jy");
    }
}
