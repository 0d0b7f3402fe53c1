//! The way through a proxy that is spoken to in TLS.
//!
//! Everything behind the dialler moves bytes between sockets, so what it gets is one: the other end of it is ours, and a task of
//! the dialler carries what comes there through the TLS to the proxy.

use super::proxy::{Proxy, ProxyError};
use crate::tls::{Upstream, Wire};
use airlock_gate::host::Target;
use std::{cell::RefCell, io, net::Ipv4Addr};
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpSocket, TcpStream},
    task::JoinSet,
};
use tokio_rustls::client::TlsStream;

/// What is carried now.
#[derive(Default)]
pub(super) struct Tunnels(RefCell<JoinSet<()>>);

impl Tunnels {
    /// Speaks TLS with the proxy on `stream`, verified as servers are, and asks for a way through.
    pub(super) async fn open(
        &self,
        trust: &Upstream,
        proxy: &Proxy,
        stream: TcpStream,
        (target, port): (&Target, u16),
    ) -> Result<TcpStream, ProxyError> {
        let untrusted = |err: crate::tls::Untrusted| ProxyError::Untrusted(err.to_string());
        let (mut tls, _) =
            trust.connect(&proxy.target, &[], &[b"http/1.1"], Wire::new(stream)).await.map_err(untrusted)?;
        proxy.connect_inside(&mut tls, target, port).await?;
        let (ours, theirs) = pair().await?;
        let mut running = self.0.borrow_mut();
        while running.try_join_next().is_some() {}
        running.spawn(carry(tls, ours));
        Ok(theirs)
    }
}

/// Until both directions have ended. What is lost on one side is a reset on the other.
async fn carry(mut tls: TlsStream<Wire>, mut ours: TcpStream) {
    if copy_bidirectional(&mut tls, &mut ours).await.is_err() {
        // A socket that is gone already needs no reset.
        let _ = ours.set_zero_linger();
        tls.get_ref().0.counts().resets(true);
    }
}

/// Two ends of one connection, both ours.
async fn pair() -> io::Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let socket = TcpSocket::new_v4()?;
    socket.bind((Ipv4Addr::LOCALHOST, 0).into())?;
    let own = socket.local_addr()?;
    let theirs = socket.connect(listener.local_addr()?).await?;
    loop {
        // Anybody on this host may knock there before us.
        let (ours, peer) = listener.accept().await?;
        if peer == own {
            ours.set_nodelay(true)?;
            theirs.set_nodelay(true)?;
            return Ok((ours, theirs));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    #[tokio::test]
    async fn the_ends_of_a_pair_are_each_others() {
        let (mut ours, mut theirs) = pair().await.unwrap();

        ours.write_all(b"here").await.unwrap();
        ours.shutdown().await.unwrap();

        let mut read = String::new();
        theirs.read_to_string(&mut read).await.unwrap();
        assert_eq!(read, "here");
        assert_eq!(ours.peer_addr().unwrap(), theirs.local_addr().unwrap());
    }
}
