//! Connections that are opened, so that requests can be judged: beside the direct way, haproxy, squid and mitmproxy in the
//! same run. And the keeper's memory with five hundred of them, and while ten gigabytes pass; and what a secret costs.

mod peers;

use super::{
    Field,
    contender::{Figure, median},
    ours::{As, Ours},
    start::present,
    way::{DIRECT, Place, RSA_NAME, half, keeper_of_newest, most_resident},
};
use crate::system::Scratch;
use anyhow::{Context as _, Result, anyhow, ensure};
pub(crate) use peers::{HAPROXY, MITMPROXY, SQUID};
use peers::{PEERS, Peers, as_user};
use std::{
    fs,
    io::{BufRead as _, BufReader, Write as _},
    path::PathBuf,
    process::{Command, Stdio},
};

/// Requests a second over 32 kept connections.
pub(crate) const REQUESTS: &str = "opened: requests";
/// One long answer.
pub(crate) const STREAM: &str = "opened: stream";
/// A request on a kept connection.
pub(crate) const KEPT: &str = "opened: kept";
/// A connection with one request, by a client that resumes sessions, to a server with a key of P-256.
pub(crate) const NEW: &str = "opened: new, resumed";
/// The same by a client that resumes none, to a server with a key of RSA.
pub(crate) const FULL: &str = "opened: new, full";
/// One long answer from a host that a secret is bound to.
pub(crate) const SCRUBBED: &str = "opened: scrubbed";
/// The stream that `SCRUBBED` is compared with.
pub(crate) const PLAIN: &str = "without a secret";
/// Memory of the keeper with five hundred connections.
pub(crate) const IDLE: &str = "opened: 500 idle";
/// Memory of the keeper after ten gigabytes.
pub(crate) const POURED: &str = "opened: 10 GB";

/// The most rounds: each is five seconds for each contender.
const ROUNDS: usize = 5;
/// Megabytes by which two keepers differ anyway.
const GROWTH: f64 = 4.0;
/// What `wrk` measures: the figure, the unit, its arguments, the path, how the figure is read.
const MEASURES: [(&str, &str, &[&str], &str, Reading); 4] = [
    (REQUESTS, "per second", &["-t1", "-c32", "-d1s"], "", per_second),
    (STREAM, "MB/s", &["-t1", "-c1", "-d1s"], "big", transferred),
    (KEPT, "us", &["-t1", "-c1", "-d1s", "--latency"], "", half),
    (NEW, "us", &["-t1", "-c1", "-d1s", "-H", "Connection: close"], "", each),
];

type Reading = fn(&str) -> Option<f64>;

/// Every figure of every contender.
pub(crate) fn measure(field: &Field, rounds: usize) -> Vec<Figure> {
    let measured = Scratch::new("opened").and_then(|scratch| {
        let place = Place::new(&scratch)?;
        let peers = Peers::start(&place, &scratch)?;
        let [root, ..] = &field.ours;
        let ours = present(root).and_then(|ours| Opened::new(ours, &place));
        let mut figures = race(&place, &peers, &ours, rounds.min(ROUNDS));
        figures.extend(alone(&place, &ours, rounds.min(ROUNDS)));
        Ok(figures)
    });
    measured.unwrap_or_else(|why| vec![figure(REQUESTS, As::Root.name(), "per second", Err(why))])
}

fn figure(measure: &'static str, name: &str, unit: &'static str, value: Result<f64>) -> Figure {
    Figure { measure, name: name.into(), unit, median: value.map_err(|why| format!("skipped: {why:#}")) }
}

/// Airlock with a rule that looks at requests.
struct Opened {
    ours: Ours,
    rules: PathBuf,
}

impl Opened {
    fn new(ours: &Ours, place: &Place) -> Result<Opened> {
        ours.configure(&format!("[network]\nextra_ca = {:?}\n", place.authority()))?;
        let rules = ours.workspace().join("opened.toml");
        fs::write(
            &rules,
            format!(
                "[[rule]]\nallow = [{:?}, {RSA_NAME:?}]\nports = [443]\nmethods = [\"GET\"]\n",
                place.name()
            ),
        )?;
        Ok(Opened { ours: ours.clone(), rules })
    }

