//! A crate may use only crates of lower rows of the table in ARCHITECTURE.md, never siblings.
//!
//! The table stands in a code block, one line a row, columns set apart by two or more spaces. A column of one word
//! is a crate, any other column explains:
//!
//! ```text
//!  row 2   engine                what happens
//!  row 1   protocol   linux      the wire | the kernel
//! ```

use super::complain;
use crate::workspace;
use anyhow::{Context as _, Result};
use serde_json::Value;
use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

/// The row of each crate, as the table says.
type Rows = BTreeMap<String, u32>;

/// The crates each crate uses, as cargo says; by the name of their folder below `crates/`.
type Uses = BTreeMap<String, BTreeSet<String>>;

/// Fails if a crate breaks the table, is missing in it, or if the table names a crate that is not there.
pub(crate) fn run(_: Vec<String>) -> Result<()> {
    let document = workspace::read(Path::new("ARCHITECTURE.md"))?;
    let uses = uses(&workspace::metadata()?).context("cargo metadata has another shape than expected")?;
    complain(&judge(&document, &uses))
}

/// What is wrong, one sentence each.
fn judge(document: &str, uses: &Uses) -> Vec<String> {
    let (rows, mut wrong) = rows(document);
    for name in rows.keys().filter(|name| !uses.contains_key(*name)) {
        wrong.push(format!("the table names {name}, and there is no crates/{name}"));
    }
    for (name, used) in uses {
        let Some(row) = rows.get(name) else {
            wrong.push(format!("crates/{name} has no place in the layer table of ARCHITECTURE.md"));
            continue;
        };
        for lower in used {
            match rows.get(lower) {
                Some(below) if below < row => {}
                Some(same) => wrong.push(format!("{name} (row {row}) uses {lower} (row {same})")),
                None => wrong.push(format!("{name} uses {lower}, which has no row")),
            }
        }
    }
    wrong
}

/// The table, and what is wrong with the table itself.
fn rows(document: &str) -> (Rows, Vec<String>) {
    let mut rows = Rows::new();
    let mut wrong = Vec::new();
    for (number, columns) in document.lines().filter_map(row) {
        for name in columns.split("  ").map(str::trim).filter(|column| is_crate(column)) {
            if rows.insert(name.to_owned(), number).is_some() {
                wrong.push(format!("the table names {name} twice"));
            }
        }
    }
    if rows.is_empty() {
        wrong.push("ARCHITECTURE.md holds no layer table (lines that begin with ` row 1   `)".into());
    }
    (rows, wrong)
}

/// Number and columns of a line ` row 3   …`.
fn row(line: &str) -> Option<(u32, &str)> {
    let (number, columns) = line.trim_start().strip_prefix("row ")?.split_once("  ")?;
    Some((number.trim().parse().ok()?, columns))
}

fn is_crate(column: &str) -> bool {
    !column.is_empty() && column.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
}

fn uses(metadata: &Value) -> Option<Uses> {
    let packages = metadata.get("packages")?.as_array()?;
    let mut uses = Uses::new();
    for package in packages {
        let folder = folder(package.get("manifest_path")?.as_str()?.strip_suffix("/Cargo.toml")?);
        let dependencies = package.get("dependencies")?.as_array()?;
        let local = dependencies.iter().filter_map(|dependency| dependency.get("path")?.as_str());
        if let Some(name) = folder {
            uses.insert(name.into(), local.map(|path| folder_or_path(path).to_owned()).collect());
        }
    }
    Some(uses)
}

/// The folder's name if it is a crate of the product: a folder directly below `crates/`.
fn folder(path: &str) -> Option<&str> {
    let (above, name) = path.rsplit_once('/')?;
    above.ends_with("/crates").then_some(name)
}

fn folder_or_path(path: &str) -> &str {
    folder(path).unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "text\n```\n row 3   airlock      guest        the command | PID 1\n \
                         row 2   engine                    what happens\n \
                         row 1   protocol   linux          the wire | the kernel\n```\n";

    fn crates(list: &[(&str, &[&str])]) -> Uses {
        let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        list.iter().map(|(name, used)| ((*name).to_owned(), owned(used))).collect()
    }

    #[test]
    fn crates_that_use_only_lower_rows_pass() {
        let uses = crates(&[
            ("airlock", &["engine", "linux"]),
            ("guest", &["linux", "protocol"]),
            ("engine", &["protocol"]),
            ("protocol", &[]),
            ("linux", &[]),
        ]);

        assert_eq!(judge(TABLE, &uses), Vec::<String>::new());
    }

    #[test]
    fn siblings_higher_rows_strangers_and_ghosts_are_each_named() {
        let uses = crates(&[
            ("airlock", &["guest"]),
            ("engine", &["airlock", "/elsewhere/tests"]),
            ("protocol", &["linux"]),
            ("linux", &[]),
            ("util", &[]),
        ]);

        let wrong = judge(TABLE, &uses);

        assert_eq!(
            wrong,
            [
                "the table names guest, and there is no crates/guest",
                "airlock (row 3) uses guest (row 3)",
                "engine uses /elsewhere/tests, which has no row",
                "engine (row 2) uses airlock (row 3)",
                "protocol (row 1) uses linux (row 1)",
                "crates/util has no place in the layer table of ARCHITECTURE.md",
            ]
        );
    }

    #[test]
    fn a_document_without_a_table_is_wrong() {
        let wrong = judge("# Architecture\nA row of houses.\n", &Uses::new());

        assert_eq!(wrong, ["ARCHITECTURE.md holds no layer table (lines that begin with ` row 1   `)"]);
    }

    #[test]
    fn dependencies_are_read_by_folder_and_of_every_kind() {
        let metadata = serde_json::json!({"packages": [
            {"manifest_path": "/w/crates/engine/Cargo.toml", "dependencies": [
                {"name": "serde", "path": null},
                {"name": "airlock-linux", "path": "/w/crates/linux", "kind": null},
                {"name": "xtask", "path": "/w/xtask", "kind": "dev"}]},
            {"manifest_path": "/w/xtask/Cargo.toml", "dependencies": []}]});

        assert_eq!(uses(&metadata), Some(crates(&[("engine", &["/w/xtask", "linux"])])));
    }
}
