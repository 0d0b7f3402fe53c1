//! Both ends of the measured connections: a server that echoes or pours, and a client that times. They are this same
//! program, executed anew: the server outside, the client wherever the contender puts it.

use anyhow::{Context as _, Result, bail};
use serde_json::json;
use std::{
    io::{BufRead as _, Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs},
    sync::atomic::{AtomicU64, Ordering},
    thread,
    time::{Duration, Instant},
};

/// A request and its answer.
const MESSAGE: usize = 64;
/// A piece of a long stream.
const PIECE: usize = 256 * 1024;
/// What the client asks for with its first byte.
const ECHO: u8 = b'e';
const POUR: u8 = b'p';

/// `xtask way-server ADDRESS`: serves until it is killed.
pub(crate) fn serve(args: Vec<String>) -> Result<()> {
    let listener = TcpListener::bind(args.first().context("way-server wants an address")?)?;
    println!("ready");
    std::io::stdout().flush()?;
    for stream in listener.incoming() {
        let stream = stream?;
        thread::Builder::new().stack_size(64 * 1024).spawn(move || answer(stream))?;
    }
    Ok(())
}

fn answer(mut stream: TcpStream) -> Result<()> {
    stream.set_nodelay(true)?;
    let mut first = [0u8; 1];
    stream.read_exact(&mut first)?;
    match first {
        [ECHO] => {
            let mut message = [0u8; MESSAGE];
            while stream.read_exact(&mut message).is_ok() {
                stream.write_all(&message)?;
            }
        }
        _ => {
            let piece = vec![0u8; PIECE];
            while stream.write_all(&piece).is_ok() {}
        }
    }
    Ok(())
}

/// `xtask way-client NAME:PORT SECONDS`: prints one JSON object. `xtask way-client NAME:PORT hold N`: holds N connections
/// until its input ends. `xtask way-client NAME:PORT pour BYTES`: reads that much.
///
/// The name is looked up once, before anything is timed; only `named` looks it up anew for each connection.
pub(crate) fn time(args: Vec<String>) -> Result<()> {
    let mut args = args.iter();
    let name = args.next().context("way-client wants an address")?;
    let address = name.to_socket_addrs()?.next().context("the name has no address")?;
    match (args.next().map(String::as_str), args.next()) {
        (Some("hold"), Some(count)) => hold(address, count.parse()?),
        (Some("pour"), Some(bytes)) => {
            let (read, _) = pour(address, bytes.parse()?, Duration::MAX)?;
            println!("{read}");
            Ok(())
        }
        (Some(seconds), None) => {
            let each = Duration::from_secs_f64(seconds.parse()?);
            let (bytes, took) = pour(address, u64::MAX, each)?;
            let figures = json!({
                "stream": mega(bytes) / took.as_secs_f64(),
                "kept": kept(address, each)?,
                "new": new(address, each)?,
                "rate": rate(address, each)?,
                "named": named(name, each)?,
            });
            println!("{figures}");
            Ok(())
        }
        _ => bail!("way-client wants an address and seconds"),
    }
}

#[expect(clippy::cast_precision_loss, reason = "a figure for people")]
fn mega(bytes: u64) -> f64 {
    bytes as f64 / 1e6
}

/// How long an answer may take: some peers lose a connection under load.
const PATIENCE: Duration = Duration::from_secs(5);

fn open(address: impl ToSocketAddrs, wanted: u8) -> Result<TcpStream> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(&[wanted])?;
    Ok(stream)
}

fn pour(address: SocketAddr, most: u64, longest: Duration) -> Result<(u64, Duration)> {
    let mut stream = open(address, POUR)?;
    let mut piece = vec![0u8; PIECE];
    let (begin, mut bytes) = (Instant::now(), 0u64);
    while bytes < most && begin.elapsed() < longest {
        let count = stream.read(&mut piece)?;
        if count == 0 {
            bail!("the stream ended after {bytes} bytes");
        }
        bytes += u64::try_from(count)?;
    }
    Ok((bytes, begin.elapsed()))
}

fn exchange(stream: &mut TcpStream) -> Result<()> {
    let mut message = [7u8; MESSAGE];
    stream.write_all(&message)?;
    Ok(stream.read_exact(&mut message)?)
}

/// Microseconds of one exchange on a connection that is there already, the median.
fn kept(address: SocketAddr, long: Duration) -> Result<f64> {
    let mut stream = open(address, ECHO)?;
    sample(long, || exchange(&mut stream))
}

/// Microseconds of a connection with one exchange, the median.
fn new(address: SocketAddr, long: Duration) -> Result<f64> {
    sample(long, || exchange(&mut open(address, ECHO)?))
}

/// The same where each connection looks the name up first.
fn named(name: &str, long: Duration) -> Result<f64> {
    sample(long, || exchange(&mut open(name, ECHO)?))
}

fn sample(long: Duration, mut once: impl FnMut() -> Result<()>) -> Result<f64> {
    once()?;
    let (begin, mut samples) = (Instant::now(), Vec::new());
    while begin.elapsed() < long {
        let began = Instant::now();
        once()?;
        samples.push(began.elapsed().as_secs_f64() * 1e6);
    }
    super::super::contender::median(samples).context("nothing was sampled")
}

/// Connections with one exchange each per second, 32 at once.
fn rate(address: SocketAddr, long: Duration) -> Result<f64> {
    let (begin, done) = (Instant::now(), AtomicU64::new(0));
    thread::scope(|scope| {
        for _ in 0..32 {
            scope.spawn(|| {
                while begin.elapsed() < long && open(address, ECHO).and_then(|mut s| exchange(&mut s)).is_ok()
                {
                    done.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    Ok(mega(done.load(Ordering::Relaxed)) * 1e6 / begin.elapsed().as_secs_f64())
}

fn hold(address: SocketAddr, count: usize) -> Result<()> {
    let mut held = Vec::new();
    for _ in 0..count {
        let mut stream = open(address, ECHO)?;
        exchange(&mut stream)?;
        held.push(stream);
    }
    println!("ready");
    std::io::stdout().flush()?;
    std::io::stdin().lock().read_line(&mut String::new())?;
    for stream in &mut held {
        exchange(stream)?;
    }
    Ok(())
}
