//! The virtual internet: two network namespaces and a cable. On one side stand the servers of `tests/internet`, on the
//! other the tests run. No route leads out of either.
//!
//! ```ignore
//! let internet = Internet::start(&scratch, &user)?; // gone when dropped
//! internet.inside(&cargo(&["test"])).status()?;
//! ```

use crate::{
    system::Scratch,
    workspace::{succeed, top},
};
use anyhow::{Context as _, Result, bail};
use std::{
    fs,
    io::{BufRead as _, BufReader, Write as _},
    path::{Path, PathBuf},
    process::{Child, ChildStdout, Command, Stdio},
};

/// The host's end of the cable; the other end bears the second name.
const LINKS: [&str; 2] = ["air0", "air1"];
const HOST: [&str; 2] = ["185.199.7.10/24", "2600:1f00:7::10/64"];
const ROUTER: [&str; 2] = ["185.199.7.1", "2600:1f00:7::1"];
const NAMESERVER: &str = "93.184.216.53";

/// The virtual internet while it is up. Its processes end when it is dropped, and by themselves when this process does.
pub(crate) struct Internet {
    servers: Side,
    host: Side,
    folder: PathBuf,
}

/// A process that holds a namespace and ends with its stdin.
struct Side {
    child: Child,
    says: BufReader<ChildStdout>,
}

impl Internet {
    /// Makes both sides and waits until every server answers. `user` is whom the SSH server runs as.
    pub(crate) fn start(scratch: &Scratch, user: &str) -> Result<Internet> {
        let folder = scratch.folder("internet")?;
        let mut servers = Side::start(
            Command::new("unshare")
                .args(["--net", "--pid", "--fork", "--kill-child", "/usr/bin/python3", "-B"])
                .arg(top().join("tests/internet/main.py"))
                .args([folder.as_os_str(), user.as_ref(), LINKS[1].as_ref()]),
        )?;
        servers.wait_for("up")?;
        // What is mounted for the tests must not be seen by others; what others mount may be seen by the tests.
        let mut host =
            Side::start(Command::new("unshare").args(["--net", "--mount", "--propagation", "slave", "cat"]))?;
        host.tell("here")?;
        host.wait_for("here")?;

        let mut internet = Internet { servers, host, folder };
        internet.plug()?;
        internet.name_server(&scratch.folder("etc")?)?;
        internet.servers.tell("plugged")?;
        internet.servers.wait_for("ready")?;
        Ok(internet)
    }

    /// The command as it is to be run among the tests, with the same arguments, changed variables and directory.
    pub(crate) fn inside(&self, command: &Command) -> Command {
        let mut inside = self.enter();
        let dir = command.get_current_dir().unwrap_or_else(|| Path::new("/"));
        // Entering a mount namespace leads to its root.
        // Whoever started this in the background may have had signals ignored, which programs inherit.
        inside
            .args(["env", "--default-signal", "--chdir"])
            .arg(dir)
            .arg(command.get_program())
            .args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => inside.env(name, value),
                None => inside.env_remove(name),
            };
        }
        inside
    }

    /// Where the servers put what clients need.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    fn enter(&self) -> Command {
        let process = format!("/proc/{}/ns", self.host.child.id());
        let mut enter = Command::new("nsenter");
        enter.args([format!("--net={process}/net"), format!("--mount={process}/mnt")]);
        enter
    }

    fn ip(&self, words: &str) -> Result<()> {
        succeed(self.enter().arg("ip").args(words.split(' ')))
    }

    fn plug(&self) -> Result<()> {
        let ([near, far], servers) = (LINKS, self.servers.child.id());
        self.ip("link set lo up")?;
        self.ip(&format!("link add {near} type veth peer name {far} netns {servers}"))?;
        self.ip(&format!("link set {near} up"))?;
        let [v4, v6] = HOST;
        self.ip(&format!("address add {v4} dev {near}"))?;
        self.ip(&format!("address add {v6} dev {near} nodad"))?;
        let [v4, v6] = ROUTER;
        self.ip(&format!("route add default via {v4}"))?;
        self.ip(&format!("-6 route add default via {v6} dev {near}"))
    }

    /// Where names are asked for. The tests get a whole `/etc` of their own for it: the root of an ordinary user's sandbox
    /// is another one where something is mounted below `/etc`.
    fn name_server(&self, etc: &Path) -> Result<()> {
        succeed(Command::new("cp").args(["--archive", "--no-target-directory", "/etc"]).arg(etc))?;
        let file = etc.join("resolv.conf");
        fs::remove_file(&file).with_context(|| format!("could not remove {}", file.display()))?;
        let text = format!("nameserver {NAMESERVER}\noptions timeout:5 attempts:2\n");
        fs::write(&file, text).with_context(|| format!("could not write {}", file.display()))?;
        succeed(self.enter().args(["mount", "--bind"]).arg(etc).arg("/etc"))
    }
}

impl Side {
    fn start(command: &mut Command) -> Result<Side> {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("could not make a namespace for the virtual internet")?;
        let says = BufReader::new(child.stdout.take().context("a pipe that was asked for")?);
        Ok(Side { child, says })
    }

    fn tell(&mut self, word: &str) -> Result<()> {
        let stdin = self.child.stdin.as_mut().context("a pipe that was asked for")?;
        writeln!(stdin, "{word}").context("the virtual internet does not listen")
    }

    fn wait_for(&mut self, word: &str) -> Result<()> {
        let mut line = String::new();
        self.says.read_line(&mut line).context("the virtual internet says nothing")?;
        if line.trim_end() != word {
            bail!("the virtual internet did not come up: it said {line:?} instead of {word}");
        }
        Ok(())
    }
}

impl Drop for Side {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
