//! Airlock as it is given out (static, release), run by each kind of user.
//!
//! That binary takes minutes to build. For trials, `--binary target/release/airlock` measures the one named there; figures of
//! SPECIFICATION.md say so where they were taken with one.

use super::contender::output;
use crate::{
    dist,
    system::Scratch,
    test::users::{self, SINGLE, User, WITH_RANGES},
};
use anyhow::{Context as _, Result, anyhow, bail};
use serde_json::Value;
use std::{
    ffi::OsStr,
    fs,
    os::unix::{
        fs::{PermissionsExt as _, chown},
        process::CommandExt as _,
    },
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

/// Longer than any crowd takes to be removed.
const LONGEST_TO_SETTLE: Duration = Duration::from_secs(30);

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

/// Someone who runs programs in a workspace of their own.
#[derive(Clone)]
pub(crate) struct Person {
    workspace: PathBuf,
    ids: Option<(u32, u32)>,
}

/// The product, run by one person with a state directory of their own.
#[derive(Clone)]
pub(crate) struct Ours {
    binary: PathBuf,
    state: PathBuf,
    person: Person,
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

/// Builds the binary, unless it was built before, and puts it where every user can run it.
pub(crate) fn binary(scratch: &Scratch, built: Option<&Path>) -> Result<PathBuf> {
    let built = match built {
        Some(built) => built.to_owned(),
        None => dist::for_this_machine()?,
    };
    println!("measuring {}", built.display());
    scratch.program(&built, "airlock")
}

impl Person {
    /// Ready to run programs as that user.
    pub(crate) fn new(scratch: &Scratch, who: As) -> Result<Person> {
        let user = match who {
            As::Root => None,
            As::WithRanges => Some(users::ensure(&WITH_RANGES)?),
            As::Single => Some(users::ensure(&SINGLE)?),
        };
        let person = Person {
            workspace: scratch.folder(&format!("workspace-{who:?}"))?,
            ids: user.map(|User { uid, gid, .. }| (uid, gid)),
        };
        person.own(&person.workspace)?;
        Ok(person)
    }

    /// A program, to be run as this person. Whoever is compared is started in this same way.
    pub(crate) fn command(&self, program: impl AsRef<OsStr>) -> Command {
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

    fn own(&self, path: &Path) -> Result<()> {
        let Some((uid, gid)) = self.ids else { return Ok(()) };
        chown(path, Some(uid), Some(gid)).with_context(|| format!("could not give away {}", path.display()))
    }
}

impl Ours {
    /// Ready to run as that user.
    pub(crate) fn new(scratch: &Scratch, binary: &Result<PathBuf>, who: As) -> Result<Ours> {
        let binary = binary.as_ref().map_err(|why| anyhow!("{why:#}"))?.clone();
        let person = Person::new(scratch, who)?;
        let state = scratch.folder(&format!("state-{who:?}"))?;
        // The product refuses a state directory that others may enter.
        fs::set_permissions(&state, fs::Permissions::from_mode(0o700))
            .context("could not close the state directory")?;
        person.own(&state)?;
        let ours = Ours { binary, state, person };
        ours.prove()?;
        Ok(ours)
    }

    /// A program that does nothing is fast: a sandbox that is not one must not be timed.
    fn prove(&self) -> Result<()> {
        let inside = output(self.airlock("run").args(["--", "readlink", "/proc/self/ns/net"]))?;
        let outside = output(Command::new("readlink").arg("/proc/self/ns/net"))?;
        if !inside.starts_with("net:[") || inside == outside {
            bail!("airlock run started no sandbox: its network namespace is {:?}", inside.trim());
        }
        Ok(())
    }

    /// The command line of the product up to its verb.
    pub(crate) fn airlock(&self, verb: &str) -> Command {
        let mut command = self.person.command(&self.binary);
        command.arg(verb).env("AIRLOCK_HOME", &self.state);
        command
    }

    /// Its state directory.
    pub(crate) fn state(&self) -> &Path {
        &self.state
    }

    /// Its settings.
    pub(crate) fn configure(&self, text: &str) -> Result<()> {
        let file = self.state.join("config.toml");
        fs::write(&file, text).with_context(|| format!("could not write {}", file.display()))?;
        self.person.own(&file)
    }

    /// A program outside, run by the same person.
    pub(crate) fn command(&self, program: &str) -> Command {
        self.person.command(program)
    }

    /// The directory its sandboxes see.
    pub(crate) fn workspace(&self) -> &Path {
        &self.person.workspace
    }

    /// The same command for somebody who is still root and becomes this user by it.
    pub(crate) fn as_user(&self, command: Command) -> Command {
        let Some((uid, gid)) = self.person.ids else { return command };
        let mut outer = Command::new("setpriv");
        outer.args([
            format!("--reuid={uid}"),
            format!("--regid={gid}"),
            "--clear-groups".into(),
            "--".into(),
        ]);
        outer.arg(command.get_program()).args(command.get_args()).current_dir(self.workspace());
        outer.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
        outer
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

    /// Waits until what earlier runs left to be removed is gone: the next contender is not to pay for it.
    pub(crate) fn settle(&self) {
        let is_left =
            || fs::read_dir(self.state.join("sandboxes")).is_ok_and(|mut left| left.next().is_some());
        let until = Instant::now() + LONGEST_TO_SETTLE;
        while is_left() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(10));
        }
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
