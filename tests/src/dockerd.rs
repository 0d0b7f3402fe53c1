//! A dockerd of a test's own: own directories, own socket, no network. For root only.

use std::{
    fs::File,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

/// A dockerd, stopped when dropped.
pub struct Dockerd {
    child: Child,
    socket: String,
}

impl Dockerd {
    /// Starts one below `folder`. Nothing where there is none, or none that can run here.
    pub fn start(folder: &Path) -> Option<Dockerd> {
        if !crate::has_program("dockerd") || !crate::has_program("docker") {
            crate::skip("there is no dockerd");
            return None;
        }
        let socket = format!("unix://{}", folder.join("s").display());
        let log = folder.join("log");
        let place = |name: &str| -> PathBuf { folder.join(name) };
        let child = Command::new("dockerd")
            .args(["--iptables=false", "--ip6tables=false", "--bridge=none", "--host", &socket])
            .arg("--data-root")
            .arg(place("data"))
            .arg("--exec-root")
            .arg(place("exec"))
            .arg("--pidfile")
            .arg(place("pid"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(&log).expect("a log"))
            .spawn()
            .expect("dockerd starts");
        let mut docker = Dockerd { child, socket };
        let mut ended = false;
        crate::eventually("dockerd answers", || {
            ended = docker.child.try_wait().expect("its state").is_some();
            (ended || docker.try_run(&["version"]).is_some()).then_some(())
        });
        if ended {
            let said = std::fs::read_to_string(&log).unwrap_or_default();
            crate::skip(&format!("dockerd does not run here: {}", said.lines().last().unwrap_or_default()));
            return None;
        }
        Some(docker)
    }

    /// The client, with these arguments.
    pub fn docker(&self, args: &[&str]) -> Command {
        let mut command = Command::new("docker");
        command.args(["--host", &self.socket]).args(args).env("DOCKER_BUILDKIT", "0");
        command
    }

    /// What the client prints.
    #[track_caller]
    pub fn run(&self, args: &[&str]) -> String {
        let output = self.docker(args).output().expect("docker runs");
        assert!(
            output.status.success(),
            "docker {args:?}: {}{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    fn try_run(&self, args: &[&str]) -> Option<String> {
        let output = self.docker(args).output().expect("docker runs");
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

impl Drop for Dockerd {
    fn drop(&mut self) {
        // Asked, not killed: it has a containerd to stop and mounts to undo.
        let _ = Command::new("kill").args(["-TERM", &self.child.id().to_string()]).status();
        let _ = self.child.wait();
    }
}
