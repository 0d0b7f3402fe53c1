//! Answers that count for good: `--always` writes the rule down.
//!
//! Into the file a person names; else into the project's trusted `airlock.toml`, if the question came from a rule in it (and
//! since a person did it, the file stays trusted, and so does a named file that belongs to the trusted ones); else into `$AIRLOCK_HOME/answers.toml`, whose rules answer the same question
//! in later sandboxes ([`crate::policy`]).

use crate::{
    config::{
        self, Project,
        trust::{self, Named, Trust},
    },
    failure::Failure,
    policy, registries,
    spec::Host,
};
use airlock_engine::store::Sandbox;
use airlock_gate::{groups::Discovered, host::Target, judge::Judge, policy::Reader};
use airlock_protocol::{
    approval::{Given, Pending},
    policy::{Origin, Ports, Rule, Verdict},
};
use std::{
    io,
    path::{Path, PathBuf},
};

/// What the sandbox that asks was made from.
#[derive(Debug, Clone)]
pub(crate) struct Where {
    /// The state directory.
    pub(crate) home: PathBuf,
    /// The project's directory, if it has one.
    pub(crate) project: Option<PathBuf>,
}

impl Where {
    pub(crate) fn of(sandbox: &Sandbox) -> Result<Where, Failure> {
        let project = sandbox.spec()?.workspace.path().cloned();
        Ok(Where { home: sandbox.store().home().to_owned(), project })
    }

    /// The project's file, if it is as it was trusted.
    fn trusted(&self) -> Option<Project> {
        config::trusted(self.project.as_ref()?, &Trust::new(&self.home))
    }
}

/// Writes the rule down, and says where.
pub(crate) fn keep(
    pending: &Pending,
    given: Given,
    file: Option<&Path>,
    place: &Where,
) -> Result<PathBuf, Failure> {
    if !matches!(pending.kind.as_str(), "connect" | "request") {
        return Err(Failure::new("only rules about crossings to the outside can be written down").code(1));
    }
    let rule = rule(pending, given);
    if let Some(file) = file {
        let text = match config::read_named(file) {
            Ok(text) => text,
            Err(_) if !file.exists() => String::new(),
            Err(failure) => return Err(failure),
        };
        let path = config::absolute(file)?;
        let written = with_rule(&path, &text, &rule)?;
        let trusted = place.trusted();
        write(&path, &written)?;
        if let Some(trusted) = trusted {
            trust_again(trusted, &path, (&text, &written), place)?;
        }
        return Ok(path);
    }
    if let Some(written) = in_project(&rule, place)? {
        return Ok(written);
    }
    let path = policy::answers_path(&place.home);
    let text = match std::fs::read_to_string(&path) {
        Ok(text) => text,
        Err(err) if err.kind() == io::ErrorKind::NotFound => ABOUT.to_owned(),
        Err(err) => return Err(Failure::because(format!("could not read {}", path.display()), &err)),
    };
    write(&path, &with_rule(&path, &text, &rule)?)
}

const ABOUT: &str = "\
# Answers given for good. A rule here answers where a sandbox's own rules would ask, and opens nothing that they deny.
";

fn rule(pending: &Pending, given: Given) -> Rule {
    let verdict = match given {
        Given::Approved => Verdict::Allow,
        Given::Refused => Verdict::Deny,
    };
    let (hosts, ports) = (vec![pending.host.clone()], vec![Ports::one(pending.port)]);
    Rule { request: pending.grant.clone(), ..Rule::new(verdict, hosts, ports, Origin::default()) }
}

/// The project's file with the rule in it, if the question came from there and the file is as it was trusted. Whatever
/// stands in the way, there is still another place to write to.
fn in_project(rule: &Rule, place: &Where) -> Result<Option<PathBuf>, Failure> {
    let Some(project) = place.trusted() else { return Ok(None) };
    let (path, text) = (project.path.clone(), project.text.clone());
    if !asks(&path, &text, rule) {
        return Ok(None);
    }
    let Ok(written) = with_rule(&path, &text, rule) else { return Ok(None) };
    write(&path, &written)?;
    trust_again(project, &path, (&text, &written), place)?;
    Ok(Some(path))
}

/// A person changed `path` of a trusted project, which said `before`: it stays trusted. Another file is no matter.
fn trust_again(
    mut project: Project,
    path: &Path,
    (before, written): (&str, &str),
    place: &Where,
) -> Result<(), Failure> {
    let is_same = |other: &Path| other == path || real(other) == real(path);
    if is_same(&project.path) && project.text == before {
        project.text = written.to_owned();
    } else if let Some(file) =
        project.files.iter_mut().find(|file| is_same(&file.path) && file.text == before)
    {
        *file = Named::new(&file.path, written.to_owned());
    } else {
        return Ok(());
    }
    Trust::new(&place.home).add(&project.path, &project.text, &project.files)
}

fn real(path: &Path) -> Option<PathBuf> {
    std::fs::canonicalize(path).ok()
}

/// Whether the `[[rule]]`s of a file ask about what the rule answers.
fn asks(path: &Path, text: &str, rule: &Rule) -> bool {
    let known = discovered(path, text);
    let Ok(file) = (Reader { discovered: &known }).toml(&path.display().to_string(), text) else {
        return false;
    };
    let Ok(judge) = Judge::compile(&file.policy) else { return false };
    let asked = |host: &String, ports: &Ports| {
        let target = host.parse::<Target>().ok()?;
        judge.asking(rule, &target, ports.first)
    };
    rule.hosts.iter().zip(&rule.ports).all(|(host, ports)| asked(host, ports).is_some())
}

