//! Where the product is.

use std::{
    env,
    path::{Path, PathBuf},
    process::Command,
    sync::OnceLock,
};

/// The `airlock` binary: `AIRLOCK_BIN`, or the one built beside this test, built now if it is not there.
pub fn binary() -> &'static Path {
    static FOUND: OnceLock<PathBuf> = OnceLock::new();
    FOUND.get_or_init(|| match env::var_os("AIRLOCK_BIN") {
        Some(named) => PathBuf::from(named),
        None => beside_this_test(),
    })
}

fn beside_this_test() -> PathBuf {
    let test = env::current_exe().expect("this test has a path");
    let profile = test.ancestors().nth(2).expect("tests lie in target/PROFILE/deps");
    let airlock = profile.join("airlock");
    if !airlock.exists() {
        build(profile);
    }
    assert!(airlock.exists(), "there is no {}: set AIRLOCK_BIN", airlock.display());
    airlock
}

fn build(profile: &Path) {
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(["build", "--package", "airlock"]).current_dir(env!("CARGO_MANIFEST_DIR"));
    cargo.env("CARGO_TARGET_DIR", profile.parent().expect("a profile lies in a target directory"));
    if profile.ends_with("release") {
        cargo.arg("--release");
    }
    assert!(cargo.status().expect("cargo runs").success(), "airlock could not be built");
}
