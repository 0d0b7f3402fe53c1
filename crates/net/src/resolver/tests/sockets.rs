use super::*;
use std::net::SocketAddr;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};
use tokio::task::{JoinSet, LocalSet};

const RULES: &str = "[[rule]]\nallow = '*.example.com'\nports = [443]";

/// Serves a world on loopback, UDP and TCP at one port, while `client` runs.
async fn served<T>(world: &World, client: impl AsyncFnOnce(SocketAddr) -> T) -> T {
    let tcp = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = tcp.local_addr().unwrap();
    let udp = std::net::UdpSocket::bind(address).unwrap();
    let local = LocalSet::new();
    local
        .run_until(async {
            let mut tasks = JoinSet::new();
            serve(vec![udp.into()], vec![tcp.into()], &world.resolver, &mut tasks).unwrap();
            client(address).await
        })
        .await
}

async fn next(stream: &mut TcpStream) -> Message {
    let mut reply = vec![0; usize::from(stream.read_u16().await.unwrap())];
    stream.read_exact(&mut reply).await.unwrap();
    Message::from_vec(&reply).unwrap()
}

fn framed(message: &[u8]) -> Vec<u8> {
    let mut bytes = u16::try_from(message.len()).unwrap().to_be_bytes().to_vec();
    bytes.extend_from_slice(message);
    bytes
}

#[tokio::test]
async fn questions_over_udp_are_answered_and_noise_is_not() {
    let world = world(RULES);
    let reply = served(&world, async |server| {
        let client = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        client.connect(server).await.unwrap();
        client.send(b"").await.unwrap();
        client.send(b"noise").await.unwrap();
        client.send(&question("a.example.com.", RecordType::A)).await.unwrap();
        let mut buffer = [0; 1500];
        let length = client.recv(&mut buffer).await.unwrap();
        Message::from_vec(&buffer[..length]).unwrap()
    })
    .await;
    assert_eq!(reply.answers.len(), 1);
}

#[tokio::test]
async fn a_question_behind_a_flood_is_answered() {
    let world = world(RULES);
    let reply = served(&world, async |server| {
        let flood = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        for number in 0..150 {
            flood.send_to(&question(&format!("n{number}.example.net."), RecordType::A), server).unwrap();
        }
        let client = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        client.send_to(&question("a.example.com.", RecordType::A), server).await.unwrap();
        let mut buffer = [0; 1500];
        let length = client.recv(&mut buffer).await.unwrap();
        Message::from_vec(&buffer[..length]).unwrap()
    })
    .await;
    assert_eq!(reply.answers.len(), 1);
}

#[tokio::test]
async fn a_client_that_is_gone_does_not_end_the_server() {
    let world = world(RULES);
    served(&world, async |server| {
        for _ in 0..20 {
            let gone = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
            gone.send_to(&question("a.example.com.", RecordType::A), server).unwrap();
            drop(gone);
            tokio::task::yield_now().await;
        }
        let client = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        client.send_to(&question("a.example.com.", RecordType::A), server).await.unwrap();
        client.recv(&mut [0; 1500]).await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn several_questions_over_one_connection_are_answered_in_order_and_in_any_pieces() {
    let world = world(RULES);
    let (first, second) = served(&world, async |server| {
        let mut stream = TcpStream::connect(server).await.unwrap();
        let mut bytes = framed(&question("a.example.com.", RecordType::A));
        bytes.extend(framed(&question("evil.example.", RecordType::A)));
        for byte in bytes {
            stream.write_all(&[byte]).await.unwrap();
            tokio::task::yield_now().await;
        }
        (next(&mut stream).await, next(&mut stream).await)
    })
    .await;
    assert_eq!(first.metadata.response_code, ResponseCode::NoError);
    assert_eq!(second.metadata.response_code, ResponseCode::NXDomain);
}

#[tokio::test]
async fn a_message_longer_than_any_question_ends_the_connection() {
    let world = world(RULES);
    let left = served(&world, async |server| {
        let mut stream = TcpStream::connect(server).await.unwrap();
        stream.write_all(&[0xff, 0xff, 0]).await.unwrap();
        let mut rest = Vec::new();
        _ = stream.read_to_end(&mut rest).await;
        rest
    })
    .await;
    assert!(left.is_empty());
}

#[tokio::test(start_paused = true)]
async fn connections_that_say_nothing_make_room_for_others() {
    let world = world(RULES);
    served(&world, async |server| {
        let mut silent = Vec::new();
        for _ in 0..64 {
            silent.push(TcpStream::connect(server).await.unwrap());
        }
        let mut stream = TcpStream::connect(server).await.unwrap();
        stream.write_all(&framed(&question("a.example.com.", RecordType::A))).await.unwrap();
        assert_eq!(next(&mut stream).await.answers.len(), 1);
    })
    .await;
}

#[tokio::test]
async fn dig_sees_addresses_denials_and_their_reason() {
    if !std::process::Command::new("dig").arg("-v").output().is_ok_and(|output| output.status.success()) {
        assert!(
            std::env::var_os("AIRLOCK_TEST_STRICT").is_none_or(|value| value != "1"),
            "skipped: dig is missing"
        );
        return eprintln!("skipped: dig is missing (Debian: bind9-dnsutils)");
    }
    let world = world(RULES);
    let told = served(&world, async |server| {
        let dig = async |arguments: &str| {
            let mut command = std::process::Command::new("dig");
            command.args(["@127.0.0.1", "-p", &server.port().to_string(), "+time=5", "+tries=1"]);
            command.args(arguments.split(' '));
            let output = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
            String::from_utf8(output.stdout).unwrap()
        };
        [
            dig("+short a.example.com").await,
            dig("+short +tcp b.example.com").await,
            dig("+short -x 198.18.1.2").await,
            dig("a.example.com AAAA").await,
            dig("+dnssec +bufsize=4096 evil.example").await,
            dig("+noedns evil.example").await,
            dig("-c CH version.bind TXT").await,
            dig("+edns=1 +noednsneg a.example.com").await,
            dig("+cookie +padding=128 +nsid +subnet=192.0.2.0/24 +short a.example.com").await,
            dig("example.com AXFR").await,
        ]
    })
    .await;
    let [udp, tcp, pointer, six, denied, plain, chaos, future, options, transfer] = told;
    assert_eq!(
        (udp.as_str(), tcp.as_str(), pointer.as_str()),
        ("198.18.1.1\n", "198.18.1.2\n", "b.example.com.\n")
    );
    assert!(six.contains("status: NOERROR") && six.contains("ANSWER: 0"), "{six}");
    assert!(denied.contains("status: NXDOMAIN"), "{denied}");
    assert!(denied.contains("EDE: 15 (Blocked): (looking up evil.example is not allowed"), "{denied}");
    assert!(plain.contains("status: NXDOMAIN") && !plain.contains("OPT"), "{plain}");
    assert!(chaos.contains("status: REFUSED"), "{chaos}");
    assert!(future.contains("status: BADVERS"), "{future}");
    assert_eq!(options, "198.18.1.1\n");
    assert!(transfer.contains("Transfer failed"), "{transfer}");
}
