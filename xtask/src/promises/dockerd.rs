//! A dockerd of our own, apart from any the machine may have: own directories, own socket, no network.

use super::{
    contender::{output, try_out},
    oci::Bundle,
};
use crate::system::{Scratch, program};
use anyhow::{Context as _, Result, bail};
use std::{
    fs::File,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

/// The image made of the bundle's root file system.
const IMAGE: &str = "airlock-peer";

/// How long it may take to answer. Rather long: it starts a containerd first.
const PATIENCE: Duration = Duration::from_secs(60);

/// A running dockerd, stopped when dropped.
pub(crate) struct Dockerd {
    child: Child,
    socket: String,
    client: PathBuf,
}

impl Dockerd {
    /// Starts it and gives it an image.
    pub(crate) fn start(scratch: &Scratch, bundle: &Bundle) -> Result<Dockerd> {
        let program = program("dockerd").context("there is no dockerd")?;
        let client = crate::system::program("docker").unwrap_or_else(|| PathBuf::from("docker"));
        let folder = scratch.folder("docker")?;
        let log = folder.join("log");
        let socket = format!("unix://{}", folder.join("socket").display());
        let child = Command::new(program)
            .args(["--iptables=false", "--ip6tables=false", "--bridge=none", "--host", &socket])
            .arg("--data-root")
            .arg(folder.join("data"))
            .arg("--exec-root")
            .arg(folder.join("exec"))
            .arg("--pidfile")
            .arg(folder.join("pid"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(&log).with_context(|| format!("could not make {}", log.display()))?)
            .spawn()
            .context("could not start dockerd")?;
        let mut docker = Dockerd { child, socket, client };
        docker.wait_until_it_answers(&log)?;
        docker.import(&bundle.root)?;
        Ok(docker)
    }

    /// The docker client, talking to this dockerd.
    pub(crate) fn docker(&self) -> Command {
        client(&self.client, &self.socket)
    }

    /// Commands that each run a container with `/bin/true` to its end, without network.
    pub(crate) fn runs(&self) -> Box<dyn FnMut() -> Command> {
        let (program, socket) = (self.client.clone(), self.socket.clone());
        Box::new(move || {
            let mut command = client(&program, &socket);
            command.args(["run", "--rm", "--network", "none", IMAGE, "/bin/true"]);
            command
        })
    }

    /// Starts a container that stays as long as this dockerd, and says its id.
    pub(crate) fn start_idle(&self) -> Result<String> {
        let said = output(self.docker().args([
            "run",
            "-d",
            "--rm",
            "--network",
            "none",
            IMAGE,
            "sleep",
            "1000000",
        ]))?;
        Ok(said.trim().to_owned())
    }

    fn wait_until_it_answers(&mut self, log: &Path) -> Result<()> {
        let begin = Instant::now();
        while try_out(self.docker().arg("version")).is_err() {
            let ended = self.child.try_wait().context("could not ask after dockerd")?;
            if ended.is_some() || begin.elapsed() > PATIENCE {
                let said = std::fs::read_to_string(log).unwrap_or_default();
                bail!("dockerd does not answer: {}", said.lines().last().unwrap_or("it said nothing"));
            }
            // It tells nobody when it is ready; asking again is the only way.
            thread::sleep(Duration::from_millis(100));
        }
        Ok(())
    }

    fn import(&self, root: &Path) -> Result<()> {
        let mut tar = Command::new("tar")
            .arg("--create")
            .arg("--directory")
            .arg(root)
            .arg(".")
            .stdout(Stdio::piped())
            .spawn()
            .context("could not run tar")?;
        let archive = tar.stdout.take().context("tar has no output")?;
        let status = self.docker().args(["import", "-", IMAGE]).stdin(archive).stdout(Stdio::null()).status();
        tar.wait().context("could not wait for tar")?;
        match status.context("could not run docker import")?.success() {
            true => Ok(()),
            false => bail!("docker import failed"),
        }
    }
}

impl Drop for Dockerd {
    fn drop(&mut self) {
        if let Ok(ids) = output(self.docker().args(["ps", "--quiet"]))
            && !ids.trim().is_empty()
            && let Err(why) = try_out(self.docker().args(["rm", "--force"]).args(ids.split_whitespace()))
        {
            eprintln!("{why:#}");
        }
        // Asked, not killed: it has a containerd to stop and mounts to undo.
        let asked = try_out(Command::new("kill").args(["-TERM", &self.child.id().to_string()]));
        if let Err(why) =
            asked.and_then(|()| self.child.wait().map(|_| ()).context("could not wait for dockerd"))
        {
            eprintln!("{why:#}");
        }
    }
}

fn client(program: &Path, socket: &str) -> Command {
    let mut command = Command::new(program);
    command.args(["--host", socket]);
    command
}
