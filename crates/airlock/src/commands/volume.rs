//! `airlock volume`: directories that outlive sandboxes.

use super::{list::age, print_json};
use crate::{
    args::{
        CreateVolumeArgs, InspectVolumesArgs, ListVolumesArgs, PruneVolumesArgs, RemoveVolumesArgs,
        VolumeArgs, VolumeVerb,
    },
    clean::clean_line,
    failure::{Failure, Outcome},
    home,
    say::{Voice, say, say_failure, terminal_width},
    table::Table,
};
use airlock_engine::store::{
    generate_name,
    volumes::{Error, Size, Usage, Volumes},
};
use airlock_protocol::{
    Name,
    files::{Persist, Volume},
    size,
};
use jiff::Timestamp;
use serde::Serialize;
use std::{
    collections::BTreeMap,
    io::{self, IsTerminal, Write},
};

pub(crate) fn perform(args: &VolumeArgs) -> Outcome {
    let volumes = home::store()?.volumes()?;
    match &args.verb {
        VolumeVerb::Create(args) => create(&volumes, args),
        VolumeVerb::Ls(args) => list(&volumes, args),
        VolumeVerb::Inspect(args) => inspect(&volumes, args),
        VolumeVerb::Rm(args) => remove(&volumes, args),
        VolumeVerb::Prune(args) => prune(&volumes, args),
    }
}

/// What is known of a volume.
#[derive(Serialize)]
struct Known {
    #[serde(flatten)]
    volume: Volume,
    size_bytes: u64,
    entries: u64,
    size_is_complete: bool,
    path: String,
    used_by: Vec<Usage>,
}

fn create(volumes: &Volumes, args: &CreateVolumeArgs) -> Outcome {
    let labels: BTreeMap<String, String> = args.labels.iter().cloned().collect();
    let mut attempt = 0;
    let volume = loop {
        let name = args.name.clone().unwrap_or_else(|| generate_name(attempt));
        match volumes.create(&name, labels.clone()) {
            Err(Error::Exists { .. }) if args.name.is_none() && attempt < 20 => attempt += 1,
            other => break other?,
        }
    };
    match args.json {
        true => print_json(&volume)?,
        false => writeln!(io::stdout(), "{}", volume.name)?,
    }
    Ok(0)
}

fn list(volumes: &Volumes, args: &ListVolumesArgs) -> Outcome {
    if args.quiet {
        for volume in volumes.list()? {
            writeln!(io::stdout(), "{}", volume.name)?;
        }
        return Ok(0);
    }
    let all = known(volumes)?;
    if args.json {
        all.iter().try_for_each(print_json)?;
        return Ok(0);
    }
    let now = Timestamp::now();
    let mut table = Table::new(["NAME", "SIZE", "USED BY", "CREATED", "KEEPS"]);
    for known in &all {
        let users: Vec<&str> = known.used_by.iter().map(|user| user.sandbox.as_str()).collect();
        let age = age(&known.volume.created_at, now).map_or_else(String::new, |age| format!("{age} ago"));
        let kept = known.volume.persist.as_ref().map_or_else(String::new, kept);
        table.row([known.volume.name.clone(), known.size(), users.join(", "), age, kept]);
    }
    io::stdout().write_all(table.text(terminal_width()).as_bytes())?;
    Ok(0)
}

fn inspect(volumes: &Volumes, args: &InspectVolumesArgs) -> Outcome {
    let mut users = volumes.users()?;
    for name in &args.names {
        let used_by = users.remove(name.as_str()).unwrap_or_default();
        let known = know(volumes, volumes.get(name)?, used_by);
        match args.json {
            true => print_json(&known)?,
            false => io::stdout().write_all(known.text().as_bytes())?,
        }
    }
    Ok(0)
}

fn remove(volumes: &Volumes, args: &RemoveVolumesArgs) -> Outcome {
    let mut first = None;
    for name in &args.names {
        match volumes.remove(name) {
            Ok(()) => {}
            Err(Error::NoSuch { .. }) if args.force => {}
            Err(err) => match &first {
                None => first = Some(Failure::from(err)),
                Some(_) => say_failure(&err.into()),
            },
        }
    }
    first.map_or(Ok(0), Err)
}

fn prune(volumes: &Volumes, args: &PruneVolumesArgs) -> Outcome {
    let mut unused: Vec<Known> = known(volumes)?;
    unused.retain(|known| known.used_by.is_empty() && (args.all || !known.is_kept()));
    let goes_on = args.force || args.json || unused.is_empty() || agreed(&unused)?;
    if !goes_on {
        return Ok(1);
    }
    let (mut removed, mut freed, mut failed) = (Vec::new(), 0u64, None);
    for known in unused {
        let Ok(name) = known.volume.name.parse::<Name>() else { continue };
        match volumes.remove(&name) {
            Ok(()) => {
                freed = freed.saturating_add(known.size_bytes);
                removed.push(known.volume.name);
            }
            // Somebody began to use it, or was quicker.
            Err(Error::Used { .. } | Error::NoSuch { .. }) => {}
            Err(err) => failed = Some(Failure::from(err)),
        }
    }
    volumes.sweep()?;
    match args.json {
        true => print_json(&serde_json::json!({ "removed": removed, "freed_bytes": freed }))?,
        false => say(Voice::Normal, &summary(removed.len(), freed)),
    }
    failed.map_or(Ok(0), Err)
}

