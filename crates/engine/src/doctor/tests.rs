//! Hosts as they are met, and what doctor makes of them.

use super::{
    Facts, Finding, Report, Status, Step, examine,
    facts::{Limit, Packages, Person, StateDirectory},
};
use airlock_linux::{
    cgroup::{Cannot, Controller, Reason, UserManager, Version},
    fence::Applied,
    probe::{
        Answer, No,
        devices::Devices,
        nesting::Nesting,
        place::Place,
        programs::{Power, Program},
        switches::Switches,
        trial::{Step as Try, Trial},
    },
};
use std::path::PathBuf;

const EPERM: i32 = 1;
const EINVAL: i32 = 22;

/// A Debian laptop: everything works for an ordinary user with ranges.
fn debian() -> Facts {
    let program = |path: &str, power| Program { path: Some(path.into()), power };
    let limit = |controller| Limit { controller, cannot: None };
    Facts {
        person: Person {
            uid: 1000,
            name: "ada".into(),
            user_ranges: vec![(100_000, 65_536)],
            group_ranges: vec![(100_000, 65_536)],
            next_range: 165_536,
        },
        binary: "/usr/local/bin/airlock".into(),
        packages: Packages::Apt,
        switches: Switches {
            release: "6.1.0-30-amd64".into(),
            max_user_namespaces: Some(63_000),
            unprivileged_userns_clone: Some(1),
            core_pattern: Some("core".into()),
            ..Switches::default()
        },
        newuidmap: program("/usr/bin/newuidmap", Power::SetUserId),
        newgidmap: program("/usr/bin/newgidmap", Power::SetUserId),
        mkfs: program("/usr/sbin/mkfs.ext4", Power::None),
        devices: Devices {
            fuse: Answer::Yes,
            tun: Answer::Yes,
            kvm: Answer::Yes,
            is_kvm_of_a_group: true,
            loops: Answer::Yes,
        },
        landlock: Applied::Enforced { abi: 2 },
        nesting: Nesting { container: None, depth: Some(0) },
        state: StateDirectory {
            path: "/home/ada/.airlock".into(),
            exists: true,
            refused: None,
            place: Place { kind: "ext4".into(), free: 50 << 30, total: 100 << 30, ..Place::default() },
        },
        limits: [Controller::Memory, Controller::Pids, Controller::Cpu, Controller::Freezer]
            .map(limit)
            .into(),
        manager: UserManager::Running,
        scope: Vec::new(),
        is_swap_bounded: true,
        trial: Trial::all_yes(),
    }
}

fn no(errno: i32, said: &str) -> Answer {
    Answer::No(No { errno, said: said.into() })
}

fn found(report: &Report, name: &str) -> Finding {
    report.findings.iter().find(|finding| finding.name == name).unwrap().clone()
}

fn remedy(facts: &Facts, name: &str) -> String {
    found(&examine(facts), name).remedy().unwrap_or_default()
}

/// Lines that are not ok, as a person reads them.
fn complaints(facts: &Facts) -> Vec<String> {
    let report = examine(facts);
    let bad = report.findings.iter().filter(|finding| finding.status != Status::Ok);
    let lines = bad.map(|finding| format!("{} {}: {}", finding.status.word(), finding.name, finding.says));
    lines.chain([report.summary()]).collect()
}

#[test]
fn a_debian_laptop_has_all_but_a_plain_disk_limit() {
    assert_eq!(
        complaints(&debian()),
        ["degraded disk: a plain --disk needs host root", "airlock can run here"]
    );
}

