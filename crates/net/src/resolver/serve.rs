//! The sockets of the sandbox's name server.

use super::Resolver;
use crate::dns::Transport;
use std::future::poll_fn;
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

/// Questions looked up at once over UDP, and connections over TCP, for each socket.
const MOST_QUESTIONS: usize = 64;
const MOST_CONNECTIONS: usize = 64;
/// Longest message that is taken.
const LONGEST: usize = 4096;
/// How long a connection may be silent, and how long one answer may take to leave.
const IDLE: Duration = Duration::from_secs(10);
/// How long nothing is accepted after an error.
const REST: Duration = Duration::from_millis(100);

/// Serves on the sockets until the tasks end.
pub fn serve(
    udp: Vec<OwnedFd>,
    tcp: Vec<OwnedFd>,
    resolver: &Rc<Resolver>,
    tasks: &mut JoinSet<()>,
) -> io::Result<()> {
    for socket in udp {
        let socket = std::net::UdpSocket::from(socket);
        socket.set_nonblocking(true)?;
        tasks.spawn_local(datagrams(UdpSocket::from_std(socket)?, Rc::clone(resolver)));
    }
    for listener in tcp {
        let listener = std::net::TcpListener::from(listener);
        listener.set_nonblocking(true)?;
        tasks.spawn_local(streams(TcpListener::from_std(listener)?, Rc::clone(resolver)));
    }
    Ok(())
}

/// Most questions are answered before the next one is read, so that a flood of them is soon through.
async fn datagrams(socket: UdpSocket, resolver: Rc<Resolver>) {
    let socket = Rc::new(socket);
    let mut questions = JoinSet::new();
    let mut buffer = vec![0; LONGEST + 1];
    loop {
        while questions.try_join_next().is_some() {}
        if questions.len() >= MOST_QUESTIONS {
            questions.join_next().await;
        }
        let Ok((length, from)) = socket.recv_from(&mut buffer).await else {
            // A client that is gone already is reported here; the next question is another's.
            tokio::task::yield_now().await;
            continue;
        };
        let asked = buffer.get(..length).unwrap_or_default().to_vec();
        let (socket, resolver) = (Rc::clone(&socket), Rc::clone(&resolver));
        let mut answered = Box::pin(async move {
            if let Some(reply) = resolver.answer(&asked, Transport::Udp).await {
                // Whoever does not wait for the answer does not get it.
                _ = socket.send_to(&reply, from).await;
            }
        });
        let is_answered = poll_fn(|cx| Poll::Ready(answered.as_mut().poll(cx).is_ready())).await;
        if !is_answered {
            questions.spawn_local(answered);
        }
    }
}

async fn streams(listener: TcpListener, resolver: Rc<Resolver>) {
    let mut connections = JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        if connections.len() >= MOST_CONNECTIONS {
            connections.join_next().await;
        }
        match listener.accept().await {
            Ok((stream, _)) => _ = connections.spawn_local(stream_of(stream, Rc::clone(&resolver))),
            Err(_) => sleep(REST).await,
        }
    }
}

/// Answers one question after the other until the client ends, is silent, or talks nonsense.
async fn stream_of(mut stream: TcpStream, resolver: Rc<Resolver>) {
    let mut asked = Vec::new();
    while let Ok(Ok(())) = timeout(IDLE, read(&mut stream, &mut asked)).await {
        let Some(reply) = resolver.answer(&asked, Transport::Tcp).await else { return };
        let Ok(length) = u16::try_from(reply.len()) else { return };
        let mut framed = length.to_be_bytes().to_vec();
        framed.extend(reply);
        let Ok(Ok(())) = timeout(IDLE, stream.write_all(&framed)).await else { return };
    }
}

/// Reads one message with its length before it (RFC 1035, 4.2.2).
async fn read(stream: &mut TcpStream, asked: &mut Vec<u8>) -> io::Result<()> {
    let length = usize::from(stream.read_u16().await?);
    if length > LONGEST {
        return Err(io::ErrorKind::InvalidData.into());
    }
    asked.resize(length, 0);
    stream.read_exact(asked).await?;
    Ok(())
}
