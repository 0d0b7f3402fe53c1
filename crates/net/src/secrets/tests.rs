//! One request and its answer through the guard, without a network.

use super::{decode::tests::encoded, frames::tests::frame, *};
use crate::tests::setup;
use airlock_gate::{Reason, Setup, secrets::Secrets};
use airlock_protocol::{
    ledger::{Crossing, Entry},
    policy::{Origin, Policy, Ports, Rule, Verdict},
    secret::{From, Secret, Values},
};
use hyper::body::Bytes;
use proptest::prelude::*;
use std::time::Duration;

pub(super) const PLACEHOLDER: &str = "sk-ant-api03-0123456789abcdefABCDEFplaceholder00";
pub(super) const VALUE: &str = "sk-ant-api03-Real/Value+With=Symbols\"&'<>~9x1Zq7";

/// A gate that lets everything through that these tests send, and its ledger.
pub(super) struct World {
    pub(super) gate: Rc<Gate>,
    pub(super) guard: Guard,
    folder: tempfile::TempDir,
}

pub(super) fn secret(name: &str, placeholder: &str, places: &[Place]) -> Secret {
    Secret {
        name: name.into(),
        from: From::Env(name.into()),
        placeholder: placeholder.into(),
        hosts: vec!["api.example.com".into(), "*.example.net".into()],
        methods: Vec::new(),
        paths: Vec::new(),
        places: places.to_vec(),
        use_as: Use::Plain,
    }
}

impl World {
    pub(super) fn new(secrets: &[Secret], values: &[(&str, &str)]) -> World {
        World::fetching(secrets, values, oauth::Tokens::default())
    }

    pub(super) fn fetching(secrets: &[Secret], values: &[(&str, &str)], tokens: oauth::Tokens) -> World {
        let values =
            Values(values.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect());
        let folder = tempfile::tempdir().unwrap();
        let hosts = vec!["*".to_owned()];
        let rule = Rule::new(
            Verdict::Allow,
            hosts,
            vec![Ports { first: 1, last: 65535 }],
            Origin { from: "test".into(), line: 0 },
        );
        let policy = Policy { rules: vec![rule], ..Policy::default() };
        let gate = Gate::new(Setup {
            ask_timeout: Duration::from_secs(1),
            can_open: true,
            secrets: Secrets::new(secrets, &values).unwrap(),
            ..setup(folder.path(), policy)
        });
        let gate = Rc::new(gate.unwrap());
        World { guard: Guard::with(gate.clone(), tokens), gate, folder }
    }

    /// With one secret, which may stand in these places.
    pub(super) fn with(places: &[Place]) -> World {
        World::new(&[secret("KEY", PLACEHOLDER, places)], &[("KEY", VALUE)])
    }

    /// What the ledger has: crossings, whether they were allowed, and why not.
    pub(super) fn ledger(&self) -> Vec<(String, Option<String>)> {
        let text = std::fs::read_to_string(self.folder.path().join("ledger.jsonl")).unwrap_or_default();
        assert!(!text.contains("Real") && !text.contains("UmVhbC9WYWx1Z"), "{text}");
        let records =
            text.lines().map(|line| serde_json::from_str::<airlock_protocol::ledger::Record>(line).unwrap());
        records
            .filter_map(|record| match record.entry {
                Entry::Decision { crossing: Crossing::Reveal { secret, host, .. }, reason, .. } => {
                    Some((format!("{secret}@{host}"), reason))
                }
                _ => None,
            })
            .collect()
    }
}

pub(super) fn passing(host: &str, method: &str, path: &str) -> Passing {
    Passing {
        target: host.parse().unwrap(),
        port: 443,
        is_verified: true,
        method: method.into(),
        path: path.into(),
        rule: None,
        body: None,
    }
}

fn head(builder: http::request::Builder) -> asking::Parts {
    builder.body(()).unwrap().into_parts().0
}

fn answer(builder: http::response::Builder) -> answering::Parts {
    builder.body(()).unwrap().into_parts().0
}

