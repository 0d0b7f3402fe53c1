use super::*;
use hickory_proto::op::{Edns, Message, MessageType, OpCode, Query as Wire, ResponseCode};
use hickory_proto::rr::rdata::opt::{EdnsCode, EdnsOption};
use hickory_proto::rr::{DNSClass, Name, RData, RecordType};
use proptest::prelude::*;
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

const ADDRESS: Ipv4Addr = Ipv4Addr::new(198, 18, 1, 1);

fn question(name: &str, kind: RecordType) -> Message {
    let mut message = Message::new(0x1234, MessageType::Query, OpCode::Query);
    message.metadata.recursion_desired = true;
    message.add_query(Wire::query(Name::from_ascii(name).unwrap(), kind));
    message
}

fn with_edns(mut message: Message, payload: u16) -> Message {
    let mut edns = Edns::new();
    edns.set_max_payload(payload).set_dnssec_ok(true);
    message.set_edns(edns);
    message
}

fn ask(message: &Message, answer: &Answer) -> Message {
    ask_over(message, answer, Transport::Udp)
}

fn ask_over(message: &Message, found: &Answer, transport: Transport) -> Message {
    let bytes = answer(&message.to_vec().unwrap(), transport, &mut |_| found.clone()).unwrap();
    Message::from_vec(&bytes).unwrap()
}

fn host() -> Answer {
    Answer::Host { v4: Some(ADDRESS), v6: None }
}

fn code(bytes: &[u8]) -> ResponseCode {
    let reply = answer(bytes, Transport::Udp, &mut |_| panic!("nothing to look up")).unwrap();
    Message::from_vec(&reply).unwrap().metadata.response_code
}

fn extended_error(message: &Message) -> Option<(u16, String)> {
    let option = message.edns.as_ref()?.option(EdnsCode::from(15))?;
    let EdnsOption::Unknown(15, bytes) = option else { panic!("{option:?}") };
    let (code, text) = bytes.split_at(2);
    Some((u16::from_be_bytes([code[0], code[1]]), String::from_utf8(text.to_vec()).unwrap()))
}

#[test]
fn an_address_is_answered_for_a_question_in_its_own_case() {
    let asked = question("aPi.ExAmPlE.com.", RecordType::A);

    let reply = ask(&asked, &host());

    assert_eq!(reply.metadata.response_code, ResponseCode::NoError);
    assert!(reply.metadata.recursion_available && reply.metadata.recursion_desired);
    assert!(reply.queries[0].name().eq_case(asked.queries[0].name()));
    assert!(reply.answers[0].name.eq_case(asked.queries[0].name()));
    assert_eq!((&reply.answers[0].data, reply.answers[0].ttl), (&RData::A(ADDRESS.into()), TTL));
    assert!(reply.edns.is_none());
}

#[test]
fn an_allowed_name_has_nothing_but_its_address() {
    use RecordType as R;
    for kind in
        [R::AAAA, R::HTTPS, R::SVCB, R::TXT, R::MX, R::NS, R::ANY, R::SRV, R::CNAME, R::SOA, R::Unknown(4321)]
    {
        let reply = ask(&question("api.example.com.", kind), &host());

        assert_eq!((reply.metadata.response_code, reply.answers.len()), (ResponseCode::NoError, 0), "{kind}");
        assert_eq!(
            (reply.authorities[0].record_type(), reply.authorities[0].ttl),
            (R::SOA, NEGATIVE_TTL),
            "{kind}"
        );
    }
}

#[test]
fn a_denied_name_is_no_name_and_says_why_where_the_client_can_hear_it() {
    let why = "no rule names evil.example; hint: airlock allow - evil.example";

    let plain = ask(&question("evil.example.", RecordType::A), &Answer::Denied(why.to_owned()));
    let edns =
        ask(&with_edns(question("evil.example.", RecordType::A), 1232), &Answer::Denied(why.to_owned()));

    assert_eq!(plain.metadata.response_code, ResponseCode::NXDomain);
    assert_eq!((extended_error(&plain), plain.authorities.len()), (None, 1));
    assert_eq!(edns.metadata.response_code, ResponseCode::NXDomain);
    assert_eq!(extended_error(&edns), Some((15, why.to_owned())));
    assert!(edns.edns.unwrap().flags().dnssec_ok);
}

