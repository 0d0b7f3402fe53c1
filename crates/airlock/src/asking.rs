//! Questions of the sandbox that a session is about: one after the other on the session's screen, or told in a line where
//! there is none.

use crate::{
    clean::clean_line,
    failure::Failure,
    prompt::{Prompt, Reaction, Screen},
    say::{Voice, say_anyway},
};
use airlock_protocol::{
    approval::{Answer, Given, Pending, Scope},
    spec::WindowSize,
};
use std::{
    collections::VecDeque,
    path::PathBuf,
    time::{Duration, Instant},
};

/// Output that is held back in memory while a question stands. Beyond it the keeper, and so the program, waits.
const MOST_HELD: usize = 1 << 20;
/// Questions remembered, so that none is asked twice.
const MOST_KNOWN: usize = 1024;
/// How long a question waits that does not say so.
const USUAL_WAIT: Duration = Duration::from_secs(60);

/// Writes an answer down for good, and says where.
pub(crate) type Keep = Box<dyn Fn(&Pending, Given) -> Result<PathBuf, Failure>>;

/// Where questions may be asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// On a screen of this size, whose keyboard is ours.
    Screen(WindowSize),
    /// Nowhere: a line says how to answer.
    Nowhere,
}

/// What a session does about questions.
pub(crate) struct Asking {
    words: String,
    voice: Voice,
    keep: Keep,
    screen: Screen,
    open: Option<Prompt>,
    waiting: VecDeque<Pending>,
    known: VecDeque<String>,
    held: Vec<u8>,
    notes: Vec<String>,
    clock: Instant,
}

/// What to do after a key or a moment.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Next {
    /// Goes to the screen.
    pub(crate) show: Vec<u8>,
    /// Goes to the keeper.
    pub(crate) answer: Option<Answer>,
    /// The program has to draw its screen anew.
    pub(crate) redraw: bool,
}

impl Asking {
    /// `words` are the two that every question carries.
    pub(crate) fn new(words: String, voice: Voice, keep: Keep) -> Asking {
        Asking {
            words,
            voice,
            keep,
            screen: Screen::default(),
            open: None,
            waiting: VecDeque::new(),
            known: VecDeque::new(),
            held: Vec::new(),
            notes: Vec::new(),
            clock: Instant::now(),
        }
    }

    /// Whether a question stands on the screen: keys are its own.
    pub(crate) fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// Whether a question is to be put up.
    pub(crate) fn is_due(&self) -> bool {
        !self.is_open() && !self.waiting.is_empty()
    }

    /// Whether no more output can be held back.
    pub(crate) fn is_full(&self) -> bool {
        self.is_open() && self.held.len() >= MOST_HELD
    }

