//! Which paths of a workspace are protected or hidden (pure).
//!
//! *Protected* is what the host executes, or obeys, without being asked: hooks, settings of git, editors, shells and agents.
//! *Hidden* is what holds secrets. What always counts is data ([`known`]); a project adds and takes away by globs.
//!
//! Names are compared by [`fold::fold`], so that `.GIT`, `.g\u{200c}it` and `git~1` mean `.git`: there are file systems on
//! which they do. Whoever takes a path out of a list must spell it exactly.
//!
//! ```
//! use airlock_files::paths::Lists;
//! use airlock_protocol::files::Paths;
//! use std::path::Path;
//! let lists = Lists::new(&Paths { unprotected: vec!["tools/.vscode".into()], ..Paths::default() })?;
//! assert!(lists.is_protected(Path::new("vendor/lib/.git/hooks/pre-commit")));
//! assert!(lists.is_protected(Path::new(".VSCode/tasks.json")));
//! assert!(!lists.is_protected(Path::new("tools/.vscode/tasks.json")));
//! assert!(!lists.is_protected(Path::new(".git/index")));
//! assert!(lists.is_hidden(Path::new("server/.env.production")));
//! assert!(!lists.is_hidden(Path::new("server/.env.example")));
//! # Ok::<(), airlock_files::paths::BadPattern>(())
//! ```

mod fold;
mod git;
mod glob;
mod known;

pub use glob::BadPattern;

use airlock_protocol::files::Paths;
use glob::Glob;
use std::{
    collections::HashSet,
    ffi::OsStr,
    os::unix::ffi::OsStrExt as _,
    path::{Component, Path},
};

/// What is protected and hidden in one workspace.
#[derive(Debug, Clone)]
pub struct Lists {
    protected: Vec<Glob>,
    unprotected: Vec<Glob>,
    hidden: Vec<Glob>,
    shown: Vec<Glob>,
    never_hidden: Vec<Glob>,
    lasts: Lasts,
}

/// What a path can end in that one of the lists means, or git obeys.
#[derive(Debug, Clone, Default)]
struct Lasts {
    names: HashSet<Vec<u8>>,
    patterns: Vec<Glob>,
}

/// Longest name that file systems take; longer ones are folded the long way.
const LONGEST_NAME: usize = 255;

impl Lists {
    /// What always counts, and what was asked for.
    pub fn new(paths: &Paths) -> Result<Lists, BadPattern> {
        let ci: &[&str] = if paths.protect_ci { &known::CI } else { &[] };
        let protected = known::PROTECTED.iter().chain(ci).copied().chain(texts(&paths.protected));
        let hidden = known::HIDDEN.iter().copied().chain(texts(&paths.hidden));
        let (protected, hidden) = (globs(protected, Glob::folded)?, globs(hidden, Glob::folded)?);
        let mut lasts = Lasts { names: git::names().map(<[u8]>::to_vec).collect(), patterns: Vec::new() };
        for glob in protected.iter().chain(&hidden) {
            match glob.last_name() {
                Some(name) => drop(lasts.names.insert(name.to_vec())),
                None => lasts.patterns.push(glob.clone()),
            }
        }
        Ok(Lists {
            protected,
            unprotected: globs(texts(&paths.unprotected), Glob::exact)?,
            hidden,
            lasts,
            shown: globs(texts(&paths.shown), Glob::exact)?,
            never_hidden: globs(known::NEVER_HIDDEN.iter().copied(), Glob::exact)?,
        })
    }

    /// Whether a path that ends in this name can be in a list when the directory it is in is not. Much cheaper than
    /// asking for each path of a tree.
    pub fn concerns(&self, name: &OsStr) -> bool {
        let mut short = [0u8; LONGEST_NAME];
        let folded = match fold::fold_plain(name.as_bytes(), &mut short) {
            Some(folded) => folded,
            None => &fold::fold(name.as_bytes()),
        };
        self.lasts.names.contains(folded) || self.lasts.patterns.iter().any(|glob| glob.matches_last(folded))
    }

    /// Whether a path, relative to the workspace, is protected or lies below one that is.
    pub fn is_protected(&self, path: &Path) -> bool {
        let Some(names) = names(path) else { return true };
        let folded = fold_all(&names);
        let known = git::is_protected(&names, &folded) || covers(&self.protected, &folded);
        known && !covers(&self.unprotected, &names)
    }