#[test]
fn a_failure_is_one_that_may_be_asked_again() {
    let reply =
        ask(&with_edns(question("a.example.", RecordType::A), 512), &Answer::Failed("full".to_owned()));
    assert_eq!(
        (reply.metadata.response_code, extended_error(&reply)),
        (ResponseCode::ServFail, Some((0, "full".to_owned())))
    );
}

#[test]
fn an_address_of_ours_has_a_name() {
    let reply = ask(
        &question("1.1.18.198.in-addr.arpa.", RecordType::PTR),
        &Answer::Pointer("api.example.com".to_owned()),
    );
    let RData::PTR(name) = &reply.answers[0].data else { panic!("{reply:?}") };
    assert_eq!(name.0.to_ascii(), "api.example.com.");
}

#[test]
fn what_a_question_is_about_is_read_from_its_labels() {
    let subject = |labels: &[&[u8]]| {
        let mut bytes = vec![0, 1, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
        for label in labels {
            bytes.push(u8::try_from(label.len()).unwrap());
            bytes.extend_from_slice(label);
        }
        bytes.extend_from_slice(&[0, 0, 1, 0, 1]);
        Query::read(&bytes, Transport::Udp).unwrap().subject()
    };
    assert_eq!(subject(&[b"WWW", b"Example", b"COM"]), Subject::Name("www.example.com".to_owned()));
    assert_eq!(subject(&[b"_ldap", b"_tcp", b"x"]), Subject::Name("_ldap._tcp.x".to_owned()));
    assert_eq!(subject(&[b"evil.example", b"com"]), Subject::Other("evil\\.example.com.".to_owned()));
    assert_eq!(subject(&[b"evil\0", b"com"]), Subject::Other("evil\\000.com.".to_owned()));
    assert_eq!(subject(&["\u{fc}".as_bytes(), b"com"]), Subject::Other("\\195\\188.com.".to_owned()));
    assert_eq!(subject(&[]), Subject::Other(".".to_owned()));
    assert_eq!(
        subject(&[b"1", b"2", b"18", b"198", b"In-Addr", b"arpa"]),
        Subject::Address("198.18.2.1".parse().unwrap())
    );
    assert_eq!(
        subject(&[b"18", b"198", b"in-addr", b"arpa"]),
        Subject::Name("18.198.in-addr.arpa".to_owned())
    );
}

#[test]
fn a_question_of_another_kind_is_refused_without_being_looked_up() {
    let mut chaos = question("version.bind.", RecordType::TXT);
    chaos.queries[0].set_query_class(DNSClass::CH);
    assert_eq!(code(&chaos.to_vec().unwrap()), ResponseCode::Refused);
    assert_eq!(code(&question("a.example.", RecordType::AXFR).to_vec().unwrap()), ResponseCode::Refused);
    assert_eq!(code(&question("a.example.", RecordType::OPT).to_vec().unwrap()), ResponseCode::FormErr);

    let mut update = question("a.example.", RecordType::A);
    update.metadata.op_code = OpCode::Update;
    assert_eq!(code(&update.to_vec().unwrap()), ResponseCode::NotImp);

    let mut two = question("a.example.", RecordType::A);
    two.add_query(two.queries[0].clone());
    assert_eq!(code(&two.to_vec().unwrap()), ResponseCode::FormErr);

    let mut none = question("a.example.", RecordType::A);
    none.queries.clear();
    assert_eq!(code(&none.to_vec().unwrap()), ResponseCode::FormErr);

    let mut padded = question("a.example.", RecordType::A).to_vec().unwrap();
    padded.resize(5000, 0);
    assert_eq!(code(&padded), ResponseCode::FormErr);

    let mut future = with_edns(question("a.example.", RecordType::A), 1232);
    future.edns.as_mut().unwrap().set_version(1);
    assert_eq!(code(&future.to_vec().unwrap()), ResponseCode::from(1, 0));
}

#[test]
fn an_answer_is_not_answered() {
    let mut reply = question("a.example.", RecordType::A);
    reply.metadata.message_type = MessageType::Response;
    assert_eq!(answer(&reply.to_vec().unwrap(), Transport::Udp, &mut |_| host()), None);
    assert_eq!(answer(&[0; 11], Transport::Udp, &mut |_| host()), None);
}

#[test]
fn an_answer_fits_what_the_client_can_receive() {
    let label = "a".repeat(63);
    let longest = format!("{label}.{label}.{label}.{}.", "a".repeat(60));
    let denied = Answer::Denied("x".repeat(500));
    let asked = with_edns(question(&longest, RecordType::A), 512);

    let over_udp = ask(&asked, &denied);
    let over_tcp = ask_over(&asked, &denied, Transport::Tcp);
    let pointer = ask(&question("1.1.18.198.in-addr.arpa.", RecordType::PTR), &Answer::Pointer(longest));

    assert!(over_udp.to_vec().unwrap().len() <= 512);
    assert_eq!((over_udp.metadata.response_code, extended_error(&over_udp)), (ResponseCode::NXDomain, None));
    assert_eq!(extended_error(&over_tcp).unwrap().1.len(), 240);
    assert_eq!((pointer.answers.len(), pointer.metadata.truncation), (1, false));
}

#[test]
fn what_does_not_fit_at_all_is_truncated() {
    let query =
        Query::read(&question("a.example.", RecordType::A).to_vec().unwrap(), Transport::Udp).unwrap();
    let cut = Message::from_vec(&reply::fitting(query.message(&host()), 20)).unwrap();
    assert_eq!((cut.metadata.truncation, cut.answers.len(), cut.queries.len()), (true, 0, 1));
}

#[test]
fn pointers_in_a_question_do_not_cost_time() {
    // A name made of pointers, each to the one before it.
    let mut bytes = vec![0, 1, 1, 0, 0, 1, 0, 0, 0, 0, 0, 1];
    for step in 0_u16..2000 {
        let at = 0xc000 | (10 + step * 2).min(0x3fff);
        bytes.extend_from_slice(&at.to_be_bytes());
    }
    let began = Instant::now();
    for _ in 0..100 {
        _ = answer(&bytes, Transport::Udp, &mut |_| host());
    }
    assert!(began.elapsed() < Duration::from_millis(100), "{:?} for 100", began.elapsed());
}

fn hostile() -> impl Strategy<Value = Vec<u8>> {
    let noise = prop::collection::vec(any::<u8>(), 0..600);
    let headed = (any::<u16>(), prop::collection::vec(any::<u8>(), 0..300), 0..3_u8, 0..4_u8).prop_map(
        |(id, rest, count, more)| {
            let mut bytes = id.to_be_bytes().to_vec();
            bytes.extend_from_slice(&[1, 0, 0, count, 0, 0, 0, 0, 0, more]);
            bytes.extend(rest);
            bytes
        },
    );
    let broken = (prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6), any::<bool>())
        .prop_map(|(hits, edns)| {
            let plain = question("some.Name.example.com.", RecordType::A);
            let mut bytes = if edns { with_edns(plain, 700) } else { plain }.to_vec().unwrap();
            for (at, byte) in hits {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
            bytes
        });
    prop_oneof![noise, headed, broken]
}

proptest! {
    #[test]
    fn whatever_comes_is_answered_well_or_not_at_all(bytes in hostile(), tcp in any::<bool>(), denied in any::<bool>()) {
        let transport = if tcp { Transport::Tcp } else { Transport::Udp };
        let found = if denied { Answer::Denied("no rule".repeat(60)) } else { host() };
        if let Some(reply) = answer(&bytes, transport, &mut |_| found.clone()) {
            let message = Message::from_vec(&reply).unwrap();
            prop_assert_eq!(message.metadata.message_type, MessageType::Response);
            prop_assert_eq!(&reply[..2], &bytes[..2]);
            prop_assert!(tcp || reply.len() <= 1232);
            prop_assert!(message.answers.len() <= 1);
        }
    }

    #[test]
    fn every_well_formed_name_comes_back_as_it_was(labels in prop::collection::vec("[a-zA-Z0-9_-]{1,20}", 1..8)) {
        let name = labels.join(".");
        let mut asked = question(".", RecordType::A);
        asked.queries[0].set_name(Name::from_labels(labels.iter().map(|label| label.as_bytes())).unwrap());
        let asked = asked.to_vec().unwrap();
        let query = Query::read(&asked, Transport::Udp).unwrap();
        if !matches!(query.subject(), Subject::Address(_)) {
            prop_assert_eq!(query.subject(), Subject::Name(name.to_ascii_lowercase()));
        }
        let reply = query.reply(&host());
        prop_assert_eq!(&reply[12..asked.len()], &asked[12..], "the question is echoed byte for byte");
    }
}
