//! Airlock as it is given out (static, release), run by each kind of user.

use super::contender::output;
use crate::{
    dist,
    system::Scratch,
    test::users::{self, SINGLE, User, WITH_RANGES},
};
use anyhow::{Context as _, Result, anyhow};
use serde_json::Value;
use std::{os::unix::process::CommandExt as _, path::PathBuf, process::Command};

/// Who runs it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum As {
    /// Host root: ids are shifted.
    Root,
    /// A user with ranges of ids.
    WithRanges,
    /// A user with its one id.
    Single,
}

/// The product, run by one user with a state directory and a workspace of its own.
#[derive(Clone)]
pub(crate) struct Ours {
    binary: PathBuf,
    state: PathBuf,
    workspace: PathBuf,
    ids: Option<(u32, u32)>,
}

/// A sandbox that runs until dropped.
pub(crate) struct Idle {
    ours: Ours,
    /// Its id.
    pub(crate) id: String,
}

impl As {
    /// As it stands in tables.
    pub(crate) fn name(self) -> &'static str {
        match self {
            As::Root => "airlock, root",
            As::WithRanges => "airlock, user with id ranges",
            As::Single => "airlock, user with a single id",
        }
    }
}

/// Builds the binary and puts it where every user can run it.
pub(crate) fn binary(scratch: &Scratch) -> Result<PathBuf> {
    scratch.program(&dist::for_this_machine()?, "airlock")
}

impl Ours {
    /// Ready to run as that user.
    pub(crate) fn new(scratch: &Scratch, binary: &Result<PathBuf>, who: As) -> Result<Ours> {
        let binary = binary.as_ref().map_err(|why| anyhow!("{why:#}"))?.clone();
        let user = match who {
            As::Root => None,
            As::WithRanges => Some(users::ensure(&WITH_RANGES)?),
            As::Single => Some(users::ensure(&SINGLE)?),
        };
        let state = scratch.folder(&format!("state-{who:?}"))?;
        let workspace = scratch.folder(&format!("workspace-{who:?}"))?;
        if let Some(user) = &user {
            users::give(&state, user)?;
            users::give(&workspace, user)?;
        }
        Ok(Ours { binary, state, workspace, ids: user.map(|User { uid, gid, .. }| (uid, gid)) })
    }

    /// The command line of the product up to its verb.
    pub(crate) fn airlock(&self, verb: &str) -> Command {
        let mut command = self.other(&self.binary);
        command.arg(verb).env("AIRLOCK_HOME", &self.state);
        command
    }

    /// Another program, run by the same user in the same directory and started in the same way.
    pub(crate) fn other(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new(program);
        command
            .current_dir(&self.workspace)
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .env("HOME", &self.workspace);
        if let Some((uid, gid)) = self.ids {
            command.uid(uid).gid(gid);
        }
        command
    }

    /// Commands that each run a sandbox with `/bin/true` to its end.
    pub(crate) fn runs(&self) -> Box<dyn FnMut() -> Command> {
        let ours = self.clone();
        Box::new(move || {
            let mut command = ours.airlock("run");
            command.args(["--", "/bin/true"]);
            command
        })
    }

    /// Starts a sandbox that stays.
    pub(crate) fn start_idle(&self) -> Result<Idle> {
        let said = output(self.airlock("run").args(["-d", "--", "sleep", "1000000"]))?;
        Ok(Idle { ours: self.clone(), id: said.trim().to_owned() })
    }
}

impl Idle {
    /// Commands that each run `/bin/true` in it.
    pub(crate) fn execs(&self) -> Box<dyn FnMut() -> Command> {
        let (ours, id) = (self.ours.clone(), self.id.clone());
        Box::new(move || {
            let mut command = ours.airlock("exec");
            command.args([&id, "/bin/true"]);
            command
        })
    }

    /// Its keeper's and its guest's pid.
    pub(crate) fn pids(&self) -> Result<[u64; 2]> {
        let said = output(self.ours.airlock("get").args([&self.id, "--json"]))?;
        let facts: Value = serde_json::from_str(&said).context("airlock get --json did not print JSON")?;
        // The state stands at the top or below `state`, next to the spec.
        let pid = |key: &str| {
            let found = facts.get(key).or_else(|| facts.get("state")?.get(key)).and_then(Value::as_u64);
            found.with_context(|| format!("airlock get --json shows no {key}"))
        };
        Ok([pid("keeper_pid")?, pid("init_pid")?])
    }
}

impl Drop for Idle {
    fn drop(&mut self) {
        if let Err(why) = output(self.ours.airlock("rm").args(["--force", &self.id])) {
            eprintln!("{why:#}");
        }
    }
}
