//! The command: arguments, assembly, and one file per verb.
//!
//! | module | what |
//! |---|---|
//! | [`args`] | what a person types |
//! | [`spec`], [`environment`], [`mounts`], [`streams`] | what `run` means by it |
//! | [`config`], [`policy`], [`registries`], [`answers`] | files: settings, rules, package clients, answers that stay |
//! | [`scripts`] | what looks at requests besides the rules |
//! | [`secrets`] | what requests may carry and the program never sees |
//! | [`commands`], [`ledger`] | one verb each |
//! | [`pulling`] | images from and to registries |
//! | [`keeper`], [`session`], [`pump`] | starting a keeper, and talking with it until the program ends |
//! | [`asking`], [`prompt`] | questions of the sandbox, meanwhile |
//! | [`keep`] | being a keeper |
//! | [`failure`], [`say`], [`table`], [`clean`] | what a person sees |

mod answers;
mod args;
mod asking;
mod changes;
mod clean;
mod commands;
mod config;
mod environment;
mod epoch;
mod failure;
mod home;
mod keep;
mod keeper;
mod ledger;
mod mounts;
mod packages;
mod place;
mod policy;
mod progress;
mod prompt;
mod pulling;
mod pump;
mod registries;
mod root;
mod say;
mod scripts;
mod secrets;
mod session;
mod setup;
mod spec;
mod step;
mod streams;
mod table;
mod visit;

use airlock_linux::clone;
use clap::Parser;
use std::{ffi::OsString, io::Write as _};

fn main() {
    // A keeper is started by us for every sandbox: it need not pay for the grammar people use.
    let words: Vec<OsString> = std::env::args_os().skip(1).collect();
    let texts: Vec<&str> = words.iter().take(3).map(|word| word.to_str().unwrap_or_default()).collect();
    let keeper = match texts.as_slice() {
        ["keep", id] => id.parse().ok().map(|id| args::Verb::Keep(args::KeepArgs { id })),
        ["script-host"] => finish(scripts::run()),
        _ => None,
    };
    let verb = keeper.or_else(|| args::Verb::quick(&words)).or_else(|| args::Cli::parse().verb);
    finish(commands::perform(verb))
}

/// Ends at once: nothing is left to be undone but what was written and not sent off, and somebody waits.
fn finish(outcome: failure::Outcome) -> ! {
    let code = outcome.unwrap_or_else(|failure| {
        say::say_failure(&failure);
        failure.code
    });
    let _ = std::io::stdout().flush();
    clone::exit_now(code.into())
}
