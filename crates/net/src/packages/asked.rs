//! What a request asks of a registry, by its path. Pure.

use super::rules::{Package, normal};
use airlock_protocol::policy::RegistryKind;

/// What is asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Asked {
    /// Which versions there are.
    Index(Package),
    /// About one version: when it was made (`.info` of Go).
    About(Package, String),
    /// A version itself.
    Artefact(Package, String),
    /// The digest of an index (`maven-metadata.xml.sha1`), by the ending of its file.
    Digest(&'static str),
    /// A file that looks like a package, of which nobody can tell which.
    Unknown,
    /// Something else.
    Other,
}

/// Endings of files that packages are made of.
const ARTEFACTS: [&str; 14] = [
    ".tgz", ".whl", ".crate", ".jar", ".war", ".aar", ".egg", ".zip", ".tar.gz", ".tar.bz2", ".tar.xz",
    ".pom", ".module", ".klib",
];

/// Endings of what Maven has beside its files.
const BESIDE: [&str; 5] = [".sha1", ".md5", ".sha256", ".sha512", ".asc"];

/// What `path` (decoded) asks of a registry of this kind whose index is at `base`.
pub(crate) fn asked(kind: RegistryKind, base: &str, path: &str) -> Asked {
    let found = match kind {
        RegistryKind::Npm => npm(base, path),
        RegistryKind::Pypi => pypi(base, path),
        RegistryKind::Crates => crates(base, path),
        RegistryKind::Go => go(base, path),
        RegistryKind::Maven => maven(base, path),
    };
    match found {
        Some(asked) => asked,
        None if ARTEFACTS.iter().any(|ending| path.to_ascii_lowercase().ends_with(ending)) => Asked::Unknown,
        None => Asked::Other,
    }
}

/// The part of `path` below `base`, without a slash in front.
fn below<'p>(base: &str, path: &'p str) -> Option<&'p str> {
    path.strip_prefix(base.trim_end_matches('/'))?.strip_prefix('/')
}

fn package(kind: RegistryKind, name: &str) -> Package {
    let name = match kind {
        RegistryKind::Pypi => normal(kind, name),
        // Its index has it in lower case, hyphens and underscores as they are.
        RegistryKind::Crates => name.to_ascii_lowercase(),
        _ => name.to_owned(),
    };
    Package { kind, name }
}

/// `name`, `@scope/name`; `name/-/file-1.2.3.tgz`.
fn npm(base: &str, path: &str) -> Option<Asked> {
    let kind = RegistryKind::Npm;
    if let Some((before, file)) = path.rsplit_once("/-/") {
        // Below the index where that is known; at any place of the host else.
        let name = below(base, before).unwrap_or(before).trim_start_matches('/');
        let name = npm_name(name).or_else(|| last_npm_name(name))?;
        let file = file.rsplit('/').next()?.strip_suffix(".tgz")?;
        let bare = name.rsplit('/').next()?;
        let version = file.strip_prefix(bare)?.strip_prefix('-')?;
        return Some(Asked::Artefact(package(kind, name), version.to_owned()));
    }
    let name = npm_name(below(base, path)?)?;
    Some(Asked::Index(package(kind, name)))
}

fn npm_name(name: &str) -> Option<&str> {
    let parts: Vec<&str> = name.split('/').collect();
    match parts.as_slice() {
        [one] if !one.is_empty() && !one.starts_with(['@', '-']) => Some(name),
        [scope, one] if scope.len() > 1 && scope.starts_with('@') && !one.is_empty() => Some(name),
        _ => None,
    }
}

/// The name at the end of a longer path.
fn last_npm_name(path: &str) -> Option<&str> {
    let (rest, last) = path.rsplit_once('/')?;
    let scope = rest.rsplit('/').next().unwrap_or(rest);
    match scope.starts_with('@') {
        true => path.get(path.len().checked_sub(scope.len() + 1 + last.len())?..),
        false => npm_name(last),
    }
}

