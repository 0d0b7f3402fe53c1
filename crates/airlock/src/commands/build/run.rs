//! `RUN`: a command in a sandbox of its own, and the layer of what it changed.

use super::{
    bind::{self, Scratch},
    command::{self, Answer, Asked, Cache, Heard, Owned, Owners},
    emulator,
    job::{Job, Layer},
    stage::{Running, StepEnd},
};
use crate::{
    args::BuildArgs,
    config,
    failure::Failure,
    home, policy,
    pulling::{self, Form, Show, Way, Wish},
    spec::Host,
};
use airlock_engine::plan::Caller;
use airlock_images::{
    build::{
        instruction::{Effective, Instruction, Network, Run},
        mount::{self, Mount},
        path,
    },
    digest::Digest,
    manifest::{Descriptor, Platform},
    reference::Reference,
    store::Image,
};
use airlock_protocol::{
    files::VolumeUse,
    policy::{Policy, Verdict},
    spec::{self, Tmpfs},
};
use std::{
    io::{BufRead as _, BufReader, Write as _},
    process::{Command, Stdio},
};

/// Where a script that stands in the Dockerfile is while it runs.
const SCRIPTS: &str = "/run/build";

/// Does a `RUN`.
pub(super) fn perform(
    job: &Job,
    stage: &mut Running,
    instruction: &Instruction,
    run: &Run,
) -> Result<StepEnd, Failure> {
    let mounts = mounts(job, stage, instruction, run)?;
    let (words, script) = words(stage, run);
    let arguments = stage.state.run_arguments();
    let history = match arguments.len() {
        0 => words.join(" "),
        count => format!("|{count} {} {}", arguments.join(" "), words.join(" ")),
    };
    let mut parts = vec![format!("{words:?} {script:?} {arguments:?} {:?}", stage.state.config.config.env)];
    parts.push(format!("{:?} {} {:?}", stage.state.config.config.user, stage.state.workdir(), run.network));
    for mount in &mounts {
        parts.push(bind::key(job, stage, instruction, mount)?);
    }
    let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
    let key = job.key("RUN", &stage.layers, &parts);
    if let Some(layers) = job.cached(&key)? {
        return Ok(stage.reuse(layers, history));
    }
    check_runs(job, stage, instruction)?;
    stage.begin(job);
    let mut scratch = Scratch::default();
    let mut asked = asked(job, stage, run, words)?;
    for mount in &mounts {
        place(job, stage, instruction, mount, (&mut scratch, &mut asked))?;
    }
    if let Some((name, content)) = script {
        let source = scratch.file(content.as_bytes(), 0o755)?;
        let target = format!("{SCRIPTS}/{name}").into();
        asked.mounts.push(spec::Mount { source, target, read_only: true });
    }
    let layers = ran(job, stage, instruction, (&asked, key))?;
    Ok(stage.advance(layers, history))
}

/// An image by its name: as it is here, or from its registry. One that is here is as signed as one that comes.
pub(super) fn image(args: &BuildArgs, job: &Job, name: &str, platform: &Platform) -> Result<Image, Failure> {
    let own = config::own(&home::path()?)?;
    let found = job.hold.find(name).ok();
    let fits = |image: &Image| {
        let has = image.config.platform();
        has.architecture.is_empty() || platform.runs(&has).is_some()
    };
    if let Some(image) = found.as_ref().filter(|image| !args.pull && fits(image)) {
        pulling::check_signed(&own, &job.hold, image, name)?;
        return Ok(image.clone());
    }
    let reference: Reference =
        name.parse().map_err(|err| Failure::because("it is no image's name", &err).code(2))?;
    let whole = pulling::whole_name(&own, &reference);
    if let (Some(other), None) = (found.filter(|image| !fits(image)), &whole.registry) {
        let has = other.config.platform();
        return Err(Failure::new(format!("it is here for {has}, not for {platform}"))
            .code(1)
            .fix(format!("airlock build --platform {has}, or FROM --platform={has}")));
    }
    let wish = Wish { platform: Some(platform.clone()), is_plain: false };
    let settings = pulling::settings(&own, &whole, &wish)?;
    let form = Form::of(args.json, args.quiet);
    pulling::pull(&job.hold, &whole, &settings, &mut Show::new(form, Way::Down))
}

