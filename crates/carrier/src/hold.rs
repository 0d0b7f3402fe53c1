//! Messages that wait: the end of a program is told when everything it wrote has gone before.

use airlock_protocol::guest::{FromGuest, ToGuest};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// The streams of programs, and what is held back.
#[derive(Default)]
pub(crate) struct Hold {
    programs: BTreeMap<u32, Program>,
    held: VecDeque<Held>,
    tickets: u64,
}

#[derive(Default)]
struct Program {
    streams: Vec<u32>,
    /// Its streams by their places, and its pid: where a copy of the machine goes on, somebody needs them.
    places: Vec<u32>,
    pid: Option<u32>,
    /// Nobody waits for what a program wrote that was to be killed: whoever should read it may never do.
    killed: bool,
}

struct Held {
    said: FromGuest,
    process: Option<u32>,
    streams: Vec<u32>,
    ticket: u64,
}

/// More that wait at once than any guest has a reason for.
const MOST: usize = 1024;
const KILL: i32 = 9;

/// Too much is held back.
#[derive(Debug, thiserror::Error)]
#[error("more than {MOST} messages wait for streams")]
pub(crate) struct Full;

impl Hold {
    /// Remembers what the keeper asks for.
    pub(crate) fn asked(&mut self, request: &ToGuest, streams: &[u32]) {
        let process = match request {
            ToGuest::Start(start) => start.process,
            ToGuest::Copy(job) => job.process,
            ToGuest::Signal { process, signal: KILL } => return self.kill(*process),
            ToGuest::Clear => return self.kill_all(),
            ToGuest::Signal { .. } | ToGuest::Resized { .. } => return,
            ToGuest::Freeze | ToGuest::Thaw | ToGuest::Rest { .. } | ToGuest::Rise => return,
        };
        self.programs.insert(process, Program { streams: streams.to_vec(), ..Program::default() });
    }

    /// Remembers which stream is at which place of a program.
    pub(crate) fn place(&mut self, process: u32, places: Vec<u32>) {
        if let Some(program) = self.programs.get_mut(&process) {
            program.places = places;
        }
    }

    /// A program that runs: its pid, and its streams by their places.
    pub(crate) fn running(&self, process: u32) -> Option<(u32, &[u32])> {
        let program = self.programs.get(&process)?;
        Some((program.pid?, &program.places))
    }

    /// A program that runs already.
    pub(crate) fn adopt(&mut self, process: u32, pid: u32, places: Vec<u32>) {
        let mut streams = places.clone();
        streams.sort_unstable();
        streams.dedup();
        self.programs.insert(process, Program { streams, places, pid: Some(pid), killed: false });
    }

    /// The streams of a program.
    pub(crate) fn streams(&self, process: u32) -> &[u32] {
        self.programs.get(&process).map_or(&[], |program| &program.streams)
    }

    /// Takes in what the guest says. Returns the streams to wait for, and the number under which it waits; what is not to
    /// wait can be taken at once.
    pub(crate) fn said(&mut self, said: FromGuest) -> Result<(Vec<u32>, u64), Full> {
        if self.held.len() >= MOST {
            return Err(Full);
        }
        let process = match &said {
            FromGuest::Started { process, .. }
            | FromGuest::Stopped { process, .. }
            | FromGuest::NotStarted { process, .. }
            | FromGuest::Ended { process, .. } => Some(*process),
            _ => None,
        };
        if let FromGuest::Started { process, pid } = &said
            && let Some(program) = self.programs.get_mut(process)
        {
            program.pid = Some(*pid);
        }
        let program = match &said {
            FromGuest::Ended { process, .. } | FromGuest::NotStarted { process, .. } => {
                self.programs.remove(process)
            }
            _ => None,
        };
        let streams =
            program.filter(|program| !program.killed).map(|program| program.streams).unwrap_or_default();
        self.tickets += 1;
        self.held.push_back(Held { said, process, streams: streams.clone(), ticket: self.tickets });
        Ok((streams, self.tickets))
    }

    /// The next message that need not wait: `is_through` tells of its streams and its number. What is said of one program
    /// keeps its order.
    pub(crate) fn next(&mut self, is_through: impl Fn(&[u32], u64) -> bool) -> Option<FromGuest> {
        let mut waiting = BTreeSet::new();
        let found = self.held.iter().position(|held| {
            let is_due = is_through(&held.streams, held.ticket);
            let is_first = held.process.is_none_or(|process| !waiting.contains(&process));
            waiting.extend(held.process);
            is_due && is_first
        })?;
        self.held.remove(found).map(|held| held.said)
    }

    fn kill(&mut self, process: u32) {
        if let Some(program) = self.programs.get_mut(&process) {
            program.killed = true;
        }
        self.held
            .iter_mut()
            .filter(|held| held.process == Some(process))
            .for_each(|held| held.streams.clear());
    }

    fn kill_all(&mut self) {
        self.programs.values_mut().for_each(|program| program.killed = true);
        self.held.iter_mut().for_each(|held| held.streams.clear());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use airlock_protocol::{
        copy::{Copy, CopyJob},
        guest::{End, User},
    };

    fn ended(process: u32) -> FromGuest {
        FromGuest::Ended { process, end: End::Exited { code: 0 }, alone: false }
    }

    fn copy(process: u32) -> ToGuest {
        let copy = Copy::Out { path: "/a".to_owned(), follow: false };
        ToGuest::Copy(CopyJob { process, copy, user: User { uid: 0, gid: 0, groups: Vec::new() } })
    }

    #[test]
    fn the_end_of_one_program_waits_for_its_own_streams_only() {
        let mut hold = Hold::default();
        hold.asked(&copy(1), &[10]);
        hold.asked(&copy(2), &[20]);
        hold.said(ended(1)).unwrap();
        hold.said(ended(2)).unwrap();
        let is_through = |streams: &[u32], _| streams != [10];
        assert_eq!(hold.next(is_through), Some(ended(2)));
        assert_eq!(hold.next(is_through), None);
        assert_eq!(hold.next(|_, _| true), Some(ended(1)));
    }

    #[test]
    fn the_end_of_a_program_that_is_killed_waits_for_nobody() {
        let mut hold = Hold::default();
        hold.asked(&copy(1), &[10]);
        hold.said(ended(1)).unwrap();
        assert_eq!(hold.next(|streams, _| streams.is_empty()), None);
        hold.asked(&ToGuest::Signal { process: 1, signal: KILL }, &[]);
        assert_eq!(hold.next(|streams, _| streams.is_empty()), Some(ended(1)));
    }

    #[test]
    fn what_is_held_back_is_bounded() {
        let mut hold = Hold::default();
        for _ in 0..MOST {
            hold.said(FromGuest::Frozen).unwrap();
        }
        assert!(hold.said(FromGuest::Frozen).is_err());
    }
}