/// `project/`; files at any place of the host, by their names.
fn pypi(base: &str, path: &str) -> Option<Asked> {
    let kind = RegistryKind::Pypi;
    let file = path.rsplit('/').next().unwrap_or(path);
    let file = file.strip_suffix(".metadata").or_else(|| file.strip_suffix(".asc")).unwrap_or(file);
    if let Some((name, version)) = python_file(file) {
        return Some(Asked::Artefact(package(kind, &name), version));
    }
    let project = below(base, path)?.trim_end_matches('/');
    (!project.is_empty() && !project.contains('/')).then(|| Asked::Index(package(kind, project)))
}

/// Name and version of a file: `name-version[-build]-tags.whl`, `name-version.tar.gz`.
pub(super) fn python_file(file: &str) -> Option<(String, String)> {
    if let Some(stem) = file.strip_suffix(".whl") {
        let parts: Vec<&str> = stem.split('-').collect();
        return match parts.as_slice() {
            [name, version, _, _, _] | [name, version, _, _, _, _] => Some(named(name, version)?),
            _ => None,
        };
    }
    let endings = [".tar.gz", ".zip", ".tar.bz2", ".tar.xz", ".tgz", ".egg"];
    let stem = endings.iter().find_map(|ending| file.strip_suffix(ending))?;
    if file.ends_with(".egg") {
        let mut parts = stem.split('-');
        return named(parts.next()?, parts.next()?);
    }
    // Old names hold hyphens; a version begins with a digit.
    let at = stem.match_indices('-').map(|(at, _)| at).rfind(|at| begins_with_digit(stem.get(at + 1..)))?;
    let (name, version) = stem.split_at_checked(at)?;
    named(name, version.strip_prefix('-')?)
}

fn begins_with_digit(text: Option<&str>) -> bool {
    text.is_some_and(|text| text.starts_with(|c: char| c.is_ascii_digit()))
}

fn named(name: &str, version: &str) -> Option<(String, String)> {
    (!name.is_empty() && !version.is_empty()).then(|| (name.to_owned(), version.to_owned()))
}

/// `se/rd/serde`; `…/serde/1.0.0/download`, `…/serde-1.0.0.crate`.
fn crates(base: &str, path: &str) -> Option<Asked> {
    let kind = RegistryKind::Crates;
    let segments: Vec<&str> = path.split('/').collect();
    if let [.., name, version, "download"] = segments.as_slice() {
        return Some(Asked::Artefact(package(kind, name), (*version).to_owned()));
    }
    let file = segments.last()?;
    if let Some(stem) = file.strip_suffix(".crate") {
        // A crate's name holds no `-` before a digit that begins a version with two dots in it; the first such is it.
        let at = stem.match_indices('-').map(|(at, _)| at).find(|at| is_version(stem.get(at + 1..)))?;
        let (name, version) = stem.split_at_checked(at)?;
        return Some(Asked::Artefact(package(kind, name), version.strip_prefix('-')?.to_owned()));
    }
    let rest: Vec<&str> = below(base, path)?.split('/').collect();
    let name = match rest.as_slice() {
        ["1", name] if name.len() == 1 => name,
        ["2", name] if name.len() == 2 => name,
        ["3", first, name] if name.len() == 3 && name.starts_with(first) => name,
        [one, two, name] if name.len() > 3 && name.starts_with(&format!("{one}{two}")) => name,
        _ => return None,
    };
    Some(Asked::Index(package(kind, name)))
}

fn is_version(text: Option<&str>) -> bool {
    let Some(text) = text else { return false };
    let numbers: Vec<&str> = text.splitn(3, '.').collect();
    let [major, minor, patch] = numbers.as_slice() else { return false };
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    is_number(major) && is_number(minor) && begins_with_digit(Some(patch))
}

