//! The way out of the sandbox: one long stream, requests over TLS on a kept connection, new connections; beside a direct veth
//! pair and pasta in the same run. And the keeper's memory while it holds a thousand connections, and while ten
//! gigabytes pass.

mod ends;
mod place;

use super::{
    Field,
    contender::{Contender, Figure},
    ours::{As, Ours},
    start::present,
};
use crate::system::{Scratch, program};
use anyhow::{Context as _, Result, anyhow};
use place::{NAME, PORT};
pub(crate) use place::{Place, RSA_NAME, RSA_SERVER};
use serde_json::Value;
use std::{
    io::{BufRead as _, BufReader, Write as _},
    process::{Command, Stdio},
};

pub(crate) use ends::{serve, time};

/// The direct way, as it stands in tables.
pub(crate) const DIRECT: &str = "veth pair";
/// Pasta, as it stands in tables.
pub(crate) const PASTA: &str = "pasta";

/// The measurements: a name for tables, the client's key, the unit.
pub(crate) const FIGURES: [(&str, &str, &str); 6] = [
    ("stream", "stream", "MB/s"),
    ("echo", "kept", "us"),
    ("connect", "new", "us"),
    ("connects", "rate", "per second"),
    ("connect by name", "named", "us"),
    ("kept", "https", "us"),
];
/// Memory of the keeper with a thousand connections.
pub(crate) const HELD: &str = "1,000 held";
/// Memory of the keeper after ten gigabytes.
pub(crate) const POURED: &str = "10 GB poured";

/// Seconds of each measurement of the client.
const SECONDS: &str = "0.5";
/// The most rounds: each is two seconds for each contender.
const ROUNDS: usize = 7;
const POUR: u64 = 10_000_000_000;
/// Megabytes by which two keepers differ anyway.
const GROWTH: f64 = 2.0;

/// Every figure of every contender.
pub(crate) fn measure(field: &Field, rounds: usize) -> Vec<Figure> {
    let scratch = Scratch::new("way");
    let place = scratch.and_then(|scratch| Ok((Place::new(&scratch)?, scratch)));
    match &place {
        Ok((place, _)) => {
            let mut figures = race(field, place, rounds.min(ROUNDS));
            figures.extend(memory(field, place));
            figures
        }
        Err(why) => vec![Figure {
            measure: "stream",
            name: As::Root.name().into(),
            unit: "MB/s",
            median: Err(format!("skipped: {why:#}")),
        }],
    }
}

/// One who carries the client.
struct Lane {
    name: &'static str,
    command: Result<Command>,
    /// Requests over TLS on one kept connection.
    requests: Result<Command>,
    samples: [Vec<f64>; 6],
}

fn race(field: &Field, place: &Place, rounds: usize) -> Vec<Figure> {
    let client =
        [place.tool.display().to_string(), "way-client".into(), format!("{NAME}:{PORT}"), SECONDS.into()];
    let requests = ["wrk", "-t1", "-c1", "-d1s", "--latency", &format!("https://{NAME}/")].map(str::to_owned);
    let plain = |words: &[String]| {
        let mut words = words.iter();
        let mut command = Command::new(words.next().map_or("", String::as_str));
        command.args(words);
        command
    };
    let pasta = |words: &[String]| {
        let pasta = program("pasta").context("there is no pasta (apt-get install passt)")?;
        let mut command = Command::new(pasta);
        // By itself it would become nobody, who may not write the ids of its user namespace, and then wait for ever.
        command.args(["--runas", "0", "--quiet", "--config-net", "--"]).args(words);
        Ok(command)
    };
    let lane = |name, command, requests| Lane { name, command, requests, samples: Default::default() };
    let mut lanes = vec![
        lane(DIRECT, Ok(plain(&client)), Ok(plain(&requests))),
        lane(PASTA, pasta(&client), pasta(&requests)),
    ];
    let [root, with_ranges, single] = &field.ours;
    for (who, ours) in [(As::Root, root), (As::WithRanges, with_ranges), (As::Single, single)] {
        let command = present(ours).and_then(|ours| sandboxed(ours, place, &[SECONDS]));
        let asked = present(ours).map(|ours| {
            let mut command = ours.airlock("run");
            command.args(["--allow", NAME, "--"]).args(&requests);
            ours.as_user(command)
        });
        lanes.push(lane(who.name(), command, asked));
    }
    for _ in 0..rounds {
        for lane in &mut lanes {
            lane.run(place);
        }
    }
    lanes.into_iter().flat_map(Lane::figures).collect()
}

impl Lane {
    fn run(&mut self, place: &Place) {
        let Ok(command) = &self.command else { return };
        let said = place.ask(command).and_then(|said| Ok(serde_json::from_str::<Value>(said.trim())?));
        match said {
            Ok(said) => {
                for ((_, key, _), samples) in FIGURES.iter().zip(&mut self.samples) {
                    samples.extend(said.get(*key).and_then(Value::as_f64));
                }
            }
            Err(why) => self.command = Err(why),
        }
        let Ok(requests) = &self.requests else { return };
        match place.ask(requests).and_then(|said| half(&said).with_context(|| format!("wrk said {said}"))) {
            Ok(median) => self.samples.iter_mut().last().into_iter().for_each(|samples| samples.push(median)),
            Err(why) => self.requests = Err(why),
        }
    }

