//! `airlock images rm` and `prune`.

use super::{Images, User};
use crate::{
    args::{PruneImagesArgs, RemoveImagesArgs},
    clean::clean_line,
    commands::print_json,
    failure::{Failure, Outcome},
    say::{Voice, say, say_anyway, say_failure},
};
use airlock_images::{
    digest::Digest,
    reference::Reference,
    store::{Collected, Error, Image, Kind, Untagged, Which},
};
use airlock_protocol::size;
use serde_json::json;
use std::{
    collections::BTreeMap,
    io::{self, IsTerminal as _, Write as _},
    time::Duration,
};

/// How long `rm` waits for others who add images; what they keep it from is for the next `prune`.
const REMOVING: Duration = Duration::from_secs(2);
/// How long `prune` does.
const PRUNING: Duration = Duration::from_secs(30);

pub(super) fn remove(images: &Images, args: &RemoveImagesArgs) -> Outcome {
    let users = images.users()?;
    let (mut untagged, mut failed) = (Vec::new(), None);
    for selector in &args.images {
        match untag(images, selector, args, &users) {
            Ok(done) => untagged.push(done),
            Err(err) => match &failed {
                None => failed = Some(err),
                Some(_) => say_failure(&err),
            },
        }
    }
    let ids: Vec<Digest> = untagged.iter().map(|done| done.id).collect();
    let collected = images.store.collect(Which::These(&ids), REMOVING, || images.in_use())?;
    if collected.is_none() {
        say_anyway(
            Voice::Normal,
            "the files are still there, as images are being added: airlock images prune",
        );
    }
    let collected = collected.unwrap_or_default();
    tell(&untagged, &collected, args)?;
    failed.map_or(Ok(0), Err)
}

/// Takes away what was named, if nothing speaks against it.
fn untag(
    images: &Images,
    selector: &str,
    args: &RemoveImagesArgs,
    users: &BTreeMap<String, Vec<User>>,
) -> Result<Untagged, Failure> {
    let image = images.store.find(selector)?;
    let is_by_name = is_named(&image, selector);
    if !args.force {
        if !is_by_name && image.names.len() > 1 {
            let names = image.names.iter().map(ToString::to_string).collect();
            return Err(Error::SeveralNames { id: image.id.short(), names }.into());
        }
        let used_by = users.get(&image.id.to_string()).map(Vec::as_slice).unwrap_or_default();
        if image.names.len() < 2 && !used_by.is_empty() {
            let users = used_by.iter().map(|user| format!("{} ({})", user.sandbox, user.id)).collect();
            return Err(Error::Used { name: selector.to_owned(), users }.into());
        }
    }
    Ok(images.store.untag(selector)?)
}

fn is_named(image: &Image, selector: &str) -> bool {
    let name: Option<Reference> = selector.parse().ok();
    name.is_some_and(|name| name.digest.is_some() || image.names.contains(&name.as_tag()))
}

/// As docker tells it: what lost its name, and what is gone.
fn tell(untagged: &[Untagged], collected: &Collected, args: &RemoveImagesArgs) -> Result<(), Failure> {
    let is_gone = |id: &Digest| collected.images.iter().any(|record| record.id == *id);
    let mut stdout = io::stdout().lock();
    for done in untagged {
        if args.json {
            print_json(&json!({ "id": done.id, "untagged": done.gone, "is_deleted": is_gone(&done.id) }))?;
            continue;
        }
        for name in &done.gone {
            writeln!(stdout, "Untagged: {name}")?;
        }
        if is_gone(&done.id) {
            writeln!(stdout, "Deleted: {}", done.id)?;
        }
    }
    if !collected.images.is_empty() && !args.json {
        say(Voice::Normal, &format!("freed {}", size::show(collected.bytes)));
    }
    Ok(())
}

pub(super) fn prune(images: &Images, args: &PruneImagesArgs) -> Outcome {
    let in_use = images.in_use()?;
    let goes = |image: &Image| !in_use.contains(&image.id) && (args.all || image.names.is_empty());
    let goes = |image: &Image| goes(image) && (args.all || image.kind == Kind::Image);
    let doomed: Vec<Image> = images.store.list()?.into_iter().filter(goes).collect();
    let named = doomed.iter().any(|image| !image.names.is_empty());
    if named && !args.force && !args.json && !agreed(&doomed)? {
        return Ok(1);
    }
    let which = if args.all { Which::Unused } else { Which::Dangling };
    let collected = images.store.collect(which, PRUNING, || images.in_use())?.ok_or(Error::Busy)?;
    let removed: Vec<String> = collected.images.iter().map(|record| record.id.to_string()).collect();
    match args.json {
        true => print_json(&json!({ "removed": removed, "freed_bytes": collected.bytes }))?,
        false => {
            let plural = if removed.len() == 1 { "" } else { "s" };
            let freed = size::show(collected.bytes);
            say(Voice::Normal, &format!("removed {} image{plural}, freed {freed}", removed.len()));
        }
    }
    Ok(0)
}

fn agreed(doomed: &[Image]) -> Result<bool, Failure> {
    if !io::stdin().is_terminal() {
        return Err(Failure::new("nothing is removed: nobody is there to say yes")
            .code(4)
            .why("standard input is not a terminal")
            .fix("airlock images prune --all --force, where they are not needed any more"));
    }
    for image in doomed {
        eprintln!("  {}  {}", clean_line(&image.label()), size::show(image.size));
    }
    eprint!("Remove these images? [y/N] ");
    let mut answer = String::new();
    io::stdin().read_line(&mut answer).map_err(|err| Failure::because("could not read the answer", &err))?;
    Ok(["y", "yes"].contains(&answer.trim().to_lowercase().as_str()))
}
