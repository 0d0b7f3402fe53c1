//! What a sandbox is better with but runs without, and what a person should know about this host.

use super::{Facts, Finding, Fix, Step};
use airlock_linux::{fence::Applied, probe::Answer};

/// From here on landlock also holds signals and abstract sockets.
const WHOLE_LANDLOCK: u32 = 6;

pub(super) fn landlock(facts: &Facts) -> Finding {
    let name = "landlock";
    match facts.landlock {
        Applied::Enforced { abi } if abi >= WHOLE_LANDLOCK => {
            Finding::ok(name, format!("the second fence stands (version {abi})"))
        }
        Applied::Enforced { abi } => Finding::ok(
            name,
            format!("the second fence stands for files (version {abi}), not yet for signals"),
        ),
        Applied::Unavailable => Finding::degraded(
            name,
            "this kernel has no landlock, so there is no second fence behind the mount namespace",
        )
        .advised("add landlock to lsm= on the kernel's command line (Linux 5.19 or newer)"),
    }
}

pub(super) fn fuse(facts: &Facts) -> Finding {
    let works = "mounts served by a program work";
    device(facts, "fuse", ("/dev/fuse", works), &facts.devices.fuse, None)
}

pub(super) fn tun(facts: &Facts) -> Finding {
    device(facts, "tun", ("/dev/net/tun", "micro-VMs can have a network"), &facts.devices.tun, None)
}

pub(super) fn kvm(facts: &Facts) -> Finding {
    let group = facts.devices.is_kvm_of_a_group.then_some("kvm");
    device(facts, "kvm", ("/dev/kvm", "micro-VMs can run"), &facts.devices.kvm, group)
}

/// A device that `run` does not need.
fn device(
    facts: &Facts,
    name: &'static str,
    (path, works): (&str, &str),
    answer: &Answer,
    group: Option<&str>,
) -> Finding {
    let Some(no) = answer.no() else { return Finding::ok(name, format!("{path} can be opened: {works}")) };
    if no.is_absent() {
        let finding = Finding::missing(name, format!("there is no {path} (`run` does not need it)"));
        return match name {
            "kvm" => finding.advised(
                "switch virtualization on in the firmware, or nested virtualization in the host of this VM",
            ),
            module => finding.fixed_by(Fix::root(vec![Step::run(["modprobe", module])])),
        };
    }
    if !no.is_forbidden() {
        return Finding::degraded(
            name,
            format!("{path} is present but not usable: {} (`run` does not need it)", no.said),
        );
    }
    let finding = Finding::degraded(
        name,
        format!("{path} is there, and {} may not open it (`run` does not need it)", facts.person.name),
    );
    match group {
        _ if facts.is_root() => {
            finding.advised(format!("give the container the device: docker run --device {path}"))
        }
        Some(group) => finding.fixed_by(
            Fix::root(vec![Step::run(["usermod", "-aG", group, &facts.person.name])]).then("log in again"),
        ),
        None => finding.fixed_by(Fix::root(vec![Step::run(["chmod", "666", path])])),
    }
}

pub(super) fn memfd(facts: &Facts) -> Finding {
    let name = "memfd";
    match facts.switches.memfd_noexec {
        Some(2) => Finding::ok(
            name,
            "vm.memfd_noexec is 2: programs inside that execute from memory fail, sandboxes do not need it",
        ),
        _ => Finding::ok(name, "files in memory can be executed"),
    }
}

pub(super) fn container(facts: &Facts) -> Finding {
    let name = "nesting";
    let depth = match facts.nesting.depth {
        Some(0) => None,
        Some(depth) => Some(format!("{depth} user namespaces deep")),
        None => Some("in a user namespace".to_owned()),
    };
    match (&facts.nesting.container, depth) {
        (None, None) => Finding::ok(name, "this is not a container"),
        (None, Some(depth)) => Finding::ok(name, format!("airlock runs {depth}")),
        (Some(sign), None) => {
            Finding::ok(name, format!("this is a container ({sign}), in the host's user namespace"))
        }
        (Some(sign), Some(depth)) => Finding::ok(name, format!("this is a container ({sign}), {depth}")),
    }
}

pub(super) fn core_pattern(facts: &Facts) -> Finding {
    let name = "core";
    let pattern = facts.switches.core_pattern.as_deref().unwrap_or_default();
    match pattern.strip_prefix('|') {
        Some(program) => {
            let program = program.split(' ').next().unwrap_or_default();
            Finding::ok(
                name,
                format!(
                    "a program that crashes inside is handed to {program} on the host (kernel.core_pattern)"
                ),
            )
        }
        None => Finding::ok(name, "a program that crashes inside starts nothing on the host"),
    }
}
