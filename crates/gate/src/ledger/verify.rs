//! Whether the chain of a ledger holds: every line a record of one sandbox, numbered without gaps, naming the hash of
//! the line before it.
//!
//! It shows changes, insertions and deletions within what is there. It cannot show that the end was cut off, or that
//! somebody wrote the whole of it anew: for that, keep [`Report::head`] elsewhere.

use super::{
    LONGEST_LINE, files,
    lines::{Hex, Line, Lines, as_text, hash},
};
use airlock_protocol::{
    SandboxId,
    ledger::{Entry, Record},
};
use std::{
    fmt,
    io::{self, BufRead, BufReader},
    path::Path,
};

/// Problems that are listed; more are counted.
const MOST_PROBLEMS: usize = 100;

/// What was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// Whose ledger it is, by its first record.
    pub sandbox: Option<SandboxId>,
    /// Whole records.
    pub records: u64,
    /// The number of the first.
    pub first: Option<u64>,
    /// Records that rotation dropped behind the oldest file.
    pub dropped: u64,
    /// The number of the last.
    pub last: Option<u64>,
    /// The hash of the last line, which stands for everything before it.
    pub head: String,
    /// Bytes at the end that are no whole line: being written, or left by a power cut. No problem.
    pub unfinished: u64,
    /// What is wrong, at most a hundred.
    pub problems: Vec<Problem>,
    /// Problems beyond those.
    pub more_problems: u64,
}

/// One thing that is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// In which file.
    pub file: String,
    /// In which line, counted from 1.
    pub line: u64,
    /// What.
    pub fault: Fault,
}

/// What is wrong with a line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// It is no record.
    NoRecord,
    /// It is longer than any record.
    TooLong,
    /// It does not name the line before it.
    Chain,
    /// It does not have the number that follows.
    Number {
        /// What follows.
        expected: u64,
        /// What it has.
        found: u64,
    },
    /// It is of another sandbox.
    Sandbox,
    /// Records are missing before it, though no rotation dropped them.
    Beginning {
        /// The first record that should be there.
        expected: u64,
    },
    /// It was never finished, and others follow.
    Unfinished,
}

impl Report {
    /// Whether nothing is wrong.
    pub fn is_intact(&self) -> bool {
        self.problems.is_empty()
    }
}

/// Verifies the ledger in a folder.
pub fn folder(folder: &Path) -> io::Result<Report> {
    let files = files::open_since(folder, None)?;
    let name = |path: &Path| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    verify(files.into_iter().map(|(path, file)| (name(&path), BufReader::new(file))))
}

/// Verifies files that follow each other, the oldest first.
pub fn verify<R: BufRead>(files: impl IntoIterator<Item = (String, R)>) -> io::Result<Report> {
    let mut chain = Chain::new();
    for (name, file) in files {
        chain.read(name, file)?;
    }
    Ok(chain.finish())
}

struct Chain {
    report: Report,
    file: String,
    line: u64,
    /// The hash of the line before; none before the first.
    before: Option<Hex>,
    /// The first record that should be there behind what was dropped, by the youngest rotation.
    first_kept: Option<u64>,
    /// Whether the line before tells that its file is full.
    was_rotated: bool,
    /// Where the first line stood.
    beginning: Option<(String, u64)>,
    /// What rotation left out, if it did.
    gap: Option<Gap>,
}

/// Records that are missing where a file ends.
struct Gap {
    /// The first record behind it.
    next: u64,
    file: String,
}

impl Chain {
    fn new() -> Chain {
        let report = Report {
            sandbox: None,
            records: 0,
            first: None,
            dropped: 0,
            last: None,
            head: as_text(&hash(b"")).to_owned(),
            unfinished: 0,
            problems: Vec::new(),
            more_problems: 0,
        };
        Chain {
            report,
            file: String::new(),
            line: 0,
            before: None,
            first_kept: None,
            was_rotated: false,
            beginning: None,
            gap: None,
        }
    }

    fn read(&mut self, name: String, file: impl BufRead) -> io::Result<()> {
        if self.report.unfinished > 0 {
            self.line += 1;
            self.blame(Fault::Unfinished);
        }
        (self.file, self.line) = (name, 0);
        let mut lines = Lines::new(file);
        while let Some(line) = lines.next_line()? {
            self.line += 1;
            self.check(&line);
            self.before = Some(line.hash);
        }
        self.report.unfinished = lines.unfinished();
        Ok(())
    }

