//! What a project's `airlock.toml` (or `--config FILE`) says besides rules: the keys are the flags of `run`, with `_`
//! for `-`. Rules are read by `gate`. Pure.
//!
//! ```toml
//! workspace = "ro"
//! memory = "4G"
//! env = { CI = "1" }
//! allow = ["npm"]
//!
//! [[rule]]
//! ask = "*.example.org"
//! ```

use super::{
    paths,
    reader::{Source, Value},
};
use crate::{
    args::{
        Backend, Network, Pull, RunArgs, WorkspaceMode,
        mount::{self, MountWord},
        values,
        values::EnvWord,
    },
    failure::Failure,
    secrets::table::{self, Table, Whose},
};
use airlock_protocol::{
    Name,
    files::{Paths, Provided, VolumeUse},
    spec::{Disk, Monitor, Publish, Restart, Tmpfs},
};
use clap::ValueEnum;
use std::{
    path::{Path, PathBuf},
    time::Duration,
};

/// Keys that are `gate`'s.
pub(crate) const RULES: [&str; 4] = ["rule", "groups", "packages", "bandwidth"];

/// Keys that are flags.
pub(crate) const KEYS: [&str; 40] = [
    "backend",
    "kernel",
    "monitor",
    "image",
    "pull",
    "rootfs",
    "entrypoint",
    "setup",
    "name",
    "hostname",
    "user",
    "workspace",
    "workdir",
    "mount",
    "volume",
    "persist",
    "tmpfs",
    "read_only",
    "env",
    "env_file",
    "memory",
    "cpus",
    "pids",
    "nofile",
    "disk",
    "timeout",
    "cap_add",
    "cap_drop",
    "nested",
    "keep",
    "restart",
    "allow",
    "deny",
    "ask",
    "policy",
    "script",
    "audit_only",
    "publish",
    "network",
    "secret",
];

/// Keys whose values in several files are joined; of others the nearest file's counts.
const LISTS: [&str; 16] = [
    "mount", "volume", "persist", "tmpfs", "env", "env_file", "cap_add", "cap_drop", "allow", "deny", "ask",
    "policy", "publish", "secret", "rule", "groups",
];

/// Whether a key's values in several files are joined.
pub(crate) fn is_list(key: &str) -> bool {
    LISTS.contains(&key)
}

/// A text, and the byte of the file at which it stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Word {
    pub(crate) text: String,
    pub(crate) at: usize,
}

/// Flags as a file gives them.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Settings {
    pub(crate) backend: Option<Backend>,
    pub(crate) kernel: Option<PathBuf>,
    pub(crate) monitor: Option<Monitor>,
    pub(crate) image: Option<String>,
    pub(crate) pull: Option<Pull>,
    pub(crate) rootfs: Option<PathBuf>,
    pub(crate) entrypoint: Option<String>,
    /// Commands that run once on top of the image, in this order.
    pub(crate) setup: Vec<String>,
    pub(crate) name: Option<Name>,
    pub(crate) hostname: Option<String>,
    pub(crate) user: Option<String>,
    pub(crate) workspace: Option<WorkspaceMode>,
    pub(crate) workdir: Option<PathBuf>,
    /// As after `--mount`, and `[[provided]]`.
    pub(crate) mounts: Vec<MountWord>,
    pub(crate) volumes: Vec<VolumeUse>,
    pub(crate) persist: Vec<PathBuf>,
    pub(crate) tmpfs: Vec<Tmpfs>,
    pub(crate) read_only: bool,
    pub(crate) env: Vec<EnvWord>,
    pub(crate) env_file: Vec<PathBuf>,
    pub(crate) memory: Option<u64>,
    pub(crate) cpus: Option<u64>,
    pub(crate) pids: Option<u64>,
    pub(crate) nofile: Option<u64>,
    pub(crate) disk: Option<Disk>,
    pub(crate) timeout: Option<Duration>,
    pub(crate) cap_add: Vec<String>,
    pub(crate) cap_drop: Vec<String>,
    pub(crate) nested: bool,
    pub(crate) keep: bool,
    pub(crate) restart: Option<Restart>,
    pub(crate) allow: Vec<Word>,
    pub(crate) deny: Vec<Word>,
    pub(crate) ask: Vec<Word>,
    pub(crate) policy: Vec<PathBuf>,
    pub(crate) script: Option<PathBuf>,
    pub(crate) audit_only: bool,
    pub(crate) publish: Vec<Publish>,
    pub(crate) network: Option<Network>,
    /// Secrets by name, as after `--secret`.
    pub(crate) secret: Vec<table::Word>,
    /// `[secrets.NAME]`.
    pub(crate) secrets: Vec<Table>,
    /// `[paths]`.
    pub(crate) paths: Paths,
}

