//! `airlock build`: an image of a Dockerfile.
//!
//! - [`source`]: context and Dockerfile; [`job`]: what stages share; [`stages`], [`stage`]: who is built when
//! - [`copy`], [`add`], [`fetch`], [`git`], [`owner`]: layers of what is copied; [`run`], [`command`],
//!   [`bind`], [`secret`], [`given`]: commands in sandboxes; [`emulator`]: programs of other processors
//! - [`told`]: what a person hears

mod add;
mod bind;
mod command;
mod copy;
mod emulator;
mod fetch;
mod git;
mod given;
mod job;
mod owner;
mod run;
mod secret;
mod source;
mod stage;
mod stages;
mod told;

use crate::{
    args::{BuildArgs, ProgressForm},
    epoch,
    failure::{Failure, Outcome},
    home,
};
use airlock_images::{
    build::{dockerfile::Origin, scope::Scope},
    digest::Digest,
    manifest::{Config, Platform},
    store::{Hold, Image, Record, Store},
};
pub(crate) use command::perform as build_step;
use job::{Cache, Job};
use source::Input;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Mutex,
};
use told::{Form, Told};

/// Builds, names, tells.
pub(crate) fn build(args: &BuildArgs) -> Outcome {
    let form = match (args.json, args.quiet || args.progress == ProgressForm::Quiet) {
        (true, _) => Form::Json,
        (false, true) => Form::Quiet,
        (false, false) => Form::Lines,
    };
    // The state directory is checked to be this user's own.
    let sandboxes = home::store()?;
    let store = Store::open(sandboxes.home())?;
    let hold = store.hold()?;
    let input = source::find(args, &hold)?;
    let target = input.file.target(args.target.as_deref()).ok_or_else(|| {
        let name = args.target.as_deref().unwrap_or_default();
        Failure::new(format!("{} has no stage {name}", input.file_name)).code(2)
    })?;
    let mut job = job(args, input, hold, Told::new(form))?;
    resolve(args, &mut job, target)?;
    let unused = job.scope.unused(&job.file);
    if !unused.is_empty() {
        job.told.say(&format!("warning: no ARG takes the build arguments {}", unused.join(", ")));
    }
    let done = stages::build(&job, target)?;
    let mut config = done.state.config.clone();
    label(&mut config, &args.labels)?;
    if config.history.is_empty() && done.layers.is_empty() {
        return Err(Failure::new("the Dockerfile makes no image")
            .code(1)
            .why("it is FROM scratch and nothing else"));
    }
    finish(&job, &mut config, target)?;
    let id = keep(&job, args, &config, &done.layers)?;
    let names: Vec<String> = args.tags.iter().map(|tag| tag.as_tag().to_string()).collect();
    if let Some(path) = &args.iidfile {
        std::fs::write(path, id.to_string())
            .map_err(|err| Failure::because(format!("{} cannot be written", path.display()), &err))?;
    }
    job.told.image(&id.to_string(), &names, &config)?;
    Ok(0)
}

fn job(args: &BuildArgs, input: Input, hold: Hold, told: Told) -> Result<Job, Failure> {
    let Input { context, ignore, file, file_name } = input;
    let here = Platform::here();
    let platform = args.platform.clone().unwrap_or_else(Platform::here);
    let mut given = BTreeMap::new();
    for word in &args.build_args {
        match word.split_once('=') {
            Some((name, value)) => drop(given.insert(name.to_owned(), value.to_owned())),
            // As in Docker: what is not set here is not given.
            None => drop(std::env::var(word).map(|value| given.insert(word.clone(), value))),
        }
    }
    let scope =
        Scope::new(&file, given, &platform, &here).map_err(|fault| job::failure(&file_name, &fault))?;
    // Without one, nothing has a time.
    let epoch = epoch::from_environment()?.unwrap_or(0);
    let created = epoch::now(Some(epoch))?;
    Ok(Job {
        file,
        file_name,
        scope,
        hold,
        images: BTreeMap::new(),
        context,
        ignore,
        opened: Mutex::new(None),
        told,
        cache: if args.no_cache { Cache::Refreshed } else { Cache::Used },
        epoch,
        created,
        platform,
        allow: args.allow.clone(),
        secrets: secret::parse(&args.secrets)?,
        indexes: Mutex::new(BTreeMap::new()),
    })
}

/// Finds the images that needed stages begin with or copy from, and inserts what those demand.
fn resolve(args: &BuildArgs, job: &mut Job, target: usize) -> Result<(), Failure> {
    let mut triggered = BTreeSet::new();
    loop {
        let needed = stages::needed(job, target)?;
        // What a base demands may need further stages, so that it is looked at again.
        let Some(at) = needed.iter().copied().find(|at| triggered.insert(*at)) else { return Ok(()) };
        let demands = match job.file.base(&job.expanded_base(at)?, at) {
            Origin::Scratch => Vec::new(),
            Origin::Stage(base) => job.file.demands(base),
            Origin::Image(name) => image(args, job, at, &name)?.config.config.on_build,
        };
        job.file.trigger(at, &demands).map_err(|fault| job::failure(&job.file_name, &fault))?;
        for origin in job.file.origins(at) {
            if let Origin::Image(name) = origin {
                image(args, job, at, &name)?;
            }
        }
    }
}

/// An image by its name: from the store, or its registry.
fn image(args: &BuildArgs, job: &mut Job, at: usize, name: &str) -> Result<Image, Failure> {
    if let Some(known) = job.image(name, at)? {
        return Ok(known.clone());
    }
    let platform = job.stage_platform(at)?;
    let found = run::image(args, job, name, &platform).map_err(|failure| {
        let Some(stage) = job.file.stages.get(at) else { return failure };
        let why = format!("image {name} cannot be had");
        let fault = airlock_images::build::Fault::new(stage.from.line, &stage.from.text, why);
        let told = [Some(failure.what), failure.why].into_iter().flatten().collect::<Vec<_>>().join(": ");
        Failure { why: Some(told), fix: failure.fix, code: failure.code, ..job.fault(&fault) }
    })?;
    job.images.insert((name.to_owned(), platform.to_string()), found.clone());
    Ok(found)
}

fn label(config: &mut Config, labels: &[String]) -> Result<(), Failure> {
    for word in labels {
        let (name, value) = word.split_once('=').unwrap_or((word, ""));
        if name.is_empty() {
            return Err(Failure::new(format!("--label {word} has no name")).code(2));
        }
        config.config.labels.insert(name.to_owned(), value.to_owned());
    }
    Ok(())
}

/// Says for which platform the image is, and nothing that only its base was.
fn finish(job: &Job, config: &mut Config, target: usize) -> Result<(), Failure> {
    let platform = job.stage_platform(target)?;
    config.architecture = platform.architecture;
    config.os = platform.os;
    config.variant = platform.variant;
    // What Docker's own builder noted of a base image is not true of this one.
    for stale in ["container", "container_config", "docker_version", "id", "parent"] {
        config.other.remove(stale);
    }
    Ok(())
}

/// Keeps the image under its names.
fn keep(job: &Job, args: &BuildArgs, config: &Config, layers: &[job::Layer]) -> Result<Digest, Failure> {
    let (id, manifest) = job.put(config, layers)?;
    let mut record = Record::new(id, manifest);
    for tag in &args.tags {
        record = record.named(tag);
    }
    job.hold.add(record)?;
    Ok(id)
}
