//! The machine's side of the cable, set up by the machine's own root.

use super::{LONGEST, OUTSIDE_HARDWARE, OWN_HARDWARE, tap};
use crate::net::{
    links::{self, Cable, Families},
    netlink::Messages,
    seat::{During as _, Error, OUTSIDE_V4, OUTSIDE_V6, OWN_V4, OWN_V6},
    settings,
};
use std::{net::IpAddr, ops::RangeInclusive};

/// Gives a machine the network that programs in namespaces have: `lo`, and `device` (such as `eth0`) with the sandbox's own
/// addresses, through which everything else is reached. `families` are those of the seat. A machine without such a device
/// has only `lo`.
///
/// Called in the machine, once, before any program, with `/proc` mounted. `groups` are those that programs can have.
pub fn set_up(device: &str, families: Families, groups: &RangeInclusive<u32>) -> Result<(), Error> {
    let mut messages = Messages::new();
    links::loopback(&mut messages);
    match tap::index(device) {
        Ok(number) => {
            settings::write_device(device, families)?;
            cable(&mut messages, number, families);
        }
        Err(err) if err.raw_os_error() == Some(libc::ENODEV) => {}
        Err(err) => return Err(err).during("find the machine's network device"),
    }
    links::send(messages, families)?;
    settings::write(groups)
}

fn cable(messages: &mut Messages, device: u32, families: Families) {
    let cable = Cable { device, own: OWN_HARDWARE, other: OUTSIDE_HARDWARE, longest: LONGEST };
    links::cable(messages, cable);
    ends(messages, cable, (OWN_V4.into(), OUTSIDE_V4.into()), 32);
    if families == Families::Both {
        ends(messages, cable, (OWN_V6.into(), OUTSIDE_V6.into()), 128);
        links::here(messages, device, OWN_V6);
    }
}

fn ends(messages: &mut Messages, cable: Cable, (own, gateway): (IpAddr, IpAddr), bits: u8) {
    links::address(messages, cable.device, own, bits);
    links::neighbour(messages, cable, gateway);
    links::default_through(messages, cable.device, gateway);
}
