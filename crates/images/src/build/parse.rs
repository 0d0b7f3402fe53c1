//! From a logical line to an instruction. Pure and total.

use super::{
    Fault, duration,
    instruction::{Command, From, Healthcheck, Instruction, Kind, Network, Run, Transfer},
    lines::Line,
    words,
};

/// One line of a Dockerfile.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Parsed {
    /// Begins a stage.
    From(From),
    /// Anything else.
    Instruction(Instruction),
}

/// Reads one line.
pub fn line(line: &Line, escape: char) -> Result<Parsed, Fault> {
    let (name, rest) = words::head(&line.text);
    let reader = Reader { line, escape };
    let name = name.to_ascii_uppercase();
    if name == "FROM" {
        return reader.from(rest).map(Parsed::From);
    }
    let kind = reader.kind(&name, rest)?;
    Ok(Parsed::Instruction(Instruction { line: line.number, text: line.text.clone(), kind }))
}

struct Reader<'l> {
    line: &'l Line,
    escape: char,
}

/// A flag: its name without dashes, its value if it has one.
type Flag = (String, Option<String>);

impl Reader<'_> {
    fn fault(&self, why: impl Into<String>) -> Fault {
        Fault::new(self.line.number, &self.line.text, why)
    }

    fn kind(&self, name: &str, rest: &str) -> Result<Kind, Fault> {
        if rest.is_empty() && !matches!(name, "CMD" | "ENTRYPOINT") {
            return Err(self.fault(format!("{name} requires an argument")));
        }
        match name {
            "RUN" => self.run(rest),
            "COPY" => self.transfer(name, rest).map(|transfer| Kind::Copy(Box::new(transfer))),
            "ADD" => self.transfer(name, rest).map(|transfer| Kind::Add(Box::new(transfer))),
            "HEALTHCHECK" => self.healthcheck(rest).map(Kind::Healthcheck),
            _ => {
                let (flags, rest) = self.flags(rest);
                if let Some((flag, _)) = flags.first() {
                    return Err(self.fault(format!("{name} has no flag --{flag}")));
                }
                self.plain(name, rest)
            }
        }
    }

    fn plain(&self, name: &str, rest: &str) -> Result<Kind, Fault> {
        Ok(match name {
            "ARG" => Kind::Arg(self.arguments(rest)?),
            "ENV" => Kind::Env(self.pairs("ENV", rest)?),
            "LABEL" => Kind::Label(self.pairs("LABEL", rest)?),
            "CMD" => Kind::Cmd(self.command(rest)?),
            "ENTRYPOINT" => Kind::Entrypoint(self.command(rest)?),
            "SHELL" => Kind::Shell(match words::list(rest) {
                Ok(list) if !list.is_empty() => list,
                _ => return Err(self.fault("SHELL takes a list in JSON form: SHELL [\"/bin/sh\", \"-c\"]")),
            }),
            "WORKDIR" => Kind::Workdir(rest.to_owned()),
            "USER" => Kind::User(rest.to_owned()),
            "EXPOSE" => Kind::Expose(rest.split_whitespace().map(str::to_owned).collect()),
            "VOLUME" => Kind::Volume(self.volumes(rest)?),
            "STOPSIGNAL" => Kind::StopSignal(rest.to_owned()),
            "MAINTAINER" => Kind::Maintainer(rest.to_owned()),
            "ONBUILD" => Kind::Onbuild(self.onbuild(rest)?),
            _ => return Err(self.fault(format!("unknown instruction: {name}"))),
        })
    }

    fn from(&self, rest: &str) -> Result<From, Fault> {
        let (flags, rest) = self.flags(rest);
        let mut platform = None;
        for (name, value) in flags {
            match (name.as_str(), value) {
                ("platform", Some(value)) => platform = Some(value),
                _ => return Err(self.fault(format!("FROM has no flag --{name}"))),
            }
        }
        let parts: Vec<&str> = rest.split_whitespace().collect();
        let (image, name) = match parts.as_slice() {
            [image] => (*image, None),
            [image, keyword, name] if keyword.eq_ignore_ascii_case("AS") => {
                (*image, Some(name.to_ascii_lowercase()))
            }
            _ => return Err(self.fault("FROM takes one image, or: FROM image AS name")),
        };
        if let Some(name) = &name {
            let is_name = name.starts_with(|char: char| char.is_ascii_lowercase())
                && name.chars().all(|char| char.is_ascii_alphanumeric() || matches!(char, '-' | '_' | '.'));
            if !is_name {
                return Err(
                    self.fault(format!("`{name}` is no name for a stage: letters, digits, `-`, `_`, `.`"))
                );
            }
        }
        let (line, text) = (self.line.number, self.line.text.clone());
        Ok(From { line, text, image: image.to_owned(), name, platform })
    }

    /// The flags before an instruction's arguments, quotes taken away, and the arguments.
    fn flags<'t>(&self, rest: &'t str) -> (Vec<Flag>, &'t str) {
        let mut flags = Vec::new();
        let mut rest = rest.trim_start();
        while rest.starts_with("--") {
            let end = flag_end(rest, self.escape);
            let (word, behind) = rest.split_at_checked(end).unwrap_or((rest, ""));
            rest = behind.trim_start();
            if word == "--" {
                break;
            }
            let word = bare(word.trim_start_matches('-'), self.escape);
            flags.push(match word.split_once('=') {
                Some((name, value)) => (name.to_owned(), Some(value.to_owned())),
                None => (word, None),
            });
        }
        (flags, rest)
    }

    fn command(&self, rest: &str) -> Result<Command, Fault> {
        match words::list(rest) {
            Ok(list) => Ok(Command::Exec(list)),
            Err(words::Bad::Strings) => Err(self.fault(words::Bad::Strings.to_string())),
            Err(_) if rest.is_empty() => Ok(Command::Exec(Vec::new())),
            Err(_) => Ok(Command::Shell(rest.to_owned())),
        }
    }

    fn run(&self, rest: &str) -> Result<Kind, Fault> {
        let (flags, rest) = self.flags(rest);
        let mut mounts = Vec::new();
        let mut network = Network::Build;
        for (name, value) in flags {
            match (name.as_str(), value.as_deref()) {
                ("mount", Some(value)) => mounts.push(value.to_owned()),
                ("network", Some("default")) => network = Network::Build,
                ("network", Some("none")) => network = Network::None,
                ("network", Some(other)) => {
                    return Err(self.fault(format!("a build has no network `{other}`: `default` or `none`")));
                }
                ("security", Some("sandbox")) => {}
                ("security", _) => return Err(self.fault("every RUN is in a sandbox: --security=sandbox")),
                _ => return Err(self.fault(format!("RUN has no flag --{name}"))),
            }
        }
        if rest.is_empty() {
            return Err(self.fault("RUN requires a command"));
        }
        let command = self.command(rest)?;
        if command == Command::Exec(Vec::new()) {
            return Err(self.fault("RUN requires a command"));
        }
        Ok(Kind::Run(Box::new(Run { mounts, network, command, heredocs: self.line.heredocs.clone() })))
    }

    fn transfer(&self, name: &str, rest: &str) -> Result<Transfer, Fault> {
        let (flags, rest) = self.flags(rest);
        let mut made = Transfer { heredocs: self.line.heredocs.clone(), ..Transfer::default() };
        for (flag, value) in flags {
            self.transfer_flag(name, &flag, value, &mut made)?;
        }
        let mut parts = match words::list(rest) {
            Ok(list) => list,
            Err(words::Bad::Strings) => return Err(self.fault(words::Bad::Strings.to_string())),
            Err(_) => words::split(rest, self.escape),
        };
        let Some(destination) = parts.pop().filter(|_| !parts.is_empty()) else {
            return Err(self.fault(format!("{name} requires at least one source and a destination")));
        };
        if parts.len() > 1 && !is_directory(&destination) {
            return Err(self.fault("with several sources, the destination is a directory and ends with /"));
        }
        if parts.iter().any(String::is_empty) {
            return Err(self.fault("a source is empty"));
        }
        (made.sources, made.destination) = (parts, destination);
        Ok(made)
    }

    fn transfer_flag(
        &self,
        name: &str,
        flag: &str,
        value: Option<String>,
        made: &mut Transfer,
    ) -> Result<(), Fault> {
        match (flag, value) {
            ("chown", Some(value)) => made.chown = Some(value),
            ("chmod", Some(value)) => made.chmod = Some(value),
            ("exclude", Some(value)) => made.exclude.push(value),
            // Every COPY is a layer of its own that depends on nothing below but where its destination leads.
            ("link", value) => drop(self.truth("link", value.as_deref())?),
            ("from", Some(value)) if name == "COPY" => made.from = Some(value),
            ("parents", value) if name == "COPY" => made.parents = self.truth("parents", value.as_deref())?,
            ("checksum", Some(value)) if name == "ADD" => made.checksum = Some(value),
            ("keep-git-dir", value) if name == "ADD" => {
                made.keep_git_dir = self.truth("keep-git-dir", value.as_deref())?;
            }
            ("unpack", value) if name == "ADD" => made.unpack = Some(self.truth("unpack", value.as_deref())?),
            _ => return Err(self.fault(format!("{name} has no flag --{flag}, or it lacks its value"))),
        }
        Ok(())
    }

    fn truth(&self, name: &str, value: Option<&str>) -> Result<bool, Fault> {
        match value {
            None | Some("true" | "1") => Ok(true),
            Some("false" | "0") => Ok(false),
            Some(_) => Err(self.fault(format!("--{name} is true or false"))),
        }
    }

    fn arguments(&self, rest: &str) -> Result<Vec<(String, Option<String>)>, Fault> {
        words::split(rest, self.escape)
            .into_iter()
            .map(|word| match word.split_once('=') {
                Some(("", _)) => Err(self.fault("an ARG has a name before its `=`")),
                Some((name, value)) => Ok((name.to_owned(), Some(value.to_owned()))),
                None => Ok((word, None)),
            })
            .collect()
    }

    /// `name=value …`, or the old form `name the rest`.
    fn pairs(&self, name: &str, rest: &str) -> Result<Vec<(String, String)>, Fault> {
        let words = words::split(rest, self.escape);
        if !words.first().is_some_and(|word| word.contains('=')) {
            let (key, value) = words::head(rest);
            if value.is_empty() {
                return Err(self.fault(format!("{name} takes name=value")));
            }
            return Ok(vec![(key.to_owned(), value.to_owned())]);
        }
        words
            .into_iter()
            .map(|word| match word.split_once('=') {
                Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
                _ => {
                    Err(self
                        .fault(format!("`{word}` is not name=value; a value with spaces stands in quotes")))
                }
            })
            .collect()
    }

    fn volumes(&self, rest: &str) -> Result<Vec<String>, Fault> {
        let volumes = match words::list(rest) {
            Ok(list) => list,
            Err(words::Bad::Strings) => return Err(self.fault(words::Bad::Strings.to_string())),
            Err(_) => rest.split_whitespace().map(str::to_owned).collect(),
        };
        if volumes.is_empty() || volumes.iter().any(|volume| volume.trim().is_empty()) {
            return Err(self.fault("a volume has a path"));
        }
        Ok(volumes)
    }

    fn onbuild(&self, rest: &str) -> Result<String, Fault> {
        let (name, _) = words::head(rest);
        if ["ONBUILD", "FROM", "MAINTAINER"].iter().any(|not| name.eq_ignore_ascii_case(not)) {
            return Err(self.fault(format!("{} cannot stand behind ONBUILD", name.to_ascii_uppercase())));
        }
        // What is wrong with it is told now, not to whoever builds from it.
        let inner =
            Line { number: self.line.number, text: rest.to_owned(), heredocs: self.line.heredocs.clone() };
        line(&inner, self.escape)?;
        let mut text = rest.to_owned();
        for heredoc in &self.line.heredocs {
            text.push('\n');
            text.push_str(&heredoc.content);
            text.push_str(&heredoc.name);
        }
        Ok(text)
    }

    fn healthcheck(&self, rest: &str) -> Result<Healthcheck, Fault> {
        let (flags, rest) = self.flags(rest);
        let (keyword, arguments) = words::head(rest);
        if keyword.eq_ignore_ascii_case("NONE") {
            let is_bare = flags.is_empty() && arguments.is_empty();
            return if is_bare {
                Ok(Healthcheck::None)
            } else {
                Err(self.fault("HEALTHCHECK NONE takes nothing else"))
            };
        }
        if !keyword.eq_ignore_ascii_case("CMD") || arguments.is_empty() {
            return Err(self.fault("HEALTHCHECK takes CMD and a command, or NONE"));
        }
        let (mut interval, mut timeout, mut start_period, mut start_interval, mut retries) =
            (None, None, None, None, None);
        for (name, value) in flags {
            let value = value.unwrap_or_default();
            let place = match name.as_str() {
                "interval" => &mut interval,
                "timeout" => &mut timeout,
                "start-period" => &mut start_period,
                "start-interval" => &mut start_interval,
                "retries" => {
                    let count = value.parse().map_err(|_| self.fault("--retries takes a number"))?;
                    retries = Some(count);
                    continue;
                }
                _ => return Err(self.fault(format!("HEALTHCHECK has no flag --{name}"))),
            };
            let taken = duration::parse(&value).ok_or_else(|| {
                self.fault(format!("--{name} takes a time such as 30s or 1m30s, not `{value}`"))
            })?;
            *place = Some(taken);
        }
        let command = self.command(arguments)?;
        Ok(Healthcheck::Command { command, interval, timeout, start_period, start_interval, retries })
    }
}

/// Whether a destination, as written, is a directory.
pub fn is_directory(destination: &str) -> bool {
    destination.ends_with('/') || matches!(destination, "." | "..") || destination.ends_with("/.")
}

/// Where a flag ends: at a space outside quotes.
fn flag_end(text: &str, escape: char) -> usize {
    let mut quote = None;
    let mut chars = text.char_indices();
    while let Some((at, char)) = chars.next() {
        match quote {
            None if char.is_whitespace() => return at,
            _ if char == escape && quote != Some('\'') => drop(chars.next()),
            None if matches!(char, '"' | '\'') => quote = Some(char),
            Some(open) if open == char => quote = None,
            _ => {}
        }
    }
    text.len()
}

/// A word without its quotes and escapes.
fn bare(word: &str, escape: char) -> String {
    let mut made = String::new();
    let mut quote = None;
    let mut chars = word.chars();
    while let Some(char) = chars.next() {
        match quote {
            _ if char == escape && quote != Some('\'') => made.extend(chars.next()),
            None if matches!(char, '"' | '\'') => quote = Some(char),
            Some(open) if open == char => quote = None,
            _ => made.push(char),
        }
    }
    made
}
