//! The machine under the tasks: who we are, Debian packages, test users, scratch directories.
//!
//! ```ignore
//! system::install(&[Package { name: "uidmap", program: "newuidmap", reason: "id ranges of ordinary users" }])?;
//! let scratch = Scratch::new("test")?; // gone when dropped
//! ```

use anyhow::{Context as _, Result, bail};
use std::{
    fs,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
    process::{self, Command, Stdio},
};

/// Where Debian puts programs. `PATH` may hold others' programs, which sandboxes and test users do not see.
const PROGRAMS: [&str; 4] = ["/usr/bin", "/usr/sbin", "/bin", "/sbin"];

/// A Debian package that a task needs.
pub(crate) struct Package {
    /// Its name.
    pub(crate) name: &'static str,
    /// A program that is there once the package is.
    pub(crate) program: &'static str,
    /// What it is needed for.
    pub(crate) reason: &'static str,
}

/// A directory that others may read, removed with everything in it when dropped.
pub(crate) struct Scratch(PathBuf);

/// Whether this process is root.
pub(crate) fn is_root() -> bool {
    fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0)
}

/// The program in Debian's directories.
pub(crate) fn program(name: &str) -> Option<PathBuf> {
    PROGRAMS.iter().map(|folder| Path::new(folder).join(name)).find(|path| path.exists())
}

/// Installs the packages that are missing. Fails with the command to type where this process may not.
pub(crate) fn install(packages: &[Package]) -> Result<()> {
    let missing: Vec<&Package> =
        packages.iter().filter(|package| program(package.program).is_none()).collect();
    if missing.is_empty() {
        return Ok(());
    }
    for package in &missing {
        println!("missing: {} ({})", package.name, package.reason);
    }
    let names: Vec<&str> = missing.iter().map(|package| package.name).collect();
    if !is_root() {
        bail!("packages are missing\n  fix:  sudo apt-get install {}", names.join(" "));
    }
    println!("installing {}", names.join(" "));
    // A machine that never asked for the lists of packages has none.
    if apt("install", &names).is_err() {
        apt("update", &[])?;
        apt("install", &names)?;
    }
    Ok(())
}

fn apt(verb: &str, names: &[&str]) -> Result<()> {
    let output = Command::new("apt-get")
        .args([verb, "--yes", "--quiet", "--quiet"])
        .args(if names.is_empty() { &[][..] } else { &["--no-install-recommends"] })
        .args(names)
        .env("DEBIAN_FRONTEND", "noninteractive")
        // Services of what is installed stay off: tasks start what they need themselves.
        .env("RUNLEVEL", "1")
        .stdin(Stdio::null())
        .output()
        .context("could not run apt-get")?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("apt-get {verb} {} failed\n{}", names.join(" "), said.trim_end());
    }
    Ok(())
}

impl Scratch {
    /// A new, empty directory below `/var/tmp`.
    pub(crate) fn new(what: &str) -> Result<Scratch> {
        Scratch::below(Path::new("/var/tmp"), what)
    }

    /// A new, empty directory below another.
    pub(crate) fn below(above: &Path, what: &str) -> Result<Scratch> {
        let path = above.join(format!("airlock-{what}.{}", process::id()));
        fs::create_dir(&path).with_context(|| format!("could not make {}", path.display()))?;
        let scratch = Scratch(path);
        readable(scratch.path())?;
        Ok(scratch)
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// A new directory in it that others may read.
    pub(crate) fn folder(&self, name: &str) -> Result<PathBuf> {
        let path = self.0.join(name);
        fs::create_dir_all(&path).with_context(|| format!("could not make {}", path.display()))?;
        readable(&path)?;
        Ok(path)
    }

    /// Copies a program into it, so that any user can run it.
    pub(crate) fn program(&self, from: &Path, name: &str) -> Result<PathBuf> {
        let path = self.0.join(name);
        fs::copy(from, &path)
            .with_context(|| format!("could not copy {} to {}", from.display(), path.display()))?;
        readable(&path)?;
        Ok(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(why) = remove(&self.0) {
            eprintln!("{why:#}");
        }
    }
}

/// Removes a tree, but nothing that is mounted in it.
pub(crate) fn remove(path: &Path) -> Result<()> {
    let status = Command::new("rm").args(["-rf", "--one-file-system", "--"]).arg(path).status();
    match status.context("could not run rm")?.success() {
        true => Ok(()),
        false => bail!("could not remove all of {}", path.display()),
    }
}

fn readable(path: &Path) -> Result<()> {
    fs::set_permissions(path, fs::Permissions::from_mode(0o755))
        .with_context(|| format!("could not let others read {}", path.display()))
}
