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
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{self, Command},
};

/// Two bundles over one root file system: one whose program ends at once, one whose program stays.
pub(crate) struct Bundle {
    /// The root file system.
    pub(crate) root: PathBuf,
    /// Runs `/bin/true`.
    brief: PathBuf,
    /// Runs `sleep`.
    idle: PathBuf,
}

/// A container that runs until dropped.
pub(crate) struct Container {
    runtime: PathBuf,
    /// Its id.
    pub(crate) id: String,
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

    /// Commands that each run a container with `/bin/true` to its end.
    pub(crate) fn runs(&self, runtime: &str) -> Result<Box<dyn FnMut() -> Command>> {
        let program = program(runtime).with_context(|| format!("there is no {runtime}"))?;
        let (brief, mut number) = (self.brief.clone(), 0u32);
        Ok(Box::new(move || {
            number += 1;
            let mut command = Command::new(&program);
            command
                .args(["run", "--bundle"])
                .arg(&brief)
                .arg(format!("airlock-peer-{}-{number}", process::id()));
            command
        }))
    }

    /// Starts a container that stays.
    pub(crate) fn start(&self, runtime: &str) -> Result<Container> {
        let program = program(runtime).with_context(|| format!("there is no {runtime}"))?;
        let id = format!("airlock-peer-{}-idle", process::id());
        let mut command = Command::new(&program);
        command.args(["run", "--detach", "--bundle"]).arg(&self.idle).arg(&id);
        // Detached, its output stays open as long as it lives: nothing may wait for the end of it.
        let status = command.stdin(process::Stdio::null()).stdout(process::Stdio::null()).status();
        if !status.with_context(|| format!("could not run {runtime}"))?.success() {
            bail!("{runtime} could not start a container");
        }
        Ok(Container { runtime: program, id })
    }
}

impl Container {
    /// Runs `/bin/true` in it.
    pub(crate) fn exec(&self) -> Command {
        let mut command = Command::new(&self.runtime);
        command.args(["exec", &self.id, "/bin/true"]);
        command
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        if let Err(why) = try_out(Command::new(&self.runtime).args(["delete", "--force", &self.id])) {
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
