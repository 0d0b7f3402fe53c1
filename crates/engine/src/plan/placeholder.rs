//! What stands in for protected paths that are not there, in repositories of a workspace that is written directly: nothing
//! can be mounted over what does not exist, and a program inside could make it. They are made before the sandbox is and
//! removed after it, if they are still what they were.

use super::search::{Found, Protected};
use airlock_files::paths::Lists;
use airlock_protocol::state::Placeholder;
use rustix::{
    fs::{AtFlags, FileType, Gid, Mode, OFlags, ResolveFlags, Uid},
    io::Errno,
};
use std::{
    fs::File,
    io::{self, Read as _, Write as _},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::{Component, Path, PathBuf},
};

/// What git, editors, shells and agents of the host obey beside a repository without being asked. An empty directory stands
/// for each, for files too: no file can be made or moved there, git does not see it, and its readers find no file.
const BESIDE: [&str; 19] = [
    ".vscode",
    ".idea",
    ".zed",
    ".fleet",
    ".devcontainer.json",
    ".gitmodules",
    ".envrc",
    "mise.toml",
    ".mise.toml",
    ".mcp.json",
    ".claude",
    ".claude/settings.json",
    ".claude/settings.local.json",
    ".cursor",
    ".codex",
    ".gemini",
    ".windsurf",
    ".kiro",
    "opencode.json",
];
/// What git looks for in its own directory: where its settings are. This one says "here".
const COMMON: (&str, &str) = ("commondir", ".\n");
/// Most bytes of a repository's settings that are looked at.
const MOST_SETTINGS: u64 = 1 << 20;

/// What a workspace needs, as far as it is not there. Paths are from the workspace.
pub fn wanted(workspace: &OwnedFd, found: &Found, lists: &Lists) -> Vec<Placeholder> {
    let mut wanted = Vec::new();
    for repository in repositories(workspace, found) {
        let settings = settings(workspace, &repository);
        wanted.push(directory(repository.join("hooks")));
        wanted.push(file(repository.join(COMMON.0), COMMON.1));
        if settings.to_ascii_lowercase().contains("worktreeconfig") {
            wanted.push(file(repository.join("config.worktree"), ""));
        }
        let is_top = repository.file_name().is_some_and(|name| name == ".git");
        let Some(top) = repository.parent().filter(|_| is_top) else { continue };
        wanted.extend(BESIDE.iter().map(|name| directory(top.join(name))));
        wanted.extend(hooks_path(&settings).map(|path| directory(top.join(path))));
    }
    let is_absent = |path: &Path| matches!(kind(workspace.as_fd(), path), Err(Errno::NOENT));
    wanted.retain(|one| {
        let is_left_out =
            !lists.is_protected(&one.path) && one.path.components().any(|part| part.as_os_str() == ".git");
        is_absent(&one.path) && !is_left_out
    });
    // What is only a way to others is nothing without them.
    let is_needed = |one: &Placeholder| lists.is_protected(&one.path) || is_above(&wanted, one);
    wanted.iter().filter(|one| is_needed(one) || !is_beside(&one.path)).cloned().collect()
}

/// Whether one of these is below it.
pub fn is_above(all: &[Placeholder], one: &Placeholder) -> bool {
    all.iter().any(|other| other.path != one.path && other.path.starts_with(&one.path))
}

fn is_beside(path: &Path) -> bool {
    BESIDE.iter().any(|name| path.ends_with(name))
}

/// Directories in which git really keeps a repository: `.git`, and those of submodules in it.
fn repositories(workspace: &OwnedFd, found: &Found) -> Vec<PathBuf> {
    let of_settings = found.protected.iter().filter(|one| one.path.ends_with("config"));
    let below = of_settings.filter_map(|one| one.path.parent().map(Path::to_owned));
    let mut all: Vec<PathBuf> = found.repositories.iter().cloned().chain(below).collect();
    all.sort();
    all.dedup();
    let holds = |path: &Path, name: &str, wanted| {
        kind(workspace.as_fd(), &path.join(name)).is_ok_and(|found| found == wanted)
    };
    all.retain(|path| {
        holds(path, "HEAD", FileType::RegularFile) && holds(path, "objects", FileType::Directory)
    });
    all
}