/// Refuses to run programs that neither this host nor an emulator it knows can run.
fn check_runs(job: &Job, stage: &Running, instruction: &Instruction) -> Result<(), Failure> {
    let wanted = job.stage_platform(stage.at)?;
    if Platform::here().runs(&wanted).is_some() || emulator::is_registered(&wanted) {
        return Ok(());
    }
    let why = format!("this host runs programs of {}, not of {wanted}", Platform::here());
    let fix = "register an emulator (Debian: apt install qemu-user-binfmt), or do this in a stage FROM --platform=$BUILDPLATFORM";
    Err(job.fail(instruction, why).code(5).fix(fix))
}

fn mounts(job: &Job, stage: &Running, instruction: &Instruction, run: &Run) -> Result<Vec<Mount>, Failure> {
    let values = |name: &str| stage.state.value(&job.scope, name);
    let read = |text: &String| {
        let mut mount = mount::parse(text, stage.state.escape(), &values)
            .map_err(|bad| refused(job, instruction, &bad))?;
        mount.target = path::joined(stage.state.workdir(), &mount.target);
        Ok(mount)
    };
    run.mounts.iter().map(read).collect()
}

/// A mount that cannot be had, with what to do instead.
fn refused(job: &Job, instruction: &Instruction, bad: &mount::Bad) -> Failure {
    let failure = job.fail(instruction, bad.to_string());
    match bad {
        mount::Bad::Agent => failure.fix(
            "ADD https://HOST/REPOSITORY.git DIR, or a key for this one repository by --mount=type=secret",
        ),
        _ => failure,
    }
}

/// The words that are started, and the script among them, if there is one.
fn words(stage: &Running, run: &Run) -> (Vec<String>, Option<(String, String)>) {
    match run.effective() {
        Effective::Command(command) => (command.words(&stage.state.shell()), None),
        Effective::Script { name, content } => (vec![format!("{SCRIPTS}/{name}")], Some((name, content))),
    }
}

fn asked(job: &Job, stage: &Running, run: &Run, command: Vec<String>) -> Result<Asked, Failure> {
    let pair = |pair: String| pair.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned()));
    let own = config::own(&home::path()?)?;
    let rules = match run.network {
        Network::Build => policy::from_words(Verdict::Allow, &job.allow, "--allow", &Host::current()?)?,
        Network::None => Vec::new(),
    };
    let user = stage.state.config.config.user.clone();
    Ok(Asked {
        image: Some(job.keep(&stage.layers, Vec::new())?),
        command,
        env: stage.state.run_env(&job.scope).into_iter().filter_map(pair).collect(),
        workdir: stage.state.workdir().into(),
        user: if user.is_empty() { "0".to_owned() } else { user },
        mounts: Vec::new(),
        volumes: Vec::new(),
        tmpfs: Vec::new(),
        owned: Vec::new(),
        caches: Vec::new(),
        output: None,
        policy: Policy { rules, ..Policy::default() },
        egress: own.egress,
        epoch: job.epoch,
        below: below(job, stage)?,
    })
}

/// Whose things of the image are, where the disk cannot say: a layer has the same owners, whoever builds it.
fn below(job: &Job, stage: &Running) -> Result<Option<Owners>, Failure> {
    if !Caller::current().has_single_id() {
        return Ok(None);
    }
    let tree = job.tree(&stage.layers)?;
    let top = tree.get(b"").map(|node| (&b""[..], node));
    let odd = top.into_iter().chain(tree.below(b"")).filter(|(_, node)| (node.uid, node.gid) != (0, 0));
    Ok(Some(odd.map(|(path, node)| (command::text_of(path), (node.uid, node.gid))).collect()))
}

