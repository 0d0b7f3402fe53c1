//! `airlock images ls`.

use super::{Images, Summary, User};
use crate::{
    args::ListImagesArgs,
    commands::{list::age, print_json},
    failure::Outcome,
    say::terminal_width,
    table::Table,
};
use airlock_images::{
    reference::Reference,
    store::{Image, Kind},
};
use airlock_protocol::size;
use jiff::Timestamp;
use serde::Serialize;
use std::io::{self, Write as _};

/// One line of `--json`.
#[derive(Serialize)]
struct Listed {
    #[serde(flatten)]
    summary: Summary,
    kind: Kind,
    used_by: Vec<User>,
}

/// What stands where there is no name.
const NONE: &str = "<none>";

pub(super) fn list(images: &Images, args: &ListImagesArgs) -> Outcome {
    let mut found = images.store.list()?;
    found.retain(|image| args.all || image.kind == Kind::Image);
    if let Some(pattern) = &args.pattern {
        for image in &mut found {
            image.names.retain(|name| is_like(name, pattern));
        }
        found.retain(|image| !image.names.is_empty());
    }
    if args.quiet {
        for image in found {
            let id = if args.no_trunc { image.id.to_string() } else { image.id.short() };
            writeln!(io::stdout(), "{id}")?;
        }
        return Ok(0);
    }
    let mut users = images.users()?;
    if args.json {
        for image in &found {
            let used_by = users.remove(&image.id.to_string()).unwrap_or_default();
            print_json(&Listed { summary: Summary::of(image), kind: image.kind, used_by })?;
        }
        return Ok(0);
    }
    let now = Timestamp::now();
    let mut table = Table::new(["NAME", "TAG", "IMAGE ID", "CREATED", "SIZE", "USED BY"]);
    for image in &found {
        let used_by = users.remove(&image.id.to_string()).unwrap_or_default();
        let used_by: Vec<String> = used_by.into_iter().map(|user| user.sandbox).collect();
        let id = if args.no_trunc { image.id.to_string() } else { image.id.short() };
        for (name, tag) in rows(image) {
            table.row([name, tag, id.clone(), made(image, now), size::show(image.size), used_by.join(", ")]);
        }
    }
    io::stdout().write_all(table.text(terminal_width()).as_bytes())?;
    Ok(0)
}

/// Names of images, one a line, for completion scripts. A shell in the middle of a line wants no errors.
pub(crate) fn names() -> Outcome {
    let found = Images::open().and_then(|images| Ok(images.store.list()?)).unwrap_or_default();
    let mut stdout = io::stdout().lock();
    for image in found.iter().filter(|image| image.kind == Kind::Image) {
        match image.names.as_slice() {
            [] => writeln!(stdout, "{}", image.id.short())?,
            names => names.iter().try_for_each(|name| writeln!(stdout, "{name}"))?,
        }
    }
    Ok(0)
}

/// How long ago an image was made.
pub(super) fn made(image: &Image, now: Timestamp) -> String {
    let created = image.config.created.as_deref();
    created.and_then(|created| age(created, now)).map_or_else(String::new, |age| format!("{age} ago"))
}

/// Name and tag, for each name.
fn rows(image: &Image) -> Vec<(String, String)> {
    let tag = |name: &Reference| name.tag.clone().unwrap_or_else(|| NONE.to_owned());
    match image.names.as_slice() {
        [] => {
            let pulled = image.digests.first().map_or_else(|| NONE.to_owned(), Reference::name);
            vec![(pulled, NONE.to_owned())]
        }
        names => names.iter().map(|name| (name.name(), tag(name))).collect(),
    }
}

/// Whether a name is meant: without a tag all of them, with one that one, and `*` is anything.
fn is_like(name: &Reference, pattern: &str) -> bool {
    let last = pattern.rsplit('/').next().unwrap_or(pattern);
    match last.contains(':') {
        true => matches(&name.to_string(), pattern),
        false => matches(&name.name(), pattern),
    }
}

fn matches(text: &str, pattern: &str) -> bool {
    let mut parts = pattern.split('*');
    let Some(mut rest) = parts.next().and_then(|first| text.strip_prefix(first)) else { return false };
    let mut parts: Vec<&str> = parts.collect();
    let Some(last) = parts.pop() else { return rest.is_empty() };
    for part in parts {
        let Some((_, after)) = rest.split_once(part) else { return false };
        rest = after;
    }
    rest.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_without_a_tag_means_every_tag_and_a_star_anything() {
        let name: Reference = "r.test:5000/team/tool:1".parse().unwrap();
        for pattern in
            ["r.test:5000/team/tool", "r.test:5000/team/tool:1", "*/tool", "r.test*", "*team*", "*:1", "*"]
        {
            assert!(is_like(&name, pattern), "{pattern}");
        }
        for pattern in ["tool", "team/tool", "*:2", "r.test:5000/team/tool:", "*tool*x"] {
            assert!(!is_like(&name, pattern), "{pattern}");
        }
    }
}
