//! Who runs the suite, and what a test does where it cannot run.

use std::{env, fs, path::Path};

/// Kinds of users whose sandboxes differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Who {
    /// Root of this host: ids inside are shifted to a range of their own.
    Root,
    /// An ordinary user with ranges of subordinate ids.
    Ranges,
    /// An ordinary user without: one id inside.
    Single,
}

/// Who runs this test.
pub fn who() -> Who {
    let uid = rustix::process::geteuid().as_raw();
    if uid == 0 {
        return Who::Root;
    }
    let name = user_name(uid);
    let owns = |line: &str| {
        let owner = line.split(':').next();
        owner == name.as_deref() || owner == Some(uid.to_string().as_str())
    };
    let ranges = fs::read_to_string("/etc/subuid").unwrap_or_default();
    match ranges.lines().any(owns) && has_program("newuidmap") {
        true => Who::Ranges,
        false => Who::Single,
    }
}

/// Whether a program is on the search path.
pub fn has_program(name: &str) -> bool {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path).chain([Path::new("/usr/sbin").into()]).any(|dir| dir.join(name).is_file())
}

/// Says that this host lacks what a test needs. Return after it. Where skipping is not allowed it fails.
pub fn skip(why: &str) {
    assert!(env::var_os("AIRLOCK_TEST_STRICT").is_none_or(|strict| strict != "1"), "not run: {why}");
    println!("skipped: {why}");
}

/// Says that a test is, by design, not about this kind of user. Return after it.
pub fn not_applicable(why: &str) {
    println!("not applicable to {:?}: {why}", who());
}

fn user_name(uid: u32) -> Option<String> {
    let passwd = fs::read_to_string("/etc/passwd").ok()?;
    let line = passwd.lines().find(|line| line.split(':').nth(2) == Some(uid.to_string().as_str()))?;
    line.split(':').next().map(str::to_owned)
}
