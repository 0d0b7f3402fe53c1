//! `ADD` of Git repositories: this host's git clones in a sandbox that reaches what the build may reach, and what it
//! checked out is an archive like any other.

use super::{
    bind::Scratch,
    command::{Answer, Asked},
    copy::{Content, From},
    fetch::Reach,
    job::Job,
    run,
};
use crate::{config, failure::Failure, home, policy, spec::Host};
use airlock_images::build::{
    instruction::{Instruction, Transfer},
    repository::Repository,
};
use airlock_protocol::policy::{Policy, Verdict};
use std::{collections::BTreeMap, fs::File};

/// Prints an archive of what was asked for, and before it the commit to stderr. Whatever the server sends stays inside.
const SCRIPT: &str = r#"
command -v git >/dev/null || { echo "there is no git on this host" >&2; exit 1; }
git init -q /tmp/repository
cd /tmp/repository
git remote add origin "$URL"
git fetch -q --no-tags --depth 1 origin "$REFERENCE" || git fetch -q origin "$REFERENCE"
git -c advice.detachedHead=false checkout -q --detach FETCH_HEAD
git submodule update -q --init --recursive --depth 1
echo "COMMIT $(git rev-parse HEAD)" >&2
[ -n "$KEEP" ] || find . -name .git -prune -exec rm -rf {} +
cd "./$DIRECTORY"
exec tar --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner -cf - .
"#;

/// What begins the line that names the commit.
const COMMIT: &str = "COMMIT ";
/// How many of git's last lines an error repeats.
const LINES: usize = 3;

/// The files of a repository. It is asked each time; what it held before is found by the commit.
pub(super) fn cloned(
    job: &Job,
    instruction: &Instruction,
    transfer: &Transfer,
    repository: &Repository,
) -> Result<From, Failure> {
    let fail = |why: String| job.fail(instruction, format!("{} cannot be cloned: {why}", repository.url));
    if transfer.checksum.is_some() {
        return Err(fail("--checksum is for files; name a commit behind #".to_owned()));
    }
    Reach::of(job)?.check(&repository.authority, repository.port, &fail)?;
    let mut scratch = Scratch::default();
    let output = scratch.file(b"", 0o600)?;
    let keeps = if transfer.keep_git_dir { "yes" } else { "" };
    let env = [
        ("PATH", "/usr/local/bin:/usr/bin:/bin"),
        ("HOME", "/tmp"),
        ("GIT_TERMINAL_PROMPT", "0"),
        ("URL", &repository.url),
        ("REFERENCE", &repository.reference),
        ("DIRECTORY", &repository.directory),
        ("KEEP", keeps),
    ];
    let env = env.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let rules = policy::from_words(Verdict::Allow, &job.allow, "--allow", &Host::current()?)?;
    let asked = Asked {
        command: ["/bin/sh", "-euc", SCRIPT].map(str::to_owned).to_vec(),
        env: BTreeMap::from(env),
        workdir: "/tmp".into(),
        user: "0".to_owned(),
        policy: Policy { rules, ..Policy::default() },
        egress: config::own(&home::path()?)?.egress,
        output: Some(output.clone()),
        ..Asked::default()
    };
    let (mut commit, mut said) = (None, Vec::new());
    let answer = run::answered(&asked, &mut |line| match line.strip_prefix(COMMIT) {
        Some(hash) => commit = Some(hash.to_owned()),
        None => said.push(line.to_owned()),
    })?;
    let last = said.get(said.len().saturating_sub(LINES)..).unwrap_or_default().join("; ");
    let commit = match (answer, commit) {
        (Some(Answer::Nothing), Some(commit)) => commit,
        (Some(Answer::Failed { what, .. }), _) => return Err(fail(what)),
        (_, _) => return Err(fail(last)),
    };
    let file = File::open(&output)?;
    let key = format!("git {commit} {} {}", repository.directory, transfer.keep_git_dir);
    let taken = vec![(Vec::new(), Vec::new())];
    Ok(From { tree: None, content: Content::Unpacked(file), taken, key, kind: "git" })
}
