//! A whole Dockerfile: stages, what each needs, and which are built. Pure and total.

use super::{
    Fault,
    instruction::{From, Instruction, Kind},
    lines, mount,
    parse::{self, Parsed},
    words::{self, Values},
};

/// Most stages.
const STAGES: usize = 1000;

/// A Dockerfile.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dockerfile {
    /// The escape character.
    pub escape: char,
    /// `ARG`s before the first `FROM`, each with its line.
    pub globals: Vec<Instruction>,
    /// The stages in their order.
    pub stages: Vec<Stage>,
}

/// One stage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stage {
    /// How it begins.
    pub from: From,
    /// What it does.
    pub instructions: Vec<Instruction>,
}

/// What a stage, a `COPY --from` or a mount takes files from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// Nothing.
    Scratch,
    /// An earlier stage.
    Stage(usize),
    /// An image.
    Image(String),
}

impl Dockerfile {
    /// Reads a Dockerfile.
    pub fn parse(text: &str) -> Result<Self, Fault> {
        let split = lines::split(text)?;
        let mut made = Self { escape: split.escape, globals: Vec::new(), stages: Vec::new() };
        for line in &split.lines {
            let fault = |why: &str| Fault::new(line.number, &line.text, why);
            match (parse::line(line, split.escape)?, made.stages.last_mut()) {
                (Parsed::From(from), _) => {
                    let taken = |stage: &Stage| from.name.is_some() && stage.from.name == from.name;
                    if made.stages.iter().any(taken) {
                        return Err(fault("another stage has this name"));
                    }
                    made.stages.push(Stage { from, instructions: Vec::new() });
                }
                (Parsed::Instruction(instruction), Some(stage)) => stage.instructions.push(instruction),
                (Parsed::Instruction(instruction), None) => match instruction.kind {
                    Kind::Arg(_) => made.globals.push(instruction),
                    _ => return Err(fault("before the first FROM there is nothing but ARG")),
                },
            }
            if made.stages.len() > STAGES {
                return Err(fault("a Dockerfile has at most 1000 stages"));
            }
        }
        if made.stages.is_empty() {
            let last = split.lines.last().map_or(1, |line| line.number);
            return Err(Fault::new(last, "", "there is no FROM: a Dockerfile begins a stage with it"));
        }
        Ok(made)
    }

    /// The stage that a name or number means: the last one without a name.
    pub fn target(&self, name: Option<&str>) -> Option<usize> {
        let Some(name) = name else { return self.stages.len().checked_sub(1) };
        self.stage_before(name, self.stages.len())
    }

    /// What `image` means in the `FROM` of stage `at`.
    pub fn base(&self, image: &str, at: usize) -> Origin {
        if image == "scratch" {
            return Origin::Scratch;
        }
        let named = self.stages.iter().take(at).rposition(|stage| {
            stage.from.name.as_deref().is_some_and(|name| name.eq_ignore_ascii_case(image))
        });
        named.map_or_else(|| Origin::Image(image.to_owned()), Origin::Stage)
    }

    /// What `--from=name` means in stage `at`.
    pub fn origin(&self, name: &str, at: usize) -> Origin {
        if name == "scratch" {
            return Origin::Scratch;
        }
        self.stage_before(name, at).map_or_else(|| Origin::Image(name.to_owned()), Origin::Stage)
    }

    fn stage_before(&self, name: &str, at: usize) -> Option<usize> {
        let named = self.stages.iter().take(at).rposition(|stage| {
            stage.from.name.as_deref().is_some_and(|known| known.eq_ignore_ascii_case(name))
        });
        named.or_else(|| name.parse().ok().filter(|number| *number < at))
    }

    /// What stage `at` takes files from besides its base.
    pub fn origins(&self, at: usize) -> Vec<Origin> {
        let instructions = self.stages.get(at).map(|stage| stage.instructions.as_slice()).unwrap_or_default();
        instructions.iter().flat_map(taken_from).map(|name| self.origin(&name, at)).collect()
    }

    /// What an image name in a `FROM` or its platform says, by the global `ARG`s.
    pub fn expanded(&self, text: &str, from: &From, values: Values<'_>) -> Result<String, Fault> {
        words::expand(text, self.escape, values)
            .map_err(|bad| Fault::new(from.line, &from.text, bad.to_string()))
    }

    /// Inserts what a base image demands of those who build from it.
    pub fn trigger(&mut self, at: usize, demands: &[String]) -> Result<(), Fault> {
        let Some(stage) = self.stages.get_mut(at) else { return Ok(()) };
        let mut inserted = Vec::new();
        for demand in demands {
            let fault = |why: String| {
                Fault::new(stage.from.line, &stage.from.text, format!("ONBUILD {demand}: {why}"))
            };
            for line in lines::split(demand).map_err(|bad| fault(bad.why))?.lines {
                match parse::line(&line, '\\').map_err(|bad| fault(bad.why))? {
                    Parsed::Instruction(instruction) if !matches!(instruction.kind, Kind::Onbuild(_)) => {
                        inserted.push(Instruction { line: stage.from.line, ..instruction });
                    }
                    _ => return Err(fault("cannot stand behind ONBUILD".to_owned())),
                }
            }
        }
        stage.instructions.splice(0..0, inserted);
        Ok(())
    }

