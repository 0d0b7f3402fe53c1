//! Bytes of files: writing, cutting, holes, appending, open files without a name, memory maps, locks.

use super::{Check, Outcome, fails, same, works};
use rustix::{
    fs::{FallocateFlags, FlockOperation},
    io::Errno,
};
use std::{
    fs::{self, File, OpenOptions},
    io::{Read as _, Seek as _, SeekFrom, Write as _},
    os::unix::fs::{FileExt as _, MetadataExt as _},
    path::Path,
};

pub(super) const CHECKS: &[Check] = &[
    ("what_was_written_is_read", written),
    ("large_files_are_whole", large),
    ("appending_goes_to_the_end", appending),
    ("two_who_append_lose_nothing", appending_together),
    ("truncation_cuts_and_grows_with_zeros", truncation),
    ("opening_can_cut", cutting_open),
    ("holes_read_as_zeros", holes),
    ("holes_are_found", seeking),
    ("room_can_be_made_and_freed", allocation),
    ("an_open_file_lives_without_a_name", nameless),
    ("an_open_file_lives_when_its_name_is_replaced", replaced),
    ("writes_are_seen_through_other_descriptors", shared),
    ("memory_maps_are_read_and_written", mapped),
    ("a_program_can_be_executed", executed),
    ("locks_of_open_files_hold", flocks),
    ("locks_of_ranges_hold", range_locks),
    ("a_file_that_is_only_read_is_not_written", read_only),
    ("random_writes_are_what_was_written", random),
    ("a_file_can_be_made_safe", synced),
];

fn both(path: &Path) -> Result<File, String> {
    works("open", OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path))
}

fn written(dir: &Path) -> Outcome {
    works("write", fs::write(dir.join("a"), b"hello"))?;
    same("content", works("read", fs::read(dir.join("a")))?, b"hello".to_vec())?;
    same("size", works("stat", fs::metadata(dir.join("a")))?.len(), 5)
}

fn large(dir: &Path) -> Outcome {
    let bytes: Vec<u8> = (0..5_000_000u32).map(|number| (number % 251).to_le_bytes()[0]).collect();
    works("write", fs::write(dir.join("a"), &bytes))?;
    same("it is the same", works("read", fs::read(dir.join("a")))? == bytes, true)
}

fn appending(dir: &Path) -> Outcome {
    let path = dir.join("a");
    works("write", fs::write(&path, "one"))?;
    let mut file = works("open", OpenOptions::new().append(true).open(&path))?;
    works("write", file.write_all(b"two"))?;
    works(
        "write elsewhere",
        fs::OpenOptions::new().append(true).open(&path).and_then(|mut f| f.write_all(b"3")),
    )?;
    works("seek", file.seek(SeekFrom::Start(0)))?;
    works("write", file.write_all(b"four"))?;
    same("content", works("read", fs::read_to_string(&path))?, "onetwo3four".to_owned())
}

fn appending_together(dir: &Path) -> Outcome {
    let path = dir.join("a");
    works("create", File::create(&path))?;
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let Ok(mut file) = OpenOptions::new().append(true).open(&path) else { return };
                for _ in 0..300 {
                    let _ = file.write_all(b"0123456789abcde\n");
                }
            });
        }
    });
    let text = works("read", fs::read_to_string(&path))?;
    same("lines", text.lines().filter(|line| *line == "0123456789abcde").count(), 600)
}

fn truncation(dir: &Path) -> Outcome {
    let path = dir.join("a");
    works("write", fs::write(&path, "0123456789"))?;
    let file = both(&path)?;
    works("cut", file.set_len(4))?;
    works("grow", file.set_len(8))?;
    same("content", works("read", fs::read(&path))?, b"0123\0\0\0\0".to_vec())?;
    works("mkdir", fs::create_dir(dir.join("d")))?;
    let cut = rustix::fs::openat(
        rustix::fs::CWD,
        dir.join("d"),
        rustix::fs::OFlags::WRONLY,
        rustix::fs::Mode::empty(),
    );
    fails("open a directory to write", cut.map_err(std::io::Error::from), &[Errno::ISDIR])
}

