//! The link of a binary, kept so that it can be done again: with its symbols, or with its functions in another order.
//!
//! While `dist` builds, this program stands in the linker's place (`-C linker`), links as it was told, and keeps a copy of
//! everything it was given.
//!
//! ```ignore
//! let link = Link::kept_in(&folder)?;
//! link.again(&with_symbols, Symbols::Kept, &[])?;
//! ```

use crate::workspace::succeed;
use anyhow::{Context as _, Result};
use std::{env, fs, path::Path, process::Command};

/// Names the folder in which the link is kept; who finds it in its environment is called as a linker.
pub(super) const FOLDER: &str = "AIRLOCK_KEPT_LINK";
/// What links.
const LINKER: &str = "cc";
/// What has the linker leave symbols out.
const STRIP: &str = "-Wl,--strip-all";
/// The list of arguments in the folder, one a line.
const ARGUMENTS: &str = "arguments";

/// Whether a binary keeps the names of its functions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Symbols {
    /// It does.
    Kept,
    /// They are left out.
    LeftOut,
}

/// A link that was done and can be done again.
pub(super) struct Link {
    arguments: Vec<String>,
}

/// Links, where this program is called as a linker; nothing where it is not.
pub(crate) fn called_as_linker(arguments: &[String]) -> Option<Result<()>> {
    let folder = env::var_os(FOLDER)?;
    Some(succeed(Command::new(LINKER).args(arguments)).and_then(|()| keep(arguments, Path::new(&folder))))
}

/// Copies what was linked: the compiler removes much of it afterwards.
fn keep(arguments: &[String], folder: &Path) -> Result<()> {
    let mut kept = Vec::new();
    for (number, argument) in expanded(arguments)?.into_iter().enumerate() {
        let path = Path::new(&argument);
        let follows_output = kept.last().is_some_and(|last| last == "-o");
        if argument.starts_with('-') || follows_output || !path.is_file() {
            kept.push(argument);
            continue;
        }
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let copy = folder.join(format!("{number}-{name}"));
        let _ = fs::remove_file(&copy);
        if fs::hard_link(path, &copy).is_err() {
            fs::copy(path, &copy).with_context(|| format!("could not keep {}", path.display()))?;
        }
        kept.push(copy.display().to_string());
    }
    fs::write(folder.join(ARGUMENTS), kept.join("\n")).context("could not keep the linker's arguments")
}

/// Long lists of arguments come in a file.
fn expanded(arguments: &[String]) -> Result<Vec<String>> {
    let [one] = arguments else { return Ok(arguments.to_vec()) };
    let Some(path) = one.strip_prefix('@') else { return Ok(arguments.to_vec()) };
    let text = fs::read_to_string(path).with_context(|| format!("could not read {path}"))?;
    Ok(text.lines().map(unquoted).collect())
}

/// A line of such a file: what a backslash precedes stands for itself.
fn unquoted(line: &str) -> String {
    let mut letters = line.trim_matches('"').chars();
    let mut text = String::new();
    while let Some(letter) = letters.next() {
        text.push(if letter == '\\' { letters.next().unwrap_or(letter) } else { letter });
    }
    text
}

impl Link {
    /// The link that was kept there.
    pub(super) fn kept_in(folder: &Path) -> Result<Link> {
        let path = folder.join(ARGUMENTS);
        let text =
            fs::read_to_string(&path).with_context(|| format!("no link was kept in {}", folder.display()))?;
        Ok(Link { arguments: text.lines().map(str::to_owned).collect() })
    }

    /// Links once more, into another file.
    pub(super) fn again(&self, output: &Path, symbols: Symbols, more: &[String]) -> Result<()> {
        let arguments = again(&self.arguments, output, symbols);
        succeed(Command::new(LINKER).args(arguments).args(more))
    }
}

fn again(arguments: &[String], output: &Path, symbols: Symbols) -> Vec<String> {
    let mut again: Vec<String> = arguments
        .iter()
        .filter(|argument| symbols == Symbols::LeftOut || *argument != STRIP)
        .cloned()
        .collect();
    let at = again.iter().position(|argument| argument == "-o");
    if let Some(old) = at.and_then(|at| again.get_mut(at + 1)) {
        *old = output.display().to_string();
    }
    again
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_is_done_again_with_symbols_and_into_another_file() {
        let first = ["-m64", "a.o", "-Wl,--strip-all", "-o", "/t/airlock", "-lc"].map(str::to_owned);

        let with = again(&first, Path::new("/t/other"), Symbols::Kept);
        let without = again(&first, Path::new("/t/other"), Symbols::LeftOut);

        assert_eq!(with, ["-m64", "a.o", "-o", "/t/other", "-lc"]);
        assert_eq!(without, ["-m64", "a.o", "-Wl,--strip-all", "-o", "/t/other", "-lc"]);
    }

    #[test]
    fn what_is_quoted_in_a_list_of_arguments_is_read_as_it_was_meant() {
        assert_eq!(unquoted(r#""-Wl,--as-needed""#), "-Wl,--as-needed");
        assert_eq!(unquoted(r"/a\ b"), "/a b");
    }
}
