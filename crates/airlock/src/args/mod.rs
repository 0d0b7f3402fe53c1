//! What a person types. Texts are parsed into types here, once; `airlock help VERB` prints what is written here.

mod build;
mod copy;
mod files;
mod images;
pub(crate) mod mount;
mod registry;
mod review;
mod run;
mod secret;
mod shell;
pub(crate) mod values;
mod volume;
mod wall;

pub(crate) use build::{BuildArgs, ProgressForm};
pub(crate) use copy::CopyArgs;
pub(crate) use files::{
    CommitArgs, ExportSandboxArgs, ForkArgs, ImportArgs, LayerCompression, ListSnapshotsArgs,
    RemoveSnapshotsArgs, SnapshotArgs, SnapshotVerb,
};
pub(crate) use images::{
    HistoryArgs, ImagesArgs, ImagesVerb, ImportImageArgs, InspectImagesArgs, ListImagesArgs, LoadArgs,
    MakeImageArgs, PruneImagesArgs, RemoveImagesArgs, SaveArgs, SaveFormat, TagArgs, UsageArgs,
};
pub(crate) use registry::{PrefetchArgs, PullArgs, PushArgs};
pub(crate) use review::{ApplyArgs, DiffArgs, DiscardArgs, UndoArgs};
pub(crate) use run::{Backend, ExecArgs, Network, NetworkArgs, Pull, RunArgs, WorkspaceMode};
pub(crate) use secret::{ListSecretsArgs, SecretArgs, SecretVerb, SetSecretArgs};
pub(crate) use shell::ShellArgs;
pub(crate) use volume::{
    CreateVolumeArgs, InspectVolumesArgs, ListVolumesArgs, PruneVolumesArgs, RemoveVolumesArgs, VolumeArgs,
    VolumeVerb,
};
pub(crate) use wall::{
    AnswerArgs, ApprovalsArgs, ChangeArgs, ConfigArgs, ConfigVerb, DiffPolicyArgs, ExplainArgs, ExportArgs,
    GroupsArgs, InitArgs, LearnArgs, LedgerArgs, LedgerFormat, LedgerVerb, PolicyArgs, PolicyVerb,
    SetPolicyArgs, ShowConfigArgs, ShowPolicyArgs, TestPolicyArgs, TrustArgs, VerifyArgs,
};

use clap::{Args, FromArgMatches, Parser, Subcommand};
use std::{ffi::OsString, time::Duration};

const EXAMPLES: &str = "\
Examples:
  airlock run -- make test            run a command sealed, in the current directory
  airlock run -d --name web ./serve   leave it running
  airlock shell web                   a shell beside it
  airlock run --allow npm -- npm ci   with the registry that this host's npm uses, and nothing else
  airlock ledger --denied             what the newest sandbox was denied
  airlock ls                          what runs, and what crashed
  airlock doctor                      what this machine can and cannot do

SANDBOX is a name, an id or an unambiguous beginning of one; `-` means the newest.

Files:
  airlock.toml                 settings and rules of a project; counts once it is trusted
  $AIRLOCK_HOME                where sandboxes live (default: ~/.airlock)
  $AIRLOCK_HOME/config.toml    your own settings

Exit codes:
  The program's own; 124 timed out, 125 airlock failed, 126 not executable, 127 not found,
  128+n killed by signal n, 137 also out of memory. Other verbs: 0 done, 1 no, 2 wrong usage,
  3 no such sandbox, 4 refused, 5 this host cannot.";

/// Runs any program sealed: nothing crosses the wall unless a policy or a person allows it.
#[derive(Debug, Parser)]
#[command(name = "airlock", bin_name = "airlock", version, after_help = EXAMPLES)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) verb: Option<Verb>,
}

