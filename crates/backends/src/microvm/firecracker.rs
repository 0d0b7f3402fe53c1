//! What Firecracker is told, and by whom. Pure.
//!
//! It makes its own sockets and opens its TAP by name, and it is told everything over its API. So it runs in a cell with means of its own
//! (`linux::cell`), and what is executed there first is the carrier, which starts it, tells it what its machine is, and hands on the ports.
//!
//! It runs machines by KVM only, and finds its devices for a kernel by ACPI from 1.8 on; Debian's kernel knows no other way.

use super::qemu::{INITRAMFS, KERNEL};
use airlock_linux::{
    cell::ROOM,
    net::machine::{DEVICE, NAME},
};
use airlock_protocol::carry::{BY_VSOCK, FILES_VSOCK, LINK_VSOCK, STARTER, Starting};
use serde_json::{Value, json};

/// Where it is, if nobody says where else: by a package, or out of the archive that it is given out as.
pub const PROGRAMS: [&str; 2] = ["/usr/bin/firecracker", "/usr/local/bin/firecracker"];
/// The device that it needs besides the one TAPs are made of.
pub const KVM: &str = "/dev/kvm";
/// Devices of the host that it opens.
pub const DEVICES: [&str; 2] = [KVM, DEVICE];
/// Its name where it runs.
pub const MONITOR: &str = "/monitor";

/// One machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Machine {
    /// Bytes of memory.
    pub memory: u64,
    /// Processors.
    pub processors: u64,
}

/// The address of a machine on its vsock; the host is 2.
const ADDRESS: u32 = 3;

/// The command line that begins in the cell.
pub fn command(machine: Machine) -> serde_json::Result<Vec<String>> {
    Ok(vec![STARTER.to_owned(), serde_json::to_string(&starting(machine))?])
}

/// What the carrier is told there.
fn starting(machine: Machine) -> Starting {
    let (api, ports) = (format!("{ROOM}/api"), format!("{ROOM}/ports"));
    Starting {
        command: [MONITOR, "--id", "airlock", "--api-sock", &api].map(str::to_owned).to_vec(),
        requests: requests(machine, &ports),
        ports: [LINK_VSOCK, FILES_VSOCK].map(|port| format!("{ports}_{port}")),
        api,
    }
}

/// What is asked one after another until the machine runs.
fn requests(machine: Machine, ports: &str) -> Vec<(String, Value)> {
    let kernel_command =
        format!("console=ttyS0 quiet loglevel=3 reboot=k panic=-1 random.trust_cpu=on pci=off {BY_VSOCK}");
    let requests = [
        (
            "/boot-source",
            json!({ "kernel_image_path": KERNEL, "initrd_path": INITRAMFS, "boot_args": kernel_command }),
        ),
        (
            "/machine-config",
            json!({ "vcpu_count": machine.processors, "mem_size_mib": machine.memory >> 20 }),
        ),
        (
            "/network-interfaces/eth0",
            json!({ "iface_id": "eth0", "guest_mac": "02:61:69:72:6c:6b", "host_dev_name": NAME }),
        ),
        ("/vsock", json!({ "guest_cid": ADDRESS, "uds_path": ports })),
        ("/balloon", json!({ "amount_mib": 0, "deflate_on_oom": true })),
        ("/entropy", json!({})),
        ("/actions", json!({ "action_type": "InstanceStart" })),
    ];
    requests.map(|(path, body)| (path.to_owned(), body)).to_vec()
}

/// `Firecracker v1.10.1`.
#[must_use]
pub fn version(said: &str) -> Option<String> {
    let version = said.lines().next()?.strip_prefix("Firecracker v")?.split(' ').next()?;
    Some(version.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_is_described_exactly_so() {
        let Starting { command, api, requests, ports } =
            starting(Machine { memory: 256 << 20, processors: 3 });
        assert_eq!(command.join(" "), "/monitor --id airlock --api-sock /run/api");
        assert_eq!((api.as_str(), ports.join(" ").as_str()), ("/run/api", "/run/ports_1024 /run/ports_1025"));
        let told: Vec<String> = requests.iter().map(|(path, body)| format!("{path} {body}")).collect();
        let expected = [
            "/boot-source {\"boot_args\":\"console=ttyS0 quiet loglevel=3 reboot=k panic=-1 random.trust_cpu=on pci=off airlock.ports=vsock\",\"initrd_path\":\"/initramfs\",\"kernel_image_path\":\"/kernel\"}",
            "/machine-config {\"mem_size_mib\":256,\"vcpu_count\":3}",
            "/network-interfaces/eth0 {\"guest_mac\":\"02:61:69:72:6c:6b\",\"host_dev_name\":\"machine\",\"iface_id\":\"eth0\"}",
            "/vsock {\"guest_cid\":3,\"uds_path\":\"/run/ports\"}",
            "/balloon {\"amount_mib\":0,\"deflate_on_oom\":true}",
            "/entropy {}",
            "/actions {\"action_type\":\"InstanceStart\"}",
        ];
        assert_eq!(told, expected);
    }

    #[test]
    fn a_version_is_the_word_behind_its_name() {
        assert_eq!(version("Firecracker v1.10.1\n\nSupported\n").as_deref(), Some("1.10.1"));
        assert_eq!(version("QEMU emulator version 7.2.22\n"), None);
    }
}