    /// Output of the program: what of it is to be shown now.
    pub(crate) fn output<'b>(&mut self, bytes: &'b [u8]) -> &'b [u8] {
        match self.is_open() {
            true => {
                self.held.extend_from_slice(bytes);
                &[]
            }
            false => {
                self.screen.shown(bytes);
                bytes
            }
        }
    }

    /// A crossing waits.
    pub(crate) fn asked(&mut self, pending: Pending) {
        if self.known.contains(&pending.id) {
            return;
        }
        self.known.push_back(pending.id.clone());
        if self.known.len() > MOST_KNOWN {
            self.known.pop_front();
        }
        if self.waiting.len() < MOST_KNOWN {
            self.waiting.push_back(pending);
        }
    }

    /// A crossing waits no longer, whoever answered.
    pub(crate) fn answered(&mut self, id: &str) -> Next {
        self.waiting.retain(|pending| pending.id != id);
        match &self.open {
            Some(prompt) if prompt.pending.id == id => self.close(None),
            _ => Next::default(),
        }
    }

    /// Puts the next question up if none stands.
    pub(crate) fn ask(&mut self, place: Place) -> Option<Vec<u8>> {
        if self.is_open() {
            return None;
        }
        let Place::Screen(size) = place else {
            self.waiting.drain(..).for_each(|pending| tell(self.voice, &pending));
            return None;
        };
        let pending = self.waiting.pop_front()?;
        let mut random = [0u8; 2];
        let _ = rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty());
        let mut prompt = Prompt::new(pending.clone(), &self.words, (self.now(), wait(&pending)), random);
        let mut bytes = self.screen.take();
        bytes.extend(prompt.draw(size));
        self.open = Some(prompt);
        Some(bytes)
    }

    /// Draws the question again, on a screen of another size.
    pub(crate) fn draw(&mut self, size: WindowSize) -> Option<Vec<u8>> {
        self.open.as_mut().map(|prompt| prompt.draw(size))
    }

    /// Keys typed at the question.
    pub(crate) fn typed(&mut self, bytes: &[u8]) -> Next {
        let now = self.now();
        let reaction = self.open.as_mut().and_then(|prompt| prompt.typed(bytes, now));
        self.react(reaction)
    }

    /// Time has passed.
    pub(crate) fn tick(&mut self) -> Next {
        let now = self.now();
        let reaction = self.open.as_mut().and_then(|prompt| prompt.tick(now));
        self.react(reaction)
    }

    /// Milliseconds until [`Asking::tick`] is due.
    pub(crate) fn due(&self) -> Option<u64> {
        self.open.as_ref().map(|prompt| prompt.due(self.now()))
    }

    /// Takes the question off the screen, to be asked again or not.
    pub(crate) fn leave(&mut self) -> Next {
        if let Some(prompt) = &self.open {
            self.waiting.push_front(prompt.pending.clone());
        }
        self.close(None)
    }

    /// What is said at the end: where answers were written down.
    pub(crate) fn into_notes(self) -> Vec<String> {
        self.notes
    }

    fn react(&mut self, reaction: Option<Reaction>) -> Next {
        match (reaction, &self.open) {
            (Some(Reaction::Answered(verdict, scope)), Some(prompt)) => {
                let pending = prompt.pending.clone();
                if scope == Scope::Always {
                    self.write_down(&pending, verdict);
                }
                self.close(Some(Answer { id: pending.id, verdict, scope }))
            }
            (Some(Reaction::Later), Some(_)) => self.close(None),
            _ => Next::default(),
        }
    }

    fn write_down(&mut self, pending: &Pending, verdict: Given) {
        let note = match (self.keep)(pending, verdict) {
            Ok(path) => format!("the rule for {} is in {}", place(pending), path.display()),
            Err(failure) => {
                let why = failure.why.map(|why| format!(": {why}")).unwrap_or_default();
                format!("the rule for {} was not written down: {}{why}", place(pending), failure.what)
            }
        };
        self.notes.push(note);
    }

    fn close(&mut self, answer: Option<Answer>) -> Next {
        if self.open.take().is_none() {
            return Next::default();
        }
        let redraw = self.screen.is_second();
        let mut show = self.screen.give_back();
        let held = std::mem::take(&mut self.held);
        self.screen.shown(&held);
        show.extend(held);
        Next { show, answer, redraw }
    }

    fn now(&self) -> u64 {
        u64::try_from(self.clock.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

/// How a crossing that waits is told where nobody can be asked.
fn tell(voice: Voice, pending: &Pending) {
    let (id, place) = (&pending.id, place(pending));
    let seconds = wait(pending) / 1000;
    say_anyway(
        voice,
        &format!("{place} waits {seconds} s for an answer: `airlock approve {id}` or `airlock refuse {id}`"),
    );
}

/// `api.example.com:443`, `POST api.example.com:443/v1/orders`.
fn place(pending: &Pending) -> String {
    match pending.method {
        Some(_) => clean_line(&pending.words()),
        None => format!("{}:{}", pending.host, pending.port),
    }
}

/// Milliseconds until it is refused unanswered.
fn wait(pending: &Pending) -> u64 {
    let until = pending.until.parse::<jiff::Timestamp>().ok();
    let left = until.and_then(|until| Duration::try_from(until.duration_since(jiff::Timestamp::now())).ok());
    u64::try_from(left.unwrap_or(USUAL_WAIT).as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCREEN: Place = Place::Screen(WindowSize { rows: 24, columns: 80 });

    fn asking() -> Asking {
        Asking::new("calm-otter".into(), Voice::Quiet, Box::new(|_, _| Ok("/srv/airlock.toml".into())))
    }

    fn pending(id: &str) -> Pending {
        Pending {
            id: id.into(),
            sandbox: "web".into(),
            since: String::new(),
            until: "2999-01-01T00:00:00Z".into(),
            kind: "connect".into(),
            host: "api.example.com".into(),
            port: 443,
            rule: "ask *".into(),
            ..Pending::default()
        }
    }

    #[test]
    fn output_is_held_back_while_a_question_stands_and_comes_after_it() {
        let mut asking = asking();
        assert_eq!(asking.output(b"before"), b"before");
        asking.asked(pending("a-1"));
        assert!(asking.ask(SCREEN).is_some() && asking.is_open());

        assert_eq!(asking.output(b"during"), b"");
        let next = asking.answered("a-1");

        assert!(next.show.ends_with(b"during") && next.answer.is_none() && !next.redraw);
        assert!(!asking.is_open());
        assert_eq!(asking.output(b"after"), b"after");
    }

    #[test]
    fn a_program_that_writes_without_end_is_made_to_wait() {
        let mut asking = asking();
        asking.asked(pending("a-1"));
        asking.ask(SCREEN);
        assert!(!asking.is_full());
        asking.output(&vec![b'x'; MOST_HELD]);
        assert!(asking.is_full());
        asking.answered("a-1");
        assert!(!asking.is_full());
    }

    #[test]
    fn questions_are_asked_once_and_one_after_the_other() {
        let mut asking = asking();
        for id in ["a-1", "a-2", "a-1"] {
            asking.asked(pending(id));
        }
        assert!(asking.ask(SCREEN).is_some());
        assert!(asking.ask(SCREEN).is_none());
        asking.answered("a-1");
        assert!(asking.ask(SCREEN).is_some());
        asking.answered("a-2");
        assert!(asking.ask(SCREEN).is_none());
    }

    #[test]
    fn a_question_answered_elsewhere_is_not_asked() {
        let mut asking = asking();
        asking.asked(pending("a-1"));
        assert_eq!(asking.answered("a-1"), Next::default());
        assert!(asking.ask(SCREEN).is_none());
    }

    #[test]
    fn keys_typed_ahead_answer_nothing() {
        let mut asking = asking();
        asking.asked(pending("a-1"));
        asking.ask(SCREEN);
        assert_eq!(asking.typed(b"a"), Next::default());
        assert!(asking.is_open());
    }

    #[test]
    fn always_is_written_down_and_told_at_the_end() {
        let mut asking = asking();
        asking.asked(pending("a-1"));
        asking.ask(SCREEN);
        let next = asking.react(Some(Reaction::Answered(Given::Approved, Scope::Always)));
        let answer = Answer { id: "a-1".into(), verdict: Given::Approved, scope: Scope::Always };
        assert_eq!(next.answer, Some(answer));
        assert_eq!(asking.into_notes(), ["the rule for api.example.com:443 is in /srv/airlock.toml"]);
    }

    #[test]
    fn without_a_screen_nothing_is_drawn() {
        let mut asking = asking();
        asking.asked(pending("a-1"));
        assert!(asking.ask(Place::Nowhere).is_none() && !asking.is_open());
        assert!(asking.ask(SCREEN).is_none());
    }
}
