//! Which program runs machines on this host, and by what.

use super::{
    firecracker,
    kernel::{self, Kernel},
    qemu, trial,
};
use airlock_protocol::spec;
use serde::{Deserialize, Serialize};
use std::{
    fs,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// A program that runs machines, as it is here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Monitor {
    /// Which.
    pub program: Program,
    /// Its version, such as `7.2.22`.
    pub version: String,
    /// Why this host's own processor is not used; nothing where it is.
    pub emulated: Option<String>,
    /// How many thousand ticks a second this host's processor counts, where that is known.
    pub ticks: Option<u64>,
}

/// Which program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Program {
    /// QEMU.
    Qemu,
    /// Firecracker, which lies there.
    Firecracker(PathBuf),
}

/// Why the one that was asked for runs no machines here.
#[derive(Debug, thiserror::Error)]
pub enum Unfit {
    /// It is not here.
    #[error("there is no {0}")]
    Missing(String),
    /// It is here and does not say which it is.
    #[error("{0} is no Firecracker: it does not tell its version")]
    Unknown(PathBuf),
    /// It emulates no processor.
    #[error("Firecracker needs KVM: {0}")]
    Kvm(String),
}

impl Unfit {
    /// What helps.
    #[must_use]
    pub fn fix(&self) -> &'static str {
        match self {
            Unfit::Missing(program) if program == qemu::PROGRAM => "apt-get install qemu-system-x86",
            Unfit::Missing(_) => {
                "put Firecracker's program there, or name it (--monitor FILE); or take --monitor qemu"
            }
            Unfit::Unknown(_) => {
                "name the program of a release of Firecracker, 1.8 or newer; or take --monitor qemu"
            }
            Unfit::Kvm(_) => {
                "--monitor qemu, which emulates a processor where it has to; or KVM (airlock doctor tells how it is)"
            }
        }
    }
}

impl Monitor {
    /// The one that is asked for. Unasked it is QEMU, or Firecracker where only that is here.
    pub fn choose(
        home: &Path,
        asked: Option<&spec::Monitor>,
        kernel: Option<&Kernel>,
    ) -> Result<Monitor, Unfit> {
        match asked {
            Some(spec::Monitor::At(path)) => Monitor::firecracker(path),
            Some(spec::Monitor::Firecracker) => match Monitor::usual_firecracker() {
                Some(path) => Monitor::firecracker(path),
                None => Err(Unfit::Missing(firecracker::PROGRAMS.join(" and no "))),
            },
            Some(spec::Monitor::Qemu) => Monitor::qemu_or_missing(home, kernel),
            None => match (Monitor::qemu_or_missing(home, kernel), Monitor::usual_firecracker()) {
                (Err(_), Some(path)) => Monitor::firecracker(path),
                (qemu, _) => qemu,
            },
        }
    }

