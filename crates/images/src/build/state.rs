//! What a stage has become so far: its config, its arguments, its history. Instructions that change no file are done
//! here whole. Pure and total.

use super::{
    Fault, duration, gotext,
    instruction::{Healthcheck, Instruction, Kind},
    path,
    scope::{Declared, Scope, is_proxy},
    words,
};
use crate::manifest::{self, Config, History, Other};
use serde_json::{Map, Value};
use std::time::Duration;

/// What programs are found by where an image says nothing.
pub const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// Most bytes of variables and labels of an image.
const MOST: usize = 4 << 20;

/// A stage so far.
#[derive(Debug, Clone)]
pub struct State {
    /// The config, with the layers and the history.
    pub config: Config,
    /// Its arguments.
    pub declared: Declared,
    escape: char,
    /// Whether this stage, and not its base, said what runs.
    has_cmd: bool,
}

impl State {
    /// A stage that goes on from a config. What that demanded of builds is not inherited.
    pub fn new(mut config: Config, escape: char) -> Self {
        config.config.on_build.clear();
        if !config.config.env.iter().any(|pair| pair.starts_with("PATH=")) {
            config.config.env.push(format!("PATH={PATH}"));
        }
        Self { config, declared: Declared::default(), escape, has_cmd: false }
    }

    /// A value by Docker's rules: the image's variables count before arguments.
    pub fn value(&self, scope: &Scope, name: &str) -> Option<String> {
        let own = self.config.config.env.iter().find_map(|pair| {
            let (key, value) = pair.split_once('=')?;
            (key == name).then(|| value.to_owned())
        });
        let declared = || self.declared.value(name).map(str::to_owned);
        let proxy = || scope.proxies().into_iter().find(|(known, _)| known == name).map(|(_, value)| value);
        own.or_else(declared).or_else(proxy)
    }

    /// A word of an instruction, expanded.
    pub fn expand(&self, scope: &Scope, instruction: &Instruction, text: &str) -> Result<String, Fault> {
        words::expand(text, self.escape, &|name| self.value(scope, name))
            .map_err(|bad| Fault::new(instruction.line, &instruction.text, bad.to_string()))
    }

    /// The escape character of the file.
    pub fn escape(&self) -> char {
        self.escape
    }

    /// The shell of commands that are texts.
    pub fn shell(&self) -> Vec<String> {
        match &self.config.config.shell {
            Some(shell) if !shell.is_empty() => shell.clone(),
            _ => vec!["/bin/sh".to_owned(), "-c".to_owned()],
        }
    }

    /// Where relative paths begin.
    pub fn workdir(&self) -> &str {
        match self.config.config.working_dir.as_str() {
            "" => "/",
            workdir => workdir,
        }
    }

    /// The variables a `RUN` has: the image's, then arguments that it has not.
    pub fn run_env(&self, scope: &Scope) -> Vec<String> {
        let mut env = self.config.config.env.clone();
        let mut known: Vec<String> =
            env.iter().filter_map(|pair| pair.split_once('=')).map(|(name, _)| name.to_owned()).collect();
        for (name, value) in self.declared.values().into_iter().chain(scope.proxies()) {
            if !known.contains(&name) {
                env.push(format!("{name}={value}"));
                known.push(name);
            }
        }
        env
    }

    /// The arguments that count for a `RUN`'s cache and stand in its history.
    pub fn run_arguments(&self) -> Vec<String> {
        let own: Vec<&str> =
            self.config.config.env.iter().filter_map(|pair| Some(pair.split_once('=')?.0)).collect();
        let counts = |(name, _): &(String, String)| !is_proxy(name) && !own.contains(&name.as_str());
        self.declared
            .values()
            .into_iter()
            .filter(counts)
            .map(|(name, value)| format!("{name}={value}"))
            .collect()
    }

