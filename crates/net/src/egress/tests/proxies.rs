//! Through a proxy.

use super::*;
use proptest::prelude::*;
use tokio::task::JoinSet;
use tokio_rustls::rustls::pki_types::{CertificateDer, pem::PemObject as _};

/// A proxy that answers every request with `answer`, in the given pieces, and hands out what it was asked.
async fn proxy(pieces: &'static [&'static [u8]]) -> (SocketAddr, JoinSet<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut asked = Vec::new();
        while !asked.ends_with(b"\r\n\r\n") {
            asked.push(stream.read_u8().await.unwrap());
        }
        for piece in pieces {
            if stream.write_all(piece).await.is_err() {
                break;
            }
            tokio::task::yield_now().await;
        }
        _ = stream.shutdown().await;
        String::from_utf8(asked).unwrap()
    });
    (address, tasks)
}

fn through(url: &str, no_proxy: &[&str]) -> Egress {
    let mut made = egress(&[], &[]);
    made.proxy = Some(Proxy::parse(url).unwrap());
    made.direct = no_proxy.iter().map(|text| Direct::parse(text).unwrap()).collect();
    made
}

#[tokio::test]
async fn a_name_goes_to_the_proxy_unresolved_and_no_byte_behind_its_answer_is_lost() {
    let (address, mut tasks) =
        proxy(&[b"HTTP/1.1 200 Connection est", b"ablished\r\nVia: x\r\n\r", b"\nSSH-2.0-x\r\n"]).await;
    let egress = through(&format!("http://us%40er:p%3Aw@{address}"), &[]);

    let mut dialled = reach(&egress, "git.example", 22).await.unwrap();
    let mut greeting = String::new();
    dialled.stream.read_to_string(&mut greeting).await.unwrap();

    assert_eq!((dialled.address, greeting.as_str()), (address, "SSH-2.0-x\r\n"));
    assert_eq!(
        tasks.join_next().await.unwrap().unwrap(),
        "CONNECT git.example:22 HTTP/1.1\r\nHost: git.example:22\r\nProxy-Authorization: Basic dXNAZXI6cDp3\r\n\r\n"
    );
}

#[tokio::test]
async fn a_proxy_that_refuses_says_why() {
    let (address, _tasks) = proxy(&[b"HTTP/1.1 407 Proxy Auth\x1b[31m Required\r\n\r\n"]).await;
    let error = reach(&through(&format!("http://{address}/"), &[]), "git.example", 443).await.unwrap_err();
    assert_eq!(
        told(&error),
        "git.example:443 cannot be reached through the proxy: the proxy answered 407 Proxy Auth[31m Required"
    );
    assert_eq!((error.word(), error.is_denial()), ("proxy", false));
}

#[tokio::test]
async fn a_proxy_that_talks_nonsense_is_left() {
    const LONG: &[u8] = &[b'x'; 9000];
    let cases: [&'static [&'static [u8]]; 4] = [
        &[b"SSH-2.0-x\r\n"],
        &[b"HTTP/1.1 20\r\n\r\n"],
        &[b"HTTP/1.1 200 OK\r\nA: ", LONG, b"\r\n\r\n"],
        &[b""],
    ];
    for pieces in cases {
        let (address, _tasks) = proxy(pieces).await;
        let error = reach(&through(&format!("http://{address}"), &[]), "git.example", 443).await.unwrap_err();
        let DialError::Proxy { source, .. } = error else { panic!("{error}") };
        assert!(matches!(source, ProxyError::NotHttp | ProxyError::Io(_)), "{source}");
    }
}

#[tokio::test]
async fn a_literal_is_checked_before_the_proxy_is_asked_for_it() {
    let (address, _tasks) = proxy(&[]).await;
    let error = reach(&through(&format!("http://{address}"), &[]), "169.254.169.254", 80).await.unwrap_err();
    assert!(matches!(error, DialError::Address { .. }), "{error}");
}

#[tokio::test]
async fn what_is_excepted_from_the_proxy_is_dialled_and_checked_here() {
    let names = [("git.corp.example", server::addresses(&["10.0.0.1"]))];
    let server = NameServer::start(&names).await;
    let mut egress = through("http://192.0.2.1:3128", &[".corp.example"]);
    egress.lookup = super::egress(&[server.address], &[]).lookup;
    let error = reach(&egress, "git.corp.example", 443).await.unwrap_err();
    assert!(matches!(error, DialError::Address { .. }), "{error}");
}

