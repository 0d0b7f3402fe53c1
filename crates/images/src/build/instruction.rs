//! Instructions of a Dockerfile as types. Texts in them are not expanded yet: what a variable is, is known when the stage runs.

use super::lines::Heredoc;
use std::time::Duration;

/// An instruction, and where it stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Instruction {
    /// Its line, from 1. That of `FROM` for one that a base image demanded (`ONBUILD`).
    pub line: usize,
    /// Its text in one line.
    pub text: String,
    /// What it says.
    pub kind: Kind,
}

/// What an instruction says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    /// `ARG name`, `ARG name=value …`
    Arg(Vec<(String, Option<String>)>),
    /// `ENV name=value …`
    Env(Vec<(String, String)>),
    /// `LABEL name=value …`
    Label(Vec<(String, String)>),
    /// `COPY`
    Copy(Box<Transfer>),
    /// `ADD`
    Add(Box<Transfer>),
    /// `RUN`
    Run(Box<Run>),
    /// `CMD`
    Cmd(Command),
    /// `ENTRYPOINT`
    Entrypoint(Command),
    /// `SHELL ["…"]`
    Shell(Vec<String>),
    /// `WORKDIR`
    Workdir(String),
    /// `USER`
    User(String),
    /// `EXPOSE`
    Expose(Vec<String>),
    /// `VOLUME`
    Volume(Vec<String>),
    /// `STOPSIGNAL`
    StopSignal(String),
    /// `HEALTHCHECK`
    Healthcheck(Healthcheck),
    /// `MAINTAINER`
    Maintainer(String),
    /// `ONBUILD`: the text that runs in images built from this one.
    Onbuild(String),
}

/// A command: text for a shell, or words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// For the shell of the image.
    Shell(String),
    /// Started as it stands.
    Exec(Vec<String>),
}

impl Command {
    /// Its words, with the image's shell before a text.
    pub fn words(&self, shell: &[String]) -> Vec<String> {
        match self {
            Self::Shell(text) => shell.iter().chain([text]).cloned().collect(),
            Self::Exec(words) => words.clone(),
        }
    }
}

/// `COPY` and `ADD`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Transfer {
    /// `--from`: a stage, its number, or an image.
    pub from: Option<String>,
    /// `--chown`
    pub chown: Option<String>,
    /// `--chmod`
    pub chmod: Option<String>,
    /// `--checksum`
    pub checksum: Option<String>,
    /// `--exclude`
    pub exclude: Vec<String>,
    /// `--parents`: directories of a source's path are made, too.
    pub parents: bool,
    /// `--unpack`
    pub unpack: Option<bool>,
    /// `--keep-git-dir`
    pub keep_git_dir: bool,
    /// Where from.
    pub sources: Vec<String>,
    /// Files that stand in the Dockerfile itself; their names are among the sources as `<<NAME`.
    pub heredocs: Vec<Heredoc>,
    /// Where to.
    pub destination: String,
}

/// `RUN`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Run {
    /// `--mount` as written, one each; variables in them are not expanded yet.
    pub mounts: Vec<String>,
    /// `--network=none`
    pub network: Network,
    /// The command.
    pub command: Command,
    /// Here-documents of the command.
    pub heredocs: Vec<Heredoc>,
}

/// Which network a `RUN` has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Network {
    /// What the build may reach.
    #[default]
    Build,
    /// None at all.
    None,
}

impl Run {
    /// The command that really runs: a here-document that is the whole command is the shell's text; of several, the shell
    /// gets the command and the documents behind it.
    pub fn effective(&self) -> Effective {
        let Command::Shell(text) = &self.command else { return Effective::Command(self.command.clone()) };
        let [first, ..] = self.heredocs.as_slice() else { return Effective::Command(self.command.clone()) };
        if super::lines::heredoc(text).is_some() {
            let said = first.said();
            if said.starts_with("#!") {
                return Effective::Script { name: first.name.clone(), content: said };
            }
            return Effective::Command(Command::Shell(said));
        }
        let mut whole = text.clone();
        for heredoc in &self.heredocs {
            whole.push('\n');
            whole.push_str(&heredoc.content);
            whole.push_str(&heredoc.name);
        }
        Effective::Command(Command::Shell(whole))
    }
}

/// What a `RUN` really starts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effective {
    /// A command.
    Command(Command),
    /// A script that names its interpreter: a file that is started.
    Script {
        /// The here-document's name.
        name: String,
        /// The file.
        content: String,
    },
}

/// `HEALTHCHECK`
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Healthcheck {
    /// `HEALTHCHECK NONE`
    None,
    /// A command and how often it runs.
    Command {
        /// What runs.
        command: Command,
        /// `--interval`
        interval: Option<Duration>,
        /// `--timeout`
        timeout: Option<Duration>,
        /// `--start-period`
        start_period: Option<Duration>,
        /// `--start-interval`
        start_interval: Option<Duration>,
        /// `--retries`
        retries: Option<u32>,
    },
}

/// `FROM`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct From {
    /// Its line.
    pub line: usize,
    /// Its text.
    pub text: String,
    /// The image or stage as written, not expanded yet.
    pub image: String,
    /// `AS name`, in lower case.
    pub name: Option<String>,
    /// `--platform`, not expanded yet.
    pub platform: Option<String>,
}