    /// Does an instruction that changes no file and says how it stands in the history. `None`: it changes files.
    pub fn apply(&mut self, scope: &Scope, instruction: &Instruction) -> Result<Option<String>, Fault> {
        let expand = |text: &str| self.expand(scope, instruction, text);
        let said = match &instruction.kind {
            Kind::Copy(_) | Kind::Add(_) | Kind::Run(_) | Kind::Workdir(_) => return Ok(None),
            Kind::Arg(pairs) => return self.argue(scope, instruction, pairs).map(Some),
            Kind::Env(pairs) => {
                let pairs = expand_pairs(pairs, &expand)?;
                self.set_env(&pairs);
                format!("ENV{}", said_pairs(&pairs))
            }
            Kind::Label(pairs) => {
                let pairs = expand_pairs(pairs, &expand)?;
                self.config.config.labels.extend(pairs.iter().cloned());
                format!("LABEL{}", said_pairs(&pairs))
            }
            Kind::User(text) => {
                let user = expand(text)?;
                self.config.config.user.clone_from(&user);
                format!("USER {user}")
            }
            Kind::StopSignal(text) => {
                let signal = expand(text)?;
                if !is_signal(&signal) {
                    return Err(Fault::new(
                        instruction.line,
                        &instruction.text,
                        format!("no such signal: {signal}"),
                    ));
                }
                self.config.config.stop_signal = Some(signal.clone());
                format!("STOPSIGNAL {signal}")
            }
            Kind::Volume(paths) => {
                let paths = paths.iter().map(|path| expand(path)).collect::<Result<Vec<_>, _>>()?;
                let empty = || Value::Object(Map::new());
                self.config.config.volumes.extend(paths.iter().map(|path| (path.clone(), empty())));
                format!("VOLUME {}", gotext::plain_list(&paths))
            }
            Kind::Expose(ports) => self.expose(scope, instruction, ports)?,
            _ => self.say(&instruction.kind),
        };
        self.bound(instruction)?;
        Ok(Some(said))
    }

    /// Instructions without variables.
    fn say(&mut self, kind: &Kind) -> String {
        let shell = self.shell();
        let run = &mut self.config.config;
        match kind {
            Kind::Cmd(command) => {
                let words = command.words(&shell);
                let said = format!("CMD {}", gotext::quoted_list(&words));
                run.cmd = Some(words);
                self.has_cmd = true;
                said
            }
            Kind::Entrypoint(command) => {
                let words = command.words(&shell);
                let said = format!("ENTRYPOINT {}", gotext::quoted_list(&words));
                run.entrypoint = Some(words).filter(|words| !words.is_empty());
                if !self.has_cmd {
                    run.cmd = None;
                }
                said
            }
            Kind::Shell(words) => {
                run.shell = Some(words.clone());
                format!("SHELL {}", gotext::plain_list(words))
            }
            Kind::Healthcheck(check) => {
                let (check, said) = health(check);
                run.healthcheck = Some(check);
                said
            }
            Kind::Maintainer(author) => {
                self.config.author = Some(author.clone());
                format!("MAINTAINER {author}")
            }
            Kind::Onbuild(text) => {
                run.on_build.push(text.clone());
                format!("ONBUILD {text}")
            }
            _ => String::new(),
        }
    }

    fn argue(
        &mut self,
        scope: &Scope,
        instruction: &Instruction,
        pairs: &[(String, Option<String>)],
    ) -> Result<String, Fault> {
        let mut said = String::from("ARG");
        for (name, value) in pairs {
            let name = self.expand(scope, instruction, name)?;
            let value = value.as_ref().map(|value| self.expand(scope, instruction, value)).transpose()?;
            said.push_str(&match &value {
                Some(value) => format!(" {name}={value}"),
                None => format!(" {name}"),
            });
            self.declared.declare(scope, &name, value);
        }
        Ok(said)
    }

    fn set_env(&mut self, pairs: &[(String, String)]) {
        let env = &mut self.config.config.env;
        for (name, value) in pairs {
            let pair = format!("{name}={value}");
            match env.iter_mut().find(|known| known.split_once('=').is_some_and(|(key, _)| key == name)) {
                Some(known) => *known = pair,
                None => env.push(pair),
            }
        }
    }