/// `module/@v/list`, `module/@latest`, `module/@v/v1.2.3.info`, `.mod`, `.zip`.
fn go(base: &str, path: &str) -> Option<Asked> {
    let kind = RegistryKind::Go;
    let path = below(base, path).unwrap_or_else(|| path.trim_start_matches('/'));
    if path.starts_with("sumdb/") {
        return Some(Asked::Other);
    }
    if let Some(module) = path.strip_suffix("/@latest") {
        return Some(Asked::About(package(kind, module), "latest".to_owned()));
    }
    let (module, file) = path.split_once("/@v/")?;
    let package = package(kind, module);
    if file == "list" {
        return Some(Asked::Index(package));
    }
    let (version, ending) = file.rsplit_once('.')?;
    match ending {
        "info" => Some(Asked::About(package, version.to_owned())),
        "zip" => Some(Asked::Artefact(package, version.to_owned())),
        // What a version needs, as text; nothing of it is run.
        "mod" => Some(Asked::Other),
        _ => None,
    }
}

/// `group/artifact/maven-metadata.xml`, `group/artifact/1.0/artifact-1.0.jar`.
fn maven(base: &str, path: &str) -> Option<Asked> {
    let path = below(base, path).unwrap_or_else(|| path.trim_start_matches('/'));
    let (folder, file) = path.rsplit_once('/')?;
    if file == "maven-metadata.xml" {
        let (group, artifact) = folder.rsplit_once('/')?;
        // Of a snapshot: its own files are judged.
        if artifact.ends_with("-SNAPSHOT") {
            return Some(Asked::Other);
        }
        return Some(Asked::Index(coordinates(group, artifact)));
    }
    if let Some(ending) = BESIDE.into_iter().find(|ending| file.ends_with(ending)) {
        let is_of_index = file.strip_suffix(ending) == Some("maven-metadata.xml");
        return Some(if is_of_index { Asked::Digest(ending) } else { Asked::Other });
    }
    let (folder, version) = folder.rsplit_once('/')?;
    let (group, artifact) = folder.rsplit_once('/')?;
    file.strip_prefix(artifact)?.strip_prefix('-')?;
    Some(Asked::Artefact(coordinates(group, artifact), version.to_owned()))
}

