//! Configuration: the only reader of configuration files.
//!
//! | file | whose | what |
//! |---|---|---|
//! | `$AIRLOCK_HOME/config.toml` | the person's own | how connections leave, how people are asked, how the ledger is kept |
//! | `airlock.toml` of the project | anybody's who can write there; counts once trusted | the flags of `run`, and rules |
//!
//! A file that a person names (`--config`, `--policy`) is trusted by naming it.

mod find;
pub(crate) mod own;
pub(crate) mod project;
pub(crate) mod reader;
pub(crate) mod trust;

use crate::failure::Failure;
use own::Own;
use project::Settings;
use reader::Source;
use std::{
    io,
    path::{Path, PathBuf},
};
use trust::{Standing, Trust};

/// The name of a project's file.
pub(crate) const PROJECT_FILE: &str = "airlock.toml";

/// A file of settings and rules that counts.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Project {
    pub(crate) path: PathBuf,
    pub(crate) text: String,
    pub(crate) settings: Settings,
}

/// Which project's file was asked for.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Wanted<'a> {
    /// The one that counts in this directory, if there is one and it is trusted.
    Here(&'a Path),
    /// This one, whatever it says.
    Named(&'a Path),
    /// None.
    Nothing,
}

/// The person's own settings.
pub(crate) fn own(home: &Path) -> Result<Own, Failure> {
    let path = own_path(home);
    let text = match std::fs::read_to_string(&path) {
        Ok(text) => text,
        Err(err) if err.kind() == io::ErrorKind::NotFound => return Ok(Own::default()),
        Err(err) => return Err(Failure::because(format!("could not read {}", path.display()), &err).code(2)),
    };
    own::parse(Source { name: &path.display().to_string(), text: &text }, home)
}

/// Where the person's own settings are.
pub(crate) fn own_path(home: &Path) -> PathBuf {
    home.join("config.toml")
}

/// The project's file that counts.
pub(crate) fn project(wanted: Wanted<'_>, home: &Path) -> Result<Option<Project>, Failure> {
    let (path, text) = match wanted {
        Wanted::Nothing => return Ok(None),
        Wanted::Named(path) => (absolute(path)?, read_named(path)?),
        Wanted::Here(directory) => {
            let trust = Trust::new(home);
            let Some((path, text)) = find_here(directory, &trust)? else { return Ok(None) };
            match trust.standing(&path, &text)? {
                Standing::Trusted => (path, text),
                standing => return Err(untrusted(&path, &standing)),
            }
        }
    };
    let folder = path.parent().unwrap_or(Path::new("/"));
    let settings = project::parse(Source { name: &path.display().to_string(), text: &text }, folder)?;
    Ok(Some(Project { path, text, settings }))
}

/// The nearest `airlock.toml` of this directory, trusted or not.
pub(crate) fn find_here(directory: &Path, trust: &Trust) -> Result<Option<(PathBuf, String)>, Failure> {
    for folder in find::folders(directory, std::env::home_dir().as_deref()) {
        let path = folder.join(PROJECT_FILE);
        if let Some(text) = trust::read(&path)? {
            return Ok(Some((path, text)));
        }
        // Whoever can delete a file can also loosen what it says.
        if trust.record(&path)?.is_some() {
            return Err(Failure::new(format!("{} is gone, and you had trusted it", path.display()))
                .why("without it this sandbox would have other limits and rules than you agreed to")
                .fix("put it back, or `airlock trust --remove` it, or --no-config for this run"));
        }
    }
    Ok(None)
}

/// The nearest file of this directory that was trusted, there or not.
pub(crate) fn nearest_record(directory: &Path, trust: &Trust) -> Result<PathBuf, Failure> {
    for folder in find::folders(directory, std::env::home_dir().as_deref()) {
        let path = folder.join(PROJECT_FILE);
        if trust.record(&path)?.is_some() {
            return Ok(path);
        }
    }
    Err(Failure::new("no airlock.toml is trusted here").code(1).fix("airlock trust --list"))
}

/// The text of a file that a person named.
pub(crate) fn read_named(path: &Path) -> Result<String, Failure> {
    std::fs::read_to_string(path)
        .map_err(|err| Failure::because(format!("could not read {}", path.display()), &err).code(2))
}

pub(crate) fn absolute(path: &Path) -> Result<PathBuf, Failure> {
    std::path::absolute(path)
        .map_err(|err| Failure::because(format!("{} is no path", path.display()), &err).code(2))
}

fn untrusted(path: &Path, standing: &Standing) -> Failure {
    let failure = match standing {
        Standing::Changed(before) => Failure::new(format!(
            "{} has changed since you trusted it ({})",
            path.display(),
            before.trusted_at
        )),
        _ => Failure::new(format!("{} is not trusted", path.display())),
    };
    failure
        .why("it lies where sandboxed programs may write, so it counts only as you have seen it")
        .fix("airlock trust (shows it and asks), or --no-config to run without it")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, os::unix::fs::PermissionsExt};

    struct World {
        folder: tempfile::TempDir,
    }

    impl World {
        fn new() -> World {
            let folder = tempfile::tempdir().unwrap();
            fs::create_dir_all(folder.path().join("project/sub")).unwrap();
            fs::create_dir(folder.path().join("home")).unwrap();
            fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
            World { folder }
        }

        fn home(&self) -> PathBuf {
            self.folder.path().join("home")
        }

        fn file(&self) -> PathBuf {
            self.folder.path().join("project/airlock.toml")
        }

        fn here(&self, directory: &str) -> Result<Option<Project>, Failure> {
            project(Wanted::Here(&self.folder.path().join(directory)), &self.home())
        }
    }

    #[test]
    fn a_file_counts_below_its_folder_once_trusted_and_no_longer_when_changed() {
        let world = World::new();
        assert_eq!(world.here("project/sub").unwrap(), None);
        fs::write(world.file(), "memory = \"1G\"\n").unwrap();
        assert!(world.here("project/sub").unwrap_err().what.ends_with("airlock.toml is not trusted"));

        Trust::new(&world.home()).add(&world.file(), "memory = \"1G\"\n").unwrap();
        let found = world.here("project/sub").unwrap().unwrap();
        assert_eq!((found.path, found.settings.memory), (world.file(), Some(1 << 30)));

        fs::write(world.file(), "memory = \"64G\"\n").unwrap();
        assert!(world.here("project").unwrap_err().what.contains("has changed since you trusted it"));
    }

    #[test]
    fn a_nearer_file_that_somebody_planted_is_not_passed_over() {
        let world = World::new();
        fs::write(world.file(), "").unwrap();
        Trust::new(&world.home()).add(&world.file(), "").unwrap();
        fs::write(world.folder.path().join("project/sub/airlock.toml"), "memory = \"64G\"\n").unwrap();
        assert!(world.here("project/sub").unwrap_err().what.ends_with("sub/airlock.toml is not trusted"));
    }

    #[test]
    fn a_trusted_file_that_is_gone_is_missed() {
        let world = World::new();
        Trust::new(&world.home()).add(&world.file(), "pids = 10\n").unwrap();
        assert!(world.here("project").unwrap_err().what.ends_with("is gone, and you had trusted it"));
    }

    #[test]
    fn a_named_file_is_trusted_by_naming_it() {
        let world = World::new();
        fs::write(world.file(), "pids = 10\n").unwrap();
        let named = project(Wanted::Named(&world.file()), &world.home()).unwrap().unwrap();
        assert_eq!(named.settings.pids, Some(10));
        assert_eq!(project(Wanted::Nothing, &world.home()).unwrap(), None);
    }

    #[test]
    fn no_own_file_means_the_defaults() {
        let world = World::new();
        assert_eq!(own(&world.home()).unwrap(), Own::default());
        fs::write(own_path(&world.home()), "[ledger]\ndurable = true\n").unwrap();
        assert!(own(&world.home()).unwrap().ledger.durable);
    }
}
