//! Configuration: the only reader of configuration files.
//!
//! | file | whose | what |
//! |---|---|---|
//! | `$AIRLOCK_HOME/config.toml` | the person's own | how connections leave, how people are asked, how the ledger is kept; the flags of `run`, and rules |
//! | `airlock.toml` of the project | anybody's who can write there; counts once trusted, or where it only narrows | the flags of `run`, and rules |
//!
//! A file that a person names (`--config`, `--policy`) is trusted by naming it.

mod find;
pub(crate) mod images;
mod narrow;
pub(crate) mod own;
pub(crate) mod paths;
pub(crate) mod project;
pub(crate) mod reader;
pub(crate) mod schema;
pub(crate) mod trust;

use crate::failure::Failure;
pub(crate) use narrow::beyond;
use own::Own;
use project::Settings;
use reader::Source;
use std::{
    io,
    path::{Path, PathBuf},
};
use trust::{Named, Record, Standing, Trust};

/// The name of a project's file.
pub(crate) const PROJECT_FILE: &str = "airlock.toml";
/// The most files that a project's file may name.
const MOST_NAMED: usize = 64;

/// A file of settings and rules that counts.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Project {
    pub(crate) path: PathBuf,
    pub(crate) text: String,
    pub(crate) settings: Settings,
    /// The files that the settings name, read once: what was checked is what counts.
    pub(crate) files: Vec<Named>,
}

impl Project {
    /// What a file that the settings name says.
    pub(crate) fn named(&self, path: &Path) -> Option<&str> {
        self.files.iter().find(|file| file.path == path).map(|file| file.text.as_str())
    }
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
        Err(err) => {
            let failure = Failure::because(format!("could not read {}", path.display()), &err).code(2);
            return Err(
                failure.fix("make it a text file that you may read, or remove it: the defaults count then")
            );
        }
    };
    let name = path.display().to_string();
    let source = Source { name: &name, text: &text };
    let (own, flags) = (own::parse(source, home)?, own::flags(source, home)?);
    Ok(Own { run: Some(opened(path, text.clone(), flags, read_named)?), ..own })
}

/// Where the person's own settings are.
pub(crate) fn own_path(home: &Path) -> PathBuf {
    home.join("config.toml")
}

/// The project's file that counts. One that nobody trusted counts if it wants nothing beyond what `own` gives anyway.
pub(crate) fn project(wanted: Wanted<'_>, home: &Path, own: &Settings) -> Result<Option<Project>, Failure> {
    match wanted {
        Wanted::Nothing => Ok(None),
        Wanted::Named(path) => {
            let (path, text) = (absolute(path)?, read_named(path)?);
            let settings = flags(&path, &text)?;
            opened(path, text, settings, read_named).map(Some)
        }
        Wanted::Here(directory) => {
            let trust = Trust::new(home);
            let Some((path, text)) = find_here(directory, &trust)? else { return Ok(None) };
            let Some(record) = trust.record(&path)? else {
                return narrowing(path, text, directory, &trust, own).map(Some);
            };
            if !record.is_of(&text) {
                return Err(changed(&path, &record));
            }
            let project = look(path, text)?;
            match record.changed(&project.files) {
                Some(file) => Err(changed(file, &record)),
                None => Ok(Some(project)),
            }
        }
    }
}

/// A file that nobody trusted. It may stand in front of one that was trusted, farther up, and that may say more.
fn narrowing(
    path: PathBuf,
    text: String,
    directory: &Path,
    trust: &Trust,
    own: &Settings,
) -> Result<Project, Failure> {
    if nearest_record(directory, trust).is_ok() {
        return Err(untrusted(&path, &[]));
    }
    let settings = flags(&path, &text)?;
    let beyond = beyond(Source { name: &path.display().to_string(), text: &text }, &settings, own)?;
    if !beyond.is_empty() {
        return Err(untrusted(&path, &beyond));
    }
    Ok(Project { path, text, settings, files: Vec::new() })
}

