//! A ledger as a whole: written, rotated, cut off, killed, filled up, read and verified.

use super::{
    Error, Growth, Happened, Item, Ledger, Reader,
    files::{self, Bounds},
    lines::{as_text, hash},
    verify::{self, Fault, Problem, Report},
};
use airlock_protocol::{
    SandboxId,
    ledger::{Crossing, Entry, Record},
    policy::Verdict,
};
use proptest::prelude::*;
use std::{
    collections::VecDeque,
    fs::{self, OpenOptions},
    io::{BufRead as _, BufReader, Write as _},
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

const SMALL: Bounds = Bounds { bytes: 2000, files: 4 };

fn id() -> SandboxId {
    "3f9a0c2e7b14".parse().unwrap()
}

fn open(folder: &Path) -> Ledger {
    Ledger::open(folder, id(), false).unwrap()
}

fn open_small(folder: &Path) -> Ledger {
    Ledger::open_with(folder, id(), false, SMALL).unwrap()
}

fn decision(host: &str) -> Entry {
    Entry::Decision {
        crossing: Crossing::Connect { host: host.into(), port: 443, protocol: "tcp".into() },
        verdict: Verdict::Allow,
        audit_only: false,
        rule: Some("allow api.test (airlock.toml:3)".into()),
        reason: None,
        detail: None,
        flow: Some(1),
        times: None,
    }
}

fn read(folder: &Path) -> Vec<Record> {
    let mut reader = Reader::open(folder).unwrap();
    let mut records = Vec::new();
    while let Some(item) = reader.next().unwrap() {
        match item {
            Item::Record(record) => records.push(*record),
            Item::Damaged { bytes } => panic!("{bytes} bytes are no record"),
        }
    }
    records
}

fn report(folder: &Path) -> Report {
    verify::folder(folder).unwrap()
}

#[test]
fn a_ledger_without_records_makes_no_file() {
    let folder = tempfile::tempdir().unwrap();
    drop(open(folder.path()));
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    let nothing = report(folder.path());
    assert!(nothing.is_intact());
    assert_eq!((nothing.records, nothing.head.as_str()), (0, as_text(&hash(b""))));
}

#[test]
fn a_line_names_the_hash_of_the_line_before_it() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = open(folder.path());
    let written = [ledger.append(decision("a.test")).unwrap(), ledger.append(decision("b.test")).unwrap()];

    let text = fs::read_to_string(folder.path().join("ledger.jsonl")).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(read(folder.path()), written);
    assert_eq!(written[0].prev, as_text(&hash(b"")));
    assert_eq!(written[1].prev, as_text(&hash(lines[0].as_bytes())));
    assert_eq!(report(folder.path()).head, as_text(&hash(lines[1].as_bytes())));
}

#[test]
fn the_chain_goes_on_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    for _ in 0..3 {
        let ledger = open(folder.path());
        ledger.append(decision("a.test")).unwrap();
        ledger.append_with(|seq| Entry::Torn { bytes: seq }).unwrap();
    }
    let found = report(folder.path());
    assert!(found.is_intact());
    assert_eq!((found.records, found.first, found.last), (6, Some(1), Some(6)));
    assert_eq!(read(folder.path())[5].entry, Entry::Torn { bytes: 6 });
}

#[test]
fn a_torn_last_line_is_no_problem_and_is_cut_off_and_told_by_the_next_keeper() {
    let folder = tempfile::tempdir().unwrap();
    open(folder.path()).append(decision("a.test")).unwrap();
    let path = folder.path().join("ledger.jsonl");
    OpenOptions::new().append(true).open(&path).unwrap().write_all(b"{\"seq\":2,\"at\":\"20\0\0").unwrap();
    let torn = report(folder.path());
    assert!(torn.is_intact());
    assert_eq!((torn.records, torn.unfinished), (1, 19));

    open(folder.path()).append(decision("b.test")).unwrap();

    let entries: Vec<Entry> = read(folder.path()).into_iter().map(|record| record.entry).collect();
    assert_eq!(entries, [decision("a.test"), Entry::Torn { bytes: 19 }, decision("b.test")]);
    let found = report(folder.path());
    assert!(found.is_intact());
    assert_eq!((found.records, found.unfinished), (3, 0));
}

#[test]
fn a_file_of_nothing_but_a_torn_line_begins_anew() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("ledger.jsonl"), [0; 300]).unwrap();
    open(folder.path()).append(decision("a.test")).unwrap();
    assert!(report(folder.path()).is_intact());
    assert_eq!(read(folder.path())[0].entry, Entry::Torn { bytes: 300 });
}