    /// Whether a path ends in `.git`: as a directory it is a repository; as anything else it leads git to settings
    /// elsewhere, and is protected.
    pub fn names_git(&self, path: &Path) -> bool {
        let Some(names) = names(path) else { return true };
        let is_git = names.last().is_some_and(|last| git::is_git(&fold::fold(last)));
        is_git && !covers(&self.unprotected, &names)
    }

    /// Whether a path, relative to the workspace, is hidden or lies below one that is.
    pub fn is_hidden(&self, path: &Path) -> bool {
        let Some(names) = names(path) else { return true };
        let folded = fold_all(&names);
        covers(&self.hidden, &folded)
            && !covers(&self.shown, &names)
            && !self.never_hidden.iter().any(|glob| glob.matches(&names))
    }
}

/// The components of a path; `None` where it is not one that leads down from a workspace.
fn names(path: &Path) -> Option<Vec<Vec<u8>>> {
    let mut names = Vec::new();
    for part in path.components() {
        match part {
            Component::Normal(name) => names.push(OsStr::as_bytes(name).to_vec()),
            Component::CurDir => {}
            Component::RootDir | Component::ParentDir | Component::Prefix(_) => return None,
        }
    }
    Some(names)
}

fn fold_all(names: &[Vec<u8>]) -> Vec<Vec<u8>> {
    names.iter().map(|name| fold::fold(name)).collect()
}

/// Whether one of the globs means this path or one above it.
fn covers(globs: &[Glob], names: &[Vec<u8>]) -> bool {
    globs.iter().any(|glob| glob.matches_a_beginning_of(names))
}

fn texts(list: &[String]) -> impl Iterator<Item = &str> {
    list.iter().map(String::as_str)
}

