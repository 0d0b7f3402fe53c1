//! What TLS inside a flow must say, where its rule does not leave it unchecked.
//!
//! | the flow goes to | the `ClientHello` |
//! |---|---|
//! | a name | names exactly that name |
//! | an address | names no host, or that address, or a host that the rules allow at this port |
//!
//! An encrypted `ClientHello` is refused: what it hides cannot be compared. Clients that only pretend to send one (GREASE,
//! as Chromium does) cannot be told apart and are refused too. `tls = "opaque"` on the rule lets all of it pass.
//!
//! A second `ClientHello` after a `HelloRetryRequest` must name what the first did. What is said later is encrypted.
//!
//! What does not begin with a `ClientHello` is no TLS and is not checked; that includes protocols that change over to
//! TLS later (STARTTLS, PostgreSQL). They too reach nobody but the host that was asked for.

use crate::{
    relay::{Look, Seen, Weight},
    sniff::{Further, Hello, Second, Sniffed, Sniffer},
};
use airlock_gate::host::{HostName, Target};
use std::net::IpAddr;

/// What a `ClientHello` is compared with.
pub(crate) struct Expected {
    /// Where the flow goes.
    pub(crate) target: Target,
    /// Whether the rules allow a flow to this name at the port of this one.
    pub(crate) allows: Box<dyn Fn(&HostName) -> bool>,
    /// Whether what is wrong is only recorded.
    pub(crate) excuses: Box<dyn Fn(&str) -> bool>,
}

impl Expected {
    /// Whether `hello` may pass; the reason if not.
    pub(crate) fn check(&self, hello: &Hello) -> Result<(), String> {
        if hello.ech {
            return Err("the ClientHello is encrypted (ECH)".to_owned());
        }
        match (&self.target, &hello.sni) {
            (Target::Name(_), None) => Err("the ClientHello names no host".to_owned()),
            (Target::Name(name), Some(sni)) => match sni.parse::<HostName>() {
                Ok(named) if named == *name => Ok(()),
                _ => Err(format!("the ClientHello names {sni}")),
            },
            (Target::Address(_), None) => Ok(()),
            (Target::Address(address), Some(sni)) => {
                let is_same = sni.parse::<IpAddr>().is_ok_and(|named| named.to_canonical() == *address);
                match is_same || sni.parse().is_ok_and(|name| (self.allows)(&name)) {
                    true => Ok(()),
                    false => Err(format!("the ClientHello names {sni}, which no rule allows")),
                }
            }
        }
    }
}

/// Looks at what a client says first, until it has said enough.
pub(crate) struct Watch {
    expected: Expected,
    stage: Stage,
    /// What the stage keeps.
    weight: Weight,
}

enum Stage {
    First(Sniffer),
    Second(Second),
}

impl Watch {
    /// Nothing was said yet.
    pub(crate) fn new(expected: Expected, weight: Weight) -> Watch {
        Watch { expected, stage: Stage::First(Sniffer::new()), weight }
    }

    /// Looks at what comes next.
    pub(crate) fn look(&mut self, bytes: &[u8]) -> Seen {
        let seen = self.judge(bytes);
        let held = match &self.stage {
            Stage::First(sniffer) => sniffer.held(),
            Stage::Second(second) => second.held(),
        };
        self.weight.set(held);
        let seen = match seen {
            Seen::Pass if held > 0 && self.weight.is_full() => {
                Seen::Refuse("too much waits to be looked at".to_owned())
            }
            seen => seen,
        };
        match seen {
            Seen::Refuse(why) if (self.expected.excuses)(&why) => Seen::Over,
            seen => seen,
        }
    }

    fn judge(&mut self, bytes: &[u8]) -> Seen {
        let sniffer = match &mut self.stage {
            Stage::First(sniffer) => sniffer,
            Stage::Second(second) => return further(second.look(bytes)),
        };
        match sniffer.push(bytes) {
            Sniffed::NeedMore => Seen::Hold,
            Sniffed::NotTls => Seen::Over,
            Sniffed::Malformed(why) => Seen::Refuse(why.to_owned()),
            Sniffed::Hello(hello) => {
                if let Err(why) = self.expected.check(&hello) {
                    return Seen::Refuse(why);
                }
                let mut second = Second::new(hello);
                let seen = further(second.look(sniffer.behind()));
                self.stage = Stage::Second(second);
                seen
            }
        }
    }

    /// As what the relay takes.
    pub(crate) fn into_look(mut self) -> Look {
        Box::new(move |bytes| self.look(bytes))
    }
}

