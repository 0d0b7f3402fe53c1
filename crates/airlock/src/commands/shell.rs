//! `airlock shell`: a person's own shell, in a new sandbox or in one that runs.

use super::{exec, run};
use crate::{
    args::{ExecArgs, ShellArgs, values::EnvWord},
    failure::{Failure, Outcome},
    streams::{Kind, Ours},
};

/// Starts the first of the person's shell, bash and sh that is inside.
const SCRIPT: &str =
    r#"for shell in "$1" bash; do command -v "$shell" >/dev/null 2>&1 && exec "$shell"; done; exec sh"#;
/// Flags that make a difference to a sandbox that runs.
const COUNT: [&str; 4] = ["user", "workdir", "env", "quiet"];
/// What tells about the terminal.
const TERMINAL: [&str; 3] = ["TERM", "COLORTERM", "NO_COLOR"];

pub(crate) fn shell(mut args: ShellArgs) -> Outcome {
    let own = std::env::var("SHELL").unwrap_or_default();
    let command = ["/bin/sh", "-c", SCRIPT, "sh", &own].map(str::to_owned).to_vec();
    let Some(sandbox) = args.sandbox().map(str::to_owned) else {
        args.run.command = command;
        // The image's own program would take the shell for its arguments.
        args.run.entrypoint.get_or_insert_default();
        return run::run(&mut args.run);
    };
    if let Some(flag) = args.typed.iter().find(|flag| !COUNT.contains(&flag.as_str())) {
        return Err(Failure::new(format!("--{flag} cannot be given to a sandbox that runs"))
            .code(2)
            .why(format!("{sandbox} was made without it"))
            .fix(format!("airlock shell --{flag} … makes a new one")));
    }
    let [stdin, stdout, _] = Ours::new().kinds()?;
    let workdir = args.run.workdir.map(|path| path.to_string_lossy().into_owned());
    let terminal = TERMINAL.map(|name| EnvWord::FromHost(name.to_owned()));
    let args = ExecArgs {
        sandbox,
        command,
        interactive: true,
        tty: (stdin, stdout) == (Kind::Terminal, Kind::Terminal),
        env: terminal.into_iter().chain(args.run.env).collect(),
        workdir,
        user: args.run.user,
    };
    exec::exec(&args)
}
