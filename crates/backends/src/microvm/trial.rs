//! Whether this host's processor runs machines: tried with one that does nothing but end, then with the kernel that machines boot.
//!
//! A `/dev/kvm` that can be opened says little: in a machine within a machine it may be there and break at the first instruction, or
//! execute a few and no whole kernel.

use super::{
    kernel::{self, Kernel},
    qemu,
    qmp::{self, Qmp},
};
use airlock_linux::fd;
use serde_json::Value;
use std::{
    fs, io,
    os::unix::fs::MetadataExt as _,
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

/// Why it does not boot this kernel; `None` where it does. Remembered for each kernel, until the host boots again, or QEMU or the device is another.
#[must_use]
pub fn why_not(home: &Path, version: &str, kernel: Option<&Kernel>) -> Option<String> {
    let Ok(device) = fs::metadata("/dev/kvm") else { return Some("there is no /dev/kvm".to_owned()) };
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let uid = rustix::process::geteuid().as_raw();
    let booted = kernel.map_or("none", |kernel| kernel.digest.as_str());
    let key = format!("{version} {} {} {uid} {} {booted}", device.rdev(), device.ctime(), boot.trim());
    // One note for each, so that two kernels in turn are not tried at each start.
    let short: String = booted.chars().take(SHORT).collect();
    let noted = kernel::folder(home).join(format!("kvm-{uid}-{short}"));
    if let Ok(text) = fs::read_to_string(&noted)
        && let Some((told, why)) = text.split_once('\n')
        && told == key
    {
        return Some(why.to_owned()).filter(|why| !why.is_empty());
    }
    let boots_not = || attempt(home).or_else(|| kernel.and_then(|kernel| boots_not(&kernel.image)));
    let why = why_closed().or_else(boots_not);
    // Where it cannot be noted it is tried again.
    let _ = kernel::put(&noted, format!("{key}\n{}", why.as_deref().unwrap_or_default()).as_bytes());
    why
}

/// Letters of a kernel's digest that tell its note from others.
const SHORT: usize = 16;

/// Why whoever runs this cannot ask the kernel for machines; `None` where he can, which says little.
#[must_use]
pub fn why_closed() -> Option<String> {
    match fs::File::options().read(true).write(true).open("/dev/kvm") {
        Ok(_) => None,
        Err(err) if err.kind() == io::ErrorKind::NotFound => Some("there is no /dev/kvm".to_owned()),
        Err(_) => Some("/dev/kvm may not be opened".to_owned()),
    }
}

/// A machine whose firmware ends it at its first instruction.
fn attempt(home: &Path) -> Option<String> {
    let firmware = kernel::folder(home).join("nothing.rom");
    if let Err(err) = kernel::put(&firmware, &firmware_that_ends()) {
        return Some(err.to_string());
    }
    let tried = machine()
        .args(["-m", "16M", "-device", "isa-debug-exit,iobase=0xf4,iosize=1", "-bios"])
        .arg(&firmware)
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

/// A kernel with nothing to mount ends its machine by itself, within a second where the processor runs it.
fn boots_not(kernel: &Path) -> Option<String> {
    match boot(kernel) {
        Ok(Ok(())) => None,
        Ok(Err(err)) => Some(format!("KVM is there and boots no kernel ({})", last_of(&err))),
        Err(err) => Some(format!("{}: {err}", qemu::PROGRAM)),
    }
}

/// Why a boot had no end that was told.
fn last_of(err: &qmp::Error) -> String {
    match err {
        qmp::Error::Silent(err) if err.kind() == io::ErrorKind::WouldBlock => {
            format!("{} s were not enough", PATIENCE.as_secs())
        }
        qmp::Error::Silent(_) => "QEMU ended before it".to_owned(),
        other => other.to_string(),
    }
}

/// How long a kernel may take.
const PATIENCE: Duration = Duration::from_secs(10);

fn boot(kernel: &Path) -> io::Result<Result<(), qmp::Error>> {
    let (ours, theirs) = fd::pair()?;
    let mut child = machine()
        .args(["-m", "256M", "-append", "quiet panic=-1 reboot=t", "-kernel"])
        .arg(kernel)
        .args(["-chardev", "socket,id=orders,fd=0", "-mon", "chardev=orders,mode=control"])
        .stdin(Stdio::from(theirs))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    let ended = |event: &Value| event.get("event").is_some_and(|event| event == "SHUTDOWN");
    let outcome = Qmp::connect(ours.into(), PATIENCE).and_then(|mut qmp| qmp.event(ended).map(drop));
    child.kill()?;
    child.wait()?;
    Ok(outcome)
}

fn machine() -> Command {
    let mut command = Command::new(qemu::PROGRAM);
    command
        .args(["-machine", "microvm,x-option-roms=off,isa-serial=off", "-accel", "kvm", "-cpu", "host"])
        .args(["-nodefaults", "-no-user-config", "-nographic", "-no-reboot", "-sandbox", "on"]);
    command
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
    fn a_monitor_that_ended_at_once_is_not_told_as_one_that_was_too_slow() {
        let (ours, theirs) = fd::pair().unwrap();
        drop(theirs);
        let gone = Qmp::connect(ours.into(), PATIENCE).unwrap_err();
        assert_eq!(last_of(&gone), "QEMU ended before it");

        let (ours, _theirs) = fd::pair().unwrap();
        let slow = Qmp::connect(ours.into(), Duration::from_millis(1)).unwrap_err();
        assert_eq!(last_of(&slow), "10 s were not enough");
    }

    #[test]
    fn what_is_noted_of_a_kernel_is_told_again_and_counts_for_no_other() {
        let home = tempfile::tempdir().unwrap();
        let kernel = |digest: &str| Kernel {
            image: "/nowhere".into(),
            digest: digest.to_owned(),
            ..Kernel::default()
        };
        let (one, two) = (kernel(&"1".repeat(64)), kernel(&"2".repeat(64)));
        let told = why_not(home.path(), "no version", Some(&one));

        assert_eq!(why_not(home.path(), "no version", Some(&one)), told);
        let _ = why_not(home.path(), "no version", Some(&two));
        let notes = fs::read_dir(kernel::folder(home.path())).map_or(0, |entries| {
            entries.flatten().filter(|entry| entry.file_name().to_string_lossy().starts_with("kvm-")).count()
        });
        let has_device = Path::new("/dev/kvm").exists();
        assert_eq!(notes, if has_device { 2 } else { 0 });
    }

    #[test]
    fn the_firmware_begins_sixteen_bytes_before_its_end() {
        let rom = firmware_that_ends();
        assert_eq!(rom.len(), 65_536);
        assert_eq!(&rom[65_520..65_525], [0xb0, 0x00, 0xe6, 0xf4, 0xf4]);
    }
}