#[test]
fn damage_before_the_end_stays_visible_and_does_not_stop_the_writer() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ledger.jsonl");
    open(folder.path()).append(decision("a.test")).unwrap();
    OpenOptions::new().append(true).open(&path).unwrap().write_all(b"\0\0\0\xff\n").unwrap();

    open(folder.path()).append(decision("b.test")).unwrap();

    let found = report(folder.path());
    let at = |line, fault| Problem { file: "ledger.jsonl".into(), line, fault };
    assert_eq!(found.problems, [at(2, Fault::NoRecord)]);
    assert_eq!((found.records, found.last), (2, Some(3)));
}

#[test]
fn a_large_file_is_continued_from_its_tail() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = open(folder.path());
    for _ in 0..1500 {
        ledger.append(decision("a.test")).unwrap();
    }
    drop(ledger);
    let path = folder.path().join("ledger.jsonl");
    assert!(fs::metadata(&path).unwrap().len() > 300_000);
    open(folder.path()).append(decision("b.test")).unwrap();
    // A tail without any record: the whole file is read.
    OpenOptions::new().append(true).open(&path).unwrap().write_all(&[b'x'; 200_000]).unwrap();
    OpenOptions::new().append(true).open(&path).unwrap().write_all(b"\n").unwrap();
    open(folder.path()).append(decision("c.test")).unwrap();

    let found = report(folder.path());
    assert_eq!(found.problems.len(), 1);
    assert_eq!(found.problems[0].fault, Fault::TooLong);
    assert_eq!((found.records, found.last), (1502, Some(1503)));
}

#[test]
fn rotation_keeps_the_beginning_and_the_end_and_tells_what_it_dropped() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = open_small(folder.path());
    for _ in 0..100 {
        ledger.append(decision("a.test")).unwrap();
    }
    let found = report(folder.path());
    let records = read(folder.path());
    assert!(found.is_intact(), "{:?}", found.problems);
    assert_eq!(files::numbers(folder.path()).collect::<Vec<_>>(), [0, 1, 2, 3]);
    let numbers: Vec<u64> = records.iter().map(|record| record.seq).collect();
    let gap = numbers.windows(2).filter(|pair| pair[1] != pair[0] + 1).collect::<Vec<_>>();
    assert_eq!((found.first, found.last), (Some(1), numbers.last().copied()));
    assert_eq!(gap.len(), 1, "{numbers:?}");
    assert_eq!(found.dropped, gap[0][1] - gap[0][0] - 1);
    assert_eq!(records.len() as u64, found.records);
    let told = records.iter().rev().find_map(|record| match record.entry {
        Entry::Rotated { dropped, first_kept } => Some((dropped > 0, first_kept)),
        _ => None,
    });
    assert_eq!(told, Some((true, gap[0][1])));
}

#[test]
fn a_flood_does_not_drive_out_what_was_before_it() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = open_small(folder.path());
    ledger.append(decision("before.test")).unwrap();
    for _ in 0..1000 {
        ledger.append(decision("flood.test")).unwrap();
    }
    let first = read(folder.path()).into_iter().next().unwrap();
    assert_eq!(first.seq, 1);
    assert!(serde_json::to_string(&first).unwrap().contains("before.test"));
    let bytes: u64 = files::numbers(folder.path())
        .map(|number| fs::metadata(files::path(folder.path(), number)).unwrap().len())
        .sum();
    assert!(bytes < 5 * SMALL.bytes, "{bytes}");
    assert!(report(folder.path()).is_intact());
}

#[test]
fn a_rotation_that_was_interrupted_anywhere_leaves_a_whole_chain() {
    for renamed in 0..=2 {
        let folder = tempfile::tempdir().unwrap();
        let ledger = open_small(folder.path());
        while files::numbers(folder.path()).count() < 4 {
            ledger.append(decision("a.test")).unwrap();
        }
        let (dropped, first_kept) = files::about_to_drop(folder.path(), SMALL);
        ledger.append(Entry::Rotated { dropped, first_kept }).unwrap();
        drop(ledger);
        for number in (0..2).rev().take(renamed) {
            let from = files::path(folder.path(), number);
            fs::rename(from, files::path(folder.path(), number + 1)).unwrap();
        }
        assert!(report(folder.path()).is_intact(), "after {renamed} steps");

        let ledger = open_small(folder.path());
        for _ in 0..40 {
            ledger.append(decision("b.test")).unwrap();
            let found = report(folder.path());
            assert!(found.is_intact(), "after {renamed} steps: {:?}", found.problems);
        }
    }
}