/// Reads the text of the file; relative paths in it are meant from `folder`.
pub(crate) fn parse(source: Source<'_>, folder: &Path) -> Result<Settings, Failure> {
    parse_but(source, folder, |_| false)
}

/// The same of a file that also holds what is not ours.
pub(super) fn parse_but(
    source: Source<'_>,
    folder: &Path,
    is_other: impl Fn(&Value<'_, '_>) -> bool,
) -> Result<Settings, Failure> {
    let top = source.parse()?;
    let mut settings = Settings::default();
    for value in source.entries(&top) {
        if RULES.contains(&value.key()) || is_other(&value) {
            continue;
        }
        if value.key() == "secrets" {
            settings.secrets = table::tables(&value, Whose::Project)?;
            continue;
        }
        if value.key() == "provided" {
            settings.mounts.extend(provided(&value, folder)?);
            continue;
        }
        if value.key() == "paths" {
            settings.paths = paths::read(&value)?;
            continue;
        }
        if !KEYS.contains(&value.key()) {
            return Err(value.unknown(&KEYS));
        }
        settings.set(&value, folder)?;
    }
    Ok(settings)
}

impl Settings {
    fn set(&mut self, value: &Value<'_, '_>, folder: &Path) -> Result<(), Failure> {
        match value.key() {
            "name" => {
                self.name = Some(value.parsed(|text| text.parse::<Name>().map_err(|err| err.to_string()))?)
            }
            "hostname" => self.hostname = Some(value.parsed(values::hostname)?),
            "user" => self.user = Some(value.parsed(text)?),
            "workspace" => self.workspace = Some(value.parsed(|text| WorkspaceMode::from_str(text, false))?),
            "workdir" => self.workdir = Some(PathBuf::from(value.text()?)),
            "mount" => self.mounts.extend(value.each(|text| mount(text, folder))?),
            "volume" => self.volumes = value.each(values::volume)?,
            "persist" => self.persist = value.each(values::inside_or_home)?,
            "tmpfs" => self.tmpfs = value.each(values::tmpfs)?,
            "read_only" => self.read_only = value.flag()?,
            "env" => self.env = env(value)?,
            "env_file" => self.env_file = value.each(|text| Ok(folder.join(text)))?,
            "nested" => self.nested = value.flag()?,
            "keep" => self.keep = value.flag()?,
            "restart" => self.restart = Some(value.parsed(values::restart)?),
            "cap_add" => self.cap_add = value.each(values::capability)?,
            "cap_drop" => self.cap_drop = value.each(values::capability)?,
            "backend" => self.backend = Some(value.parsed(|text| Backend::from_str(text, false))?),
            "kernel" => self.kernel = Some(folder.join(value.text()?)),
            "monitor" => self.monitor = Some(value.parsed(values::monitor)?.below(folder)),
            "image" => self.image = Some(value.parsed(text)?),
            "pull" => self.pull = Some(value.parsed(|text| Pull::from_str(text, false))?),
            "rootfs" => self.rootfs = Some(folder.join(value.text()?)),
            "entrypoint" => self.entrypoint = Some(value.parsed(text)?),
            "setup" => self.setup = value.each(text)?,
            _ => return self.set_limit_or_network(value, folder),
        }
        Ok(())
    }

