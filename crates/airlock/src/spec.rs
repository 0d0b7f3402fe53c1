//! From the flags of `run` to a [`Spec`]: what was typed becomes what was meant, once. Pure but for environment files.

use crate::{
    args::{RunArgs, WorkspaceMode, mount::MountWord, values::EnvWord},
    config::{self as files, own::Own},
    environment::{environment, in_image, parse_file},
    failure::Failure,
    root::{self, Root, config},
    secrets::{self, Settled},
};
use airlock_engine::snapshots::Chain;
use airlock_images::manifest::RunConfig;
use airlock_protocol::{
    Name,
    files::{Provided, VolumeUse},
    policy::Policy,
    spec::{self, Disk, DiskBy, Limits, Mount, Script, Spec, Stdio, Workspace},
};
use sha2::{Digest as _, Sha256};
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

/// What a spec is made of besides flags.
#[derive(Default)]
pub(crate) struct Host {
    pub(crate) directory: PathBuf,
    pub(crate) variables: BTreeMap<String, String>,
    /// The root file system; none is the host's own system.
    pub(crate) root: Option<Root>,
    /// What a set-up left on top of it.
    pub(crate) setup: Option<Chain>,
}

/// What stands in files about the wall.
#[derive(Debug, Default)]
pub(crate) struct Wall {
    pub(crate) policy: Policy,
    pub(crate) own: Own,
    /// Variables of the files that the project's file names.
    pub(crate) env: Vec<EnvWord>,
    pub(crate) secrets: Settled,
    pub(crate) script: Option<Script>,
}

impl Host {
    /// This process's directory and environment. Variables that are not text are no use to anybody and left out.
    pub(crate) fn current() -> Result<Host, Failure> {
        let directory = std::env::current_dir().map_err(|err| {
            Failure::because("the current directory cannot be told", &err)
                .fix("change to a directory that exists")
        })?;
        Ok(Host { directory, variables: variables(), ..Host::default() })
    }
}

/// The host's variables.
pub(crate) fn variables() -> BTreeMap<String, String> {
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect()
}

/// The sandbox that the flags describe.
pub(crate) fn spec(
    args: &RunArgs,
    wall: &Wall,
    name: Name,
    stdio: Stdio,
    host: &Host,
) -> Result<Spec, Failure> {
    let workspace = workspace(args.workspace.unwrap_or(WorkspaceMode::Cow), &host.directory);
    let image = host.root.as_ref().map(|root| &root.run);
    let user =
        args.user.as_deref().or(image.map(|image| image.user.as_str()).filter(|user| !user.is_empty()));
    let user = user.unwrap_or("0");
    let workdir = workdir(args, &workspace, image)?;
    let hostname = args.hostname.clone().unwrap_or_else(|| name.to_string());
    let words = env_words(args, &wall.env)?;
    let mut env = match image {
        None => environment(&host.variables, user, words),
        Some(image) => in_image(&host.variables, config::env(image), &hostname, words),
    };
    secrets::refuse_values(&env, &wall.secrets)?;
    env.extend(wall.secrets.env.clone());
    Ok(Spec {
        command: command(args, image)?,
        hostname,
        name,
        backend: args.backend.map(Into::into).unwrap_or_default(),
        kernel: args.kernel.as_ref().map(|path| host.directory.join(path)),
        monitor: args.monitor.clone().map(|monitor| monitor.below(&host.directory)),
        image: host.root.as_ref().and_then(|root| root.image.clone()),
        rootfs: host.root.as_ref().and_then(|root| root.rootfs.clone()),
        workdir,
        workspace,
        mounts: args.mounts.iter().filter_map(bind).collect(),
        volumes: volumes(args, host),
        anonymous: image.map(config::volumes).transpose()?.unwrap_or_default(),
        provided: args.mounts.iter().filter_map(served).collect(),
        paths: args.paths.clone(),
        tmpfs: args.tmpfs.clone(),
        env,
        user: user.to_owned(),
        limits: limits(args, host.root.as_ref().is_some_and(|root| root.image.is_some())),
        cap_add: args.cap_add.clone(),
        cap_drop: args.cap_drop.clone(),
        read_only: args.read_only,
        nested: args.nested,
        restart: args.restart.unwrap_or_default(),
        stop_signal: image.map(config::stop_signal).transpose()?.flatten(),
        health: image.and_then(config::health),
        keep: args.keep || args.streams.detach,
        stdio,
        policy: wall.policy.clone(),
        script: wall.script.clone(),
        secrets: wall.secrets.secrets.clone(),
        home_files: wall.secrets.home_files.clone(),
        publish: args.network.publish.clone(),
        egress: wall.own.egress.clone(),
        approvals: wall.own.approvals.clone(),
        ledger: wall.own.ledger.clone(),
    })
}

fn command(args: &RunArgs, image: Option<&RunConfig>) -> Result<Vec<String>, Failure> {
    let command = match image {
        Some(image) => config::command(image, args.entrypoint.as_deref(), &args.command),
        None => config::command(&RunConfig::default(), args.entrypoint.as_deref(), &args.command),
    };
    if command.is_empty() { Err(root::no_command()) } else { Ok(command) }
}