    fn run(&self, flags: &[&str], words: &[String]) -> Command {
        let mut command = self.ours.airlock("run");
        command.arg("--policy").arg(&self.rules).args(flags).arg("--").args(words);
        command
    }
}

fn race(place: &Place, peers: &Peers, ours: &Result<Opened>, rounds: usize) -> Vec<Figure> {
    let mut figures = Vec::new();
    let mut measures: Vec<(&'static str, &'static str, Vec<String>, Reading)> = MEASURES
        .map(|(measure, unit, args, path, read)| (measure, unit, wrk(place, args, path), read))
        .into();
    measures.push((FULL, "us", full(), half));
    for (measure, unit, words, read) in measures {
        let mut lanes: Vec<(&str, Result<Command>, Vec<f64>)> = vec![(DIRECT, Ok(plain(&words)), Vec::new())];
        for (name, user, _) in PEERS {
            lanes.push((name, peers.check(name).map(|()| as_user(&words, user)), Vec::new()));
        }
        let sealed = ours.as_ref().map(|ours| ours.run(&[], &words)).map_err(|why| anyhow!("{why:#}"));
        lanes.push((As::Root.name(), sealed, Vec::new()));
        for _ in 0..rounds {
            for (_, command, samples) in &mut lanes {
                sample(place, command, read, samples);
            }
        }
        let done = lanes.into_iter().map(|(name, command, samples)| {
            let value = command.and_then(|_| median(samples).context("nothing was sampled"));
            figure(measure, name, unit, value)
        });
        figures.extend(done);
    }
    figures
}

/// What has no peer.
fn alone(place: &Place, ours: &Result<Opened>, rounds: usize) -> Vec<Figure> {
    let ours = match ours {
        Ok(ours) => ours,
        Err(why) => return vec![figure(IDLE, As::Root.name(), "MB", Err(anyhow!("{why:#}")))],
    };
    let name = As::Root.name();
    let mut figures =
        vec![figure(IDLE, name, "MB", idle(place, ours)), figure(POURED, name, "MB", poured(place, ours))];
    let words = wrk(place, &["-t1", "-c1", "-d1s"], "big");
    let host = format!("WAY_TOKEN@{}", place.name());
    let mut with = ours.run(&["--secret", &host], &words);
    with.env("WAY_TOKEN", "way-token-0123456789abcdefghijklmnopqrstuv");
    let mut lanes = [(name, Ok(with), Vec::new()), (PLAIN, Ok(ours.run(&[], &words)), Vec::new())];
    // They differ by less than two runs of the same do: more rounds than elsewhere, and each goes first in turns.
    for _ in 0..=rounds * 2 {
        for (_, command, samples) in &mut lanes {
            sample(place, command, transferred, samples);
        }
        lanes.reverse();
    }
    figures.extend(lanes.into_iter().map(|(name, command, samples)| {
        let value = command.and_then(|_: Command| median(samples).context("nothing was sampled"));
        figure(SCRUBBED, name, "MB/s", value)
    }));
    figures
}

fn sample(place: &Place, command: &mut Result<Command>, read: Reading, samples: &mut Vec<f64>) {
    let Ok(runs) = command else { return };
    match place.ask(runs).and_then(|said| read(&said).with_context(|| format!("wrk said {said}"))) {
        Ok(value) => samples.push(value),
        Err(why) => *command = Err(why),
    }
}

fn wrk(place: &Place, args: &[&str], path: &str) -> Vec<String> {
    let url = format!("https://{}/{path}", place.name());
    ["wrk"].into_iter().chain(args.iter().copied()).chain([url.as_str()]).map(str::to_owned).collect()
}

