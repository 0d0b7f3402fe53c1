//! `airlock images load`, `save` and `import`.

use super::{Images, Summary};
use crate::{
    args::{ImportImageArgs, LoadArgs, SaveArgs, SaveFormat},
    commands::print_json,
    epoch,
    failure::{Failure, Outcome},
    progress::Progress,
    say::Voice,
};
use airlock_images::{
    archive::{self, Import, Layout, Loaded},
    commit,
    manifest::{Config, Platform},
    reference::Reference,
    store::{Image, Which},
};
use std::{
    collections::BTreeSet,
    fs::{self, File},
    io::{self, IsTerminal as _, Read, Write},
    path::Path,
    time::Duration,
};

pub(super) fn load(images: &Images, args: &LoadArgs) -> Outcome {
    let voice = if args.quiet { Voice::Quiet } else { Voice::Normal };
    let hold = images.store.hold()?;
    let mut progress = Progress::new("loaded", voice);
    let mut heard = |bytes| progress.add(bytes);
    let loaded = match &args.input {
        Some(path) if path.is_dir() => archive::load_directory(&hold, path, &mut heard),
        Some(path) => archive::load(&hold, open(path)?, &mut heard),
        None => archive::load(&hold, standard_input("an archive of images", "-i FILE")?, &mut heard),
    };
    drop(progress);
    drop(hold);
    if loaded.is_err() {
        sweep(images);
    }
    for Loaded { image, names } in loaded? {
        if args.json {
            print_json(&Summary::of(&image))?;
        } else if args.quiet {
            writeln!(io::stdout(), "{}", image.id.short())?;
        } else if names.is_empty() {
            writeln!(io::stdout(), "Loaded image ID: {}", image.id)?;
        } else {
            names.iter().try_for_each(|name| writeln!(io::stdout(), "Loaded image: {name}"))?;
        }
    }
    Ok(0)
}

pub(super) fn save(images: &Images, args: &SaveArgs) -> Outcome {
    let hold = images.store.hold()?;
    let mut wanted: Vec<(Image, Vec<Reference>)> = Vec::new();
    for selector in &args.images {
        let image = hold.find(selector)?;
        let names = chosen(&image, selector);
        match wanted.iter_mut().find(|(other, _)| other.id == image.id) {
            Some((_, before)) => {
                before.extend(names.into_iter().filter(|name| !before.contains(name)).collect::<Vec<_>>())
            }
            None => wanted.push((image, names)),
        }
    }
    let layout = match args.format {
        SaveFormat::Docker => Layout::Docker,
        SaveFormat::Oci => Layout::Oci,
    };
    let mut progress = Progress::new("saved", Voice::Normal);
    let mut outcome = Ok(());
    let mut write = |to: &mut dyn Write| {
        args.compress
            .encode(io::BufWriter::with_capacity(256 << 10, to), |to| {
                outcome = archive::save(&hold, &wanted, layout, to, &mut |bytes| progress.add(bytes));
                match &outcome {
                    Ok(()) => Ok(()),
                    Err(_) => Err(io::Error::other("the images could not be written")),
                }
            })?
            .flush()
    };
    let written = match &args.output {
        Some(path) => to_file(path, &mut write),
        None if io::stdout().is_terminal() => {
            return Err(Failure::new("an archive is not for a terminal")
                .code(2)
                .why("standard output is a terminal")
                .fix("airlock images save -o FILE IMAGE, or send it to another program"));
        }
        None => write(&mut io::stdout().lock()),
    };
    outcome?;
    match (written, &args.output) {
        (Ok(()), _) => Ok(0),
        (Err(err), Some(path)) => Err(Failure::because(format!("could not write {}", path.display()), &err)),
        (Err(err), None) => Err(err.into()),
    }
}

/// A file is there when all of it is.
fn to_file(path: &Path, write: &mut dyn FnMut(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
    if fs::metadata(path).is_ok_and(|found| !found.is_file()) {
        return write(&mut File::options().write(true).open(path)?);
    }
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.part", std::process::id()));
    let part = path.with_file_name(name);
    let written =
        File::create(&part).and_then(|mut file| write(&mut file)).and_then(|()| fs::rename(&part, path));
    if written.is_err() {
        let _ = fs::remove_file(&part);
    }
    written
}

/// The names it is saved with: the one that was asked for, or all of one that was asked for by its id.
fn chosen(image: &Image, selector: &str) -> Vec<Reference> {
    let asked: Option<Reference> = selector.parse().ok().map(|name: Reference| name.as_tag());
    match asked.filter(|name| image.names.contains(name)) {
        Some(name) => vec![name],
        None => image.names.clone(),
    }
}

pub(super) fn import(images: &Images, args: &ImportImageArgs) -> Outcome {
    let hold = images.store.hold()?;
    let platform = args.platform.clone().unwrap_or_else(Platform::here);
    let created = epoch::now(epoch::from_environment()?)?;
    let plain = Config::of(&platform, created.clone());
    let run = commit::changed(&plain, &args.changes)
        .map_err(|err| Failure::because("the image cannot be changed like this", &err).code(2))?
        .config;
    let wish = Import { name: args.name.clone(), run, message: args.message.clone(), platform, created };
    let mut progress = Progress::new("imported", Voice::Normal);
    let mut heard = |bytes| progress.add(bytes);
    let imported = match args.file == Path::new("-") {
        true => {
            let input = standard_input("an archive of a root file system", "its path instead of -")?;
            archive::import(&hold, input, wish, &mut heard)
        }
        false => archive::import(&hold, open(&args.file)?, wish, &mut heard),
    };
    drop(progress);
    drop(hold);
    if imported.is_err() {
        sweep(images);
    }
    let image = imported?;
    match args.json {
        true => print_json(&Summary::of(&image))?,
        false => writeln!(io::stdout(), "{}", image.id)?,
    }
    Ok(0)
}

/// What was refused leaves nothing behind, unless others are adding something at this moment.
fn sweep(images: &Images) {
    let in_use = || -> Result<BTreeSet<_>, Failure> { images.in_use() };
    let _ = images.store.collect(Which::None, Duration::ZERO, in_use);
}

fn open(path: &Path) -> Result<File, Failure> {
    File::open(path).map_err(|err| Failure::because(format!("could not read {}", path.display()), &err))
}

fn standard_input(what: &str, instead: &str) -> Result<impl Read, Failure> {
    if io::stdin().is_terminal() {
        return Err(Failure::new(format!("{what} is expected on standard input"))
            .code(2)
            .why("standard input is a terminal")
            .fix(format!("name the file: {instead}")));
    }
    Ok(io::stdin().lock())
}
