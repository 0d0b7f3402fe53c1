//! Where the sources of mounts lead.
//!
//! A source becomes a real path here, and the keeper opens that without following a link. Links that are the host's own
//! are followed. One in a place that sandboxed programs may write (the workspace, the folder of the project's file, another
//! mount) may be theirs: it could show them any directory of the host at the next start.
//!
//! | source | a link in such a place |
//! |---|---|
//! | typed | is followed while it stays in the workspace |
//! | written in the project's file | is refused |

use crate::{
    args::{RunArgs, WorkspaceMode, mount::MountWord},
    config::Project,
    failure::Failure,
};
use std::{
    collections::VecDeque,
    ffi::OsString,
    fs,
    path::{Component, Path, PathBuf},
};

/// Links followed on one way, as the kernel has it.
const MOST_LINKS: usize = 40;

/// What is done about a link where sandboxed programs may write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Links {
    /// Followed, if it stays in the workspace or the folder of the project's file.
    Within,
    /// None is followed.
    Never,
}

/// Where sandboxed programs may write.
#[derive(Debug, Default)]
struct Places {
    /// The workspace and the folder of the project's file. A link that stays in one of them leads nowhere new.
    own: Vec<PathBuf>,
    /// Sources of writable mounts, wherever they lead now.
    other: Vec<PathBuf>,
}

/// Gives every mount, typed or of the project's file, the real path of its source.
pub(crate) fn settle(
    args: &mut RunArgs,
    project: Option<&mut Project>,
    directory: &Path,
) -> Result<(), Failure> {
    let mut none = Vec::new();
    let mode = args.workspace.or(project.as_ref().and_then(|project| project.settings.workspace));
    let folder = project.as_ref().and_then(|project| project.path.parent()).map(Path::to_owned);
    let written = project.map_or(&mut none, |project| &mut project.settings.mounts);
    let workspace = (mode != Some(WorkspaceMode::None)).then(|| directory.to_owned());
    let writable = written.iter().chain(&args.mounts).flat_map(MountWord::writable);
    let real = |place: PathBuf| fs::canonicalize(&place).unwrap_or(place);
    let places = Places {
        own: workspace.into_iter().chain(folder).map(real).collect(),
        other: writable.map(real).collect(),
    };
    for (mounts, links) in [(written, Links::Never), (&mut args.mounts, Links::Within)] {
        for source in mounts.iter_mut().flat_map(MountWord::sources) {
            *source = resolve(source, &places, links)?;
        }
    }
    Ok(())
}

/// The same for one that was typed while the sandbox runs, whose workspace may be `directory`.
pub(crate) fn settle_typed(mount: &mut MountWord, directory: &Path) -> Result<(), Failure> {
    let real = |place: PathBuf| fs::canonicalize(&place).unwrap_or(place);
    let other = mount.writable().into_iter().map(real).collect();
    let places = Places { own: vec![real(directory.to_owned())], other };
    for source in mount.sources() {
        *source = resolve(source, &places, Links::Within)?;
    }
    Ok(())
}

/// The real path of something that a person typed, given where sandboxed programs may write: a link there is followed
/// while it stays there.
pub(crate) fn real_path(typed: &Path, writable: Vec<PathBuf>) -> Result<PathBuf, Failure> {
    let real = |place: PathBuf| fs::canonicalize(&place).unwrap_or(place);
    let places = Places { own: writable.into_iter().map(real).collect(), other: Vec::new() };
    let absolute = std::path::absolute(typed)
        .map_err(|err| Failure::because(format!("{} is no path", typed.display()), &err))?;
    resolve(&absolute, &places, Links::Within)
        .map_err(|failure| Failure { what: format!("{} is not used", typed.display()), ..failure })
}

/// The path without links. What is not there stays as it is: whoever opens it says so.
fn resolve(source: &Path, places: &Places, links: Links) -> Result<PathBuf, Failure> {
    let mut real = PathBuf::from("/");
    let mut left: VecDeque<OsString> = parts(source).collect();
    let mut followed = 0;
    while let Some(part) = left.pop_front() {
        if part == ".." {
            real.pop();
            continue;
        }
        let next = real.join(&part);
        let target = match fs::read_link(&next) {
            Ok(target) if followed < MOST_LINKS => target,
            _ => {
                real = next;
                continue;
            }
        };
        if places.hold(&real) {
            // One that leads nowhere stays, and is refused where it is opened.
            let led = fs::canonicalize(&next).unwrap_or_else(|_| next.clone());
            if links == Links::Never || !places.keep(&real, &led) {
                return Err(refused(source, &next, &target, links));
            }
            real = led;
            continue;
        }
        // The host's own. What it leads through may be theirs again.
        followed += 1;
        if target.is_absolute() {
            real = PathBuf::from("/");
        }
        left = parts(&target).chain(left).collect();
    }
    Ok(real)
}

