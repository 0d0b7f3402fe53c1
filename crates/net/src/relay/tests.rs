use super::*;
use crate::tests::setup;
use airlock_gate::{Crossing, Gate, Setup, policy};
use proptest::prelude::*;
use std::{
    io::{ErrorKind, Read, Write},
    net::Shutdown,
    rc::Rc,
    thread,
    time::Duration,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::{JoinSet, LocalSet},
};

/// A flow, and the programs' ends of it.
async fn flow() -> (TcpStream, Ends, TcpStream) {
    let (client, near) = pair().await;
    let (far, server) = pair().await;
    (client, Ends { near, far }, server)
}

async fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (one, other) = tokio::join!(TcpStream::connect(listener.local_addr().unwrap()), listener.accept());
    (one.unwrap(), other.unwrap().0)
}

fn blocking(stream: TcpStream) -> std::net::TcpStream {
    let stream = stream.into_std().unwrap();
    stream.set_nonblocking(false).unwrap();
    stream
}

fn run<T>(test: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    LocalSet::new().block_on(&runtime, test)
}

/// A byte for every place, so that one lost or doubled is noticed.
fn pattern(place: usize) -> u8 {
    u8::try_from((place ^ (place >> 8) ^ (place >> 16)) & 0xff).unwrap()
}

#[tokio::test(flavor = "current_thread", start_paused = true)]
async fn the_far_end_is_probed_once_a_flow_has_lived_for_a_while() {
    let (_client, mut ends, _server) = flow().await;
    let (pool, moved) = (Pool::new(), Moved::default());

    let mut probed = Vec::new();
    for lives in [LIVES / 2, 2 * LIVES] {
        let relayed = tokio::time::timeout(lives, ends.relay(&pool, &moved, Vec::new(), None)).await;
        assert!(relayed.is_err(), "nobody ended it");
        probed.push(sockopt::socket_keepalive(&ends.far).unwrap());
    }

    assert_eq!(probed, [false, true]);
}

#[test]
fn what_was_said_before_the_flow_began_goes_on_at_once() {
    run(async {
        let (mut client, mut ends, mut server) = flow().await;
        let (pool, moved) = (Pool::new(), Moved::default());
        client.write_all(b"second").await.unwrap();

        let mut relayed = Box::pin(ends.relay(&pool, &moved, b"first ".to_vec(), None));
        let once = poll_fn(|cx| Poll::Ready(relayed.as_mut().poll(cx).is_pending())).await;

        let mut heard = [0; 12];
        server.read_exact(&mut heard).await.unwrap();
        assert_eq!((once, &heard, moved.sent.get()), (true, b"first second", 12));
    });
}

#[test]
fn one_end_can_end_and_still_be_answered() {
    run(async {
        let (mut client, mut ends, mut server) = flow().await;
        let (pool, moved) = (Pool::new(), Moved::default());

        let talk = async {
            client.write_all(b"question").await.unwrap();
            client.shutdown().await.unwrap();
            let mut asked = String::new();
            server.read_to_string(&mut asked).await.unwrap();
            server.write_all(b"the answer").await.unwrap();
            drop(server);
            let mut answered = String::new();
            client.read_to_string(&mut answered).await.unwrap();
            (asked, answered)
        };
        let relayed = async {
            let end = ends.relay(&pool, &moved, Vec::new(), None).await;
            // The end that is left is told by this.
            drop(ends);
            end
        };
        let (end, said) = tokio::join!(relayed, talk);

        assert_eq!(said, ("question".to_owned(), "the answer".to_owned()));
        assert_eq!((end, moved.sent.get(), moved.received.get()), (End::Closed, 8, 10));
    });
}

/// What a rule with these keys lets pass.
async fn metered(keys: &str) -> Meter {
    let folder = tempfile::tempdir().unwrap();
    let policy = policy::parse_toml("airlock.toml", &format!("{keys}\n")).unwrap().policy;
    let setup = Setup { ask_timeout: Duration::from_secs(1), ..setup(folder.path(), policy) };
    let gate = Gate::new(setup).unwrap();
    let target = "a.test".parse().unwrap();
    gate.ask(Crossing::Connect { target, port: 443 }).await.unwrap().meter()
}

/// Time is not waited for: it passes when nothing else happens.
fn run_paused<T>(test: impl Future<Output = T>) -> T {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().start_paused(true).build().unwrap();
    LocalSet::new().block_on(&runtime, test)
}

