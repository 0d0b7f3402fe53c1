//! What Firecracker is told: its configuration file. Pure. It needs KVM, and its ports are those of a vsock.

use serde_json::{Value, json};

/// Where its own packages put it.
pub const PROGRAM: &str = "/usr/bin/firecracker";

/// One machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Machine {
    /// Bytes of memory.
    pub memory: u64,
    /// Processors: 1, or an even number.
    pub processors: u64,
    /// The kernel (uncompressed) and the archive it boots into.
    pub boot: (String, String),
    /// The name of its TAP in the network namespace it is started in.
    pub tap: String,
    /// The path of the socket that stands for its ports.
    pub vsock: String,
}

/// The address of a machine on its vsock; the host is 2.
const ADDRESS: u32 = 3;

/// The configuration.
#[must_use]
pub fn configuration(machine: &Machine) -> Value {
    let processors = match machine.processors {
        0 | 1 => 1,
        more => more.next_multiple_of(2),
    };
    json!({
        "boot-source": {
            "kernel_image_path": machine.boot.0,
            "initrd_path": machine.boot.1,
            "boot_args": "console=ttyS0 quiet loglevel=3 reboot=k panic=-1 random.trust_cpu=on pci=off",
        },
        "machine-config": { "vcpu_count": processors, "mem_size_mib": machine.memory >> 20, "smt": false },
        "network-interfaces": [
            { "iface_id": "eth0", "guest_mac": "02:61:69:72:6c:6b", "host_dev_name": machine.tap },
        ],
        "vsock": { "guest_cid": ADDRESS, "uds_path": machine.vsock },
        "balloon": { "amount_mib": 0, "deflate_on_oom": true, "stats_polling_interval_s": 0 },
        "drives": [],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_is_described_exactly_so() {
        let machine = Machine {
            memory: 256 << 20,
            processors: 3,
            boot: ("/kernel".into(), "/initramfs".into()),
            tap: "tap0".into(),
            vsock: "/ports".into(),
        };
        let expected = json!({
            "boot-source": {
                "kernel_image_path": "/kernel",
                "initrd_path": "/initramfs",
                "boot_args": "console=ttyS0 quiet loglevel=3 reboot=k panic=-1 random.trust_cpu=on pci=off",
            },
            "machine-config": { "vcpu_count": 4, "mem_size_mib": 256, "smt": false },
            "network-interfaces": [
                { "iface_id": "eth0", "guest_mac": "02:61:69:72:6c:6b", "host_dev_name": "tap0" },
            ],
            "vsock": { "guest_cid": 3, "uds_path": "/ports" },
            "balloon": { "amount_mib": 0, "deflate_on_oom": true, "stats_polling_interval_s": 0 },
            "drives": [],
        });
        assert_eq!(configuration(&machine), expected);
    }
}
