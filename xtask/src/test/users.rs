//! The ordinary users that tests and benchmarks run as: one with ranges of subordinate ids, one without.

use crate::{system, workspace::succeed};
use anyhow::{Context as _, Result, bail};
use std::{
    fs,
    os::unix::fs::chown,
    path::{Path, PathBuf},
    process::Command,
};

/// Has ranges of subordinate ids: `newuidmap` gives its sandboxes many ids.
pub(crate) const WITH_RANGES: Wanted = Wanted { name: "airlock-test", ranges: Ranges::Own };

/// Has none: its sandboxes know a single id.
pub(crate) const SINGLE: Wanted = Wanted { name: "airlock-single", ranges: Ranges::None };

/// How many ids a range has.
const IDS: u32 = 65536;

/// A user as the tests want it.
pub(crate) struct Wanted {
    name: &'static str,
    ranges: Ranges,
}

enum Ranges {
    Own,
    None,
}

/// A user as it is.
pub(crate) struct User {
    /// Login name.
    pub(crate) name: &'static str,
    /// User id.
    pub(crate) uid: u32,
    /// Group id.
    pub(crate) gid: u32,
    /// Home directory.
    pub(crate) home: PathBuf,
}

/// Makes the user if it is not there, and gives it ranges or takes them away. Needs root.
pub(crate) fn ensure(wanted: &Wanted) -> Result<User> {
    let name = wanted.name;
    if find(name)?.is_none() {
        succeed(Command::new("useradd").args(["--create-home", "--shell", "/bin/bash", name]))?;
    }
    for (file, add, remove) in
        [("/etc/subuid", "--add-subuids", "--del-subuids"), ("/etc/subgid", "--add-subgids", "--del-subgids")]
    {
        let text = text_of(file)?;
        match (&wanted.ranges, range_of(&text, name)) {
            (Ranges::Own, None) => change(name, add, first_free(&text))?,
            (Ranges::None, Some(first)) => change(name, remove, first)?,
            _ => {}
        }
    }
    find(name)?.with_context(|| format!("useradd made no user {name}"))
}

/// Empties the home directory, unless another run of the tests is in it. It is this run's, too, until the file is dropped.
pub(crate) fn clean_home(user: &User) -> Result<fs::File> {
    let path = format!("/run/lock/{}", user.name);
    let in_use = fs::File::create(&path).with_context(|| format!("could not make {path}"))?;
    if in_use.try_lock().is_ok() {
        empty_home(user)?;
    }
    in_use.lock_shared().with_context(|| format!("could not lock {path}"))?;
    Ok(in_use)
}

fn empty_home(user: &User) -> Result<()> {
    // Emptied as a whole, so it must be what we made: never some other directory that the name was given.
    if user.home != Path::new("/home").join(user.name) {
        bail!(
            "the home of {} is {}: remove this user, and the tests make it anew",
            user.name,
            user.home.display()
        );
    }
    system::remove(&user.home)?;
    fs::create_dir(&user.home).with_context(|| format!("could not make {}", user.home.display()))?;
    chown(&user.home, Some(user.uid), Some(user.gid))
        .with_context(|| format!("could not give {} to {}", user.home.display(), user.name))
}

fn find(name: &'static str) -> Result<Option<User>> {
    let text = fs::read_to_string("/etc/passwd").context("could not read /etc/passwd")?;
    Ok(text.lines().find_map(|line| parse(line, name)))
}

fn parse(line: &str, name: &'static str) -> Option<User> {
    let mut fields = line.strip_prefix(name)?.strip_prefix(':')?.split(':').skip(1);
    let (uid, gid) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
    Some(User { name, uid, gid, home: PathBuf::from(fields.nth(1)?) })
}

/// usermod refuses to make the file, so that it is made here.
fn text_of(file: &str) -> Result<String> {
    if !Path::new(file).exists() {
        fs::write(file, "").with_context(|| format!("could not make {file}"))?;
    }
    fs::read_to_string(file).with_context(|| format!("could not read {file}"))
}

fn change(name: &str, option: &str, first: u32) -> Result<()> {
    let range = format!("{first}-{}", first.saturating_add(IDS - 1));
    succeed(Command::new("usermod").args([option, &range, name]))
}

/// The first id of the user's range in the text of `/etc/subuid`.
fn range_of(text: &str, name: &str) -> Option<u32> {
    ranges(text).find(|(owner, _, _)| *owner == name).map(|(_, first, _)| first)
}

/// The first id after all ranges.
fn first_free(text: &str) -> u32 {
    ranges(text).map(|(_, first, count)| first.saturating_add(count)).max().unwrap_or(0).max(100_000)
}

fn ranges(text: &str) -> impl Iterator<Item = (&str, u32, u32)> {
    text.lines().filter_map(|line| {
        let (owner, numbers) = line.split_once(':')?;
        let (first, count) = numbers.split_once(':')?;
        Some((owner, first.parse().ok()?, count.trim().parse().ok()?))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SUBUID: &str = "ada:100000:65536\nbroken\nbob:300000:1000\n";

    #[test]
    fn a_new_range_begins_after_all_others() {
        assert_eq!(first_free(SUBUID), 301_000);
        assert_eq!(first_free(""), 100_000);
    }

    #[test]
    fn a_range_is_found_by_its_owner() {
        assert_eq!(range_of(SUBUID, "bob"), Some(300_000));
        assert_eq!(range_of(SUBUID, "bo"), None);
    }

    #[test]
    fn a_user_is_read_from_its_line() {
        let user =
            parse("airlock-test:x:1001:1002:,,,:/home/airlock-test:/bin/bash", "airlock-test").unwrap();

        assert_eq!((user.uid, user.gid, user.home), (1001, 1002, PathBuf::from("/home/airlock-test")));
        assert!(parse("airlock-test2:x:1:1::/:/bin/sh", "airlock-test").is_none());
    }
}
