//! What the wall is made of: namespaces, ids, `/proc`, the network namespace, the filter.

use super::{Facts, Finding, Fix, Step, facts::Packages};
use airlock_linux::probe::{
    programs::{Power, Program},
    switches::Switches,
    trial::Step as Try,
};
use std::path::{Path, PathBuf};

/// Overlays in user namespaces are of 5.11, `mount_setattr` of 5.12, overlays over shifted ids (host root) of 5.19.
const OLDEST: (u32, u32) = (5, 12);
const OLDEST_FOR_ROOT: (u32, u32) = (5, 19);
const RANGE: u32 = 65_536;
/// Enough for some thousands of sandboxes with three each.
const NAMESPACES: u64 = 15_000;
const PROFILE: &str = "/etc/apparmor.d/airlock";

pub(super) fn kernel(facts: &Facts) -> Finding {
    let release = &facts.switches.release;
    let oldest = if facts.is_root() { OLDEST_FOR_ROOT } else { OLDEST };
    match version(release) {
        // Distributions carry what is needed back into older kernels; then the trial has worked.
        Some(found) if found < oldest && !is_whole(facts) => {
            let (major, minor) = oldest;
            Finding::stopping(
                "kernel",
                format!("Linux {release} is too old: {major}.{minor} is the oldest that works"),
            )
            .advised("boot a newer kernel")
        }
        _ => Finding::ok("kernel", format!("Linux {release}")),
    }
}

/// The steps without which no sandbox starts.
const NEEDED: [Try; 14] = [
    Try::User,
    Try::Namespaces,
    Try::Ids,
    Try::Shift,
    Try::Root,
    Try::Mounts,
    Try::Network,
    Try::Proc,
    Try::Sys,
    Try::Devices,
    Try::Overlay,
    Try::Spaces,
    Try::Inner,
    Try::Filter,
];

fn is_whole(facts: &Facts) -> bool {
    NEEDED.iter().all(|step| facts.trial.answer(*step).is_yes())
}

/// A trial that ended early without a refusal: it could not be started, or something in it hung.
pub(super) fn unfinished(facts: &Facts) -> Option<Finding> {
    let refused = NEEDED.iter().any(|step| facts.trial.answer(*step).no().is_some());
    (!is_whole(facts) && !refused).then(|| {
        Finding::stopping("trial", "a sandbox was begun for trial and did not come to an end within ten seconds")
            .advised("run `airlock doctor` again when this host is less busy, and see whether the state directory answers")
    })
}

pub(super) fn user_namespaces(facts: &Facts) -> Finding {
    let name = "userns";
    let steps = [Try::User, Try::Namespaces, Try::Root, Try::Mounts];
    let Some(no) = steps.iter().find_map(|step| facts.trial.answer(*step).no()) else {
        return match facts.trial.answer(Try::Namespaces).is_yes() || switched_off(facts).is_none() {
            true => Finding::ok(name, "user namespaces and the others can be made"),
            false => off(facts, name),
        };
    };
    if switched_off(facts).is_some() {
        return off(facts, name);
    }
    let finding = Finding::stopping(name, format!("user namespaces cannot be made: {}", no.said));
    if facts.nesting.container.is_some() && no.is_forbidden() {
        return finding.advised("start the container with --security-opt seccomp=unconfined --security-opt apparmor=unconfined --security-opt systempaths=unconfined");
    }
    finding.advised("use a kernel with CONFIG_USER_NS, and allow user namespaces in its security settings")
}

/// Why no user namespace can be made, in the words of the setting, and what changes it.
pub(super) fn switched_off(facts: &Facts) -> Option<(String, Fix)> {
    why_off(&facts.switches, facts.person.uid).map(|off| match off {
        Off::Setting(key) => (
            format!("{key} is 0"),
            Fix::root(Step::sysctl(&key, if key.starts_with("user.") { NAMESPACES } else { 1 }).into()),
        ),
        Off::AppArmor => (APPARMOR.to_owned(), apparmor_fix(&facts.binary)),
    })
}

