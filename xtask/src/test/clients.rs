//! Clients that are neither of this workspace nor installed: one in Go, built here; a tunnel whose package would install a device
//! manager with it, unpacked here; and what the registries of Python and JavaScript have.

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

/// Puts `goget`, `iodine/`, `deno`, `undici/`, `clouds/` and `packages/` into the folder.
pub(super) fn provide(folder: &Path) -> Result<()> {
    goget(folder)?;
    iodine(folder)?;
    javascript(folder)?;
    clouds(folder)?;
    packages(folder)
}

/// What the smallest Debian is made of, as `airlock images make` keeps it: the tests can download nothing.
fn packages(folder: &Path) -> Result<()> {
    let top = folder.join("packages");
    for part in ["state/lists/partial", "cache/archives/partial"] {
        fs::create_dir_all(top.join(part)).with_context(|| format!("could not make {part}"))?;
    }
    fs::write(top.join("state/status"), "").context("could not write an empty status")?;
    let place = |name: &str, part: &str| format!("-o{name}={}", top.join(part).display());
    let ask = |words: &[&str]| {
        let mut apt = Command::new("apt-get");
        apt.args([place("Dir::State", "state"), place("Dir::State::status", "state/status")]);
        apt.arg(place("Dir::Cache", "cache"))
            .args(["-oAPT::Sandbox::User=root", "-oAPT::Install-Recommends=false"]);
        succeed(apt.args(["--quiet", "--quiet", "--yes"]).args(words))
    };
    ask(&["update"])?;
    ask(&["--download-only", "install", "?essential", "hello"])?;
    succeed(Command::new("chmod").args(["--recursive", "a+rX"]).arg(&top))
}

/// Another runtime than node, and another client than node's own, by the clients of their registries.
fn javascript(folder: &Path) -> Result<()> {
    let download = folder.join("javascript");
    fs::create_dir_all(&download).with_context(|| format!("could not make {}", download.display()))?;
    let script = "pip3 download --quiet --disable-pip-version-check --no-deps deno && python3 -m zipfile -e deno-*.whl deno && \
                  mv deno/deno-*.data/scripts/deno ../deno && chmod 755 ../deno && \
                  npm pack --silent undici@6 >/dev/null && tar xzf undici-*.tgz && mv package ../undici && chmod -R a+rX ../undici";
    succeed(Command::new("sh").args(["-c", script]).current_dir(&download))?;
    fs::remove_dir_all(&download).with_context(|| format!("could not remove {}", download.display()))
}

/// Libraries of Amazon, Google and Azure, for Python and for node, and a client of WebSockets for node.
fn clouds(folder: &Path) -> Result<()> {
    let place = folder.join("clouds");
    fs::create_dir_all(&place).with_context(|| format!("could not make {}", place.display()))?;
    // The interpreter that sandboxes have: some of it is compiled.
    let script = "/usr/bin/python3 -m pip install --quiet --quiet --disable-pip-version-check --root-user-action=ignore --target python \
                  google-auth requests azure-identity azure-cli-core boto3 && \
                  npm install --silent --no-audit --no-fund --prefix . google-auth-library@9 ws@8 >/dev/null && chmod -R a+rX .";
    succeed(Command::new("sh").args(["-c", script]).current_dir(&place))
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