#[test]
fn a_missing_file_is_noticed() {
    for (missing, blamed) in [(3, "ledger.2.jsonl"), (2, "ledger.1.jsonl"), (1, "ledger.jsonl")] {
        let folder = tempfile::tempdir().unwrap();
        let ledger = open_small(folder.path());
        for _ in 0..100 {
            ledger.append(decision("a.test")).unwrap();
        }
        fs::remove_file(files::path(folder.path(), missing)).unwrap();

        let found = report(folder.path());

        let files: Vec<_> = found.problems.iter().map(|problem| problem.file.as_str()).collect();
        assert!(files.contains(&blamed), "without {missing}: {:?}", found.problems);
    }
}

#[test]
fn lines_cut_off_before_the_gap_are_noticed() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = open_small(folder.path());
    for _ in 0..100 {
        ledger.append(decision("a.test")).unwrap();
    }
    let oldest = files::path(folder.path(), 3);
    let text = fs::read_to_string(&oldest).unwrap();
    let kept: Vec<&str> = text.lines().collect();
    fs::write(&oldest, format!("{}\n", kept[..kept.len() - 1].join("\n"))).unwrap();

    assert!(!report(folder.path()).is_intact());
}

#[test]
fn a_reader_whose_file_was_dropped_goes_on_behind_the_gap() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = open_small(folder.path());
    while files::numbers(folder.path()).count() < 3 {
        ledger.append(decision("a.test")).unwrap();
    }
    let mut reader = Reader::open(folder.path()).unwrap();
    let mut seen = Vec::new();
    for _ in 0..3 {
        while let Some(Item::Record(record)) = reader.next().unwrap() {
            seen.push(record.seq);
        }
        for _ in 0..100 {
            ledger.append(decision("a.test")).unwrap();
        }
    }
    assert!(seen.is_sorted_by(|before, after| before < after), "{seen:?}");
    assert!(seen.len() > 40);
}

#[test]
fn a_reader_follows_across_rotations_and_sees_every_record_once() {
    let folder = tempfile::tempdir().unwrap();
    let growth = Growth::of(folder.path()).unwrap();
    let mut reader = Reader::open(folder.path()).unwrap();
    assert!(reader.next().unwrap().is_none());
    let ledger = open_small(folder.path());
    let mut seen = Vec::new();
    for round in 1..200 {
        // Sometimes a file is rotated, sometimes two, between looks.
        for _ in 0..round % 13 {
            ledger.append(decision("a.test")).unwrap();
        }
        if round % 13 > 0 {
            assert!(growth.wait(Duration::from_secs(5)).unwrap());
        }
        while let Some(Item::Record(record)) = reader.next().unwrap() {
            seen.push(record.seq);
        }
    }
    let last = seen.len() as u64;
    assert_eq!(seen, (1..=last).collect::<Vec<_>>());
    assert_eq!(report(folder.path()).last, Some(last));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_changed_byte_is_noticed(at in any::<prop::sample::Index>(), to in any::<u8>()) {
        let folder = tempfile::tempdir().unwrap();
        let ledger = open(folder.path());
        for host in ["a.test", "b.test", "c.test"] {
            ledger.append(decision(host)).unwrap();
        }
        let before = report(folder.path());
        let path = folder.path().join("ledger.jsonl");
        let mut bytes = fs::read(&path).unwrap();
        let at = at.index(bytes.len());
        prop_assume!(bytes[at] != to);
        bytes[at] = to;
        fs::write(&path, &bytes).unwrap();

        let after = report(folder.path());

        // In the last line only the head can tell.
        prop_assert!(!after.is_intact() || after.head != before.head);
        let last_line = bytes.len() - 1 - bytes[..bytes.len() - 1].iter().rev().position(|byte| *byte == b'\n').unwrap();
        prop_assert!(at >= last_line || !after.is_intact());
    }

    #[test]
    fn a_cut_of_power_anywhere_leaves_a_chain_that_goes_on(keep in any::<prop::sample::Index>(), zeros in 0usize..700) {
        let folder = tempfile::tempdir().unwrap();
        let ledger = open(folder.path());
        for host in ["a.test", "b.test", "c.test", "d.test"] {
            ledger.append(decision(host)).unwrap();
        }
        drop(ledger);
        let path = folder.path().join("ledger.jsonl");
        let mut bytes = fs::read(&path).unwrap();
        bytes.truncate(keep.index(bytes.len() + 1));
        // Some file systems grow a file before its bytes are there.
        bytes.extend(std::iter::repeat_n(0, zeros));
        fs::write(&path, &bytes).unwrap();
        let cut = report(folder.path());
        prop_assert!(cut.is_intact(), "{:?}", cut.problems);

        open(folder.path()).append(decision("e.test")).unwrap();

        let found = report(folder.path());
        prop_assert!(found.is_intact(), "{:?}", found.problems);
        prop_assert_eq!(found.unfinished, 0);
        prop_assert_eq!(found.records, cut.records + 1 + u64::from(cut.unfinished > 0));
    }

    #[test]
    fn no_bytes_are_too_strange_to_verify_or_to_go_on_from(bytes in proptest::collection::vec(prop_oneof![any::<u8>(), Just(b'\n'), Just(b'{')], 0..2000)) {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("ledger.jsonl"), &bytes).unwrap();
        report(folder.path());
        let ledger = open(folder.path());
        let record = ledger.append(decision("a.test")).unwrap();
        let mut reader = Reader::open(folder.path()).unwrap();
        let mut last = None;
        while let Some(item) = reader.next().unwrap() {
            last = Some(item);
        }
        prop_assert_eq!(last, Some(Item::Record(Box::new(record))));
    }
}