    fn figures(self) -> Vec<Figure> {
        let Lane { name, command, requests, samples } = self;
        let figure = |((measure, key, unit), samples): (&(&'static str, &str, &'static str), Vec<f64>)| {
            let ran = if *key == "https" { &requests } else { &command };
            let next: Result<Box<dyn FnMut() -> Command>> = match ran {
                Ok(_) => Ok(Box::new(|| Command::new("true"))),
                Err(why) => Err(anyhow!("{why:#}")),
            };
            Contender::from(name, next).figure(measure, unit, samples)
        };
        FIGURES.iter().zip(samples).map(figure).collect()
    }
}

/// Microseconds of the middle request, as wrk tells them.
pub(crate) fn half(said: &str) -> Option<f64> {
    let text = said.lines().find_map(|line| line.trim().strip_prefix("50%"))?.trim();
    let (number, factor) = match text.strip_suffix("us") {
        Some(number) => (number, 1.0),
        None => (text.strip_suffix("ms")?, 1000.0),
    };
    Some(number.parse::<f64>().ok()? * factor)
}

/// The client in a sandbox that may reach the server by its name.
fn sandboxed(ours: &Ours, place: &Place, args: &[&str]) -> Result<Command> {
    let tool = place::copy_into(&place.tool, ours.workspace())?;
    let mut command = ours.airlock("run");
    command.args(["--allow", &format!("{NAME}:{PORT}"), "--"]).arg(tool);
    command.args(["way-client", &format!("{NAME}:{PORT}")]).args(args);
    Ok(ours.as_user(command))
}

fn memory(field: &Field, place: &Place) -> Vec<Figure> {
    let [root, ..] = &field.ours;
    let figure = |measure, value: Result<f64>| Figure {
        measure,
        name: As::Root.name().into(),
        unit: "MB",
        median: value.map_err(|why| format!("skipped: {why:#}")),
    };
    vec![
        figure(HELD, present(root).and_then(|ours| held(ours, place))),
        figure(POURED, present(root).and_then(|ours| poured(ours, place))),
    ]
}

/// The keeper's share while a thousand connections are open.
fn held(ours: &Ours, place: &Place) -> Result<f64> {
    let mut client = place.near(&sandboxed(ours, place, &["hold", "1000"])?);
    let mut client = client.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let stdout = client.stdout.take().context("the client has no output")?;
    let mut ready = String::new();
    BufReader::new(stdout).read_line(&mut ready)?;
    let share = keeper_of_newest(ours).and_then(super::idle::share);
    client.stdin.take().context("the client has no input")?.write_all(b"\n")?;
    let ended = client.wait()?;
    anyhow::ensure!(ready == "ready\n" && ended.success(), "the client failed ({ended})");
    share
}

/// The most memory the keeper ever had when ten gigabytes have passed; with one gigabyte it has to be about the same.
fn poured(ours: &Ours, place: &Place) -> Result<f64> {
    let little = poured_bytes(ours, place, POUR / 10)?;
    let much = poured_bytes(ours, place, POUR)?;
    anyhow::ensure!(much <= little + GROWTH, "{little:.1} MB after 1 GB, {much:.1} MB after 10 GB");
    Ok(much)
}

fn poured_bytes(ours: &Ours, place: &Place, bytes: u64) -> Result<f64> {
    let script = format!("way-client {NAME}:{PORT} pour {bytes}");
    let tool = place::copy_into(&place.tool, ours.workspace())?;
    let mut command = ours.airlock("run");
    command.args(["--allow", &format!("{NAME}:{PORT}"), "--", "sh", "-c"]);
    // The sandbox lives until its input ends, so that its keeper can be looked at when all has passed.
    command.arg(format!("{} {script} && read x", tool.display()));
    let mut client = place.near(&ours.as_user(command));
    let mut client = client.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let stdout = client.stdout.take().context("the client has no output")?;
    let mut read = String::new();
    BufReader::new(stdout).read_line(&mut read)?;
    let most = keeper_of_newest(ours).and_then(most_resident);
    client.stdin.take().context("the client has no input")?.write_all(b"\n")?;
    let ended = client.wait()?;
    anyhow::ensure!(ended.success() && read.trim().parse::<u64>()? >= bytes, "the client failed ({ended})");
    most
}

/// Megabytes that a process had at most.
pub(crate) fn most_resident(pid: u64) -> Result<f64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:")).context("there is no VmHWM")?;
    let kilobytes: f64 = line.trim().trim_end_matches(" kB").parse()?;
    Ok(kilobytes / 1024.0)
}

/// The keeper of the sandbox that was started last.
pub(crate) fn keeper_of_newest(ours: &Ours) -> Result<u64> {
    let said = super::contender::output(ours.airlock("get").args(["-", "--json"]))?;
    let facts: Value = serde_json::from_str(&said)?;
    let pid = facts.get("keeper_pid").or_else(|| facts.get("state")?.get("keeper_pid"));
    pid.and_then(Value::as_u64).context("airlock get --json shows no keeper_pid")
}
