//! What a person hears of a build: each step, how long it took, what it printed.

use crate::{clean::clean_line, failure::Failure};
use airlock_images::manifest::Config;
use std::{
    io::{IsTerminal, Write},
    sync::Mutex,
    time::{Duration, Instant},
};

/// To whom, and in which form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// Lines on stderr.
    Lines,
    /// JSON on stdout.
    Json,
    /// Nothing.
    Quiet,
}

/// Tells of a build. Stages may tell at the same time.
#[derive(Debug)]
pub(super) struct Told {
    form: Form,
    colour: bool,
    begun: Instant,
    /// Lines of two stages do not mix.
    pen: Mutex<()>,
}

/// A step: its stage, its number there and how many there are, its text.
#[derive(Debug, Clone)]
pub(super) struct Step {
    pub(super) stage: String,
    pub(super) number: usize,
    pub(super) of: usize,
    pub(super) line: usize,
    pub(super) text: String,
}

/// How a step ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// It was done now.
    Done,
    /// It was there.
    Cached,
}

impl Told {
    pub(super) fn new(form: Form) -> Self {
        let colour = std::io::stderr().is_terminal() && crate::say::wants_colour();
        Self { form, colour, begun: Instant::now(), pen: Mutex::new(()) }
    }

    /// A step that may take a while begins.
    pub(super) fn begin(&self, step: &Step) {
        match self.form {
            Form::Lines => self.line(&format!("{} {}", step.label(), step.words())),
            Form::Json => self.json(&step.json("begun", None)),
            Form::Quiet => {}
        }
    }

    /// A step has ended.
    pub(super) fn end(&self, step: &Step, end: End, took: Duration) {
        match (self.form, end) {
            (Form::Lines, End::Cached) => {
                let mark = if self.colour { "\x1b[36mCACHED\x1b[0m" } else { "CACHED" };
                self.line(&format!("{} {mark} {}", step.label(), step.words()));
            }
            (Form::Lines, End::Done) => {
                self.line(&format!("{} done in {:.1}s", step.label(), took.as_secs_f64()));
            }
            (Form::Json, End::Cached) => self.json(&step.json("cached", Some(took))),
            (Form::Json, End::Done) => self.json(&step.json("done", Some(took))),
            (Form::Quiet, _) => {}
        }
    }

    /// A line that a step printed.
    pub(super) fn output(&self, step: &Step, text: &str) {
        match self.form {
            Form::Lines => self.line(&format!("{} | {}", step.label(), clean_line(text))),
            Form::Json => {
                let mut value = step.json("output", None);
                if let Some(fields) = value.as_object_mut() {
                    fields.insert("output".to_owned(), text.into());
                }
                self.json(&value);
            }
            Form::Quiet => {}
        }
    }

    /// Something that is not a step.
    pub(super) fn say(&self, text: &str) {
        if self.form == Form::Lines {
            self.line(&clean_line(text));
        }
    }

    /// The image.
    pub(super) fn image(&self, id: &str, names: &[String], config: &Config) -> Result<(), Failure> {
        match self.form {
            Form::Quiet => writeln!(std::io::stdout(), "{id}")?,
            Form::Json => {
                self.json(
                    &serde_json::json!({ "status": "built", "id": id, "names": names, "image": config }),
                );
            }
            Form::Lines => {
                let took = self.begun.elapsed().as_secs_f64();
                let names = names.join(", ");
                let named = if names.is_empty() { String::new() } else { format!(" {names}") };
                self.line(&format!("built {id}{named} in {took:.1}s"));
            }
        }
        Ok(())
    }

    fn line(&self, text: &str) {
        let _pen = self.pen.lock();
        // Nobody may be there to read it: the build goes on.
        let _ = writeln!(std::io::stderr(), "{text}");
    }

    fn json(&self, value: &serde_json::Value) {
        let _pen = self.pen.lock();
        let _ = writeln!(std::io::stdout(), "{value}");
    }
}

impl Step {
    fn label(&self) -> String {
        format!("[{} {}/{}]", self.stage, self.number, self.of)
    }

    fn words(&self) -> String {
        clean_line(&self.text)
    }

    fn json(&self, status: &str, took: Option<Duration>) -> serde_json::Value {
        let mut value = serde_json::json!({
            "status": status,
            "stage": self.stage,
            "step": self.number,
            "of": self.of,
            "line": self.line,
            "instruction": self.text,
        });
        if let (Some(fields), Some(took)) = (value.as_object_mut(), took) {
            fields.insert("seconds".to_owned(), took.as_secs_f64().into());
        }
        value
    }
}
