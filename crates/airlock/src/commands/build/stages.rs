//! All stages that are needed, each as soon as what it needs is there.

use super::{
    job::{Job, lock},
    stage::{self, Done},
};
use crate::failure::Failure;
use airlock_images::build::dockerfile::Origin;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, Condvar, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

/// The stages that a stage needs, itself included.
pub(super) fn needed(job: &Job, target: usize) -> Result<BTreeSet<usize>, Failure> {
    let mut found = BTreeSet::from([target]);
    let mut left = vec![target];
    while let Some(at) = left.pop() {
        for other in of(job, at)? {
            if found.insert(other) {
                left.push(other);
            }
        }
    }
    Ok(found)
}

/// The stages that one stage needs directly. They stand before it.
fn of(job: &Job, at: usize) -> Result<Vec<usize>, Failure> {
    let mut origins = job.file.origins(at);
    origins.push(job.file.base(&job.expanded_base(at)?, at));
    let stage = |origin| match origin {
        Origin::Stage(other) => Some(other),
        Origin::Scratch | Origin::Image(_) => None,
    };
    Ok(origins.into_iter().filter_map(stage).filter(|other| *other < at).collect())
}

#[derive(Default)]
struct Board {
    done: Mutex<BTreeMap<usize, Arc<Done>>>,
    changed: Condvar,
    stop: AtomicBool,
    failed: Mutex<Option<Failure>>,
}

/// Builds the stages and returns the target. One that fails keeps the others from beginning another step.
pub(super) fn build(job: &Job, target: usize) -> Result<Arc<Done>, Failure> {
    let needed = needed(job, target)?;
    let board = Board::default();
    thread::scope(|scope| -> Result<(), Failure> {
        for at in &needed {
            let wanted = of(job, *at)?;
            let board = &board;
            scope.spawn(move || board.work(job, *at, &wanted));
        }
        Ok(())
    })?;
    if let Some(failure) = lock(&board.failed).take() {
        return Err(failure);
    }
    let done = lock(&board.done).remove(&target);
    done.ok_or_else(|| Failure::new("the build stopped before its end"))
}

impl Board {
    fn work(&self, job: &Job, at: usize, wanted: &[usize]) {
        let Some(others) = self.wait(wanted) else { return };
        match stage::build(job, at, others, &self.stop) {
            Ok(done) => drop(lock(&self.done).insert(at, Arc::new(done))),
            Err(failure) => {
                self.stop.store(true, Ordering::Relaxed);
                let mut failed = lock(&self.failed);
                // One without words only gave way to another.
                if failed.is_none() && !failure.what.is_empty() {
                    *failed = Some(failure);
                }
            }
        }
        // Whoever waits looks at both, so it must not miss either.
        let _done = lock(&self.done);
        self.changed.notify_all();
    }

    /// The stages that are wanted, when they are there; `None` if there is no point any more.
    fn wait(&self, wanted: &[usize]) -> Option<BTreeMap<usize, Arc<Done>>> {
        let mut done = lock(&self.done);
        loop {
            if self.stop.load(Ordering::Relaxed) {
                return None;
            }
            let found: BTreeMap<usize, Arc<Done>> =
                wanted.iter().filter_map(|at| Some((*at, Arc::clone(done.get(at)?)))).collect();
            if wanted.iter().all(|at| found.contains_key(at)) {
                return Some(found);
            }
            done = self.changed.wait(done).unwrap_or_else(PoisonError::into_inner);
        }
    }
}
