//! What Firecracker is told. It needs KVM, and its ports are those of a vsock.
//!
//! Nothing starts it yet: it opens its TAP by name and makes sockets by itself, so that the cell in which QEMU runs does not fit it. What it
//! is told, and the client of its API, are here and tested against a stand-in.
//!
//! - [`api`]: the client

pub mod api;

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

/// What is asked of its API one after another until the machine runs: paths and bodies.
#[must_use]
pub fn requests(machine: &Machine) -> Vec<(String, Value)> {
    let Value::Object(configuration) = configuration(machine) else { return Vec::new() };
    let mut all = Vec::new();
    for (part, value) in configuration {
        match value {
            Value::Array(devices) => {
                for device in devices {
                    let id = device.get("iface_id").or(device.get("drive_id")).and_then(Value::as_str);
                    all.push((format!("/{part}/{}", id.unwrap_or_default()), device.clone()));
                }
            }
            value => all.push((format!("/{part}"), value)),
        }
    }
    all.push(("/actions".to_owned(), json!({ "action_type": "InstanceStart" })));
    all
}

/// What is asked to go on from a saved machine.
#[must_use]
pub fn restore(state: &str, memory: &str) -> (String, Value) {
    let backend = json!({ "backend_type": "File", "backend_path": memory });
    (
        "/snapshot/load".to_owned(),
        json!({ "snapshot_path": state, "mem_backend": backend, "resume_vm": true }),
    )
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