fn denied<T>(result: Result<T, Stop>) -> String {
    match result {
        Err(Stop::Denied(denial)) => {
            assert_eq!(denial.reason, Reason::Secret);
            assert!(!denial.to_string().contains("Real"), "{denial}");
            denial.detail.unwrap_or_default()
        }
        Err(Stop::Failed(why)) => panic!("failed: {why}"),
        Err(Stop::Answered(_)) => panic!("answered here"),
        Ok(_) => panic!("it was let through"),
    }
}

/// Everything that comes out.
pub(super) fn through(change: &mut dyn Change, body: &[u8], chunk: usize) -> Result<Vec<u8>, Stop> {
    let mut out = Vec::new();
    for piece in body.chunks(chunk.max(1)) {
        out.extend_from_slice(&change.piece(Bytes::copy_from_slice(piece))?);
    }
    out.extend_from_slice(&change.end()?);
    Ok(out)
}

pub(super) fn block<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

impl World {
    /// Sends a head; gives it as it goes on, and what becomes of the body.
    fn send(
        &self,
        passing: &Passing,
        builder: http::request::Builder,
    ) -> Result<(asking::Parts, Box<dyn Change>), Stop> {
        let mut head = head(builder);
        let change = block(self.guard.request(passing, &mut head))?;
        Ok((head, change.unwrap()))
    }

    fn receive(
        &self,
        passing: &Passing,
        builder: http::response::Builder,
    ) -> Result<(answering::Parts, Option<Box<dyn Change>>), Stop> {
        let mut head = answer(builder);
        let change = block(self.guard.response(passing, &mut head))?;
        Ok((head, change))
    }
}

const HEADER: &[Place] = &[Place::Header, Place::Basic];

fn get(uri: &str) -> http::request::Builder {
    http::Request::get(uri)
}

#[test]
fn a_placeholder_in_a_header_becomes_the_value_after_the_ledger_has_it() {
    let world = World::with(HEADER);
    let passing = passing("api.example.com", "GET", "/v1/x");

    let (head, _) = world.send(&passing, get("/v1/x").header("x-api-key", PLACEHOLDER)).unwrap();

    assert_eq!(head.headers["x-api-key"].as_bytes(), VALUE.as_bytes());
    assert!(head.headers["x-api-key"].is_sensitive());
    assert_eq!(world.ledger(), [("KEY@api.example.com".to_owned(), None)]);
}

#[test]
fn a_placeholder_in_basic_credentials_becomes_the_value() {
    let world = World::with(HEADER);
    let passing = passing("a.example.net", "GET", "/");
    let credentials = data_encoding::BASE64.encode(format!("user:{PLACEHOLDER}").as_bytes());

    let (head, _) =
        world.send(&passing, get("/").header("authorization", format!("basic {credentials}"))).unwrap();

    let sent = head.headers["authorization"].to_str().unwrap().strip_prefix("Basic ").unwrap();
    assert_eq!(data_encoding::BASE64.decode(sent.as_bytes()).unwrap(), format!("user:{VALUE}").into_bytes());
}

#[test]
fn a_placeholder_in_the_query_goes_only_where_the_query_is_a_place() {
    let passing = passing("api.example.com", "GET", "/v1");
    let hidden = PLACEHOLDER.replace('s', "%73");
    for uri in [format!("/v1?a=1&key={PLACEHOLDER}&b=%20+"), format!("/v1?a=1&key={hidden}&b=%20+")] {
        let (head, _) = World::with(&[Place::Query]).send(&passing, get(&uri)).unwrap();
        let value = forms::Habit::STRICT.encode(VALUE.as_bytes());
        assert_eq!(head.uri.query().unwrap(), format!("a=1&key={value}&b=%20+"));

        let world = World::with(HEADER);
        assert!(denied(world.send(&passing, get(&uri))).contains("the query"));
        assert_eq!(world.ledger(), [("KEY@api.example.com".to_owned(), Some("secret".to_owned()))]);
    }
}

