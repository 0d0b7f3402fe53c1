//! What crun, runc and docker run: a root file system with nothing but busybox, and an OCI bundle around it.

use super::contender::{output, try_out};
use crate::{
    dist::needs_interpreter,
    system::{Scratch, program},
};
use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};
use std::{
    fs,
    io::{BufRead as _, BufReader},
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{self, Child, Command, Stdio},
    rc::Rc,
    sync::atomic::{AtomicU32, Ordering},
};

static NUMBER: AtomicU32 = AtomicU32::new(0);

/// Two bundles over one root file system: one whose program ends at once, one whose program stays.
pub(crate) struct Bundle {
    /// The root file system.
    pub(crate) root: PathBuf,
    /// Runs `/bin/true`.
    brief: PathBuf,
    /// Runs `sleep`.
    idle: PathBuf,
}

/// An OCI runtime as it works on this machine.
#[derive(Clone)]
pub(crate) struct Runtime {
    /// As it stands in tables: its name, and what was done to make it work.
    pub(crate) name: String,
    program: PathBuf,
    mounts: Option<Rc<Mounts>>,
}

/// A mount namespace without `/sys/fs/cgroup/unified`, kept by a process that sleeps in it.
struct Mounts {
    keeper: Child,
}

/// A container that runs until dropped.
pub(crate) struct Container {
    runtime: Runtime,
    id: String,
}

impl Bundle {
    /// Makes both.
    pub(crate) fn new(scratch: &Scratch) -> Result<Bundle> {
        let root = scratch.folder("root")?;
        fill(&root)?;
        let config = config(&root)?;
        let brief = bundle(scratch, "brief", &config, json!(["/bin/true"]))?;
        let idle = bundle(scratch, "idle", &config, json!(["/bin/sleep", "1000000"]))?;
        Ok(Bundle { root, brief, idle })
    }

    /// The runtime, as it is or where control groups of version 2 are out of sight, whichever works here: crun
    /// refuses hosts where both versions have controllers.
    pub(crate) fn runtime(&self, name: &str) -> Result<Runtime> {
        let program = program(name).with_context(|| format!("there is no {name}"))?;
        let plain = Runtime { name: name.to_owned(), program, mounts: None };
        let Err(why) = try_out(&mut self.runs(&plain)()) else { return Ok(plain) };
        let Ok(mounts) = Mounts::new() else { return Err(why) };
        let elsewhere =
            Runtime { name: format!("{name} (and nsenter)"), mounts: Some(Rc::new(mounts)), ..plain };
        try_out(&mut self.runs(&elsewhere)()).map(|()| elsewhere).map_err(|_| why)
    }

    /// Commands that each run a container with `/bin/true` to its end.
    pub(crate) fn runs(&self, runtime: &Runtime) -> Box<dyn FnMut() -> Command> {
        let (runtime, brief) = (runtime.clone(), self.brief.clone());
        Box::new(move || {
            // Unique among all contenders of this process: the runtimes share no state, but control groups.
            let number = NUMBER.fetch_add(1, Ordering::Relaxed);
            let mut command = runtime.command();
            command
                .args(["run", "--bundle"])
                .arg(&brief)
                .arg(format!("airlock-peer-{}-{number}", process::id()));
            command
        })
    }

    /// Starts a container that stays.
    pub(crate) fn start(&self, runtime: &Runtime) -> Result<Container> {
        let id = format!("airlock-peer-{}-idle-{}", process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
        let mut command = runtime.command();
        command.args(["run", "--detach", "--bundle"]).arg(&self.idle).arg(&id);
        // Detached, its output stays open as long as it lives: nothing may wait for the end of it.
        let status = command.stdin(Stdio::null()).stdout(Stdio::null()).status();
        if !status.with_context(|| format!("could not run {}", runtime.name))?.success() {
            bail!("{} could not start a container", runtime.name);
        }
        Ok(Container { runtime: runtime.clone(), id })
    }
}

impl Runtime {
    fn command(&self) -> Command {
        let Some(mounts) = &self.mounts else { return Command::new(&self.program) };
        let mut command = Command::new("nsenter");
        command.arg(format!("--mount=/proc/{}/ns/mnt", mounts.keeper.id())).arg(&self.program);
        command
    }
}

impl Mounts {
    fn new() -> Result<Mounts> {
        let mut keeper = Command::new("unshare")
            .args(["--mount", "sh", "-c", "umount /sys/fs/cgroup/unified && echo done && exec sleep 1000000"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .context("could not run unshare")?;
        let output = keeper.stdout.take().context("unshare has no output")?;
        let mounts = Mounts { keeper };
        let mut said = String::new();
        BufReader::new(output).read_line(&mut said).context("could not read what unshare said")?;
        match said.trim() {
            "done" => Ok(mounts),
            _ => bail!("there is no /sys/fs/cgroup/unified to unmount"),
        }
    }
}

impl Drop for Mounts {
    fn drop(&mut self) {
        if let Err(why) = self.keeper.kill().and_then(|()| self.keeper.wait()) {
            eprintln!("could not end the keeper of a mount namespace: {why}");
        }
    }
}

impl Container {
    /// Runs `/bin/true` in it.
    pub(crate) fn exec(&self) -> Command {
        let mut command = self.runtime.command();
        command.args(["exec", &self.id, "/bin/true"]);
        command
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        if let Err(why) = try_out(self.runtime.command().args(["delete", "--force", &self.id])) {
            eprintln!("{why:#}");
        }
    }
}

fn fill(root: &Path) -> Result<()> {
    let busybox = program("busybox").context("there is no busybox")?;
    let bytes = fs::read(&busybox).with_context(|| format!("could not read {}", busybox.display()))?;
    if needs_interpreter(&bytes) != Some(false) {
        bail!("{} is not static (apt-get install busybox-static)", busybox.display());
    }
    for name in ["bin", "proc", "dev", "sys", "tmp", "etc"] {
        fs::create_dir(root.join(name))
            .with_context(|| format!("could not make {name} in {}", root.display()))?;
    }
    let inside = root.join("bin/busybox");
    fs::copy(&busybox, &inside).with_context(|| format!("could not write {}", inside.display()))?;
    for name in ["true", "sleep", "sh"] {
        symlink("busybox", root.join("bin").join(name)).with_context(|| format!("could not link {name}"))?;
    }
    Ok(())
}

/// The default configuration, with all namespaces and a read-only root, but no terminal.
fn config(root: &Path) -> Result<Value> {
    let runc = program("runc").context("there is no runc")?;
    let folder = root.parent().context("the root file system has no parent")?;
    output(Command::new(runc).args(["spec", "--bundle"]).arg(folder))?;
    let made = folder.join("config.json");
    let text = fs::read(&made).with_context(|| format!("could not read {}", made.display()))?;
    let mut config: Value = serde_json::from_slice(&text).context("runc spec did not write JSON")?;
    set(&mut config, "/process/terminal", json!(false))?;
    set(&mut config, "/root/path", json!(root))?;
    Ok(config)
}

fn bundle(scratch: &Scratch, name: &str, config: &Value, args: Value) -> Result<PathBuf> {
    let folder = scratch.folder(name)?;
    let mut config = config.clone();
    set(&mut config, "/process/args", args)?;
    let path = folder.join("config.json");
    fs::write(&path, config.to_string()).with_context(|| format!("could not write {}", path.display()))?;
    Ok(folder)
}

fn set(config: &mut Value, pointer: &str, value: Value) -> Result<()> {
    *config.pointer_mut(pointer).with_context(|| format!("runc spec wrote no {pointer}"))? = value;
    Ok(())
}
