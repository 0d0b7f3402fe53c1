//! Runs a sandbox's Starlark script: questions come in at standard input, answers go out at standard output.
//!
//! It is started in a sandbox with nothing in it (`airlock_linux::alone`), which bounds its memory; whoever asks bounds its time. It
//! reads no file and knows no secret.

mod script;
mod values;

use airlock_protocol::script::{Answer, Ask, Said, read, write};
use script::Script;
use std::{
    io::{self, stdin, stdout},
    process::ExitCode,
};

fn main() -> ExitCode {
    match serve() {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

/// Answers until nobody asks any more.
fn serve() -> io::Result<()> {
    let (mut from, mut to) = (stdin().lock(), stdout().lock());
    let mut script = None;
    while let Some(ask) = read::<Ask>(&mut from)? {
        write(&mut to, &answer(&mut script, ask))?;
    }
    Ok(())
}

fn answer(script: &mut Option<Script>, ask: Ask) -> Answer {
    if let Ask::Load { name, text, secrets, steps } = ask {
        let (loaded, printed) = Script::load(&name, text, &secrets, steps);
        let said = match loaded {
            Ok(loaded) => {
                let hooks = loaded.hooks();
                *script = Some(loaded);
                Said::Ready(hooks)
            }
            Err(why) => Said::Failed(why),
        };
        return Answer { said, printed };
    }
    match script {
        Some(script) => script.answer(&ask),
        None => Answer { said: Said::Failed("no script was read".to_owned()), printed: Vec::new() },
    }
}
