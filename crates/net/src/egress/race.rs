//! Connects to the first of several addresses that answers (happy eyeballs, RFC 8305, section 5).

use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::sleep;

/// How long one address is alone before the next is tried as well.
const STAGGER: Duration = Duration::from_millis(250);
/// Addresses tried at the same time.
const MOST_AT_ONCE: usize = 8;

type Attempt = Pin<Box<dyn Future<Output = io::Result<TcpStream>>>>;

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

/// Connects to one of `addresses`; the error is the last one's.
pub(super) async fn connect(addresses: &[SocketAddr]) -> io::Result<(TcpStream, SocketAddr)> {
    if let [only] = addresses {
        return Ok((attempt(*only).await?, *only));
    }
    let mut waiting = addresses.iter().copied();
    let mut running: Vec<(SocketAddr, Attempt)> = Vec::new();
    let mut last = io::Error::new(io::ErrorKind::AddrNotAvailable, "there is no address to connect to");
    loop {
        if running.len() < MOST_AT_ONCE
            && let Some(address) = waiting.next()
        {
            running.push((address, Box::pin(attempt(address))));
        }
        if running.is_empty() {
            return Err(last);
        }
        let more = waiting.len() > 0;
        tokio::select! {
            biased;
            (address, result) = first(&mut running) => match result {
                Ok(stream) => return Ok((stream, address)),
                Err(error) => last = error,
            },
            () = sleep(STAGGER), if more => {}
        }
    }
}

/// The first attempt that ends; it is taken out.
async fn first(running: &mut Vec<(SocketAddr, Attempt)>) -> (SocketAddr, io::Result<TcpStream>) {
    std::future::poll_fn(|context| {
        for at in 0..running.len() {
            let Some((address, attempt)) = running.get_mut(at) else { continue };
            if let Poll::Ready(result) = attempt.as_mut().poll(context) {
                let address = *address;
                drop(running.swap_remove(at));
                return Poll::Ready((address, result));
            }
        }
        Poll::Pending
    })
    .await
}

async fn attempt(address: SocketAddr) -> io::Result<TcpStream> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    socket.set_nodelay(true)?;
    socket.connect(address).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::net::TcpListener;

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

        let (stream, reached) = connect(&[dead, dead, address]).await.unwrap();

        assert_eq!((reached, stream.peer_addr().unwrap()), (address, address));
        assert!(stream.nodelay().unwrap());
        assert!(began.elapsed() < 2 * STAGGER, "neither refusal was waited for");
    }

    #[tokio::test]
    async fn an_address_that_is_silent_does_not_hold_up_the_next() {
        let (_full, silent) = silent().await;
        let alive = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = alive.local_addr().unwrap();

        let (_, reached) = connect(&[silent, address]).await.unwrap();

        assert_eq!(reached, address);
    }

    #[tokio::test]
    async fn no_address_is_an_error() {
        assert!(connect(&[]).await.is_err());
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
