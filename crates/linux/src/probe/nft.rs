//! Whether rules can be put into a network namespace: a table with a chain that translates addresses is made and
//! removed again, in one transaction.

use rustix::{
    io::Errno,
    net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink},
};
use std::io;

// linux/netlink.h, linux/netfilter/nfnetlink.h, linux/netfilter/nf_tables.h
const REQUEST: u16 = 0x1;
const ACK: u16 = 0x4;
const CREATE: u16 = 0x400;
const BATCH_BEGIN: u16 = 0x10;
const BATCH_END: u16 = 0x11;
const ERROR: u16 = 0x2;
const SUBSYSTEM: u16 = 10;
const NEW_TABLE: u16 = SUBSYSTEM << 8;
const DELETE_TABLE: u16 = (SUBSYSTEM << 8) | 2;
const NEW_CHAIN: u16 = (SUBSYSTEM << 8) | 3;
const INET: u8 = 1;
const NESTED: u16 = 0x8000;
const OUTPUT: u32 = 3;
const LAST: u32 = 4;

/// Tries it in the network namespace of this process, which must be one of its own.
pub(super) fn try_rules() -> io::Result<()> {
    let flags = SocketFlags::CLOEXEC;
    let protocol = Some(netlink::NETFILTER);
    let socket = rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, protocol)?;
    rustix::net::sendto(&socket, &batch(), SendFlags::empty(), &netlink::SocketAddrNetlink::new(0, 0))?;
    let mut bytes = [0u8; 8192];
    loop {
        let (count, _) = rustix::net::recv(&socket, &mut bytes[..], RecvFlags::empty())?;
        if let Some(outcome) = outcome(bytes.get(..count).unwrap_or_default()) {
            return outcome;
        }
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
}

fn batch() -> Vec<u8> {
    let name = attribute(1, b"airlock\0");
    let hook = [attribute(1, &OUTPUT.to_be_bytes()), attribute(2, &(-100_i32).to_be_bytes())].concat();
    let chain = [
        attribute(1, b"airlock\0"),
        attribute(3, b"out\0"),
        attribute(4 | NESTED, &hook),
        attribute(7, b"nat\0"),
    ];
    [
        message(BATCH_BEGIN, REQUEST, 0, &general(0, SUBSYSTEM)),
        message(NEW_TABLE, REQUEST | CREATE | ACK, 1, &[general(INET, 0), name.clone()].concat()),
        message(NEW_CHAIN, REQUEST | CREATE | ACK, 2, &[general(INET, 0), chain.concat()].concat()),
        message(DELETE_TABLE, REQUEST | ACK, LAST, &[general(INET, 0), name].concat()),
        message(BATCH_END, REQUEST, LAST + 1, &general(0, SUBSYSTEM)),
    ]
    .concat()
}

fn message(kind: u16, flags: u16, sequence: u32, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(16 + body.len()).unwrap_or(u32::MAX);
    let mut bytes = length.to_ne_bytes().to_vec();
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(flags.to_ne_bytes());
    bytes.extend(sequence.to_ne_bytes());
    bytes.extend(0_u32.to_ne_bytes());
    bytes.extend(body);
    bytes
}

/// `struct nfgenmsg`.
fn general(family: u8, resource: u16) -> Vec<u8> {
    let [high, low] = resource.to_be_bytes();
    vec![family, 0, high, low]
}

fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let length = u16::try_from(4 + value.len()).unwrap_or(u16::MAX);
    let mut bytes = length.to_ne_bytes().to_vec();
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

/// What an answer says: an error, that the last message was done, or nothing yet. Total over any bytes.
fn outcome(mut bytes: &[u8]) -> Option<io::Result<()>> {
    while let Some((header, _)) = bytes.split_at_checked(16) {
        let length = usize::try_from(number(header, 0)?).ok()?;
        let kind = u16::from_ne_bytes(header.get(4..6)?.try_into().ok()?);
        let sequence = number(header, 8)?;
        let body = bytes.get(16..length)?;
        if kind == ERROR {
            match number(body, 0)?.cast_signed() {
                0 if sequence == LAST => return Some(Ok(())),
                0 => {}
                error => return Some(Err(Errno::from_raw_os_error(error.wrapping_neg()).into())),
            }
        }
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    None
}

fn number(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn answer(error: i32, sequence: u32) -> Vec<u8> {
        message(ERROR, 0, sequence, &error.to_ne_bytes())
    }

    #[test]
    fn the_last_message_done_means_that_rules_work() {
        let bytes = [answer(0, 1), answer(0, 2), answer(0, LAST)].concat();
        assert!(matches!(outcome(&bytes), Some(Ok(()))));
        assert!(outcome(&answer(0, 1)).is_none());
    }

    #[test]
    fn one_refusal_is_a_refusal() {
        let bytes = [answer(0, 1), answer(-libc::EOPNOTSUPP, 2)].concat();
        let refused = outcome(&bytes).unwrap().unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EOPNOTSUPP));
    }

    proptest! {
        #[test]
        fn no_bytes_panic_the_reader(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            let _ = outcome(&bytes);
        }
    }
}