/// A repository's own settings.
fn settings(workspace: &OwnedFd, repository: &Path) -> String {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
    let mut text = Vec::new();
    let opened = rustix::fs::openat2(workspace, repository.join("config"), flags, Mode::empty(), PLAIN);
    let _ = opened.map(|file| File::from(file).take(MOST_SETTINGS).read_to_end(&mut text));
    String::from_utf8_lossy(&text).into_owned()
}

/// Where settings look for hooks instead, below the project.
fn hooks_path(settings: &str) -> Option<PathBuf> {
    let value = settings.lines().find_map(|line| {
        let (key, value) = line.split_once('=')?;
        key.trim().eq_ignore_ascii_case("hookspath").then(|| value.trim().trim_matches('"').to_owned())
    })?;
    let path = PathBuf::from(value);
    let is_below = path.components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
    (is_below && path.components().next().is_some()).then_some(path)
}

fn directory(path: PathBuf) -> Placeholder {
    Placeholder { path, text: None }
}

fn file(path: PathBuf, text: &str) -> Placeholder {
    Placeholder { path, text: Some(text.to_owned()) }
}

const PLAIN: ResolveFlags =
    ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS).union(ResolveFlags::NO_MAGICLINKS);

fn kind(workspace: BorrowedFd<'_>, path: &Path) -> rustix::io::Result<FileType> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let opened = rustix::fs::openat2(workspace, path, flags, Mode::empty(), PLAIN)?;
    Ok(FileType::from_raw_mode(rustix::fs::fstat(&opened)?.st_mode))
}

/// Makes one, with the owner of the directory it is in. Gives what has to be protected then; nothing where something came
/// first.
pub fn make(workspace: BorrowedFd<'_>, placeholder: &Placeholder) -> io::Result<Option<Protected>> {
    let (parent, name) = place(workspace, &placeholder.path)?;
    let made = match &placeholder.text {
        None => rustix::fs::mkdirat(&parent, name, Mode::from_raw_mode(0o755)),
        Some(text) => {
            let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
            match rustix::fs::openat(&parent, name, flags, Mode::from_raw_mode(0o644)) {
                Ok(file) => {
                    File::from(file).write_all(text.as_bytes())?;
                    Ok(())
                }
                Err(err) => Err(err),
            }
        }
    };
    match made {
        Ok(()) => {}
        Err(Errno::EXIST) => return Ok(None),
        Err(err) => return Err(err.into()),
    }
    let owner = rustix::fs::fstat(&parent)?;
    if rustix::process::geteuid().is_root() {
        let (user, group) = (Uid::from_raw(owner.st_uid), Gid::from_raw(owner.st_gid));
        rustix::fs::chownat(&parent, name, Some(user), Some(group), AtFlags::SYMLINK_NOFOLLOW)?;
    }
    let inode = rustix::fs::statat(&parent, name, AtFlags::SYMLINK_NOFOLLOW)?.st_ino;
    Ok(Some(Protected { path: placeholder.path.clone(), inode, is_link: false }))
}

/// Removes one that is still what was made.
pub fn remove(workspace: BorrowedFd<'_>, placeholder: &Placeholder) -> io::Result<()> {
    let (parent, name) = place(workspace, &placeholder.path)?;
    let Some(text) = &placeholder.text else {
        return match rustix::fs::unlinkat(&parent, name, AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT | Errno::NOTEMPTY | Errno::EXIST | Errno::NOTDIR) => Ok(()),
            Err(err) => Err(err.into()),
        };
    };
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let Ok(file) = rustix::fs::openat(&parent, name, flags, Mode::empty()) else { return Ok(()) };
    let mut there = Vec::new();
    File::from(file).take(64).read_to_end(&mut there)?;
    if there == text.as_bytes() {
        rustix::fs::unlinkat(&parent, name, AtFlags::empty())?;
    }
    Ok(())
}