    fn expose(
        &mut self,
        scope: &Scope,
        instruction: &Instruction,
        ports: &[String],
    ) -> Result<String, Fault> {
        let fault = |why: String| Fault::new(instruction.line, &instruction.text, why);
        let mut said = Vec::new();
        for port in ports {
            let words = words::expand_words(port, self.escape, &|name| self.value(scope, name));
            for word in words.map_err(|bad| fault(bad.to_string()))? {
                let exposed = exposed(&word).ok_or_else(|| fault(format!("no port: {word}")))?;
                let ports = exposed.into_iter().map(|port| (port, Value::Object(Map::new())));
                self.config.config.exposed_ports.extend(ports);
                said.push(word);
            }
        }
        said.sort();
        Ok(format!("EXPOSE {}", said.join(" ")))
    }

    /// The directory that a `WORKDIR` means, which becomes the working directory.
    pub fn enter(&mut self, scope: &Scope, instruction: &Instruction, text: &str) -> Result<String, Fault> {
        let text = self.expand(scope, instruction, text)?;
        if text.is_empty() {
            return Err(Fault::new(instruction.line, &instruction.text, "WORKDIR is empty"));
        }
        let workdir = path::joined(self.workdir(), &text);
        self.config.config.working_dir.clone_from(&workdir);
        Ok(workdir)
    }

    /// One more step in the history; `said` is what Docker writes behind the shell.
    pub fn remember(&mut self, created: &str, said: String, is_empty: bool) {
        self.config.history.push(History {
            created: Some(created.to_owned()),
            created_by: Some(said),
            author: self.config.author.clone(),
            comment: None,
            empty_layer: is_empty,
            other: Other::new(),
        });
    }

    /// `said` with the image's shell before it, as histories have it for what runs nothing.
    pub fn nothing_ran(&self, said: &str) -> String {
        format!("{} #(nop) {said}", self.shell().join(" "))
    }

    fn bound(&self, instruction: &Instruction) -> Result<(), Fault> {
        let run = &self.config.config;
        let labels: usize = run.labels.iter().map(|(name, value)| name.len() + value.len()).sum();
        let env: usize = run.env.iter().map(String::len).sum();
        if env + labels + run.volumes.len() * 16 + run.exposed_ports.len() * 16 > MOST {
            return Err(Fault::new(
                instruction.line,
                &instruction.text,
                "the image's config becomes too large",
            ));
        }
        Ok(())
    }
}

fn expand_pairs(
    pairs: &[(String, String)],
    expand: &dyn Fn(&str) -> Result<String, Fault>,
) -> Result<Vec<(String, String)>, Fault> {
    pairs.iter().map(|(name, value)| Ok((expand(name)?, expand(value)?))).collect()
}

fn said_pairs(pairs: &[(String, String)]) -> String {
    pairs.iter().map(|(name, value)| format!(" {name}={value}")).collect()
}

/// The ports of `80`, `80/udp`, `80-90/tcp`, `8080:80`.
fn exposed(text: &str) -> Option<Vec<String>> {
    let (ports, protocol) = text.split_once('/').unwrap_or((text, "tcp"));
    let protocol = protocol.to_ascii_lowercase();
    if !matches!(protocol.as_str(), "tcp" | "udp" | "sctp") {
        return None;
    }
    let ports = ports.rsplit(':').next()?;
    let (first, last) = ports.split_once('-').unwrap_or((ports, ports));
    let (first, last): (u16, u16) = (first.parse().ok()?, last.parse().ok()?);
    (first <= last).then(|| (first..=last).map(|port| format!("{port}/{protocol}")).collect())
}

