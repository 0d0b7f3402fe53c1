use super::*;
use proptest::prelude::*;

/// A `ClientHello` as records, and where in it the name stands.
fn hello_with(extensions: &[(u16, Vec<u8>)]) -> Vec<u8> {
    let mut body = vec![3, 3];
    body.extend([7; 32]);
    body.push(0);
    body.extend([0, 2, 0x13, 0x01, 1, 0]);
    let mut list = Vec::new();
    for (kind, data) in extensions {
        list.extend(kind.to_be_bytes());
        list.extend(u16::try_from(data.len()).unwrap().to_be_bytes());
        list.extend(data);
    }
    body.extend(u16::try_from(list.len()).unwrap().to_be_bytes());
    body.extend(list);
    let length = u32::try_from(body.len()).unwrap().to_be_bytes();
    let mut message = vec![1, length[1], length[2], length[3]];
    message.extend(body);
    message
}

fn name(host: &[u8]) -> (u16, Vec<u8>) {
    (0, names(&[(0, host)]))
}

fn names(entries: &[(u8, &[u8])]) -> Vec<u8> {
    let mut list = Vec::new();
    for (kind, host) in entries {
        list.push(*kind);
        list.extend(u16::try_from(host.len()).unwrap().to_be_bytes());
        list.extend(*host);
    }
    let mut data = u16::try_from(list.len()).unwrap().to_be_bytes().to_vec();
    data.extend(list);
    data
}

/// `message` in records of at most `size` bytes.
fn records(message: &[u8], size: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    for piece in message.chunks(size) {
        bytes.extend([22, 3, 1]);
        bytes.extend(u16::try_from(piece.len()).unwrap().to_be_bytes());
        bytes.extend(piece);
    }
    bytes
}

fn sniff(bytes: &[u8]) -> Sniffed {
    Sniffer::new().push(bytes)
}

fn of(sni: &str) -> Sniffed {
    Sniffed::Hello(Hello { sni: Some(sni.to_owned()), ..Hello::default() })
}

fn malformed(message: &[u8]) -> &'static str {
    match sniff(&records(message, 9000)) {
        Sniffed::Malformed(why) => why,
        other => panic!("taken for {other:?}"),
    }
}

#[test]
fn the_hellos_of_real_clients_are_read() {
    let h2: Vec<Vec<u8>> = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    let read = |bytes: &[u8]| match sniff(bytes) {
        Sniffed::Hello(hello) => (hello.sni.unwrap_or_default(), hello.alpn, hello.ech),
        other => panic!("taken for {other:?}"),
    };

    let api = "api.example.com".to_owned();
    assert_eq!(read(include_bytes!("hellos/openssl-tls13.bin")), (api.clone(), h2.clone(), false));
    assert_eq!(read(include_bytes!("hellos/openssl-tls12.bin")), (api.clone(), vec![], false));
    assert_eq!(read(include_bytes!("hellos/openssl-no-sni.bin")), (String::new(), vec![], false));
    assert_eq!(read(include_bytes!("hellos/curl.bin")), (api.clone(), h2.clone(), false));
    assert_eq!(read(include_bytes!("hellos/python.bin")), (api.clone(), vec![], false));
    assert_eq!(read(include_bytes!("hellos/node.bin")), (api.clone(), vec![], false));
    assert_eq!(read(include_bytes!("hellos/go.bin")), (api, h2, false));
    assert_eq!(read(include_bytes!("hellos/wget.bin")), ("localhost".to_owned(), vec![], false));
}

#[test]
fn a_real_hello_is_the_same_at_every_cut() {
    let whole = include_bytes!("hellos/go.bin");
    for cut in 1..whole.len() {
        let mut sniffer = Sniffer::new();
        assert_eq!(sniffer.push(&whole[..cut]), Sniffed::NeedMore, "at {cut}");
        assert_eq!(sniffer.push(&whole[cut..]), sniff(whole), "at {cut}");
    }
}

#[test]
fn protocols_that_are_not_tls_are_told_by_their_first_bytes() {
    for first in
        [b"GET / HTTP/1.1".as_slice(), b"SSH-2.0", b"\x00\x00\x00\x08\x04\xd2\x16\x2f", b"\x16\x02", b"\0"]
    {
        assert_eq!(sniff(first), Sniffed::NotTls, "{first:?}");
    }
    // A MySQL client's answer to the server's greeting has such a length.
    assert_eq!(sniff(b"\xb6\x00\x00\x01\x85"), Sniffed::NotTls);
}