#[test]
fn a_placeholder_in_a_path_is_an_alarm_wherever_it_goes() {
    let world = World::with(&[Place::Header, Place::Query, Place::Body]);
    for path in [format!("/v1/{PLACEHOLDER}/x"), format!("/v1/{}", PLACEHOLDER.replace('-', "%2d"))] {
        let passing = passing("api.example.com", "GET", &path);
        assert!(denied(world.send(&passing, get(&path))).contains("the path"));
    }
}

#[test]
fn a_placeholder_on_its_way_to_another_host_is_an_alarm() {
    let world = World::with(&[Place::Header, Place::Basic, Place::Query, Place::Body]);
    for host in ["evil.test", "api.example.com.evil.test", "example.net"] {
        let passing = passing(host, "POST", "/");
        let sent = world.send(
            &passing,
            http::Request::post("/").header("authorization", format!("Bearer {PLACEHOLDER}")),
        );
        assert!(denied(sent).contains("not bound to this host"));
        let (_, mut change) = world.send(&passing, http::Request::post("/")).unwrap();
        let body = format!("{{\"stolen\": \"{PLACEHOLDER}\"}}");
        assert!(denied(through(&mut *change, body.as_bytes(), 1)).contains("not bound to this host"));
    }
    assert_eq!(world.ledger().len(), 6);
    assert!(world.ledger().iter().all(|(_, reason)| reason.as_deref() == Some("secret")));
}

#[test]
fn nothing_is_revealed_without_verified_tls() {
    let world = World::with(HEADER);
    let plain = Passing { is_verified: false, port: 80, ..passing("api.example.com", "GET", "/") };

    let sent = world.send(&plain, get("/").header("x-api-key", PLACEHOLDER));

    assert!(denied(sent).contains("verified TLS"));
}

#[test]
fn what_merely_begins_like_a_placeholder_passes() {
    let world = World::with(HEADER);
    let passing = passing("evil.test", "POST", "/");
    let mention = "keys begin with sk-ant-api03- and go on like sk-ant-api03-0123456789abcdef";

    let (head, mut change) =
        world.send(&passing, http::Request::post("/").header("x-note", mention)).unwrap();

    assert_eq!(head.headers["x-note"], mention);
    assert_eq!(through(&mut *change, mention.as_bytes(), 3).unwrap(), mention.as_bytes());
    assert!(world.ledger().is_empty());
}

#[test]
fn an_encoded_placeholder_is_an_alarm_too() {
    let world = World::with(&[Place::Header]);
    let passing = passing("evil.test", "POST", "/");
    let encoded64 = data_encoding::BASE64.encode(format!("x:{PLACEHOLDER}").as_bytes());

    denied(world.send(&passing, get("/").header("x-data", &encoded64)));
    denied(world.send(&passing, get("/").header("authorization", format!("Basic {encoded64}"))));
    denied(world.send(&passing, get(&format!("/?q={encoded64}"))));
    for coding in ["gzip", "br", "zstd", "deflate"] {
        let request = http::Request::post("/").header("content-encoding", coding);
        let (_, mut change) = world.send(&passing, request).unwrap();
        denied(through(&mut *change, &encoded(coding, PLACEHOLDER.as_bytes()), 7));
    }
}

#[test]
fn a_body_is_filled_where_the_body_is_a_place() {
    let world = World::with(&[Place::Body]);
    let passing = passing("api.example.com", "POST", "/token");
    for (kind, written) in [
        ("application/json", forms::Escapes::LEAST.encode(VALUE)),
        ("application/x-www-form-urlencoded; charset=utf-8", forms::Habit::STRICT.encode(VALUE.as_bytes())),
        ("text/plain", VALUE.to_owned()),
    ] {
        for chunk in [1, 7, 10_000] {
            let request =
                http::Request::post("/token").header("content-type", kind).header("content-length", "60");
            let (head, mut change) = world.send(&passing, request).unwrap();
            let body =
                through(&mut *change, format!("a={PLACEHOLDER}&b=1&c={PLACEHOLDER}").as_bytes(), chunk)
                    .unwrap();
            assert_eq!(String::from_utf8(body).unwrap(), format!("a={written}&b=1&c={written}"));
            assert_eq!(change.keeps_length(), written.len() == PLACEHOLDER.len());
            assert_eq!(head.headers.contains_key("content-length"), change.keeps_length());
        }
    }
    assert_eq!(world.ledger().len(), 9);
}

