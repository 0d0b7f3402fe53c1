//! `airlock images inspect`, `history` and `du`.

use super::{Images, Summary, User, list::made};
use crate::{
    args::{HistoryArgs, InspectImagesArgs, UsageArgs},
    commands::{list::age, print_json},
    failure::{Failure, Outcome},
    say::terminal_width,
    table::Table,
};
use airlock_images::{
    manifest::{Config, RunConfig},
    store::{Image, Kind},
};
use airlock_protocol::size;
use jiff::Timestamp;
use serde::Serialize;
use serde_json::json;
use std::io::{self, Write as _};

/// Everything known about an image.
#[derive(Serialize)]
struct Known {
    #[serde(flatten)]
    summary: Summary,
    manifest_digest: String,
    kind: Kind,
    parent: Option<String>,
    added_at: String,
    author: Option<String>,
    config: RunConfig,
    layers: Vec<KnownLayer>,
    used_by: Vec<User>,
}

#[derive(Serialize)]
struct KnownLayer {
    digest: String,
    diff_id: String,
    media_type: String,
    size_bytes: u64,
}

/// One line of `history --json`.
#[derive(Serialize)]
struct Told {
    layer: Option<String>,
    created: Option<String>,
    created_by: Option<String>,
    comment: Option<String>,
    size_bytes: u64,
}

/// How much of a command fits into a table that is not cut.
const COMMAND: usize = 60;

pub(super) fn inspect(images: &Images, args: &InspectImagesArgs) -> Outcome {
    let mut users = images.users()?;
    let mut known = Vec::new();
    for selector in &args.images {
        let image = images.store.find(selector)?;
        let used_by = users.remove(&image.id.to_string()).unwrap_or_default();
        known.push(Known::of(image, used_by));
    }
    if args.json {
        known.iter().try_for_each(print_json)?;
        return Ok(0);
    }
    let text = serde_json::to_string_pretty(&known);
    let text = text.map_err(|err| Failure::because("could not write JSON", &err))?;
    writeln!(io::stdout(), "{text}")?;
    Ok(0)
}

impl Known {
    fn of(image: Image, used_by: Vec<User>) -> Known {
        let Config { author, config, .. } = image.config.clone();
        let layers = image.layers.iter().map(|(layer, diff)| KnownLayer {
            digest: layer.digest.to_string(),
            diff_id: diff.to_string(),
            media_type: layer.media_type.clone(),
            size_bytes: layer.size,
        });
        Known {
            summary: Summary::of(&image),
            manifest_digest: image.manifest_digest.to_string(),
            kind: image.kind,
            parent: image.parent.map(|parent| parent.to_string()),
            added_at: image.added_at.clone(),
            author,
            config,
            layers: layers.collect(),
            used_by,
        }
    }
}

pub(super) fn history(images: &Images, args: &HistoryArgs) -> Outcome {
    let image = images.store.find(&args.image)?;
    let now = Timestamp::now();
    let mut table = Table::new(["LAYER", "CREATED", "CREATED BY", "SIZE", "COMMENT"]);
    for step in image.history() {
        let layer = step.layer.as_ref().map(|(_, diff)| diff);
        let bytes = step.layer.as_ref().map_or(0, |(layer, _)| layer.size);
        if args.json {
            print_json(&Told {
                layer: layer.map(ToString::to_string),
                created: step.said.created,
                created_by: step.said.created_by,
                comment: step.said.comment,
                size_bytes: bytes,
            })?;
            continue;
        }
        if args.quiet {
            writeln!(io::stdout(), "{}", layer.map_or_else(|| "<none>".to_owned(), ToString::to_string))?;
            continue;
        }
        let by = step.said.created_by.unwrap_or_default();
        let shown = by.chars().take(COMMAND).collect::<String>();
        let shown = if args.no_trunc || shown.len() == by.len() { by } else { format!("{shown}…") };
        let made = step.said.created.and_then(|created| age(&created, now));
        table.row([
            layer.map_or_else(|| "<none>".to_owned(), |layer| layer.short()),
            made.map_or_else(String::new, |age| format!("{age} ago")),
            shown,
            size::show(bytes),
            step.said.comment.unwrap_or_default(),
        ]);
    }
    if !args.json && !args.quiet {
        io::stdout().write_all(table.text(terminal_width()).as_bytes())?;
    }
    Ok(0)
}

pub(super) fn usage(images: &Images, args: &UsageArgs) -> Outcome {
    let in_use = images.in_use()?;
    let usage = images.store.usage(&in_use)?;
    if args.json {
        for share in &usage.images {
            print_json(&json!({
                "id": share.image.id, "names": share.image.names, "kind": share.image.kind,
                "bytes": share.bytes, "shared_bytes": share.shared, "own_bytes": share.own,
                "unpacked_bytes": share.unpacked, "is_used": in_use.contains(&share.image.id),
            }))?;
        }
        print_json(&json!({
            "images": usage.images.len(), "blob_bytes": usage.blobs, "unpacked_bytes": usage.unpacked,
            "incoming_bytes": usage.incoming, "reclaimable_bytes": usage.reclaimable,
        }))?;
        return Ok(0);
    }
    let now = Timestamp::now();
    let mut table = Table::new(["NAME", "IMAGE ID", "CREATED", "BLOBS", "UNPACKED", "SHARED", "OWN", "USED"]);
    for share in &usage.images {
        let label = match (share.image.kind, share.image.names.is_empty()) {
            (Kind::Cache, true) => "<build cache>".to_owned(),
            (Kind::Image, true) => "<none>".to_owned(),
            _ => share.image.label(),
        };
        table.row([
            label,
            share.image.id.short(),
            made(&share.image, now),
            size::show(share.bytes - share.unpacked),
            size::show(share.unpacked),
            size::show(share.shared),
            size::show(share.own),
            if in_use.contains(&share.image.id) { "yes" } else { "no" }.to_owned(),
        ]);
    }
    let mut stdout = io::stdout();
    stdout.write_all(table.text(terminal_width()).as_bytes())?;
    let all = usage.blobs.saturating_add(usage.unpacked).saturating_add(usage.incoming);
    let (all, free) = (size::show(all), size::show(usage.reclaimable));
    writeln!(stdout, "\n{all} in all, of which `airlock images prune --all` frees {free}")?;
    Ok(0)
}
