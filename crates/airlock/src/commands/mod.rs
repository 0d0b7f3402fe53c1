//! One verb each. A verb gives the exit code, or why it failed.

mod apply;
mod approvals;
mod build;
mod change;
mod commit;
mod completion;
mod config;
mod cp;
mod diff;
mod discard;
mod doctor;
mod exec;
mod export;
mod fork;
mod get;
pub(crate) mod images;
mod import;
mod init;
mod learn;
mod ledger;
mod lifecycle;
mod list;
mod logs;
mod mount;
mod policy;
mod prefetch;
mod remove;
pub(crate) mod review;
mod run;
mod secret;
mod shell;
mod snapshot;
mod trust;
mod undo;
mod volume;
mod wait;

use crate::{
    args::{Cli, Verb, VersionArgs},
    failure::{Failure, Outcome},
    home, keep,
};
use airlock_engine::store::{Sandbox, Store};
use clap::CommandFactory;
use std::io::Write;

/// Does what was typed. Nothing typed prints the help.
pub(crate) fn perform(verb: Option<Verb>) -> Outcome {
    let Some(verb) = verb else {
        Cli::command().print_help()?;
        return Ok(0);
    };
    match verb {
        Verb::Run(mut args) => run::run(&mut args),
        Verb::Shell(args) => shell::shell(*args),
        Verb::Learn(args) => learn::learn(*args),
        Verb::Exec(args) => exec::exec(&args),
        Verb::Ls(args) => list::list(&args),
        Verb::Get(args) => get::get(&args),
        Verb::Logs(args) => logs::logs(&args),
        Verb::Cp(args) => cp::cp(&args),
        Verb::Kill(args) => lifecycle::kill(&args),
        Verb::Stop(args) => lifecycle::stop(&args),
        Verb::Start(args) => lifecycle::start(&args.sandboxes),
        Verb::Restart(args) => lifecycle::restart(&args),
        Verb::Wait(args) => wait::wait(&args),
        Verb::Pause(args) => lifecycle::pause(&args.sandboxes),
        Verb::Resume(args) => lifecycle::resume(&args.sandboxes),
        Verb::Snapshot(args) => snapshot::perform(&args),
        Verb::Fork(args) => fork::fork(&args),
        Verb::Export(args) => export::export(&args),
        Verb::Import(args) => import::import(&args),
        Verb::Commit(args) => commit::commit(&args),
        Verb::Rm(args) => remove::rm(&args),
        Verb::Prune(args) => remove::prune(&args),
        Verb::Diff(args) => diff::diff(&args),
        Verb::Apply(args) => apply::apply(&args),
        Verb::Undo(args) => undo::undo(&args),
        Verb::Discard(args) => discard::discard(&args),
        Verb::Build(args) => build::build(&args),
        Verb::Volume(args) => volume::perform(&args),
        Verb::Images(args) => images::perform(&args),
        Verb::Prefetch(args) => prefetch::prefetch(&args),
        Verb::Allow(args) => change::allow(&args),
        Verb::Deny(args) => change::deny(&args),
        Verb::Mount(args) => mount::mount(args),
        Verb::Unmount(args) => mount::unmount(args),
        Verb::Policy(args) => policy::perform(&args),
        Verb::Secret(args) => secret::perform(&args),
        Verb::Ledger(args) => ledger::ledger(&args),
        Verb::Approvals(args) => approvals::approvals(&args),
        Verb::Approve(args) => approvals::approve(&args),
        Verb::Refuse(args) => approvals::refuse(&args),
        Verb::Init(args) => init::init(&args),
        Verb::Trust(args) => trust::trust(&args),
        Verb::Config(args) => config::config(&args),
        Verb::Doctor(args) => doctor::doctor(&args),
        Verb::Completion(args) => completion::completion(args.shell),
        Verb::Version(args) => version(&args),
        Verb::Keep(args) => keep::run(&args, None),
        Verb::BuildStep => build::build_step(),
        Verb::Inside => keep::inside(),
        Verb::CompleteSandboxes => completion::sandboxes(),
        Verb::CompleteGroups => completion::groups(),
        Verb::CompleteImages => images::names(),
    }
}

fn version(args: &VersionArgs) -> Outcome {
    let version = env!("CARGO_PKG_VERSION");
    match args.json {
        true => print_json(&serde_json::json!({ "version": version }))?,
        false => writeln!(std::io::stdout(), "airlock {version}")?,
    }
    Ok(0)
}

/// One JSON object on a line of its own.
fn print_json(value: &impl serde::Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string(value).map_err(|err| Failure::because("could not write JSON", &err))?;
    Ok(writeln!(std::io::stdout(), "{text}")?)
}

/// Does the same to each of several sandboxes. One that fails does not keep the others from it; the first failure
/// is the one that the command ends with, the others are told at once.
fn each(selectors: &[String], act: impl Fn(&Sandbox) -> Result<(), Failure>) -> Outcome {
    let store = home::store()?;
    let mut first = None;
    for selector in selectors {
        if let Err(failure) = find(&store, selector).and_then(|sandbox| act(&sandbox)) {
            match &first {
                None => first = Some(failure),
                Some(_) => crate::say::say_failure(&failure),
            }
        }
    }
    first.map_or(Ok(0), Err)
}

fn find(store: &Store, selector: &str) -> Result<Sandbox, Failure> {
    Ok(store.find(selector)?)
}