impl Verb {
    /// `run` and `exec` read by a grammar of their own: to make that of all verbs takes a twentieth of a start. What it
    /// does not take, help included, is for the whole grammar, which has the words for it.
    pub(crate) fn quick(words: &[OsString]) -> Option<Verb> {
        let (verb, rest) = words.split_first()?;
        match verb.to_str()? {
            "run" => plain(rest).or_else(|| alone(rest)).map(|args| Verb::Run(Box::new(args))),
            "exec" => further(rest).or_else(|| alone(rest)).map(Verb::Exec),
            _ => None,
        }
    }
}

/// `run` with a command and no flag needs no grammar at all.
fn plain(words: &[OsString]) -> Option<RunArgs> {
    let command = match words {
        [dashes, command @ ..] if dashes == "--" => command,
        [first, ..] if !first.as_encoded_bytes().starts_with(b"-") => words,
        _ => return None,
    };
    let command = texts(command)?;
    (!command.is_empty()).then(|| RunArgs { command, ..RunArgs::default() })
}

/// So does `exec` with a sandbox and a command.
fn further(words: &[OsString]) -> Option<ExecArgs> {
    let (sandbox, command) = words.split_first()?;
    if [sandbox, command.first()?].into_iter().any(|word| word.as_encoded_bytes().starts_with(b"-")) {
        return None;
    }
    let sandbox = sandbox.to_str()?.to_owned();
    Some(ExecArgs { sandbox, command: texts(command)?, ..ExecArgs::default() })
}

fn texts(words: &[OsString]) -> Option<Vec<String>> {
    words.iter().map(|word| word.to_str().map(str::to_owned)).collect()
}