#[test]
fn a_flow_is_as_slow_as_its_bandwidth_and_holds_no_more_than_a_piece() {
    for keys in [
        "[[rule]]\nallow = 'a.test'\nbandwidth = '100K/s'",
        "bandwidth = '100K/s'\n[[rule]]\nallow = 'a.test'",
    ] {
        run_paused(async {
            let (mut client, mut ends, mut server) = flow().await;
            let (pool, moved) = (Pool::new(), Moved::within(metered(keys).await));
            let total = 1 << 20;
            let talk = async {
                let bytes: Vec<u8> = (0..total).map(pattern).collect();
                let mut got = Vec::new();
                let send = async {
                    client.write_all(&bytes).await.unwrap();
                    client.shutdown().await.unwrap();
                };
                let receive = async {
                    server.read_to_end(&mut got).await.unwrap();
                    server.shutdown().await.unwrap();
                };
                tokio::join!(send, receive);
                (got == bytes, client)
            };
            let begun = tokio::time::Instant::now();
            let (end, (is_same, _client)) = tokio::join!(ends.relay(&pool, &moved, Vec::new(), None), talk);

            assert!(is_same && end == End::Closed);
            // A second's burst goes at once.
            let seconds = begun.elapsed().as_secs_f64();
            assert!((9.2..9.5).contains(&seconds), "{seconds} s");
            assert_eq!(moved.sent.get(), total as u64);
        });
    }
}

#[test]
fn a_budget_is_never_exceeded_and_its_end_is_a_reset() {
    for (first, keys) in [(Vec::new(), "bytes = '100K'"), (vec![0; 200 << 10], "bytes = '100K'")] {
        run(async {
            let (client, mut ends, mut server) = flow().await;
            let meter = metered(&format!("[[rule]]\nallow = 'a.test'\n{keys}")).await;
            let (pool, moved) = (Pool::new(), Moved::within(meter));
            let mut client = blocking(client);
            let writer = thread::spawn(move || {
                let mut sent = 0;
                while client.write(&[0; 1000]).is_ok_and(|count| count > 0) && sent < 2000 {
                    sent += 1;
                }
                client
            });
            assert_eq!(ends.relay(&pool, &moved, first, None).await, End::Spent);
            drop(ends);
            let mut got = Vec::new();
            assert_eq!(server.read_to_end(&mut got).await.unwrap_err().kind(), ErrorKind::ConnectionReset);
            assert!(moved.sent.get() <= 100 << 10, "{}", moved.sent.get());
            drop(writer.join());
        });
    }
}

#[test]
fn the_first_bytes_go_ahead() {
    run(async {
        let (mut client, mut ends, mut server) = flow().await;
        let (pool, moved) = (Pool::new(), Moved::default());

        let talk = async {
            client.write_all(b"second").await.unwrap();
            drop(client);
            let mut said = String::new();
            server.read_to_string(&mut said).await.unwrap();
            drop(server);
            said
        };
        let (_, said) = tokio::join!(ends.relay(&pool, &moved, b"first ".to_vec(), None), talk);

        assert_eq!(said, "first second");
        assert_eq!((moved.sent.get(), pool.waiting()), (12, 0));
    });
}

#[test]
fn a_reset_of_either_end_is_a_reset_of_the_other() {
    run(async {
        for near in [true, false] {
            let (client, mut ends, server) = flow().await;
            let (pool, moved) = (Pool::new(), Moved::default());
            let (gone, mut left) = if near { (client, server) } else { (server, client) };

            gone.set_zero_linger().unwrap();
            drop(gone);
            assert_eq!(ends.relay(&pool, &moved, Vec::new(), None).await, End::Reset);
            drop(ends);

            assert_eq!(left.read(&mut [0; 8]).await.unwrap_err().kind(), ErrorKind::ConnectionReset);
        }
    });
}

#[test]
fn a_reset_after_a_half_close_is_carried_too() {
    run(async {
        for near in [true, false] {
            let (client, mut ends, server) = flow().await;
            let (pool, moved) = (Pool::new(), Moved::default());
            let (mut gone, mut left) = if near { (client, server) } else { (server, client) };

            let talk = async {
                gone.shutdown().await.unwrap();
                assert_eq!(left.read(&mut [0; 8]).await.unwrap(), 0);
                gone.set_zero_linger().unwrap();
                drop(gone);
            };
            let (end, ()) = tokio::join!(ends.relay(&pool, &moved, Vec::new(), None), talk);
            drop(ends);

            assert_eq!(end, End::Reset);
            assert_ne!(left.write(b"x").await.map_err(|err| err.kind()).ok(), Some(1));
        }
    });
}

#[test]
fn an_end_that_does_not_read_stops_the_other_and_loses_nothing() {
    run(async {
        let (client, mut ends, server) = flow().await;
        let (pool, moved) = (Pool::new(), Moved::default());
        let total = 64 << 20;

        let talk = async {
            let mut place = 0;
            let mut piece = vec![0; 1 << 20];
            // Until it takes no more.
            loop {
                piece.iter_mut().enumerate().for_each(|(at, byte)| *byte = pattern(place + at));
                let full =
                    tokio::time::timeout(std::time::Duration::from_millis(200), client.writable()).await;
                match full.map(|_| client.try_write(&piece)) {
                    Ok(Ok(taken)) => place += taken,
                    Ok(Err(_)) => {}
                    Err(_) => break,
                }
            }
            assert!(place < total, "an end that nobody reads took everything");
            assert!(pool.waiting() <= 64 * 1024 && pool.pipes() <= 1);
            (client, server, place)
        };
        let ((mut client, mut server, written), relayed) = tokio::select! {
            parts = talk => (parts, ()),
            _ = ends.relay(&pool, &moved, Vec::new(), None) => panic!("it ended"),
        };
        let () = relayed;
        // The flow was dropped while it held bytes: they are the ones not delivered.
        assert_eq!((pool.waiting(), pool.pipes()), (0, 0));
        drop(ends);
        client.shutdown().await.ok();
        let mut got = Vec::new();
        server.read_to_end(&mut got).await.ok();
        assert!(got.len() <= written && got.iter().enumerate().all(|(at, byte)| *byte == pattern(at)));
        assert_eq!(u64::try_from(got.len()).unwrap(), moved.sent.get());
    });
}

