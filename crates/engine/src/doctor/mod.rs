//! What this host can do, what it cannot, and what to type so that it can.
//!
//! - [`facts`]: what there is; the only part that looks at the host
//! - [`fix`]: commands and files that put something right
//! - `walls`, `files`, `limits`, `extras`: what each fact means; pure
//! - [`explain`]: why a launch failed, from a few small files
//!
//! ```no_run
//! use airlock_engine::doctor::{self, Facts, facts::Asker};
//! let asker = Asker { home: "/home/ada/.airlock".into(), binary: "/usr/bin/airlock".into(), runtime_dir: None };
//! let report = doctor::examine(&Facts::gather(&asker));
//! println!("{}", report.summary());
//! ```

pub mod explain;
mod extras;
pub mod facts;
mod files;
pub mod fix;
mod limits;
#[cfg(test)]
mod tests;
mod walls;

pub use explain::{Explanation, explain_launch_failure};
pub use facts::Facts;
pub use fix::{Fix, Step};

/// How it stands with one thing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// It works.
    Ok,
    /// It is not there.
    Missing,
    /// It works in part, or not for this user.
    Degraded,
}

/// One thing that was looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// What `--fix` calls it.
    pub name: &'static str,
    /// How it stands.
    pub status: Status,
    /// One sentence.
    pub says: String,
    /// What puts it right.
    pub fix: Option<Fix>,
    /// Whether `airlock run` does not work because of it.
    pub stops_run: bool,
}

/// Everything that was looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// In the order a person wants to read them: first what `run` needs.
    pub findings: Vec<Finding>,
}

impl Status {
    /// The word for it.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Status::Ok => "ok",
            Status::Missing => "missing",
            Status::Degraded => "degraded",
        }
    }
}

impl Finding {
    fn ok(name: &'static str, says: impl Into<String>) -> Finding {
        Finding { name, status: Status::Ok, says: says.into(), fix: None, stops_run: false }
    }

    fn degraded(name: &'static str, says: impl Into<String>) -> Finding {
        Finding { status: Status::Degraded, ..Finding::ok(name, says) }
    }

    fn missing(name: &'static str, says: impl Into<String>) -> Finding {
        Finding { status: Status::Missing, ..Finding::ok(name, says) }
    }

    /// Without it no sandbox starts.
    fn stopping(name: &'static str, says: impl Into<String>) -> Finding {
        Finding { stops_run: true, ..Finding::missing(name, says) }
    }

    fn fixed_by(self, fix: Fix) -> Finding {
        Finding { fix: Some(fix), ..self }
    }

    fn advised(self, advice: impl Into<String>) -> Finding {
        self.fixed_by(Fix::advice(advice))
    }

    /// The command that fixes it, or what to do in words.
    #[must_use]
    pub fn remedy(&self) -> Option<String> {
        self.fix.as_ref().map(|fix| fix.words(self.name))
    }
}

impl Report {
    /// Names of what keeps `airlock run` from working.
    #[must_use]
    pub fn stoppers(&self) -> Vec<&'static str> {
        self.findings.iter().filter(|finding| finding.stops_run).map(|finding| finding.name).collect()
    }

    /// The last line: whether sandboxes run here.
    #[must_use]
    pub fn summary(&self) -> String {
        match self.stoppers().as_slice() {
            [] => "airlock can run here".to_owned(),
            names => format!("airlock cannot run here: {}", names.join(", ")),
        }
    }
}

/// Decides what the facts mean.
#[must_use]
pub fn examine(facts: &Facts) -> Report {
    let mut findings = vec![
        walls::kernel(facts),
        walls::user_namespaces(facts),
        walls::ids(facts),
        walls::procfs(facts),
        walls::network(facts),
        walls::nftables(facts),
        walls::second_pair(facts),
        walls::filter(facts),
        files::state(facts),
        files::overlay(facts),
        files::shifted_ids(facts),
    ];
    findings.extend(limits::controllers(facts));
    findings.extend([
        limits::swap(facts),
        limits::disk(facts),
        extras::landlock(facts),
        extras::fuse(facts),
        extras::tun(facts),
        extras::kvm(facts),
        extras::memfd(facts),
        extras::container(facts),
        extras::core_pattern(facts),
    ]);
    findings.extend(walls::unfinished(facts));
    Report { findings }
}
