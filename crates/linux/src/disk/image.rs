//! The image file of a sandbox: an ext4 file system in a sparse file, copied from a template of its size.
//!
//! No journal: the sandbox's files are scratch, and what a crash of the host leaves is repaired when the image is opened
//! again. Both files come into being whole or not at all (`O_TMPFILE`, then a name).

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, CWD, FlockOperation, Mode, OFlags, flock, linkat, open};
use rustix::io::Errno;

use super::{BYTES_PER_FILE, Error, copy};

/// The image in the sandbox's directory.
pub(super) const NAME: &str = "disk.img";

const BLOCK: u64 = 4096;

/// How long the previous mount of the same image may take to go.
const PATIENCE: Duration = Duration::from_secs(1);

/// Everything is named, so that the host's mke2fs.conf decides nothing. All metadata stands at the front in few pieces, which
/// makes the copy cheap; checksums let inode tables stay unwritten.
const FEATURES: &str = "none,dir_index,dir_nlink,ext_attr,extent,extra_isize,filetype,flex_bg,huge_file,large_file,64bit,metadata_csum,sparse_super2";
const WITH_JOURNAL: &str = "none,dir_index,dir_nlink,ext_attr,extent,extra_isize,filetype,flex_bg,has_journal,huge_file,large_file,64bit,metadata_csum,sparse_super2";
const LAYOUT: &str = "lazy_itable_init=1,nodiscard,num_backup_sb=0,packed_meta_blocks=1";

/// Opens the image of the sandbox kept in `dir`, made if missing, clean and locked. The lock belongs to the open file, which
/// a loop device keeps: as long as the image is mounted anywhere, nobody else can open it here.
pub(super) fn prepare(dir: &Path, bytes: u64, template_dir: &Path) -> Result<(PathBuf, File), Error> {
    let (path, file) = open_or_make(&dir.join(NAME), &HOSTS, bytes, template_dir)?;
    repair_if_needed(&path, &file)?;
    Ok((path, file))
}

/// Opens the disk of a machine at `path`, made if missing, and locked as long as it is open. Whatever a machine wrote to it is nothing
/// that this host looks at; so it has a journal, by which the machine repairs it.
pub(super) fn of_machine(path: &Path, bytes: u64, template_dir: &Path) -> Result<File, Error> {
    open_or_make(path, &MACHINES, bytes, template_dir).map(|(_, file)| file)
}

/// A kind of file system.
struct Kind {
    template: &'static str,
    features: &'static str,
}

const HOSTS: Kind = Kind { template: "disk-1", features: FEATURES };
const MACHINES: Kind = Kind { template: "machine-1", features: WITH_JOURNAL };

fn open_or_make(path: &Path, kind: &Kind, bytes: u64, template_dir: &Path) -> Result<(PathBuf, File), Error> {
    let bytes = bytes - bytes % BLOCK;
    let path = path.to_path_buf();
    let file = match open_existing(&path)? {
        Some(file) => file,
        None => {
            make(&path, kind, bytes, template_dir)?;
            open_existing(&path)?.ok_or_else(|| failed("open", &path)(io::ErrorKind::NotFound.into()))?
        }
    };
    lock(&path, &file)?;
    let found = file.metadata().map_err(failed("look at", &path))?.len();
    if found != bytes {
        return Err(Error::OtherSize { path, asked: bytes, found });
    }
    Ok((path, file))
}

fn failed(action: &'static str, path: &Path) -> impl Fn(io::Error) -> Error {
    move |source| Error::File { action, path: path.to_path_buf(), source }
}

fn open_existing(path: &Path) -> Result<Option<File>, Error> {
    match open(path, OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW, Mode::empty()) {
        Ok(file) => Ok(Some(file.into())),
        Err(Errno::NOENT) => Ok(None),
        Err(other) => Err(failed("open", path)(other.into())),
    }
}

/// The end of a mount may lag a moment behind the end of the processes that had it, so a held lock is worth a short wait.
fn lock(path: &Path, file: &File) -> Result<(), Error> {
    let deadline = Instant::now() + PATIENCE;
    let mut pause = Duration::from_micros(200);
    loop {
        match flock(file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(()),
            Err(Errno::WOULDBLOCK) if Instant::now() < deadline => std::thread::sleep(pause),
            Err(Errno::WOULDBLOCK) => return Err(Error::InUse { path: path.to_path_buf() }),
            Err(other) => return Err(failed("lock", path)(other.into())),
        }
        pause = (pause * 2).min(Duration::from_millis(20));
    }
}

fn make(path: &Path, kind: &Kind, bytes: u64, template_dir: &Path) -> Result<(), Error> {
    let template = template(kind, bytes, template_dir)?;
    let (file, dir) = unnamed_beside(path)?;
    copy::sparse(&template, &file).map_err(failed("copy a template to", &dir))?;
    name(&file, path)
}