#[test]
fn a_placeholder_in_trailers_is_an_alarm() {
    let world = World::with(&[Place::Body, Place::Header]);
    let passing = passing("api.example.com", "POST", "/");
    let (_, mut change) = world.send(&passing, http::Request::post("/")).unwrap();
    let mut trailers = http::HeaderMap::new();
    trailers.insert("x-late", PLACEHOLDER.parse().unwrap());

    assert!(denied(change.trailers(&mut trailers)).contains("a trailer"));
}

#[test]
fn a_reflected_value_comes_back_as_the_placeholder() {
    let world = World::with(HEADER);
    let passing = passing("api.example.com", "GET", "/echo");
    let response = http::Response::builder()
        .header("content-type", "application/json")
        .header("content-length", "100")
        .header(
            "location",
            format!("https://evil.test/?key={}", forms::Habit::STRICT.encode(VALUE.as_bytes())),
        )
        .header("x-echo", VALUE);

    let (head, change) = world.receive(&passing, response).unwrap();

    assert_eq!(head.headers["x-echo"], PLACEHOLDER);
    assert_eq!(head.headers["location"], format!("https://evil.test/?key={PLACEHOLDER}"));
    let mut change = change.unwrap();
    let out = through(&mut *change, format!("{{\"you\": \"{VALUE}\"}}").as_bytes(), 5).unwrap();
    assert_eq!(String::from_utf8(out).unwrap(), format!("{{\"you\": \"{PLACEHOLDER}\"}}"));
    let mut trailers = http::HeaderMap::from_iter([("x-late".parse().unwrap(), VALUE.parse().unwrap())]);
    change.trailers(&mut trailers).unwrap();
    assert_eq!(trailers["x-late"], PLACEHOLDER);
}

#[test]
fn a_former_value_is_taken_out_of_answers_too() {
    let world = World::with(HEADER);
    let passing = passing("api.example.com", "GET", "/echo");
    let other = VALUE.replace("Real", "Next");
    world.gate.secrets().set(&Values([("KEY".to_owned(), other.clone())].into())).unwrap();

    let (head, _) = world.send(&passing, get("/echo").header("x-api-key", PLACEHOLDER)).unwrap();
    let (echoed, _) = world
        .receive(&passing, http::Response::builder().header("x-now", &other).header("x-then", VALUE))
        .unwrap();

    assert_eq!(head.headers["x-api-key"].as_bytes(), other.as_bytes());
    assert_eq!([&echoed.headers["x-now"], &echoed.headers["x-then"]], [PLACEHOLDER, PLACEHOLDER]);
}

#[test]
fn an_encoding_that_cannot_be_taken_off_is_not_let_through() {
    let world = World::with(HEADER);
    let passing = passing("api.example.com", "GET", "/");
    let receive = |status: u16, coding: &str| {
        world.receive(&passing, http::Response::builder().status(status).header("content-encoding", coding))
    };

    assert!(matches!(receive(200, "compress"), Err(Stop::Failed(_))));
    assert!(matches!(receive(206, "gzip"), Err(Stop::Failed(_))));
    let (head, change) = receive(200, "gzip").unwrap();
    assert!(!head.headers.contains_key("content-encoding") && !change.unwrap().keeps_length());
    assert!(receive(304, "gzip").unwrap().1.is_none());
}

