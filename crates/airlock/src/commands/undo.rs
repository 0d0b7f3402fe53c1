//! `airlock undo`: the last apply is taken back.

use crate::{
    args::UndoArgs,
    commands::{diff::quoted, find, print_json, review},
    failure::{Failure, Outcome},
    home,
    say::{Voice, say_anyway},
};
use airlock_engine::review::refuse;
use airlock_files::review::{Since, Undone};
use std::{
    io::{self, Write as _},
    path::PathBuf,
};

pub(crate) fn undo(args: &UndoArgs) -> Outcome {
    let sandbox = find(&home::store()?, &args.sandbox)?;
    let opened = review::open_host(&sandbox)?;
    let mut journals = opened.journals()?;
    let since = if args.force { Since::Replace } else { Since::Refuse };
    let undone = journals.undo(opened.tree(), since).map_err(|err| Failure::from(refuse(&err)))?;
    let Some(undone) = undone else {
        return Err(Failure::new("there is nothing to undo")
            .code(1)
            .why("nothing of this sandbox was applied, or it was undone already"));
    };
    tell(&undone, args)?;
    Ok(0)
}

fn tell(undone: &Undone, args: &UndoArgs) -> Result<(), Failure> {
    let names = |paths: &[PathBuf]| -> Vec<String> { paths.iter().map(|path| quoted(path)).collect() };
    if args.json {
        return print_json(
            &serde_json::json!({ "restored": names(&undone.done), "kept": names(&undone.kept) }),
        );
    }
    let count = undone.done.len();
    writeln!(io::stdout(), "restored {count} {}", if count == 1 { "path" } else { "paths" })?;
    for path in &undone.kept {
        say_anyway(Voice::Normal, &format!("{} stays: it is not empty", quoted(path)));
    }
    Ok(())
}