#[test]
fn ubuntus_restriction_is_lifted_by_a_profile_for_this_program() {
    let mut facts = debian();
    facts.switches.apparmor_restricts = Some(1);
    facts.switches.apparmor_label = Some("unconfined".into());
    facts.trial = Trial::of([
        (Try::User, Answer::Yes),
        (Try::Namespaces, Answer::Yes),
        (Try::Ids, Answer::Yes),
        (Try::Root, Answer::Yes),
        (Try::Mounts, no(EPERM, "operation not permitted")),
    ]);

    let report = examine(&facts);

    let finding = found(&report, "userns");
    assert_eq!(
        finding.says,
        "user namespaces are switched off on this host: kernel.apparmor_restrict_unprivileged_userns is 1 and airlock has no profile"
    );
    assert_eq!(
        finding.remedy().unwrap(),
        "sudo airlock doctor --fix userns   (or sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0, for all programs of this host)"
    );
    let profile = "\
# Lets airlock make user namespaces; it restricts nothing else.
abi <abi/4.0>,
include <tunables/global>

profile airlock \"/usr/local/bin/airlock\" flags=(unconfined) {
  userns,

  include if exists <local/airlock>
}
";
    assert_eq!(
        finding.fix.unwrap().steps,
        [
            Step::Write { path: "/etc/apparmor.d/airlock".into(), text: profile.into() },
            Step::run(["apparmor_parser", "-r", "/etc/apparmor.d/airlock"]),
        ]
    );
    assert_eq!(report.summary(), "airlock cannot run here: userns");
}

#[test]
fn a_program_path_that_apparmor_reads_as_a_pattern_gets_no_profile() {
    let mut facts = debian();
    facts.switches.apparmor_restricts = Some(1);
    facts.binary = PathBuf::from("/home/ada/{a,b}/airlock");
    facts.trial = Trial::of([(Try::Mounts, no(EPERM, "operation not permitted"))]);

    let remedy = remedy(&facts, "userns");

    assert!(remedy.starts_with("sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0"), "{remedy}");
}

#[test]
fn a_restriction_that_does_not_hold_for_us_is_no_complaint() {
    let mut facts = debian();
    facts.switches.apparmor_restricts = Some(1);
    facts.switches.apparmor_label = Some("airlock (unconfined)".into());

    assert_eq!(found(&examine(&facts), "userns").status, Status::Ok);
}

#[test]
fn namespaces_that_are_switched_off_are_switched_on_by_the_same_key() {
    for (key, value) in [("user.max_user_namespaces", 15_000), ("kernel.unprivileged_userns_clone", 1)] {
        let mut facts = debian();
        match value {
            1 => facts.switches.unprivileged_userns_clone = Some(0),
            _ => facts.switches.max_user_namespaces = Some(0),
        }
        facts.trial = Trial::of([(Try::User, no(EPERM, "operation not permitted"))]);

        let remedy = remedy(&facts, "userns");

        assert!(
            remedy.starts_with(&format!("sudo sysctl -w {key}={value} && echo {key}={value} | sudo tee")),
            "{remedy}"
        );
    }
}

#[test]
fn a_container_with_a_covered_proc_is_refused_with_the_flag_that_uncovers_it() {
    let mut facts = debian();
    facts.nesting.container = Some("/.dockerenv".into());
    facts.switches.proc_masks = vec!["/proc/acpi".into(), "/proc/kcore".into(), "/proc/sys".into()];
    facts.switches.is_proc_sys_read_only = true;
    facts.trial = Trial::all_yes()
        .with(Try::Proc, no(EPERM, "operation not permitted"))
        .with(Try::Network, no(30, "read-only file system"))
        .with(Try::Inner, Answer::Unasked);

    assert_eq!(
        complaints(&facts),
        [
            "missing proc: /proc/acpi and 2 more are covered, so the kernel refuses a fresh one",
            "missing network: /proc/sys is read-only, so the network namespace cannot be prepared",
            "degraded seal: not tried, because a step before it failed",
            "degraded disk: a plain --disk needs host root",
            "airlock cannot run here: proc, network",
        ]
    );
    assert!(remedy(&facts, "proc").contains("--security-opt systempaths=unconfined"));
}

