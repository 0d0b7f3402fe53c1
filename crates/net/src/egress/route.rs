//! Whether an address is this host's own, as the kernel's routes say.
//!
//! Every address of every interface is in the kernel's local table, and so is whatever else it would deliver to this host
//! (`ip route add local 203.0.113.0/24 dev lo`). A question by netlink (rtnetlink(7), `RTM_GETROUTE`) needs no right and is
//! answered before the call returns. Answers are kept for a second.

use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, sendto, socket_with};
use std::cell::{Cell, OnceCell, RefCell};
use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// Length of `nlmsghdr`, and where the kind of a route stands behind it in `rtmsg`.
const HEAD: usize = 16;
const KIND: usize = HEAD + 7;
/// Length of `nlmsghdr` and `rtmsg`.
const HEAD_AND_ROUTE: u32 = 28;
/// From `linux/netlink.h` and `linux/rtnetlink.h`.
const NLMSG_ERROR: u16 = 2;
const NLM_F_REQUEST: u16 = 1;
const RTM_NEWROUTE: u16 = 24;
const RTM_GETROUTE: u16 = 26;
const RTA_DST: u16 = 1;
const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;
const RTN_UNICAST: u8 = 1;
/// An answer has some attributes behind the route, a few hundred bytes.
const LONGEST: usize = 8192;

/// How long an answer is kept, and how many are.
const KEPT: Duration = Duration::from_secs(1);
const MOST_KEPT: usize = 64;

/// Asks the kernel where packets would go.
#[derive(Debug, Default)]
pub(super) struct Routes {
    socket: OnceCell<OwnedFd>,
    asked: Cell<u32>,
    kept: RefCell<HashMap<IpAddr, (Route, Instant)>>,
}

/// Where packets to an address would go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Route {
    /// To another host.
    Away,
    /// To this host, or to everyone near it.
    Here,
    /// Nowhere; dialling says why.
    Nowhere,
}

impl Routes {
    /// Where packets to `address` would go.
    pub(super) fn to(&self, address: IpAddr) -> io::Result<Route> {
        let now = Instant::now();
        if let Some((route, until)) = self.kept.borrow().get(&address)
            && *until > now
        {
            return Ok(*route);
        }
        let route = self.ask(address)?;
        let mut kept = self.kept.borrow_mut();
        if kept.len() >= MOST_KEPT {
            kept.clear();
        }
        kept.insert(address, (route, now + KEPT));
        Ok(route)
    }

    fn ask(&self, address: IpAddr) -> io::Result<Route> {
        let socket = self.socket()?;
        let number = self.asked.get().wrapping_add(1);
        self.asked.set(number);
        sendto(socket, &question(address, number), SendFlags::empty(), &SocketAddrNetlink::new(0, 0))?;
        let mut buffer = [0; LONGEST];
        loop {
            let (length, _) = recv(socket, &mut buffer[..], RecvFlags::DONTWAIT)?;
            let answer = buffer.get(..length).unwrap_or_default();
            if let Some(route) = read(answer, number)? {
                return Ok(route);
            }
        }
    }

    fn socket(&self) -> io::Result<&OwnedFd> {
        if let Some(socket) = self.socket.get() {
            return Ok(socket);
        }
        let opened = open()?;
        Ok(self.socket.get_or_init(|| opened))
    }
}

fn open() -> io::Result<OwnedFd> {
    // No protocol is protocol 0, and that is NETLINK_ROUTE.
    Ok(socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, None)?)
}

fn question(address: IpAddr, number: u32) -> Vec<u8> {
    let (family, bits, attribute, octets) = match address {
        IpAddr::V4(address) => (AF_INET, 32, 8_u16, address.octets().to_vec()),
        IpAddr::V6(address) => (AF_INET6, 128, 20_u16, address.octets().to_vec()),
    };
    let length = HEAD_AND_ROUTE.saturating_add(u32::from(attribute));
    let mut bytes = Vec::with_capacity(64);
    bytes.extend(length.to_ne_bytes());
    bytes.extend(RTM_GETROUTE.to_ne_bytes());
    bytes.extend(NLM_F_REQUEST.to_ne_bytes());
    bytes.extend(number.to_ne_bytes());
    bytes.extend([0; 4]);
    bytes.extend([family, bits, 0, 0, 0, 0, 0, 0]);
    bytes.extend([0; 4]);
    bytes.extend(attribute.to_ne_bytes());
    bytes.extend(RTA_DST.to_ne_bytes());
    bytes.extend(octets);
    bytes
}

/// Reads one answer; none where it answers another question.
fn read(bytes: &[u8], number: u32) -> io::Result<Option<Route>> {
    let short =
        || io::Error::new(io::ErrorKind::UnexpectedEof, "the kernel's answer about a route is too short");
    let kind = u16::from_ne_bytes(at(bytes, 4).ok_or_else(short)?);
    if u32::from_ne_bytes(at(bytes, 8).ok_or_else(short)?) != number {
        return Ok(None);
    }
    match kind {
        RTM_NEWROUTE => {
            let [kind] = at::<1>(bytes, KIND).ok_or_else(short)?;
            Ok(Some(if kind == RTN_UNICAST { Route::Away } else { Route::Here }))
        }
        NLMSG_ERROR => {
            let code = i32::from_ne_bytes(at(bytes, HEAD).ok_or_else(short)?).wrapping_neg();
            let error = io::Error::from_raw_os_error(code);
            match error.kind() {
                io::ErrorKind::NetworkUnreachable
                | io::ErrorKind::HostUnreachable
                | io::ErrorKind::InvalidInput => Ok(Some(Route::Nowhere)),
                io::ErrorKind::PermissionDenied => Ok(Some(Route::Nowhere)),
                _ => Err(error),
            }
        }
        _ => Ok(None),
    }
}

fn at<const N: usize>(bytes: &[u8], offset: usize) -> Option<[u8; N]> {
    bytes.get(offset..offset.checked_add(N)?)?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_and_its_whole_range_are_here() {
        let routes = Routes::default();
        for address in ["127.0.0.1", "127.9.9.9"] {
            assert_eq!(routes.to(address.parse().unwrap()).unwrap(), Route::Here, "{address}");
        }
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let routes = Routes::default();
        for last in 0..=255 {
            routes.to(IpAddr::from([127, 0, 0, last])).unwrap();
        }
        assert!(routes.kept.borrow().len() <= MOST_KEPT);
    }

    #[test]
    fn a_documentation_address_is_not_here() {
        let routes = Routes::default();
        for address in ["192.0.2.77", "2001:db8::77"] {
            assert_ne!(routes.to(address.parse().unwrap()).unwrap(), Route::Here, "{address}");
        }
    }

    #[test]
    fn a_short_answer_is_an_error_and_another_ones_answer_is_passed_over() {
        assert!(read(&[0; 7], 1).is_err());
        let mut other = [0; 40];
        other[4] = 24;
        assert_eq!(read(&other, 1).unwrap(), None);
    }
}