fn health(check: &Healthcheck) -> (manifest::Healthcheck, String) {
    let nanos =
        |time: &Option<Duration>| i64::try_from(time.unwrap_or_default().as_nanos()).unwrap_or(i64::MAX);
    let mut made = manifest::Healthcheck::default();
    let mut times = [None; 4];
    let mut count = 0;
    match check {
        Healthcheck::None => made.test = vec!["NONE".to_owned()],
        Healthcheck::Command { command, interval, timeout, start_period, start_interval, retries } => {
            made.test = match command {
                super::instruction::Command::Shell(text) => vec!["CMD-SHELL".to_owned(), text.clone()],
                super::instruction::Command::Exec(words) => {
                    std::iter::once("CMD".to_owned()).chain(words.iter().cloned()).collect()
                }
            };
            times = [*interval, *timeout, *start_period, *start_interval];
            count = retries.unwrap_or_default();
        }
    }
    let [interval, timeout, start_period, start_interval] = &times;
    (made.interval, made.timeout) = (nanos(interval), nanos(timeout));
    (made.start_period, made.start_interval) = (nanos(start_period), nanos(start_interval));
    made.retries = count.into();
    let times: Vec<String> =
        times.iter().map(|time| gotext::quoted(&duration::write(time.unwrap_or_default()))).collect();
    let said = format!(
        "HEALTHCHECK &{{{} {} {}}}",
        gotext::quoted_list(&made.test),
        times.join(" "),
        gotext::quoted_number(count)
    );
    (made, said)
}

const SIGNALS: &str = " ABRT ALRM BUS CHLD CLD CONT FPE HUP ILL INT IO IOT KILL PIPE POLL PROF PWR QUIT SEGV STKFLT STOP SYS \
TERM TRAP TSTP TTIN TTOU URG USR1 USR2 VTALRM WINCH XCPU XFSZ ";