/// The switch that is off.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Off {
    /// A setting is 0.
    Setting(String),
    /// Ubuntu's restriction, and no profile that lifts it.
    AppArmor,
}

pub(super) const APPARMOR: &str =
    "kernel.apparmor_restrict_unprivileged_userns is 1 and airlock has no profile";

pub(super) fn why_off(switches: &Switches, uid: u32) -> Option<Off> {
    let setting = |key: &str| Some(Off::Setting(key.to_owned()));
    if switches.max_user_namespaces == Some(0) {
        return setting("user.max_user_namespaces");
    }
    if let Some(kind) = switches.forbidden_namespaces.first() {
        return setting(&format!("user.max_{kind}_namespaces"));
    }
    if uid == 0 {
        return None;
    }
    if switches.unprivileged_userns_clone == Some(0) {
        return setting("kernel.unprivileged_userns_clone");
    }
    let is_unconfined = switches.apparmor_label.as_deref().is_none_or(|label| label.trim() == "unconfined");
    (switches.apparmor_restricts.is_some_and(|value| value != 0) && is_unconfined).then_some(Off::AppArmor)
}

fn off(facts: &Facts, name: &'static str) -> Finding {
    let Some((why, fix)) = switched_off(facts) else {
        return Finding::ok(name, "user namespaces can be made");
    };
    Finding::stopping(name, format!("user namespaces are switched off on this host: {why}")).fixed_by(fix)
}

/// A profile for this program alone, or the switch for all programs.
fn apparmor_fix(binary: &Path) -> Fix {
    let switch = "kernel.apparmor_restrict_unprivileged_userns";
    match profile(binary) {
        Some(text) => Fix::root(vec![
            Step::Write { path: PathBuf::from(PROFILE), text },
            Step::run(["apparmor_parser", "-r", PROFILE]),
        ])
        .or(format!("sudo sysctl -w {switch}=0, for all programs of this host")),
        None => Fix::root(Step::sysctl(switch, 0).into()),
    }
}

/// `None` for a path that AppArmor would read as a pattern.
fn profile(binary: &Path) -> Option<String> {
    let path = binary.to_str().filter(|path| path.starts_with('/'))?;
    let is_plain = |c: char| c.is_alphanumeric() || "/-_.+ ".contains(c);
    path.chars().all(is_plain).then(|| {
        format!(
            "# Lets airlock make user namespaces; it restricts nothing else.\n\
             abi <abi/4.0>,\n\
             include <tunables/global>\n\n\
             profile airlock \"{path}\" flags=(unconfined) {{\n  userns,\n\n  include if exists <local/airlock>\n}}\n"
        )
    })
}

pub(super) fn ids(facts: &Facts) -> Finding {
    let name = "ids";
    if facts.is_root() {
        return match facts.trial.answer(Try::Ids).no() {
            None => Finding::ok(name, "sandboxes of root get 65536 ids each that nobody else has"),
            Some(_) if facts.nesting.depth != Some(0) => Finding::stopping(
                name,
                "root of this user namespace is not root of the host and has no ids to give to a sandbox",
            )
            .advised("run airlock as an ordinary user of this namespace, or outside it"),
            Some(no) => {
                Finding::stopping(name, format!("the ids of a sandbox cannot be written: {}", no.said))
                    .advised("run airlock with CAP_SETUID and CAP_SETGID, or as an ordinary user")
            }
        };
    }
    let has_ranges = !facts.person.user_ranges.is_empty() && !facts.person.group_ranges.is_empty();
    let programs = [("newuidmap", &facts.newuidmap), ("newgidmap", &facts.newgidmap)];
    let missing = programs.iter().find(|(_, program)| program.path.is_none());
    let one_id = "a sandbox has a single id, so programs inside cannot change users";
    if let Some((program, _)) = missing {
        return with_fix(Finding::degraded(name, format!("{program} is missing: {one_id}")), ids_fix(facts));
    }
    if !has_ranges {
        let says = format!("{} has no range in /etc/subuid and /etc/subgid: {one_id}", facts.person.name);
        return with_fix(Finding::degraded(name, says), ids_fix(facts));
    }
    if let Some(says) = powerless(facts, &programs) {
        return with_fix(Finding::stopping(name, says), ids_fix(facts));
    }
    match facts.trial.answer(Try::Ids).no() {
        Some(no) => with_fix(
            Finding::stopping(name, format!("the ids of a sandbox cannot be written: {}", no.said)),
            ids_fix(facts),
        ),
        None => Finding::ok(
            name,
            format!("newuidmap and the ranges of {} give a sandbox ids of its own", facts.person.name),
        ),
    }
}