fn flags(path: &Path, text: &str) -> Result<Settings, Failure> {
    let folder = path.parent().unwrap_or(Path::new("/"));
    project::parse(Source { name: &path.display().to_string(), text }, folder)
}

/// A project's file and the files it names, as they are now, trusted or not.
pub(crate) fn look(path: PathBuf, text: String) -> Result<Project, Failure> {
    let from = path.clone();
    let settings = flags(&path, &text)?;
    opened(path, text, settings, |file| {
        let gone = || {
            Failure::new(format!("there is no {}, which {} names", file.display(), from.display()))
                .code(2)
                .fix("put it back, or take it out of the file; --no-config runs without both")
        };
        trust::read(file)?.ok_or_else(gone)
    })
}

/// A project's file that is the one trusted, in all its parts.
pub(crate) fn trusted(directory: &Path, trust: &Trust) -> Option<Project> {
    let (path, text) = find_here(directory, trust).ok()??;
    let project = look(path, text).ok()?;
    let standing = trust.standing(&project.path, &project.text, &project.files).ok()?;
    (standing == Standing::Trusted).then_some(project)
}

fn opened(
    path: PathBuf,
    text: String,
    settings: Settings,
    read: impl Fn(&Path) -> Result<String, Failure>,
) -> Result<Project, Failure> {
    let mut files: Vec<Named> = Vec::new();
    for file in settings.policy.iter().chain(&settings.env_file).chain(&settings.script) {
        if files.len() == MOST_NAMED {
            let what = format!("{} names more than {MOST_NAMED} files", path.display());
            return Err(Failure::new(what).code(2).fix("put their rules or variables together"));
        }
        if !files.iter().any(|known| known.path == *file) {
            files.push(Named::new(file, read(file)?));
        }
    }
    Ok(Project { path, text, settings, files })
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
    std::fs::read_to_string(path).map_err(|err| {
        let fix = match err.kind() {
            io::ErrorKind::NotFound => "look at the path: a relative one is meant from the current directory",
            _ => "name a text file that you may read",
        };
        Failure::because(format!("could not read {}", path.display()), &err).code(2).fix(fix)
    })
}

pub(crate) fn absolute(path: &Path) -> Result<PathBuf, Failure> {
    std::path::absolute(path)
        .map_err(|err| Failure::because(format!("{} is no path", path.display()), &err).code(2))
}

/// `beyond` are the keys that want more than is given anyway.
fn untrusted(path: &Path, beyond: &[String]) -> Failure {
    let why = match beyond {
        [] => "it lies where sandboxed programs may write, so it counts only as you have seen it".to_owned(),
        _ => format!(
            "untrusted it may only narrow what you allow, and it has {}",
            beyond.iter().map(|key| format!("`{key}`")).collect::<Vec<_>>().join(", ")
        ),
    };
    Failure::new(format!("{} is not trusted", path.display()))
        .why(why)
        .fix("airlock trust (shows it and asks), or --no-config to run without it")
}

