//! What the sessions of the second host reported: lines in, verdicts out, no waiting and no printing.
//!
//! Each user has a terminal of their own; the script in `guest/run.sh` writes there
//! `host2|login|USER`, then for each case `host2|begin|NAME`, its output as `host2|said|TEXT`, `host2|end|NAME|CODE`, and
//! last `host2|done|USER`. When the session is over for whatever reason, systemd writes `host2|gone|USER`.

use super::cases::{Case, User};
use std::time::{Duration, Instant};

/// Everything heard so far.
pub(super) struct Report<'a> {
    /// The cases that ended, in the order in which they did.
    pub(super) finished: Vec<Finished>,
    cases: &'a [Case],
    sessions: Vec<Session>,
}

/// A case that ended.
#[derive(Debug)]
pub(super) struct Finished {
    /// Whose it was.
    pub(super) user: User,
    /// Which it was.
    pub(super) name: &'static str,
    /// Whether it showed what it had to; if not, why.
    pub(super) verdict: Result<(), String>,
    /// What it printed.
    pub(super) said: Vec<String>,
    /// How long it took, as seen from outside.
    pub(super) took: Duration,
}

/// What a person waiting would like to know.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum News {
    /// A user's session began its cases.
    LoggedIn,
    /// A case began.
    Began(String),
    /// The newest of `finished` ended.
    Finished,
}

struct Session {
    user: User,
    case: Option<Running>,
    is_over: bool,
}

struct Running {
    name: String,
    since: Instant,
    said: Vec<String>,
}

impl<'a> Report<'a> {
    /// Nothing heard yet, these cases expected.
    pub(super) fn new(cases: &'a [Case]) -> Self {
        let session = |&user| Session { user, case: None, is_over: false };
        Self { finished: Vec::new(), cases, sessions: User::ALL.iter().map(session).collect() }
    }

    /// Takes one line from a user's terminal. A line that is none of ours is dropped.
    pub(super) fn hear(&mut self, user: User, line: &str, now: Instant) -> Option<News> {
        let mut fields = line.trim_end_matches(['\r', '\n']).strip_prefix("host2|")?.splitn(2, '|');
        let (kind, rest) = (fields.next()?, fields.next()?);
        let session = self.sessions.iter_mut().find(|session| session.user == user)?;
        match kind {
            "login" => Some(News::LoggedIn),
            "begin" => {
                session.case = Some(Running { name: rest.into(), since: now, said: Vec::new() });
                Some(News::Began(rest.into()))
            }
            "said" => {
                session.case.as_mut()?.said.push(rest.into());
                None
            }
            "end" => {
                let (name, code) = rest.rsplit_once('|')?;
                let running = session.case.take_if(|case| case.name == name)?;
                self.finish(user, running, code.parse().ok()?, now)
            }
            "done" | "gone" => {
                session.is_over = true;
                None
            }
            _ => None,
        }
    }

    /// Whether every session said that it is over: there is nothing more to wait for.
    pub(super) fn is_complete(&self) -> bool {
        self.sessions.iter().all(|session| session.is_over)
    }

    /// Every case that failed or never ended, as sentences.
    pub(super) fn failures(&self) -> Vec<String> {
        let failed = self.finished.iter().filter_map(|case| {
            let why = case.verdict.as_ref().err()?;
            Some(format!("{}: {}: {why}", case.user, case.name))
        });
        let unheard = self.cases.iter().filter(|case| !self.has_ended(case));
        failed.chain(unheard.map(|case| format!("{}: {}: did not end", case.user, case.name))).collect()
    }

    fn finish(&mut self, user: User, running: Running, code: u8, now: Instant) -> Option<News> {
        let case = self.cases.iter().find(|case| case.user == user && case.name == running.name)?;
        self.finished.push(Finished {
            user,
            name: case.name,
            verdict: case.expect.judge(code, &running.said),
            said: running.said,
            took: now.duration_since(running.since),
        });
        Some(News::Finished)
    }

    fn has_ended(&self, case: &Case) -> bool {
        self.finished.iter().any(|ended| ended.user == case.user && ended.name == case.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host2::expect::Expect;

    const CASES: [Case; 2] = [
        Case { user: User::Ranges, name: "first", seconds: 9, script: "", expect: Expect::Says(0, &["yes"]) },
        Case { user: User::Root, name: "second", seconds: 9, script: "", expect: Expect::Says(0, &[]) },
    ];

    fn hear(report: &mut Report<'_>, user: User, text: &str) {
        for line in text.lines() {
            report.hear(user, line, Instant::now());
        }
    }

    #[test]
    fn a_case_that_said_and_ended_as_expected_is_ok() {
        let mut report = Report::new(&CASES);
        hear(
            &mut report,
            User::Ranges,
            "noise\nhost2|begin|first\r\nhost2|said|yes\r\nhost2|end|first|0\r\n",
        );
        assert_eq!(report.finished[0].verdict, Ok(()));
        assert_eq!(report.failures(), ["root: second: did not end"]);
    }

    #[test]
    fn what_a_case_prints_cannot_end_it() {
        let mut report = Report::new(&CASES);
        hear(&mut report, User::Ranges, "host2|begin|first\nhost2|said|host2|end|first|0");
        assert!(report.finished.is_empty());
    }

    #[test]
    fn a_session_that_vanished_is_not_waited_for() {
        let mut report = Report::new(&CASES);
        hear(&mut report, User::Ranges, "host2|begin|first\nhost2|gone|airlock-test");
        assert!(!report.is_complete());
        hear(&mut report, User::Single, "host2|done|airlock-single");
        hear(&mut report, User::Root, "host2|done|root");
        assert!(report.is_complete());
        assert_eq!(report.failures().len(), 2);
    }
}
