//! What is fed. Secrets have theirs beside them.

use super::{cut, run};
use crate::{
    dns::{Answer, Transport, answer},
    http::raw::{Follower, Look, head},
    sniff::{Sniffed, Sniffer},
};
use airlock_gate::policy::{parse_markdown, parse_toml};

/// What of a connection goes on, and why no more of it. Of two faults in a head the one that is seen first is told, which may be
/// the other one where a head is looked at in pieces.
fn followed(pieces: &[&[u8]]) -> (Vec<u8>, String) {
    let (mut follower, mut passed) = (Follower::default(), Vec::new());
    for piece in pieces {
        let mut rest = *piece;
        while !rest.is_empty() {
            let taken = match follower.look(rest) {
                Look::Pass(taken) => {
                    assert!(taken > 0, "nothing was taken");
                    passed.extend_from_slice(&rest[..taken]);
                    taken
                }
                Look::Hold => rest.len(),
                Look::Head(taken, head) => {
                    passed.extend(head);
                    taken
                }
                Look::Wait => {
                    follower.answered(false);
                    0
                }
                Look::Bad(bad) => return (passed, bad.why),
                Look::BadBody(why) => return (passed, why.to_owned()),
            };
            rest = &rest[taken..];
        }
    }
    (passed, "open".to_owned())
}

#[test]
fn requests_are_followed_the_same_however_they_are_cut() {
    let seeds: [&[u8]; 5] = [
        b"GET / HTTP/1.1\r\nhost: a.test\r\n\r\n",
        b"POST /x HTTP/1.1\r\nhost: a.test\r\ncontent-length: 5\r\n\r\nhelloGET / HTTP/1.1\r\nhost: a\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nx-end: 1\r\n\r\nGET /2 HTTP/1.1\r\n\r\n",
        b"GET /chat HTTP/1.1\r\nhost: a\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\nGET / HTTP/1.1\r\n\r\n",
        b"CONNECT a.test:443 HTTP/1.1\r\nhost: a.test:443\r\n\r\n",
    ];
    run(&seeds, |input| {
        let whole = followed(&[input]);
        let (first, second) = cut(input);
        let bytes: Vec<&[u8]> = input.chunks(1).collect();
        for pieces in [&[first, second][..], &bytes] {
            let (passed, why) = followed(pieces);
            assert_eq!(why == "open", whole.1 == "open");
            // Of a body that turns out to be bad, more has gone on the smaller its pieces are; never past the fault.
            match why == "open" {
                true => assert_eq!(passed, whole.0),
                false => assert!(passed.starts_with(&whole.0) && input.starts_with(&passed)),
            }
        }
        assert!(input.starts_with(&whole.0), "what goes on is not what came");
        format!("{} {}", whole.1, whole.0.len() / 16)
    });
}

#[test]
fn a_head_that_is_taken_says_one_thing_about_its_end() {
    let seeds: [&[u8]; 3] = [
        b"GET / HTTP/1.1\r\nhost: a.test\r\n\r\n",
        b"POST / HTTP/1.0\r\nContent-Length: 10\r\nA: b\r\n\r\n",
        b"PUT /a%2fb?x=y HTTP/1.1\r\nTransfer-Encoding: chunked\r\nHost: [::1]:80\r\n\r\n",
    ];
    run(&seeds, |input| {
        let follows = head(input);
        if follows.is_ok() {
            let text = input.to_ascii_lowercase();
            let count = |name: &[u8]| text.windows(name.len()).filter(|window| *window == name).count();
            assert!(count(b"\ncontent-length:") + count(b"\ntransfer-encoding:") <= 1);
            assert!(!input.contains(&0), "a NUL in a head");
        }
        match follows {
            Ok(follows) => format!("{follows:?}").chars().filter(|letter| !letter.is_ascii_digit()).collect(),
            Err(bad) => bad.why,
        }
    });
}