#[test]
fn a_state_directory_on_nfs_or_overlay_is_refused_with_another_place() {
    for kind in ["nfs", "overlay"] {
        let mut facts = debian();
        facts.state.place.kind = kind.into();
        facts.trial = Trial::all_yes().with(Try::Overlay, no(EINVAL, "invalid argument"));

        let finding = found(&examine(&facts), "overlay");

        assert!(finding.stops_run);
        assert_eq!(
            finding.says,
            format!(
                "the state directory /home/ada/.airlock is on {kind}, which cannot hold the layers of an overlay"
            )
        );
        assert!(finding.remedy().unwrap().starts_with("export AIRLOCK_HOME="));
        facts.nesting.container = Some("/.dockerenv".into());
        assert_eq!(remedy(&facts, "overlay"), "put a volume there: docker run -v airlock:/home/ada/.airlock");
    }
}

#[test]
fn a_state_directory_where_nothing_can_be_executed_is_refused() {
    let mut facts = debian();
    facts.state.place.is_noexec = true;
    assert!(found(&examine(&facts), "state").stops_run);
}

#[test]
fn a_state_directory_that_others_may_enter_is_closed_by_its_owner() {
    let mut facts = debian();
    facts.state.refused =
        Some("the state directory … is not safe to use: others may enter it (mode 755)".into());
    assert_eq!(remedy(&facts, "state"), "chmod 700 /home/ada/.airlock");
}

#[test]
fn who_has_no_ranges_has_one_id_and_can_get_more() {
    let mut facts = debian();
    facts.person.user_ranges.clear();
    facts.person.group_ranges.clear();

    let finding = found(&examine(&facts), "ids");

    assert_eq!((finding.status, finding.stops_run), (Status::Degraded, false));
    assert_eq!(
        finding.remedy().unwrap(),
        "sudo usermod --add-subuids 165536-231071 --add-subgids 165536-231071 ada"
    );
}

#[test]
fn a_missing_newuidmap_is_installed_by_the_hosts_own_package_program() {
    let mut facts = debian();
    facts.newuidmap = Program::default();
    assert_eq!(remedy(&facts, "ids"), "sudo apt-get install -y uidmap");
    facts.packages = Packages::Apk;
    assert_eq!(remedy(&facts, "ids"), "sudo apk add shadow-subids");
}

#[test]
fn a_newuidmap_without_power_stops_run_because_run_would_use_it() {
    let mut facts = debian();
    facts.newgidmap.power = Power::None;
    facts.trial = Trial::of([(Try::Namespaces, Answer::Yes), (Try::Ids, no(0, "newgidmap: write failed"))]);

    assert!(found(&examine(&facts), "ids").stops_run);
    assert_eq!(remedy(&facts, "ids"), "sudo chmod u+s /usr/bin/newgidmap");
}

#[test]
fn a_limit_that_is_not_delegated_is_told_with_the_way_to_get_it() {
    let session: PathBuf = "/sys/fs/cgroup/user.slice/user-1000.slice/session-2.scope".into();
    let not_ours =
        |version| Reason::NotOurs { dir: session.clone(), mount: "/sys/fs/cgroup".into(), version };
    let cases = [
        (
            not_ours(Version::V2),
            UserManager::Running,
            "sudo airlock doctor --fix cgroup-memory   (then log in again)",
        ),
        (
            not_ours(Version::V2),
            UserManager::Absent,
            "sudo loginctl enable-linger ada   (or log in by ssh or at the console, which starts your systemd)",
        ),
        (not_ours(Version::V1), UserManager::Absent, "sudo install -d -o 1000 /sys/fs/cgroup/airlock.1000"),
        (
            Reason::NotHandedDown { dir: session.clone() },
            UserManager::Running,
            "sudo airlock doctor --fix cgroup-memory   (then log in again)",
        ),
    ];
    for (reason, manager, expected) in cases {
        let mut facts = debian();
        facts.manager = manager;
        facts.limits[0].cannot = Some(Cannot { controller: Controller::Memory, reason, uid: 1000 });

        let report = examine(&facts);

        assert_eq!(found(&report, "cgroup-memory").status, Status::Degraded);
        assert_eq!(remedy(&facts, "cgroup-memory"), expected);
        assert_eq!(report.summary(), "airlock can run here");
    }
}

