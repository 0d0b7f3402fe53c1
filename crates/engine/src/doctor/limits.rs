//! What can be limited: control groups, swap, disk.

use super::{Facts, Finding, Fix, Step, facts::Limit, walls::install};
use airlock_linux::cgroup::{Controller, Reason, UserManager, Version};
use std::path::PathBuf;

/// Where the user manager of systemd is told to hand controllers down.
pub(super) const DROP_IN: &str = "/etc/systemd/system/user@.service.d/airlock.conf";

pub(super) fn controllers(facts: &Facts) -> Vec<Finding> {
    facts.limits.iter().map(|limit| controller(facts, limit)).collect()
}

fn controller(facts: &Facts, limit: &Limit) -> Finding {
    let (name, flag) = match limit.controller {
        Controller::Memory => ("cgroup-memory", "--memory"),
        Controller::Pids => ("cgroup-pids", "--pids"),
        Controller::Cpu => ("cgroup-cpu", "--cpus"),
        Controller::Freezer => ("cgroup-freezer", "pause"),
    };
    let Some(cannot) = &limit.cannot else {
        return Finding::ok(name, format!("{flag} is enforced by control groups"));
    };
    let is_undelegated = matches!(
        cannot.reason,
        Reason::NotOurs { version: Version::V2, .. } | Reason::Managed { .. } | Reason::Hidden { .. }
    );
    // A keeper asks for a scope only for these two.
    let by_scope = matches!(limit.controller, Controller::Memory | Controller::Cpu)
        && is_undelegated
        && facts.manager == UserManager::Running;
    if by_scope && facts.scope.contains(&limit.controller) {
        return Finding::ok(
            name,
            format!("{flag} is enforced in a scope that your systemd makes for the sandbox"),
        );
    }
    let instead = match limit.controller {
        Controller::Memory => "--memory is refused, and there is no default limit",
        Controller::Pids => "--pids is enforced by a resource limit only",
        Controller::Cpu => "--cpus is refused",
        Controller::Freezer => "pause stops each process by a signal",
    };
    let finding = Finding::degraded(name, format!("{instead}: {}", cannot.reason));
    match &cannot.reason {
        Reason::NotOurs { version: Version::V1, .. } => {
            let words = cannot.fix();
            let words = words.strip_prefix("sudo ").unwrap_or(&words);
            finding.fixed_by(Fix::root(vec![Step::Run(words.split(' ').map(str::to_owned).collect())]))
        }
        Reason::NotHandedDown { .. } => finding.fixed_by(hand_down()),
        _ if by_scope => finding.fixed_by(hand_down()),
        Reason::NotOurs { version: Version::V2, .. } | Reason::Managed { .. }
            if facts.manager == UserManager::Absent =>
        {
            let linger = Step::run(["loginctl", "enable-linger", &facts.person.name]);
            finding.fixed_by(
                Fix::root(vec![linger]).or("log in by ssh or at the console, which starts your systemd"),
            )
        }
        _ => finding.advised(cannot.fix()),
    }
}

fn hand_down() -> Fix {
    let text = "[Service]\nDelegate=cpu memory pids\n".to_owned();
    Fix::root(vec![
        Step::run(["mkdir", "-p", "/etc/systemd/system/user@.service.d"]),
        Step::Write { path: PathBuf::from(DROP_IN), text },
        Step::run(["systemctl", "daemon-reload"]),
    ])
    .then("log in again")
}

pub(super) fn swap(facts: &Facts) -> Finding {
    let name = "swap";
    match (facts.switches.has_swap, facts.is_swap_bounded) {
        (false, _) => Finding::ok(name, "this host does not swap"),
        (true, true) => Finding::ok(name, "--memory covers swap"),
        (true, false) => Finding::degraded(
            name,
            "--memory does not cover swap: a sandbox over its limit is swapped out before it is killed",
        )
        .advised("start the kernel with swapaccount=1"),
    }
}

pub(super) fn disk(facts: &Facts) -> Finding {
    let name = "disk";
    if !facts.is_root() {
        return Finding::degraded(name, "a plain --disk needs host root")
            .advised("--disk SIZE,tmpfs (counts as memory) or --disk SIZE,watched (the keeper looks several times a second)");
    }
    let mut steps = Vec::new();
    let mut without = Vec::new();
    if let Some(no) = facts.devices.loops.no() {
        without.push(format!("loop devices ({})", no.said));
        if no.is_absent() {
            steps.push(Step::run(["modprobe", "loop"]));
        }
    }
    if facts.mkfs.path.is_none() {
        without.push("mkfs.ext4".to_owned());
        steps.extend(install(facts.packages, ["e2fsprogs"; 5]));
    }
    if without.is_empty() {
        return Finding::ok(name, "--disk is enforced by project quota or an image of its own");
    }
    let says =
        format!("--disk works only where the file system has project quota: no {}", without.join(", no "));
    match steps.is_empty() {
        true => Finding::degraded(name, says).advised("--disk SIZE,tmpfs or --disk SIZE,watched"),
        false => Finding::degraded(name, says).fixed_by(Fix::root(steps)),
    }
}
