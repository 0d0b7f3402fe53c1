//! Numbers of programs. Those that ran in a machine when its memory was saved keep theirs inside; the keeper of a copy counts
//! from the beginning again.

use airlock_protocol::guest::{FromGuest, ToGuest};

/// How the keeper's numbers become those inside. The same, where nothing was saved.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Numbers {
    /// The main program that runs already: the keeper's number, the one inside.
    main: Option<(u32, u32)>,
    /// The highest number that was given before.
    last: u32,
}

impl Numbers {
    /// Behind those of a machine that was saved.
    pub(super) fn behind(last: u32) -> Numbers {
        Numbers { main: None, last }
    }

    /// What the keeper calls the main program.
    pub(super) fn adopt(&mut self, outside: u32, inside: u32) {
        self.main = Some((outside, inside));
    }

    /// What the keeper asks, with the number that counts inside.
    pub(super) fn inside(&self, mut request: ToGuest) -> ToGuest {
        match &mut request {
            ToGuest::Start(start) => start.process = self.number_inside(start.process),
            ToGuest::Copy(job) => job.process = self.number_inside(job.process),
            ToGuest::Signal { process, .. } | ToGuest::Resized { process } => {
                *process = self.number_inside(*process);
            }
            ToGuest::Rest { main } => *main = self.number_inside(*main),
            ToGuest::Clear | ToGuest::Freeze | ToGuest::Thaw | ToGuest::Rise => {}
        }
        request
    }

    /// What is said of a program, with the keeper's number; nothing of one that the keeper does not know.
    pub(super) fn outside(&self, mut said: FromGuest) -> Option<FromGuest> {
        match &mut said {
            FromGuest::Started { process, .. }
            | FromGuest::NotStarted { process, .. }
            | FromGuest::Stopped { process, .. }
            | FromGuest::Ended { process, .. } => *process = self.number_outside(*process)?,
            FromGuest::Cleared
            | FromGuest::Frozen
            | FromGuest::Resting { .. }
            | FromGuest::OutOfMemory
            | FromGuest::Broken { .. } => {}
        }
        Some(said)
    }

    fn number_inside(&self, outside: u32) -> u32 {
        match self.main {
            Some((main, inside)) if main == outside => inside,
            _ => outside.wrapping_add(self.last),
        }
    }

    fn number_outside(&self, inside: u32) -> Option<u32> {
        match self.main {
            Some((outside, main)) if main == inside => Some(outside),
            _ => inside.checked_sub(self.last).filter(|outside| *outside > 0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use airlock_protocol::guest::End;

    fn ended(process: u32) -> FromGuest {
        FromGuest::Ended { process, end: End::Exited { code: 0 }, alone: false }
    }

    #[test]
    fn numbers_stay_as_they_are_where_nothing_was_saved() {
        let numbers = Numbers::default();
        let signal = ToGuest::Signal { process: 7, signal: 1 };
        assert_eq!(numbers.inside(signal.clone()), signal);
        assert_eq!(numbers.outside(ended(7)), Some(ended(7)));
    }

    #[test]
    fn the_main_program_keeps_its_number_and_others_come_behind_all() {
        let mut numbers = Numbers::behind(9);
        numbers.adopt(1, 4);
        let signal = |process| ToGuest::Signal { process, signal: 1 };
        assert_eq!((numbers.inside(signal(1)), numbers.inside(signal(2))), (signal(4), signal(11)));
        assert_eq!(numbers.outside(ended(4)), Some(ended(1)));
        assert_eq!(numbers.outside(ended(11)), Some(ended(2)));
        // One that ran before, and that the keeper of the copy never heard of.
        assert_eq!(numbers.outside(ended(5)), None);
    }
}