impl Places {
    fn hold(&self, path: &Path) -> bool {
        self.own.iter().chain(&self.other).any(|place| path.starts_with(place))
    }

    fn keep(&self, from: &Path, to: &Path) -> bool {
        self.own.iter().any(|place| from.starts_with(place) && to.starts_with(place))
    }
}

fn parts(path: &Path) -> impl Iterator<Item = OsString> {
    path.components()
        .filter(|part| matches!(part, Component::Normal(_) | Component::ParentDir))
        .map(|part| part.as_os_str().to_owned())
}

fn refused(source: &Path, link: &Path, target: &Path, links: Links) -> Failure {
    let why = format!(
        "{} is a symbolic link to {}, and lies where sandboxed programs may write",
        link.display(),
        target.display()
    );
    let fix = match links {
        Links::Within => "if you know the link, name the real path that it leads to",
        Links::Never => {
            "look who made the link; if it is yours, write the real path into the file, and `airlock trust` it"
        }
    };
    Failure::new(format!("{} cannot be a mount source", source.display())).why(why).fix(fix)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    struct World {
        _folder: tempfile::TempDir,
        root: PathBuf,
    }

    impl World {
        /// `ws` may be written by sandboxes, `host` may not; `way` is the person's own link to `ws`.
        fn new() -> World {
            let folder = tempfile::tempdir().unwrap();
            let root = folder.path().canonicalize().unwrap();
            for directory in ["ws/data", "ws/deep/er", "host/secret", "shared"] {
                fs::create_dir_all(root.join(directory)).unwrap();
            }
            symlink(root.join("ws"), root.join("way")).unwrap();
            symlink(root.join("host/secret"), root.join("ws/out")).unwrap();
            symlink("../data", root.join("ws/deep/in")).unwrap();
            symlink(root.join("ws/data"), root.join("shared/in")).unwrap();
            symlink("ws/out", root.join("short")).unwrap();
            symlink("ws/data", root.join("good")).unwrap();
            symlink("loop", root.join("loop")).unwrap();
            symlink("nowhere", root.join("ws/broken")).unwrap();
            World { _folder: folder, root }
        }

        fn resolve(&self, source: &str, links: Links) -> Result<PathBuf, Failure> {
            // A mount that a link led elsewhere does not make that a place to be led to.
            let other = ["host/secret", "shared"].map(|name| self.root.join(name)).to_vec();
            let places = Places { own: vec![self.root.join("ws")], other };
            let real = resolve(&self.root.join(source), &places, links)?;
            Ok(real.strip_prefix(&self.root).unwrap().to_owned())
        }
    }

    #[test]
    fn plain_paths_and_the_hosts_own_links_are_what_they_are() {
        let world = World::new();
        for links in [Links::Within, Links::Never] {
            for (source, real) in [
                ("ws/data", "ws/data"),
                ("way/data", "ws/data"),
                ("ws/deep/../data/./", "ws/data"),
                ("ws/../host/secret", "host/secret"),
                ("ws/not/there", "ws/not/there"),
                ("ws", "ws"),
                ("way", "ws"),
                ("good/../deep", "ws/deep"),
                ("loop", "loop"),
            ] {
                assert_eq!(world.resolve(source, links).unwrap(), Path::new(real), "{source}");
            }
        }
    }

    #[test]
    fn a_planted_link_leads_nowhere_else() {
        let world = World::new();
        for links in [Links::Within, Links::Never] {
            assert!(world.resolve("shared/in", links).is_err());
            for source in ["ws/out", "way/out", "short", "ws/out/sub", "ws/deep/../out", "ws/out/../x"] {
                let refused = world.resolve(source, links).unwrap_err();
                assert!(refused.why.unwrap().contains("ws/out is a symbolic link to "), "{source}");
            }
        }
    }

    #[test]
    fn a_link_that_stays_is_followed_for_a_person_and_not_for_a_file() {
        let world = World::new();
        assert_eq!(world.resolve("ws/deep/in", Links::Within).unwrap(), Path::new("ws/data"));
        assert!(world.resolve("ws/deep/in", Links::Never).is_err());
        assert_eq!(world.resolve("ws/broken", Links::Within).unwrap(), Path::new("ws/broken"));
        assert!(world.resolve("ws/broken", Links::Never).is_err());
    }
}
