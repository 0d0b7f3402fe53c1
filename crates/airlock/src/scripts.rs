//! Scripts that look at requests: named on the command line or in the project's file, and run by a program inside this one.

use crate::{
    args::RunArgs,
    config::{self, Project},
    failure::{Failure, Outcome},
    spec::Host,
};
use airlock_protocol::spec::Script;
use std::path::Path;

/// Largest script.
const LARGEST: usize = 512 * 1024;

/// The program that runs scripts; none in a build without them.
#[cfg(feature = "scripts")]
const PROGRAM: Option<&[u8]> = Some(include_bytes!(env!("AIRLOCK_SCRIPT")));
/// The program that runs scripts; none in a build without them.
#[cfg(not(feature = "scripts"))]
const PROGRAM: Option<&[u8]> = None;

/// Memory of the program that runs a script.
const MEMORY: u64 = 256 << 20;

/// The script that was typed, or else the one that the project's file names, or else the person's own.
pub(crate) fn settle(
    args: &RunArgs,
    written: [Option<&Project>; 2],
    host: &Host,
) -> Result<Option<Script>, Failure> {
    let typed = match &args.network.script {
        Some(path) => Some((path.clone(), config::read_named(path)?)),
        None => None,
    };
    let in_file = |file: &'_ Project| {
        let path = file.settings.script.clone()?;
        // As it was read when it was checked: another look could see something else.
        let text = file.named(&path)?.to_owned();
        Some((path, text))
    };
    let written = || written.into_iter().flatten().find_map(in_file);
    let Some((path, text)) = typed.or_else(written) else { return Ok(None) };
    check(&path, &text)?;
    let name = path.strip_prefix(&host.directory).unwrap_or(&path).display().to_string();
    Ok(Some(Script { name, text }))
}

fn check(path: &Path, text: &str) -> Result<(), Failure> {
    if PROGRAM.is_none() {
        return Err(Failure::new("this airlock runs no scripts")
            .code(2)
            .why("it was built without them")
            .fix("cargo build --features scripts, or leave the script out"));
    }
    if text.len() > LARGEST {
        let what = format!("{} has more than {LARGEST} bytes", path.display());
        return Err(Failure::new(what).code(2).fix("make it shorter"));
    }
    Ok(())
}

/// Is the program that runs a script: what is behind `airlock script-host`. Nobody types it.
pub(crate) fn run() -> Outcome {
    let program = PROGRAM.ok_or_else(|| Failure::new("this airlock runs no scripts"))?;
    let alone = airlock_linux::alone::Alone { program, memory: MEMORY };
    let code = airlock_linux::alone::run(&alone)
        .map_err(|err| Failure::because("the program that runs scripts cannot be started", &err))?;
    Ok(u8::try_from(code).unwrap_or(125))
}
