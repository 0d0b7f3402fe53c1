//! Documents are true: what a relative link names exists, and so does every task they tell a person to run.

use super::complain;
use crate::{names, workspace};
use anyhow::Result;
use std::path::{Path, PathBuf};

/// Fails with every link that leads nowhere.
pub(crate) fn check() -> Result<()> {
    let mut wrong = Vec::new();
    for path in workspace::files("md")? {
        let text = workspace::read(&path)?;
        let broken =
            links(&text).into_iter().filter(|link| !workspace::top().join(resolved(&path, link)).exists());
        wrong.extend(broken.map(|link| format!("{}: {link} does not exist", path.display())));
        let unknown = tasks(&text).into_iter().filter(|task| !names().contains(&task.as_str()));
        wrong.extend(unknown.map(|task| format!("{}: there is no cargo xtask {task}", path.display())));
    }
    complain(&wrong)
}

/// The files that the text links to, as written, without anchors; code blocks and other sites left out.
fn links(text: &str) -> Vec<String> {
    let mut links = Vec::new();
    let mut in_code = false;
    for line in text.lines() {
        in_code ^= line.trim_start().starts_with("```");
        // Code inside a line may show a link without being one.
        let prose: String = line.split('`').step_by(2).collect::<Vec<_>>().join("");
        if !in_code {
            links.extend(prose.split("](").skip(1).filter_map(|after| file_of(after.split(')').next()?)));
        }
    }
    links
}

fn file_of(link: &str) -> Option<String> {
    let elsewhere = link.contains("://") || link.starts_with("mailto:");
    let file = link.split('#').next()?;
    (!elsewhere && !file.is_empty()).then(|| file.to_owned())
}

fn resolved(document: &Path, link: &str) -> PathBuf {
    match link.strip_prefix('/') {
        Some(from_top) => PathBuf::from(from_top),
        None => document.parent().unwrap_or(Path::new("")).join(link),
    }
}

/// The tasks that the text names after `cargo xtask`.
fn tasks(text: &str) -> Vec<String> {
    let is_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let named = text.split("cargo xtask ").skip(1).map(|after| after.split(|c| !is_name(c)).next());
    named.flatten().filter(|task| !task.is_empty()).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_found_and_code_anchors_and_sites_are_not() {
        let text = "[a](docs/a.md#part) and [b](#here) [c](https://x.test/y)\n```\n[d](no.md)\n```\n`[e](no.md)` [f](f.md)";

        assert_eq!(links(text), ["docs/a.md", "f.md"]);
    }

    #[test]
    fn a_link_is_read_from_its_document() {
        assert_eq!(resolved(Path::new("docs/adr/0001.md"), "../x.md"), Path::new("docs/adr/../x.md"));
        assert_eq!(resolved(Path::new("docs/adr/0001.md"), "/x.md"), Path::new("x.md"));
    }

    #[test]
    fn tasks_are_found_in_prose_and_code() {
        assert_eq!(
            tasks("run `cargo xtask test`, or\ncargo xtask dist --help\n`cargo xtask` alone"),
            ["test", "dist"]
        );
    }
}
