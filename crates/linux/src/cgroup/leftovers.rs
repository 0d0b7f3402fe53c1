//! Clearing what a keeper that was killed left behind, from the paths it recorded.
//!
//! ```no_run
//! airlock_linux::cgroup::remove_leftovers(&["/sys/fs/cgroup/pids/airlock-7f3a".into()])?;
//! # Ok::<(), airlock_linux::cgroup::RemoveLeftovers>(())
//! ```

use std::ffi::OsStr;
use std::io;
use std::path::{Component, Path, PathBuf};

use super::make::LEAF;
use super::seat;

/// A recorded control group that could not be removed.
#[derive(Debug, thiserror::Error)]
pub enum RemoveLeftovers {
    /// The path is not of a form that [`super::Group`] makes: nothing was touched.
    #[error("{path} is not a control group of a sandbox")]
    NotOurs {
        /// The path as recorded.
        path: PathBuf,
    },
    /// The kernel refused, or a process in it does not end.
    #[error("could not remove control group {path}")]
    Remove {
        /// The path as recorded.
        path: PathBuf,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
}

/// Kills what is still in these groups (only processes the groups themselves list) and removes them. What is gone already is
/// fine, so it may be called again. All paths are tried; the first failure is reported.
///
/// # Errors
/// [`RemoveLeftovers`] for the first path that is not a group of ours or could not be removed.
pub fn remove_leftovers(paths: &[PathBuf]) -> Result<(), RemoveLeftovers> {
    let mut outcome = Ok(());
    for path in paths {
        outcome = outcome.and(remove_one(path));
    }
    outcome
}

fn remove_one(path: &Path) -> Result<(), RemoveLeftovers> {
    if !is_ours(path) {
        return Err(RemoveLeftovers::NotOurs { path: path.to_path_buf() });
    }
    let failed = |source| RemoveLeftovers::Remove { path: path.to_path_buf(), source };
    seat::remove(path).map_err(failed)?;
    remove_empty_parents(path);
    Ok(())
}

/// The directories we share between sandboxes go with the last of them; the kernel keeps those that are in use.
pub(super) fn remove_empty_parents(path: &Path) {
    let Some(parent) = path.parent() else { return };
    if parent.file_name() == Some(OsStr::new("airlock"))
        && seat::Seat::open(parent).is_ok_and(|shared| shared.has("cgroup.type"))
    {
        let _ = std::fs::remove_dir(parent);
    }
    let _ = std::fs::remove_dir(parent.join(LEAF));
}

/// `…/airlock-<id>`, `…/airlock/<id>` or `…/airlock.<uid>/<id>`, without detours. That it lies on a control group file system is
/// checked when it is opened.
fn is_ours(path: &Path) -> bool {
    let is_direct = path.is_absolute()
        && path.components().all(|part| matches!(part, Component::RootDir | Component::Normal(_)));
    let name = |path: Option<&Path>| {
        path.and_then(Path::file_name).and_then(OsStr::to_str).unwrap_or_default().to_owned()
    };
    let (own, parent) = (name(Some(path)), name(path.parent()));
    let is_sandbox = own != LEAF && own.strip_prefix("airlock-").is_some_and(|id| !id.is_empty());
    is_direct && (is_sandbox || parent == "airlock" || parent.starts_with("airlock."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_paths_of_sandboxes_are_ours() {
        for ours in
            ["/sys/fs/cgroup/airlock/7f", "/sys/fs/cgroup/pids/airlock-7f", "/c/memory/airlock.1000/7f"]
        {
            assert!(is_ours(Path::new(ours)), "{ours}");
        }

        for other in [
            "/",
            "/sys/fs/cgroup",
            "/c/airlock",
            "/c/airlock-",
            "/c/airlock-keeper",
            "/c/airlock/../x",
            "airlock-7f",
            "/c/airlock.1000",
        ] {
            assert!(!is_ours(Path::new(other)), "{other}");
        }
    }

    #[test]
    fn a_directory_that_is_no_control_group_is_left_alone() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("airlock-7f");
        std::fs::create_dir(&path).unwrap();

        let refused = remove_leftovers(std::slice::from_ref(&path));

        assert!(matches!(refused, Err(RemoveLeftovers::Remove { .. })), "{refused:?}");
        assert!(path.exists());
    }
}