/// Has a mount ready, and asks for it.
fn place(
    job: &Job,
    stage: &Running,
    instruction: &Instruction,
    mount: &Mount,
    (scratch, asked): (&mut Scratch, &mut Asked),
) -> Result<(), Failure> {
    let target = std::path::PathBuf::from(&mount.target);
    match &mount.kind {
        mount::Kind::Tmpfs { size } => asked.tmpfs.push(Tmpfs { target, size: *size }),
        mount::Kind::Cache { id, read_only, sharing, mode, uid, gid } => {
            let name = format!("build-{}", Digest::of(id.as_bytes()).short());
            if *sharing != mount::Sharing::Shared {
                scratch.lock(&job.hold.folder().join(format!("{name}.lock")))?;
            }
            asked.caches.push(Cache { volume: name.clone(), owner: (*uid, *gid), mode: *mode });
            asked.volumes.push(VolumeUse { volume: name, target, read_only: *read_only, project: None });
        }
        mount::Kind::Secret { id, required, env, mode, uid, gid } => {
            if env.is_some() {
                let failure = job.fail(instruction, "a secret is a file here, not a variable");
                return Err(failure.fix(format!("--mount=type=secret,id={id}, and read /run/secrets/{id}")));
            }
            match (job.secrets.get(id), required) {
                (Some(source), _) => {
                    let source = scratch.secret(&source.value(id)?)?;
                    asked.owned.push(Owned { path: source.clone(), owner: (*uid, *gid), mode: *mode });
                    asked.mounts.push(spec::Mount { source, target, read_only: true });
                }
                (None, true) => {
                    let failure = job.fail(instruction, format!("the secret {id} is not given"));
                    return Err(failure.fix(format!("airlock build --secret id={id},src=FILE")));
                }
                (None, false) => {}
            }
        }
        mount::Kind::Bind { from, source, writable } => {
            let source = bind::shown(job, stage, instruction, (from.as_deref(), source, *writable), scratch)?;
            asked.mounts.push(spec::Mount { source, target, read_only: !writable });
        }
    }
    Ok(())
}

/// Runs it; gives the layers with what it changed.
fn ran(
    job: &Job,
    stage: &Running,
    instruction: &Instruction,
    (asked, key): (&Asked, String),
) -> Result<Vec<Layer>, Failure> {
    let mut layers = stage.layers.clone();
    match answered(asked, &mut |line| job.told.output(&stage.step, line))? {
        Some(Answer::Layer { digest, size, diff, media }) => {
            layers.push((Descriptor::of(&media, digest, size), diff));
        }
        Some(Answer::Nothing) => {}
        Some(Answer::Exit(code)) => {
            return Err(job.fail(instruction, format!("the command ended with exit code {code}")));
        }
        Some(Answer::Failed { code, what, why, fix }) => {
            let told = [Some(what), why].into_iter().flatten().collect::<Vec<_>>().join(": ");
            let failure = job.fail(instruction, "the command could not be run").why(told).code(code);
            return Err(Failure { fix, ..failure });
        }
        None => return Err(job.fail(instruction, "the command could not be run: its process ended")),
    }
    job.keep(&layers, vec![key])?;
    Ok(layers)
}

/// Has it done by a process of its own: stages are built by threads, and a sandbox is begun by a process with one. Nothing is answered
/// by one that was killed.
pub(super) fn answered(asked: &Asked, hear: &mut dyn FnMut(&str)) -> Result<Option<Answer>, Failure> {
    let fail =
        |err: &dyn std::error::Error| Failure::because("a step of the build could not be started", err);
    let mut child = Command::new("/proc/self/exe")
        .arg("build-step")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|err| fail(&err))?;
    if let Some(mut stdin) = child.stdin.take() {
        let text = serde_json::to_vec(asked).map_err(|err| fail(&err))?;
        stdin.write_all(&text).map_err(|err| fail(&err))?;
    }
    let mut answer = None;
    if let Some(stdout) = child.stdout.take() {
        for line in BufReader::new(stdout).lines() {
            match serde_json::from_str(&line?) {
                Ok(Heard::Output(text)) => hear(&text),
                Ok(Heard::End(end)) => answer = Some(end),
                Err(err) => return Err(fail(&err)),
            }
        }
    }
    child.wait()?;
    Ok(answer)
}
