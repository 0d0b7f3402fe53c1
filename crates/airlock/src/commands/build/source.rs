//! Where a build's context and its Dockerfile are, and what stays out of the context.

use super::job::{Where, failure, rewound};
use crate::{args::BuildArgs, failure::Failure};
use airlock_images::{
    build::{
        Fault,
        dockerfile::Dockerfile,
        ignore::Ignore,
        lines,
        tree::{
            index::{self, Entry, Whiteouts},
            take::Taken,
        },
    },
    store::Hold,
};
use std::{
    collections::BTreeSet,
    fs::{self, File},
    io::{self, Read as _},
    path::Path,
};

/// What is built, from what.
#[derive(Debug)]
pub(super) struct Input {
    pub(super) context: Where,
    pub(super) ignore: Ignore,
    pub(super) file: Dockerfile,
    /// What errors call the Dockerfile.
    pub(super) file_name: String,
}

/// Finds context and Dockerfile as the flags name them.
pub(super) fn find(args: &BuildArgs, hold: &Hold) -> Result<Input, Failure> {
    let context = args.context.as_path();
    let is_stdin = context == Path::new("-");
    if is_stdin && args.file.as_deref() == Some(Path::new("-")) {
        return Err(Failure::new("context and Dockerfile cannot both come from stdin").code(2));
    }
    if !is_stdin && context.is_dir() {
        return directory(args, context);
    }
    let mut spool = hold.spool()?;
    let cannot = |err: &io::Error| Failure::because(format!("{} cannot be read", context.display()), err);
    if is_stdin {
        io::copy(&mut io::stdin().lock(), &mut spool).map_err(|err| cannot(&err))?;
    } else {
        let mut file = File::open(context).map_err(|err| {
            cannot(&err).code(2).fix("name a directory, a tar archive, or - for an archive on stdin")
        })?;
        io::copy(&mut file, &mut spool).map_err(|err| cannot(&err))?;
    }
    archive(args, spool.into_file()?)
}

fn directory(args: &BuildArgs, context: &Path) -> Result<Input, Failure> {
    let (text, name, beside) = match &args.file {
        Some(path) if path == Path::new("-") => {
            let mut text = Vec::new();
            io::stdin().lock().take(limit()).read_to_end(&mut text)?;
            (text, "-".to_owned(), None)
        }
        other => {
            // As in Docker: relative to here, and if it is not there, to the context.
            let path = match other {
                None => context.join("Dockerfile"),
                Some(path) if path.exists() => path.clone(),
                Some(path) => context.join(path),
            };
            let read = File::open(&path).and_then(|file| {
                let mut text = Vec::new();
                file.take(limit()).read_to_end(&mut text).map(|_| text)
            });
            let text = read.map_err(|err| {
                Failure::because(format!("{} cannot be read", path.display()), &err)
                    .code(2)
                    .fix("name another one: airlock build -f FILE")
            })?;
            let mut beside = path.clone().into_os_string();
            beside.push(".dockerignore");
            (text, path.display().to_string(), Some(beside))
        }
    };
    let file = parse(&text, &name)?;
    let candidates = beside.into_iter().map(Into::into).chain([context.join(".dockerignore")]);
    let mut ignore = Ignore::default();
    for path in candidates {
        match fs::read_to_string(&path) {
            Ok(text) => {
                ignore = ignore_of(&text, &path.display().to_string())?;
                break;
            }
            Err(err) if err.kind() == io::ErrorKind::NotFound => {}
            Err(err) => return Err(Failure::because(format!("{} cannot be read", path.display()), &err)),
        }
    }
    let context = Where::Directory(fs::canonicalize(context)?);
    Ok(Input { context, ignore, file, file_name: name })
}

/// A context in an archive. What is no archive is a Dockerfile without a context.
fn archive(args: &BuildArgs, file: File) -> Result<Input, Failure> {
    if !rewound(&file).is_ok_and(index::is_archive) {
        let mut text = Vec::new();
        rewound(&file)?.take(limit()).read_to_end(&mut text)?;
        let name = "-".to_owned();
        let file = parse(&text, &name)?;
        return Ok(Input { context: Where::Nothing, ignore: Ignore::default(), file, file_name: name });
    }
    let cannot = |err: &dyn std::error::Error| Failure::because("the context's archive cannot be read", err);
    let entries = index::read(rewound(&file)?, Whiteouts::AreFiles).map_err(|err| cannot(&err))?;
    let name = args.file.as_deref().unwrap_or(Path::new("Dockerfile")).display().to_string();
    let text = member(&file, &entries, &name)?.ok_or_else(|| {
        Failure::new(format!("there is no {name} in the context")).code(2).fix("airlock build -f FILE")
    })?;
    let parsed = parse(&text, &name)?;
    let ignore = match member(&file, &entries, ".dockerignore")? {
        Some(text) => ignore_of(&String::from_utf8_lossy(&text), ".dockerignore")?,
        None => Ignore::default(),
    };
    Ok(Input { context: Where::Archive(file, entries), ignore, file: parsed, file_name: name })
}

/// A small file of an archive.
fn member(file: &File, entries: &[Entry], name: &str) -> Result<Option<Vec<u8>>, Failure> {
    let wanted = airlock_images::build::path::relative(name.as_bytes());
    if !entries.iter().any(|entry| matches!(entry, Entry::Node(path, _) if *path == wanted)) {
        return Ok(None);
    }
    let cannot = |err: &dyn std::error::Error| Failure::because(format!("{name} cannot be read"), err);
    let memory = rustix::fs::memfd_create("airlock-build", rustix::fs::MemfdFlags::CLOEXEC)
        .map_err(|err| cannot(&err))?;
    let mut taken = Taken::new(File::from(memory));
    taken.add(0, rewound(file)?, &BTreeSet::from([wanted])).map_err(|err| cannot(&err))?;
    let mut text = Vec::new();
    taken.into_file()?.take(limit()).read_to_end(&mut text)?;
    Ok(Some(text))
}

fn parse(text: &[u8], name: &str) -> Result<Dockerfile, Failure> {
    let text = std::str::from_utf8(text)
        .map_err(|_| failure(name, &Fault::new(1, "", "it is not UTF-8, so it is no Dockerfile")))?;
    Dockerfile::parse(text).map_err(|fault| failure(name, &fault))
}

fn ignore_of(text: &str, name: &str) -> Result<Ignore, Failure> {
    Ignore::parse(text).map_err(|bad| Failure::because(format!("{name} makes no sense"), &bad).code(1))
}

/// One byte more than a Dockerfile may have.
fn limit() -> u64 {
    u64::try_from(lines::LONGEST).unwrap_or(u64::MAX).saturating_add(1)
}
