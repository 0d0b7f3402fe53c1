//! What git obeys in its own directories: more than a glob can say.
//!
//! A `.git` that is a directory is not protected itself: commits made inside must reach the host. One that becomes a file
//! or a link leads git to settings elsewhere; that depends on what it is, and [`super::Lists::names_git`] tells where to look.

/// Names below `.git` that git executes, or that lead it to other settings. At any depth: submodules and worktrees
/// have theirs in `modules/*` and `worktrees/*`.
const OBEYED: [&[u8]; 8] = [
    // Run at every commit, checkout, merge.
    b"hooks",
    // Names programs to run: pager, editor, fsmonitor, filters, aliases.
    b"config",
    b"config.worktree",
    // Where the settings are looked for instead.
    b"commondir",
    b"gitdir",
    // Commands that go on when a rebase does (`exec`).
    b"rebase-merge",
    b"rebase-apply",
    b"sequencer",
];

/// Directories of `.git` in which names are those of branches and objects. Exactly so: `Refs` is something else.
const NAMES_OF_OTHERS: [&[u8]; 3] = [b"refs", b"logs", b"objects"];

/// Whether a path is, or lies below, something that git obeys. `names` as they are, and `folded`.
pub(super) fn is_protected(names: &[Vec<u8>], folded: &[Vec<u8>]) -> bool {
    let gits = folded.iter().enumerate().filter(|(_, name)| is_git(name));
    for (at, _) in gits {
        let below = folded.get(at + 1..).unwrap_or_default();
        let first = names.get(at + 1).map(Vec::as_slice).unwrap_or_default();
        if !NAMES_OF_OTHERS.contains(&first) && below.iter().any(|name| OBEYED.contains(&name.as_slice())) {
            return true;
        }
    }
    false
}

/// Every name (folded) that git obeys, and that of its own directory.
pub(super) fn names() -> impl Iterator<Item = &'static [u8]> {
    OBEYED.into_iter().chain([b".git".as_slice()])
}

/// Whether a name (folded) is that of git's own directory.
pub(super) fn is_git(folded: &[u8]) -> bool {
    folded == b".git"
}