/// The arguments of one verb, if there is nothing wrong with them.
fn alone<A: Args + FromArgMatches>(words: &[OsString]) -> Option<A> {
    let grammar = A::augment_args(clap::Command::new("airlock").no_binary_name(true));
    A::from_arg_matches(&grammar.try_get_matches_from(words).ok()?).ok()
}

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Seal and run a command
    #[command(override_usage = run::RUN_USAGE, after_help = run::RUN_HELP)]
    Run(Box<RunArgs>),
    /// Your own shell, in a new sandbox or in one that runs
    #[command(override_usage = shell::USAGE, after_help = shell::HELP)]
    Shell(Box<ShellArgs>),
    /// Run a command, record what it connects to, print the narrow policy that would have sufficed
    #[command(override_usage = wall::LEARN_USAGE, after_help = wall::LEARN_HELP)]
    Learn(Box<LearnArgs>),
    /// Run a further command in a running sandbox
    Exec(ExecArgs),
    /// List sandboxes
    #[command(visible_alias = "list")]
    Ls(ListArgs),
    /// Show everything known about a sandbox
    Get(GetArgs),
    /// Print what a sandbox's program wrote
    Logs(LogsArgs),
    /// Copy files into a sandbox or out of it, running or not
    #[command(override_usage = copy::USAGE, after_help = copy::HELP)]
    Cp(CopyArgs),
    /// Send a signal to a sandbox's program
    Kill(KillArgs),
    /// End a sandbox's program: SIGTERM, later SIGKILL
    Stop(StopArgs),
    /// Start a stopped sandbox's program anew; its disk is as it was
    Start(Several),
    /// Stop and start a sandbox's program; its disk stays
    Restart(StopArgs),
    /// Wait until a sandbox's program has ended, and print its exit code
    Wait(WaitArgs),
    /// Freeze every process of a sandbox
    Pause(Several),
    /// Let a frozen sandbox go on
    Resume(Several),
    /// Keep a sandbox's files as they are now; list and remove what was kept
    Snapshot(SnapshotArgs),
    /// Make further sandboxes that go on from a sandbox's files, or a snapshot's
    #[command(override_usage = files::FORK_USAGE)]
    Fork(ForkArgs),
    /// Write a sandbox's files, or a snapshot's, to one portable file
    Export(ExportSandboxArgs),
    /// Make a stopped sandbox of an exported file
    Import(ImportArgs),
    /// Make an image of a sandbox's image and of what the sandbox changed
    Commit(CommitArgs),
    /// Remove sandboxes and their disks
    Rm(RemoveArgs),
    /// Remove every sandbox that does not run, and what crashes left behind
    Prune(PruneArgs),
    /// Show what a sandbox changed in its copy of the workspace
    Diff(DiffArgs),
    /// Write what a sandbox changed to the host
    Apply(ApplyArgs),
    /// Take the last apply back
    Undo(UndoArgs),
    /// Throw away what a sandbox changed
    Discard(DiscardArgs),
    /// Build an image of a Dockerfile
    #[command(after_help = build::HELP)]
    Build(Box<BuildArgs>),
    /// Make, list and remove directories that outlive sandboxes
    Volume(VolumeArgs),
    /// List, get, send, load, save and remove images, which sandboxes can be made of
    Images(ImagesArgs),
    /// Get what a later start needs
    Prefetch(PrefetchArgs),
    /// Allow a running sandbox to reach hosts
    Allow(ChangeArgs),
    /// Deny a running sandbox hosts
    Deny(ChangeArgs),
    /// Show a path of this host in a running sandbox, until it stops
    Mount(MountArgs),
    /// Take away what `mount` showed
    Unmount(UnmountArgs),
    /// Show, check, explain, compare and set rules
    Policy(PolicyArgs),
    /// List a sandbox's secrets, and give them other values
    Secret(SecretArgs),
    /// Print what was decided at a sandbox's wall
    Ledger(LedgerArgs),
    /// List connections that wait for a person
    Approvals(ApprovalsArgs),
    /// Let a connection that waits go ahead
    Approve(AnswerArgs),
    /// Refuse a connection that waits
    Refuse(AnswerArgs),
    /// Write a commented airlock.toml for this project
    Init(InitArgs),
    /// Trust a project's airlock.toml as it is now
    Trust(TrustArgs),
    /// Print the settings that count here
    Config(ConfigArgs),
    /// Tell what this machine can do, and how to fix what it cannot
    Doctor(DoctorArgs),
    /// Print a completion script for a shell
    Completion(CompletionArgs),
    /// Print the version
    Version(VersionArgs),
    /// Own one sandbox (started by airlock itself)
    #[command(hide = true)]
    Keep(KeepArgs),
    /// Run one command of a build (started by `airlock build`)
    #[command(hide = true)]
    BuildStep,
    /// Change the mounts of a running sandbox (started by its keeper)
    #[command(hide = true)]
    Inside,
    /// Print names of sandboxes, for completion scripts
    #[command(hide = true)]
    CompleteSandboxes,
    /// Print names of groups, for completion scripts
    #[command(hide = true)]
    CompleteGroups,
    /// Print names of images, for completion scripts
    #[command(hide = true)]
    CompleteImages,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Without a flag: those that run and those that crashed.

Examples:
  airlock ls --all
  airlock ls --json | jq -r 'select(.status == \"running\") | .name'")]
pub(crate) struct ListArgs {
    /// Stopped ones too
    #[arg(short, long, conflicts_with = "running")]
    pub(crate) all: bool,
    /// Only those that run
    #[arg(long)]
    pub(crate) running: bool,
    /// One JSON object per line
    #[arg(long)]
    pub(crate) json: bool,
    /// Only ids
    #[arg(short, long, conflicts_with = "json")]
    pub(crate) quiet: bool,
}

