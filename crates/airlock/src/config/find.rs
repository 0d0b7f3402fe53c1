//! Where a project's file is looked for.

use rustix::{
    fs::{Mode, lstat},
    process::geteuid,
};
use std::path::{Path, PathBuf};

/// What matters of a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Seen {
    owner: u32,
    is_open_to_all: bool,
}

/// The directory itself and those above it that are the person's own: up to the home directory, which is not one of
/// them, or to one that belongs to somebody else or that everybody may write.
///
/// A repository's root is no border: the sandboxed program could make one.
pub(super) fn folders(directory: &Path, home: Option<&Path>) -> Vec<PathBuf> {
    let look = |path: &Path| {
        let seen = lstat(path).ok()?;
        let mode = Mode::from_raw_mode(seen.st_mode);
        Some(Seen { owner: seen.st_uid, is_open_to_all: mode.contains(Mode::WOTH) })
    };
    climb(directory, home, geteuid().as_raw(), look)
}

fn climb(
    directory: &Path,
    home: Option<&Path>,
    me: u32,
    look: impl Fn(&Path) -> Option<Seen>,
) -> Vec<PathBuf> {
    let ours = |folder: &&Path| {
        Some(*folder) != home && look(folder).is_some_and(|seen| seen.owner == me && !seen.is_open_to_all)
    };
    let above = directory.ancestors().skip(1).take_while(ours);
    let above = if Some(directory) == home { None } else { Some(above) };
    std::iter::once(directory).chain(above.into_iter().flatten()).map(Path::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn climbed(directory: &str, me: u32) -> Vec<PathBuf> {
        let look = |path: &Path| {
            let (owner, is_open_to_all) = match path.to_str()? {
                "/" | "/home" | "/srv" => (0, false),
                "/tmp" => (0, true),
                _ => (1000, false),
            };
            Some(Seen { owner, is_open_to_all })
        };
        climb(Path::new(directory), Some(Path::new("/home/ada")), me, look)
    }

    #[test]
    fn the_search_ends_below_the_home_directory() {
        let expected = ["/home/ada/src/web", "/home/ada/src"].map(PathBuf::from);
        assert_eq!(climbed("/home/ada/src/web", 1000), expected);
        assert_eq!(climbed("/home/ada", 1000), ["/home/ada"].map(PathBuf::from));
    }

    #[test]
    fn directories_of_others_and_of_everybody_are_not_searched() {
        assert_eq!(climbed("/srv/web/sub", 1000), ["/srv/web/sub", "/srv/web"].map(PathBuf::from));
        assert_eq!(climbed("/tmp/x", 0), ["/tmp/x"].map(PathBuf::from));
        assert_eq!(climbed("/srv", 0), ["/srv", "/"].map(PathBuf::from));
    }
}
