//! A state directory and a workspace of one test's own, and the command line in them.

use crate::{
    Terminal, binary,
    leftovers::Traces,
    machine,
    process::{Airlock, Running},
};
use serde_json::Value;
use std::{
    env,
    ffi::{OsStr, OsString},
    fs,
    path::{Path, PathBuf},
    process::Command,
};
use tempfile::TempDir;

/// What one test has to itself. When it ends, every sandbox in it is removed and nothing may be left.
pub struct World {
    home: PathBuf,
    work: PathBuf,
    place: TempDir,
}

impl World {
    /// A new world with nothing in it.
    pub fn new() -> World {
        World::within("/tmp")
    }

    /// A world in a directory of that place; paths of sockets are short, so must this be.
    pub fn within(place: impl AsRef<Path>) -> World {
        let place = tempfile::Builder::new().prefix("aw-").tempdir_in(place).expect("a directory");
        let (home, work) = (place.path().join("home"), place.path().join("work"));
        fs::create_dir(&work).expect("a workspace");
        let world = World { home, work, place };
        world.furnish();
        world
    }

    /// Makes the state directory and puts the kernel of machines there, where every sandbox is to be one: for a test that has put another
    /// directory in its place.
    pub fn furnish(&self) {
        if let Some(machines) = machine::kernels() {
            machine::furnish(&self.home, &machines);
        }
    }

    /// A world whose sandboxes can be machines (`--backend microvm`). `None` where there is no kernel; return then.
    pub fn with_machines() -> Option<World> {
        let Some(machines) = machine::kernels_of_tests() else {
            crate::skip("there is no kernel for machines (cargo xtask test)");
            return None;
        };
        let world = World::new();
        if !world.home.exists() {
            machine::furnish(&world.home, &machines);
        }
        Some(world)
    }

    /// The state directory; made by the first command.
    pub fn home(&self) -> &Path {
        &self.home
    }

    /// The workspace, where commands run.
    pub fn work(&self) -> &Path {
        &self.work
    }

    /// A directory beside both, for files of the test.
    pub fn aside(&self, name: &str) -> PathBuf {
        let path = self.place.path().join(name);
        fs::create_dir_all(&path).expect("a directory");
        path
    }

    /// Writes a file into the workspace; gives its path.
    pub fn write(&self, name: &str, text: impl AsRef<[u8]>) -> PathBuf {
        let path = self.work.join(name);
        fs::write(&path, text).unwrap_or_else(|err| panic!("could not write {}: {err}", path.display()));
        path
    }

    /// A file of the workspace.
    #[track_caller]
    pub fn read(&self, name: &str) -> String {
        let path = self.work.join(name);
        fs::read_to_string(&path).unwrap_or_else(|err| panic!("could not read {}: {err}", path.display()))
    }

    /// `airlock …` in the workspace, with PATH, HOME, TERM and AIRLOCK_HOME as its whole environment and no input.
    pub fn airlock(&self, args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Airlock {
        let (path, home) = (variable("PATH"), variable("HOME"));
        let env = [
            ("PATH", path.as_os_str()),
            ("HOME", home.as_os_str()),
            ("TERM", OsStr::new("xterm")),
            ("AIRLOCK_HOME", self.home.as_os_str()),
        ];
        let mut args = args.into_iter().map(|arg| arg.as_ref().to_owned());
        let verb: Option<OsString> = args.next();
        let place = verb.as_ref().and_then(machine::flags).into_iter().flatten();
        Airlock::new(binary(), &env).args(verb).args(place).args(args).dir(&self.work)
    }

    /// `airlock run FLAGS -- sh -c SCRIPT`.
    pub fn sh<'a>(&self, flags: impl IntoIterator<Item = &'a str>, script: &str) -> Airlock {
        self.airlock(["run"]).args(flags).args(["--", "sh", "-c", script])
    }

