//! What QEMU is told. Pure.

use super::disk::{self, Disks};
use airlock_protocol::carry::{FILES_PORT, LINK_PORT};
use std::path::PathBuf;

/// Where Debian has it. `PATH` may hold others' programs.
pub const PROGRAM: &str = "/usr/bin/qemu-system-x86_64";
/// The kernel's name where it runs.
pub const KERNEL: &str = "/kernel";
/// The archive's name where it runs.
pub const INITRAMFS: &str = "/initramfs";

/// One machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Machine {
    /// Bytes of memory.
    pub memory: u64,
    /// Processors.
    pub processors: u64,
    /// What executes their instructions.
    pub by: By,
    /// The kernel and the archive it boots into.
    pub boot: (String, String),
    /// What it is connected with.
    pub cables: Cables,
    /// Its disks.
    pub disks: Disks,
}

/// What a machine is connected with: numbers of descriptors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cables {
    /// A sandbox.
    Sandbox {
        /// The machine's end of the port for messages.
        link: i32,
        /// The same for files.
        files: i32,
        /// Its network.
        tap: Option<i32>,
        /// A machine that was saved, to go on with.
        saved: Option<i32>,
        /// Where orders come from, for whoever saves its memory.
        orders: i32,
    },
    /// Nothing but somebody who saves it: ports and network lead nowhere.
    Nothing {
        /// Where orders come from.
        orders: i32,
    },
}

/// What executes a machine's instructions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum By {
    /// This host's processor.
    Kvm,
    /// A program; the processor it stands for counts so many thousand ticks a second, as this host's does.
    Emulation {
        /// `None` where nobody knows.
        ticks: Option<u64>,
    },
}

/// Of the host's files it sees its program, its libraries and its firmware.
pub const SHOWN: [&str; 6] = ["/usr", "/lib", "/lib64", "/lib32", "/libx32", "/etc/ld.so.cache"];

impl By {
    /// Devices of the host that it needs.
    #[must_use]
    pub fn devices(self) -> Vec<PathBuf> {
        match self {
            By::Kvm => vec![PathBuf::from("/dev/kvm")],
            By::Emulation { .. } => Vec::new(),
        }
    }
}

/// Megabytes of code of an emulated processor that are kept.
const CODE: u32 = 64;

/// The command line.
#[must_use]
pub fn command(machine: &Machine) -> Vec<String> {
    let accelerator = match machine.by {
        By::Kvm => "kvm".to_owned(),
        By::Emulation { .. } => format!("tcg,tb-size={CODE}"),
    };
    let mut words = vec![PROGRAM.to_owned()];
    let mut add = |flag: &str, value: &str| words.extend([flag.to_owned(), value.to_owned()]);
    add("-machine", "microvm,x-option-roms=off,isa-serial=on,rtc=on");
    add("-accel", &accelerator);
    add("-cpu", if machine.by == By::Kvm { "host" } else { "max" });
    add("-m", &format!("{}M", machine.memory >> 20));
    add("-smp", &machine.processors.to_string());
    add("-kernel", &machine.boot.0);
    add("-initrd", &machine.boot.1);
    add("-append", &kernel_command(machine.by));
    add("-serial", "chardev:console");
    add("-device", "virtio-serial-device,max_ports=4");
    for (id, name) in [("link", LINK_PORT), ("files", FILES_PORT)] {
        add("-device", &format!("virtserialport,chardev={id},id=port-{id},name={name}"));
    }
    add("-device", "virtio-balloon-device,free-page-reporting=on");
    add("-device", "virtio-rng-device");
    add("-device", "virtio-net-device,netdev=net,mac=02:61:69:72:6c:6b");
    disk::words(machine.disks).iter().for_each(|(flag, value)| add(flag, value));
    connect(machine.cables, &mut add);
    add("-sandbox", "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny");
    words.extend(["-nodefaults", "-no-user-config", "-nographic", "-no-reboot"].map(str::to_owned));
    words
}

