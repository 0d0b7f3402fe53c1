//! Hostile frames and hostile HPACK, for both sides of a real connection of HTTP/2.

use super::world::{Server, World};
use crate::{
    flows::What,
    fuzz,
    http::{
        body::Body,
        calls::{Begins, Caller},
        carrier::{Living, Session},
        far::Origin,
        link::Link,
        near,
        target::Connection,
        tasks::Tasks,
    },
    tls::{Stream, Wire},
};
use airlock_gate::{Crossing, host::Target};
use http::{Request, Version};
use http_body_util::{BodyExt as _, Full};
use std::{rc::Rc, time::Duration};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    task::LocalSet,
    time::timeout,
};

/// Inputs as part of the tests: each is a connection.
const SOME: u64 = 200;
/// Longer than any input takes.
const LONG: Duration = Duration::from_secs(20);
/// Nothing comes for so long: nothing will.
const QUIET: Duration = Duration::from_millis(5);
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// A frame: its kind, its flags, its stream, what is in it.
fn frame(kind: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
    let [_, high, middle, low] = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&[high, middle, low, kind, flags, 0, 0, 0, stream], payload].concat()
}

/// The head of a request as HPACK, with this name for the server and more behind it.
fn head(authority: &str, more: &[u8]) -> Vec<u8> {
    let length = u8::try_from(authority.len()).unwrap();
    [&[0x82, 0x87, 0x84, 0x41, length], authority.as_bytes(), more].concat()
}

/// Two ends of a connection.
async fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let one = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    (one, listener.accept().await.unwrap().0)
}

/// Says something and hears what comes, until both have ended.
async fn say(mut socket: TcpStream, bytes: &[u8]) -> Vec<u8> {
    let mut heard = Vec::new();
    // The other end may have had enough.
    let _ = socket.write_all(bytes).await;
    // What is asked is answered while something comes; whoever waits for more is left.
    while let Ok(Ok(1..)) = timeout(QUIET, socket.read_buf(&mut heard)).await {}
    let _ = socket.shutdown().await;
    let _ = socket.read_to_end(&mut heard).await;
    heard
}

/// The kinds of frames that came, and the reasons that some of them tell.
fn told(mut heard: &[u8]) -> String {
    let mut said = String::new();
    while let [high, middle, low, kind, _, _, _, _, _, rest @ ..] = heard {
        let length = usize::from(*high) << 16 | usize::from(*middle) << 8 | usize::from(*low);
        let payload = rest.get(..length).unwrap_or_default();
        let reason = match kind {
            3 => payload.get(3),
            7 => payload.get(7),
            _ => None,
        };
        said.push_str(&format!("{kind}:{} ", reason.copied().unwrap_or_default()));
        heard = rest.get(length..).unwrap_or_default();
    }
    said
}

/// One program that says this; what it heard.
async fn program(world: &World, bytes: &[u8]) -> Vec<u8> {
    let target: Target = "a.test".parse().unwrap();
    let crossing = Crossing::Connect { target: target.clone(), port: world.port };
    let permit = world.carrier.gate.ask(crossing).await.unwrap();
    let ticket = world.carrier.flows.enter().unwrap();
    ticket.decided(What::Out { target: target.clone(), port: world.port, asked: false });
    let (inside, near) = pair().await;
    let wire = Wire::new(near);
    let session = Rc::new(Session::new(&world.carrier, &permit, wire.counts(), ticket.handle()));
    session.is_http2.set(true);
    let living = Living(Rc::clone(&session));
    let connection = Connection { target, port: world.port, is_tls: true };
    let origin = Rc::new(Origin::new(&session, connection, vec![b"http/1.1"], Some(permit)));
    let served = async {
        near::serve(&session, &origin, Stream::Plain(wire)).await;
        origin.retire();
        drop(living);
    };
    tokio::join!(say(inside, bytes), served).0
}