fn cutting_open(dir: &Path) -> Outcome {
    let path = dir.join("a");
    works("write", fs::write(&path, "0123456789"))?;
    works("open", OpenOptions::new().write(true).truncate(true).open(&path))?;
    same("size", works("stat", fs::metadata(&path))?.len(), 0)?;
    works("write again", fs::write(&path, "x"))?;
    same("content", works("read", fs::read_to_string(&path))?, "x".to_owned())
}

fn holes(dir: &Path) -> Outcome {
    let file = both(&dir.join("a"))?;
    works("write", file.write_all_at(b"end", 3_000_000))?;
    same("size", works("stat", file.metadata())?.len(), 3_000_003)?;
    let mut bytes = vec![1; 1000];
    works("read", file.read_exact_at(&mut bytes, 1_000_000))?;
    same("zeros", bytes.iter().all(|byte| *byte == 0), true)?;
    let blocks = works("stat", file.metadata())?.blocks();
    same("it takes less room", blocks * 512 < 2_000_000, true)
}

fn seeking(dir: &Path) -> Outcome {
    let file = both(&dir.join("a"))?;
    works("write", file.write_all_at(b"x", 1 << 20))?;
    works("sync", file.sync_all())?;
    let data = works("seek", rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(0)))?;
    same("the data is found", data > 0 && data <= 1 << 20, true)?;
    let hole = works("seek", rustix::fs::seek(&file, rustix::fs::SeekFrom::Hole(0)))?;
    same("the hole is found", hole, 0)
}

fn allocation(dir: &Path) -> Outcome {
    let file = both(&dir.join("a"))?;
    works("write", file.write_all_at(&[1; 20_000], 0))?;
    works("grow", rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, 40_000))?;
    same("size", works("stat", file.metadata())?.len(), 40_000)?;
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    works("punch", rustix::fs::fallocate(&file, punch, 4096, 4096))?;
    let mut bytes = [9; 3];
    works("read", file.read_exact_at(&mut bytes, 4096))?;
    same("zeros", bytes, [0; 3])?;
    works("read", file.read_exact_at(&mut bytes, 8192))?;
    same("the rest", bytes, [1; 3])
}

fn nameless(dir: &Path) -> Outcome {
    let path = dir.join("a");
    let mut file = both(&path)?;
    works("write", file.write_all(b"before"))?;
    works("remove", fs::remove_file(&path))?;
    works("write", file.write_all(b" after"))?;
    same("links", works("stat", file.metadata())?.nlink(), 0)?;
    works("seek", file.seek(SeekFrom::Start(0)))?;
    let mut text = String::new();
    works("read", file.read_to_string(&mut text))?;
    same("content", text, "before after".to_owned())?;
    works("cut", file.set_len(2))?;
    same("size", works("stat", file.metadata())?.len(), 2)
}

fn replaced(dir: &Path) -> Outcome {
    works("write", fs::write(dir.join("a"), "old"))?;
    works("write", fs::write(dir.join("b"), "new"))?;
    let mut file = works("open", File::open(dir.join("a")))?;
    works("rename", fs::rename(dir.join("b"), dir.join("a")))?;
    let mut text = String::new();
    works("read", file.read_to_string(&mut text))?;
    same("what was open", text, "old".to_owned())?;
    same("the name", works("read", fs::read_to_string(dir.join("a")))?, "new".to_owned())
}

fn shared(dir: &Path) -> Outcome {
    let (one, two) = (both(&dir.join("a"))?, both(&dir.join("a"))?);
    for number in 0..100u8 {
        works("write", one.write_all_at(&[number; 10], 0))?;
        let mut bytes = [0; 10];
        works("read", two.read_exact_at(&mut bytes, 0))?;
        same("content", bytes, [number; 10])?;
    }
    Ok(())
}

/// By a program, since this crate has no unsafe code.
fn mapped(dir: &Path) -> Outcome {
    works("write", fs::write(dir.join("a"), vec![b'x'; 10_000]))?;
    let script = "import mmap,sys\nf=open(sys.argv[1],'r+b')\nm=mmap.mmap(f.fileno(),0)\n\
                  assert m[9999]==120\nm[5000]=121\nm.flush()\nassert open(sys.argv[1],'rb').read()[5000]==121\n";
    let ran = std::process::Command::new("python3").args(["-c", script]).arg(dir.join("a")).output();
    let ran = works("python3", ran)?;
    same(
        "it worked",
        (ran.status.success(), String::from_utf8_lossy(&ran.stderr).into_owned()),
        (true, String::new()),
    )?;
    same("content", works("read", fs::read(dir.join("a")))?.get(5000).copied(), Some(b'y'))
}

