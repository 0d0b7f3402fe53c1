//! Hidden files, as git inside is told to ignore them: `git add` of one that cannot be opened would fail as a whole. One that git tracks
//! is not ignored by this.

use super::Bind;
use airlock_protocol::spec::HomeFile;
use std::path::{Path, PathBuf};

/// Where git looks for what its user wants ignored everywhere (gitignore(5)).
const PLACE: &str = ".config/git/ignore";

/// The file that says so, if anything of the workspace is hidden.
pub(super) fn home_file(binds: &[Bind]) -> Option<HomeFile> {
    let found = &binds.first()?.found;
    if found.hidden.is_empty() {
        return None;
    }
    let nested = found.repositories.iter().filter_map(|path| path.parent().map(Path::to_owned));
    let mut tops: Vec<PathBuf> = nested.chain([PathBuf::new()]).collect();
    tops.sort();
    tops.dedup();
    Some(HomeFile { path: PLACE.to_owned(), text: patterns(&found.hidden, &tops) })
}

/// A line for each file and each repository that it is in, from that repository's top.
fn patterns(hidden: &[PathBuf], tops: &[PathBuf]) -> String {
    let mut lines: Vec<String> = Vec::new();
    for path in hidden {
        let within = tops.iter().filter_map(|top| path.strip_prefix(top).ok()?.to_str());
        lines.extend(within.filter(|rest| !rest.contains('\n')).map(|rest| format!("/{}\n", escaped(rest))));
    }
    lines.sort();
    lines.dedup();
    format!("# Hidden from this sandbox by airlock.\n{}", lines.concat())
}

fn escaped(path: &str) -> String {
    let mut text = String::new();
    for letter in path.chars() {
        if matches!(letter, '*' | '?' | '[' | '\\' | ' ') {
            text.push('\\');
        }
        text.push(letter);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_repository_has_a_line_for_what_is_in_it() {
        let hidden = ["sub/.env", "a [1].key"].map(PathBuf::from);
        let text = patterns(&hidden, &["", "sub", "other"].map(PathBuf::from));
        assert_eq!(text, "# Hidden from this sandbox by airlock.\n/.env\n/a\\ \\[1].key\n/sub/.env\n");
    }
}
