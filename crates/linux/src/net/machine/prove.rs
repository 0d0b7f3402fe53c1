//! The trial by a machine's own means: frames on its end of the cable, before any machine has it. What must not get through
//! is refused or goes nowhere.

use super::{
    frames::{Answer, Packet, What, answer, arp_request, frame, frame_to},
    tap::HEADER,
};
use crate::net::{
    links::Families,
    seat::{During as _, Error, LISTENER_PORT, OUTSIDE_V4, OUTSIDE_V6, OWN_V4, OWN_V6, RESOLVER_PORT, Seat},
};
use rustix::{
    event::{PollFd, PollFlags, Timespec},
    io::Errno,
};
use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    os::fd::{AsFd, BorrowedFd},
};

/// Addresses for documentation, which nobody has; not those of the trial by programs.
const NOBODY_V4: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 2);
const NOBODY_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 2);
/// Not the machine's.
const FOREIGN_V4: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 9);
const FOREIGN_V6: Ipv6Addr = Ipv6Addr::new(0xfd61, 0x6972, 0x6c6f, 0x636b, 0, 0, 0, 9);
const ANOTHER_HARDWARE: [u8; 6] = [0x02, 0, 0, 0, 0, 9];
const HTTPS: u16 = 443;
/// Some port of the machine's.
const OWN_PORT: u16 = 40_000;
/// The kernel answers within microseconds.
const PATIENCE: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };
const LONGEST_FRAME: usize = HEADER + 2048;

/// Sends what a hostile machine would send, and hears exactly what it may hear.
pub(in crate::net) fn prove(seat: &Seat) -> Result<(), Error> {
    let Some(tap) = &seat.tap else { return Ok(()) };
    trial(tap.as_fd(), Family::V4)?;
    if seat.families() == Families::Both {
        trial(tap.as_fd(), Family::V6)?;
    }
    Ok(())
}

/// What the trial was refused, as it has to be told.
pub(in crate::net) fn tried(families: Families) -> Vec<SocketAddr> {
    let mut tried = vec![SocketAddr::new(NOBODY_V4.into(), HTTPS)];
    if families == Families::Both {
        tried.push(SocketAddr::new(NOBODY_V6.into(), HTTPS));
    }
    tried
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Family {
    V4,
    V6,
}

/// Of one address family.
struct Addresses {
    own: IpAddr,
    gateway: IpAddr,
    nobody: IpAddr,
    foreign: IpAddr,
    loopback: IpAddr,
}

fn addresses(family: Family) -> Addresses {
    match family {
        Family::V4 => Addresses {
            own: OWN_V4.into(),
            gateway: OUTSIDE_V4.into(),
            nobody: NOBODY_V4.into(),
            foreign: FOREIGN_V4.into(),
            loopback: Ipv4Addr::LOCALHOST.into(),
        },
        Family::V6 => Addresses {
            own: OWN_V6.into(),
            gateway: OUTSIDE_V6.into(),
            nobody: NOBODY_V6.into(),
            foreign: FOREIGN_V6.into(),
            loopback: Ipv6Addr::LOCALHOST.into(),
        },
    }
}

/// The frames come out in the order in which they went in, so that with the answer to the last one, a ping, all are there.
fn trial(tap: BorrowedFd<'_>, family: Family) -> Result<(), Error> {
    let Addresses { own, gateway, nobody, foreign, loopback } = addresses(family);
    let packet = |from: IpAddr, to: IpAddr, port: u16, what| Packet {
        from: SocketAddr::new(from, OWN_PORT),
        to: SocketAddr::new(to, port),
        what,
    };
    let forbidden = packet(own, nobody, HTTPS, What::Syn);
    let frames = [
        arp_request(OWN_V4, OUTSIDE_V4),
        frame(&packet(foreign, nobody, HTTPS, What::Syn)),
        frame(&packet(foreign, gateway, 53, What::Datagram)),
        frame(&packet(foreign, gateway, 0, What::Echo)),
        frame(&packet(own, loopback, LISTENER_PORT, What::Syn)),
        frame(&packet(own, loopback, RESOLVER_PORT, What::Datagram)),
        frame_to(ANOTHER_HARDWARE, &forbidden),
        frame(&forbidden),
        frame(&packet(own, nobody, HTTPS, What::Datagram)),
        frame(&packet(own, gateway, LISTENER_PORT, What::Syn)),
        frame(&packet(own, gateway, RESOLVER_PORT, What::Syn)),
        frame(&packet(own, gateway, RESOLVER_PORT, What::Datagram)),
        frame(&packet(own, gateway, 0, What::Echo)),
    ];
    let at = SocketAddr::new;
    let expected = [
        Answer::Reset(at(nobody, HTTPS)),
        Answer::Unreachable(at(nobody, HTTPS)),
        Answer::Reset(at(gateway, LISTENER_PORT)),
        Answer::Reset(at(gateway, RESOLVER_PORT)),
        Answer::Unreachable(at(gateway, RESOLVER_PORT)),
        Answer::Echo(gateway),
    ];
    for frame in frames {
        rustix::io::write(tap, &frame).map_err(io::Error::from).during("send a frame for the trial")?;
    }
    let heard = hear(tap, Answer::Echo(gateway)).during("read the answers of the trial")?;
    if heard.iter().any(|answer| matches!(answer, Answer::Accepted(_))) {
        return Err(Error::Open("a machine's forbidden connection was made"));
    }
    // A kernel may keep such an answer to itself when there are many; nothing else.
    let certain = |answer: &&Answer| !matches!(answer, Answer::Unreachable(_));
    let answered = heard.iter().filter(certain).eq(expected.iter().filter(certain));
    if !answered || heard.iter().any(|answer| !expected.contains(answer)) {
        return Err(Error::Open("a machine is not answered as it should be"));
    }
    Ok(())
}

/// All answers up to the last one, or those that came before patience ended.
pub(in crate::net) fn hear(tap: BorrowedFd<'_>, last: Answer) -> io::Result<Vec<Answer>> {
    let (mut heard, mut bytes) = (Vec::new(), [0u8; LONGEST_FRAME]);
    while heard.last() != Some(&last) {
        match rustix::io::read(tap, &mut bytes[..]) {
            Ok(count) => heard.push(answer(bytes.get(..count).unwrap_or_default())),
            Err(Errno::AGAIN) => {
                let mut waiting = [PollFd::new(&tap, PollFlags::IN)];
                if rustix::event::poll(&mut waiting, Some(&PATIENCE))? == 0 {
                    break;
                }
            }
            Err(Errno::INTR) => {}
            Err(err) => return Err(err.into()),
        }
    }
    Ok(heard)
}
