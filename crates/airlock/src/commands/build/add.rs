//! What `ADD` does beyond `COPY`: local archives are unpacked, URLs are fetched.

use super::{
    copy::{Content, From, of_context},
    fetch, git,
    job::{Job, rewound},
};
use crate::failure::Failure;
use airlock_images::{
    archive::Form,
    build::{
        instruction::{Instruction, Transfer},
        path,
        repository::Repository,
        tree::{
            Kind, Node, Place, Tree,
            index::{self, Whiteouts},
        },
    },
    digest::Digest,
};
use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, Read as _, Seek as _, Write as _},
};

/// What to do about a repository behind SSH.
const SSH: &str = "ADD https://HOST/REPOSITORY.git DIR, or copy a clone out of the context";

/// What the sources of an `ADD` mean.
pub(super) fn gathered(
    job: &Job,
    instruction: &Instruction,
    transfer: &Transfer,
    sources: &[&String],
) -> Result<Vec<From>, Failure> {
    let mut made = Vec::new();
    let mut local = Vec::new();
    for &source in sources {
        if let Some(repository) = Repository::of(source) {
            let repository = repository.map_err(|bad| job.fail(instruction, bad.to_string()).fix(SSH))?;
            made.push(git::cloned(job, instruction, transfer, &repository)?);
        } else if source.starts_with("http://") || source.starts_with("https://") {
            made.push(fetched(job, instruction, transfer, source)?);
        } else if transfer.checksum.is_some() {
            return Err(job.fail(instruction, "--checksum is for URLs"));
        } else {
            local.push(source);
        }
    }
    if local.is_empty() {
        return Ok(made);
    }
    let mut from = of_context(job, instruction, transfer, &local)?;
    if transfer.unpack == Some(false) {
        made.push(from);
        return Ok(made);
    }
    let mut left = Vec::new();
    for (path, name) in std::mem::take(&mut from.taken) {
        match archive(job, &path)? {
            Some(archive) => made.push(archive),
            None => left.push((path, name)),
        }
    }
    if !left.is_empty() {
        made.push(From { taken: left, ..from });
    }
    Ok(made)
}

/// A file of the context as an archive, if it is one.
fn archive(job: &Job, wanted: &[u8]) -> Result<Option<From>, Failure> {
    let context = job.context()?;
    let Some(context) = context.as_ref() else { return Ok(None) };
    let Ok(place) = context.tree.resolve(wanted) else { return Ok(None) };
    let Some(Node { kind: Kind::File { sum, .. }, .. }) = context.tree.get(&place) else { return Ok(None) };
    let fail = |err: &dyn std::error::Error| {
        Failure::because(format!("{} cannot be unpacked", String::from_utf8_lossy(wanted)), err)
    };
    let file = job.context_file(context, &place)?;
    let mut first = [0u8; 6];
    let count = file.try_clone().and_then(|mut file| file.read(&mut first)).map_err(|err| fail(&err))?;
    let first = first.get(..count).unwrap_or_default();
    let file = match Form::of(first) {
        Form::Layer(_) => file,
        Form::Bzip2 | Form::Xz => match plain(job, &file)? {
            Some(plain) => plain,
            None => return Ok(None),
        },
    };
    // What is compressed but holds no archive is copied as it is.
    if !rewound(&file).is_ok_and(index::is_archive) {
        return Ok(None);
    }
    let key = format!("archive {}", sum.as_ref().map(Digest::hex).unwrap_or_default());
    let taken = vec![(Vec::new(), Vec::new())];
    Ok(Some(From { tree: None, content: Content::Unpacked(file), taken, key, kind: "file" }))
}

/// What a file holds that is compressed in a way that layers never are; nothing where it only begins like one.
fn plain(job: &Job, file: &File) -> Result<Option<File>, Failure> {
    let mut plain = job.hold.unnamed()?;
    let mut whole = file.try_clone()?;
    whole.rewind()?;
    let Ok(mut decoded) = Form::decode(whole) else { return Ok(None) };
    let mut bytes = vec![0u8; 256 << 10];
    loop {
        match decoded.read(&mut bytes) {
            Ok(0) => return Ok(Some(plain)),
            Ok(count) => plain.write_all(bytes.get(..count).unwrap_or_default())?,
            Err(err) if err.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return Ok(None),
        }
    }
}

/// Reads what archives hold: only a step that really happens needs it.
pub(super) fn read_archives(froms: &mut [From]) -> Result<(), Failure> {
    for from in froms {
        if let Content::Unpacked(file) = &from.content {
            let entries = index::read(rewound(file)?, Whiteouts::AreFiles)
                .map_err(|err| Failure::because("an archive cannot be unpacked", &err))?;
            let mut tree = Tree::default();
            tree.stack(&entries);
            from.tree = Some(tree);
        }
    }
    Ok(())
}

/// A file from elsewhere. It is the owner's alone, as in Docker.
fn fetched(job: &Job, instruction: &Instruction, transfer: &Transfer, url: &str) -> Result<From, Failure> {
    let bytes = fetch::fetch(job, instruction, url)?;
    let sum = Digest::of(&bytes);
    if let Some(wanted) = &transfer.checksum
        && *wanted != sum.to_string()
    {
        return Err(job.fail(instruction, format!("{url} is {sum}, not {wanted}")));
    }
    let bare = url.split(['?', '#']).next().unwrap_or_default();
    let after = bare.split_once("://").map(|(_, rest)| rest).unwrap_or_default();
    let name =
        after.split_once('/').map(|(_, path)| path::last(path.as_bytes()).1.to_vec()).unwrap_or_default();
    if name.is_empty() {
        return Err(job.fail(instruction, format!("{url} has no file name")));
    }
    let mut tree = Tree::default();
    let size = u64::try_from(bytes.len()).unwrap_or(0);
    let place = Place { archive: 0, path: name.clone() };
    tree.insert(name.clone(), Node { place, ..Node::of(Kind::File { size, sum: Some(sum) }, 0o600) });
    let key = format!("url {} {}", String::from_utf8_lossy(&name), sum.hex());
    let content = Content::Bytes(BTreeMap::from([(name.clone(), bytes)]));
    Ok(From { tree: Some(tree), content, taken: vec![(name.clone(), name)], key, kind: "file" })
}