fn is_signal(text: &str) -> bool {
    if let Ok(number) = text.parse::<u8>() {
        return (1..=64).contains(&number);
    }
    let name = text.to_ascii_uppercase();
    let name = name.strip_prefix("SIG").unwrap_or(&name);
    !name.contains(' ')
        && (SIGNALS.contains(&format!(" {name} ")) || name.starts_with("RTMIN") || name.starts_with("RTMAX"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{build::dockerfile::Dockerfile, manifest::Platform};
    use proptest::prelude::*;

    fn built(text: &str, given: &[(&str, &str)]) -> Result<(Config, Vec<String>), Fault> {
        let file = Dockerfile::parse(text)?;
        let platform = Platform {
            architecture: "amd64".to_owned(),
            os: "linux".to_owned(),
            variant: None,
            other: Other::new(),
        };
        let given = given.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let scope = Scope::new(&file, given, &platform, &platform)?;
        let mut state = State::new(Config::of(&platform, String::new()), file.escape);
        let mut said = Vec::new();
        for instruction in &file.stages[0].instructions {
            if let Kind::Workdir(text) = &instruction.kind {
                said.push(state.enter(&scope, instruction, text)?);
            }
            said.extend(state.apply(&scope, instruction)?);
        }
        said.extend(state.run_arguments());
        Ok((state.config, said))
    }

    #[test]
    fn configs_and_histories_are_as_dockers() {
        let text = "FROM a\nENV a=1 b=\"two words\"\nENV c $a-x\nLABEL l=$b\nEXPOSE 80 90-91/udp\nVOLUME /v /w\n\
            CMD echo $a\nENTRYPOINT [\"x\"]\nHEALTHCHECK --interval=5s --retries=3 CMD true\nSTOPSIGNAL SIGINT\n\
            WORKDIR /a\nWORKDIR b\nUSER me\nSHELL [\"/bin/bash\", \"-c\"]\nONBUILD RUN x\nMAINTAINER Ada\n";
        let (config, said) = built(text, &[]).unwrap();
        let run = &config.config;
        assert_eq!(run.env, [&format!("PATH={PATH}"), "a=1", "b=two words", "c=1-x"]);
        assert_eq!(run.labels["l"], "two words");
        assert_eq!(run.exposed_ports.keys().collect::<Vec<_>>(), ["80/tcp", "90/udp", "91/udp"]);
        assert_eq!(run.cmd.as_deref().unwrap(), ["/bin/sh", "-c", "echo $a"]);
        assert_eq!(run.entrypoint.as_deref().unwrap(), ["x"]);
        assert_eq!((run.working_dir.as_str(), run.user.as_str()), ("/a/b", "me"));
        assert_eq!(run.healthcheck.as_ref().unwrap().interval, 5_000_000_000);
        assert_eq!(run.on_build, ["RUN x"]);
        assert_eq!(config.author.as_deref(), Some("Ada"));
        assert_eq!(
            said,
            [
                "ENV a=1 b=two words",
                "ENV c=1-x",
                "LABEL l=two words",
                "EXPOSE 80 90-91/udp",
                "VOLUME [/v /w]",
                "CMD [\"/bin/sh\" \"-c\" \"echo $a\"]",
                "ENTRYPOINT [\"x\"]",
                "HEALTHCHECK &{[\"CMD-SHELL\" \"true\"] \"5s\" \"0s\" \"0s\" \"0s\" '\\x03'}",
                "STOPSIGNAL SIGINT",
                "/a",
                "/a/b",
                "USER me",
                "SHELL [/bin/bash -c]",
                "ONBUILD RUN x",
                "MAINTAINER Ada",
            ]
        );
    }

    #[test]
    fn arguments_count_from_where_they_are_declared() {
        let text = "ARG G=global\nARG H=h-$G\nFROM a\nENV before=$G$TARGETARCH\nARG G\nARG H\nARG D=default\n\
            ARG TARGETARCH\nENV after=$G-$H-$D-$TARGETARCH\n";
        let (config, said) = built(text, &[("D", "given")]).unwrap();
        assert_eq!(config.config.env[1..], ["before=", "after=global-h-global-given-amd64"]);
        assert_eq!(said[said.len() - 4..], ["D=given", "G=global", "H=h-global", "TARGETARCH=amd64"]);
    }

    #[test]
    fn a_variable_of_the_image_counts_before_an_argument() {
        let (config, _) = built("FROM a\nENV x=env\nARG x=arg\nENV y=$x\n", &[("x", "given")]).unwrap();
        assert_eq!(config.config.env[1..], ["x=env", "y=env"]);
    }

    #[test]
    fn a_new_entrypoint_takes_the_bases_command_away() {
        let mut config = built("FROM a\nCMD x\n", &[]).unwrap().0;
        config.config.on_build.push("RUN y".to_owned());
        let mut state = State::new(config, '\\');
        assert_eq!(state.config.config.on_build, [""; 0]);
        state.say(&Kind::Entrypoint(super::super::instruction::Command::Exec(vec!["e".to_owned()])));
        assert_eq!(state.config.config.cmd, None);
    }

    #[test]
    fn what_is_wrong_is_told_with_its_line() {
        for (text, why) in [
            ("FROM a\nEXPOSE x\n", "no port: x"),
            ("FROM a\nSTOPSIGNAL NOPE\n", "no such signal: NOPE"),
            ("FROM a\nENV a=${b\n", "`${` is not closed by `}`"),
        ] {
            let fault = built(text, &[]).unwrap_err();
            assert_eq!((fault.line, fault.why.as_str()), (2, why));
        }
    }

    proptest! {
        #[test]
        fn any_instruction_is_done_or_refused(
            lines in prop::collection::vec(
                ("(ARG|ENV|LABEL|EXPOSE|VOLUME|USER|STOPSIGNAL|HEALTHCHECK CMD)", "[ a-c=$0-9{}:/\"-]{1,20}"),
                0..10,
            )
        ) {
            let text: String = lines.iter().map(|(name, rest)| format!("{name} {rest}\n")).collect();
            let _ = built(&format!("FROM a\n{text}"), &[("a", "$a$a")]);
        }
    }
}