#[test]
fn the_hello_of_sslv2_is_refused() {
    assert_eq!(sniff(&[0x80, 0x2e, 1, 3, 1, 0]), Sniffed::Malformed("the hello has the form of SSLv2"));
    assert_eq!(sniff(&[0x80, 0x2e, 1, 0, 2, 0]), Sniffed::Malformed("the hello has the form of SSLv2"));
    assert_eq!(sniff(&[0x80, 0x2e, 1]), Sniffed::NeedMore);
}

#[test]
fn a_record_of_another_kind_before_the_hello_is_refused() {
    let mut bytes = vec![21, 3, 1, 0, 2, 1, 0];
    bytes.extend(records(&hello_with(&[name(b"a.test")]), 9000));
    assert_eq!(sniff(&bytes), Sniffed::Malformed("a TLS record of another kind comes first"));
}

#[test]
fn a_record_of_another_kind_inside_the_hello_is_refused() {
    let message = hello_with(&[name(b"a.test")]);
    let mut bytes = records(&message[..20], 20);
    bytes.extend([20, 3, 3, 0, 1, 1]);
    bytes.extend(records(&message[20..], 9000));
    assert_eq!(sniff(&bytes), Sniffed::Malformed("another record comes before the end of the ClientHello"));
}

#[test]
fn an_empty_record_is_refused() {
    assert_eq!(sniff(&[22, 3, 1, 0, 0]), Sniffed::Malformed("the record has a length that is not allowed"));
}

#[test]
fn a_name_is_given_once() {
    assert_eq!(malformed(&hello_with(&[name(b"a.test"), name(b"b.test")])), "an extension is given twice");
    let two = (0, names(&[(0, b"a.test"), (0, b"b.test")]));
    assert_eq!(malformed(&hello_with(&[two])), "more than one server name is given");
}

#[test]
fn any_extension_given_twice_is_refused() {
    assert_eq!(
        malformed(&hello_with(&[(43, vec![]), name(b"a.test"), (43, vec![])])),
        "an extension is given twice"
    );
}

#[test]
fn a_name_of_other_than_printable_ascii_is_refused() {
    for host in [b"a\0.test".as_slice(), b"a b", b"\xc3\xa4.test", b""] {
        assert_eq!(malformed(&hello_with(&[name(host)])), "the server name is no host name", "{host:?}");
    }
}

#[test]
fn a_name_of_another_kind_is_refused() {
    assert_eq!(
        malformed(&hello_with(&[(0, names(&[(1, b"a.test")]))])),
        "the server name is of an unknown kind"
    );
}

#[test]
fn bytes_behind_the_hello_in_its_record_are_refused() {
    let mut message = hello_with(&[name(b"a.test")]);
    message.push(0);
    assert_eq!(malformed(&message), "something follows the ClientHello in its record");
}

#[test]
fn an_encrypted_hello_is_told() {
    for kind in [0xfe0d, 0xffce] {
        let Sniffed::Hello(hello) =
            sniff(&records(&hello_with(&[name(b"a.test"), (kind, vec![0, 1])]), 9000))
        else {
            panic!("not taken for a hello");
        };
        assert!(hello.ech);
    }
}

#[test]
fn a_hello_that_never_ends_is_refused_at_the_bound() {
    let mut sniffer = Sniffer::new();
    let mut message = vec![1, 0, 0xff, 0xff];
    message.extend(vec![0; 70_000]);
    let mut pushed = 0;
    for piece in records(&message, 1).chunks(1000) {
        pushed += piece.len();
        match sniffer.push(piece) {
            Sniffed::NeedMore => assert!(pushed <= HELLO_MAX),
            other => {
                assert_eq!(other, Sniffed::Malformed("the ClientHello is too long"));
                return;
            }
        }
    }
    panic!("it was never refused");
}

#[test]
fn a_second_hello_that_names_another_host_is_refused() {
    let first = Hello { sni: Some("a.test".to_owned()), ..Hello::default() };
    let ccs = [20, 3, 3, 0, 1, 1];

    let mut same = ccs.to_vec();
    same.extend(records(&hello_with(&[name(b"a.test")]), 40));
    assert_eq!(Second::new(first.clone()).look(&same), Further::Over);

    let mut other = ccs.to_vec();
    other.extend(records(&hello_with(&[name(b"b.test")]), 40));
    let mut second = Second::new(first);
    let mut answer = Further::Watch;
    for byte in other {
        assert_eq!(answer, Further::Watch);
        answer = second.look(&[byte]);
    }
    assert_eq!(answer, Further::Refuse("the second ClientHello names another host than the first"));
}

