//! The proof can fail: it does wherever the wall is weaker than it should be.

use super::*;
use crate::{
    net::{machine, seat},
    seccomp::trial::in_own_user_namespace,
};

#[track_caller]
fn outcome_of(trial: fn() -> Result<(), seat::Error>) -> Option<String> {
    let gid = rustix::process::getegid().as_raw();
    in_own_user_namespace(|| {
        std::fs::write("/proc/self/gid_map", format!("0 {gid} 1"))?;
        // SAFETY: the forked child has one thread; this changes only its network namespace.
        if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(trial().map_or_else(|err| err.to_string(), |()| "proved".to_owned()))
    })
}

#[track_caller]
fn assert_outcome(trial: fn() -> Result<(), seat::Error>, expected: &str) {
    if let Some(outcome) = outcome_of(trial) {
        assert_eq!(outcome, expected);
    }
}

#[test]
fn a_whole_wall_is_proved() {
    let trial = || {
        let seat = build(&(0..=0))?;
        prove()?;
        witness(&seat)
    };
    assert_outcome(trial, "proved");
}

#[test]
fn a_whole_wall_around_a_machine_is_proved() {
    let trial = || {
        let tun = machine::open().map_err(|source| seat::Error::Step { step: "open the device", source })?;
        let seat = build_for_machine(tun, &(0..=0))?;
        prove()?;
        witness(&seat)
    };
    assert_outcome(trial, "proved");
}

#[test]
fn without_rules_nothing_is_proved() {
    let trial = || {
        seat::prepare(&(0..=0))?;
        prove()
    };
    assert_outcome(trial, "the wall does not hold: a forbidden packet was sent");
}

#[test]
fn an_open_destination_is_found() {
    let trial = || {
        let seat = build(&(0..=0))?;
        let all = [opening("0.0.0.0", 0, 0, u16::MAX)];
        Rules::new(seat.rules).open(&all).map_err(|source| seat::Error::Step { step: "open", source })?;
        prove()
    };
    assert_outcome(trial, "the wall does not hold: a forbidden connection was made");
}

#[test]
fn a_refusal_that_nobody_told_is_missed() {
    let trial = || {
        let seat = build(&(0..=0))?;
        witness(&seat)
    };
    assert_outcome(trial, "the wall does not hold: a refusal was not reported");
}

#[test]
fn where_ipv6_is_switched_off_the_wall_stands_without() {
    let trial = || {
        for of in ["all", "default"] {
            let path = format!("/proc/sys/net/ipv6/conf/{of}/disable_ipv6");
            if let Err(source) = std::fs::write(path, "1") {
                return Err(seat::Error::Step { step: "switch IPv6 off", source });
            }
        }
        let seat = build(&(0..=0))?;
        assert_eq!(seat.tcp.len(), 1);
        prove()?;
        witness(&seat)
    };
    assert_outcome(trial, "proved");
}

#[test]
fn a_seat_cannot_be_taken_twice() {
    let trial = || {
        let _seat = build(&(0..=0))?;
        seat::furnish(seat::Families::V4).map(drop)
    };
    assert_outcome(trial, "could not make the table of rules (nf_tables)");
}
