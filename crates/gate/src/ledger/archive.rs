//! Ledgers of sandboxes that are gone: `$AIRLOCK_HOME/ledger/<id>/`, with `about.json` beside the files.
//!
//! A ledger outlives its sandbox, within bounds: the oldest go first.

use super::files;
use airlock_protocol::{Name, SandboxId};
use serde::{Deserialize, Serialize};
use std::{
    fs,
    io::{self, ErrorKind},
    os::unix::fs::DirBuilderExt as _,
    path::{Path, PathBuf},
};

/// Bytes of all archived ledgers together.
const MOST_BYTES: u64 = 256 * 1024 * 1024;
/// Archived ledgers.
const MOST_SANDBOXES: usize = 1000;
/// An archived ledger smaller than this is measured together with others, every sixteenth time.
const SMALL: u64 = 1024 * 1024;

/// Whose ledger it was.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct About {
    /// The sandbox's id.
    pub id: SandboxId,
    /// Its name.
    pub name: Name,
    /// When it was removed (RFC 3339, UTC).
    pub ended_at: String,
}

/// One archived ledger.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Archived {
    /// Whose.
    pub about: About,
    /// Where its files are: for [`Reader::open`](super::Reader::open) and [`verify::folder`](super::verify::folder).
    pub folder: PathBuf,
}

/// No archived ledger, or more than one, is meant.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotFound {
    /// None at all.
    #[error("no sandbox has left a ledger yet")]
    NoneYet,
    /// None that is called so.
    #[error("no sandbox called {selector:?} has left a ledger")]
    NoSuch {
        /// What was looked for.
        selector: String,
    },
    /// Several begin so.
    #[error("several sandboxes begin with {selector:?}: {}", candidates.join(", "))]
    Ambiguous {
        /// What was looked for.
        selector: String,
        /// Their names and ids.
        candidates: Vec<String>,
    },
}

/// Moves the ledger of a sandbox that is being removed into `archives`; nothing happens if it has none.
///
/// May be repeated if it was interrupted.
pub fn archive(sandbox_folder: &Path, archives: &Path, id: &SandboxId, name: &Name) -> io::Result<()> {
    if !files::are_in(sandbox_folder) {
        return Ok(());
    }
    let folder = archives.join(id.as_str());
    fs::DirBuilder::new().recursive(true).mode(0o700).create(&folder)?;
    let ended_at = format!("{:.6}", jiff::Timestamp::now());
    let about = About { id: id.clone(), name: name.clone(), ended_at };
    fs::write(folder.join("about.json"), serde_json::to_vec(&about)?)?;
    let mut bytes = 0;
    // The oldest first: whoever reads meanwhile finds the current one where it was.
    let numbers: Vec<usize> = files::numbers(sandbox_folder).collect();
    for number in numbers.into_iter().rev() {
        let from = files::path(sandbox_folder, number);
        bytes += fs::symlink_metadata(&from)?.len();
        fs::rename(from, files::path(&folder, number))?;
    }
    let is_measured = bytes >= SMALL || id.as_str().ends_with('0');
    prune(archives, if is_measured { Some(MOST_BYTES) } else { None }, MOST_SANDBOXES)
}

/// Every archived ledger, the oldest first.
pub fn list(archives: &Path) -> io::Result<Vec<Archived>> {
    let entries = match fs::read_dir(archives) {
        Ok(entries) => entries,
        Err(err) if err.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(err) => return Err(err),
    };
    let mut found: Vec<Archived> = entries.filter_map(|entry| archived(entry.ok()?.path())).collect();
    found.sort_by(|a, b| (&a.about.ended_at, &a.about.id).cmp(&(&b.about.ended_at, &b.about.id)));
    Ok(found)
}

/// The one meant by an id, a name or an unambiguous beginning of either; `-` and the empty text mean the newest.
/// Where several had the same name, the newest of them is meant.
pub fn find<'a>(archived: &'a [Archived], selector: &str) -> Result<&'a Archived, NotFound> {
    if selector.is_empty() || selector == "-" {
        return archived.last().ok_or(NotFound::NoneYet);
    }
    let newest_first = || archived.iter().rev();
    let is_exact = |one: &&Archived| [one.about.id.as_str(), one.about.name.as_str()].contains(&selector);
    if let Some(found) = newest_first().find(is_exact) {
        return Ok(found);
    }
    let begins = |one: &&Archived| {
        one.about.id.as_str().starts_with(selector) || one.about.name.as_str().starts_with(selector)
    };
    let matches: Vec<&Archived> = newest_first().filter(begins).collect();
    match matches.as_slice() {
        [] => Err(NotFound::NoSuch { selector: selector.chars().take(64).collect() }),
        [one] => Ok(one),
        several => Err(NotFound::Ambiguous {
            selector: selector.to_owned(),
            candidates: several
                .iter()
                .take(10)
                .map(|one| format!("{} ({})", one.about.name, one.about.id))
                .collect(),
        }),
    }
}

fn archived(folder: PathBuf) -> Option<Archived> {
    let about: About = serde_json::from_slice(&fs::read(folder.join("about.json")).ok()?).ok()?;
    let is_its_own = folder.file_name()? == about.id.as_str();
    is_its_own.then_some(Archived { about, folder })
}