/// A command that was typed starts in the workspace, the image's own in the image's directory.
fn workdir(args: &RunArgs, workspace: &Workspace, image: Option<&RunConfig>) -> Result<PathBuf, Failure> {
    let shown = workspace.path();
    let own = match image {
        Some(image) if shown.is_none() || args.command.is_empty() => Some(config::workdir(image)?),
        _ => None,
    };
    let usual = own.as_ref().or(shown).map_or(Path::new("/"), PathBuf::as_path);
    Ok(match &args.workdir {
        Some(chosen) if chosen.is_absolute() => chosen.clone(),
        Some(chosen) => shown.map_or(usual, PathBuf::as_path).join(chosen),
        None => usual.to_owned(),
    })
}

fn bind(word: &MountWord) -> Option<Mount> {
    match word {
        MountWord::Bind(mount) => Some(mount.clone()),
        MountWord::Provided(_) => None,
    }
}

fn served(word: &MountWord) -> Option<Provided> {
    match word {
        MountWord::Bind(_) => None,
        MountWord::Provided(provided) => Some(provided.clone()),
    }
}

fn workspace(mode: WorkspaceMode, directory: &Path) -> Workspace {
    let path = directory.to_owned();
    match mode {
        WorkspaceMode::Cow => Workspace::Cow { path },
        WorkspaceMode::Rw => Workspace::Rw { path },
        WorkspaceMode::Ro => Workspace::Ro { path },
        WorkspaceMode::None => Workspace::None,
    }
}

/// Volumes by name, and those that keep directories for the project.
fn volumes(args: &RunArgs, host: &Host) -> Vec<VolumeUse> {
    let project = host.directory.as_path();
    let kept = args.persist.iter().map(|directory| {
        let target = home_inside(directory, host);
        let volume = kept_name(project, &target);
        VolumeUse { volume, target, read_only: false, project: Some(project.to_owned()) }
    });
    args.volumes.iter().cloned().chain(kept).collect()
}

/// A shell makes the home of this host of `~`, where the home inside is meant. The project itself is at the same path inside.
fn home_inside(directory: &Path, host: &Host) -> PathBuf {
    let home = host.variables.get("HOME").filter(|home| home.len() > 1);
    match home.map(|home| directory.strip_prefix(home)) {
        Some(Ok(below)) if !directory.starts_with(&host.directory) && below != Path::new("") => {
            Path::new("~").join(below)
        }
        _ => directory.to_owned(),
    }
}

/// The name of the volume that keeps a directory for a project: readable, and another one for every other pair.
fn kept_name(project: &Path, directory: &Path) -> String {
    let word = |path: &Path| -> String {
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        name.chars().filter(char::is_ascii_alphanumeric).take(20).collect()
    };
    let mut hash = Sha256::new();
    hash.update(project.as_os_str().as_encoded_bytes());
    hash.update([0]);
    hash.update(directory.as_os_str().as_encoded_bytes());
    let digits: String = hash.finalize().iter().take(4).map(|byte| format!("{byte:02x}")).collect();
    format!("keep-{}-{}-{digits}", word(project), word(directory))
}

fn limits(args: &RunArgs, has_image: bool) -> Limits {
    let is_machine = args.backend.map(spec::Place::from) == Some(spec::Place::Microvm);
    let disk = args.disk.map(|disk| match disk.by {
        DiskBy::Kernel if is_machine && has_image => Disk { by: DiskBy::Machine, ..disk },
        _ => disk,
    });
    Limits {
        memory: args.memory,
        cpu_millis: args.cpus,
        pids: args.pids,
        nofile: args.nofile,
        disk,
        timeout_ms: args.timeout.map(|time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX)),
    }
}

/// Words of files come first: what is typed has the last word.
fn env_words(args: &RunArgs, named: &[EnvWord]) -> Result<Vec<EnvWord>, Failure> {
    let mut words = named.to_vec();
    for path in &args.env_file {
        words.extend(read_env_file(path)?);
    }
    words.extend(args.env.iter().cloned());
    Ok(words)
}

fn read_env_file(path: &Path) -> Result<Vec<EnvWord>, Failure> {
    env_file(path, &files::read_named(path)?)
}

