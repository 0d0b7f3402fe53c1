//! Which `airlock.toml` counts: one whose exact content a person has trusted.
//!
//! A project's file lies where the sandboxed program can write. So `$AIRLOCK_HOME/trust`, where it cannot, remembers
//! what a person has seen and agreed to: for each path the SHA-256 and the text, and the same of each file that it names
//! (`policy`, `env_file`), which lie where it lies.

use crate::failure::Failure;
use rustix::fs::{FileType, Mode, OFlags};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::{
    fs::File,
    io::{self, Read, Write},
    os::{fd::OwnedFd, unix::ffi::OsStrExt},
    path::{Path, PathBuf},
};

/// The most bytes a file of settings may have.
pub(crate) const MOST: u64 = 1 << 20;

/// What a person agreed to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    /// Which file.
    pub(crate) path: PathBuf,
    /// SHA-256 of its content, in hex.
    pub(crate) sha256: String,
    /// When (RFC 3339, UTC).
    pub(crate) trusted_at: String,
    /// The content.
    pub(crate) text: String,
    /// The files it names, in its order.
    #[serde(default)]
    pub(crate) files: Vec<Named>,
}

/// A file that a project's file names, as it was read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Named {
    /// Which file.
    pub(crate) path: PathBuf,
    /// SHA-256 of its content, in hex.
    pub(crate) sha256: String,
    /// The content.
    pub(crate) text: String,
}

impl Named {
    pub(crate) fn new(path: &Path, text: String) -> Named {
        Named { path: path.to_owned(), sha256: sha256(text.as_bytes()), text }
    }
}

/// How a file stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Standing {
    /// It says exactly what was trusted, and so does every file it names.
    Trusted,
    /// It was trusted when it, or a file it names, said something else.
    Changed(Box<Record>),
    /// Nobody ever trusted it.
    Unknown,
}

/// The records in a state directory.
#[derive(Debug, Clone)]
pub(crate) struct Trust {
    folder: PathBuf,
}

impl Trust {
    pub(crate) fn new(home: &Path) -> Trust {
        Trust { folder: home.join("trust") }
    }

    /// How `text`, read from `path`, stands, with the files that it names.
    pub(crate) fn standing(&self, path: &Path, text: &str, files: &[Named]) -> Result<Standing, Failure> {
        Ok(match self.record(path)? {
            Some(record) if record.is_of(text) && record.changed(files).is_none() => Standing::Trusted,
            Some(record) => Standing::Changed(Box::new(record)),
            None => Standing::Unknown,
        })
    }

    /// What was trusted at `path`.
    pub(crate) fn record(&self, path: &Path) -> Result<Option<Record>, Failure> {
        let place = self.place(path);
        let bytes = match std::fs::read(&place) {
            Ok(bytes) => bytes,
            Err(err) if err.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(err) => return Err(Failure::because(format!("could not read {}", place.display()), &err)),
        };
        // A record that cannot be read vouches for nothing.
        Ok(serde_json::from_slice::<Record>(&bytes).ok().filter(|record| record.path == path))
    }

    /// Trusts `text` as the content of `path`, and the files that it names as they were read.
    pub(crate) fn add(&self, path: &Path, text: &str, files: &[Named]) -> Result<(), Failure> {
        let place = self.place(path);
        let failed = |err: io::Error| Failure::because(format!("could not write {}", place.display()), &err);
        match rustix::fs::mkdir(&self.folder, Mode::RWXU) {
            Ok(()) | Err(rustix::io::Errno::EXIST) => {}
            Err(errno) => return Err(failed(errno.into())),
        }
        let record = Record {
            path: path.to_owned(),
            sha256: sha256(text.as_bytes()),
            trusted_at: airlock_engine::store::now(),
            text: text.to_owned(),
            files: files.to_vec(),
        };
        let bytes = serde_json::to_vec(&record).map_err(|err| failed(err.into()))?;
        replace(&place, &bytes).map_err(failed)
    }