    /// What a stage itself demands of stages and images built from it.
    pub fn demands(&self, at: usize) -> Vec<String> {
        let instructions = self.stages.get(at).map(|stage| stage.instructions.as_slice()).unwrap_or_default();
        let demand = |instruction: &Instruction| match &instruction.kind {
            Kind::Onbuild(text) => Some(text.clone()),
            _ => None,
        };
        instructions.iter().filter_map(demand).collect()
    }
}

/// The names behind `--from` and `from=` of one instruction.
fn taken_from(instruction: &Instruction) -> Vec<String> {
    match &instruction.kind {
        Kind::Copy(transfer) => transfer.from.iter().cloned().collect(),
        Kind::Run(run) => run.mounts.iter().filter_map(|text| mount::from(text)).map(str::to_owned).collect(),
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::build::instruction::Command;
    use proptest::prelude::*;

    fn fault(text: &str) -> (usize, String) {
        let fault = Dockerfile::parse(text).unwrap_err();
        (fault.line, fault.why)
    }

    #[test]
    fn stages_are_found_by_name_and_number() {
        let text =
            "ARG V=1\nFROM a AS Base\nRUN x\nFROM base\nCOPY --from=0 /a /b\nCOPY --from=other:1 /a /b\n";
        let file = Dockerfile::parse(text).unwrap();
        assert_eq!((file.globals.len(), file.stages.len()), (1, 2));
        assert_eq!(file.base("BASE", 1), Origin::Stage(0));
        assert_eq!(file.base("base", 0), Origin::Image("base".to_owned()));
        assert_eq!(file.origins(1), [Origin::Stage(0), Origin::Image("other:1".to_owned())]);
        assert_eq!(
            (file.target(None), file.target(Some("base")), file.target(Some("no"))),
            (Some(1), Some(0), None)
        );
    }

    #[test]
    fn what_is_wrong_is_told_with_its_line() {
        for (text, line, why) in [
            ("FROM a\nRUN\n", 2, "RUN requires an argument"),
            ("FROM a\n\nNOPE x\n", 3, "unknown instruction: NOPE"),
            ("RUN x\n", 1, "before the first FROM there is nothing but ARG"),
            ("FROM a\nCOPY x\n", 2, "COPY requires at least one source and a destination"),
            (
                "FROM a\nCOPY x y z\n",
                2,
                "with several sources, the destination is a directory and ends with /",
            ),
            ("FROM a b\n", 1, "FROM takes one image, or: FROM image AS name"),
            ("FROM a\nENV x\n", 2, "ENV takes name=value"),
            ("FROM a\nONBUILD FROM b\n", 2, "FROM cannot stand behind ONBUILD"),
            ("FROM a\nSHELL sh\n", 2, "SHELL takes a list in JSON form: SHELL [\"/bin/sh\", \"-c\"]"),
            ("FROM a\nCMD [1]\n", 2, "a list in JSON form holds strings only"),
            ("FROM a AS x\nFROM b AS X\n", 2, "another stage has this name"),
            ("", 1, "there is no FROM: a Dockerfile begins a stage with it"),
        ] {
            assert_eq!(fault(text), (line, why.to_owned()), "{text}");
        }
    }

    #[test]
    fn instructions_are_read_in_any_case() {
        let file =
            Dockerfile::parse("from a as b\nenv a b  c\ncmd [\"x\"]\nexpose 80 81/udp\nEntrypoint x y\n")
                .unwrap();
        let kinds: Vec<&Kind> =
            file.stages[0].instructions.iter().map(|instruction| &instruction.kind).collect();
        assert_eq!(
            kinds,
            [
                &Kind::Env(vec![("a".to_owned(), "b  c".to_owned())]),
                &Kind::Cmd(Command::Exec(vec!["x".to_owned()])),
                &Kind::Expose(vec!["80".to_owned(), "81/udp".to_owned()]),
                &Kind::Entrypoint(Command::Shell("x y".to_owned())),
            ]
        );
    }

    #[test]
    fn what_a_base_demands_comes_first() {
        let mut file = Dockerfile::parse("FROM a\nRUN last\n").unwrap();
        file.trigger(0, &["RUN <<E\nfirst\nE".to_owned(), "ENV a=b".to_owned()]).unwrap();
        let lines: Vec<usize> =
            file.stages[0].instructions.iter().map(|instruction| instruction.line).collect();
        assert_eq!(lines, [1, 1, 2]);
    }

    proptest! {
        #[test]
        fn any_text_is_a_dockerfile_or_refused(
            lines in prop::collection::vec(
                ("(FROM|ARG|ENV|RUN|COPY|ADD|LABEL|HEALTHCHECK|ONBUILD|VOLUME|SHELL|CMD|WORKDIR)", "[ a-z=\"'\\\\$\\[\\]<,/-]{0,20}"),
                0..10,
            )
        ) {
            let text: String = lines.iter().map(|(name, rest)| format!("{name} {rest}\n")).collect();
            if let Err(fault) = Dockerfile::parse(&text) {
                prop_assert!(fault.line >= 1 && fault.line <= lines.len().max(1));
            }
        }
    }
}