#[test]
fn only_encodings_that_can_be_taken_off_are_asked_for() {
    let world = World::with(HEADER);
    let sent = |host: &str, builder: http::request::Builder| {
        world.send(&passing(host, "GET", "/"), builder).unwrap().0
    };
    let accepting = || {
        get("/")
            .header("accept-encoding", "gzip;q=1.0, dcb, *;q=0.1, br")
            .header("grpc-accept-encoding", "gzip")
    };

    let head = sent("api.example.com", accepting());
    assert_eq!(head.headers["accept-encoding"], "gzip;q=1.0, br");
    assert_eq!(head.headers["grpc-accept-encoding"], "identity");
    assert_eq!(sent("other.test", accepting()).headers["accept-encoding"], "gzip;q=1.0, dcb, *;q=0.1, br");
    let part = sent("api.example.com", accepting().header("range", "bytes=0-9"));
    assert_eq!(
        (&part.headers["accept-encoding"], &part.headers["range"]),
        (&"identity".parse().unwrap(), &"bytes=0-9".parse().unwrap())
    );
    let secret =
        sent("api.example.com", accepting().header("range", "bytes=0-9").header("x-api-key", PLACEHOLDER));
    assert!(!secret.headers.contains_key("range"));
}

#[test]
fn messages_of_a_websocket_are_looked_at_both_ways() {
    let world = World::with(&[Place::Body]);
    let good = passing("api.example.com", "GET", "/ws");
    let mask = Some([1, 2, 3, 250]);
    let sent = [
        frame(0x01, mask, &PLACEHOLDER.as_bytes()[..20]),
        frame(0x89, mask, b"ping"),
        frame(0x80, mask, &PLACEHOLDER.as_bytes()[20..]),
    ]
    .concat();
    let expected = [
        frame(0x01, mask, &VALUE.as_bytes()[..20]),
        frame(0x89, mask, b"ping"),
        frame(0x80, mask, &VALUE.as_bytes()[20..]),
    ]
    .concat();
    for chunk in [1, 5, 1000] {
        let mut out = world.guard.upgraded(&good, Way::Out).unwrap();
        assert_eq!(through(&mut *out, &sent, chunk).unwrap(), expected);
        let echo =
            [frame(0x81, None, format!("you sent {VALUE}").as_bytes()), frame(0x8a, None, VALUE.as_bytes())]
                .concat();
        let scrubbed = [
            frame(0x81, None, format!("you sent {PLACEHOLDER}").as_bytes()),
            frame(0x8a, None, PLACEHOLDER.as_bytes()),
        ]
        .concat();
        let mut back = world.guard.upgraded(&good, Way::In).unwrap();
        assert_eq!(through(&mut *back, &echo, chunk).unwrap(), scrubbed);
    }
    let mut evil = world.guard.upgraded(&passing("evil.test", "GET", "/ws"), Way::Out).unwrap();
    denied(through(&mut *evil, &sent, 3));
}

#[test]
fn a_message_is_passed_on_whole_although_it_ends_like_a_secret_begins() {
    let world = World::with(HEADER);
    let good = passing("api.example.com", "GET", "/ws");
    let message = frame(0x82, None, b"...sk-ant-api03-");
    let mut back = world.guard.upgraded(&good, Way::In).unwrap();
    assert_eq!(back.piece(Bytes::from(message.clone())).unwrap(), message);

    let (_, change) =
        world.receive(&good, http::Response::builder().header("content-type", "application/grpc")).unwrap();
    let message = Bytes::from_static(b"\0\0\0\0\x10...sk-ant-api03-");
    assert_eq!(change.unwrap().piece(message.clone()).unwrap(), message);
}

#[test]
fn compression_and_other_protocols_are_not_agreed_on() {
    let world = World::with(HEADER);
    let good = passing("api.example.com", "GET", "/ws");
    let upgrade = |protocol: &str| {
        world.send(
            &good,
            get("/ws").header("upgrade", protocol).header("sec-websocket-extensions", "permessage-deflate"),
        )
    };

    assert!(!upgrade("WebSocket").unwrap().0.headers.contains_key("sec-websocket-extensions"));
    assert!(matches!(upgrade("tcp"), Err(Stop::Failed(_))));
}