    /// Forgets `path`; `false` if it was not known.
    pub(crate) fn remove(&self, path: &Path) -> Result<bool, Failure> {
        let place = self.place(path);
        match std::fs::remove_file(&place) {
            Ok(()) => Ok(true),
            Err(err) if err.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(err) => Err(Failure::because(format!("could not remove {}", place.display()), &err)),
        }
    }

    /// Everything trusted, by path.
    pub(crate) fn list(&self) -> Result<Vec<Record>, Failure> {
        let entries = match std::fs::read_dir(&self.folder) {
            Ok(entries) => entries,
            Err(err) if err.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(err) => {
                return Err(Failure::because(format!("could not read {}", self.folder.display()), &err));
            }
        };
        let bytes = entries.filter_map(|entry| std::fs::read(entry.ok()?.path()).ok());
        let mut records: Vec<Record> =
            bytes.filter_map(|bytes| serde_json::from_slice(&bytes).ok()).collect();
        records.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(records)
    }

    fn place(&self, path: &Path) -> PathBuf {
        self.folder.join(format!("{}.json", sha256(path.as_os_str().as_bytes())))
    }
}

impl Record {
    /// Whether the file itself said this.
    pub(crate) fn is_of(&self, text: &str) -> bool {
        self.sha256 == sha256(text.as_bytes())
    }

    /// The first of these files that is not as it was, or that was not named.
    pub(crate) fn changed<'f>(&'f self, files: &'f [Named]) -> Option<&'f Path> {
        let same = |a: &Named, b: &Named| a.path == b.path && a.sha256 == b.sha256;
        let pairs = self.files.iter().zip(files);
        let unequal = pairs.clone().find(|(was, is)| !same(was, is)).map(|(_, is)| is.path.as_path());
        let beyond =
            self.files.get(files.len()).or(files.get(self.files.len())).map(|file| file.path.as_path());
        unequal.or(beyond)
    }
}

/// The content of a file that somebody else may have put there: a plain file of bounded size, not through a link.
/// `None` if there is none.
pub(crate) fn read(path: &Path) -> Result<Option<String>, Failure> {
    let failed =
        |err: io::Error| Failure::because(format!("could not read {}", path.display()), &err).code(2);
    let refused = |why: &str| {
        Failure::new(format!("{} cannot be a file of settings", path.display())).code(2).why(why.to_owned())
    };
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = match rustix::fs::open(path, flags, Mode::empty()) {
        Ok(file) => File::from(file),
        Err(rustix::io::Errno::NOENT | rustix::io::Errno::NOTDIR) => return Ok(None),
        Err(rustix::io::Errno::LOOP) => return Err(refused("it is a symbolic link")),
        Err(errno) => return Err(failed(errno.into())),
    };
    if !file.metadata().map_err(failed)?.is_file() {
        return Err(refused("it is not a plain file"));
    }
    let mut bytes = Vec::new();
    file.take(MOST + 1).read_to_end(&mut bytes).map_err(failed)?;
    if u64::try_from(bytes.len()).is_ok_and(|length| length > MOST) {
        return Err(refused("it has more than 1M bytes"));
    }
    String::from_utf8(bytes).map(Some).map_err(|_| refused("it is not text in UTF-8"))
}

/// Puts another file in the place of `path`, whole or not at all; a link there is replaced, not followed.
pub(crate) fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let folder = rustix::fs::open(folder, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let mode = rustix::fs::statat(&folder, name, rustix::fs::AtFlags::SYMLINK_NOFOLLOW)
        .ok()
        .filter(|seen| FileType::from_raw_mode(seen.st_mode) == FileType::RegularFile)
        .map_or(Mode::RUSR | Mode::WUSR, |seen| Mode::from_raw_mode(seen.st_mode & 0o777));
    let (fresh, file) = create(&folder)?;
    let mut file = File::from(file);
    let written = file
        .write_all(bytes)
        .and_then(|()| Ok(rustix::fs::fchmod(&file, mode)?))
        .and_then(|()| file.sync_all())
        .and_then(|()| Ok(rustix::fs::renameat(&folder, &fresh, &folder, name)?));
    if written.is_err() {
        let _ = rustix::fs::unlinkat(&folder, &fresh, rustix::fs::AtFlags::empty());
    }
    written
}