/// Runs one ignored test of this binary in a process of its own.
fn this_test(name: &str, folder: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", &format!("ledger::tests::{name}"), "--ignored", "--nocapture"]);
    command.env("LEDGER_FOLDER", folder).stdin(Stdio::null());
    command
}

fn given_folder() -> Option<std::path::PathBuf> {
    std::env::var_os("LEDGER_FOLDER").map(Into::into)
}

#[test]
#[ignore = "run by killed_writers_leave_whole_chains"]
fn writes_until_killed() {
    let Some(folder) = given_folder() else { return };
    let ledger = open_small(&folder);
    loop {
        let record = ledger.append(decision("a.test")).unwrap();
        println!("wrote {}", record.seq);
    }
}

#[test]
fn killed_writers_leave_whole_chains_with_every_record_they_told_of() {
    let folder = tempfile::tempdir().unwrap();
    for round in 0..25 {
        let mut writer =
            this_test("writes_until_killed", folder.path()).stdout(Stdio::piped()).spawn().unwrap();
        let mut told = 0;
        let mut lines = BufReader::new(writer.stdout.take().unwrap()).lines();
        for line in lines.by_ref().take(20 + round * 7) {
            told = line.unwrap().strip_prefix("wrote ").map_or(told, |seq| seq.parse().unwrap());
        }
        writer.kill().unwrap();
        writer.wait().unwrap();
        // What was still in the pipe was written too.
        for line in lines.map_while(Result::ok) {
            told = line.strip_prefix("wrote ").and_then(|seq| seq.parse().ok()).unwrap_or(told);
        }

        let found = report(folder.path());
        assert!(found.is_intact(), "{:?}", found.problems);
        assert!(found.last >= Some(told), "{:?} < {told}", found.last);
    }
}

#[test]
#[ignore = "run by a_full_disk_denies_until_there_is_room"]
fn fills_the_disk() {
    let Some(folder) = given_folder() else { return };
    let ballast = folder.join("ballast");
    let ledger = open(&folder);
    ledger.append(decision("a.test")).unwrap();
    for round in 0..20 {
        let mut filler = fs::File::create(&ballast).unwrap();
        while filler.write_all(&[b'x'; 997]).is_ok() {}
        drop(filler);
        let failed = loop {
            match ledger.append(decision(&"a".repeat(round * 12))) {
                Ok(_) => {}
                Err(err) => break err,
            }
        };
        assert!(
            matches!(&failed, Error::Write { source, .. } if source.raw_os_error() == Some(28)),
            "{failed}"
        );
        let meanwhile = report(&folder);
        assert!(meanwhile.is_intact() && meanwhile.unfinished == 0, "{meanwhile:?}");
        fs::remove_file(&ballast).unwrap();
        ledger.append(decision("back.test")).unwrap();
        let found = report(&folder);
        assert!(found.is_intact(), "{:?}", found.problems);
    }
}