#[test]
fn a_method_and_a_path_bind_too() {
    let mut bound = secret("KEY", PLACEHOLDER, HEADER);
    bound.methods = vec!["POST".into()];
    bound.paths = vec!["/v1/*".into()];
    let world = World::new(&[bound], &[("KEY", VALUE)]);
    let send = |method: &str, path: &str| {
        world.send(&passing("api.example.com", method, path), get(path).header("x-api-key", PLACEHOLDER))
    };

    assert!(send("POST", "/v1/x").is_ok());
    assert!(denied(send("GET", "/v1/x")).contains("method"));
    assert!(denied(send("POST", "/v2/x")).contains("path"));
}

/// A way in which a server may write a value.
fn written(value: &str, how: usize) -> Vec<u8> {
    let forms = forms::every(value);
    forms[how % forms.len()].1.clone()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_value_in_any_form_and_any_pieces_comes_back_as_the_placeholder(
        value in "[!-~]{8,60}",
        before in prop::collection::vec(any::<u8>(), 0..80),
        after in prop::collection::vec(any::<u8>(), 0..80),
        how in 0usize..30,
        coding in 0usize..5,
        chunk in 1usize..40,
        kind in 0usize..3,
    ) {
        let placeholder = airlock_gate::secrets::placeholder(&value, |bytes| bytes.fill(11)).unwrap();
        prop_assume!(!value.contains(&placeholder[..8]) && !placeholder.contains(&value));
        let world = World::new(&[secret("KEY", &placeholder, HEADER)], &[("KEY", &value)]);
        let passing = passing("api.example.com", "GET", "/");
        let text = [&before[..], &written(&value, how), &after].concat();
        let coding = ["gzip", "br", "zstd", "deflate", "identity"][coding];
        let kind = ["application/json", "application/octet-stream", "text/event-stream"][kind];

        let response = http::Response::builder().header("content-encoding", coding).header("content-type", kind);
        let (_, change) = world.receive(&passing, response).unwrap();
        let out = through(&mut *change.unwrap(), &encoded(coding, &text), chunk).unwrap();

        for (_, form) in forms::every(&value) {
            prop_assert!(!out.windows(form.len()).any(|window| window == form), "{}", String::from_utf8_lossy(&out));
        }
    }

    #[test]
    fn a_placeholder_in_any_pieces_is_found(
        before in "[ -~]{0,60}",
        after in "[ -~]{0,60}",
        chunk in 1usize..60,
    ) {
        let world = World::with(&[Place::Body]);
        let body = format!("{before}{PLACEHOLDER}{after}");
        let (_, mut change) = world.send(&passing("api.example.com", "POST", "/"), http::Request::post("/")).unwrap();
        prop_assert_eq!(through(&mut *change, body.as_bytes(), chunk).unwrap(), format!("{before}{VALUE}{after}").into_bytes());
        let (_, mut change) = world.send(&passing("evil.test", "POST", "/"), http::Request::post("/")).unwrap();
        prop_assert!(matches!(through(&mut *change, body.as_bytes(), chunk), Err(Stop::Denied(_))));
    }
}

/// `cargo test --release -p airlock-net scrubbing_is_fast -- --ignored --nocapture`
#[test]
#[ignore = "measures; means something only when optimised"]
fn scrubbing_is_fast() {
    let world = World::with(HEADER);
    let passing = passing("api.example.com", "GET", "/");
    let piece: Bytes =
        (0..16384u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 24).to_le_bytes()[0]).collect();
    let (_, change) = world.receive(&passing, http::Response::builder()).unwrap();
    let (_, mut watch) = world.send(&passing, get("/")).unwrap();
    for (name, mut change) in
        [("scrub", change.unwrap()), ("watch", std::mem::replace(&mut watch, chain::of(Vec::new())))]
    {
        let begun = std::time::Instant::now();
        for _ in 0..32_768 {
            std::hint::black_box(change.piece(piece.clone()).unwrap());
        }
        println!("{name}: {:.2} GB/s", 0.536_870_912 / begun.elapsed().as_secs_f64());
    }
}
