//! What is typed about the wall: rules, the ledger, people's answers, configuration and trust.

use super::{RunArgs, values};
use airlock_protocol::approval::Scope;
use clap::{Args, Subcommand, ValueEnum};
use std::path::PathBuf;

#[derive(Debug, Args)]
#[command(after_help = "\
The rules come before those in force, and count at once. What they no longer allow is closed within a second.
HOST may be a name, `*.suffix`, an address, a range of addresses or a group. Without a port `allow` means 80 and
443, and `deny` every port. A method and a URL name requests; the path is a pattern.

Examples:
  airlock allow web api.example.com
  airlock allow web 'GET,HEAD https://api.example.com/v1/**'
  airlock allow - db.example.com:5432 npm
  airlock deny web telemetry.example.com")]
pub(crate) struct ChangeArgs {
    /// Which sandbox
    pub(crate) sandbox: String,
    /// Hosts or groups
    #[arg(required = true, value_name = "HOST[:PORT]")]
    pub(crate) hosts: Vec<String>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  airlock policy show web > airlock.toml
  airlock policy explain web https://api.example.com/v1
  airlock policy explain web POST https://api.example.com/v1
  airlock policy explain --policy airlock.toml db.example.com:5432
  airlock policy test airlock.toml
  airlock policy set web airlock.toml
  airlock policy diff web airlock.toml

Exit codes of `explain`: 0 allowed, 1 a person would be asked, 4 denied.")]
pub(crate) struct PolicyArgs {
    #[command(subcommand)]
    pub(crate) verb: PolicyVerb,
}

#[derive(Debug, Subcommand)]
pub(crate) enum PolicyVerb {
    /// Print the rules of a sandbox as TOML
    Show(ShowPolicyArgs),
    /// Give a running sandbox other rules
    Set(SetPolicyArgs),
    /// Check a file of rules, its examples and, where URLs are given, that they are allowed
    Test(TestPolicyArgs),
    /// Tell what would happen to a connection, and which rule says so
    Explain(ExplainArgs),
    /// Show what changes from one set of rules to another
    Diff(DiffPolicyArgs),
    /// List named groups of hosts, or show one
    Groups(GroupsArgs),
}

#[derive(Debug, Args)]
pub(crate) struct ShowPolicyArgs {
    /// Which sandbox
    #[arg(default_value = "-")]
    pub(crate) sandbox: String,
    /// One JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct SetPolicyArgs {
    /// Which sandbox
    pub(crate) sandbox: String,
    /// Files of rules, TOML or Markdown with front matter; several are tried in their order
    #[arg(required = true, value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct TestPolicyArgs {
    /// The file of rules
    pub(crate) file: PathBuf,
    /// What must be allowed, as URL, HOST:PORT or "METHOD URL"; after a `!` what must not be
    #[arg(value_name = "[!]URL")]
    pub(crate) urls: Vec<String>,
    /// One JSON object per line
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(
    override_usage = "airlock policy explain [OPTIONS] <SANDBOX|--policy FILE> [METHOD] <URL|HOST[:PORT]>"
)]
pub(crate) struct ExplainArgs {
    /// Which sandbox; left out with --policy
    pub(crate) sandbox: Option<String>,
    /// What wants to cross: a URL, with or without a method before it, or HOST[:PORT]
    #[arg(value_name = "URL", num_args = 0..=2)]
    pub(crate) words: Vec<String>,
    /// Rules from this file in place of a sandbox's; repeatable
    #[arg(long, value_name = "FILE")]
    pub(crate) policy: Vec<PathBuf>,
    /// One JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct DiffPolicyArgs {
    /// A sandbox or a file of rules
    #[arg(value_name = "SANDBOX|FILE")]
    pub(crate) from: String,
    /// What to compare it with
    #[arg(value_name = "SANDBOX|FILE")]
    pub(crate) to: String,
    /// End with 1 if they differ
    #[arg(long)]
    pub(crate) exit_code: bool,
    /// One JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct GroupsArgs {
    /// Only this group, whole
    pub(crate) name: Option<String>,
    /// One JSON object per line
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
#[command(after_help = "\
Examples:
  airlock ledger --denied              what the newest sandbox was denied
  airlock ledger -f web                go on until the sandbox ends
  airlock ledger verify web            whether the chain of records is whole
  airlock ledger export web --format ocsf > web.ocsf.jsonl")]
pub(crate) struct LedgerArgs {
    #[command(subcommand)]
    pub(crate) verb: Option<LedgerVerb>,
    /// Which sandbox; also one that is gone
    #[arg(default_value = "-")]
    pub(crate) sandbox: String,
    /// Go on until the sandbox ends
    #[arg(short, long)]
    pub(crate) follow: bool,
    /// Only what was denied, or would have been
    #[arg(long)]
    pub(crate) denied: bool,
    /// Only what is younger: a time (2026-01-31T12:00:00Z) or an age (90s, 5m, 1h)
    #[arg(long, value_name = "TIME", value_parser = values::since)]
    pub(crate) since: Option<jiff::Timestamp>,
    /// Only the last N records
    #[arg(short = 'n', long, value_name = "N")]
    pub(crate) tail: Option<usize>,
    /// One JSON object per line, as recorded
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum LedgerVerb {
    /// Check that no record was changed, dropped or added
    Verify(VerifyArgs),
    /// Print all records in another form
    Export(ExportArgs),
}

#[derive(Debug, Args)]
pub(crate) struct VerifyArgs {
    /// Which sandbox; also one that is gone
    #[arg(default_value = "-")]
    pub(crate) sandbox: String,
    /// One JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ExportArgs {
    /// Which sandbox; also one that is gone
    #[arg(default_value = "-")]
    pub(crate) sandbox: String,
    /// ocsf (Open Cybersecurity Schema Framework) or jsonl (as recorded)
    #[arg(long, value_enum, value_name = "FORM", default_value = "ocsf", hide_possible_values = true)]
    pub(crate) format: LedgerFormat,
}

/// How a ledger is exported.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LedgerFormat {
    /// Events of the Open Cybersecurity Schema Framework.
    Ocsf,
    /// As recorded.
    Jsonl,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  airlock approvals
  airlock approvals --watch
  airlock approve 3f9a --sandbox")]
pub(crate) struct ApprovalsArgs {
    /// Show them as they come and go, until interrupted
    #[arg(short, long)]
    pub(crate) watch: bool,
    /// One JSON object per line
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
REQUEST is an id that `airlock approvals` shows or an unambiguous beginning of one; nothing means the newest.

--always also writes the rule down: into --file where given, else into the project's airlock.toml where a rule in
it asked and it is as you trusted it, and else into $AIRLOCK_HOME/answers.toml, which answers the same question in
later sandboxes but opens nothing that their rules deny.")]
pub(crate) struct AnswerArgs {
    /// Which request
    #[arg(default_value = "-")]
    pub(crate) request: String,
    #[command(flatten)]
    pub(crate) scope: ScopeArgs,
    /// With --always: the file the rule is written into
    #[arg(long, value_name = "FILE", requires = "always")]
    pub(crate) file: Option<PathBuf>,
    /// One JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

/// For how long an answer counts.
#[derive(Debug, Clone, Copy, Args)]
#[group(multiple = false)]
pub(crate) struct ScopeArgs {
    /// For this connection, and others like it that wait now (default)
    #[arg(long)]
    once: bool,
    /// For this host and port as long as the sandbox lives
    #[arg(long)]
    sandbox: bool,
    /// For this host and port from now on
    #[arg(long)]
    always: bool,
}

impl ScopeArgs {
    /// The scope that was named.
    pub(crate) fn scope(self) -> Scope {
        match (self.sandbox, self.always) {
            (_, true) => Scope::Always,
            (true, false) => Scope::Sandbox,
            (false, false) => Scope::Once,
        }
    }
}

pub(super) const LEARN_USAGE: &str = "airlock learn [OPTIONS] -- COMMAND...";
pub(super) const LEARN_HELP: &str = "\
The command runs as `airlock run --audit-only` would run it: nothing is denied, everything is recorded. At its
end the policy that would have sufficed is printed: every host and port it connected to, and nothing else. With
--requests also connections to ports 80 and 443 are opened, and the policy names methods and paths.

Examples:
  airlock learn --output airlock.toml -- npm ci
  airlock learn --requests -- ./agent";

#[derive(Debug, Args)]
pub(crate) struct LearnArgs {
    #[command(flatten)]
    pub(crate) run: RunArgs,
    /// Write the policy into this new file in place of stdout
    #[arg(short, long, value_name = "FILE", conflicts_with = "detach", help_heading = "Network")]
    pub(crate) output: Option<PathBuf>,
    /// Open connections to ports 80 and 443, and name methods and paths in the policy
    #[arg(long, help_heading = "Network")]
    pub(crate) requests: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
A project's airlock.toml lies where the sandboxed program can write, and so do the files that it names (`policy`,
`env_file`). They count only if you have trusted exactly what they say; a changed one is shown with its changes
and asked about anew.

Examples:
  airlock trust                 show the airlock.toml that counts here, and ask
  airlock trust --yes           trust it as it is (for scripts)
  airlock trust --list
  airlock trust --remove")]
pub(crate) struct TrustArgs {
    /// Which file (default: the airlock.toml that counts in this directory)
    pub(crate) file: Option<PathBuf>,
    /// Without asking
    #[arg(short, long, conflicts_with_all = ["list", "remove"])]
    pub(crate) yes: bool,
    /// List what is trusted
    #[arg(long, conflicts_with_all = ["file", "remove"])]
    pub(crate) list: bool,
    /// Trust it no longer
    #[arg(long)]
    pub(crate) remove: bool,
    /// With --list: one JSON object per line
    #[arg(long, requires = "list")]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Every setting is there, commented out, with what it does. A file that only narrows what you allow counts at once;
one that opens something counts when you have said so with `airlock trust`.

Examples:
  airlock init                  write airlock.toml here
  airlock init --print          only show it")]
pub(crate) struct InitArgs {
    /// Print it, write nothing
    #[arg(long, conflicts_with = "force")]
    pub(crate) print: bool,
    /// Replace a file that is there
    #[arg(long)]
    pub(crate) force: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ConfigArgs {
    #[command(subcommand)]
    pub(crate) verb: ConfigVerb,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ConfigVerb {
    /// Print the settings that count here, and where each comes from
    Show(ShowConfigArgs),
    /// Print a JSON schema of airlock.toml, for editors
    Schema,
}

#[derive(Debug, Args)]
pub(crate) struct ShowConfigArgs {
    /// With the line of each, and what another file's setting takes the place of
    #[arg(long)]
    pub(crate) origin: bool,
    /// One JSON object per line
    #[arg(long)]
    pub(crate) json: bool,
}