/// The words of an environment file's text.
pub(crate) fn env_file(path: &Path, text: &str) -> Result<Vec<EnvWord>, Failure> {
    parse_file(text).map_err(|bad| {
        Failure::new(format!("{}:{}:1: {}", path.display(), bad.number, bad.why))
            .code(2)
            .why(format!("the line is: {}", bad.text))
            .fix("write NAME=VALUE, or NAME for this host's value")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Cli, Verb};
    use airlock_protocol::spec::{Monitor, Place, Publish, Restart, Stream, Tmpfs};
    use clap::Parser;
    use std::{io::Write, net::Ipv4Addr};

    fn parse(line: &[&str]) -> Result<Spec, Failure> {
        let cli = Cli::try_parse_from(["airlock", "run"].iter().chain(line)).unwrap();
        let Some(Verb::Run(args)) = cli.verb else { panic!("not run") };
        let name = args.name.clone().unwrap_or_else(|| "calm-otter".parse().unwrap());
        let host = Host { directory: "/srv/project".into(), ..Host::default() };
        spec(&args, &Wall::default(), name, Stdio::all(Stream::Null), &host)
    }

    #[test]
    fn a_bare_command_gets_the_directory_it_was_typed_in() {
        let spec = parse(&["make"]).unwrap();

        assert_eq!(spec.workspace, Workspace::Cow { path: "/srv/project".into() });
        assert_eq!(spec.workdir, Path::new("/srv/project"));
        assert_eq!((spec.hostname.as_str(), spec.user.as_str(), spec.keep), ("calm-otter", "0", false));
        assert_eq!((spec.limits, spec.restart), (Limits::default(), Restart::No));
    }

    #[test]
    fn every_flag_arrives() {
        let line = "--name web --hostname h --user bob --workspace ro -w sub --mount /a:/b:ro --tmpfs /t:1M --read-only \
                    --memory 1G --cpus 1.5 --pids 100 --nofile 1024 --disk 1G,tmpfs --timeout 90 --cap-add SYS_PTRACE \
                    --cap-drop ALL --nested -d --restart on-failure:2 -e A=1 -p 8080:80 \
                    --backend microvm --kernel /boot/k --monitor ./fc -- prog -x";
        let spec = parse(&line.split_whitespace().collect::<Vec<_>>()).unwrap();

        let limits = Limits {
            memory: Some(1 << 30),
            cpu_millis: Some(1500),
            pids: Some(100),
            nofile: Some(1024),
            disk: Some(Disk { bytes: 1 << 30, by: DiskBy::Tmpfs }),
            timeout_ms: Some(90_000),
        };
        let expected = Spec {
            command: vec!["prog".into(), "-x".into()],
            name: "web".parse().unwrap(),
            backend: Place::Microvm,
            kernel: Some("/boot/k".into()),
            monitor: Some(Monitor::At("/srv/project/./fc".into())),
            image: None,
            rootfs: None,
            workdir: "/srv/project/sub".into(),
            workspace: Workspace::Ro { path: "/srv/project".into() },
            mounts: vec![Mount { source: "/a".into(), target: "/b".into(), read_only: true }],
            volumes: Vec::new(),
            anonymous: Vec::new(),
            provided: Vec::new(),
            paths: Default::default(),
            tmpfs: vec![Tmpfs { target: "/t".into(), size: Some(1 << 20) }],
            env: spec.env.clone(),
            user: "bob".into(),
            hostname: "h".into(),
            limits,
            cap_add: vec!["SYS_PTRACE".into()],
            cap_drop: vec!["ALL".into()],
            read_only: true,
            nested: true,
            restart: Restart::OnFailure { max: Some(2) },
            stop_signal: None,
            health: None,
            keep: true,
            stdio: Stdio::all(Stream::Null),
            policy: Default::default(),
            script: None,
            secrets: Vec::new(),
            home_files: Vec::new(),
            publish: vec![Publish { address: Ipv4Addr::LOCALHOST.into(), port: 8080, inside: 80 }],
            egress: Default::default(),
            approvals: Default::default(),
            ledger: Default::default(),
        };
        assert_eq!(spec, expected);
        assert_eq!(spec.env["A"], "1");
    }

    #[test]
    fn what_is_kept_for_a_project_has_a_name_of_its_own() {
        let spec =
            parse(&["--volume", "data:/data:ro", "--persist", "~/.cache", "--persist", "/ü/ö", "true"])
                .unwrap();

        let names: Vec<&str> = spec.volumes.iter().map(|shown| shown.volume.as_str()).collect();
        assert!(names.iter().all(|name| name.parse::<Name>().is_ok()), "{names:?}");
        assert_eq!(names[0], "data");
        assert!(
            names[1].starts_with("keep-project-cache-") && names[2].starts_with("keep-project--"),
            "{names:?}"
        );
        assert_eq!(spec.volumes[1].project.as_deref(), Some(Path::new("/srv/project")));
        assert_ne!(
            kept_name(Path::new("/a"), Path::new("/b/c")),
            kept_name(Path::new("/a/b"), Path::new("/c"))
        );
    }

    #[test]
    fn a_bad_line_of_an_environment_file_is_shown_with_its_place() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        writeln!(file, "A=1\nexport B=2").unwrap();
        let path = file.path().to_str().unwrap();

        let refusal = parse(&["--env-file", path, "true"]).unwrap_err();

        let expected = format!(
            "error: {path}:2:1: \"export B\" is not a variable's name\n  why:  the line is: export B=2\n  \
             fix:  write NAME=VALUE, or NAME for this host's value\n"
        );
        assert_eq!(refusal.to_string(), expected);
    }
}
