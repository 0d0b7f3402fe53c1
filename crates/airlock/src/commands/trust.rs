//! `airlock trust`: a person agrees to what a project's file says.

use super::print_json;
use crate::{
    args::TrustArgs,
    clean::{clean_line, clean_text},
    config::{
        self, Project,
        trust::{self, Named, Record, Standing, Trust},
    },
    failure::{Failure, Outcome},
    home,
    say::{Voice, say, terminal_width},
    spec::Host,
    table::Table,
};
use serde_json::json;
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
    let project = config::look(path, text)?;
    let Project { path, text, files, .. } = &project;
    match trust.standing(path, text, files)? {
        Standing::Trusted => {
            say(Voice::Normal, &format!("{} is trusted already", path.display()));
            return Ok(0);
        }
        Standing::Changed(before) => io::stdout().write_all(whats_new(&project, &before).as_bytes())?,
        Standing::Unknown => io::stdout().write_all(whole(&project).as_bytes())?,
    }
    if !args.yes && !agreed()? {
        return Err(Failure::new(format!("{} is not trusted", path.display())).code(4));
    }
    trust.add(path, text, files)?;
    let with = if files.is_empty() { "it says this" } else { "it and the files it names say this" };
    say(Voice::Normal, &format!("{} counts from now on, as long as {with}", path.display()));
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

/// The file and those it names.
fn whole(project: &Project) -> String {
    let named = project.files.iter().map(|file| says(&file.path, &file.text));
    std::iter::once(says(&project.path, &project.text)).chain(named).collect()
}

fn says(path: &Path, text: &str) -> String {
    let lines = clean_text(text).lines().fold(String::new(), |all, line| all + "    " + line + "\n");
    format!("{} says:\n\n{lines}\n", shown(path))
}

/// What is not as it was trusted.
fn whats_new(project: &Project, before: &Record) -> String {
    let mut text = String::new();
    if !before.is_of(&project.text) {
        text += &changed(&project.path, &before.text, &project.text, before);
    }
    let of = |files: &[Named], path: &Path| files.iter().position(|file| file.path == path);
    for file in &project.files {
        match of(&before.files, &file.path).and_then(|at| before.files.get(at)) {
            Some(was) if was.sha256 == file.sha256 => {}
            Some(was) => text += &changed(&file.path, &was.text, &file.text, before),
            None => text += &says(&file.path, &file.text),
        }
    }
    for gone in before.files.iter().filter(|file| of(&project.files, &file.path).is_none()) {
        text += &format!("{} is no longer named.\n\n", shown(&gone.path));
    }
    text
}

fn changed(path: &Path, was: &str, is: &str, before: &Record) -> String {
    format!("{} has changed since {}:\n\n{}\n", shown(path), before.trusted_at, clean_text(&changes(was, is)))
}

fn shown(path: &Path) -> String {
    clean_line(&path.display().to_string())
}

/// Both versions line by line, with `-` and `+`.
fn changes(before: &str, now: &str) -> String {
    let (old, new): (Vec<&str>, Vec<&str>) =
        (before.split_inclusive('\n').collect(), now.split_inclusive('\n').collect());
    let differences = similar::capture_diff_slices(similar::Algorithm::Myers, &old, &new);
    let mut text = String::new();
    for change in differences.iter().flat_map(|part| part.iter_changes(&old, &new)) {
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
            let files: Vec<_> = record
                .files
                .iter()
                .map(|Named { path, sha256, .. }| json!({ "path": path, "sha256": sha256 }))
                .collect();
            print_json(&json!({
                "path": path, "sha256": sha256, "trusted_at": trusted_at, "status": stands(record), "files": files,
            }))?;
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

/// What the file names is in it: while it is as it was, the record names the same files.
fn stands(record: &Record) -> &'static str {
    let is = |path: &Path, sha256: &str| match trust::read(path) {
        Ok(Some(text)) if trust::sha256(text.as_bytes()) == sha256 => "as trusted",
        Ok(Some(_)) | Err(_) => "changed",
        Ok(None) => "gone",
    };
    let own = is(&record.path, &record.sha256);
    let named = record.files.iter().all(|file| is(&file.path, &file.sha256) == "as trusted");
    if own == "as trusted" && !named { "changed" } else { own }
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
    fn files_that_are_named_are_shown_whole_and_then_what_changed_in_them() {
        let file = |name: &str, text: &str| Named::new(Path::new(name), text.to_owned());
        let mut project = Project {
            path: "/p/airlock.toml".into(),
            text: "x\n".into(),
            settings: Default::default(),
            files: vec![file("/p/a.env", "A=1\n"), file("/p/b\x1b[2J.env", "B\n")],
        };
        let expected =
            "/p/airlock.toml says:\n\n    x\n\n/p/a.env says:\n\n    A=1\n\n/p/b.env says:\n\n    B\n\n";
        assert_eq!(whole(&project), expected);

        let before = Record {
            path: project.path.clone(),
            sha256: trust::sha256(b"x\n"),
            trusted_at: "yesterday".into(),
            text: "x\n".into(),
            files: std::mem::take(&mut project.files),
        };
        project.files = vec![file("/p/a.env", "A=1\nSECRET\n"), file("/p/c.env", "C\n")];
        let expected = "/p/a.env has changed since yesterday:\n\n  A=1\n+ SECRET\n\n/p/c.env says:\n\n    C\n\n\
                        /p/b.env is no longer named.\n\n";
        assert_eq!(whats_new(&project, &before), expected);
    }

    #[test]
    fn changes_are_shown_line_by_line() {
        let expected = "  a = 1\n- b = 2\n+ b = 3\n+ c = 4\n";
        assert_eq!(changes("a = 1\nb = 2\n", "a = 1\nb = 3\nc = 4"), expected);
    }
}