/// Why the two programs are there and yet cannot do their work.
fn powerless(facts: &Facts, programs: &[(&str, &Program)]) -> Option<String> {
    if facts.switches.has_no_new_privs {
        return Some("newuidmap cannot gain power: this process runs with no_new_privs".to_owned());
    }
    programs.iter().find_map(|(name, program)| match program.power {
        Power::None => {
            Some(format!("{name} is neither set-user-id root nor has it the capability to set ids"))
        }
        Power::Nosuid => Some(format!("{name} lies on a file system that is mounted nosuid")),
        Power::SetUserId | Power::Capability => None,
    })
}

fn ids_fix(facts: &Facts) -> Option<Fix> {
    let mut steps = Vec::new();
    if facts.switches.has_no_new_privs {
        return Some(Fix::advice("start airlock from a process without no_new_privs"));
    }
    let programs = [&facts.newuidmap, &facts.newgidmap];
    if programs.iter().any(|program| program.path.is_none()) {
        steps.push(install(facts.packages, ["uidmap", "shadow-utils", "shadow", "shadow", "shadow-subids"])?);
    }
    if programs.iter().any(|program| program.power == Power::Nosuid) {
        return Some(Fix::advice("remount the file system of newuidmap with suid"));
    }
    for path in programs
        .iter()
        .filter(|program| program.power == Power::None)
        .filter_map(|program| program.path.as_ref())
    {
        steps.push(Step::run(["chmod", "u+s", &path.display().to_string()]));
    }
    let person = &facts.person;
    let last = person.next_range.checked_add(RANGE - 1)?;
    let range = format!("{}-{last}", person.next_range);
    let wanted = [("--add-subuids", &person.user_ranges), ("--add-subgids", &person.group_ranges)];
    let mut words = vec!["usermod".to_owned()];
    for (flag, _) in wanted.iter().filter(|(_, ranges)| ranges.is_empty()) {
        words.extend([(*flag).to_owned(), range.clone()]);
    }
    if words.len() > 1 {
        words.push(person.name.clone());
        steps.push(Step::Run(words));
    }
    (!steps.is_empty()).then(|| Fix::root(steps))
}

/// Installs a package, whose name depends on the host: Debian, Fedora, SUSE, Arch, Alpine.
pub(super) fn install(packages: Packages, [apt, dnf, zypper, pacman, apk]: [&str; 5]) -> Option<Step> {
    Some(match packages {
        Packages::Apt => Step::run(["apt-get", "install", "-y", apt]),
        Packages::Dnf => Step::run(["dnf", "install", "-y", dnf]),
        Packages::Zypper => Step::run(["zypper", "--non-interactive", "install", zypper]),
        Packages::Pacman => Step::run(["pacman", "-S", "--noconfirm", pacman]),
        Packages::Apk => Step::run(["apk", "add", apk]),
        Packages::Unknown => return None,
    })
}

pub(super) fn procfs(facts: &Facts) -> Finding {
    let name = "proc";
    let answers = [Try::Proc, Try::Sys].map(|step| facts.trial.answer(step));
    let Some(no) = answers.iter().find_map(|answer| answer.no()) else {
        return later(facts, Try::Proc, Finding::ok(name, "a fresh /proc and /sys can be mounted"));
    };
    let masks = if facts.trial.answer(Try::Proc).is_yes() {
        &facts.switches.sys_masks
    } else {
        &facts.switches.proc_masks
    };
    let says = match masks.as_slice() {
        [] => format!("a fresh /proc or /sys cannot be mounted: {}", no.said),
        [one] => format!("{one} is covered, so the kernel refuses a fresh one"),
        [one, rest @ ..] => {
            format!("{one} and {} more are covered, so the kernel refuses a fresh one", rest.len())
        }
    };
    Finding::stopping(name, says).advised(UNMASK)
}

