//! `airlock export`: a sandbox's files in one portable file.

use super::{remove, snapshot};
use crate::{
    args::ExportSandboxArgs,
    epoch,
    failure::{Failure, Outcome},
    home,
    progress::Progress,
    say::{Voice, say},
};
use airlock_engine::{
    snapshots::{
        Guard, archive,
        fork::Origin,
        kept::{self, Snapshot},
        root,
    },
    store::{self, Store},
};
use airlock_protocol::SandboxId;
use std::{
    fs::File,
    io::{BufWriter, IsTerminal as _, Write as _},
    os::fd::AsFd as _,
    path::Path,
};

/// What could not be done.
const NO_ROOT: &str = "the root of this sandbox cannot be exported";

pub(crate) fn export(args: &ExportSandboxArgs) -> Outcome {
    let is_stdout = args.output == Path::new("-");
    if is_stdout && std::io::stdout().is_terminal() {
        return Err(Failure::new("an archive is nothing for a terminal").code(2).fix("-o FILE, or a pipe"));
    }
    let voice = if args.quiet { Voice::Quiet } else { Voice::Normal };
    let store = home::store()?;
    if args.rootfs
        && let Ok(sandbox) = store.find(&args.source)
    {
        // Before it is frozen or copied.
        root::refuse_host(&sandbox.spec()?, NO_ROOT)?;
    }
    let (guard, origin) = snapshot::origin(&store, &args.source, voice)?;
    let held = hold(guard, &origin)?;
    let written = match is_stdout {
        true => std::io::stdout()
            .as_fd()
            .try_clone_to_owned()
            .map_err(Failure::from)
            .and_then(|stdout| write(&store, args, &origin, voice, &mut File::from(stdout))),
        false => write_file(&store, args, &origin, voice),
    };
    release(&store, &held)?;
    written.map(|()| 0)
}

/// Keeps the layers from going while they are read, without keeping others from forking.
fn hold(guard: Guard, origin: &Origin) -> Result<Snapshot, Failure> {
    let name = format!("export-{}-{}", std::process::id(), store::now().replace([':', '.'], "-"));
    let name = name.parse().map_err(|err| Failure::because("could not begin the export", &err))?;
    // Nobody looks for what it is of: it goes with this command.
    let id: SandboxId =
        "000000000000".parse().map_err(|err| Failure::because("could not begin the export", &err))?;
    Ok(kept::keep(
        &guard,
        Snapshot {
            sandbox: id.clone(),
            id,
            name,
            created_at: store::now(),
            copied_since: None,
            chain: origin.chain.clone(),
            spec: origin.spec.clone(),
            memory: false,
        },
        None,
    )?)
}

fn release(store: &Store, held: &Snapshot) -> Result<(), Failure> {
    kept::remove(&Guard::take(store)?, held)?;
    remove::collect(store).map(drop)
}

/// Beside its place first: what stands there under its name is whole.
fn write_file(store: &Store, args: &ExportSandboxArgs, origin: &Origin, voice: Voice) -> Result<(), Failure> {
    let failed =
        |err: std::io::Error| Failure::because(format!("could not write {}", args.output.display()), &err);
    let mut unfinished = args.output.as_os_str().to_owned();
    unfinished.push(format!(".{}", std::process::id()));
    let mut file = File::create_new(&unfinished).map_err(failed)?;
    let written = write(store, args, origin, voice, &mut file).and_then(|()| {
        file.sync_all().and_then(|()| std::fs::rename(&unfinished, &args.output)).map_err(failed)
    });
    if written.is_err() {
        let _ = std::fs::remove_file(&unfinished);
    }
    written
}

fn write(
    store: &Store,
    args: &ExportSandboxArgs,
    origin: &Origin,
    voice: Voice,
    out: &mut File,
) -> Result<(), Failure> {
    let mut progress = Progress::new("packed", voice);
    if args.rootfs {
        let epoch = epoch::from_environment()?;
        let left_out = root::whole(store, origin, epoch, out, &mut |bytes| progress.add(bytes))?;
        tell(left_out, voice);
        return Ok(());
    }
    let mut out = BufWriter::with_capacity(1 << 20, out);
    let exported =
        archive::export::export(store, origin, args.level, &mut out, &mut |bytes| progress.add(bytes))?;
    out.flush()?;
    tell(exported.left_out, voice);
    Ok(())
}

fn tell(left_out: u64, voice: Voice) {
    if left_out > 0 {
        say(voice, &format!("{left_out} sockets and files named .wh.* are not in the archive"));
    }
}