    fn set_limit_or_network(&mut self, value: &Value<'_, '_>, folder: &Path) -> Result<(), Failure> {
        match value.key() {
            "memory" => self.memory = Some(value.parsed(values::size)?),
            "cpus" => self.cpus = Some(value.parsed(values::cpus)?),
            "pids" => self.pids = Some(value.parsed(|text| at_least(1, text))?),
            "nofile" => self.nofile = Some(value.parsed(|text| at_least(8, text))?),
            "disk" => self.disk = Some(value.parsed(values::disk)?),
            "timeout" => self.timeout = Some(value.parsed(values::duration)?),
            "allow" => self.allow = words(value)?,
            "deny" => self.deny = words(value)?,
            "ask" => self.ask = words(value)?,
            "script" => self.script = Some(folder.join(value.text()?)),
            "policy" => self.policy = value.each(|text| Ok(folder.join(text)))?,
            "audit_only" => self.audit_only = value.flag()?,
            "publish" => self.publish = value.each(values::publish)?,
            "network" => self.network = Some(value.parsed(values::network)?),
            "secret" => self.secret = value.each(table::word)?,
            _ => {}
        }
        Ok(())
    }

    /// Puts the settings below the flags: one that was typed has the last word, lists are joined, the file's first.
    /// Rules and files are not among them: the order of rules is decided where they meet, files were read already.
    pub(crate) fn under(self, args: &mut RunArgs) {
        fn below<T>(typed: &mut Option<T>, file: Option<T>) {
            *typed = typed.take().or(file);
        }
        fn before<T>(typed: &mut Vec<T>, mut file: Vec<T>) {
            file.append(typed);
            *typed = file;
        }
        // Of two roots the one that was typed counts.
        if args.image.is_none() && args.rootfs.is_none() {
            (args.image, args.rootfs) = (self.image, self.rootfs);
        }
        below(&mut args.backend, self.backend);
        below(&mut args.kernel, self.kernel);
        below(&mut args.monitor, self.monitor);
        below(&mut args.pull, self.pull);
        below(&mut args.entrypoint, self.entrypoint);
        before(&mut args.setup, self.setup);
        below(&mut args.name, self.name);
        below(&mut args.hostname, self.hostname);
        below(&mut args.user, self.user);
        below(&mut args.workspace, self.workspace);
        below(&mut args.workdir, self.workdir);
        below(&mut args.memory, self.memory);
        below(&mut args.cpus, self.cpus);
        below(&mut args.pids, self.pids);
        below(&mut args.nofile, self.nofile);
        below(&mut args.disk, self.disk);
        below(&mut args.timeout, self.timeout);
        below(&mut args.restart, self.restart);
        below(&mut args.network.network, self.network);
        before(&mut args.mounts, self.mounts);
        before(&mut args.volumes, self.volumes);
        before(&mut args.persist, self.persist);
        before(&mut args.tmpfs, self.tmpfs);
        before(&mut args.env, self.env);
        before(&mut args.cap_add, self.cap_add);
        before(&mut args.cap_drop, self.cap_drop);
        before(&mut args.network.publish, self.publish);
        paths::join(&mut args.paths, self.paths);
        args.read_only |= self.read_only;
        args.nested |= self.nested;
        args.keep |= self.keep;
        args.network.audit_only |= self.audit_only;
    }
}

fn words(value: &Value<'_, '_>) -> Result<Vec<Word>, Failure> {
    let words = value.each(text)?.into_iter().zip(value.places());
    Ok(words.map(|(text, at)| Word { text, at }).collect())
}

fn text(text: &str) -> Result<String, String> {
    Ok(text.to_owned())
}

fn at_least(least: u64, text: &str) -> Result<u64, String> {
    match text.parse() {
        Ok(number) if number >= least => Ok(number),
        _ => Err(format!("{text:?} is not a number from {least} on")),
    }
}