/// Removes the oldest until the bounds hold. Bytes are counted only if they have a bound: that costs a look at each.
fn prune(archives: &Path, most_bytes: Option<u64>, most: usize) -> io::Result<()> {
    let count = fs::read_dir(archives)?.count();
    if count <= most && most_bytes.is_none() {
        return Ok(());
    }
    let all = list(archives)?;
    let mut excess = all.len().saturating_sub(most);
    let sizes: Vec<u64> = all.iter().map(|one| size(&one.folder)).collect();
    let mut bytes: u64 = sizes.iter().sum();
    for (one, size) in all.iter().zip(sizes) {
        let is_too_much = most_bytes.is_some_and(|most| bytes > most);
        if excess == 0 && !is_too_much {
            break;
        }
        match fs::remove_dir_all(&one.folder) {
            Err(err) if err.kind() != ErrorKind::NotFound => return Err(err),
            _ => {}
        }
        excess = excess.saturating_sub(1);
        bytes = bytes.saturating_sub(size);
    }
    Ok(())
}

fn size(folder: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(folder) else { return 0 };
    entries.filter_map(|entry| Some(entry.ok()?.metadata().ok()?.len())).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::{Ledger, Reader, verify};
    use airlock_protocol::ledger::Entry;

    struct Home(tempfile::TempDir);

    impl Home {
        fn archives(&self) -> PathBuf {
            self.0.path().join("ledger")
        }

        /// A sandbox that wrote one record and was removed.
        fn gone(&self, id: &str, name: &str) {
            let folder = self.0.path().join("sandboxes").join(id);
            fs::create_dir_all(&folder).unwrap();
            let id: SandboxId = id.parse().unwrap();
            let ledger = Ledger::open(&folder, id.clone(), false).unwrap();
            ledger.append(Entry::Torn { bytes: 1 }).unwrap();
            archive(&folder, &self.archives(), &id, &name.parse().unwrap()).unwrap();
            fs::remove_dir(folder).unwrap();
        }
    }

    #[test]
    fn a_removed_sandbox_leaves_its_ledger_and_is_found_by_id_name_beginning_or_as_the_newest() {
        let home = Home(tempfile::tempdir().unwrap());
        assert_eq!(find(&list(&home.archives()).unwrap(), "-"), Err(NotFound::NoneYet));
        home.gone("3f9a0c2e7b14", "web");
        home.gone("3f9b0c2e7b14", "worker");

        let all = list(&home.archives()).unwrap();

        let name = |selector| find(&all, selector).map(|found| found.about.name.as_str().to_owned());
        assert_eq!(name("web"), Ok("web".into()));
        assert_eq!(name("3f9b"), Ok("worker".into()));
        assert_eq!(name("wor"), Ok("worker".into()));
        assert_eq!(name("-"), Ok("worker".into()));
        assert_eq!(name(""), Ok("worker".into()));
        assert!(matches!(name("w"), Err(NotFound::Ambiguous { candidates, .. }) if candidates.len() == 2));
        assert_eq!(name("x"), Err(NotFound::NoSuch { selector: "x".into() }));
        let folder = &find(&all, "web").unwrap().folder;
        assert!(verify::folder(folder).unwrap().is_intact());
        assert!(Reader::open(folder).unwrap().next().unwrap().is_some());
    }

    #[test]
    fn a_sandbox_without_a_ledger_leaves_nothing() {
        let home = Home(tempfile::tempdir().unwrap());
        let id: SandboxId = "3f9a0c2e7b14".parse().unwrap();
        archive(home.0.path(), &home.archives(), &id, &"web".parse().unwrap()).unwrap();
        assert!(!home.archives().exists());
    }

    #[test]
    fn the_oldest_archives_go_first() {
        let home = Home(tempfile::tempdir().unwrap());
        for number in 0..9 {
            home.gone(&format!("00000000000{number}"), &format!("n{number}"));
        }
        let names = || -> Vec<String> {
            list(&home.archives()).unwrap().into_iter().map(|one| one.about.name.to_string()).collect()
        };

        prune(&home.archives(), None, 5).unwrap();
        assert_eq!(names(), ["n4", "n5", "n6", "n7", "n8"]);

        let one = size(&home.archives().join("000000000008"));
        prune(&home.archives(), Some(2 * one), 5).unwrap();
        assert_eq!(names(), ["n7", "n8"]);
    }

    #[test]
    fn an_interrupted_archiving_is_finished_by_the_next() {
        let home = Home(tempfile::tempdir().unwrap());
        home.gone("3f9a0c2e7b14", "web");
        let (left, id) = (home.0.path().join("left"), "3f9a0c2e7b14".parse().unwrap());
        fs::create_dir(&left).unwrap();
        let done = home.archives().join("3f9a0c2e7b14");
        fs::rename(done.join("ledger.jsonl"), left.join("ledger.jsonl")).unwrap();

        archive(&left, &home.archives(), &id, &"web".parse().unwrap()).unwrap();

        assert_eq!(verify::folder(&done).unwrap().records, 1);
    }
}
