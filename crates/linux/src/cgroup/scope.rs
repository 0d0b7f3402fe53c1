//! Running the keeper in a scope of its own, made by the user's systemd.
//!
//! A login shell sits in a group that belongs to root, and no process may leave such a group by its own power. The user
//! manager can: it makes a transient scope, delegated to the user, and starts the keeper in it.
//!
//! ```
//! use airlock_linux::cgroup::{UserManager, layout, systemd_scope};
//! let argv = systemd_scope(&layout()?, UserManager::Absent, "7f3a");
//! assert_eq!(argv, None);
//! # Ok::<(), std::io::Error>(())
//! ```

use std::path::Path;

use super::layout::Layout;

/// Whether the user's own systemd can be asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UserManager {
    /// Its socket exists.
    Running,
    /// There is none.
    Absent,
}

/// Looks for the user manager below the runtime directory (`$XDG_RUNTIME_DIR`).
#[must_use]
pub fn user_manager(runtime_dir: Option<&Path>) -> UserManager {
    let is_there = |dir: &Path| {
        dir.join("systemd/private").exists() || (dir.join("bus").exists() && dir.join("systemd").is_dir())
    };
    match runtime_dir {
        Some(dir) if is_there(dir) => UserManager::Running,
        _ => UserManager::Absent,
    }
}

/// What to put before the keeper's own arguments so that it runs in a delegated scope; `None` if that is not needed
/// (we may make groups already) or would not help.
#[must_use]
pub fn systemd_scope(layout: &Layout, manager: UserManager, id: &str) -> Option<Vec<String>> {
    if manager == UserManager::Absent || !layout.is_undelegated_session() {
        return None;
    }
    let unit = format!("--unit=airlock-{id}");
    let argv =
        ["systemd-run", "--user", "--scope", "--quiet", "--collect", "-p", "Delegate=yes", &unit, "--"];
    Some(argv.map(str::to_owned).to_vec())
}