fn summary(removed: usize, freed: u64) -> String {
    let plural = if removed == 1 { "" } else { "s" };
    format!("removed {removed} volume{plural}, freed {}", size::show(freed))
}

fn agreed(unused: &[Known]) -> Result<bool, Failure> {
    if !io::stdin().is_terminal() {
        return Err(Failure::new("nothing is removed: nobody is there to say yes")
            .code(4)
            .why("standard input is not a terminal")
            .fix("airlock volume prune --force, where their files are not needed any more"));
    }
    for known in unused {
        eprintln!("  {}  {}", clean_line(&known.volume.name), known.size());
    }
    eprint!("Remove these volumes and their files? [y/N] ");
    let mut answer = String::new();
    io::stdin().read_line(&mut answer).map_err(|err| Failure::because("could not read the answer", &err))?;
    Ok(["y", "yes"].contains(&answer.trim().to_lowercase().as_str()))
}

fn known(volumes: &Volumes) -> Result<Vec<Known>, Failure> {
    let mut users = volumes.users()?;
    let all = volumes.list()?.into_iter().map(|volume| {
        let used_by = users.remove(&volume.name).unwrap_or_default();
        know(volumes, volume, used_by)
    });
    Ok(all.collect())
}

fn know(volumes: &Volumes, volume: Volume, used_by: Vec<Usage>) -> Known {
    let name = volume.name.parse::<Name>().ok();
    let Size { bytes, entries, is_complete } =
        name.as_ref().map_or_else(Size::default, |name| volumes.size(name));
    let path = name.map_or_else(String::new, |name| volumes.files(&name).display().to_string());
    Known { volume, size_bytes: bytes, entries, size_is_complete: is_complete, path, used_by }
}

impl Known {
    /// What is not counted to the end is at least this much.
    fn size(&self) -> String {
        let mark = if self.size_is_complete { "" } else { ">" };
        format!("{mark}{}", size::show(self.size_bytes))
    }

    /// Whether it is kept for a project that is still there.
    fn is_kept(&self) -> bool {
        self.volume.persist.as_ref().is_some_and(|persist| persist.project.exists())
    }

    fn text(&self) -> String {
        let volume = &self.volume;
        let mut lines = vec![
            ("name", volume.name.clone()),
            ("created", volume.created_at.clone()),
            ("size", format!("{} in {} entries", self.size(), self.entries)),
            ("files", self.path.clone()),
        ];
        lines.extend(volume.persist.as_ref().map(|persist| ("keeps", kept(persist))));
        lines.extend(volume.labels.iter().map(|(key, value)| ("label", format!("{key}={value}"))));
        lines.extend(self.used_by.iter().map(|user| {
            let access = if user.read_only { " (read-only)" } else { "" };
            let status = user.status.word();
            (
                "used by",
                format!("{} ({}), {status}, at {}{access}", user.sandbox, user.id, user.target.display()),
            )
        }));
        lines.iter().map(|(key, value)| format!("{key:<9}{}\n", clean_line(value))).collect()
    }
}

fn kept(persist: &Persist) -> String {
    format!("{} of {}", persist.directory.display(), persist.project.display())
}

impl From<Error> for Failure {
    fn from(err: Error) -> Failure {
        let failure = Failure::new(err.to_string()).code(err.exit_code());
        Failure { why: err.why(), fix: err.fix(), ..failure }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_is_told_in_lines() {
        let known: Known = Known {
            volume: Volume {
                name: "cache".into(),
                created_at: "2026-01-31T11:00:00.000000Z".into(),
                labels: BTreeMap::from([("team".into(), "a\x1b[2Jb".into())]),
                persist: Some(Persist { project: "/srv/p".into(), directory: "~/.cache".into() }),
                ids: None,
            },
            size_bytes: 2048,
            entries: 3,
            size_is_complete: false,
            path: "/h/volumes/cache/data".into(),
            used_by: Vec::new(),
        };
        let expected = "\
name     cache
created  2026-01-31T11:00:00.000000Z
size     >2K in 3 entries
files    /h/volumes/cache/data
keeps    ~/.cache of /srv/p
label    team=ab
";
        assert_eq!(known.text(), expected);
        assert_eq!(summary(1, 2048), "removed 1 volume, freed 2K");
    }
}
