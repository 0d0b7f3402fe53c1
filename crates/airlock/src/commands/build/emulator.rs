//! Programs of other processors: whether this kernel knows an emulator for them (binfmt_misc).

use airlock_images::manifest::Platform;
use std::{fs, path::Path};

const REGISTERED: &str = "/proc/sys/fs/binfmt_misc";

/// Whether programs of a platform run here by an emulator that sandboxes can use.
pub(super) fn is_registered(platform: &Platform) -> bool {
    let Some(name) = name(&platform.architecture).filter(|_| platform.os == "linux") else { return false };
    fs::read_to_string(Path::new(REGISTERED).join(name)).is_ok_and(|text| is_usable(&text))
}

/// What Debian and others call the emulator of a processor.
fn name(architecture: &str) -> Option<&'static str> {
    Some(match architecture {
        "arm64" => "qemu-aarch64",
        "arm" => "qemu-arm",
        "amd64" => "qemu-x86_64",
        "386" => "qemu-i386",
        "riscv64" => "qemu-riscv64",
        "ppc64le" => "qemu-ppc64le",
        "s390x" => "qemu-s390x",
        "loong64" => "qemu-loongarch64",
        _ => return None,
    })
}

/// Switched on, and opened when it was registered (`F`): inside a sandbox its path leads nowhere.
fn is_usable(text: &str) -> bool {
    let mut lines = text.lines();
    let is_on = lines.next() == Some("enabled");
    let flags = lines.find_map(|line| line.strip_prefix("flags:"));
    is_on && flags.is_some_and(|flags| flags.contains('F'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_emulator_counts_if_it_is_on_and_was_opened_before() {
        let text = |on: &str, flags: &str| {
            format!("{on}\ninterpreter /usr/bin/qemu-aarch64\nflags: {flags}\noffset 0\nmagic 7f45\n")
        };
        assert!(is_usable(&text("enabled", "PF")));
        assert!(!is_usable(&text("disabled", "PF")));
        assert!(!is_usable(&text("enabled", "P")));
        assert!(!is_usable(""));
    }
}
