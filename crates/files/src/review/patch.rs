//! Changes as a patch, as git writes it: `git apply` and `patch` take it.
//!
//! Into a pipe go the bytes as they are. On a terminal nothing that came out of a sandbox can do more than be seen.

use super::{
    Error,
    change::{Change, Changes, Kind, Seen},
    names,
    text::{self, Body, Hunk, Line, Part},
};
use std::{
    io::{self, Write},
    os::unix::ffi::OsStrExt as _,
    path::Path,
};

/// How a patch is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Style {
    /// For programs: the bytes as they are.
    Bytes,
    /// For a terminal, without colours.
    Plain,
    /// For a terminal, with colours.
    Colours,
}

/// Why a patch could not be written.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// A file could not be read.
    #[error(transparent)]
    Read(#[from] Error),
    /// The output could not be written.
    #[error("could not write the output")]
    Write(#[from] io::Error),
}

const BOLD: &str = "\x1b[1m";
const RED: &str = "\x1b[31m";
const GREEN: &str = "\x1b[32m";
const CYAN: &str = "\x1b[36m";
const END: &str = "\x1b[0m";

impl Changes {
    /// Writes one change as a patch.
    pub fn write_patch(&self, change: &Change, style: Style, out: &mut dyn Write) -> Result<(), WriteError> {
        if change.renamed_to.is_some() {
            // Told where it went.
            return Ok(());
        }
        let mut pen = Pen { out, style };
        if let (Some(from), Some(is)) = (&change.renamed_from, &change.is) {
            return Ok(pen.rename(from, &change.path, self.mode_of(from), is)?);
        }
        for part in text::parts(change) {
            if part.is.or(part.was).is_some_and(|seen| seen.kind == Kind::Directory) {
                pen.directory(&change.path, part)?;
                continue;
            }
            let body = text::body(&self.tree, &change.path, part)?;
            pen.part(&change.path, part, &body)?;
        }
        Ok(())
    }

    /// The mode of a file that is gone.
    fn mode_of(&self, path: &Path) -> Option<u32> {
        let at = self.list.binary_search_by(|change| change.path.as_path().cmp(path)).ok()?;
        self.list.get(at)?.was.as_ref().map(Seen::git_mode)
    }
}

struct Pen<'a> {
    out: &'a mut dyn Write,
    style: Style,
}