    /// Where Firecracker usually is, if it is there.
    #[must_use]
    pub fn usual_firecracker() -> Option<&'static Path> {
        firecracker::PROGRAMS.iter().map(Path::new).find(|path| path.exists())
    }

    /// The Firecracker that lies there.
    pub fn firecracker(path: &Path) -> Result<Monitor, Unfit> {
        if !path.exists() {
            return Err(Unfit::Missing(path.display().to_string()));
        }
        let said = version_of(path).and_then(|said| firecracker::version(&said));
        let version = said.ok_or_else(|| Unfit::Unknown(path.to_owned()))?;
        match trial::why_closed() {
            Some(why) => Err(Unfit::Kvm(why)),
            None => {
                let program = Program::Firecracker(path.to_owned());
                Ok(Monitor { program, version, emulated: None, ticks: None })
            }
        }
    }

    fn qemu_or_missing(home: &Path, kernel: Option<&Kernel>) -> Result<Monitor, Unfit> {
        Monitor::qemu(home, kernel).ok_or_else(|| Unfit::Missing(qemu::PROGRAM.to_owned()))
    }

    /// Looks for QEMU, and whether it boots this kernel on the host's processor; `None` where there is none. What takes long is
    /// remembered until the host boots again or the program is another.
    #[must_use]
    pub fn qemu(home: &Path, kernel: Option<&Kernel>) -> Option<Monitor> {
        if std::env::consts::ARCH != "x86_64" {
            return None;
        }
        let Facts { version, ticks, .. } = Facts::known(home)?;
        let emulated = trial::why_not(home, &version, kernel);
        Some(Monitor { program: Program::Qemu, version, emulated, ticks })
    }

    /// What executes a machine's instructions.
    #[must_use]
    pub fn by(&self) -> qemu::By {
        match self.emulated {
            None => qemu::By::Kvm,
            Some(_) => qemu::By::Emulation { ticks: self.ticks },
        }
    }

    /// As a person calls it.
    #[must_use]
    pub fn name(&self) -> String {
        let name = match self.program {
            Program::Qemu => "QEMU",
            Program::Firecracker(_) => "Firecracker",
        };
        format!("{name} {}", self.version)
    }
}

/// What is remembered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Facts {
    /// Which program, on which boot of the host.
    of: String,
    version: String,
    ticks: Option<u64>,
}

impl Facts {
    fn known(home: &Path) -> Option<Facts> {
        let noted = kernel::folder(home).join(format!("monitor-{}", rustix::process::geteuid().as_raw()));
        Facts::noted(&noted, &subject(Path::new(qemu::PROGRAM))?, Facts::learn)
    }

    /// What is noted of it; learned and noted where that is of another.
    fn noted(noted: &Path, of: &str, learn: impl FnOnce(String) -> Option<Facts>) -> Option<Facts> {
        let known = fs::read(noted).ok().and_then(|text| serde_json::from_slice::<Facts>(&text).ok());
        if let Some(facts) = known.filter(|facts| facts.of == of) {
            return Some(facts);
        }
        let facts = learn(of.to_owned())?;
        // Where it cannot be noted it is learned again.
        let _ = serde_json::to_vec(&facts).map(|text| kernel::put(noted, &text));
        Some(facts)
    }

    fn learn(of: String) -> Option<Facts> {
        let version = version(&version_of(Path::new(qemu::PROGRAM))?)?;
        Some(Facts { of, version, ticks: airlock_linux::clock::ticks_per_millisecond() })
    }
}

fn version_of(program: &Path) -> Option<String> {
    let output = Command::new(program).arg("--version").stdin(Stdio::null()).output().ok()?;
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// What no other program has, nor the same one after a boot of the host. Nothing where there is none.
fn subject(program: &Path) -> Option<String> {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let about = fs::metadata(program).ok()?;
    let (at, changed) = ((about.dev(), about.ino()), (about.ctime(), about.ctime_nsec()));
    Some(format!("{at:?} {changed:?} {} {}", about.size(), boot.trim()))
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

    #[test]
    fn what_is_noted_of_one_program_is_not_asked_again_and_does_not_count_for_another() {
        let folder = tempfile::tempdir().unwrap();
        let noted = folder.path().join("monitor");
        let learn =
            |version: &'static str| move |of| Some(Facts { of, version: version.to_owned(), ticks: Some(1) });
        let version = |facts: Option<Facts>| facts.map(|facts| facts.version);
        assert_eq!(version(Facts::noted(&noted, "one", learn("1"))).as_deref(), Some("1"));
        assert_eq!(version(Facts::noted(&noted, "one", |_| None)).as_deref(), Some("1"));
        assert_eq!(version(Facts::noted(&noted, "two", learn("2"))).as_deref(), Some("2"));
        fs::remove_file(&noted).unwrap();
        fs::write(&noted, "nonsense").unwrap();
        assert_eq!(version(Facts::noted(&noted, "two", learn("3"))).as_deref(), Some("3"));
    }
}
