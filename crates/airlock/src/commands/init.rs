//! `airlock init`: a commented `airlock.toml` for this project.

use crate::{
    args::InitArgs,
    config::PROJECT_FILE,
    failure::{Failure, Outcome},
    say::{Voice, say},
    spec::Host,
};
use std::{
    fs,
    io::{self, Write},
    path::Path,
};

/// Every setting, commented out.
const TEMPLATE: &str = include_str!("init.toml");
/// What in a project tells that it uses a registry, and the registry's group.
const SIGNS: [(&str, &str); 7] = [
    ("package.json", "npm"),
    ("Cargo.toml", "crates"),
    ("pyproject.toml", "pypi"),
    ("requirements.txt", "pypi"),
    ("go.mod", "go"),
    ("pom.xml", "maven"),
    ("build.gradle", "maven"),
];

pub(crate) fn init(args: &InitArgs) -> Outcome {
    let directory = Host::current()?.directory;
    let text = text(&directory);
    if args.print {
        io::stdout().write_all(text.as_bytes())?;
        return Ok(0);
    }
    let path = directory.join(PROJECT_FILE);
    let mut options = fs::OpenOptions::new();
    let options = options.write(true).create_new(!args.force).create(args.force).truncate(args.force);
    let mut file = options.open(&path).map_err(|err| match err.kind() {
        io::ErrorKind::AlreadyExists => Failure::new(format!("{} is there already", path.display()))
            .code(1)
            .fix("edit it, or replace it: airlock init --force"),
        _ => Failure::because(format!("could not write {}", path.display()), &err),
    })?;
    file.write_all(text.as_bytes())
        .map_err(|err| Failure::because(format!("could not write {}", path.display()), &err))?;
    say(Voice::Normal, &format!("wrote {PROJECT_FILE}; `airlock trust` lets what it opens count"));
    Ok(0)
}

/// The file, with the registries that this project seems to use.
fn text(directory: &Path) -> String {
    let mut groups: Vec<&str> =
        SIGNS.iter().filter(|(sign, _)| directory.join(sign).exists()).map(|(_, group)| *group).collect();
    groups.dedup();
    match groups.is_empty() {
        true => TEMPLATE.to_owned(),
        false => {
            let words: Vec<String> = groups.iter().map(|group| format!("{group:?}")).collect();
            TEMPLATE.replace(r#"# allow = ["npm"]"#, &format!("# allow = [{}]", words.join(", ")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{
        beyond,
        project::{KEYS, Settings, parse},
        reader::Source,
    };

    /// The settings that stand behind `# `.
    fn uncommented() -> String {
        let is_setting = |line: &&str| line.contains(" = ") || line.starts_with("# [");
        let lines = TEMPLATE.lines().filter_map(|line| line.strip_prefix("# ").filter(|_| is_setting(&line)));
        lines.map(|line| format!("{line}\n")).collect()
    }

    #[test]
    fn as_it_is_written_it_wants_nothing() {
        let source = Source { name: "airlock.toml", text: TEMPLATE };
        let settings = parse(source, Path::new("/p")).unwrap();
        assert_eq!(settings, Settings::default());
        assert_eq!(beyond(source, &settings, &settings).unwrap(), Vec::<String>::new());
    }

    #[test]
    fn every_setting_is_in_it_and_can_be_switched_on() {
        let text = uncommented();
        let source = Source { name: "airlock.toml", text: &text };
        parse(source, Path::new("/p")).unwrap();
        airlock_gate::policy::parse_toml("airlock.toml", &text).unwrap();
        let table = source.parse().unwrap();
        for key in KEYS {
            assert!(source.entries(&table).any(|value| value.key() == key), "{key}");
        }
    }

    #[test]
    fn registries_of_the_project_are_proposed() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("Cargo.toml"), "").unwrap();
        fs::write(folder.path().join("package.json"), "").unwrap();
        assert!(text(folder.path()).contains("# allow = [\"npm\", \"crates\"]"));
    }
}
