//! `airlock logs`: what a sandbox's program wrote, stdout to stdout and stderr to stderr.

use super::{find, print_json};
use crate::{
    args::LogsArgs,
    clean::clean_text,
    failure::{Failure, Outcome},
    home,
};
use airlock_doors::control::client::{Client, Error};
use airlock_engine::store::Sandbox;
use airlock_protocol::{
    control::Request,
    log::{Output, Record},
};
use rustix::{
    event::{PollFd, PollFlags, poll},
    fs::inotify,
    io::Errno,
};
use std::{
    collections::VecDeque,
    fs::File,
    io::{self, BufRead, BufReader, IsTerminal, Write},
    os::{
        fd::{AsFd, OwnedFd},
        unix::fs::MetadataExt,
    },
    path::{Path, PathBuf},
};

pub(crate) fn logs(args: &LogsArgs) -> Outcome {
    let sandbox = find(&home::store()?, &args.sandbox)?;
    let mut printer = Printer::new(args);
    // Watched before read: nothing written in between is missed.
    let follow = if args.follow { Follow::new(&sandbox)? } else { None };
    let mut log = Log::open(&sandbox)?;
    let mut kept = VecDeque::new();
    log.records(|record| {
        if args.since.is_some_and(|since| is_older(&record, since)) {
            return Ok(());
        }
        kept.push_back(record);
        match args.tail {
            Some(most) if kept.len() > most => drop(kept.pop_front()),
            Some(_) => {}
            None => kept.drain(..).try_for_each(|record| printer.print(&record))?,
        }
        Ok(())
    })?;
    kept.iter().try_for_each(|record| printer.print(record))?;
    let Some(mut follow) = follow else { return Ok(0) };
    loop {
        let turn = follow.wait()?;
        log.records(|record| printer.print(&record))?;
        if turn == Turn::Ended {
            return Ok(0);
        }
    }
}

fn is_older(record: &Record, since: jiff::Timestamp) -> bool {
    record.time.parse::<jiff::Timestamp>().is_ok_and(|time| time < since)
}

/// Records of a log that is written and rotated meanwhile.
struct Log {
    path: PathBuf,
    /// Files still to be read, the oldest first.
    waiting: VecDeque<BufReader<File>>,
    /// The beginning of a record whose rest is not written yet.
    begun: Vec<u8>,
}

impl Log {
    /// The rotated files, `log.1.jsonl` being the youngest of them, and the current one.
    fn open(sandbox: &Sandbox) -> Result<Log, Failure> {
        let path = sandbox.log();
        let mut waiting = VecDeque::new();
        if let Some(current) = open(&path)? {
            waiting.push_front(current);
        }
        for number in 1.. {
            let Some(older) = open(&path.with_file_name(format!("log.{number}.jsonl")))? else { break };
            waiting.push_front(older);
        }
        Ok(Log { path, waiting, begun: Vec::new() })
    }

    /// Gives every record that is written now.
    fn records(&mut self, mut take: impl FnMut(Record) -> Result<(), Failure>) -> Result<(), Failure> {
        loop {
            if let Some(file) = self.waiting.front_mut() {
                read_lines(file, &mut self.begun, &mut take)?;
            }
            if !self.next_file()? {
                return Ok(());
            }
        }
    }

    /// Goes on to the next file where there is one: another that waits, or a new one after a rotation.
    fn next_file(&mut self) -> Result<bool, Failure> {
        if self.waiting.len() > 1 {
            self.waiting.pop_front();
            self.begun.clear();
            return Ok(true);
        }
        let Some(current) = open(&self.path)? else { return Ok(false) };
        let is_new =
            self.waiting.front().is_none_or(|known| inode(known.get_ref()) != inode(current.get_ref()));
        if is_new {
            self.waiting.clear();
            self.begun.clear();
            self.waiting.push_back(current);
        }
        Ok(is_new)
    }
}

fn open(path: &Path) -> Result<Option<BufReader<File>>, Failure> {
    match File::open(path) {
        Ok(file) => Ok(Some(BufReader::new(file))),
        Err(err) if err.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(err) => Err(Failure::because(format!("could not read {}", path.display()), &err)),
    }
}

fn inode(file: &File) -> Option<u64> {
    file.metadata().ok().map(|found| found.ino())
}

fn read_lines(
    file: &mut BufReader<File>,
    begun: &mut Vec<u8>,
    take: &mut impl FnMut(Record) -> Result<(), Failure>,
) -> Result<(), Failure> {
    loop {
        let read =
            file.read_until(b'\n', begun).map_err(|err| Failure::because("could not read the log", &err))?;
        if read == 0 || begun.last() != Some(&b'\n') {
            return Ok(());
        }
        // A line that a crash cut short is skipped: the others are still worth reading.
        let record = serde_json::from_slice(begun);
        begun.clear();
        if let Ok(record) = record {
            take(record)?;
        }
    }
}

/// Writes records where they belong.
struct Printer<'a> {
    args: &'a LogsArgs,
    is_terminal: [bool; 2],
    at_line_start: [bool; 2],
}