#[test]
fn exceptions_are_read_as_other_programs_read_them() {
    let matches = |entry: &str, host: &str| Direct::parse(entry).unwrap().matches(&target(host));
    assert!(matches("*", "any.example") && matches("*", "192.0.2.1"));
    assert!(matches("corp.example", "corp.example") && matches("corp.example", "git.corp.example"));
    assert!(!matches("corp.example", "notcorp.example"));
    assert!(matches(".corp.example", "git.corp.example") && !matches(".corp.example", "corp.example"));
    assert!(matches("*.corp.example", "git.corp.example"));
    assert!(matches("192.0.2.0/24", "192.0.2.7") && !matches("192.0.2.0/24", "198.51.100.1"));
    assert!(Direct::parse("http://x").is_err() && Direct::parse("").is_err());
}

#[test]
fn a_proxy_that_cannot_be_spoken_to_is_refused_when_it_is_read() {
    for bad in [
        "proxy:3128",
        "socks5://proxy:3128",
        "https://",
        "http://",
        "http://a b:1",
        "http://x/y",
        "http://u s:p@x",
        "http://u%zz@x",
        "http://x:99999",
    ] {
        assert!(Proxy::parse(bad).is_err(), "{bad}");
    }
    let proxy = Proxy::parse("http://user:secret@proxy.example").unwrap();
    assert_eq!(format!("{proxy:?}"), "Proxy(proxy.example:80)");
    let inside = Proxy::parse("https://proxy.example").unwrap();
    assert_eq!((inside.port, inside.is_tls), (443, true));
}

/// A proxy inside TLS that lets everybody through to an echo; its certificate is for `name`.
async fn secure_proxy(name: &str) -> (SocketAddr, Upstream, JoinSet<String>) {
    let authority = crate::tls::Authority::new().unwrap();
    let mut roots = tokio_rustls::rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(authority.pem().as_bytes()).unwrap()).unwrap();
    let config = authority
        .server(&name.parse().unwrap(), crate::tls::Speaks::Http1, crate::tls::Version::Newest)
        .unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        let Ok(mut stream) = tokio_rustls::TlsAcceptor::from(config).accept(stream).await else {
            return String::new();
        };
        let mut asked = Vec::new();
        while !asked.ends_with(b"\r\n\r\n") {
            asked.push(stream.read_u8().await.unwrap());
        }
        stream.write_all(b"HTTP/1.1 200 Fine\r\nVia: x\r\n\r\nhello ").await.unwrap();
        let mut said = String::new();
        stream.read_to_string(&mut said).await.unwrap();
        stream.write_all(said.as_bytes()).await.unwrap();
        _ = stream.shutdown().await;
        String::from_utf8(asked).unwrap()
    });
    (address, Upstream::trusting(roots), tasks)
}

#[tokio::test]
async fn a_proxy_inside_tls_carries_both_ways_and_half_closes() {
    let (address, trust, mut tasks) = secure_proxy("127.0.0.1").await;
    let mut egress = through(&format!("https://ann:p%40ss@{address}"), &[]);
    egress.trust = trust;

    let mut dialled = reach(&egress, "git.example", 22).await.unwrap();
    dialled.stream.write_all(&[b'x'; 100_000]).await.unwrap();
    dialled.stream.shutdown().await.unwrap();
    let mut echo = String::new();
    dialled.stream.read_to_string(&mut echo).await.unwrap();

    assert_eq!(dialled.address, address);
    assert_eq!((echo.get(..7), echo.len()), (Some("hello x"), 100_006));
    let asked = tasks.join_next().await.unwrap().unwrap();
    assert!(asked.starts_with("CONNECT git.example:22 HTTP/1.1\r\n"), "{asked}");
    assert!(asked.contains("\r\nProxy-Authorization: Basic YW5uOnBAc3M=\r\n"), "{asked}");
}

#[tokio::test]
async fn a_proxy_whose_certificate_is_not_its_own_is_told_nothing() {
    let (address, trust, mut tasks) = secure_proxy("other.example").await;
    let mut egress = through(&format!("https://ann:secret@{address}"), &[]);
    egress.trust = trust;

    let error = reach(&egress, "git.example", 22).await.unwrap_err();

    assert!(told(&error).contains("cannot be spoken to in private"), "{}", told(&error));
    assert_eq!(tasks.join_next().await.unwrap().unwrap(), "");
}

proptest! {
    #[test]
    fn no_setting_breaks_the_reader(text in ".{0,60}") {
        _ = Proxy::parse(&text);
        _ = Proxy::parse(&format!("http://{text}"));
        _ = Direct::parse(&text);
    }
}
