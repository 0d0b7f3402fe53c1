//! What a project's file wants beyond what a person gives every sandbox anyway. Pure but for the size of this host.
//!
//! A file that nobody has trusted counts only if that is nothing: it may lower limits, close the workspace, deny hosts.

use super::{
    paths,
    project::Settings,
    reader::{Source, Value},
};
use crate::{args::WorkspaceMode, failure::Failure};
use airlock_engine::plan::bounds;

/// The keys of a file that go beyond `own`, in the order of the alphabet. A key that is not known to narrow does.
pub(crate) fn beyond(source: Source<'_>, asked: &Settings, own: &Settings) -> Result<Vec<String>, Failure> {
    let (memory, pids, nofile) = bounds::usual();
    let top = source.parse()?;
    let narrows = |value: &Value<'_, '_>| match value.key() {
        "cap_drop" | "deny" | "hostname" | "name" | "network" | "read_only" | "user" | "workdir" => true,
        // Another image may have to be fetched, and brings programs that run by themselves.
        "image" => asked.image.as_deref() == Some("host") || asked.image == own.image,
        "workspace" => openness(asked.workspace) <= openness(own.workspace),
        "memory" => asked.memory <= own.memory.or(Some(memory)),
        "pids" => asked.pids <= own.pids.or(Some(pids)),
        "nofile" => asked.nofile <= own.nofile.or(Some(nofile)),
        "cpus" => own.cpus.is_none_or(|most| asked.cpus <= Some(most)),
        "timeout" => own.timeout.is_none_or(|most| asked.timeout <= Some(most)),
        "disk" => own
            .disk
            .is_none_or(|most| asked.disk.is_some_and(|disk| disk.by == most.by && disk.bytes <= most.bytes)),
        "paths" => paths::only_add(&asked.paths),
        "rule" => value.json().as_array().is_some_and(|rules| rules.iter().all(only_denies)),
        _ => false,
    };
    let mut keys: Vec<String> =
        source.entries(&top).filter(|value| !narrows(value)).map(|value| value.key().to_owned()).collect();
    keys.sort();
    Ok(keys)
}

fn only_denies(rule: &serde_json::Value) -> bool {
    rule.get("deny").is_some() && rule.get("allow").is_none() && rule.get("ask").is_none()
}

/// How much of the workspace a mode opens; the default is a copy.
fn openness(mode: Option<WorkspaceMode>) -> u8 {
    match mode {
        Some(WorkspaceMode::None) => 0,
        Some(WorkspaceMode::Ro) => 1,
        None | Some(WorkspaceMode::Cow) => 2,
        Some(WorkspaceMode::Rw) => 3,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::project;
    use std::path::Path;

    fn settings(text: &str) -> Settings {
        project::parse(Source { name: "x.toml", text }, Path::new("/p")).unwrap()
    }

    fn keys(text: &str, own: &str) -> Vec<String> {
        beyond(Source { name: "airlock.toml", text }, &settings(text), &settings(own)).unwrap()
    }

    #[test]
    fn lower_limits_a_closed_workspace_and_denials_narrow() {
        let text = "workspace = \"ro\"\nmemory = \"64M\"\npids = 10\nnofile = 100\ncpus = 1\ntimeout = \"5m\"\n\
                    disk = \"1G,tmpfs\"\ndeny = [\"x.example\"]\nread_only = true\ncap_drop = [\"ALL\"]\nnetwork = \"none\"\n\
                    [[rule]]\ndeny = \"y.example\"\n[paths]\nhidden = [\"a\"]\nprotect_ci = true\n";
        assert_eq!(keys(text, ""), Vec::<String>::new());
    }

    #[test]
    fn whatever_opens_something_goes_beyond() {
        for (text, key) in [
            ("workspace = \"rw\"\n", "workspace"),
            ("image = \"a/b\"\n", "image"),
            ("setup = [\"make\"]\n", "setup"),
            ("rootfs = \"tree\"\n", "rootfs"),
            ("memory = \"900000G\"\n", "memory"),
            ("pids = 4097\n", "pids"),
            ("allow = [\"x.example\"]\n", "allow"),
            ("ask = [\"x.example\"]\n", "ask"),
            ("mount = [\"/srv:/srv\"]\n", "mount"),
            ("env = [\"TOKEN\"]\n", "env"),
            ("env_file = [\"a\"]\n", "env_file"),
            ("script = \"a.star\"\n", "script"),
            ("policy = [\"a.toml\"]\n", "policy"),
            ("secret = [\"TOKEN@x.example\"]\n", "secret"),
            ("[secrets.TOKEN]\nhosts = [\"x.example\"]\n", "secrets"),
            ("nested = true\n", "nested"),
            ("audit_only = true\n", "audit_only"),
            ("publish = [80]\n", "publish"),
            ("cap_add = [\"SYS_PTRACE\"]\n", "cap_add"),
            ("keep = true\n", "keep"),
            ("[paths]\nhidden = [\"a\"]\nshown = [\"b\"]\n", "paths"),
            ("[paths]\nunprotected = [\".envrc\"]\n", "paths"),
            ("[groups]\ngithub = [\"evil.example\"]\n", "groups"),
            ("[[rule]]\ndeny = \"a.example\"\n[[rule]]\nallow = \"b.example\"\n", "rule"),
        ] {
            assert_eq!(keys(text, ""), [key], "{text}");
        }
    }

    #[test]
    fn what_the_person_wrote_is_the_measure() {
        assert_eq!(
            keys("workspace = \"rw\"\npids = 5000\n", "workspace = \"rw\"\npids = 6000\n"),
            Vec::<String>::new()
        );
        assert_eq!(keys("workspace = \"ro\"\n", "workspace = \"none\"\n"), ["workspace"]);
        let own = "memory = \"64M\"\ncpus = 1\ntimeout = \"1m\"\ndisk = \"1G,tmpfs\"\nnofile = 64\n";
        let text = "memory = \"65M\"\ncpus = 2\ntimeout = \"2m\"\ndisk = \"2G,tmpfs\"\nnofile = 65\n";
        assert_eq!(keys(text, own), ["cpus", "disk", "memory", "nofile", "timeout"]);
    }
}