impl Printer<'_> {
    fn new(args: &LogsArgs) -> Printer<'_> {
        let is_terminal = [io::stdout().is_terminal(), io::stderr().is_terminal()];
        Printer { args, is_terminal, at_line_start: [true; 2] }
    }

    fn print(&mut self, record: &Record) -> Result<(), Failure> {
        if self.args.json {
            return print_json(record);
        }
        let [out_is_terminal, err_is_terminal] = self.is_terminal;
        let [out_at_start, err_at_start] = &mut self.at_line_start;
        match record.stream {
            Output::Stdout | Output::Terminal => {
                let text = line(self.args, record, out_is_terminal, out_at_start);
                io::stdout().write_all(text.as_bytes())?;
                io::stdout().flush()?;
            }
            Output::Stderr => {
                let text = line(self.args, record, err_is_terminal, err_at_start);
                io::stderr().write_all(text.as_bytes())?;
            }
        }
        Ok(())
    }
}

fn line(args: &LogsArgs, record: &Record, is_terminal: bool, at_line_start: &mut bool) -> String {
    let text = if is_terminal { clean_text(&record.text) } else { record.text.clone() };
    let was_at_start = std::mem::replace(at_line_start, text.ends_with('\n'));
    match args.timestamps && was_at_start {
        true => format!("{} {text}", clean_text(&record.time)),
        false => text,
    }
}

/// Waits for more: for the log to grow, and for the keeper to end.
struct Follow {
    changes: OwnedFd,
    keeper: Client,
}

#[derive(Debug, PartialEq, Eq)]
enum Turn {
    Grown,
    Ended,
}

impl Follow {
    /// `None` if the sandbox does not run: nothing will come.
    fn new(sandbox: &Sandbox) -> Result<Option<Follow>, Failure> {
        let mut keeper = match Client::connect(sandbox) {
            Ok(keeper) => keeper,
            Err(Error::NotRunning { .. }) => return Ok(None),
            Err(err) => return Err(err.into()),
        };
        keeper.send(&Request::Wait, &[])?;
        let watched =
            inotify::WatchFlags::MODIFY | inotify::WatchFlags::CREATE | inotify::WatchFlags::MOVED_TO;
        let changes = inotify::init(inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK)
            .and_then(|changes| inotify::add_watch(&changes, sandbox.folder(), watched).map(|_| changes))
            .map_err(|errno| Failure::because("could not watch the log", &errno))?;
        Ok(Some(Follow { changes, keeper }))
    }

    fn wait(&mut self) -> Result<Turn, Failure> {
        let keeper = self.keeper.as_fd();
        let mut watched =
            [PollFd::new(&self.changes, PollFlags::IN), PollFd::from_borrowed_fd(keeper, PollFlags::IN)];
        match poll(&mut watched, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(Failure::because("could not wait for the log", &errno)),
        }
        let [_, keeper] = watched;
        if !keeper.revents().is_empty() {
            return Ok(Turn::Ended);
        }
        // Which file changed does not matter: all are looked at.
        let mut events = [0u8; 4096];
        while rustix::io::read(&self.changes, &mut events).is_ok_and(|count| count > 0) {}
        Ok(Turn::Grown)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, OpenOptions};

    fn record(text: &str) -> String {
        let record =
            Record { time: "2026-01-31T12:00:00.000000Z".into(), stream: Output::Stdout, text: text.into() };
        serde_json::to_string(&record).unwrap() + "\n"
    }

    fn texts(log: &mut Log) -> Vec<String> {
        let mut texts = Vec::new();
        log.records(|record| {
            texts.push(record.text);
            Ok(())
        })
        .unwrap();
        texts
    }

    #[test]
    fn records_come_in_order_across_a_rotation_and_half_a_record_waits_for_its_rest() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log.jsonl");
        fs::write(&path, record("one") + "not json\n" + &record("two") + "{\"time\":").unwrap();
        let mut log = Log {
            path: path.clone(),
            waiting: VecDeque::from([open(&path).unwrap().unwrap()]),
            begun: Vec::new(),
        };
        assert_eq!(texts(&mut log), ["one", "two"]);

        let three = record("three");
        OpenOptions::new().append(true).open(&path).unwrap().write_all(&three.as_bytes()[8..]).unwrap();
        fs::rename(&path, folder.path().join("log.1.jsonl")).unwrap();
        fs::write(&path, record("four")).unwrap();

        assert_eq!(texts(&mut log), ["three", "four"]);
        assert!(texts(&mut log).is_empty());
    }

    #[test]
    fn a_time_stands_before_whole_lines_only_and_a_terminal_gets_clean_text() {
        let args = LogsArgs {
            sandbox: "-".into(),
            follow: false,
            since: None,
            tail: None,
            timestamps: true,
            json: false,
        };
        let mut at_start = true;
        let mut print = |text: &str, is_terminal| {
            let record = Record { time: "T".into(), stream: Output::Stdout, text: text.into() };
            line(&args, &record, is_terminal, &mut at_start)
        };
        assert_eq!(print("a\x1b[1m", true), "T a");
        assert_eq!(print("b\n", true), "b\n");
        assert_eq!(print("\x1b[1mc\n", false), "T \x1b[1mc\n");
    }
}
