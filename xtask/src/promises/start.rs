//! From the start of the command to its end, the program being `/bin/true`.

use super::{
    Field,
    contender::{Contender, Figure, race},
    ours::{As, Ours, Person},
};
use crate::system::program;
use anyhow::{Context as _, Result, anyhow};
use std::process::Command;

/// Bubblewrap, as it stands in tables.
pub(crate) const BWRAP: &str = "bubblewrap, root";

/// Bubblewrap run by an ordinary user.
pub(crate) const BWRAP_USER: &str = "bubblewrap, user";

/// Docker, as it stands in tables.
pub(crate) const DOCKER: &str = "docker run --network none";

/// Times all of them.
pub(crate) fn measure(field: &Field, rounds: usize) -> Vec<Figure> {
    let [root, with_ranges, single] = &field.ours;
    let contenders = vec![
        Contender::new("fork and exec", || Command::new("/bin/true")),
        Contender::from(BWRAP, bwraps(None)),
        Contender::from(BWRAP_USER, present(&field.user).and_then(|user| bwraps(Some(user.clone())))),
        runtime(field, "crun"),
        runtime(field, "runc"),
        Contender::from(DOCKER, present(&field.docker).map(|docker| docker.runs())),
        Contender::from(As::Root.name(), present(root).map(Ours::runs)),
        Contender::from(As::WithRanges.name(), present(with_ranges).map(Ours::runs)),
        Contender::from(As::Single.name(), present(single).map(Ours::runs)),
    ];
    race("start", contenders, rounds, || field.ours.iter().flatten().for_each(Ours::settle))
}

/// An OCI runtime that runs `/bin/true` in a container of its own each time.
pub(crate) fn runtime(field: &Field, name: &str) -> Contender {
    let found = present(&field.bundle).and_then(|bundle| Ok((bundle, bundle.runtime(name)?)));
    match found {
        Ok((bundle, runtime)) => Contender::from(&runtime.name, Ok(bundle.runs(&runtime))),
        Err(why) => Contender::from(name, Err(why)),
    }
}

/// Commands that each run bubblewrap with `/bin/true`: all namespaces, the host's root read-only, own `/proc` and `/dev`.
pub(crate) fn bwraps(user: Option<Person>) -> Result<Box<dyn FnMut() -> Command>> {
    let bwrap = program("bwrap").context("there is no bwrap")?;
    Ok(Box::new(move || {
        let mut command = match &user {
            Some(user) => user.command(&bwrap),
            None => Command::new(&bwrap),
        };
        command.args(SEALED).arg("/bin/true");
        command
    }))
}

/// Bubblewrap's arguments for a sandbox with the host's root, read-only.
pub(crate) const SEALED: [&str; 8] =
    ["--unshare-all", "--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev"];

/// What was prepared, or why it was not: the reason can be told more than once.
pub(crate) fn present<T>(prepared: &Result<T>) -> Result<&T> {
    prepared.as_ref().map_err(|why| anyhow!("{why:#}"))
}