fn connect(cables: Cables, add: &mut impl FnMut(&str, &str)) {
    match cables {
        Cables::Sandbox { link, files, tap, saved, orders } => {
            add("-chardev", "stdio,id=console,signal=off");
            add("-chardev", &format!("socket,id=link,fd={link}"));
            add("-chardev", &format!("socket,id=files,fd={files}"));
            match tap {
                Some(tap) => add("-netdev", &format!("tap,id=net,fd={tap},vhost=off")),
                None => add("-netdev", "hubport,id=net,hubid=0"),
            }
            take_orders(orders, add);
            if let Some(saved) = saved {
                add("-incoming", &format!("fd:{saved}"));
            }
        }
        Cables::Nothing { orders } => {
            for id in ["console", "link", "files"] {
                add("-chardev", &format!("null,id={id}"));
            }
            add("-netdev", "hubport,id=net,hubid=0");
            take_orders(orders, add);
        }
    }
}

fn take_orders(from: i32, add: &mut impl FnMut(&str, &str)) {
    add("-chardev", &format!("socket,id=orders,fd={from}"));
    add("-mon", "chardev=orders,mode=control");
}

/// An emulated processor has nothing but its own counter to measure time with, and a busy host makes it measure wrongly. What a kernel does
/// against the ways of real processors (retpolines, filling of return buffers at each switch) means nothing to it and takes half of its time
/// where programs wait for each other, as they do for files; who is inside such a machine is kept in by the cell, not by its kernel.
fn kernel_command(by: By) -> String {
    let usual = "console=ttyS0 quiet loglevel=3 reboot=t panic=-1 random.trust_cpu=on";
    match by {
        By::Emulation { ticks: Some(ticks) } => format!("{usual} mitigations=off tsc_early_khz={ticks}"),
        By::Emulation { ticks: None } => format!("{usual} mitigations=off"),
        By::Kvm => usual.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine() -> Machine {
        Machine {
            memory: 512 << 20,
            processors: 2,
            by: By::Emulation { ticks: Some(2_445_430) },
            boot: (KERNEL.into(), INITRAMFS.into()),
            cables: Cables::Sandbox { link: 3, files: 4, tap: Some(7), saved: Some(6), orders: 5 },
            disks: Disks::None,
        }
    }

    #[test]
    fn a_machine_is_told_exactly_this() {
        let expected = "\
/usr/bin/qemu-system-x86_64 -machine microvm,x-option-roms=off,isa-serial=on,rtc=on -accel tcg,tb-size=64 -cpu max \
-m 512M -smp 2 -kernel /kernel -initrd /initramfs \
-append console=ttyS0 quiet loglevel=3 reboot=t panic=-1 random.trust_cpu=on mitigations=off tsc_early_khz=2445430 \
-serial chardev:console -device virtio-serial-device,max_ports=4 \
-device virtserialport,chardev=link,id=port-link,name=airlock.link \
-device virtserialport,chardev=files,id=port-files,name=airlock.files \
-device virtio-balloon-device,free-page-reporting=on -device virtio-rng-device \
-device virtio-net-device,netdev=net,mac=02:61:69:72:6c:6b -chardev stdio,id=console,signal=off \
-chardev socket,id=link,fd=3 -chardev socket,id=files,fd=4 -netdev tap,id=net,fd=7,vhost=off \
-chardev socket,id=orders,fd=5 -mon chardev=orders,mode=control -incoming fd:6 \
-sandbox on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny \
-nodefaults -no-user-config -nographic -no-reboot";
        assert_eq!(command(&machine()).join(" "), expected);
    }

    #[test]
    fn the_hosts_processor_is_used_as_it_is() {
        let cables = Cables::Nothing { orders: 0 };
        let line = command(&Machine { by: By::Kvm, cables, ..machine() }).join(" ");
        assert!(line.contains("-accel kvm -cpu host "), "{line}");
        assert!(!line.contains("tsc_early_khz"), "{line}");
        assert!(line.contains("-chardev socket,id=orders,fd=0 -mon chardev=orders,mode=control"), "{line}");
    }
}