#[test]
fn whatever_a_program_says_in_http2_only_what_was_judged_reaches_a_server() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let local = LocalSet::new();
    let world = local.block_on(&runtime, World::new(Server::Http1));
    let name = format!("a.test:{}", world.port);
    let settings = frame(4, 0, 0, &[0, 3, 0, 0, 0, 9, 0, 1, 0, 0, 0x10, 0]);
    let begin = [PREFACE, &settings].concat();
    let asks = |frames: &[Vec<u8>]| [std::slice::from_ref(&begin), frames].concat().concat();
    let seeds = [
        asks(&[frame(1, 5, 1, &head(&name, &[]))]),
        asks(&[frame(1, 5, 1, &head("b.test", &[]))]),
        // The head in two pieces, the size of the table, a name that is not known, a piece in Huffman's code.
        asks(&[
            frame(1, 1, 1, &head(&name, &[])[..5]),
            frame(
                9,
                4,
                1,
                &[&head(&name, &[])[5..], &[0x20, 0x40, 1, b'x', 1, b'y', 0x90, 0x82, 0xf1]].concat(),
            ),
        ]),
        // A body with padding, windows, a ping, a reset, a priority, a farewell.
        asks(&[
            frame(1, 4, 3, &[&[0x83][..], &head(&name, &[])[1..]].concat()),
            frame(0, 8, 3, &[2, b'h', b'i', 0, 0]),
            frame(8, 0, 0, &[0, 0, 0, 9]),
            frame(6, 0, 0, &[7; 8]),
            frame(2, 0, 3, &[0, 0, 0, 1, 9]),
            frame(0, 1, 3, b"end"),
            frame(3, 0, 3, &[0, 0, 0, 8]),
            frame(7, 0, 0, &[0; 8]),
        ]),
    ];
    fuzz::run_some(SOME, &seeds.each_ref().map(Vec::as_slice), |input| {
        let heard = local.block_on(&runtime, async { timeout(LONG, program(&world, input)).await });
        told(&heard.expect("it never ended"))
    });
    let reached = world.seen().iter().filter(|line| line.contains(" HTTP/")).count();
    let judged = world.recorded(&["\"crossing\":\"request\"", "\"verdict\":\"allow\""]);
    assert!(reached > 0 && reached <= judged, "{reached} reached a server, {judged} were judged");
}

/// Asks a server that says this; what came of it.
async fn server(bytes: &[u8]) -> String {
    let (near, far) = pair().await;
    let wire = Wire::new(near);
    let (tasks, link) = (Tasks::default(), Link::new(far.peer_addr().unwrap(), wire.counts()));
    let begins = Begins { stream_window: 1 << 16, connection_window: 1 << 16, frame: 1 << 14, head: 1 << 14 };
    let asked = async {
        let (sender, connection) = begins.greet(Stream::Plain(wire)).await.map_err(|err| err.to_string())?;
        let mut caller = Caller::new(sender, &link, &tasks);
        link.run(&tasks, connection);
        let request = Request::get("https://a.test/").version(Version::HTTP_2);
        let request = request.body(Body::Ours(Full::default())).unwrap();
        let mut hints = 0;
        let answered = caller.call(request, |_, _| hints += 1).await;
        let answer = answered.map_err(|unanswered| unanswered.why)?;
        let status = answer.status().as_u16();
        let whole = answer.into_body().collect().await;
        let length = whole.map(|whole| (whole.trailers().is_some(), whole.to_bytes().len()));
        Ok::<String, String>(format!("{status} {hints} {length:?}"))
    };
    let (came, _) = tokio::join!(asked, say(far, bytes));
    link.end();
    tasks.end();
    came.unwrap_or_else(|why| why)
}

#[test]
fn whatever_a_server_says_in_http2_is_an_answer_or_an_error() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let local = LocalSet::new();
    let (settings, taken) = (frame(4, 0, 0, &[]), frame(4, 1, 0, &[]));
    let says = |frames: &[Vec<u8>]| [&[settings.clone(), taken.clone()], frames].concat().concat();
    // A status that HPACK has no number for.
    let hint = [0x48, 3, b'1', b'0', b'3', 0x40, 1, b'a', 1, b'b'];
    let seeds = [
        says(&[frame(1, 5, 1, &[0x88])]),
        says(&[frame(1, 4, 1, &hint), frame(1, 4, 1, &[0x88]), frame(0, 1, 1, b"done")]),
        says(&[frame(1, 4, 1, &[0x88, 0x5c, 1, b'4']), frame(0, 0, 1, b"do"), frame(0, 1, 1, b"ne")]),
        says(&[frame(1, 4, 1, &[0x8d]), frame(0, 0, 1, b"x"), frame(1, 5, 1, &[0x40, 1, b'e', 1, b'f'])]),
        says(&[frame(3, 0, 1, &[0, 0, 0, 7]), frame(7, 0, 0, &[0; 8]), frame(5, 4, 1, &[0, 0, 0, 2, 0x82])]),
    ];
    fuzz::run_some(SOME, &seeds.each_ref().map(Vec::as_slice), |input| {
        let came = local.block_on(&runtime, async { timeout(LONG, server(input)).await });
        came.expect("it never ended").chars().filter(|letter| !letter.is_ascii_digit()).collect()
    });
}
