//! One command in a sandbox of its own, for the sake of what it leaves behind: a step of a build, or of a set-up.
//!
//! [`begin`] starts it; what it writes comes through a pipe ([`Running::relay`]).
//! [`Running::finish`] waits for its end and hands over what it changed in the root ([`Done::upper`]). Dropped, it is gone with all
//! its files.

use crate::{
    failure::Failure,
    keeper,
    root::Root,
    session::{Ended, Session, no_signals},
};
use airlock_engine::{
    plan::ids::{self, IMAGES_FIRST},
    store::{Error, Lock, Sandbox, Store, generate_name},
};
use airlock_linux::idmap::IdMap;
use airlock_protocol::{
    control::{Begin, Owner, Ssh},
    files::VolumeUse,
    policy::Policy,
    secret::{Secret, Values},
    spec::{Egress, Limits, Mount, Spec, Stdio, Stream, Tmpfs, Workspace},
    state::Exit,
};
use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, Read as _},
    os::fd::{AsFd as _, OwnedFd},
    path::PathBuf,
    rc::Rc,
};

/// What runs, and upon what.
#[derive(Debug, Clone)]
pub(crate) struct Step {
    /// The root; none is the host's own system.
    pub(crate) root: Option<Root>,
    /// Program and arguments.
    pub(crate) command: Vec<String>,
    /// Its whole environment; `HOME` is the user's where it is not here.
    pub(crate) env: BTreeMap<String, String>,
    /// Where it starts; made if it is not there.
    pub(crate) workdir: PathBuf,
    /// User inside.
    pub(crate) user: String,
    /// Paths of the host that it sees.
    pub(crate) mounts: Vec<Mount>,
    /// Volumes that it sees.
    pub(crate) volumes: Vec<VolumeUse>,
    /// Directories in memory.
    pub(crate) tmpfs: Vec<Tmpfs>,
    /// What may cross its wall.
    pub(crate) policy: Policy,
    /// How its connections leave this host.
    pub(crate) egress: Egress,
    /// What its requests may carry.
    pub(crate) secrets: (Vec<Secret>, Values),
    /// What it may use.
    pub(crate) limits: Limits,
    /// Whose its files are to be.
    pub(crate) files: Files,
    /// Where its standard output goes, where that is not what [`Running::output`] gives.
    pub(crate) stdout: Option<Rc<File>>,
}

/// Whose the files that a step leaves are on this host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Files {
    /// Those of the layers of images: what it leaves can become one as it is.
    OfImages,
    /// The sandbox's own.
    OfSandbox,
}

/// A step that runs.
pub(crate) struct Running {
    sandbox: Sandbox,
    session: Session<'static>,
    output: File,
}

/// A step that has ended. Its sandbox goes when this does.
pub(crate) struct Done {
    /// How it ended.
    pub(crate) exit: Exit,
    sandbox: Option<(Sandbox, Lock)>,
}

/// Names tried before giving up on finding a free one.
const NAMES_TRIED: u32 = 20;

impl Step {
    /// A command as root inside, in `/`, with nothing else.
    pub(crate) fn new(root: Option<Root>, command: Vec<String>) -> Step {
        Step {
            root,
            command,
            env: BTreeMap::new(),
            workdir: PathBuf::from("/"),
            user: "0".to_owned(),
            mounts: Vec::new(),
            volumes: Vec::new(),
            tmpfs: Vec::new(),
            policy: Policy::default(),
            egress: Egress::default(),
            secrets: Default::default(),
            limits: Limits::default(),
            files: Files::OfImages,
            stdout: None,
        }
    }

    fn spec(&self, attempt: u32) -> Spec {
        let name = generate_name(attempt);
        Spec {
            command: self.command.clone(),
            hostname: name.to_string(),
            name,
            backend: Default::default(),
            kernel: None,
            monitor: None,
            image: self.root.as_ref().and_then(|root| root.image.clone()),
            rootfs: self.root.as_ref().and_then(|root| root.rootfs.clone()),
            workdir: self.workdir.clone(),
            workspace: Workspace::None,
            mounts: self.mounts.clone(),
            volumes: self.volumes.clone(),
            anonymous: Vec::new(),
            provided: Vec::new(),
            paths: Default::default(),
            tmpfs: self.tmpfs.clone(),
            env: self.env.clone(),
            user: self.user.clone(),
            limits: self.limits.clone(),
            cap_add: Vec::new(),
            cap_drop: Vec::new(),
            read_only: false,
            nested: false,
            restart: Default::default(),
            stop_signal: None,
            health: None,
            keep: true,
            stdio: Stdio { stdin: Stream::Null, ..Stdio::all(Stream::Passed) },
            policy: self.policy.clone(),
            script: None,
            secrets: self.secrets.0.clone(),
            home_files: Vec::new(),
            publish: Vec::new(),
            egress: self.egress.clone(),
            approvals: Default::default(),
            ledger: Default::default(),
        }
    }
}