/// `file` is the project's own or one that it names.
fn changed(file: &Path, before: &Record) -> Failure {
    let what = format!("{} has changed since you trusted it ({})", file.display(), before.trusted_at);
    let why = match file == before.path {
        true => {
            "it lies where sandboxed programs may write, so it counts only as you have seen it".to_owned()
        }
        false => format!("{} names it, and both count only as you have seen them", before.path.display()),
    };
    Failure::new(what)
        .why(why)
        .fix("airlock trust (shows the change and asks), or --no-config to run without it")
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
            project(Wanted::Here(&self.folder.path().join(directory)), &self.home(), &Settings::default())
        }
    }

    #[test]
    fn a_file_counts_below_its_folder_once_trusted_and_no_longer_when_changed() {
        let world = World::new();
        assert_eq!(world.here("project/sub").unwrap(), None);
        let text = "memory = \"1G\"\nallow = [\"example.com\"]\n";
        fs::write(world.file(), text).unwrap();
        let refused = world.here("project/sub").unwrap_err();
        assert!(refused.what.ends_with("airlock.toml is not trusted"));
        assert!(refused.why.is_some_and(|why| why.ends_with("and it has `allow`")));

        Trust::new(&world.home()).add(&world.file(), text, &[]).unwrap();
        let found = world.here("project/sub").unwrap().unwrap();
        assert_eq!((found.path, found.settings.memory), (world.file(), Some(1 << 30)));

        fs::write(world.file(), "memory = \"64M\"\n").unwrap();
        assert!(world.here("project").unwrap_err().what.contains("has changed since you trusted it"));
    }

    #[test]
    fn a_nearer_file_that_somebody_planted_is_not_passed_over() {
        let world = World::new();
        fs::write(world.file(), "").unwrap();
        Trust::new(&world.home()).add(&world.file(), "", &[]).unwrap();
        fs::write(world.folder.path().join("project/sub/airlock.toml"), "memory = \"64M\"\n").unwrap();
        assert!(world.here("project/sub").unwrap_err().what.ends_with("sub/airlock.toml is not trusted"));
    }

    #[test]
    fn a_trusted_file_that_is_gone_is_missed() {
        let world = World::new();
        Trust::new(&world.home()).add(&world.file(), "pids = 10\n", &[]).unwrap();
        assert!(world.here("project").unwrap_err().what.ends_with("is gone, and you had trusted it"));
    }

    #[test]
    fn files_that_a_trusted_file_names_count_as_they_were_seen() {
        let world = World::new();
        let (rules, env) = (world.file().with_file_name("rules.toml"), world.file().with_file_name("ci.env"));
        let text = "policy = \"rules.toml\"\nenv_file = [\"ci.env\"]\n";
        fs::write(world.file(), text).unwrap();
        fs::write(&rules, "").unwrap();
        fs::write(&env, "A=1\n").unwrap();
        // A record of before such files were kept vouches for none of them.
        Trust::new(&world.home()).add(&world.file(), text, &[]).unwrap();
        assert!(world.here("project").unwrap_err().what.contains("rules.toml has changed"));

        let seen = look(world.file(), text.to_owned()).unwrap();
        Trust::new(&world.home()).add(&world.file(), text, &seen.files).unwrap();
        assert_eq!(world.here("project").unwrap().unwrap().named(&env), Some("A=1\n"));

        fs::write(&env, "SECRET\n").unwrap();
        let refused = world.here("project").unwrap_err();
        assert!(refused.what.contains("ci.env has changed since you trusted it"), "{refused}");
        fs::write(&env, "A=1\n").unwrap();
        fs::rename(&rules, world.file().with_file_name("moved.toml")).unwrap();
        assert!(world.here("project").unwrap_err().what.starts_with("there is no "));
        std::os::unix::fs::symlink("moved.toml", &rules).unwrap();
        let linked = world.here("project").unwrap_err();
        assert_eq!(linked.why.as_deref(), Some("it is a symbolic link"));
    }

    #[test]
    fn a_named_file_is_trusted_by_naming_it() {
        let world = World::new();
        fs::write(world.file(), "pids = 10\n").unwrap();
        let none = Settings::default();
        let named = project(Wanted::Named(&world.file()), &world.home(), &none).unwrap().unwrap();
        assert_eq!(named.settings.pids, Some(10));
        assert_eq!(project(Wanted::Nothing, &world.home(), &none).unwrap(), None);
    }

    #[test]
    fn a_file_that_nobody_trusted_counts_where_it_only_narrows() {
        let world = World::new();
        fs::write(world.file(), "memory = \"64M\"\n[[rule]]\ndeny = \"example.com\"\n").unwrap();
        assert_eq!(world.here("project").unwrap().unwrap().settings.memory, Some(64 << 20));
    }

    #[test]
    fn no_own_file_means_the_defaults() {
        let world = World::new();
        assert_eq!(own(&world.home()).unwrap(), Own::default());
        fs::write(own_path(&world.home()), "pids = 7\n[ledger]\ndurable = true\n").unwrap();
        let own = own(&world.home()).unwrap();
        assert!(own.ledger.durable);
        assert_eq!(own.flags().pids, Some(7));
    }
}
