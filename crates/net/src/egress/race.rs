//! Connects to the first of several addresses that answers (happy eyeballs, RFC 8305, section 5).

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with, sockopt};
use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::sleep;

/// How long one address is alone before the next is tried as well.
const STAGGER: Duration = Duration::from_millis(250);
/// Addresses tried at the same time.
const MOST_AT_ONCE: usize = 8;

/// Sockets of attempts that run beside the first of their flow, which has its own place among the descriptors: so many of
/// all flows together. Others wait for one to end.
pub(super) const MOST_BESIDE: usize = 64;

type Attempt = Pin<Box<dyn Future<Output = io::Result<TcpStream>>>>;

struct Running<'a> {
    address: SocketAddr,
    attempt: Attempt,
    /// Its place beside the first; whoever comes after it takes it over.
    place: Option<SemaphorePermit<'a>>,
}

/// The order in which addresses are tried: IPv6 first, then by turns.
pub(super) fn interleave(addresses: &[IpAddr]) -> Vec<IpAddr> {
    let (mut v6, mut v4): (Vec<IpAddr>, Vec<IpAddr>) =
        addresses.iter().rev().copied().partition(|address| address.is_ipv6());
    let mut order = Vec::with_capacity(addresses.len());
    while !(v6.is_empty() && v4.is_empty()) {
        order.extend(v6.pop());
        order.extend(v4.pop());
    }
    order
}

/// Connects to one of `addresses`; the error is the last one's. Attempts beside the first take a place of `beside`.
pub(super) async fn connect(
    addresses: &[SocketAddr],
    beside: &Semaphore,
) -> io::Result<(TcpStream, SocketAddr)> {
    if let [only] = addresses {
        return Ok((attempt(*only).await?, *only));
    }
    let mut waiting = addresses.iter().copied();
    let mut running: Vec<Running<'_>> =
        waiting.next().map(|first| Running::to(first, None)).into_iter().collect();
    let mut last = io::Error::new(io::ErrorKind::AddrNotAvailable, "there is no address to connect to");
    while !running.is_empty() {
        let more = waiting.len() > 0 && running.len() < MOST_AT_ONCE;
        tokio::select! {
            biased;
            (over, result) = first(&mut running) => match result {
                Ok(stream) => return Ok((stream, over.address)),
                Err(error) => {
                    last = error;
                    running.extend(waiting.next().map(|address| Running::to(address, over.place)));
                }
            },
            place = place(beside), if more => {
                running.extend(place.and_then(|place| Some(Running::to(waiting.next()?, Some(place)))));
            }
        }
    }
    Err(last)
}

/// A place for one more attempt, after a while.
async fn place(beside: &Semaphore) -> Option<SemaphorePermit<'_>> {
    sleep(STAGGER).await;
    beside.acquire().await.ok()
}

impl<'a> Running<'a> {
    fn to(address: SocketAddr, place: Option<SemaphorePermit<'a>>) -> Running<'a> {
        Running { address, attempt: Box::pin(attempt(address)), place }
    }
}

/// The first attempt that ends; it is taken out.
async fn first<'a>(running: &mut Vec<Running<'a>>) -> (Running<'a>, io::Result<TcpStream>) {
    std::future::poll_fn(|context| {
        for at in 0..running.len() {
            let Some(one) = running.get_mut(at) else { continue };
            if let Poll::Ready(result) = one.attempt.as_mut().poll(context) {
                return Poll::Ready((running.swap_remove(at), result));
            }
        }
        Poll::Pending
    })
    .await
}

/// A host nearby has often answered when the call returns: then nobody waits to be told so.
async fn attempt(address: SocketAddr) -> io::Result<TcpStream> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(family, SocketType::STREAM, flags, None)?;
    sockopt::set_tcp_nodelay(&socket, true)?;
    match rustix::net::connect(&socket, &address) {
        Ok(()) | Err(Errno::INPROGRESS) => {}
        Err(error) => return Err(error.into()),
    }
    let stream = TcpStream::from_std(socket.into())?;
    if stream.peer_addr().is_ok() {
        return Ok(stream);
    }
    stream.writable().await?;
    match stream.take_error()? {
        None => Ok(stream),
        Some(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::net::{TcpListener, TcpSocket};

    fn addresses(texts: &[&str]) -> Vec<IpAddr> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn families_take_turns_and_ipv6_begins() {
        let given = addresses(&["192.0.2.1", "192.0.2.2", "192.0.2.3", "2001:db8::1"]);
        assert_eq!(interleave(&given), addresses(&["2001:db8::1", "192.0.2.1", "192.0.2.2", "192.0.2.3"]));
    }

    #[tokio::test]
    async fn an_address_that_refuses_makes_room_for_the_next_at_once() {
        let dead = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
        let alive = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = alive.local_addr().unwrap();
        let began = std::time::Instant::now();

        let (stream, reached) = connect(&[dead, dead, address], &Semaphore::new(0)).await.unwrap();

        assert_eq!((reached, stream.peer_addr().unwrap()), (address, address));
        assert!(stream.nodelay().unwrap());
        assert!(began.elapsed() < 2 * STAGGER, "neither refusal was waited for");
    }

    #[tokio::test]
    async fn an_address_that_is_silent_does_not_hold_up_the_next() {
        let (_full, silent) = silent().await;
        let alive = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = alive.local_addr().unwrap();

        let (_, reached) = connect(&[silent, address], &Semaphore::new(1)).await.unwrap();

        assert_eq!(reached, address);
    }

    #[tokio::test]
    async fn attempts_beside_the_first_wait_for_a_place() {
        let (_full, silent) = silent().await;
        let beside = Semaphore::new(3);
        let many = [silent; 32];
        let dials = async { tokio::join!(connect(&many, &beside), connect(&many, &beside)) };
        tokio::pin!(dials);

        while beside.available_permits() > 0 {
            let waited = tokio::time::timeout(STAGGER, &mut dials).await;
            assert!(waited.is_err(), "nobody answered");
        }
        let more = tokio::time::timeout(3 * STAGGER, &mut dials).await;
        assert!(more.is_err() && beside.available_permits() == 0, "nobody answered, and there is no place");
        // One address needs none.
        let alive = TcpListener::bind("127.0.0.1:0").await.unwrap();
        assert!(connect(&[alive.local_addr().unwrap()], &beside).await.is_ok());
    }

    #[tokio::test]
    async fn a_connection_to_nobody_is_refused() {
        let dead = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();

        let error = connect(&[dead], &Semaphore::new(0)).await.unwrap_err();

        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
    }

    #[tokio::test]
    async fn no_address_is_an_error() {
        assert!(connect(&[], &Semaphore::new(1)).await.is_err());
    }

    /// A listener whose queue is full, so that the kernel drops further connections.
    async fn silent() -> (Vec<TcpStream>, SocketAddr) {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let listener = socket.listen(0).unwrap();
        let address = listener.local_addr().unwrap();
        let mut held = Vec::new();
        while let Ok(Ok(stream)) =
            tokio::time::timeout(Duration::from_millis(100), TcpStream::connect(address)).await
        {
            held.push(stream);
        }
        std::mem::forget(listener);
        (held, address)
    }
}