/// The empty file system of this size.
fn template(kind: &Kind, bytes: u64, template_dir: &Path) -> Result<File, Error> {
    let path = template_dir.join(format!("{}-{bytes}.img", kind.template));
    if let Some(file) = open_existing(&path)? {
        return Ok(file);
    }
    std::fs::create_dir_all(template_dir).map_err(failed("make", template_dir))?;
    let (file, _) = unnamed_beside(&path)?;
    file.set_len(bytes).map_err(failed("make", &path))?;
    let per_file = BYTES_PER_FILE.to_string();
    let arguments = [
        "-q",
        "-F",
        "-t",
        "ext4",
        "-m",
        "0",
        "-b",
        "4096",
        "-I",
        "256",
        "-i",
        &per_file,
        "-O",
        kind.features,
        "-E",
        LAYOUT,
    ];
    let ended = run("mkfs.ext4", &arguments, &file)?;
    if !ended.status.success() {
        return Err(said("mkfs.ext4", &path, &ended));
    }
    name(&file, &path)?;
    Ok(file)
}

fn unnamed_beside(path: &Path) -> Result<(File, PathBuf), Error> {
    let dir = path.parent().unwrap_or(Path::new("/")).to_path_buf();
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let file = open(&dir, flags, Mode::RUSR | Mode::WUSR)
        .map_err(|errno| failed("make a file in", &dir)(errno.into()))?;
    Ok((file.into(), dir))
}

/// Gives an unnamed file its name. If another process was first, its file is as good.
fn name(file: &File, path: &Path) -> Result<(), Error> {
    match linkat(file, "", CWD, path, AtFlags::EMPTY_PATH) {
        Ok(()) | Err(Errno::EXIST) => Ok(()),
        Err(other) => Err(failed("name", path)(other.into())),
    }
}

/// Runs a program of e2fsprogs on an open file, which is its standard input.
fn run(program: &'static str, arguments: &[&str], file: &File) -> Result<Output, Error> {
    let mut last = io::Error::from(io::ErrorKind::NotFound);
    for place in ["/usr/sbin", "/sbin"] {
        let stdin = file.try_clone().map_err(|source| Error::Program { program, source })?;
        let mut command = Command::new(Path::new(place).join(program));
        command.args(arguments).arg("/proc/self/fd/0").env_clear().env("LC_ALL", "C");
        match command.stdin(stdin).stdout(Stdio::piped()).stderr(Stdio::piped()).output() {
            Ok(ended) => return Ok(ended),
            Err(missing) => last = missing,
        }
    }
    Err(Error::Program { program, source: last })
}

fn said(program: &'static str, path: &Path, ended: &Output) -> Error {
    let text = String::from_utf8_lossy(&ended.stderr).into_owned() + &String::from_utf8_lossy(&ended.stdout);
    let line = text.lines().find(|line| !line.trim().is_empty()).unwrap_or("no message");
    Error::Failed { program, path: path.to_path_buf(), said: line.trim().chars().take(200).collect() }
}

#[derive(Debug, PartialEq, Eq)]
enum Condition {
    Clean,
    Unclean,
    NoFileSystem,
}

/// Without a journal the kernel marks the file system unclean while it is mounted for writing.
fn repair_if_needed(path: &Path, file: &File) -> Result<(), Error> {
    let mut superblock = [0_u8; 64];
    file.read_exact_at(&mut superblock, 1024).map_err(failed("read", path))?;
    match condition(&superblock) {
        Condition::Clean => Ok(()),
        Condition::NoFileSystem => Err(Error::Damaged { path: path.to_path_buf() }),
        Condition::Unclean => {
            let ended = run("e2fsck", &["-f", "-y"], file)?;
            // e2fsck(8): 0 nothing to do, 1 corrected.
            match ended.status.code() {
                Some(0 | 1) => Ok(()),
                _ => Err(said("e2fsck", path, &ended)),
            }
        }
    }
}

/// ext4 superblock: magic at 0x38, state at 0x3A (1 cleanly unmounted, 2 errors seen), little-endian.
fn condition(superblock: &[u8]) -> Condition {
    let [low, high] = [superblock.get(0x3A), superblock.get(0x3B)];
    match (superblock.get(0x38..0x3A), low, high) {
        (Some([0x53, 0xEF]), Some(1), Some(0)) => Condition::Clean,
        (Some([0x53, 0xEF]), _, _) => Condition::Unclean,
        _ => Condition::NoFileSystem,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_state_of_a_file_system_is_read_from_its_superblock() {
        let with_state = |state: u8| {
            let mut bytes = [0_u8; 64];
            bytes[0x38..0x3B].copy_from_slice(&[0x53, 0xEF, state]);
            condition(&bytes)
        };

        assert_eq!(with_state(1), Condition::Clean);
        assert_eq!(with_state(0), Condition::Unclean);
        assert_eq!(with_state(3), Condition::Unclean);
        assert_eq!(condition(&[0; 64]), Condition::NoFileSystem);
    }

    proptest! {
        #[test]
        fn any_superblock_is_judged_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            let _ = condition(&bytes);
        }
    }
}
