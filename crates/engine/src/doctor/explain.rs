//! Why a launch failed, from a few small files. For the moment after the kernel has refused a sandbox.
//!
//! ```no_run
//! use airlock_engine::{doctor::explain_launch_failure, plan::Caller};
//! if let Some(known) = explain_launch_failure(&Caller::current()) {
//!     eprintln!("error: {}\n  why:  {}\n  fix:  {}", known.what, known.why, known.fix);
//! }
//! ```

use super::walls::{APPARMOR, Off, UNMASK, why_off};
use crate::plan::Caller;
use airlock_linux::probe::{
    programs::{Power, Program},
    switches::Switches,
};

/// A known reason, in the three sentences a person is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Explanation {
    /// What does not work.
    pub what: String,
    /// Why.
    pub why: String,
    /// What to type.
    pub fix: String,
}

/// The reason why no sandbox of this caller can start on this host, if it is one that files tell. Reads some twenty
/// small files and tries nothing.
#[must_use]
pub fn explain_launch_failure(caller: &Caller) -> Option<Explanation> {
    let uses_programs = !caller.user_ranges.is_empty() && !caller.group_ranges.is_empty();
    let programs =
        if uses_programs { vec![Program::find("newuidmap"), Program::find("newgidmap")] } else { Vec::new() };
    explain(&Switches::read(), caller.uid, &programs)
}

/// `programs` are those that write the ids of this caller's sandboxes.
fn explain(switches: &Switches, uid: u32, programs: &[Program]) -> Option<Explanation> {
    let explanation = |what: &str, why: String, fix: &str| {
        let what = format!("this sandbox cannot be sealed: {what}");
        Some(Explanation { what, why, fix: fix.to_owned() })
    };
    let by_doctor = |name: &str| {
        format!("sudo airlock doctor --fix {name}      (or run `airlock doctor` for other ways)")
    };
    let userns = "user namespaces are switched off on this host";
    match why_off(switches, uid) {
        Some(Off::AppArmor) => return explanation(userns, APPARMOR.to_owned(), &by_doctor("userns")),
        Some(Off::Setting(key)) => return explanation(userns, format!("{key} is 0"), &by_doctor("userns")),
        None => {}
    }
    let powerless = programs.iter().find(|program| matches!(program.power, Power::None | Power::Nosuid));
    if let Some(path) = powerless.and_then(|program| program.path.as_ref()) {
        let why = format!("{} has not the power to set ids", path.display());
        return explanation("its ids cannot be written", why, &by_doctor("ids"));
    }
    if !programs.is_empty() && switches.has_no_new_privs {
        let why = "newuidmap cannot gain power: airlock runs with no_new_privs".to_owned();
        return explanation(
            "its ids cannot be written",
            why,
            "start airlock from a process without no_new_privs",
        );
    }
    let covered = switches.proc_masks.first().or(switches.sys_masks.first())?;
    explanation("this container hides a part of /proc or /sys", format!("{covered} is covered"), UNMASK)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ubuntus_restriction_is_named_with_its_fix() {
        let switches = Switches {
            apparmor_restricts: Some(1),
            apparmor_label: Some("unconfined".into()),
            ..Switches::default()
        };

        let found = explain(&switches, 1000, &[]).unwrap();

        assert_eq!(
            [found.what.as_str(), &found.why, &found.fix],
            [
                "this sandbox cannot be sealed: user namespaces are switched off on this host",
                "kernel.apparmor_restrict_unprivileged_userns is 1 and airlock has no profile",
                "sudo airlock doctor --fix userns      (or run `airlock doctor` for other ways)",
            ]
        );
        assert_eq!(explain(&switches, 0, &[]), None);
        let with_profile = Switches { apparmor_label: Some("airlock (unconfined)".into()), ..switches };
        assert_eq!(explain(&with_profile, 1000, &[]), None);
    }

    #[test]
    fn a_program_without_power_is_the_reason() {
        let program = Program { path: Some("/usr/bin/newuidmap".into()), power: Power::None };
        let found = explain(&Switches::default(), 1000, &[program]).unwrap();
        assert_eq!(found.why, "/usr/bin/newuidmap has not the power to set ids");
    }

    #[test]
    fn a_host_without_a_known_reason_is_not_blamed() {
        assert_eq!(explain(&Switches::default(), 1000, &[]), None);
    }
}
