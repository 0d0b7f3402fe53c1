//! What a server says before its answer.

use super::world::{Server, World, run};
use airlock_gate::secrets::Secrets;
use airlock_protocol::secret::{From, Place, Secret, Use, Values};
use http::{Request, Response};
use std::future::poll_fn;
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    task::JoinSet,
};
use tokio_rustls::client::TlsStream;

const PLACEHOLDER: &str = "sk-0123456789abcdefPlaceholder";
const VALUE: &str = "sk-RealRealRealRealRealRealVal";

async fn world() -> World {
    world_of(Server::Hinting).await
}

async fn world_of(server: Server) -> World {
    let secret = Secret {
        name: "KEY".into(),
        from: From::Env("KEY".into()),
        placeholder: PLACEHOLDER.into(),
        hosts: vec!["a.test".into()],
        methods: Vec::new(),
        paths: Vec::new(),
        places: vec![Place::Header],
        use_as: Use::Plain,
    };
    let values = Values([("KEY".to_owned(), VALUE.to_owned())].into());
    World::guarding(server, Vec::new(), Secrets::new(&[secret], &values).unwrap()).await
}

fn asking(world: &World, path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nhost: a.test:{}\r\nx-key: {PLACEHOLDER}\r\n\r\n", world.port)
}

/// Reads until what was read ends like this.
async fn until(stream: &mut (impl AsyncRead + Unpin), end: &str) -> String {
    let mut came = String::new();
    while !came.ends_with(end) {
        came.push(char::from(stream.read_u8().await.unwrap()));
    }
    came
}

fn hints() -> String {
    format!(
        "HTTP/1.1 103 Early Hints\r\nlink: </a.css>; rel=preload\r\nx-key: {PLACEHOLDER}\r\n\r\nHTTP/1.1 102 Processing\r\n\r\n"
    )
}

#[test]
fn hints_arrive_before_the_answer_without_what_they_must_not_hold() {
    run(async {
        let world = world().await;
        let mut tls = world.tls(&[b"http/1.1"]).await;

        tls.write_all(asking(&world, "/slow").as_bytes()).await.unwrap();
        let hinted = until(&mut tls, "Processing\r\n\r\n").await;
        // Nothing of the answer has been sent yet.
        world.log.lock().unwrap().push("go".to_owned());
        let answered = until(&mut tls, "done").await;

        assert_eq!(hinted, hints());
        assert!(answered.starts_with("HTTP/1.1 200 OK\r\n"), "{answered}");
    });
}

#[test]
fn each_answer_of_a_connection_has_its_own_hints_before_it() {
    run(async {
        let world = world().await;
        let mut tls = world.tls(&[b"http/1.1"]).await;

        // All at once, so that answers follow each other closely.
        tls.write_all(asking(&world, "/fast").repeat(5).as_bytes()).await.unwrap();
        for _ in 0..5 {
            let came = until(&mut tls, "\r\n\r\ndone").await;
            let (before, answer) = came.split_at(came.find("HTTP/1.1 200").unwrap());
            assert!(before.is_empty() || before == hints(), "{came}");
            assert!(!answer.contains("HTTP/1.1 10"), "{came}");
        }
    });
}

/// What a program that speaks HTTP/2 gets: hints, then the answer.
async fn heard(world: &World, tls: TlsStream<TcpStream>) -> (Vec<Response<()>>, (u16, Vec<u8>)) {
    let (mut sender, connection) = h2::client::handshake(tls).await.unwrap();
    let mut tasks = JoinSet::new();
    tasks.spawn_local(async move {
        let _ = connection.await;
    });
    let url = format!("https://a.test:{}/fast", world.port);
    let request = Request::get(url).header("x-key", PLACEHOLDER).body(()).unwrap();
    let (mut answer, _) = sender.send_request(request, true).unwrap();
    let mut hints = Vec::new();
    while let Some(hint) = poll_fn(|cx| answer.poll_informational(cx)).await {
        hints.push(hint.unwrap());
    }
    let answer = answer.await.unwrap();
    let status = answer.status().as_u16();
    let mut body = answer.into_body();
    let data = body.data().await.unwrap().unwrap();
    (hints, (status, data.to_vec()))
}

#[test]
fn hints_of_servers_of_either_version_reach_a_program_that_speaks_http2() {
    for (server, statuses) in [(Server::Hinting, &[103, 102][..]), (Server::Hinting2, &[103])] {
        run(async {
            let world = world_of(server).await;
            let tls = world.tls(&[b"h2"]).await;

            let (hints, answered) = heard(&world, tls).await;

            assert_eq!(hints.iter().map(|hint| hint.status().as_u16()).collect::<Vec<_>>(), statuses);
            let first = hints.first().unwrap().headers();
            assert_eq!(first.get("link").unwrap(), "</a.css>; rel=preload");
            // The server said the value.
            assert_eq!(first.get("x-key").unwrap(), PLACEHOLDER);
            assert_eq!(answered, (200, b"done".to_vec()));
        });
    }
}
