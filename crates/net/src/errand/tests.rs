use super::*;
use std::io::Write as _;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
};

fn errands() -> Errands {
    Errands::new(&spec::Egress::default()).unwrap().with_patience(Duration::from_secs(5))
}

async fn server() -> (TcpListener, Site) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    (listener, Site::new(Scheme::Http, &format!("127.0.0.1:{port}")).unwrap())
}

/// Reads one head.
async fn head(stream: &mut TcpStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
    String::from_utf8(head).unwrap()
}

#[tokio::test]
async fn a_connection_is_used_again_once_its_answer_is_over() {
    let (listener, site) = server().await;
    let errands = errands();
    let client = async {
        let first = errands.ask(&site, &Ask::get("/one")).await.unwrap().all(10).await.unwrap();
        let second = errands.ask(&site, &Ask::get("/two")).await.unwrap().all(10).await.unwrap();
        (first, second)
    };
    let server = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        for _ in 0..2 {
            head(&mut stream).await;
            stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await.unwrap();
        }
    };

    let ((first, second), ()) = tokio::join!(client, server);

    assert_eq!((first.as_slice(), second.as_slice()), (b"ok".as_slice(), b"ok".as_slice()));
}

#[tokio::test]
async fn a_connection_that_the_server_left_is_replaced() {
    let (listener, site) = server().await;
    let errands = errands();
    let client = async {
        for _ in 0..2 {
            assert_eq!(errands.ask(&site, &Ask::get("/")).await.unwrap().all(10).await.unwrap(), b"ok");
        }
    };
    let server = async {
        for _ in 0..2 {
            let (mut stream, _) = listener.accept().await.unwrap();
            head(&mut stream).await;
            stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await.unwrap();
        }
    };

    tokio::join!(client, server);
}

#[tokio::test]
async fn a_file_goes_along_with_its_length() {
    let (listener, site) = server().await;
    let errands = errands();
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(&[7; 600_000]).unwrap();
    let sent = Rc::new(Cell::new(0));
    let count = Rc::clone(&sent);
    let told = Rc::new(move |bytes| count.set(count.get() + bytes));
    let content = Content::File { file: Rc::new(file), length: 600_000, told };
    let ask = Ask::new(Method::PUT, "/blob").content(content);
    let server = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        let head = head(&mut stream).await;
        let mut body = vec![0; 600_000];
        stream.read_exact(&mut body).await.unwrap();
        stream.write_all(b"HTTP/1.1 201 Created\r\ncontent-length: 0\r\n\r\n").await.unwrap();
        (head, body)
    };
    let client = async { errands.ask(&site, &ask).await.unwrap().status };

    let (status, (head, body)) = tokio::join!(client, server);

    assert_eq!((status.as_u16(), sent.get()), (201, 600_000));
    assert!(head.contains("content-length: 600000\r\n"), "{head}");
    assert!(body.iter().all(|byte| *byte == 7));
}

#[tokio::test]
async fn an_answer_that_breaks_off_is_lost_and_a_long_one_is_cut() {
    for (answer, words) in [
        ("HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nok", "broke off"),
        ("HTTP/1.1 200 OK\r\n\r\nmuch more than ten bytes", "sent more than 10 bytes"),
        ("SSH-2.0-x\r\n\r\n", "broke off"),
    ] {
        let (listener, site) = server().await;
        let errands = errands();
        let server = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            head(&mut stream).await;
            stream.write_all(answer.as_bytes()).await.unwrap();
        };
        let client = async { errands.ask(&site, &Ask::get("/")).await?.all(10).await };

        let (outcome, ()) = tokio::join!(client, server);

        let error = outcome.unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_silent_server_is_given_up() {
    let (listener, site) = server().await;
    let errands = errands();
    let server = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        head(&mut stream).await;
        std::future::pending::<()>().await;
    };

    let ask = Ask::get("/");
    let error = tokio::select! {
        answer = errands.ask(&site, &ask) => answer.err().unwrap(),
        () = server => unreachable!(),
    };

    assert!(matches!(error, Unanswered::Silent { .. }), "{error}");
    assert!(error.is_passing());
}

#[tokio::test]
async fn nobody_there_is_unreachable() {
    let (listener, site) = server().await;
    drop(listener);

    let error = errands().ask(&site, &Ask::get("/")).await.err().unwrap();

    assert!(matches!(error, Unanswered::Unreachable { .. }), "{error}");
}
