//! `airlock import`: a stopped sandbox of an exported file.

use super::print_json;
use crate::{
    args::ImportArgs,
    failure::{Failure, Outcome},
    home,
    progress::Progress,
    root,
    say::Voice,
};
use airlock_engine::snapshots::archive::import::{self, Wish};
use std::{fs::File, io::Write as _, path::Path};

pub(crate) fn import(args: &ImportArgs) -> Outcome {
    let store = home::store()?;
    let voice = if args.quiet { Voice::Quiet } else { Voice::Normal };
    let failed =
        |err: std::io::Error| Failure::because(format!("could not read {}", args.file.display()), &err);
    let file = match args.file == Path::new("-") {
        true => import::spool(&store, &mut std::io::stdin().lock(), args.most)?,
        false => {
            let mut file = File::open(&args.file).map_err(failed)?;
            match file.metadata().map_err(failed)?.is_file() {
                true => file,
                false => import::spool(&store, &mut file, args.most)?,
            }
        }
    };
    let workspace = match &args.workspace {
        Some(path) => Some(std::fs::canonicalize(path).map_err(|err| {
            Failure::because(format!("{} cannot be the workspace", path.display()), &err).code(2)
        })?),
        None => None,
    };
    let mut progress = Progress::new("unpacked", voice);
    let wish = Wish { name: args.name.clone(), workspace, most: args.most };
    // Its image stays until the sandbox names it.
    let _hold = root::hold_any(&store)?;
    let sandbox = import::import(&store, &file, &wish, &mut |bytes| progress.add(bytes))?;
    drop(progress);
    match args.json {
        true => print_json(&serde_json::json!({ "id": sandbox.id(), "name": sandbox.state()?.name }))?,
        false => writeln!(std::io::stdout(), "{}", sandbox.id())?,
    }
    Ok(0)
}