    fn check(&mut self, line: &Line) {
        if line.length > LONGEST_LINE as u64 {
            return self.skip(Fault::TooLong);
        }
        let Ok(record) = serde_json::from_slice::<Record>(&line.text) else {
            return self.skip(Fault::NoRecord);
        };
        self.report.records += 1;
        self.pass_gap(&record);
        self.check_place(&record);
        self.check_chain(&record);
        self.was_rotated = matches!(record.entry, Entry::Rotated { .. });
        if let Entry::Rotated { first_kept, .. } = record.entry {
            self.first_kept = Some(first_kept);
        }
    }

    /// A line that is no record still has its place in the chain.
    fn skip(&mut self, fault: Fault) {
        self.blame(fault);
        self.was_rotated = false;
        if let Some(last) = &mut self.report.last {
            *last = last.saturating_add(1);
        }
    }

    /// Rotation leaves one gap, between two files, the first of which tells that it is full. Whether it is no larger than a
    /// later rotation says is known at the end.
    fn pass_gap(&mut self, record: &Record) {
        let Some(last) = self.report.last else { return };
        let missing = record.seq.saturating_sub(last.saturating_add(1));
        if missing == 0 || self.line != 1 || !self.was_rotated || self.gap.is_some() {
            return;
        }
        self.report.dropped = missing;
        self.gap = Some(Gap { next: record.seq, file: self.file.clone() });
        self.report.last = Some(record.seq.saturating_sub(1));
        // What the dropped line was is not known.
        self.before = None;
    }

    fn check_place(&mut self, record: &Record) {
        match &self.report.sandbox {
            None => self.report.sandbox = Some(record.sandbox.clone()),
            Some(known) if *known == record.sandbox => {}
            Some(_) => self.blame(Fault::Sandbox),
        }
        match self.report.last {
            None => {
                self.report.first = Some(record.seq);
                self.beginning = Some((self.file.clone(), self.line));
            }
            Some(last) => {
                let expected = last.saturating_add(1);
                if record.seq != expected {
                    self.blame(Fault::Number { expected, found: record.seq });
                }
            }
        }
        self.report.last = Some(record.seq);
    }

    fn check_chain(&mut self, record: &Record) {
        let expected = match self.before {
            Some(before) => before,
            // What a first record names is only known if it is the first of all.
            None if record.seq > 1 => return,
            None => hash(b""),
        };
        if record.prev.as_bytes() != expected {
            self.blame(Fault::Chain);
        }
    }

    fn finish(mut self) -> Report {
        if let (Some(first), Some((file, line))) = (self.report.first, self.beginning.take())
            && first > 1
        {
            (self.file, self.line) = (file, line);
            self.blame(Fault::Beginning { expected: 1 });
        }
        let kept = self.first_kept.unwrap_or(1);
        if let Some(gap) = self.gap.take()
            && kept > 0
            && gap.next > kept
        {
            (self.file, self.line) = (gap.file, 1);
            self.blame(Fault::Beginning { expected: kept });
        }
        if let Some(head) = self.before {
            self.report.head = as_text(&head).to_owned();
        }
        self.report
    }

    fn blame(&mut self, fault: Fault) {
        match self.report.problems.len() < MOST_PROBLEMS {
            true => self.report.problems.push(Problem { file: self.file.clone(), line: self.line, fault }),
            false => self.report.more_problems += 1,
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.file, self.line, self.fault)
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::NoRecord => f.write_str("this line is no record"),
            Fault::TooLong => f.write_str("this line is longer than any record"),
            Fault::Chain => {
                f.write_str("this record does not name the line before it: one of the two was changed")
            }
            Fault::Number { expected, found } => {
                write!(f, "this record has number {found} where {expected} follows")
            }
            Fault::Sandbox => f.write_str("this record is of another sandbox"),
            Fault::Beginning { expected } => {
                write!(f, "records from number {expected} on are missing before this one")
            }
            Fault::Unfinished => f.write_str("this line was never finished, and others follow"),
        }
    }
}
