//! One stage: its instructions, one after the other.

use super::{
    copy::{self, Verb},
    job::{Job, Layer},
    run,
    told::{End, Step},
};
use crate::failure::Failure;
use airlock_images::{
    build::{
        dockerfile::Origin,
        instruction::{Instruction, Kind},
        state::State,
    },
    manifest::Config,
};
use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};

/// A stage that was built.
#[derive(Debug, Clone)]
pub(super) struct Done {
    pub(super) state: State,
    pub(super) layers: Vec<Layer>,
}

/// A stage that is being built.
#[derive(Debug)]
pub(super) struct Running {
    /// Its number.
    pub(super) at: usize,
    pub(super) state: State,
    pub(super) layers: Vec<Layer>,
    /// Stages that it needs.
    pub(super) others: BTreeMap<usize, Arc<Done>>,
    pub(super) step: Step,
    is_told: bool,
}

/// How a step ended.
pub(super) type StepEnd = End;

/// Builds a stage. `others` are those that it needs; `stop` is set when another one failed.
pub(super) fn build(
    job: &Job,
    at: usize,
    others: BTreeMap<usize, Arc<Done>>,
    stop: &AtomicBool,
) -> Result<Done, Failure> {
    let Some(stage) = job.file.stages.get(at) else { return Err(Failure::new("there is no such stage")) };
    let image = job.expanded_base(at)?;
    let (mut config, layers) = match job.file.base(&image, at) {
        Origin::Scratch => (Config::of(&job.stage_platform(at)?, job.created.clone()), Vec::new()),
        Origin::Stage(base) => match others.get(&base) {
            Some(done) => (done.state.config.clone(), done.layers.clone()),
            None => return Err(Failure::new("a stage was needed before it was built")),
        },
        Origin::Image(name) => match job.image(&name, at)? {
            Some(image) => (image.config.clone(), image.layers.clone()),
            None => return Err(Failure::new(format!("image {name} is not here"))),
        },
    };
    let of = stage.instructions.len() + 1;
    let name = stage.from.name.clone().unwrap_or_else(|| format!("stage-{at}"));
    let step = Step { stage: name, number: 1, of, line: stage.from.line, text: stage.from.text.clone() };
    job.told.begin(&step);
    // Its own steps are of now, whenever the base was made.
    config.created = Some(job.created.clone());
    let state = State::new(config, job.file.escape);
    let mut running = Running { at, state, layers, others, step, is_told: false };
    for (number, instruction) in stage.instructions.iter().enumerate() {
        if stop.load(Ordering::Relaxed) {
            return Err(Failure::new(""));
        }
        running.step.number = number + 2;
        running.step.line = instruction.line;
        running.step.text.clone_from(&instruction.text);
        running.is_told = false;
        running.perform(job, instruction)?;
    }
    Ok(Done { state: running.state, layers: running.layers })
}

impl Running {
    fn perform(&mut self, job: &Job, instruction: &Instruction) -> Result<(), Failure> {
        let begun = Instant::now();
        let end = match &instruction.kind {
            Kind::Copy(transfer) => copy::perform(job, self, instruction, (Verb::Copy, transfer))?,
            Kind::Add(transfer) => copy::perform(job, self, instruction, (Verb::Add, transfer))?,
            Kind::Workdir(text) => copy::workdir(job, self, instruction, text)?,
            Kind::Run(command) => run::perform(job, self, instruction, command)?,
            _ => {
                let said = self.state.apply(&job.scope, instruction).map_err(|fault| job.fault(&fault))?;
                let text = self.state.nothing_ran(&format!(" {}", said.unwrap_or_default()));
                self.state.remember(&job.created, text, true);
                self.begin(job);
                return Ok(());
            }
        };
        job.told.end(&self.step, end, begun.elapsed());
        Ok(())
    }

    /// Tells that the step really happens.
    pub(super) fn begin(&mut self, job: &Job) {
        if !std::mem::replace(&mut self.is_told, true) {
            job.told.begin(&self.step);
        }
    }

    /// The step was done before.
    pub(super) fn reuse(&mut self, layers: Vec<Layer>, text: String) -> StepEnd {
        self.advance(layers, text);
        End::Cached
    }

    /// The step is done, and led to these layers.
    pub(super) fn advance(&mut self, layers: Vec<Layer>, text: String) -> StepEnd {
        let is_empty = layers.len() == self.layers.len();
        self.layers = layers;
        self.state.config.rootfs.diff_ids = self.layers.iter().map(|(_, diff)| *diff).collect();
        let created = self.state.config.created.clone().unwrap_or_default();
        self.state.remember(&created, text, is_empty);
        End::Done
    }
}