fn further(further: Further) -> Seen {
    match further {
        Further::Watch => Seen::Pass,
        Further::Over => Seen::Over,
        Further::Refuse(why) => Seen::Refuse(why.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::relay::Pool;

    fn hello(sni: Option<&str>) -> Hello {
        Hello { sni: sni.map(str::to_owned), ..Hello::default() }
    }

    fn expected(target: &str) -> Expected {
        Expected {
            target: target.parse().unwrap(),
            allows: Box::new(|_| false),
            excuses: Box::new(|_| false),
        }
    }

    fn watch(expected: Expected) -> Watch {
        Watch::new(expected, Pool::new().weight())
    }

    fn check(target: &str, hello: &Hello) -> Result<(), String> {
        let allows = Box::new(|name: &HostName| name.as_str() == "allowed.test");
        Expected { allows, ..expected(target) }.check(hello)
    }

    #[test]
    fn a_flow_to_a_name_names_it() {
        assert_eq!(check("api.example.com", &hello(Some("API.example.com"))), Ok(()));
        assert_eq!(check("api.example.com", &hello(None)), Err("the ClientHello names no host".to_owned()));
        for other in
            ["example.com", "evil.api.example.com", "allowed.test", "192.0.2.7", "api.example.com:443"]
        {
            let refused = Err(format!("the ClientHello names {other}"));
            assert_eq!(check("api.example.com", &hello(Some(other))), refused);
        }
    }

    #[test]
    fn a_flow_to_an_address_names_nothing_that_is_not_allowed() {
        assert_eq!(check("192.0.2.7", &hello(None)), Ok(()));
        assert_eq!(check("192.0.2.7", &hello(Some("192.0.2.7"))), Ok(()));
        assert_eq!(check("192.0.2.7", &hello(Some("allowed.test"))), Ok(()));
        for other in ["192.0.2.8", "evil.test", "not a name"] {
            assert!(check("192.0.2.7", &hello(Some(other))).is_err(), "{other}");
        }
    }

    #[test]
    fn an_encrypted_hello_is_refused_wherever_it_goes() {
        for target in ["api.example.com", "192.0.2.7"] {
            let sni = target.parse::<HostName>().ok().map(|name| name.to_string());
            assert!(check(target, &Hello { sni, ech: true, ..Hello::default() }).is_err());
        }
    }

    #[test]
    fn a_hello_is_held_until_it_is_whole_and_then_passes() {
        let bytes = include_bytes!("sniff/hellos/go.bin");
        let mut right = watch(expected("api.example.com"));
        let mut wrong = watch(expected("www.example.com"));
        for watch in [&mut right, &mut wrong] {
            assert_eq!(watch.look(&bytes[..700]), Seen::Hold);
        }
        assert_eq!(right.look(&bytes[700..]), Seen::Pass);
        assert_eq!(
            wrong.look(&bytes[700..]),
            Seen::Refuse("the ClientHello names api.example.com".to_owned())
        );
        assert_eq!(right.look(&[20, 3, 3, 0, 1, 1, 23, 3, 3]), Seen::Pass);
        assert_eq!(right.look(&[0, 50]), Seen::Over);
    }

    #[test]
    fn what_is_only_audited_passes() {
        let audited =
            Expected { excuses: Box::new(|why| why.contains("api.example.com")), ..expected("a.test") };
        assert_eq!(watch(audited).look(include_bytes!("sniff/hellos/go.bin")), Seen::Over);
    }

    #[test]
    fn what_is_not_tls_passes() {
        assert_eq!(watch(expected("a.test")).look(b"SSH-2.0-client\r\n"), Seen::Over);
    }

    /// A record that begins a hello of 60,000 bytes, and `length` of them.
    fn endless(length: usize) -> Vec<u8> {
        let piece = u16::try_from(length + 4).unwrap().to_be_bytes();
        let mut bytes = vec![22, 3, 3, piece[0], piece[1], 1, 0, 0xea, 0x60];
        bytes.extend(vec![0; length]);
        bytes
    }

    #[test]
    fn what_many_flows_keep_is_counted_and_bounded() {
        let pool = Pool::new();
        let mut watches = Vec::new();
        for _ in 0..4096 {
            let mut watch = Watch::new(expected("api.example.com"), pool.weight());
            assert_eq!(watch.look(include_bytes!("sniff/hellos/go.bin")), Seen::Pass);
            assert_eq!(pool.waiting() % (15_000 + 4), 0, "a hello that has passed is not kept");
            match watch.look(&endless(15_000)) {
                Seen::Pass => watches.push(watch),
                refused => {
                    assert_eq!(refused, Seen::Refuse("too much waits to be looked at".to_owned()));
                    break;
                }
            }
        }
        assert!((1000..1200).contains(&watches.len()), "{}", watches.len());
        assert_eq!(pool.waiting(), watches.len() * (15_000 + 4));
        drop(watches);
        assert_eq!(pool.waiting(), 0);
    }

    #[test]
    fn what_a_first_hello_keeps_is_counted_too() {
        let pool = Pool::new();
        let mut watch = Watch::new(expected("api.example.com"), pool.weight());
        assert_eq!(watch.look(&endless(15_000)), Seen::Hold);
        assert_eq!(pool.waiting(), 15_004);
        drop(watch);
        assert_eq!(pool.waiting(), 0);
    }
}
