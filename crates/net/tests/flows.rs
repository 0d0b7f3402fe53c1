//! What flows cost: memory, and (by hand) time.
#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that cannot go on fails")]

use airlock_net::relay::{End, Ends, Moved, Pool};
use std::{
    cell::Cell,
    io::{Read, Write},
    net::{Shutdown, SocketAddr},
    rc::Rc,
    sync::{Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::{JoinSet, LocalSet},
};

/// The memory of the process is read: nothing else may run in it.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

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

/// Resident memory, in kB.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[test]
fn a_thousand_idle_flows_hold_no_buffers() {
    let _alone = alone();
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let wish = rustix::process::Rlimit { current: limit.maximum, maximum: limit.maximum };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, wish).unwrap();
    if limit.maximum.is_some_and(|most| most < 4_500) {
        assert!(std::env::var_os("AIRLOCK_TEST_STRICT").is_none(), "too few descriptors");
        eprintln!("skipped: too few descriptors");
        return;
    }
    run(async {
        let pool = Rc::new(Pool::new());
        let mut flows = JoinSet::new();
        let mut programs = Vec::new();
        let before = resident();

        for _ in 0..1000 {
            let (mut client, mut ends, mut server) = flow().await;
            let pool = Rc::clone(&pool);
            flows.spawn_local(async move {
                let moved = Moved::default();
                ends.relay(&pool, &moved, Vec::new(), None).await
            });
            let mut said = [0; 5];
            client.write_all(b"hello").await.unwrap();
            server.read_exact(&mut said).await.unwrap();
            server.write_all(b"there").await.unwrap();
            client.read_exact(&mut said).await.unwrap();
            programs.push((client, server));
        }

        // Both sockets of the relay and both of the test's own, with their tasks.
        let grown = resident().saturating_sub(before);
        assert!(grown < 8_000, "1,000 flows hold {grown} kB");
        assert_eq!((pool.waiting(), pool.pipes(), flows.len()), (0, 0, 1000));
    });
}

#[test]
fn a_gigabyte_passes_in_constant_memory() {
    let _alone = alone();
    run(async {
        let (client, mut ends, server) = flow().await;
        let (pool, moved) = (Pool::new(), Moved::default());
        let (mut client, mut server) = (blocking(client), blocking(server));
        let total: u64 = 1 << 30;
        let (first, last) = (Cell::new(0), Cell::new(0));

        let write = thread::spawn(move || {
            let piece = vec![7; 256 * 1024];
            for _ in 0..total / 262_144 {
                server.write_all(&piece).unwrap();
            }
            server.shutdown(Shutdown::Write).unwrap();
        });
        let read = thread::spawn(move || {
            let (mut piece, mut got) = (vec![0; 256 * 1024], 0);
            loop {
                match client.read(&mut piece).unwrap() {
                    0 => break got,
                    some => got += u64::try_from(some).unwrap(),
                }
            }
        });
        let watch = async {
            let mut spliced = false;
            while moved.received.get() < total {
                tokio::task::yield_now().await;
                spliced |= pool.pipes() > 0;
                if first.get() == 0 && moved.received.get() > 64 << 20 {
                    first.set(resident());
                }
                last.set(resident());
            }
            spliced
        };
        let (end, spliced) = tokio::join!(ends.relay(&pool, &moved, Vec::new(), None), watch);

        write.join().unwrap();
        assert_eq!((read.join().unwrap(), end, spliced), (total, End::Closed, true));
        assert!(last.get() < first.get() + 3_000, "from {} to {} kB", first.get(), last.get());
        assert_eq!((pool.waiting(), pool.pipes()), (0, 0));
    });
}

/// `cargo test --release -p airlock-net --test flows -- --ignored --nocapture`
#[test]
#[ignore = "prints figures; for a quiet machine and a release build"]
fn what_a_relay_costs_beside_a_direct_connection() {
    let _alone = alone();
    let server = serve();
    let relay = relay_to(server);
    for round in 0..3 {
        for (name, to) in [("direct", server), ("relay", relay)] {
            let kept = kept(to);
            let fresh = fresh(to);
            println!(
                "{round} {name:>6}: {:5.0} MB/s, kept {:?}, new {:?}, {:.0} new/s",
                stream(to),
                kept,
                fresh,
                many(to)
            );
        }
    }
}

/// Answers every byte with one; after a 2 it streams until the end.
fn serve() -> SocketAddr {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            stream.set_nodelay(true).unwrap();
            thread::spawn(move || {
                let mut byte = [0];
                while stream.read(&mut byte).is_ok_and(|read| read == 1) {
                    if byte == [2] {
                        let piece = vec![0; 256 * 1024];
                        (0..8 * 1024).for_each(|_| stream.write_all(&piece).unwrap());
                        return;
                    }
                    stream.write_all(&byte).unwrap();
                }
            });
        }
    });
    address
}

fn relay_to(server: SocketAddr) -> SocketAddr {
    let (tell, told) = std::sync::mpsc::channel();
    thread::spawn(move || {
        run(async move {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            tell.send(listener.local_addr().unwrap()).unwrap();
            let pool = Rc::new(Pool::new());
            let mut flows = JoinSet::new();
            loop {
                let (near, _) = listener.accept().await.unwrap();
                while flows.try_join_next().is_some() {}
                let pool = Rc::clone(&pool);
                flows.spawn_local(async move {
                    let far = TcpStream::connect(server).await.unwrap();
                    near.set_nodelay(true).unwrap();
                    far.set_nodelay(true).unwrap();
                    Ends { near, far }.relay(&pool, &Moved::default(), Vec::new(), None).await
                });
            }
        });
    });
    told.recv().unwrap()
}

fn connect(to: SocketAddr) -> std::net::TcpStream {
    let stream = std::net::TcpStream::connect(to).unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

fn exchange(stream: &mut std::net::TcpStream) {
    stream.write_all(&[1]).unwrap();
    stream.read_exact(&mut [0]).unwrap();
}

fn stream(to: SocketAddr) -> f64 {
    let mut stream = connect(to);
    let (mut piece, mut got, start) = (vec![0; 256 * 1024], 0u32, Instant::now());
    stream.write_all(&[2]).unwrap();
    loop {
        match stream.read(&mut piece).unwrap() {
            0 => return f64::from(got) / 1e6 / start.elapsed().as_secs_f64(),
            some => got += u32::try_from(some).unwrap(),
        }
    }
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

fn kept(to: SocketAddr) -> Duration {
    let mut stream = connect(to);
    let once = |_| {
        let start = Instant::now();
        exchange(&mut stream);
        start.elapsed()
    };
    median((0..5000).map(once).collect())
}

fn fresh(to: SocketAddr) -> Duration {
    let once = |_| {
        let start = Instant::now();
        exchange(&mut connect(to));
        start.elapsed()
    };
    median((0..2000).map(once).collect())
}

/// New connections per second, 32 at once.
fn many(to: SocketAddr) -> f64 {
    let start = Instant::now();
    let threads: Vec<_> =
        (0..32).map(|_| thread::spawn(move || (0..200).for_each(|_| exchange(&mut connect(to))))).collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    32.0 * 200.0 / start.elapsed().as_secs_f64()
}