fn globs<'a>(
    texts: impl Iterator<Item = &'a str>,
    read: fn(&str) -> Result<Glob, BadPattern>,
) -> Result<Vec<Glob>, BadPattern> {
    texts.map(read).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn lists() -> Lists {
        Lists::new(&Paths::default()).unwrap()
    }

    #[test]
    fn what_the_host_would_execute_is_protected_at_any_depth() {
        let lists = lists();
        for path in [
            ".git/hooks",
            ".git/hooks/pre-commit",
            ".git/config",
            ".git/config.worktree",
            ".git/commondir",
            ".git/modules/lib/hooks/post-checkout",
            ".git/modules/lib/nested/config",
            ".git/worktrees/w/commondir",
            ".git/rebase-merge/git-rebase-todo",
            "vendor/x/.git/hooks/a",
            ".gitmodules",
            "a/.gitmodules",
            ".vscode/tasks.json",
            "a/.idea",
            ".envrc",
            "home/.bashrc",
            ".zshenv",
            ".mcp.json",
            ".claude/settings.json",
            ".claude/settings.local.json",
            ".husky/pre-commit",
        ] {
            assert!(lists.is_protected(Path::new(path)), "{path}");
        }
    }

    #[test]
    fn what_git_itself_writes_is_not_protected() {
        let lists = lists();
        for path in [
            ".git",
            ".git/HEAD",
            ".git/index",
            ".git/objects/ab/cdef",
            ".git/objects/pack/pack-1.idx",
            ".git/refs/heads/hooks",
            ".git/refs/heads/config",
            ".git/logs/refs/heads/config",
            ".git/COMMIT_EDITMSG",
            "src/config",
            "hooks/build.sh",
            ".gitignore",
        ] {
            assert!(!lists.is_protected(Path::new(path)), "{path}");
        }
    }

    #[test]
    fn other_spellings_of_the_same_name_are_protected() {
        let lists = lists();
        for path in [
            ".GIT/Hooks/x",
            ".g\u{200c}it/hooks",
            ".git\u{feff}/config",
            "git~1/config",
            "GIT~1/hooks/x",
            ".git./hooks",
            ".git /hooks",
            ".git::$INDEX_ALLOCATION/hooks",
            ".git/hook\u{17f}/x",
            ".VSCODE",
            ".env\u{ad}rc",
            ".Git/Refs/hooks",
        ] {
            assert!(lists.is_protected(Path::new(path)), "{path:?}");
        }
    }

    #[test]
    fn secrets_are_hidden_and_their_examples_are_not() {
        let lists = lists();
        for path in
            [".env", "a/.env.local", ".ENV", "tls/server.pem", "id_ed25519", "x/id_rsa", "app.key", ".netrc"]
        {
            assert!(lists.is_hidden(Path::new(path)), "{path}");
        }
        for path in [
            ".env.example",
            "a/.env.sample",
            ".env.template",
            "id_rsa.pub",
            "environment",
            "keys.rs",
            ".npmrc",
        ] {
            assert!(!lists.is_hidden(Path::new(path)), "{path}");
        }
    }

    #[test]
    fn a_project_adds_and_takes_away() {
        let lists = Lists::new(&Paths {
            protected: vec!["deploy/**/*.sh".into(), "Makefile".into()],
            unprotected: vec![".envrc".into(), "tools/.vscode".into()],
            hidden: vec!["secrets".into()],
            shown: vec!["tests/fixtures/*.pem".into()],
            ..Paths::default()
        })
        .unwrap();

        assert!(lists.is_protected(Path::new("deploy/a/b/run.sh")));
        assert!(lists.is_protected(Path::new("a/makefile")));
        assert!(!lists.is_protected(Path::new("a/.envrc")));
        assert!(lists.is_protected(Path::new("a/.ENVRC")), "an exception must be spelled exactly");
        assert!(!lists.is_protected(Path::new("tools/.vscode/tasks.json")));
        assert!(lists.is_protected(Path::new(".vscode/tasks.json")));
        assert!(lists.is_hidden(Path::new("a/secrets/b")));
        assert!(!lists.is_hidden(Path::new("tests/fixtures/ca.pem")));
        assert!(lists.is_hidden(Path::new("ca.pem")));
    }

    #[test]
    fn jobs_of_ci_are_protected_where_that_is_asked_for() {
        let path = Path::new(".github/workflows/ci.yml");
        assert!(!lists().is_protected(path));
        let with = Paths { protect_ci: true, ..Paths::default() };
        assert!(Lists::new(&with).unwrap().is_protected(path));
    }

    #[test]
    fn a_path_that_leads_out_is_protected_and_hidden() {
        for path in ["/etc/passwd", "../x", "a/../../b"] {
            assert!(lists().is_protected(Path::new(path)));
            assert!(lists().is_hidden(Path::new(path)));
        }
    }

    proptest! {
        #[test]
        fn whatever_is_in_a_list_is_of_a_name_that_concerns(above in "(a/|b/|.git/|.claude/){0,2}", name in "\\PC{1,12}|[a-z.]{0,4}(.pem|.key|hooks|settings.json)") {
            let lists = lists();
            let path = Path::new(&above).join(&name);
            prop_assume!(path.file_name().is_some() && path.components().all(|part| matches!(part, Component::Normal(_))));
            let parent = path.parent().unwrap();
            let above = lists.is_protected(parent) || lists.is_hidden(parent);
            let is_listed = lists.is_protected(&path) || lists.is_hidden(&path) || lists.names_git(&path);
            prop_assert!(above || !is_listed || lists.concerns(path.file_name().unwrap()));
        }

        #[test]
        fn whatever_lies_below_a_protected_path_is_protected(above in "([a-z]{1,4}/){0,3}", below in "(/[a-zA-Z.]{1,6}){0,3}") {
            let path = format!("{above}.git/hooks{below}");
            prop_assert!(lists().is_protected(Path::new(&path)));
        }

        #[test]
        fn case_does_not_matter(upper in proptest::collection::vec(any::<bool>(), 9)) {
            let name: String = ".git/hooks".chars().zip(upper.iter().chain([&false]))
                .map(|(c, up)| if *up { c.to_ascii_uppercase() } else { c }).collect();
            prop_assert!(lists().is_protected(Path::new(&name)));
        }

        #[test]
        fn any_bytes_are_judged(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let path = Path::new(OsStr::from_bytes(&bytes));
            let _ = (lists().is_protected(path), lists().is_hidden(path));
        }
    }
}
