//! What a server says before its answer.

use super::world::{Server, World, read, run, text};
use airlock_gate::secrets::Secrets;
use airlock_protocol::secret::{From, Place, Secret, Use, Values};
use http::Request;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};

const PLACEHOLDER: &str = "sk-0123456789abcdefPlaceholder";
const VALUE: &str = "sk-RealRealRealRealRealRealVal";

async fn world() -> World {
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
    World::guarding(Server::Hinting, Vec::new(), Secrets::new(&[secret], &values).unwrap()).await
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

#[test]
fn a_program_that_speaks_http2_gets_the_answer() {
    run(async {
        let world = world().await;
        let mut sender = world.http2().await;
        let request = Request::get(format!("https://a.test:{}/fast", world.port)).body(text("")).unwrap();

        let answered = read(sender.send_request(request).await.unwrap()).await;

        assert_eq!((answered.0, &*answered.1), (200, "done"));
    });
}