#[test]
fn nothing_goes_on_before_it_was_looked_at() {
    run(async {
        let (mut client, mut ends, server) = flow().await;
        let (pool, moved) = (Pool::new(), Moved::default());
        let mut count = 0;
        let look: Look = Box::new(move |bytes| {
            count += bytes.len();
            match count {
                0..6 => Seen::Hold,
                6..10 => Seen::Pass,
                _ => Seen::Over,
            }
        });

        let talk = async {
            let mut said = [0; 32];
            for byte in b"12345" {
                client.write_all(&[*byte]).await.unwrap();
                while pool.waiting() + 48 < usize::from(*byte) {
                    tokio::task::yield_now().await;
                }
                assert_eq!(server.try_read(&mut said).unwrap_err().kind(), ErrorKind::WouldBlock);
            }
            client.write_all(b"6").await.unwrap();
            server.readable().await.unwrap();
            let all = server.try_read(&mut said).unwrap();
            let whole = said[..all].to_vec();
            client.write_all(b"789 and more").await.unwrap();
            client.shutdown().await.unwrap();
            drop(server);
            whole
        };
        let (_, whole) = tokio::join!(ends.relay(&pool, &moved, Vec::new(), Some(look)), talk);

        assert_eq!(whole, b"123456");
    });
}

#[test]
fn what_is_refused_resets_both_ends() {
    run(async {
        let (mut client, mut ends, mut server) = flow().await;
        let (pool, moved) = (Pool::new(), Moved::default());
        let look: Look = Box::new(|_| Seen::Refuse("no".to_owned()));

        client.write_all(b"hello").await.unwrap();
        let end = ends.relay(&pool, &moved, Vec::new(), Some(look)).await;
        drop(ends);

        assert_eq!((end, moved.sent.get()), (End::Refused("no".to_owned()), 0));
        assert_eq!(client.read(&mut [0; 8]).await.unwrap_err().kind(), ErrorKind::ConnectionReset);
        assert_eq!(server.read(&mut [0; 8]).await.unwrap_err().kind(), ErrorKind::ConnectionReset);
    });
}

#[test]
fn more_long_flows_than_pipes_all_arrive() {
    run(async {
        let pool = Rc::new(Pool::new());
        let mut flows = JoinSet::new();
        let mut threads = Vec::new();
        for _ in 0..24 {
            let (client, mut ends, server) = flow().await;
            let (mut client, mut server) = (blocking(client), blocking(server));
            let pool = Rc::clone(&pool);
            flows.spawn_local(async move { ends.relay(&pool, &Moved::default(), Vec::new(), None).await });
            threads.push(thread::spawn(move || {
                let write = thread::spawn(move || {
                    let piece = vec![7; 1 << 20];
                    (0..8).for_each(|_| server.write_all(&piece).unwrap());
                });
                let mut got = Vec::new();
                client.read_to_end(&mut got).unwrap();
                write.join().unwrap();
                got.len()
            }));
        }
        while let Some(end) = flows.join_next().await {
            assert_eq!(end.unwrap(), End::Closed);
        }
        assert!(threads.into_iter().all(|thread| thread.join().unwrap() == 8 << 20));
        assert_eq!((pool.waiting(), pool.pipes()), (0, 0));
    });
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]

    /// Long and short pieces in turn, so that it is copied, spliced and copied again.
    #[test]
    fn every_byte_arrives_once_and_in_order(pieces in prop::collection::vec(
        prop_oneof![1usize..300, 60_000usize..3_000_000], 1..40,
    )) {
        run(async {
            let (client, mut ends, server) = flow().await;
            let (pool, moved) = (Pool::new(), Moved::default());
            let (mut client, mut server) = (blocking(client), blocking(server));
            let total: usize = pieces.iter().sum();

            let write = thread::spawn(move || {
                let mut place = 0;
                for size in pieces {
                    let piece: Vec<u8> = (place..place + size).map(pattern).collect();
                    client.write_all(&piece).unwrap();
                    place += size;
                }
                client.shutdown(Shutdown::Write).unwrap();
                client
            });
            let read = thread::spawn(move || {
                let mut got = Vec::new();
                server.read_to_end(&mut got).unwrap();
                got
            });
            let end = ends.relay(&pool, &moved, Vec::new(), None).await;

            let got = read.join().unwrap();
            drop(write.join().unwrap());
            assert_eq!((end, got.len(), moved.sent.get()), (End::Closed, total, total as u64));
            assert!(got.iter().enumerate().all(|(at, byte)| *byte == pattern(at)));
        });
    }
}
