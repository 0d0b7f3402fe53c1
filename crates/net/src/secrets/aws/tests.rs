//! Against botocore, and against the examples of AWS's own documentation.

use super::{
    read::{Scope, Signed},
    *,
};
use crate::secrets::tests::{World, block, passing, secret, through};
use airlock_protocol::secret::{Place, Secret};
use http::request;
use proptest::prelude::*;
use serde::Deserialize;

#[derive(Deserialize)]
struct Vectors {
    inside: [String; 3],
    outside: [String; 3],
    vectors: Vec<Vector>,
}

#[derive(Deserialize)]
struct Vector {
    name: String,
    inside: Sent,
    outside: Sent,
}

#[derive(Deserialize, PartialEq, Debug)]
struct Sent {
    method: String,
    url: String,
    headers: Vec<(String, String)>,
    body: String,
}

/// What a program sends: a path and its headers, and `host`.
fn head(sent: &Sent) -> (String, request::Parts) {
    let uri: http::Uri = sent.url.parse().unwrap();
    let host = uri.host().unwrap().to_owned();
    let mut builder =
        http::Request::builder().method(sent.method.as_str()).uri(uri.path_and_query().unwrap().as_str());
    builder = builder.header("host", &host);
    for (name, value) in &sent.headers {
        builder = builder.header(name, value.trim());
    }
    (host, builder.body(()).unwrap().into_parts().0)
}

fn vectors() -> Vectors {
    serde_json::from_str(include_str!("vectors/vectors.json")).unwrap()
}

fn aws_secrets(placeholders: &[String; 3]) -> Vec<Secret> {
    let names = ["ID", "KEY", "TOKEN"];
    let mut secrets: Vec<Secret> =
        names.iter().zip(placeholders).map(|(name, text)| secret(name, text, &[Place::Header])).collect();
    for secret in &mut secrets {
        secret.hosts = vec!["*.example.com".into()];
    }
    secrets[1].use_as = Use::AwsKey { access_key: "ID".into() };
    secrets
}

fn world(vectors: &Vectors) -> World {
    let [id, key, token] = vectors.outside.each_ref().map(String::as_str);
    World::new(&aws_secrets(&vectors.inside), &[("ID", id), ("KEY", key), ("TOKEN", token)])
}

/// Sends a request as whoever carries it would; gives the head that goes on.
fn send(world: &World, host: &str, mut head: request::Parts, body: &str) -> Result<request::Parts, Stop> {
    use crate::http::filter::{Filter as _, Way, Whole};
    let passing = passing(host, head.method.as_str(), "/");
    match world.guard.gathers(&passing, Way::Out, &head.headers) {
        Some(_) => {
            let whole = Whole::Body(body.to_owned().into());
            block(world.guard.whole_request(&passing, &mut head, whole))?;
        }
        None => {
            block(world.guard.request(&passing, &mut head))?;
        }
    }
    Ok(head)
}

#[test]
fn what_botocore_signed_with_a_placeholder_becomes_what_it_signs_with_the_key() {
    let vectors = vectors();
    let world = world(&vectors);
    for vector in &vectors.vectors {
        let (host, inside) = head(&vector.inside);
        let (_, outside) = head(&vector.outside);

        let sent = send(&world, &host, inside, &vector.inside.body)
            .unwrap_or_else(|stop| panic!("{} {stop:?}", vector.name));

        assert_eq!(
            sent.headers.get("authorization"),
            outside.headers.get("authorization"),
            "{}",
            vector.name
        );
        assert_eq!(sent.headers, outside.headers, "{}", vector.name);
        let (mut sent, mut expected) = (pairs(&sent.uri), pairs(&outside.uri));
        sent.sort();
        expected.sort();
        assert_eq!(sent, expected, "{}", vector.name);
    }
}

fn pairs(uri: &http::Uri) -> Vec<String> {
    uri.query().unwrap_or_default().split('&').map(str::to_owned).collect()
}

#[test]
fn a_signature_that_does_not_come_out_with_the_placeholder_is_not_made_anew() {
    let vectors = vectors();
    let world = world(&vectors);
    let (host, mut changed) = head(&vectors.vectors[0].inside);
    changed.headers.insert("x-amz-date", "20260131T120001Z".parse().unwrap());

    assert!(matches!(send(&world, &host, changed, ""), Err(Stop::Failed(_))));
}

#[test]
fn a_signature_for_another_host_is_an_alarm() {
    let vectors = vectors();
    let world = world(&vectors);
    for vector in &vectors.vectors[..4] {
        let (_, inside) = head(&vector.inside);
        assert!(matches!(send(&world, "evil.test", inside, &vector.inside.body), Err(Stop::Denied(_))));
    }
}

#[test]
fn a_request_that_is_signed_with_another_key_goes_on_as_it_is() {
    let vectors = vectors();
    let world = world(&vectors);
    let mut other = vectors.vectors[1].inside.headers.clone();
    for (_, value) in &mut other {
        *value = value.replace(&vectors.inside[0], "AKIAOWNOWNOWNOWN0001").replace(&vectors.inside[2], "own");
    }
    let sent = Sent {
        headers: other,
        method: "POST".into(),
        url: vectors.vectors[1].inside.url.clone(),
        body: "x".into(),
    };
    let (host, inside) = head(&sent);

    assert_eq!(send(&world, &host, inside.clone(), "x").unwrap().headers, inside.headers);
}

