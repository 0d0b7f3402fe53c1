//! `airlock trust`: a person agrees to what a project's file says.

use super::print_json;
use crate::{
    args::TrustArgs,
    clean::clean_text,
    config::{
        self,
        reader::Source,
        trust::{self, Record, Standing, Trust},
    },
    failure::{Failure, Outcome},
    home,
    say::{Voice, say, terminal_width},
    spec::Host,
    table::Table,
};
use std::{
    io::{self, IsTerminal, Write},
    path::{Path, PathBuf},
};

pub(crate) fn trust(args: &TrustArgs) -> Outcome {
    let store = home::store()?;
    let trust = Trust::new(store.home());
    if args.list {
        return list(&trust, args);
    }
    let directory = Host::current()?.directory;
    if args.remove {
        return remove(&trust, args.file.as_deref(), &directory);
    }
    let (path, text) = chosen(&trust, args.file.as_deref(), &directory)?;
    // What cannot be read cannot be agreed to.
    let folder = path.parent().unwrap_or(Path::new("/"));
    config::project::parse(Source { name: &path.display().to_string(), text: &text }, folder)?;
    match trust.standing(&path, &text)? {
        Standing::Trusted => {
            say(Voice::Normal, &format!("{} is trusted already", path.display()));
            return Ok(0);
        }
        standing => show(&path, &text, &standing)?,
    }
    if !args.yes && !agreed()? {
        return Err(Failure::new(format!("{} is not trusted", path.display())).code(4));
    }
    trust.add(&path, &text)?;
    say(Voice::Normal, &format!("{} counts from now on, as long as it says this", path.display()));
    Ok(0)
}

fn chosen(trust: &Trust, named: Option<&Path>, directory: &Path) -> Result<(PathBuf, String), Failure> {
    let Some(named) = named else {
        return config::find_here(directory, trust)?.ok_or_else(|| {
            Failure::new("there is no airlock.toml here").code(1).fix("name the file: airlock trust FILE")
        });
    };
    let path = real(named)?;
    if path.file_name().is_none_or(|name| name != config::PROJECT_FILE) {
        return Err(Failure::new(format!("{} is not a project's file", named.display()))
            .code(2)
            .why(format!("only a file called {} is looked for", config::PROJECT_FILE))
            .fix("files that you name with --config or --policy need no trust"));
    }
    let text = trust::read(&path)?;
    let text = text.ok_or_else(|| Failure::new(format!("there is no {}", named.display())).code(1))?;
    Ok((path, text))
}

/// As the search for it would find it: its folder without links.
fn real(path: &Path) -> Result<PathBuf, Failure> {
    let path = config::absolute(path)?;
    let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else { return Ok(path) };
    Ok(std::fs::canonicalize(folder).unwrap_or(folder.to_owned()).join(name))
}

fn show(path: &Path, text: &str, standing: &Standing) -> Result<(), Failure> {
    let mut stdout = io::stdout().lock();
    match standing {
        Standing::Changed(before) => {
            writeln!(stdout, "{} has changed since {}:\n", path.display(), before.trusted_at)?;
            stdout.write_all(clean_text(&changes(&before.text, text)).as_bytes())?;
        }
        _ => {
            writeln!(stdout, "{} says:\n", path.display())?;
            for line in clean_text(text).lines() {
                writeln!(stdout, "    {line}")?;
            }
        }
    }
    Ok(writeln!(stdout)?)
}

/// Both versions line by line, with `-` and `+`.
fn changes(before: &str, now: &str) -> String {
    let mut text = String::new();
    for change in similar::TextDiff::from_lines(before, now).iter_all_changes() {
        let line = change.value();
        let end = if line.ends_with('\n') { "" } else { "\n" };
        text += &format!("{} {line}{end}", change.tag());
    }
    text
}

fn agreed() -> Result<bool, Failure> {
    if !io::stdin().is_terminal() {
        return Err(Failure::new("nothing is trusted: nobody is there to say yes")
            .code(4)
            .why("standard input is not a terminal")
            .fix("airlock trust --yes, where you know what the file says"));
    }
    eprint!("Shall sandboxes started here have these settings and rules? [y/N] ");
    let mut answer = String::new();
    io::stdin().read_line(&mut answer).map_err(|err| Failure::because("could not read the answer", &err))?;
    Ok(["y", "yes"].contains(&answer.trim().to_lowercase().as_str()))
}

fn list(trust: &Trust, args: &TrustArgs) -> Outcome {
    let records = trust.list()?;
    if args.json {
        for record in &records {
            let Record { path, sha256, trusted_at, .. } = record;
            let stands = stands(record);
            print_json(
                &serde_json::json!({ "path": path, "sha256": sha256, "trusted_at": trusted_at, "status": stands }),
            )?;
        }
        return Ok(0);
    }
    let mut table = Table::new(["FILE", "TRUSTED", "STATUS"]);
    for record in &records {
        table.row([record.path.display().to_string(), record.trusted_at.clone(), stands(record).to_owned()]);
    }
    io::stdout().write_all(table.text(terminal_width()).as_bytes())?;
    Ok(0)
}

fn stands(record: &Record) -> &'static str {
    match trust::read(&record.path) {
        Ok(Some(text)) if trust::sha256(text.as_bytes()) == record.sha256 => "as trusted",
        Ok(Some(_)) | Err(_) => "changed",
        Ok(None) => "gone",
    }
}

fn remove(trust: &Trust, named: Option<&Path>, directory: &Path) -> Outcome {
    let path = match named {
        Some(named) => real(named)?,
        None => config::nearest_record(directory, trust)?,
    };
    match trust.remove(&path)? {
        true => Ok(0),
        false => Err(Failure::new(format!("{} was not trusted", path.display()))
            .code(1)
            .fix("airlock trust --list")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_shown_line_by_line() {
        let expected = "  a = 1\n- b = 2\n+ b = 3\n+ c = 4\n";
        assert_eq!(changes("a = 1\nb = 2\n", "a = 1\nb = 3\nc = 4"), expected);
    }
}