#[test]
fn a_hello_is_kept_once_and_not_beyond_its_end() {
    let bytes = records(&hello_with(&[name(b"a.test"), (21, vec![0; 40_000])]), 900);
    let mut sniffer = Sniffer::new();
    let (most, last) = bytes.split_at(bytes.len() - 1);
    for (at, piece) in most.chunks(700).enumerate() {
        assert_eq!(sniffer.push(piece), Sniffed::NeedMore);
        assert!(sniffer.held() <= 700 * (at + 1), "{} at {at}", sniffer.held());
    }
    assert_eq!(sniffer.push(last), of("a.test"));
    assert_eq!(sniffer.held(), 0);
}

#[test]
fn a_second_hello_that_never_ends_is_refused_early() {
    let mut second = Second::new(Hello { alpn: vec![vec![0]; 1000], ..Hello::default() });
    let mut message = vec![1, 0, 0xff, 0];
    message.extend(vec![0; 60_000]);
    for piece in records(&message, 100).chunks(1000) {
        match second.look(piece) {
            Further::Watch => assert!(second.held() <= 16 * 1024, "{}", second.held()),
            other => return assert_eq!(other, Further::Refuse("the ClientHello is too long")),
        }
    }
    panic!("it was never refused");
}

#[test]
fn the_watch_ends_with_the_first_encrypted_record() {
    let first = Hello { sni: Some("a.test".to_owned()), ..Hello::default() };
    assert_eq!(Second::new(first.clone()).look(&[20, 3, 3, 0, 1, 1, 23, 3, 3, 0, 50]), Further::Over);
    assert_eq!(Second::new(first).look(&[22, 3, 3, 0, 50, 16]), Further::Over);
}

#[test]
fn early_data_do_not_hide_a_second_hello() {
    let first = Hello { sni: Some("a.test".to_owned()), early: true, ..Hello::default() };
    let mut bytes = vec![23, 3, 3, 0, 3, 1, 2, 3];
    bytes.extend(records(&hello_with(&[name(b"b.test")]), 9000));
    assert_eq!(
        Second::new(first).look(&bytes),
        Further::Refuse("the second ClientHello names another host than the first")
    );
}

proptest! {
    #[test]
    fn every_cut_into_records_and_segments_reads_the_same(
        host in "[a-z]{1,20}\\.[a-z]{1,20}",
        padding in 0usize..3000,
        record in 1usize..600,
        cuts in prop::collection::vec(1usize..400, 0..60),
    ) {
        let bytes = records(&hello_with(&[(21, vec![0; padding]), name(host.as_bytes())]), record);
        let mut sniffer = Sniffer::new();
        let mut rest = bytes.as_slice();
        for cut in cuts {
            if cut >= rest.len() { break; }
            let (piece, after) = rest.split_at(cut);
            prop_assert_eq!(sniffer.push(piece), Sniffed::NeedMore);
            rest = after;
        }
        prop_assert_eq!(sniffer.push(rest), of(&host));
        prop_assert_eq!((sniffer.behind(), sniffer.held()), (&[][..], 0));
    }

    #[test]
    fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..3000), cut in 0usize..3000) {
        let mut sniffer = Sniffer::new();
        let (a, b) = bytes.split_at(cut.min(bytes.len()));
        if sniffer.push(a) == Sniffed::NeedMore { sniffer.push(b); }
        Second::new(Hello::default()).look(&bytes);
    }

    #[test]
    fn random_bodies_of_a_hello_never_panic(body in prop::collection::vec(any::<u8>(), 0..3000)) {
        let length = u32::try_from(body.len()).unwrap().to_be_bytes();
        let mut message = vec![1, length[1], length[2], length[3]];
        message.extend(body);
        let _ = sniff(&records(&message, 9000));
    }

    #[test]
    fn one_changed_byte_never_yields_a_name_that_was_not_written(at in 0usize..400, to in any::<u8>()) {
        let mut bytes = include_bytes!("hellos/openssl-tls13.bin").to_vec();
        let place = bytes.windows(15).position(|piece| piece == b"api.example.com").unwrap();
        let at = at.min(bytes.len() - 1);
        bytes[at] = to;
        let written = bytes[place..place + 15].to_vec();
        if let Sniffed::Hello(Hello { sni: Some(sni), .. }) = sniff(&bytes) {
            prop_assert_eq!(sni.into_bytes(), written);
        }
    }
}