#[test]
fn only_what_belongs_to_a_signed_url_may_stand_in_its_query() {
    let vectors = vectors();
    let world = world(&vectors);
    let token = &vectors.inside[2];
    for query in [format!("X-Amz-Security-Token={token}"), format!("X-Amz-Credential={token}")] {
        let head = http::Request::get(format!("/?{query}")).body(()).unwrap().into_parts().0;
        assert!(matches!(send(&world, "a.example.com", head, ""), Err(Stop::Denied(_))), "{query}");
    }
}

#[test]
fn the_key_itself_is_never_sent() {
    let vectors = vectors();
    let world = world(&vectors);
    let head = http::Request::get("/").header("x-key", &vectors.inside[1]).body(()).unwrap().into_parts().0;

    assert!(matches!(send(&world, "a.example.com", head, ""), Err(Stop::Denied(_))));
}

/// The examples of "Signature calculations: transferring payload in multiple chunks" in the documentation of S3.
fn documented(payload: &str) -> (SigningKey, Signed, String) {
    let scope = Scope { date: "20130524".into(), region: "us-east-1".into(), service: "s3".into() };
    let signed = Signed {
        form: Form::Header,
        key_id: "AKIAIOSFODNN7EXAMPLE".into(),
        scope: scope.clone(),
        stamp: "20130524T000000Z".into(),
        headers: Vec::new(),
        signature: String::new(),
    };
    let seed = match payload == CHUNKED[0] {
        true => "4f232c4386841ef735655705268965c44a0e4690baa4adea153f7db9fa80a0a9",
        false => "106e2a8a18243abcf37539882f36619c00e2dfc72633413f02d3b74544bfeb8e",
    };
    (SigningKey::new("wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", &scope), signed, seed.into())
}

/// A body of 65 kB in two chunks, with these signatures.
fn body(signatures: [&str; 3], trailers: &str) -> Vec<u8> {
    let [first, second, last] = signatures;
    let mut body = format!("10000;chunk-signature={first}\r\n").into_bytes();
    body.extend(vec![b'a'; 65536]);
    body.extend(format!("\r\n400;chunk-signature={second}\r\n").into_bytes());
    body.extend(vec![b'a'; 1024]);
    body.extend(format!("\r\n0;chunk-signature={last}\r\n{trailers}\r\n").into_bytes());
    body
}

#[test]
fn chunks_are_signed_as_documented() {
    let other = "0".repeat(64);
    let sent = body([&other, &other, &other], "");
    let expected = body(
        [
            "ad80c730a21e5b8d04586a2213dd63b9a0e99e0e2307b0ade35a65485a288648",
            "0055627c9e194cb4542bae2aa5492e3c1575bbb81b612b7d234b86a503ef5497",
            "b6c6ea8a5354eaf15b3cb7646744f4275b71ea724fed81ceb9323e279d449df9",
        ],
        "",
    );
    for chunk in [1, 1000, 1_000_000] {
        let (key, signed, seed) = documented(CHUNKED[0]);
        let out = through(&mut Chunks::new(key, signed, seed), &sent, chunk).unwrap();
        assert!(out == expected, "{}", String::from_utf8_lossy(&out[out.len() - 100..]));
    }
}

#[test]
fn trailers_are_signed_as_documented() {
    let other = "0".repeat(64);
    let trailers = |signature: &str| {
        format!("x-amz-checksum-crc32c:sOO8/Q==\r\nx-amz-trailer-signature:{signature}\r\n")
    };
    let sent = body([&other, &other, &other], &trailers(&other));
    let expected = body(
        [
            "b474d8862b1487a5145d686f57f013e54db672cee1c953b3010fb58501ef5aa2",
            "1c1344b170168f8e65b41376b44b20fe354e373826ccbbe2c1d40a8cae51e5c7",
            "2ca2aba2005185cf7159c6277faf83795951dd77a3a99e6e65d5c9f85863f992",
        ],
        &trailers("d81f82fc3505edab99d459891051a732e8730629a2e4a59689829ca17fe2e435"),
    );
    let (key, signed, seed) = documented(CHUNKED[1]);
    let out = through(&mut Chunks::new(key, signed, seed), &sent, 777).unwrap();
    assert!(out == expected, "{}", String::from_utf8_lossy(&out[out.len() - 300..]));
}

#[test]
fn chunks_that_are_none_end_the_request() {
    let zeros = "0".repeat(64);
    for body in [
        "10;chunk-signature=short\r\n".to_owned(),
        "zz;chunk-signature=".to_owned() + &zeros + "\r\n",
        "7fffffffffff;chunk-signature=".to_owned() + &zeros + "\r\n",
        "5\r\nhello\r\n0\r\n\r\n".to_owned(),
        "x".repeat(9000),
        format!("0;chunk-signature={zeros}\r\n\r\nmore"),
        format!("0;chunk-signature={zeros}\r\n"),
    ] {
        let (key, signed, seed) = documented(CHUNKED[0]);
        assert!(through(&mut Chunks::new(key, signed, seed), body.as_bytes(), 50).is_err(), "{body:.60}");
    }
}

proptest! {
    #[test]
    fn any_head_and_any_chunks_are_taken(
        authorization in "AWS4-HMAC-SHA256 [ -~]{0,80}",
        query in "(X-Amz-[A-Za-z]{1,12}=[!-~&&[^#<>\"`{}]]{0,20}&){0,4}",
        body in prop::collection::vec(any::<u8>(), 0..200),
        chunk in 1usize..50,
    ) {
        let request = http::Request::get(format!("/?{query}")).header("authorization", authorization);
        if let Ok(request) = request.body(()) {
            let _ = Signed::read(&request.into_parts().0);
        }
        let (key, signed, seed) = documented(CHUNKED[0]);
        let _ = through(&mut Chunks::new(key, signed, seed), &body, chunk);
    }
}
