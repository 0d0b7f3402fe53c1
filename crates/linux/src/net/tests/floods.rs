//! A program that is refused very often costs the keeper little.

use super::*;

#[test]
fn a_flood_is_told_in_part_and_refused_as_a_whole() {
    with_seat(|world| {
        let to = address("192.0.2.7:9");
        let socket = world.socket(UDP, to);
        for _ in 0..5000 {
            let sent = rustix::net::sendto(&socket, b"?", rustix::net::SendFlags::empty(), &to);
            assert!(matches!(sent, Err(Errno::PERM)), "{sent:?}");
        }
        let counted = world.rules.refused().unwrap();
        assert!((5000..5100).contains(&counted), "{counted}");
        let told = world.refusals().len();
        assert!((1..1000).contains(&told), "{told}");
    });
}