#[derive(Debug, Args)]
pub(crate) struct GetArgs {
    /// Which sandbox
    #[arg(default_value = "-")]
    pub(crate) sandbox: String,
    /// One JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
What the program wrote to stdout goes to stdout, what it wrote to stderr goes to stderr.
Only streams that lead nowhere else are recorded: those of detached sandboxes.

Examples:
  airlock logs -f web
  airlock logs --since 10m --tail 100 web")]
pub(crate) struct LogsArgs {
    /// Which sandbox
    #[arg(default_value = "-")]
    pub(crate) sandbox: String,
    /// Go on until the sandbox ends
    #[arg(short, long)]
    pub(crate) follow: bool,
    /// Only what is younger: a time (2026-01-31T12:00:00Z) or an age (90s, 5m, 1h)
    #[arg(long, value_name = "TIME", value_parser = values::since)]
    pub(crate) since: Option<jiff::Timestamp>,
    /// Only the last N lines
    #[arg(short = 'n', long, value_name = "N")]
    pub(crate) tail: Option<usize>,
    /// Put the time before each line
    #[arg(short, long)]
    pub(crate) timestamps: bool,
    /// One JSON object per line
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct KillArgs {
    /// Which sandboxes
    #[arg(default_value = "-", value_name = "SANDBOX")]
    pub(crate) sandboxes: Vec<String>,
    /// Which signal, by name or number
    #[arg(short, long, default_value = "KILL", value_parser = values::signal)]
    pub(crate) signal: i32,
    /// Every sandbox that runs
    #[arg(short, long)]
    pub(crate) all: bool,
}

#[derive(Debug, Args)]
pub(crate) struct StopArgs {
    /// Which sandboxes
    #[arg(default_value = "-", value_name = "SANDBOX")]
    pub(crate) sandboxes: Vec<String>,
    /// Time between SIGTERM and SIGKILL
    #[arg(short, long, default_value = "10s", value_parser = values::duration)]
    pub(crate) time: Duration,
}

#[derive(Debug, Args)]
pub(crate) struct Several {
    /// Which sandboxes
    #[arg(default_value = "-", value_name = "SANDBOX")]
    pub(crate) sandboxes: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct WaitArgs {
    /// Which sandboxes
    #[arg(default_value = "-", value_name = "SANDBOX")]
    pub(crate) sandboxes: Vec<String>,
    /// One JSON object per line
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct RemoveArgs {
    /// Which sandboxes; never guessed: write `-` for the newest
    #[arg(value_name = "SANDBOX", required_unless_present = "stopped")]
    pub(crate) sandboxes: Vec<String>,
    /// Running ones too: their programs are killed; and those with changes that were not applied
    #[arg(short, long)]
    pub(crate) force: bool,
    /// Every sandbox that does not run
    #[arg(long)]
    pub(crate) stopped: bool,
}

#[derive(Debug, Args)]
pub(crate) struct PruneArgs {
    /// Those with changes that were not applied too
    #[arg(short, long)]
    pub(crate) force: bool,
    /// One JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    /// One JSON object per line
    #[arg(long)]
    pub(crate) json: bool,
    /// Apply one fix, after showing it
    #[arg(long, value_name = "NAME", conflicts_with = "json")]
    pub(crate) fix: Option<String>,
    /// Apply it without asking
    #[arg(long, short, requires = "fix")]
    pub(crate) yes: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  airlock completion bash > ~/.local/share/bash-completion/completions/airlock
  airlock completion zsh > ~/.zfunc/_airlock
  airlock completion fish > ~/.config/fish/completions/airlock.fish")]
pub(crate) struct CompletionArgs {
    /// Which shell
    pub(crate) shell: clap_complete::Shell,
}

#[derive(Debug, Args)]
pub(crate) struct VersionArgs {
    /// One JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
It is written to the sandbox's ledger, and gone when the sandbox stops.

Examples:
  airlock mount web ./data:/data:ro
  airlock mount web type=memory,dst=/scratch,size=64M
  airlock mount web type=real,src=./out,dst=/out")]
pub(crate) struct MountArgs {
    /// Which sandbox
    pub(crate) sandbox: String,
    /// What, and where inside
    #[arg(value_name = "SRC:DST[:ro]|type=...", value_parser = mount::mount_word)]
    pub(crate) mount: mount::MountWord,
}

#[derive(Debug, Args)]
pub(crate) struct UnmountArgs {
    /// Which sandbox
    pub(crate) sandbox: String,
    /// Where it is inside
    #[arg(value_name = "DST")]
    pub(crate) target: std::path::PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct KeepArgs {
    /// Which sandbox
    pub(crate) id: airlock_protocol::SandboxId,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_grammar_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn the_grammar_of_one_verb_reads_what_the_grammar_of_all_reads() {
        for line in [
            "run -- make test",
            "run make -- -j2 --help",
            "run -- -d --name x",
            "run -- run -- run",
            "run -it --name web --memory 1G --env A=b --allow npm ./serve --help",
            "run -d true",
            "exec -it web bash -c ls",
            "exec - ls",
            "exec web ls",
            "exec web ls -l --help",
            "exec web sh -- -i",
        ] {
            let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();

            let quick = Verb::quick(&words);

            let whole = Cli::parse_from([OsString::from("airlock")].into_iter().chain(words)).verb;
            assert!(quick.is_some(), "{line}");
            assert_eq!(format!("{quick:?}"), format!("{whole:?}"));
        }
    }

    #[test]
    fn what_is_wrong_or_asks_for_help_is_left_to_the_grammar_of_all() {
        for line in [
            "run --help",
            "run --no-such-flag true",
            "exec",
            "exec web",
            "exec --help web",
            "ls",
            "help run",
            "--version",
        ] {
            let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            assert!(Verb::quick(&words).is_none(), "{line}");
        }
    }

    /// `AIRLOCK_ACCEPT=1 cargo test -p airlock` writes the file anew; the diff is then read by a person.
    #[test]
    fn every_help_text_is_the_one_that_was_read_and_accepted() {
        let mut command = Cli::command();
        command.build();
        let mut text = command.render_help().to_string();
        for verb in
            command.get_subcommands_mut().filter(|verb| !verb.is_hide_set() && verb.get_name() != "help")
        {
            text += &format!("\n==== airlock {}\n", verb.get_name());
            text += &verb.render_help().to_string();
            let name = verb.get_name().to_owned();
            for nested in verb.get_subcommands_mut().filter(|nested| nested.get_name() != "help") {
                text += &format!("\n==== airlock {name} {}\n", nested.get_name());
                text += &nested.render_help().to_string();
            }
        }
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/args/help.txt");
        if std::env::var_os("AIRLOCK_ACCEPT").is_some() {
            std::fs::write(&path, &text).unwrap();
        }
        assert_eq!(std::fs::read_to_string(&path).unwrap_or_default(), text);
    }

    #[test]
    fn what_follows_the_program_belongs_to_it() {
        let cli =
            Cli::try_parse_from(["airlock", "run", "--name", "x", "ls", "-l", "--all", "--name"]).unwrap();
        let Some(Verb::Run(run)) = cli.verb else { panic!("not run") };
        assert_eq!(run.command, ["ls", "-l", "--all", "--name"]);
        let cli = Cli::try_parse_from(["airlock", "exec", "-it", "web", "sh", "-c", "true"]).unwrap();
        let Some(Verb::Exec(exec)) = cli.verb else { panic!("not exec") };
        assert_eq!((exec.sandbox.as_str(), exec.command.len()), ("web", 3));
    }

    #[test]
    fn rm_removes_nothing_that_was_not_named() {
        assert!(Cli::try_parse_from(["airlock", "rm"]).is_err());
        assert!(Cli::try_parse_from(["airlock", "rm", "-"]).is_ok());
        assert!(Cli::try_parse_from(["airlock", "rm", "--stopped"]).is_ok());
    }

    #[test]
    fn wrong_usage_exits_with_2() {
        assert_eq!(Cli::try_parse_from(["airlock", "exec"]).unwrap_err().exit_code(), 2);
        assert_eq!(Cli::try_parse_from(["airlock", "frobnicate"]).unwrap_err().exit_code(), 2);
    }
}