/// A relative source is meant from the file's folder.
fn mount(text: &str, folder: &Path) -> Result<MountWord, String> {
    if text.starts_with("type=") {
        return Err("a mount with a type stands in a table of its own: write [[provided]]".to_owned());
    }
    let is_relative = !text.starts_with(['/', ':']);
    match (is_relative, folder.to_str()) {
        (true, Some(folder)) => mount::mount_word(&format!("{folder}/{text}")),
        (true, None) => Err("the file's own folder has no readable name: write an absolute path".to_owned()),
        (false, _) => mount::mount_word(text),
    }
}

/// `[[provided]]`: `target`, `hooks`, and in `provider` what serves it, as the wire has it. Sizes may be texts (`64M`),
/// relative sources are meant from the file's folder.
fn provided(value: &Value<'_, '_>, folder: &Path) -> Result<Vec<MountWord>, Failure> {
    let mut json = value.json();
    sizes(&mut json, 0).map_err(|why| value.wrong(why))?;
    let mounts: Vec<Provided> = serde_json::from_value(json).map_err(|err| {
        value.wrong(format!("this is no programmable mount: {err}")).fix("see docs/mounts.md")
    })?;
    let place = |provided: Provided| {
        let target = mount::inside_path(&provided.target).map_err(|why| value.wrong(why))?;
        let mut word = MountWord::Provided(Provided { target, ..provided });
        word.sources().into_iter().for_each(|source| *source = folder.join(&*source));
        Ok(word)
    };
    mounts.into_iter().map(place).collect()
}

fn sizes(json: &mut serde_json::Value, depth: usize) -> Result<(), String> {
    if depth > 32 {
        return Err("there are too many mounts within each other".to_owned());
    }
    match json {
        serde_json::Value::Array(list) => list.iter_mut().try_for_each(|item| sizes(item, depth + 1)),
        serde_json::Value::Object(map) => {
            if let Some(size) = map.get_mut("size")
                && let Some(text) = size.as_str()
            {
                *size = values::size(text)?.into();
            }
            map.values_mut().try_for_each(|item| sizes(item, depth + 1))
        }
        _ => Ok(()),
    }
}