#[test]
fn a_hello_is_read_the_same_however_it_is_cut() {
    let hello = hello("api.example.com");
    let seeds: [&[u8]; 4] = [&hello, &hello[..40], b"SSH-2.0-x\r\n", b"\x80\x2e\x01\x03\x01"];
    let read = |pieces: &[&[u8]]| {
        let mut sniffer = Sniffer::new();
        let mut said = Sniffed::NeedMore;
        for piece in pieces {
            if said == Sniffed::NeedMore && !piece.is_empty() {
                said = sniffer.push(piece);
            }
        }
        said
    };
    run(&seeds, |input| {
        let whole = read(&[input]);
        let (first, second) = cut(input);
        assert_eq!(read(&[first, second]), whole);
        match whole {
            Sniffed::Hello(hello) => format!("{hello:?}").chars().filter(char::is_ascii_uppercase).collect(),
            other => format!("{other:?}"),
        }
    });
}

/// A `ClientHello` with a host name, made by the library that clients use.
fn hello(name: &str) -> Vec<u8> {
    let name = tokio_rustls::rustls::pki_types::ServerName::try_from(name.to_owned()).unwrap();
    let config = tokio_rustls::rustls::ClientConfig::builder()
        .with_root_certificates(tokio_rustls::rustls::RootCertStore::empty())
        .with_no_client_auth();
    let mut client = tokio_rustls::rustls::ClientConnection::new(config.into(), name).unwrap();
    let mut hello = Vec::new();
    client.write_tls(&mut hello).unwrap();
    hello
}

#[test]
fn any_question_has_an_answer_of_its_own_or_none() {
    let question = |name: &[u8], kind: u8, more: &[u8]| {
        let head = [0x12, 0x34, 1, 0, 0, 1, 0, 0, 0, 0, 0, u8::from(!more.is_empty())];
        [&head, name, &[0, kind, 0, 1], more].concat()
    };
    let edns = [0, 0, 41, 4, 208, 0, 0, 0, 0, 0, 0];
    let seeds = [
        question(b"\x03api\x07example\x00", 1, &[]),
        question(b"\x03API\x07example\x00", 28, &edns),
        question(b"\x011\x010\x0218\x03198\x07in-addr\x04arpa\x00", 12, &[]),
        question(b"\xc0\x0c", 255, &[]),
    ];
    run(&seeds.each_ref().map(Vec::as_slice), |input| {
        let mut look = |query: &crate::dns::Query| match query.is_for_address() {
            true => Answer::Host { v4: Some([198, 18, 0, 1].into()), v6: None },
            false => Answer::Denied(query.name()),
        };
        let Some(reply) = answer(input, Transport::Udp, &mut look) else { return "silence".to_owned() };
        assert_eq!(reply.get(..2), input.get(..2), "the answer to another question");
        assert!(reply[2] & 0x80 != 0 && reply.len() <= 4096, "no answer");
        format!("{} {} {}", reply[3] & 15, reply[7], reply.len() / 32)
    });
}

#[test]
fn any_policy_is_read_or_refused_with_a_place() {
    let seeds: [&[u8]; 4] = [
        b"[[rule]]\nallow = \"a.test\"\nports = [443]\nmethods = [\"GET\"]\npaths = [\"/v1/**\"]\nexamples = [\"GET https://a.test/v1/x\"]\n",
        b"[groups]\nmine = [\"*.a.test\", \"10.0.0.0/8\"]\n[[rule]]\nask = [\"@mine\"]\nrate = \"60/m\"\nbytes = \"1M\"\nquery = { a = \"b*\" }\n",
        b"[[rule]]\nallow = \"git.test\"\ngit = \"push\"\nrepositories = [\"acme/*\"]\npins = [\"sha256/AAAA\"]\nprivate = [\"10.20.0.0/16\"]\n",
        b"---\ndomains:\n  - a.test\n  - '*.b.test'\n---\n# text\n",
    ];
    run(&seeds, |input| {
        let text = String::from_utf8_lossy(input);
        let told =
            |read: Result<airlock_gate::policy::PolicyFile, airlock_gate::policy::BadPolicy>| match read {
                Ok(file) => format!("{} rules", file.policy.rules.len()),
                Err(bad) => {
                    assert!(!bad.to_string().is_empty());
                    bad.what.chars().filter(|letter| letter.is_ascii_lowercase()).take(24).collect()
                }
            };
        format!("{} {}", told(parse_toml("airlock.toml", &text)), told(parse_markdown("policy.md", &text)))
    });
}
