//! The host's side of the cable: the TAP with the addresses of the outside, and `lo`.

use super::{LONGEST, OUTSIDE_HARDWARE, OWN_HARDWARE, tap};
use crate::net::{
    links::{self, Cable, Families, Table},
    netlink::Messages,
    seat::{Error, OUTSIDE_V4, OUTSIDE_V6, OWN_V4, OWN_V6},
    settings,
};
use std::{net::IpAddr, os::fd::OwnedFd};

/// Makes the TAP and brings it up. Gives back the families that it has addresses of.
///
/// What has no other route is local as in every seat, so that it comes to the rules; but the machine comes first.
pub(in crate::net) fn set_up(device: &OwnedFd, families: Families) -> Result<Families, Error> {
    let device = tap::make(device)?;
    settings::write_device(tap::NAME, families)?;
    settings::forbid_forwarding(families)?;
    settings::answer_always();
    let cable = Cable { device, own: OUTSIDE_HARDWARE, other: OWN_HARDWARE, longest: LONGEST };
    let mut messages = Messages::new();
    links::loopback(&mut messages);
    links::cable(&mut messages, cable);
    ends(&mut messages, cable, (OUTSIDE_V4.into(), OWN_V4.into()), 32);
    if families == Families::Both {
        ends(&mut messages, cable, (OUTSIDE_V6.into(), OWN_V6.into()), 128);
        links::here(&mut messages, device, OUTSIDE_V6);
    }
    links::send(messages, families)
}

fn ends(messages: &mut Messages, cable: Cable, (own, other): (IpAddr, IpAddr), bits: u8) {
    links::address(messages, cable.device, own, bits);
    links::through(messages, cable.device, other);
    links::neighbour(messages, cable, other);
    links::default_here(messages, Table::Main, own);
}