#[test]
fn a_full_disk_denies_until_there_is_room() {
    let folder = tempfile::tempdir().unwrap();
    let inner = this_test("fills_the_disk", folder.path());
    let script = "mount -t tmpfs -o size=256k none \"$LEDGER_FOLDER\" || exit 77; exec \"$0\" \"$@\"";
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", "--mount", "sh", "-c", script]);
    command.arg(inner.get_program()).args(inner.get_args()).env("LEDGER_FOLDER", folder.path());

    let output = match command.output() {
        Ok(output) if output.status.code() != Some(77) && !says_no_namespaces(&output.stderr) => output,
        _ => return skip("this host allows no user namespaces or has no unshare"),
    };

    let told = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && told.contains("1 passed"), "{told}");
}

fn says_no_namespaces(stderr: &[u8]) -> bool {
    String::from_utf8_lossy(stderr).contains("unshare:")
}

fn skip(why: &str) {
    println!("skipped: {why}");
    assert!(std::env::var_os("AIRLOCK_TEST_STRICT").is_none_or(|strict| strict != "1"), "skipped: {why}");
}

#[tokio::test(flavor = "current_thread")]
async fn a_durable_ledger_waits_for_the_disk_and_calls_at_the_same_time_share_it() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = Ledger::open(folder.path(), id(), true).unwrap();
    let one = |host: &'static str| {
        ledger.append(decision(host)).unwrap();
        ledger.commit()
    };
    let (a, b, c) = tokio::join!(one("a.test"), one("b.test"), one("c.test"));
    assert!(a.is_ok() && b.is_ok() && c.is_ok());
    assert!(ledger.unsynced.is_clean());
}

#[tokio::test(flavor = "current_thread")]
async fn what_is_written_is_on_the_disk_within_a_second() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = open(folder.path());
    let keeping = ledger.keep_synced();
    tokio::pin!(keeping);
    ledger.append(decision("a.test")).unwrap();
    assert!(!ledger.unsynced.is_clean());
    let clean = async {
        while !ledger.unsynced.is_clean() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::select! {
        () = &mut keeping => unreachable!(),
        in_time = tokio::time::timeout(Duration::from_secs(10), clean) => assert!(in_time.is_ok()),
    }
}

#[test]
fn what_happened_before_is_written_with_the_next_record_under_its_own_time() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = open(folder.path());
    let mut before = VecDeque::from([Happened::now(decision("a.test")), Happened::now(decision("b.test"))]);
    let mut told = Vec::new();

    let last = |number| Entry::Torn { bytes: number };
    let number =
        ledger.append_behind(&mut before, Some(last), Some(&mut |record| told.push(record))).unwrap();

    let records = read(folder.path());
    assert!(before.is_empty() && report(folder.path()).is_intact());
    assert_eq!((number, told), (3, records.clone()));
    assert_eq!(records[2].entry, Entry::Torn { bytes: 3 }, "it is told its own number");
    assert!(records.is_sorted_by_key(|record| record.at.clone()));
}

#[test]
fn what_cannot_be_written_is_given_back_and_leaves_the_ledger_as_it_was() {
    let parent = tempfile::tempdir().unwrap();
    let folder = parent.path().join("sandbox");
    let ledger = open(&folder);
    let happened = VecDeque::from([Happened::now(decision("a.test")), Happened::now(decision("b.test"))]);
    let mut before = happened.clone();

    let last = |_| decision("c.test");
    let refused = ledger.append_behind(&mut before, Some(last), Some(&mut |_| panic!("nothing is written")));

    assert!(refused.is_err());
    assert_eq!(before, happened);
    fs::create_dir(&folder).unwrap();
    ledger.append_behind(&mut before, Some(last), None).unwrap();
    assert_eq!(read(&folder).iter().map(|record| record.seq).collect::<Vec<_>>(), [1, 2, 3]);
    assert!(report(&folder).is_intact());
}

#[test]
fn what_is_written_is_a_record_as_programs_write_it() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = open(folder.path());
    let flow = Entry::Flow {
        flow: 1,
        host: "a.test".to_owned(),
        port: 443,
        address: Some("192.0.2.1:443".to_owned()),
        sent: 1,
        received: 2,
        millis: 3,
        status: "closed \"\u{e9}".to_owned(),
        code: Some(200),
        times: None,
    };
    ledger.append(decision("a.test")).unwrap();
    ledger.append(flow).unwrap();

    let text = fs::read_to_string(folder.path().join("ledger.jsonl")).unwrap();

    let again = |record| serde_json::to_string(&record).unwrap() + "\n";
    assert_eq!(text, read(folder.path()).into_iter().map(again).collect::<String>());
}