/// `org.example:artifact`.
fn coordinates(group: &str, artifact: &str) -> Package {
    Package { kind: RegistryKind::Maven, name: format!("{}:{artifact}", group.replace('/', ".")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn index(kind: RegistryKind, name: &str) -> Asked {
        Asked::Index(Package { kind, name: name.to_owned() })
    }

    fn artefact(kind: RegistryKind, name: &str, version: &str) -> Asked {
        Asked::Artefact(Package { kind, name: name.to_owned() }, version.to_owned())
    }

    #[test]
    fn npm_asks_by_name_and_fetches_by_file() {
        let kind = RegistryKind::Npm;
        let ask = |path| asked(kind, "/npm", path);
        assert_eq!(ask("/npm/left-pad"), index(kind, "left-pad"));
        assert_eq!(ask("/npm/@types/node"), index(kind, "@types/node"));
        assert_eq!(ask("/npm/left-pad/-/left-pad-1.3.0.tgz"), artefact(kind, "left-pad", "1.3.0"));
        assert_eq!(
            ask("/npm/@types/node/-/node-1.0.0-rc.1.tgz"),
            artefact(kind, "@types/node", "1.0.0-rc.1")
        );
        assert_eq!(ask("/files/@types/node/-/node-1.0.0.tgz"), artefact(kind, "@types/node", "1.0.0"));
        assert_eq!(ask("/files/a/-/a-1.0.0.tgz"), artefact(kind, "a", "1.0.0"));
        assert_eq!(ask("/npm/a/-/b-1.0.0.tgz"), Asked::Unknown);
        assert_eq!(ask("/elsewhere/a-1.0.0.tgz"), Asked::Unknown);
        assert_eq!(ask("/npm/-/ping"), Asked::Other);
        assert_eq!(ask("/npm/left-pad/latest"), Asked::Other);
    }

    #[test]
    fn pip_asks_by_project_and_fetches_files_wherever_they_are() {
        let kind = RegistryKind::Pypi;
        let ask = |path| asked(kind, "/simple/", path);
        assert_eq!(ask("/simple/Zope.Interface/"), index(kind, "zope-interface"));
        assert_eq!(ask("/simple/"), Asked::Other);
        let wheel = artefact(kind, "typing-extensions", "4.1.0");
        assert_eq!(ask("/packages/ab/typing_extensions-4.1.0-py3-none-any.whl"), wheel);
        assert_eq!(ask("/p/typing_extensions-4.1.0-py3-none-any.whl.metadata"), wheel);
        assert_eq!(ask("/p/typing-extensions-4.1.0.tar.gz"), wheel);
        assert_eq!(ask("/p/py-1-2-3.0.zip"), artefact(kind, "py-1-2", "3.0"));
        assert_eq!(ask("/p/strange.whl"), Asked::Unknown);
    }

    #[test]
    fn cargo_asks_by_letters_and_fetches_by_version() {
        let kind = RegistryKind::Crates;
        let ask = |path| asked(kind, "/index", path);
        assert_eq!(ask("/index/se/rd/serde_json"), index(kind, "serde_json"));
        assert_eq!(ask("/index/3/s/syn"), index(kind, "syn"));
        assert_eq!(ask("/index/1/a"), index(kind, "a"));
        assert_eq!(ask("/index/config.json"), Asked::Other);
        assert_eq!(ask("/api/v1/crates/serde/1.0.1/download"), artefact(kind, "serde", "1.0.1"));
        assert_eq!(ask("/crates/sha-1/sha-1-0.10.1.crate"), artefact(kind, "sha-1", "0.10.1"));
        assert_eq!(ask("/c/a-1.0.0-beta-2.crate"), artefact(kind, "a", "1.0.0-beta-2"));
        assert_eq!(ask("/c/nothing.crate"), Asked::Unknown);
    }

    #[test]
    fn go_asks_for_a_list_and_for_times() {
        let kind = RegistryKind::Go;
        let ask = |path| asked(kind, "", path);
        let package = |name: &str| Package { kind, name: name.to_owned() };
        assert_eq!(ask("/example.com/!m/@v/list"), Asked::Index(package("example.com/!m")));
        assert_eq!(
            ask("/example.com/m/@v/v1.0.0.info"),
            Asked::About(package("example.com/m"), "v1.0.0".into())
        );
        assert_eq!(ask("/example.com/m/@latest"), Asked::About(package("example.com/m"), "latest".into()));
        assert_eq!(ask("/example.com/m/@v/v1.0.0.zip"), artefact(kind, "example.com/m", "v1.0.0"));
        assert_eq!(ask("/example.com/m/@v/v1.0.0.mod"), Asked::Other);
        assert_eq!(ask("/sumdb/sum.example/tile/8/0/x.zip"), Asked::Other);
        assert_eq!(ask("/x.zip"), Asked::Unknown);
    }

    #[test]
    fn maven_asks_for_metadata_and_fetches_by_coordinates() {
        let kind = RegistryKind::Maven;
        let ask = |path| asked(kind, "/maven2", path);
        assert_eq!(ask("/maven2/org/example/lib/maven-metadata.xml"), index(kind, "org.example:lib"));
        assert_eq!(ask("/maven2/org/example/lib/1.0/lib-1.0.jar"), artefact(kind, "org.example:lib", "1.0"));
        assert_eq!(
            ask("/maven2/org/example/lib/1.0/lib-1.0-sources.jar"),
            artefact(kind, "org.example:lib", "1.0")
        );
        assert_eq!(ask("/maven2/org/example/lib/1.0/lib-1.0.pom.sha1"), Asked::Other);
        assert_eq!(ask("/maven2/org/example/lib/maven-metadata.xml.sha1"), Asked::Digest(".sha1"));
        assert_eq!(ask("/maven2/org/example/lib/1.0/other.jar"), Asked::Unknown);
    }

    proptest! {
        #[test]
        fn no_path_panics(path in "(/|-|@|\\.|[a-z0-9]|%|\\.whl|\\.tgz|\\.crate|/-/|/@v/|\\.tar\\.gz|é){0,20}", base in "(/[a-z]{0,3}){0,2}/?") {
            for kind in RegistryKind::ALL {
                let _ = asked(kind, &base, &path);
            }
        }
    }
}
