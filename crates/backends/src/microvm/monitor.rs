//! Which program runs machines on this host, and by what.

use super::{qemu, trial};
use std::{
    path::Path,
    process::{Command, Stdio},
};

/// QEMU as it is here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Monitor {
    /// Its version, such as `7.2.22`.
    pub version: String,
    /// Why this host's own processor is not used; nothing where it is.
    pub emulated: Option<String>,
}

impl Monitor {
    /// Looks for it; `None` where there is none.
    #[must_use]
    pub fn find(home: &Path) -> Option<Monitor> {
        if std::env::consts::ARCH != "x86_64" {
            return None;
        }
        let output = Command::new(qemu::PROGRAM).arg("--version").stdin(Stdio::null()).output().ok()?;
        let version = version(&String::from_utf8_lossy(&output.stdout))?;
        let emulated = trial::why_not(home, &version);
        Some(Monitor { version, emulated })
    }

    /// What executes a machine's instructions.
    #[must_use]
    pub fn by(&self) -> qemu::By {
        match self.emulated {
            None => qemu::By::Kvm,
            Some(_) => qemu::By::Emulation { ticks: airlock_linux::clock::ticks_per_millisecond() },
        }
    }
}

/// `QEMU emulator version 7.2.22 (Debian 1:7.2+dfsg-7+deb12u18)`.
fn version(said: &str) -> Option<String> {
    let version = said.lines().next()?.strip_prefix("QEMU emulator version ")?.split(' ').next()?;
    Some(version.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_the_word_behind_its_name() {
        let said = "QEMU emulator version 7.2.22 (Debian 1:7.2+dfsg-7+deb12u18+b3)\nCopyright\n";
        assert_eq!(version(said).as_deref(), Some("7.2.22"));
        assert_eq!(version("something else"), None);
    }
}