fn with_rule(path: &Path, text: &str, rule: &Rule) -> Result<String, Failure> {
    let known = discovered(path, text);
    let reader = Reader { discovered: &known };
    reader.write_rule(&path.display().to_string(), text, rule).map_err(policy::failure)
}

/// The groups of package clients, which the file may name.
fn discovered(path: &Path, text: &str) -> Discovered {
    let directory = path.parent().unwrap_or(Path::new("/")).to_owned();
    registries::discover(&Host { directory, variables: crate::spec::variables(), ..Host::default() }, [text])
}

fn write(path: &Path, text: &str) -> Result<PathBuf, Failure> {
    trust::replace(path, text.as_bytes())
        .map_err(|err| Failure::because(format!("could not write {}", path.display()), &err))?;
    Ok(path.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    struct World {
        folder: tempfile::TempDir,
    }

    impl World {
        fn new(text: &str) -> World {
            let folder = tempfile::tempdir().unwrap();
            fs::create_dir_all(folder.path().join("project")).unwrap();
            fs::create_dir(folder.path().join("home")).unwrap();
            let world = World { folder };
            fs::write(world.file(), text).unwrap();
            world
        }

        fn file(&self) -> PathBuf {
            self.folder.path().join("project/airlock.toml")
        }

        fn place(&self) -> Where {
            Where { home: self.folder.path().join("home"), project: Some(self.folder.path().join("project")) }
        }

        fn trust(&self) -> Trust {
            let trust = Trust::new(&self.place().home);
            let seen = config::look(self.file(), fs::read_to_string(self.file()).unwrap()).unwrap();
            trust.add(&seen.path, &seen.text, &seen.files).unwrap();
            trust
        }

        fn is_trusted(&self) -> bool {
            self.place().trusted().is_some()
        }
    }

    fn pending() -> Pending {
        Pending {
            id: "3f9a0c2e7b14-1".into(),
            sandbox: "web".into(),
            since: String::new(),
            until: String::new(),
            kind: "connect".into(),
            host: "api.example.com".into(),
            port: 443,
            ..Pending::default()
        }
    }

    const ASKS: &str =
        "memory = \"1G\"\n\n# ask about these\n[[rule]]\nask = \"*.example.com\"\nports = [443]\n";

    #[test]
    fn a_question_from_a_trusted_file_is_answered_in_it_and_it_stays_trusted() {
        let world = World::new(ASKS);
        world.trust();

        let path = keep(&pending(), Given::Approved, None, &world.place()).unwrap();

        assert_eq!(path, world.file());
        let text = fs::read_to_string(&path).unwrap();
        let allow = text.find("allow = \"api.example.com\"").unwrap();
        assert!(allow < text.find("ask = ").unwrap() && text.contains("# ask about these"), "{text}");
        assert!(world.is_trusted());
    }

    #[test]
    fn a_file_that_changed_meanwhile_is_left_alone() {
        let world = World::new(ASKS);
        world.trust();
        let changed = format!("{ASKS}\n[[rule]]\nallow = \"evil.example\"\n");
        fs::write(world.file(), &changed).unwrap();

        let path = keep(&pending(), Given::Approved, None, &world.place()).unwrap();

        assert_eq!(path, world.place().home.join("answers.toml"));
        assert_eq!(fs::read_to_string(world.file()).unwrap(), changed);
        assert!(!world.is_trusted());
    }

    #[test]
    fn a_trusted_file_that_a_person_names_stays_trusted_and_a_planted_change_does_not() {
        let world = World::new("policy = \"rules.toml\"\n");
        let rules = world.file().with_file_name("rules.toml");
        fs::write(&rules, ASKS).unwrap();
        world.trust();

        keep(&pending(), Given::Approved, Some(&rules), &world.place()).unwrap();
        assert!(world.is_trusted());

        let planted =
            format!("{}\n[[rule]]\nallow = \"evil.example\"\n", fs::read_to_string(&rules).unwrap());
        fs::write(&rules, planted).unwrap();
        let other = Pending { host: "b.example.com".into(), ..pending() };
        keep(&other, Given::Approved, Some(&rules), &world.place()).unwrap();
        assert!(!world.is_trusted());
    }

    #[test]
    fn a_question_from_elsewhere_is_answered_in_the_persons_own_file() {
        let world = World::new("memory = \"1G\"\n");
        world.trust();

        let path = keep(&pending(), Given::Refused, None, &world.place()).unwrap();
        keep(&Pending { host: "b.example.com".into(), ..pending() }, Given::Approved, None, &world.place())
            .unwrap();

        let text = fs::read_to_string(path).unwrap();
        let expected = format!(
            "{ABOUT}\n[[rule]]\ndeny = \"api.example.com\"\nports = [443]\n\n[[rule]]\nallow = \"b.example.com\"\nports = [443]\n"
        );
        assert_eq!(text, expected);
    }

    #[test]
    fn a_named_file_is_written_whether_it_exists_or_not() {
        let world = World::new(ASKS);
        let file = world.folder.path().join("rules.toml");
        assert_eq!(keep(&pending(), Given::Approved, Some(&file), &world.place()).unwrap(), file);
        assert_eq!(
            fs::read_to_string(&file).unwrap(),
            "[[rule]]\nallow = \"api.example.com\"\nports = [443]\n"
        );
    }
}
