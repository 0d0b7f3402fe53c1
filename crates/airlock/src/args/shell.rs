//! The flags of `shell`: those of `run`, and a sandbox in place of the command.

use super::RunArgs;
use clap::{ArgMatches, Args, Command, FromArgMatches, parser::ValueSource};

pub(super) const USAGE: &str = "airlock shell [OPTIONS]\n       airlock shell SANDBOX [OPTIONS]";
pub(super) const HELP: &str = "\
Your own shell ($SHELL) where it is inside, else bash, else sh. Without SANDBOX a new sandbox is made, with the flags and the
settings of `airlock run`; in one that runs only --user, --workdir, --env and --quiet count.

Examples:
  airlock shell                       look around sealed, in the current directory
  airlock shell --image debian        in an image
  airlock shell web -u root           in a sandbox that runs";

/// The flags of `shell`.
#[derive(Debug)]
pub(crate) struct ShellArgs {
    /// The sandbox, if one is named, stands where `run` has its command.
    pub(crate) run: RunArgs,
    /// Flags that were typed, by their long names.
    pub(crate) typed: Vec<String>,
}

impl ShellArgs {
    /// The sandbox that runs already.
    pub(crate) fn sandbox(&self) -> Option<&str> {
        self.run.command.first().map(String::as_str)
    }
}

impl Args for ShellArgs {
    fn augment_args(command: Command) -> Command {
        RunArgs::augment_args(command).mut_arg("command", |arg| {
            arg.trailing_var_arg(false)
                .num_args(0..=1)
                .value_name("SANDBOX")
                .help("Which sandbox (default: a new one)")
        })
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for ShellArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        // Groups of flags have names of types.
        let is_flag = |id: &str| id != "command" && id.starts_with(|first: char| first.is_ascii_lowercase());
        let typed = matches.ids().map(clap::Id::as_str).filter(|id| is_flag(id));
        let typed = typed.filter(|id| matches.value_source(id) == Some(ValueSource::CommandLine));
        let typed = typed.map(|id| id.replace('_', "-")).collect();
        Ok(Self { run: RunArgs::from_arg_matches(matches)?, typed })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}
