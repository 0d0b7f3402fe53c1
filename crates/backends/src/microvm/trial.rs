//! Whether this host's processor runs machines: tried with one that does nothing but end.
//!
//! A `/dev/kvm` that can be opened says little: in a machine within a machine it may be there and break at the first instruction.

use super::{kernel, qemu};
use std::{
    fs,
    os::unix::fs::MetadataExt as _,
    path::Path,
    process::{Command, Stdio},
};

/// Why it does not; `None` where it does. Remembered until the host boots again, or QEMU or the device is another.
#[must_use]
pub fn why_not(home: &Path, version: &str) -> Option<String> {
    let Ok(device) = fs::metadata("/dev/kvm") else { return Some("there is no /dev/kvm".to_owned()) };
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let uid = rustix::process::geteuid().as_raw();
    let key = format!("{version} {} {} {uid} {}", device.rdev(), device.ctime(), boot.trim());
    let noted = kernel::folder(home).join(format!("kvm-{uid}"));
    if let Ok(text) = fs::read_to_string(&noted)
        && let Some((told, why)) = text.split_once('\n')
        && told == key
    {
        return Some(why.to_owned()).filter(|why| !why.is_empty());
    }
    let why = if may_open() { attempt(home) } else { Some("/dev/kvm may not be opened".to_owned()) };
    // Where it cannot be noted it is tried again.
    let _ = kernel::put(&noted, format!("{key}\n{}", why.as_deref().unwrap_or_default()).as_bytes());
    why
}

fn may_open() -> bool {
    fs::File::options().read(true).write(true).open("/dev/kvm").is_ok()
}

/// A machine whose firmware ends it at its first instruction.
fn attempt(home: &Path) -> Option<String> {
    let firmware = kernel::folder(home).join("nothing.rom");
    if let Err(err) = kernel::put(&firmware, &firmware_that_ends()) {
        return Some(err.to_string());
    }
    let tried = Command::new(qemu::PROGRAM)
        .args(["-machine", "microvm,isa-serial=off", "-accel", "kvm", "-cpu", "host", "-m", "16M", "-bios"])
        .arg(&firmware)
        .args([
            "-device",
            "isa-debug-exit,iobase=0xf4,iosize=1",
            "-nodefaults",
            "-no-user-config",
            "-nographic",
        ])
        .args(["-no-reboot", "-sandbox", "on"])
        .stdin(Stdio::null())
        .output();
    match tried {
        Ok(output) if output.status.code() == Some(ENDED) => None,
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr);
            let said = said.lines().next().unwrap_or_default().trim_start_matches(qemu::PROGRAM);
            let said: String = said.trim_start_matches([':', ' ']).chars().take(160).collect();
            Some(format!(
                "KVM is there and runs no machine ({})",
                if said.is_empty() { "no word" } else { &said }
            ))
        }
        Err(err) => Some(format!("{}: {err}", qemu::PROGRAM)),
    }
}

/// What the device `isa-debug-exit` makes of 0.
const ENDED: i32 = 1;

/// 64 KB that end below 4 GB, where a processor begins: `mov al, 0; out 0xf4, al; hlt`.
fn firmware_that_ends() -> Vec<u8> {
    let mut rom = vec![0xf4u8; 64 << 10];
    let start = rom.len() - 16;
    rom.splice(start..start + 5, [0xb0, 0x00, 0xe6, 0xf4, 0xf4]);
    rom
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_firmware_begins_sixteen_bytes_before_its_end() {
        let rom = firmware_that_ends();
        assert_eq!(rom.len(), 65_536);
        assert_eq!(&rom[65_520..65_525], [0xb0, 0x00, 0xe6, 0xf4, 0xf4]);
    }
}