fn executed(dir: &Path) -> Outcome {
    use std::os::unix::fs::PermissionsExt as _;
    works("copy", fs::copy("/bin/true", dir.join("program")))?;
    works("chmod", fs::set_permissions(dir.join("program"), fs::Permissions::from_mode(0o755)))?;
    let ran = works("execute", std::process::Command::new(dir.join("program")).status())?;
    same("it worked", ran.success(), true)
}

fn flocks(dir: &Path) -> Outcome {
    let (one, two) = (both(&dir.join("a"))?, both(&dir.join("a"))?);
    works("lock", rustix::fs::flock(&one, FlockOperation::LockExclusive))?;
    let again = rustix::fs::flock(&two, FlockOperation::NonBlockingLockExclusive);
    fails("lock again", again.map_err(std::io::Error::from), &[Errno::WOULDBLOCK])?;
    works("unlock", rustix::fs::flock(&one, FlockOperation::Unlock))?;
    works("lock now", rustix::fs::flock(&two, FlockOperation::NonBlockingLockExclusive))
}

fn range_locks(dir: &Path) -> Outcome {
    let path = dir.join("a");
    works("write", fs::write(&path, "0123456789"))?;
    let script = "import fcntl,os,sys\nf=open(sys.argv[1],'r+b')\nfcntl.lockf(f,fcntl.LOCK_EX,5,0)\n\
                  p=os.fork()\nif p==0:\n g=open(sys.argv[1],'r+b')\n fcntl.lockf(g,fcntl.LOCK_EX|fcntl.LOCK_NB,5,5)\n try:\n  \
                  fcntl.lockf(g,fcntl.LOCK_EX|fcntl.LOCK_NB,5,0)\n except OSError: os._exit(0)\n os._exit(1)\n\
                  sys.exit(os.waitstatus_to_exitcode(os.waitpid(p,0)[1]))\n";
    let ran = std::process::Command::new("python3").args(["-c", script]).arg(&path).output();
    let ran = works("python3", ran)?;
    same(
        "it worked",
        (ran.status.success(), String::from_utf8_lossy(&ran.stderr).into_owned()),
        (true, String::new()),
    )
}

fn read_only(dir: &Path) -> Outcome {
    works("write", fs::write(dir.join("a"), "x"))?;
    let mut file = works("open", File::open(dir.join("a")))?;
    fails("write", file.write(b"y"), &[Errno::BADF])
}

/// As fsx does it: writes, cuts and reads at random places, compared with a copy in memory.
fn random(dir: &Path) -> Outcome {
    let file = both(&dir.join("a"))?;
    let (mut model, mut seed) = (Vec::<u8>::new(), 0x9e37_79b9_7f4a_7c15u64);
    let mut next = |most: usize| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        usize::try_from(seed >> 33).unwrap_or(0) % most
    };
    for round in 0..2000 {
        let (at, count) = (next(200_000), next(20_000) + 1);
        match next(5) {
            0 => {
                works("cut", file.set_len(at as u64))?;
                model.resize(at, 0);
            }
            1 | 2 => {
                let bytes = vec![u8::try_from(round % 251).unwrap_or(0); count];
                works("write", file.write_all_at(&bytes, at as u64))?;
                model.resize(model.len().max(at + count), 0);
                model.splice(at..at + count, bytes);
            }
            _ => {
                let mut bytes = vec![0; count];
                let count = works("read", file.read_at(&mut bytes, at as u64))?;
                let expected = model.get(at..).unwrap_or_default();
                let expected = expected.get(..bytes.len()).unwrap_or(expected);
                if bytes.get(..count) != Some(expected) {
                    return Err(format!("round {round}: {count} bytes at {at} are others"));
                }
            }
        }
    }
    same("the whole", works("read", fs::read(dir.join("a")))? == model, true)
}

fn synced(dir: &Path) -> Outcome {
    let mut file = both(&dir.join("a"))?;
    works("write", file.write_all(b"x"))?;
    works("fsync", file.sync_all())?;
    works("fdatasync", file.sync_data())?;
    works("fsync of the directory", File::open(dir).and_then(|dir| dir.sync_all()))
}