    /// `airlock run FLAGS -- python3 -c SCRIPT`.
    pub fn python<'a>(&self, flags: impl IntoIterator<Item = &'a str>, script: &str) -> Airlock {
        self.airlock(["run"]).args(flags).args(["--", "python3", "-c", script])
    }

    /// `airlock run -d FLAGS -- sh -c SCRIPT`, which must succeed; gives the id.
    #[track_caller]
    pub fn detached<'a>(&self, flags: impl IntoIterator<Item = &'a str>, script: &str) -> String {
        let flags: Vec<&str> = ["-d"].into_iter().chain(flags).collect();
        self.sh(flags, script).run().succeeded().trim_end().to_owned()
    }

    /// `airlock exec SANDBOX sh -c SCRIPT`.
    pub fn exec(&self, sandbox: &str, script: &str) -> Airlock {
        self.airlock(["exec", sandbox, "sh", "-c", script])
    }

    /// `airlock get --json SANDBOX`, which must succeed.
    #[track_caller]
    pub fn state(&self, sandbox: &str) -> Value {
        let text = self.airlock(["get", "--json", sandbox]).run().succeeded();
        serde_json::from_str(&text).unwrap_or_else(|err| panic!("not JSON: {err}: {text}"))
    }

    /// Every sandbox of `airlock ls --all --json`, which must succeed.
    #[track_caller]
    pub fn sandboxes(&self) -> Vec<Value> {
        let text = self.airlock(["ls", "--all", "--json"]).run().succeeded();
        text.lines().map(|line| serde_json::from_str(line).expect("one object a line")).collect()
    }

    /// A terminal on which `airlock …` runs.
    pub fn on_terminal(&self, args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Terminal {
        let mut terminal = Terminal::new();
        terminal.start(&self.airlock(args).into_command());
        terminal
    }

    /// A shell with job control on a terminal, in which `airlock` is found.
    pub fn shell(&self) -> Terminal {
        let mut path = OsString::from(binary().parent().expect("the binary lies somewhere"));
        path.push(":");
        path.push(variable("PATH"));
        let mut shell = Command::new("bash");
        shell.args(["--norc", "--noprofile", "--noediting", "-i"]).current_dir(&self.work).env_clear();
        shell.env("PATH", path).env("HOME", variable("HOME")).env("TERM", "xterm");
        shell.env("AIRLOCK_HOME", &self.home).env("PS1", "ready> ");
        let mut terminal = Terminal::new();
        terminal.start(&shell);
        terminal.wait_for("ready> ");
        terminal
    }

    /// Removes every sandbox and asserts that nothing is left of any. Done at the end in any case.
    pub fn clear(&self) {
        let ids = self.ids();
        let traces = Traces::of(&self.home, &ids);
        if !ids.is_empty() {
            // One that ends by itself at this moment is no failure; what is left in the end is.
            let removed = self.airlock(["rm", "--force"]).args(&ids).run();
            println!("rm --force: {removed}");
            self.airlock(["prune"]).run();
        }
        traces.assert_gone();
        // Files of unpacked layers belong to ids that only a command of ours can delete.
        if fs::read_dir(self.home.join("images/layers")).is_ok_and(|mut layers| layers.next().is_some()) {
            println!("images prune: {}", self.airlock(["images", "prune", "--all", "--force"]).run());
        }
    }

    /// Ids of all directories of sandboxes.
    pub fn ids(&self) -> Vec<String> {
        let entries = fs::read_dir(self.home.join("sandboxes")).into_iter().flatten().flatten();
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        names.filter(|name| name.len() == 12 && name.bytes().all(|byte| byte.is_ascii_hexdigit())).collect()
    }

    /// Waits for the word `running` of a sandbox that starts beside a command line.
    pub fn wait_running(&self, running: &Running) -> Value {
        crate::eventually(&format!("a running sandbox of {}", running.pid()), || {
            self.sandboxes().into_iter().find(|sandbox| sandbox["status"] == "running")
        })
    }
}

impl Default for World {
    fn default() -> World {
        World::new()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let ids = self.ids();
            if !ids.is_empty() {
                let rm = self.airlock(["rm", "--force"]).args(ids).into_command();
                let variables = rm.get_envs().filter_map(|(name, value)| Some((name, value?)));
                // What hung once may hang again.
                let mut bounded = Command::new("timeout");
                bounded.args(["--kill-after=5", "60"]).arg(rm.get_program()).args(rm.get_args());
                let removed = bounded.env_clear().envs(variables).output();
                eprintln!("after the failure: {removed:?}");
            }
            return;
        }
        self.clear();
    }
}

fn variable(name: &str) -> OsString {
    env::var_os(name).unwrap_or_default()
}