/// What makes a container show all of `/proc`.
pub(super) const UNMASK: &str = "start the container with --security-opt systempaths=unconfined (docker), --security-opt unmask=ALL (podman) or procMount: Unmasked (kubernetes)";

pub(super) fn network(facts: &Facts) -> Finding {
    let name = "network";
    let Some(no) = facts.trial.answer(Try::Network).no() else {
        return later(facts, Try::Network, Finding::ok(name, "a sealed network namespace can be prepared"));
    };
    let finding = Finding::stopping(name, format!("the network namespace cannot be prepared: {}", no.said));
    match facts.switches.is_proc_sys_read_only {
        true => {
            Finding::stopping(name, "/proc/sys is read-only, so the network namespace cannot be prepared")
                .advised(UNMASK)
        }
        false => finding.advised("use a kernel with CONFIG_NET_NS and CONFIG_SYSCTL"),
    }
}

/// The rules of the wall are real ones, all of them.
pub(super) fn nftables(facts: &Facts) -> Finding {
    const LOAD: [&str; 11] = [
        "modprobe",
        "-a",
        "nf_tables",
        "nf_conntrack",
        "nft_ct",
        "nft_chain_nat",
        "nft_redir",
        "nft_reject_inet",
        "nft_limit",
        "nft_log",
        "nfnetlink_log",
    ];
    let name = "nftables";
    let Some(no) = facts.trial.answer(Try::Nftables).no() else {
        let says = "rules can be put into a network namespace, and refusals are reported";
        return later(facts, Try::Nftables, Finding::ok(name, says));
    };
    let says = format!("the rules of the wall cannot be put into a network namespace: {}", no.said);
    Finding::stopping(name, says).fixed_by(Fix::root(vec![Step::run(LOAD)]))
}

pub(super) fn second_pair(facts: &Facts) -> Finding {
    let name = "seal";
    let steps = [
        (Try::Devices, "the devices of a sandbox cannot be shown"),
        (Try::Spaces, "control group and time namespaces cannot be made"),
        (Try::Inner, "a second user namespace cannot be made inside the first"),
    ];
    for (step, says) in steps {
        if let Some(no) = facts.trial.answer(step).no() {
            return Finding::stopping(name, format!("{says}: {}", no.said)).advised(match step {
                Try::Spaces => "use a kernel with CONFIG_TIME_NS and CONFIG_CGROUPS",
                Try::Devices => "give this host or container the usual nodes of /dev",
                _ => "run airlock less deeply nested",
            });
        }
    }
    later(facts, Try::Inner, Finding::ok(name, "every mount of a sandbox can be locked against it"))
}

pub(super) fn filter(facts: &Facts) -> Finding {
    let name = "seccomp";
    match facts.trial.answer(Try::Filter).no() {
        Some(no) => Finding::stopping(name, format!("system calls cannot be filtered: {}", no.said))
            .advised("use a kernel with CONFIG_SECCOMP_FILTER"),
        None => later(facts, Try::Filter, Finding::ok(name, "system calls can be filtered")),
    }
}

/// A step that was never reached says nothing; whatever stopped the trial before it has a finding of its own.
pub(super) fn later(facts: &Facts, step: Try, finding: Finding) -> Finding {
    match facts.trial.answer(step).is_yes() {
        true => finding,
        false => Finding::degraded(finding.name, "not tried, because a step before it failed"),
    }
}

fn with_fix(finding: Finding, fix: Option<Fix>) -> Finding {
    Finding {
        fix: fix.or_else(|| Some(Fix::advice("install newuidmap and newgidmap (package uidmap or shadow)"))),
        ..finding
    }
}

fn version(release: &str) -> Option<(u32, u32)> {
    let mut parts = release.split(|c: char| !c.is_ascii_digit());
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}