/// A client that shakes hands in full for each request, for a second. As wrk does, it takes any certificate.
fn full() -> Vec<String> {
    let script = "\
import socket, ssl, sys, time
context, name, took, begun = ssl._create_unverified_context(), sys.argv[1], [], time.monotonic()
while time.monotonic() < begun + 1:
    one = time.perf_counter()
    with context.wrap_socket(socket.create_connection((name, 443)), server_hostname=name) as wire:
        wire.sendall(f'GET / HTTP/1.1\\r\\nHost: {name}\\r\\nConnection: close\\r\\n\\r\\n'.encode())
        assert b' 200 ' in wire.recv(4096)
    took.append(time.perf_counter() - one)
print(f'50% {sorted(took)[len(took) // 2] * 1e6}us')
";
    ["/usr/bin/python3", "-c", script, RSA_NAME].map(str::to_owned).into()
}

fn plain(words: &[String]) -> Command {
    let mut command = Command::new("env");
    command.args(words);
    command
}

fn per_second(said: &str) -> Option<f64> {
    said.lines().find_map(|line| line.strip_prefix("Requests/sec:"))?.trim().parse().ok()
}

/// Microseconds of one connection, one after the other.
fn each(said: &str) -> Option<f64> {
    per_second(said).filter(|rate| *rate > 0.0).map(|rate| 1e6 / rate)
}

/// Megabytes a second, as wrk tells them.
fn transferred(said: &str) -> Option<f64> {
    let text = said.lines().find_map(|line| line.strip_prefix("Transfer/sec:"))?.trim();
    let units = [("GB", 1024.0 * 1.048_576), ("MB", 1.048_576), ("KB", 0.001_024)];
    units
        .into_iter()
        .find_map(|(unit, factor)| Some(text.strip_suffix(unit)?.trim().parse::<f64>().ok()? * factor))
}

/// The keeper's share while five hundred opened connections wait.
fn idle(place: &Place, ours: &Opened) -> Result<f64> {
    let script = "\
import socket, ssl, sys
context, held, name = ssl.create_default_context(), [], sys.argv[1]
for _ in range(500):
    held.append(context.wrap_socket(socket.create_connection((name, 443)), server_hostname=name))
    held[-1].sendall(f'GET / HTTP/1.1\\r\\nHost: {name}\\r\\n\\r\\n'.encode())
    assert b'200' in held[-1].recv(4096)
print('ready', flush=True)
sys.stdin.readline()
";
    let words = ["python3", "-c", script, place.name()].map(str::to_owned);
    watched(place, ours, &words, super::idle::share)
}

/// The most memory the keeper ever had when ten gigabytes have passed; with one it has to be about the same.
fn poured(place: &Place, ours: &Opened) -> Result<f64> {
    let after = |files: usize| {
        let url = format!("https://{}/big?[1-{files}]", place.name());
        let script = "curl -sf -o /dev/null \"$1\" && echo ready && read x".to_owned();
        let words = ["sh".to_owned(), "-c".to_owned(), script, "sh".to_owned(), url];
        watched(place, ours, &words, most_resident)
    };
    let (little, much) = (after(4)?, after(40)?);
    ensure!(much <= little + GROWTH, "{little:.1} MB after 1 GB, {much:.1} MB after 10 GB");
    Ok(much)
}

/// Looks at the keeper of a sandbox once its program says that it is ready, which then ends with its input.
fn watched(place: &Place, ours: &Opened, words: &[String], look: impl Fn(u64) -> Result<f64>) -> Result<f64> {
    let mut client = place.near(&ours.run(&[], words));
    let mut client = client.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let stdout = client.stdout.take().context("the client has no output")?;
    let mut ready = String::new();
    BufReader::new(stdout).read_line(&mut ready)?;
    let seen = keeper_of_newest(&ours.ours).and_then(look);
    client.stdin.take().context("the client has no input")?.write_all(b"\n")?;
    let ended = client.wait()?;
    ensure!(ready == "ready\n" && ended.success(), "the client failed ({ended})");
    seen
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_wrk_says_is_read() {
        let said = "Requests/sec:  20000.00\nTransfer/sec:    400.00MB\n";
        assert_eq!(per_second(said), Some(20000.0));
        assert_eq!(each(said), Some(50.0));
        assert_eq!(transferred(said).map(f64::round), Some(419.0));
        assert_eq!(transferred("Transfer/sec:      1.00GB").map(f64::round), Some(1074.0));
    }
}
