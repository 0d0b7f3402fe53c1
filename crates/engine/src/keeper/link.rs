//! Frames to and from the guest. What comes from it is hostile input.

use super::{Keeper, plan};
use airlock_linux::fd;
use airlock_protocol::{
    frame::{Decoder, Frame},
    guest::{FromGuest, ToGuest},
};
use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    rc::Rc,
};
use tokio::{
    io::{Interest, unix::AsyncFd},
    sync::mpsc,
};

/// A message on its way to the guest.
#[derive(Debug)]
pub(super) struct Outgoing {
    pub(super) what: ToGuest,
    pub(super) descriptors: Vec<OwnedFd>,
}

/// Writes what is queued until nobody queues any more.
pub(super) async fn write(link: Rc<AsyncFd<OwnedFd>>, mut queue: mpsc::Receiver<Outgoing>) {
    while let Some(outgoing) = queue.recv().await {
        if let Err(err) = send(&link, &outgoing).await {
            super::note(&format!("could not speak to the guest: {err}"));
            return;
        }
    }
}

/// Hears the guest until it is gone or says something that makes no sense.
pub(super) async fn read(link: Rc<AsyncFd<OwnedFd>>, keeper: Rc<Keeper>) {
    hear(&link, &keeper).await;
    keeper.programs.forget_all();
}

async fn hear(link: &AsyncFd<OwnedFd>, keeper: &Keeper) {
    let mut decoder = Decoder::default();
    let mut bytes = vec![0u8; 16 * 1024];
    loop {
        let received = link
            .async_io(Interest::READABLE, |socket| {
                // Descriptors from inside the wall are never wanted: they close here.
                fd::receive_with_fds(socket.as_fd(), &mut bytes, &mut Vec::new())
            })
            .await;
        let count = match received {
            Ok(0) | Err(_) => return,
            Ok(count) => count,
        };
        decoder.feed(bytes.get(..count).unwrap_or_default());
        loop {
            match decoder.next().and_then(|frame| frame.map(|frame| frame.parse::<FromGuest>()).transpose()) {
                Ok(Some(said)) => keeper.heard(said),
                Ok(None) => break,
                Err(err) => {
                    super::note(&format!("the guest makes no sense: {}", plan::chain(&err)));
                    return;
                }
            }
        }
    }
}

async fn send(link: &AsyncFd<OwnedFd>, outgoing: &Outgoing) -> io::Result<()> {
    let count = u8::try_from(outgoing.descriptors.len()).map_err(io::Error::other)?;
    let bytes = Frame::message(&outgoing.what, count).map_err(io::Error::other)?.encode();
    let mut sent = 0;
    while let Some(rest) = bytes.get(sent..).filter(|rest| !rest.is_empty()) {
        let borrowed: Vec<_> = outgoing.descriptors.iter().map(AsFd::as_fd).collect();
        let descriptors = if sent == 0 { borrowed.as_slice() } else { &[] };
        sent += link
            .async_io(Interest::WRITABLE, |socket| fd::send_with_fds(socket.as_fd(), rest, descriptors))
            .await?;
    }
    Ok(())
}