#[test]
fn a_limit_that_needs_a_scope_holds_where_systemd_makes_one() {
    let mut facts = debian();
    facts.scope = vec![Controller::Memory, Controller::Pids];
    let dir: PathBuf = "/sys/fs/cgroup/user.slice/user-1000.slice/session-2.scope".into();
    for limit in &mut facts.limits {
        let reason =
            Reason::NotOurs { dir: dir.clone(), mount: "/sys/fs/cgroup".into(), version: Version::V2 };
        limit.cannot = Some(Cannot { controller: limit.controller, reason, uid: 1000 });
    }

    let report = examine(&facts);

    let status = |name: &str| found(&report, name).status;
    assert_eq!(status("cgroup-memory"), Status::Ok);
    assert_eq!(status("cgroup-cpu"), Status::Degraded);
    assert_eq!(status("cgroup-pids"), Status::Degraded);
    assert_eq!(remedy(&facts, "cgroup-pids"), "systemd-run --user --scope -p Delegate=yes airlock …");
}

#[test]
fn a_device_may_be_present_and_not_usable() {
    let mut facts = debian();
    facts.devices.kvm = no(0, "it speaks version 11 and not 12");
    facts.devices.fuse = no(13, "permission denied");
    facts.devices.tun = no(2, "no such file or directory");

    assert_eq!(
        complaints(&facts),
        [
            "degraded disk: a plain --disk needs host root",
            "degraded fuse: /dev/fuse is there, and ada may not open it (`run` does not need it)",
            "missing tun: there is no /dev/net/tun (`run` does not need it)",
            "degraded kvm: /dev/kvm is present but not usable: it speaks version 11 and not 12 (`run` does not need it)",
            "airlock can run here",
        ]
    );
}

#[test]
fn root_needs_shifted_ids_and_a_newer_kernel() {
    let mut facts = debian();
    facts.person = Person { uid: 0, name: "root".into(), ..Person::default() };
    facts.switches.release = "5.15.0-91-generic".into();
    facts.trial = Trial::all_yes().with(Try::Shift, no(EINVAL, "/var: invalid argument"));

    assert_eq!(
        complaints(&facts),
        [
            "missing kernel: Linux 5.15.0-91-generic is too old: 5.19 is the oldest that works",
            "missing idmap: this file system cannot be shown with shifted ids: /var: invalid argument",
            "airlock cannot run here: kernel, idmap",
        ]
    );
}

#[test]
fn an_older_kernel_that_does_everything_is_new_enough() {
    let mut facts = debian();
    facts.switches.release = "5.10.0-rebuilt".into();
    assert_eq!(found(&examine(&facts), "kernel").status, Status::Ok);
}

#[test]
fn a_trial_that_hangs_is_not_taken_for_a_yes() {
    let mut facts = debian();
    facts.trial = Trial::of([(Try::User, Answer::Yes), (Try::Namespaces, Answer::Yes)]);

    assert_eq!(examine(&facts).summary(), "airlock cannot run here: trial");
}

#[test]
fn every_complaint_says_what_to_do() {
    let mut facts = debian();
    facts.trial = [Try::Network, Try::Proc, Try::Devices, Try::Overlay, Try::Nftables, Try::Filter]
        .into_iter()
        .fold(Trial::all_yes(), |trial, step| trial.with(step, no(EPERM, "operation not permitted")));
    facts.landlock = Applied::Unavailable;
    facts.switches.has_swap = true;
    facts.is_swap_bounded = false;

    let report = examine(&facts);

    let silent =
        report.findings.iter().filter(|finding| finding.status != Status::Ok && finding.fix.is_none());
    assert_eq!(silent.map(|finding| finding.name).collect::<Vec<_>>(), [""; 0]);
}
