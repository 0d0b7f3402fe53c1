//! `/bin/true` in a sandbox that already runs, from the start of the command to its end.

use super::{
    Field,
    contender::{Contender, Figure, race, try_out},
    ours::As,
    start::{SEALED, present},
};
use crate::system::program;
use anyhow::{Context as _, Result};
use serde_json::Value;
use std::{
    io::{self, BufRead, BufReader},
    process::{Child, Command, Stdio},
};

/// nsenter, as it stands in tables.
pub(crate) const NSENTER: &str = "nsenter --all (into bubblewrap)";

/// A bubblewrap that runs until dropped, for nsenter to enter.
pub(crate) struct Bubble {
    child: Child,
    /// The process inside, as the host sees it.
    pub(crate) inside: u64,
}

/// Times all of them.
pub(crate) fn measure(field: &Field, rounds: usize) -> Vec<Figure> {
    let bubble = Bubble::start();
    let docker = present(&field.docker);
    let docker = docker.and_then(|docker| Ok((docker, docker.start_idle()?)));
    let [root, with_ranges, single] = field.ours.each_ref().map(|ours| present(ours)?.start_idle());
    let contenders = vec![
        Contender::new("fork and exec", || Command::new("/bin/true")),
        Contender::from(NSENTER, present(&bubble).map(Bubble::enters)),
        runtime(field, "crun"),
        runtime(field, "runc"),
        Contender::from(
            "docker exec",
            docker.map(|(docker, id)| -> Box<dyn FnMut() -> Command> {
                let socket: Vec<_> = docker.docker().get_args().map(ToOwned::to_owned).collect();
                let client = docker.docker().get_program().to_owned();
                Box::new(move || {
                    let mut command = Command::new(&client);
                    command.args(&socket).args(["exec", &id, "/bin/true"]);
                    command
                })
            }),
        ),
        Contender::from(As::Root.name(), present(&root).map(|idle| idle.execs())),
        Contender::from(As::WithRanges.name(), present(&with_ranges).map(|idle| idle.execs())),
        Contender::from(As::Single.name(), present(&single).map(|idle| idle.execs())),
    ];
    race("exec", contenders, rounds, || ())
}

fn runtime(field: &Field, name: &str) -> Contender {
    let found = present(&field.bundle).and_then(|bundle| {
        let runtime = bundle.runtime(name)?;
        Ok((bundle.start(&runtime)?, runtime.name))
    });
    match found {
        Ok((container, name)) => Contender::new(&name, move || container.exec()),
        Err(why) => Contender::from(name, Err(why)),
    }
}

impl Bubble {
    /// Starts it and waits until it says who is inside.
    pub(crate) fn start() -> Result<Bubble> {
        let bwrap = program("bwrap").context("there is no bwrap")?;
        let mut child = Command::new(bwrap)
            .args(SEALED)
            .args(["--info-fd", "1", "--die-with-parent", "sleep", "1000000"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .context("could not start bwrap")?;
        let output = child.stdout.take().context("bwrap has no output")?;
        let said = one_object(BufReader::new(output)).context("could not read what bwrap said")?;
        let facts: Value = serde_json::from_str(&said).context("bwrap did not say who is inside")?;
        let inside = facts.get("child-pid").and_then(Value::as_u64).context("bwrap named no process")?;
        Ok(Bubble { child, inside })
    }

    /// The process outside.
    pub(crate) fn outside(&self) -> u64 {
        u64::from(self.child.id())
    }

    fn enters(&self) -> Box<dyn FnMut() -> Command> {
        let pid = self.inside.to_string();
        Box::new(move || {
            let mut command = Command::new("nsenter");
            command.args(["--all", "--target", &pid, "/bin/true"]);
            command
        })
    }
}

impl Drop for Bubble {
    fn drop(&mut self) {
        // The first process inside takes everything with it, and then bwrap ends too. The other way round, one that has
        // not yet asked to die with its parent would stay.
        let ended = try_out(Command::new("kill").args(["-KILL", &self.inside.to_string()]));
        if let Err(why) = ended.and_then(|()| self.child.wait().context("could not wait for bwrap")) {
            eprintln!("{why:#}");
        }
    }
}

/// The text up to the brace that closes it; the program inside keeps the stream open.
fn one_object(mut said: impl BufRead) -> io::Result<String> {
    let mut text = Vec::new();
    said.read_until(b'}', &mut text)?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}