/// `env = { NAME = "value" }`, or a list of `NAME=VALUE` and `NAME` as after `--env`.
fn env(value: &Value<'_, '_>) -> Result<Vec<EnvWord>, Failure> {
    let Some(table) = value.as_table() else { return value.each(values::env_word) };
    let mut words = Vec::new();
    for entry in value.entries(table) {
        let set = |text: &str| values::env_word(&format!("{}={text}", entry.key()));
        words.push(entry.parsed(set)?);
    }
    Ok(words)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Cli, Verb};
    use airlock_protocol::files::Provider;
    use clap::{CommandFactory, Parser};

    fn parsed(text: &str) -> Result<Settings, Failure> {
        parse(Source { name: "airlock.toml", text }, Path::new("/srv/project"))
    }

    fn run(words: &[&str]) -> RunArgs {
        let line = ["airlock", "run"].iter().chain(words).chain(&["true"]);
        let Some(Verb::Run(args)) = Cli::try_parse_from(line).unwrap().verb else { panic!("not run") };
        *args
    }

    #[test]
    fn every_flag_of_run_that_describes_a_sandbox_is_a_key() {
        let command = Cli::command();
        let run = command.find_subcommand("run").unwrap();
        let typed_only = ["config", "no-config", "detach", "interactive", "tty", "json", "quiet", "help"];
        let flags =
            run.get_arguments().filter_map(|flag| flag.get_long()).filter(|flag| !typed_only.contains(flag));
        let mut flags: Vec<String> =
            flags.map(|flag| flag.replace('-', "_")).chain(["setup".to_owned()]).collect();
        let mut keys = KEYS.map(str::to_owned).to_vec();
        flags.sort();
        keys.sort();
        assert_eq!(flags, keys);
    }

    #[test]
    fn a_flag_has_the_last_word_and_lists_are_joined() {
        let text = "memory = \"4G\"\npids = 100\ncpus = 1.5\nenv = [\"A=1\"]\nkeep = true\nuser = \"bob\"\nrestart = \"always\"\n";
        let mut args = run(&["--memory", "1G", "-e", "A=2", "-e", "B"]);
        parsed(text).unwrap().under(&mut args);

        assert_eq!((args.memory, args.pids, args.cpus), (Some(1 << 30), Some(100), Some(1500)));
        let words = [("A", "1"), ("A", "2")].map(|(name, value)| EnvWord::Set(name.into(), value.into()));
        assert_eq!(args.env[..2], words);
        assert_eq!(args.env[2], EnvWord::FromHost("B".into()));
        assert_eq!(
            (args.keep, args.user.as_deref(), args.restart),
            (true, Some("bob"), Some(Restart::Always))
        );
    }

    #[test]
    fn paths_are_meant_from_the_file() {
        let text =
            "mount = [\"data:/data:ro\", \"/srv:/srv\"]\npolicy = \"rules.toml\"\nenv_file = [\"ci.env\"]\n";
        let settings = parsed(text).unwrap();
        let sources: Vec<PathBuf> = settings
            .mounts
            .clone()
            .iter_mut()
            .flat_map(MountWord::sources)
            .map(|path| path.clone())
            .collect();
        assert_eq!(sources, [Path::new("/srv/project/data"), Path::new("/srv")]);
        assert_eq!(settings.policy, [Path::new("/srv/project/rules.toml")]);
        assert_eq!(settings.env_file, [Path::new("/srv/project/ci.env")]);
    }

    #[test]
    fn programmable_mounts_are_nested_tables() {
        let text = r#"
            [[provided]]
            target = "/data/"
            provider = { type = "overlay", lower = { type = "real", source = "data" }, upper = { type = "memory", size = "1M" } }
            hooks = [{ paths = "**/*.key", on = ["open"], do = "deny" }]
        "#;
        let settings = parsed(text).unwrap();
        let MountWord::Provided(provided) = settings.mounts[0].clone() else { panic!("not served") };
        let lower = Box::new(Provider::Real { source: "/srv/project/data".into() });
        let upper = Box::new(Provider::Memory { size: Some(1 << 20) });
        assert_eq!(provided.provider, Provider::Overlay { lower, upper });
        assert_eq!((provided.target.as_path(), provided.hooks.len()), (Path::new("/data"), 1));
        assert!(parsed("[[provided]]\ntarget = \"/data\"\nprovider = { type = \"nothing\" }\n").is_err());
    }

    #[test]
    fn variables_may_be_a_table() {
        let settings = parsed("[env]\nCI = \"1\"\nN = 3\n").unwrap();
        let mut words = settings.env;
        words.sort_by_key(|word| format!("{word:?}"));
        assert_eq!(words, [EnvWord::Set("CI".into(), "1".into()), EnvWord::Set("N".into(), "3".into())]);
    }

    #[test]
    fn rules_are_left_to_the_gate() {
        assert_eq!(parsed("[[rule]]\nallow = \"x\"\nfrobnicate = 1\n").unwrap(), Settings::default());
    }

    #[test]
    fn what_cannot_be_meant_is_refused_with_its_place() {
        for (text, words) in [
            ("memroy = 1\n", "airlock.toml:1:1: there is no setting \"memroy\" here"),
            ("memory = \"lots\"\n", "airlock.toml:1:10: "),
            ("network = \"host\"\n", "airlock.toml:1:11: a sandbox never has the host's network"),
            ("publish = [8080, \"x\"]\n", "airlock.toml:1:18: \"x\" is not [ADDR:]PORT[:PORT]"),
            ("nofile = 3\n", "airlock.toml:1:10: \"3\" is not a number from 8 on"),
        ] {
            let failure = parsed(text).unwrap_err();
            assert!(failure.what.starts_with(words), "{failure}");
        }
    }
}