/// The directory something is in, without following a link, and its name there.
fn place<'p>(workspace: BorrowedFd<'_>, path: &'p Path) -> io::Result<(OwnedFd, &'p Path)> {
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok((rustix::fs::openat2(workspace, parent, flags, Mode::empty(), PLAIN)?, Path::new(name)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::search::{Wish, search};
    use airlock_protocol::files::Paths;
    use std::fs;

    fn look(path: &Path) -> (OwnedFd, Vec<Placeholder>) {
        let lists = Lists::new(&Paths::default()).unwrap();
        let opened = OwnedFd::from(fs::File::open(path).unwrap());
        let wish = Wish { sockets: true, hidden: None, protected: Some(&lists) };
        let found = search(&opened, path, wish).unwrap();
        let wanted = wanted(&opened, &found, &lists);
        (opened, wanted)
    }

    fn repository(path: &Path, settings: &str) {
        fs::create_dir_all(path.join("objects")).unwrap();
        fs::write(path.join("HEAD"), "ref: refs/heads/main\n").unwrap();
        fs::write(path.join("config"), settings).unwrap();
    }

    #[test]
    fn what_git_would_obey_is_stood_for_and_goes_again() {
        let dir = tempfile::tempdir().unwrap();
        repository(&dir.path().join(".git"), "[core]\n\thooksPath = tools/hooks\n");
        repository(&dir.path().join(".git/modules/m"), "[extensions]\nworktreeconfig = true\n");
        fs::create_dir(dir.path().join(".vscode")).unwrap();
        fs::create_dir(dir.path().join("tools")).unwrap();

        let (workspace, wanted) = look(dir.path());
        let made: Vec<_> = wanted.iter().map(|one| make(workspace.as_fd(), one).unwrap()).collect();

        let mut paths: Vec<_> = wanted.iter().map(|one| one.path.to_str().unwrap()).collect();
        paths.sort_unstable();
        let paths: Vec<_> =
            paths.into_iter().filter(|path| path.contains(".git/") || path.contains('/')).collect();
        let expected = [
            ".claude/settings.json",
            ".claude/settings.local.json",
            ".git/commondir",
            ".git/hooks",
            ".git/modules/m/commondir",
            ".git/modules/m/config.worktree",
            ".git/modules/m/hooks",
            "tools/hooks",
        ];
        assert_eq!(paths, expected);
        assert!(dir.path().join(".mcp.json").is_dir() && dir.path().join(".envrc").is_dir());
        assert!(made.iter().all(Option::is_some));
        assert_eq!(look(dir.path()).1, []);
        fs::write(dir.path().join("tools/hooks/own"), "").unwrap();
        fs::write(dir.path().join(".git/commondir"), "elsewhere\n").unwrap();
        wanted.iter().rev().for_each(|one| remove(workspace.as_fd(), one).unwrap());
        assert!(!dir.path().join(".mcp.json").exists() && !dir.path().join(".claude").exists());
        let left: Vec<_> = expected.into_iter().filter(|path| dir.path().join(path).exists()).collect();
        assert_eq!(left, [".git/commondir", "tools/hooks"]);
    }

    #[test]
    fn nothing_is_made_where_git_keeps_nothing_or_through_a_link() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("a/.git")).unwrap();
        std::os::unix::fs::symlink("/", dir.path().join("out")).unwrap();
        let (workspace, wanted) = look(dir.path());
        assert_eq!(wanted, []);
        let through = Placeholder { path: "out/tmp/never".into(), text: None };
        assert!(make(workspace.as_fd(), &through).is_err() && remove(workspace.as_fd(), &through).is_err());
        assert!(!Path::new("/tmp/never").exists());
    }
}