/// Starts a step; returns when its command runs.
pub(crate) fn begin(store: &Store, step: &Step) -> Result<Running, Failure> {
    let (sandbox, lock, spec) = create(store, step)?;
    match start(&sandbox, lock, &spec, step) {
        Ok((session, output)) => Ok(Running { sandbox, session, output }),
        Err(failure) => {
            if let Ok(lock) = sandbox.lock() {
                // The failure at hand is the one to tell; what is left is removed by the next prune.
                let _ = sandbox.remove(lock);
            }
            Err(failure)
        }
    }
}

fn create(store: &Store, step: &Step) -> Result<(Sandbox, Lock, Spec), Failure> {
    let mut attempt = 0;
    loop {
        let spec = step.spec(attempt);
        attempt += 1;
        match store.create(&spec) {
            Ok((sandbox, lock)) => return Ok((sandbox, lock, spec)),
            Err(Error::NameTaken { .. }) if attempt < NAMES_TRIED => {}
            Err(err) => return Err(err.into()),
        }
    }
}

fn start(
    sandbox: &Sandbox,
    lock: Lock,
    spec: &Spec,
    step: &Step,
) -> Result<(Session<'static>, File), Failure> {
    let failed = |err: io::Error| Failure::because("could not start a step", &err);
    if step.files == Files::OfImages && rustix::process::geteuid().is_root() {
        // A disk that is there belongs to the ids it was made for.
        std::fs::create_dir(sandbox.disk()).map_err(failed)?;
        std::os::unix::fs::chown(sandbox.disk(), Some(IMAGES_FIRST), Some(IMAGES_FIRST)).map_err(failed)?;
    }
    let (read, write) = io::pipe().map_err(failed)?;
    let mut client = keeper::start(sandbox, keeper::For::Program(spec), lock)?;
    let begin = Begin { owner: Owner::Foreground, values: step.secrets.1.clone(), ssh: Ssh::default() };
    let stdout = step.stdout.as_ref().map_or(write.as_fd(), |file| file.as_fd());
    client.begin(&begin, &[stdout, write.as_fd()])?;
    drop(write);
    let mut session = Session::new(client, no_signals()?, None);
    match session.wait_for_start() {
        Ok(()) => Ok((session, File::from(OwnedFd::from(read)))),
        Err(ended) => Err(why(ended)),
    }
}

impl Running {
    /// Hears everything that it writes, then finishes it.
    pub(crate) fn relay(mut self, hear: &mut dyn FnMut(&[u8])) -> Result<Done, Failure> {
        let mut bytes = vec![0u8; 64 << 10];
        loop {
            match self.output.read(&mut bytes) {
                Ok(0) => break,
                Ok(count) => hear(bytes.get(..count).unwrap_or_default()),
                Err(err) if err.kind() == io::ErrorKind::Interrupted => {}
                Err(err) => return Err(Failure::because("could not hear what a step says", &err)),
            }
        }
        self.finish()
    }

    /// Waits for its end.
    pub(crate) fn finish(self) -> Result<Done, Failure> {
        let Running { sandbox, session, output } = self;
        let ended = session.relay()?;
        drop(output);
        let Ended::Sandbox(exit) = ended else { return Err(why(ended)) };
        let lock = sandbox.lock_of_ended()?.ok_or_else(|| Failure::new("a step does not end"))?;
        Ok(Done { exit, sandbox: Some((sandbox, lock)) })
    }
}

impl Done {
    /// What it changed in the root: the upper directory of an overlay, there or not.
    pub(crate) fn upper(&self) -> Option<PathBuf> {
        let path = self.sandbox.as_ref()?.0.disk().join("root");
        path.exists().then_some(path)
    }

    /// The ids that it was written with.
    pub(crate) fn ids(&self) -> Result<IdMap, Failure> {
        let Some((sandbox, _)) = &self.sandbox else { return Err(Failure::new("the step is gone")) };
        let state = sandbox.state()?;
        Ok(ids::of_told(&state.id_map, &state.group_map))
    }

    /// The sandbox and its lock; from here on somebody else looks after it.
    pub(crate) fn into_sandbox(mut self) -> Option<(Sandbox, Lock)> {
        self.sandbox.take()
    }
}

impl Drop for Done {
    fn drop(&mut self) {
        if let Some((sandbox, lock)) = self.sandbox.take() {
            // What is left is removed by the next prune.
            let _ = sandbox.remove(lock);
        }
    }
}

/// Why there is nothing to hand over.
fn why(ended: Ended) -> Failure {
    match ended {
        Ended::Refused(refusal) => refusal.into(),
        Ended::Sandbox(exit) => Failure::new("a step ended before it began").code(exit.code),
        Ended::Program(end) => Failure::new("a step ended before it began").code(end.shell_code()),
        Ended::Unanswered | Ended::KeeperDied => Failure::new("the keeper of a step died"),
    }
}
