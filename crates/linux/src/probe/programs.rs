//! Programs of the host that a sandbox needs.
//!
//! ```
//! use airlock_linux::probe::programs::Program;
//! assert_eq!(Program::find("no-such-program-at-all").path, None);
//! ```

use rustix::fs::StatVfsMountFlags;
use std::{
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

/// A program, or that it is missing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Program {
    /// Where it is.
    pub path: Option<PathBuf>,
    /// Whether it gains the power over ids when it is executed.
    pub power: Power,
}

/// What a program may do that whoever runs it may not.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Power {
    /// Nothing.
    #[default]
    None,
    /// It is set-user-id root.
    SetUserId,
    /// Its file has the capability to set user or group ids.
    Capability,
    /// It would have, but its file system is mounted `nosuid`.
    Nosuid,
}

/// Where programs are looked for beside `PATH`; those of administrators are not in everybody's.
const FOLDERS: [&str; 6] = ["/usr/bin", "/bin", "/usr/local/bin", "/usr/sbin", "/sbin", "/usr/local/sbin"];
const CAP_SETGID: u32 = 6;
const CAP_SETUID: u32 = 7;

impl Program {
    /// Looks for it.
    #[must_use]
    pub fn find(name: &str) -> Program {
        let path = FOLDERS.iter().map(|folder| Path::new(folder).join(name)).find(|path| path.is_file());
        let power = path.as_deref().map_or(Power::None, power);
        Program { path, power }
    }
}

fn power(path: &Path) -> Power {
    let is_set_user_id = path.metadata().is_ok_and(|meta| meta.uid() == 0 && meta.mode() & 0o4000 != 0);
    let mut value = [0u8; 32];
    let length = rustix::fs::getxattr(path, "security.capability", &mut value[..]).unwrap_or(0);
    let has_capability = sets_ids(value.get(..length).unwrap_or_default());
    let is_nosuid =
        rustix::fs::statvfs(path).is_ok_and(|stat| stat.f_flag.contains(StatVfsMountFlags::NOSUID));
    match (is_set_user_id, has_capability) {
        (false, false) => Power::None,
        _ if is_nosuid => Power::Nosuid,
        (true, _) => Power::SetUserId,
        (false, true) => Power::Capability,
    }
}

/// `struct vfs_cap_data`: a version, then the low half of the permitted set.
fn sets_ids(value: &[u8]) -> bool {
    let Some(permitted) = value.get(4..8).and_then(|bytes| bytes.try_into().ok()) else { return false };
    u32::from_le_bytes(permitted) & (1 << CAP_SETUID | 1 << CAP_SETGID) != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_capability_over_ids_is_recognised() {
        assert!(sets_ids(&[1, 0, 0, 2, 0x80, 0, 0, 0, 0, 0, 0, 0]));
        assert!(!sets_ids(&[1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0]));
        assert!(!sets_ids(&[1, 0]));
    }
}