fn create(folder: &OwnedFd) -> io::Result<(String, OwnedFd)> {
    let mut random = [0u8; 8];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
    let name = format!(".airlock-{:016x}", u64::from_be_bytes(random));
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::openat(folder, name.as_str(), flags, Mode::RUSR | Mode::WUSR)?;
    Ok((name, file))
}

/// In hex.
pub(crate) fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn only_the_exact_content_is_trusted() {
        let home = tempfile::tempdir().unwrap();
        let trust = Trust::new(home.path());
        let path = Path::new("/srv/project/airlock.toml");
        assert_eq!(trust.standing(path, "a = 1\n", &[]).unwrap(), Standing::Unknown);

        trust.add(path, "a = 1\n", &[]).unwrap();

        assert_eq!(trust.standing(path, "a = 1\n", &[]).unwrap(), Standing::Trusted);
        let Standing::Changed(before) = trust.standing(path, "a = 1 \n", &[]).unwrap() else {
            panic!("not changed")
        };
        assert_eq!(before.text, "a = 1\n");
        assert_eq!(
            trust.standing(Path::new("/srv/other/airlock.toml"), "a = 1\n", &[]).unwrap(),
            Standing::Unknown
        );
        assert_eq!(trust.list().unwrap().len(), 1);
        assert!(trust.remove(path).unwrap() && !trust.remove(path).unwrap());
        assert_eq!(trust.standing(path, "a = 1\n", &[]).unwrap(), Standing::Unknown);
    }

    #[test]
    fn a_file_that_is_named_is_trusted_with_its_content() {
        let home = tempfile::tempdir().unwrap();
        let trust = Trust::new(home.path());
        let path = Path::new("/srv/project/airlock.toml");
        let file = |name: &str, text: &str| Named::new(Path::new(name), text.to_owned());
        let agreed = [file("/srv/project/a.toml", "a"), file("/srv/project/b.env", "b")];
        trust.add(path, "x", &agreed).unwrap();

        assert_eq!(trust.standing(path, "x", &agreed).unwrap(), Standing::Trusted);
        let record = trust.record(path).unwrap().unwrap();
        let [a, b] = &agreed;
        let more = [a.clone(), b.clone(), file("/srv/project/c.env", "")];
        for (files, changed) in [
            (vec![a.clone(), file("/srv/project/b.env", "B")], "/srv/project/b.env"),
            (vec![a.clone()], "/srv/project/b.env"),
            (vec![b.clone(), a.clone()], "/srv/project/b.env"),
            (more.to_vec(), "/srv/project/c.env"),
        ] {
            assert_eq!(record.changed(&files), Some(Path::new(changed)));
            assert!(matches!(trust.standing(path, "x", &files).unwrap(), Standing::Changed(_)));
        }
    }

    #[test]
    fn what_a_program_may_plant_is_not_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("airlock.toml");
        assert_eq!(read(&path).unwrap(), None);

        std::os::unix::fs::symlink("/etc/passwd", &path).unwrap();
        assert_eq!(read(&path).unwrap_err().why.as_deref(), Some("it is a symbolic link"));
        fs::remove_file(&path).unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, &path, Mode::RUSR).unwrap();
        assert_eq!(read(&path).unwrap_err().why.as_deref(), Some("it is not a plain file"));
        fs::remove_file(&path).unwrap();
        fs::write(&path, vec![b'#'; (1 << 20) + 1]).unwrap();
        assert_eq!(read(&path).unwrap_err().why.as_deref(), Some("it has more than 1M bytes"));
        fs::write(&path, b"\xff").unwrap();
        assert_eq!(read(&path).unwrap_err().why.as_deref(), Some("it is not text in UTF-8"));
    }

    #[test]
    fn a_link_is_replaced_and_what_it_led_to_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let (path, victim) = (folder.path().join("airlock.toml"), folder.path().join("victim"));
        fs::write(&victim, "precious").unwrap();
        std::os::unix::fs::symlink(&victim, &path).unwrap();

        replace(&path, b"new").unwrap();

        assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
        assert_eq!(read(&path).unwrap().as_deref(), Some("new"));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
    }
}
