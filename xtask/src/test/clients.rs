//! Clients that are neither of this workspace nor installed: one in Go, built here, and a tunnel whose package would
//! install a device manager with it, unpacked here.

use crate::{
    system::{self, Package},
    workspace::{succeed, top},
};
use anyhow::{Context as _, Result};
use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

/// Where Go's own archives are unpacked to.
const GO: &str = "/usr/local/go/bin/go";

/// Puts `goget` and `iodine/` into the folder.
pub(super) fn provide(folder: &Path) -> Result<()> {
    goget(folder)?;
    iodine(folder)
}

fn goget(folder: &Path) -> Result<()> {
    let cache = top().join("target/go");
    let mut build = Command::new(go()?);
    build.args(["build", "-trimpath", "-o"]).arg(folder.join("goget")).arg("main.go");
    build.current_dir(top().join("tests/internet/goget"));
    // Without libc it asks the name server itself.
    build.env("CGO_ENABLED", "0").env("GO111MODULE", "off").env("GOFLAGS", "").env("GOCACHE", cache);
    succeed(&mut build)
}

/// A Go that is there, or Debian's.
fn go() -> Result<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let places = env::split_paths(&path).map(|folder| folder.join("go")).chain([PathBuf::from(GO)]);
    if let Some(found) = places.into_iter().find(|place| place.is_file()) {
        return Ok(found);
    }
    system::install(&[Package { name: "golang-go", program: "go", reason: "a client in Go" }])?;
    system::program("go").context("golang-go has no program go")
}

fn iodine(folder: &Path) -> Result<()> {
    let download = folder.join("download");
    fs::create_dir_all(&download).with_context(|| format!("could not make {}", download.display()))?;
    let fetch = || {
        let mut apt = Command::new("apt-get");
        apt.args(["download", "--quiet", "--quiet", "-o", "APT::Sandbox::User=root", "iodine"]);
        succeed(apt.current_dir(&download))
    };
    // A machine that never asked for the lists of packages has none.
    if fetch().is_err() {
        succeed(Command::new("apt-get").args(["update", "--quiet", "--quiet"]))?;
        fetch()?;
    }
    for entry in fs::read_dir(&download).with_context(|| format!("could not read {}", download.display()))? {
        succeed(Command::new("dpkg-deb").arg("--extract").arg(entry?.path()).arg(folder.join("iodine")))?;
    }
    Ok(())
}
