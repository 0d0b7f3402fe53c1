//! A contender is something that can be run again and again and timed; a figure is what came out.
//!
//! ```ignore
//! let figures = race("start", vec![Contender::new("fork and exec", || Command::new("/bin/true"))], 50, || ());
//! ```

use anyhow::{Context as _, Result, bail};
use std::{
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

/// One who runs in a race.
pub(crate) struct Contender {
    name: String,
    next: Result<Next>,
}

/// Makes the command of the next run. Each call may name another container.
type Next = Box<dyn FnMut() -> Command>;

/// What was measured of one contender, or why not.
pub(crate) struct Figure {
    /// Which measurement.
    pub(crate) measure: &'static str,
    /// Whose.
    pub(crate) name: String,
    /// In which unit.
    pub(crate) unit: &'static str,
    /// The median, or why there is none.
    pub(crate) median: Result<f64, String>,
}

impl Contender {
    /// A contender that any machine has.
    pub(crate) fn new(name: &str, next: impl FnMut() -> Command + 'static) -> Contender {
        Contender { name: name.to_owned(), next: Ok(Box::new(next)) }
    }

    /// One that may be missing here.
    pub(crate) fn from(name: &str, next: Result<Next>) -> Contender {
        Contender { name: name.to_owned(), next }
    }

    /// Its name.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Runs it once unmeasured and shows what it said if it failed. To be done before anything is timed.
    pub(crate) fn warmed(mut self) -> Contender {
        self.next = self.next.and_then(|mut next| try_out(&mut next()).map(|()| next));
        self
    }

    /// Starts one run, its output thrown away.
    pub(crate) fn spawn(&mut self) -> Result<Child> {
        let Ok(next) = &mut self.next else { bail!("{} cannot run", self.name) };
        quiet(&mut next()).spawn().with_context(|| format!("could not start {}", self.name))
    }

    /// The figure of what was sampled.
    pub(crate) fn figure(self, measure: &'static str, unit: &'static str, samples: Vec<f64>) -> Figure {
        let median = match self.next {
            Err(why) => Err(format!("skipped: {why:#}")),
            Ok(_) => median(samples).ok_or_else(|| "skipped: it failed while it was measured".to_owned()),
        };
        Figure { measure, name: self.name, unit, median }
    }
}

/// Times every contender once in each round, from before its start until after its end, in milliseconds. What `settle` waits
/// for is not timed: no contender pays for what the one before it left to be done.
pub(crate) fn race(
    measure: &'static str,
    contenders: Vec<Contender>,
    rounds: usize,
    settle: impl Fn(),
) -> Vec<Figure> {
    let mut lanes: Vec<(Contender, Vec<f64>)> =
        contenders.into_iter().map(|contender| (contender.warmed(), Vec::new())).collect();
    for _ in 0..rounds {
        for (contender, samples) in &mut lanes {
            samples.extend(time_one(contender).map(|took| took.as_secs_f64() * 1e3));
            settle();
        }
    }
    lanes.into_iter().map(|(contender, samples)| contender.figure(measure, "ms", samples)).collect()
}

/// Runs a command with its output kept; an exit code other than 0 is an error that shows it.
pub(crate) fn try_out(command: &mut Command) -> Result<()> {
    output(command).map(|_| ())
}

/// What a command printed to stdout; an exit code other than 0 is an error that shows what it said.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("could not run {program}"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        // What, why and fix stand in three lines.
        let said = said.lines().take(3).map(str::trim).collect::<Vec<_>>().join("; ");
        bail!("{program} failed ({}): {said}", output.status);
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn time_one(contender: &mut Contender) -> Option<Duration> {
    let begin = Instant::now();
    let status = contender.spawn().ok()?.wait().ok()?;
    let took = begin.elapsed();
    status.success().then_some(took)
}

fn quiet(command: &mut Command) -> &mut Command {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null())
}

/// The middle of the samples.
pub(crate) fn median(mut samples: Vec<f64>) -> Option<f64> {
    samples.sort_by(f64::total_cmp);
    samples.get(samples.len() / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(vec![]), None);
    }

    #[test]
    fn a_contender_that_fails_is_skipped_with_what_it_said() {
        let failing = Contender::new("failing", || {
            let mut command = Command::new("sh");
            command.args(["-c", "echo no room >&2; exit 3"]);
            command
        });

        let figures = race("start", vec![failing, Contender::new("true", || Command::new("true"))], 3, || ());

        let medians: Vec<_> = figures.iter().map(|figure| figure.median.clone()).collect();
        assert_eq!(medians.first(), Some(&Err("skipped: sh failed (exit status: 3): no room".to_owned())));
        assert!(medians.get(1).is_some_and(Result::is_ok));
    }
}
