//! The sandbox's script: the program that runs it, started by the keeper from its own binary.

use super::{log::Log, note, plan};
use airlock_gate::Gate;
use airlock_net::scripts::{Helper, Scripts, Setup};
use airlock_protocol::{control::Refusal, log::Output, spec::Spec};
use std::{
    cell::OnceCell,
    io,
    os::{fd::OwnedFd, unix::net::UnixStream},
    process::{Command, Stdio},
    rc::Rc,
};

/// Where the script's lines go, once there is a log.
type Sink = Rc<OnceCell<Rc<Log>>>;

/// A script that was read.
pub(super) struct Loaded {
    scripts: Scripts,
    sink: Sink,
}

/// Has the sandbox's script read, where it has one.
pub(super) fn load(spec: &Spec, gate: &Rc<Gate>) -> Result<Option<Loaded>, Refusal> {
    let Some(script) = spec.script.clone() else { return Ok(None) };
    let sink = Sink::default();
    let heard = Rc::clone(&sink);
    let told = move |line: &str| match heard.get() {
        Some(log) => log.write(Output::Stderr, format!("script: {line}\n").as_bytes()),
        None => note(&format!("script: {line}")),
    };
    let secrets = spec.secrets.iter().map(|secret| (secret.name.clone(), secret.placeholder.clone()));
    let what = format!("the script {} cannot be used", script.name);
    let loaded = Scripts::load(Setup {
        gate: Rc::clone(gate),
        start: Rc::new(start),
        script,
        secrets: secrets.collect(),
        told: Rc::new(told),
    });
    let refused =
        |why: String| plan::refusal(2, &what, Some(&why), Some("correct the script, or leave it out"));
    Ok(Some(Loaded { scripts: loaded.map_err(refused)?, sink }))
}

impl Loaded {
    /// The filter; from now on its lines go to the sandbox's log.
    pub(super) fn with_log(self, log: &Rc<Log>) -> Rc<Scripts> {
        // Set once: there is one log.
        let _ = self.sink.set(Rc::clone(log));
        Rc::new(self.scripts)
    }
}

/// Ourselves, as the program that runs scripts: nothing of the keeper's is in it but one end of a socket.
fn start() -> io::Result<Helper> {
    let (ours, theirs) = UnixStream::pair()?;
    let stdin = Stdio::from(OwnedFd::from(theirs.try_clone()?));
    let child = Command::new("/proc/self/exe")
        .arg("script-host")
        .env_clear()
        .current_dir("/")
        .stdin(stdin)
        .stdout(OwnedFd::from(theirs))
        .stderr(Stdio::null())
        .spawn()?;
    Ok(Helper { stream: ours, child })
}