impl Pen<'_> {
    fn rename(&mut self, from: &Path, to: &Path, mode: Option<u32>, is: &Seen) -> io::Result<()> {
        self.head(&format!("diff --git {} {}", side("a", from), side("b", to)))?;
        if let Some(mode) = mode.filter(|mode| *mode != is.git_mode()) {
            self.head(&format!("old mode {mode:o}"))?;
            self.head(&format!("new mode {:o}", is.git_mode()))?;
        }
        self.head("similarity index 100%")?;
        self.head(&format!("rename from {}", quoted(from)))?;
        self.head(&format!("rename to {}", quoted(to)))
    }

    /// git knows no directories: programs that read patches skip these lines.
    fn directory(&mut self, path: &Path, part: Part<'_>) -> io::Result<()> {
        let shown = quoted(path);
        match (part.was, part.is) {
            (None, _) => self.head(&format!("# new directory {shown}")),
            (Some(_), None) => self.head(&format!("# deleted directory {shown}")),
            (Some(was), Some(is)) => {
                self.head(&format!("# directory {shown}: mode {:o} is now {:o}", was.mode, is.mode))
            }
        }
    }

    fn part(&mut self, path: &Path, part: Part<'_>, body: &Body) -> io::Result<()> {
        self.head(&format!("diff --git {} {}", side("a", path), side("b", path)))?;
        match (part.was, part.is) {
            (None, Some(is)) => self.head(&format!("new file mode {:o}", is.git_mode()))?,
            (Some(was), None) => self.head(&format!("deleted file mode {:o}", was.git_mode()))?,
            (Some(was), Some(is)) if was.git_mode() != is.git_mode() => {
                self.head(&format!("old mode {:o}", was.git_mode()))?;
                self.head(&format!("new mode {:o}", is.git_mode()))?;
            }
            _ => {}
        }
        let old = part.was.map_or("/dev/null".to_owned(), |_| side("a", path));
        let new = part.is.map_or("/dev/null".to_owned(), |_| side("b", path));
        match body {
            Body::Nothing => Ok(()),
            Body::Binary => self.head(&format!("Binary files {old} and {new} differ")),
            Body::Large => {
                let size = |seen: Option<&Seen>| seen.map_or(0, |seen| seen.size);
                let (before, after) = (size(part.was), size(part.is));
                // Begins and ends as git's own line does, so that `git apply` refuses rather than skips it.
                self.head(&format!(
                    "Binary files {old} ({before} bytes) and {new} ({after} bytes), too large to show, differ"
                ))
            }
            Body::Text { old: before, new: after } => {
                let (before, after) = (text::split(before), text::split(after));
                let hunks = text::hunks(text::operations(&before, &after));
                if hunks.is_empty() {
                    return Ok(());
                }
                self.head(&format!("--- {}", ended(&old)))?;
                self.head(&format!("+++ {}", ended(&new)))?;
                hunks.iter().try_for_each(|hunk| self.hunk(hunk, &before, &after))
            }
        }
    }

    fn hunk(&mut self, hunk: &Hunk, old: &[&[u8]], new: &[&[u8]]) -> io::Result<()> {
        let header = format!("@@ -{} +{} @@", range(&hunk.old), range(&hunk.new));
        match self.style {
            Style::Colours => writeln!(self.out, "{CYAN}{header}{END}")?,
            _ => writeln!(self.out, "{header}")?,
        }
        for line in &hunk.lines {
            let (sign, colour, text) = match line {
                Line::Same(index) => (' ', "", old.get(*index)),
                Line::Removed(index) => ('-', RED, old.get(*index)),
                Line::Added(index) => ('+', GREEN, new.get(*index)),
            };
            self.line(sign, colour, text.copied().unwrap_or_default())?;
        }
        Ok(())
    }

    fn line(&mut self, sign: char, colour: &str, text: &[u8]) -> io::Result<()> {
        let (text, is_ended) = match text.strip_suffix(b"\n") {
            Some(text) => (text, true),
            None => (text, false),
        };
        match self.style {
            Style::Bytes => {
                write!(self.out, "{sign}")?;
                self.out.write_all(text)?;
                self.out.write_all(b"\n")?;
            }
            Style::Plain => writeln!(self.out, "{sign}{}", visible(text))?,
            Style::Colours if colour.is_empty() => writeln!(self.out, "{sign}{}", visible(text))?,
            Style::Colours => writeln!(self.out, "{colour}{sign}{}{END}", visible(text))?,
        }
        if !is_ended {
            writeln!(self.out, "\\ No newline at end of file")?;
        }
        Ok(())
    }

    fn head(&mut self, text: &str) -> io::Result<()> {
        match self.style {
            Style::Colours => writeln!(self.out, "{BOLD}{text}{END}"),
            _ => writeln!(self.out, "{text}"),
        }
    }
}

/// Text that came out of a sandbox, as a terminal may have it: what would be obeyed is shown (`^[`), what cannot be
/// seen is shown as a box.
pub fn visible(text: &[u8]) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in String::from_utf8_lossy(text).chars() {
        match c {
            '\t' => shown.push('\t'),
            '\x7f' => shown.push_str("^?"),
            c if u32::from(c) < 32 => {
                shown.push('^');
                shown.push(char::from_u32(u32::from(c) + 64).unwrap_or('?'));
            }
            c if names::is_unseen(c) => shown.push('\u{fffd}'),
            c => shown.push(c),
        }
    }
    shown
}

fn quoted(path: &Path) -> String {
    names::quote(path.as_os_str().as_bytes())
}

/// `a/…` or `b/…`, quoted as a whole.
fn side(letter: &str, path: &Path) -> String {
    quoted(&Path::new(letter).join(path))
}

/// Names with spaces are ended by a tab, or `patch` would look for a date in them.
fn ended(name: &str) -> String {
    if name.contains(' ') && !name.starts_with('"') { format!("{name}\t") } else { name.to_owned() }
}

/// Lines count from 1; where there is none, the one before is named.
fn range(lines: &std::ops::Range<usize>) -> String {
    match lines.len() {
        0 => format!("{},0", lines.start),
        1 => format!("{}", lines.start + 1),
        length => format!("{},{length}", lines.start + 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn nothing_that_is_shown_is_obeyed(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            prop_assert!(!visible(&bytes).chars().any(|c| c != '\t' && names::is_unseen(c)));
        }
    }
}
