//! Who takes in published connections to servers that listen on the machine's loopback address only.
//!
//! The keeper connects to one port of the machine's own address and says which port it means
//! ([`LOOPBACK_PORT`]). Two threads carry each such connection; that is seldom, for most servers listen on every address.

use airlock_linux::net::{
    machine::LOOPBACK_PORT,
    seat::{OUTSIDE_V4, OWN_V4},
};
use std::{
    io::{self, Read as _, Write as _},
    net::{Ipv4Addr, Shutdown, TcpListener, TcpStream},
    sync::Arc,
    thread,
    time::Duration,
};

/// Connections at one time; further ones are closed.
const MOST: usize = 256;
/// A thread only copies.
const STACK: usize = 64 * 1024;
/// How long the keeper may take to say which port it means.
const PATIENCE: Duration = Duration::from_secs(10);
/// What it is answered.
const REACHED: [u8; 1] = [0];
const NOBODY: [u8; 1] = [1];

/// Takes connections in from now on, beside everything else. Not in a process that forks later.
pub(super) fn take_in() -> io::Result<()> {
    let listener = match TcpListener::bind((OWN_V4, LOOPBACK_PORT)) {
        // A machine without a network.
        Err(err) if err.kind() == io::ErrorKind::AddrNotAvailable => return Ok(()),
        bound => bound?,
    };
    spawn(move || serve(&listener))
}

fn serve(listener: &TcpListener) {
    let places = Arc::new(());
    loop {
        match listener.accept() {
            Ok((keeper, from)) if from.ip() == OUTSIDE_V4 && Arc::strong_count(&places) <= MOST => {
                let place = Arc::clone(&places);
                // Where there is no thread left, the connection is closed.
                let _ = spawn(move || {
                    let _ = carry(keeper);
                    drop(place);
                });
            }
            Ok(_) => {}
            Err(_) => thread::sleep(Duration::from_millis(50)),
        }
    }
}

/// One connection, from beginning to end.
fn carry(mut keeper: TcpStream) -> io::Result<()> {
    let mut port = [0; 2];
    keeper.set_read_timeout(Some(PATIENCE))?;
    keeper.read_exact(&mut port)?;
    keeper.set_read_timeout(None)?;
    let Ok(server) = TcpStream::connect((Ipv4Addr::LOCALHOST, u16::from_be_bytes(port))) else {
        return keeper.write_all(&NOBODY);
    };
    keeper.write_all(&REACHED)?;
    for stream in [&keeper, &server] {
        stream.set_nodelay(true)?;
    }
    let (from, to) = (keeper.try_clone()?, server.try_clone()?);
    spawn(move || copy(&from, &to))?;
    copy(&server, &keeper);
    Ok(())
}

/// All of one direction, and its end.
fn copy(mut from: &TcpStream, mut to: &TcpStream) {
    if io::copy(&mut from, &mut to).is_err() {
        // Broken on one side is broken on both.
        let _ = from.shutdown(Shutdown::Both);
        let _ = to.shutdown(Shutdown::Both);
    }
    let _ = to.shutdown(Shutdown::Write);
}

fn spawn(work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    thread::Builder::new().name("published".to_owned()).stack_size(STACK).spawn(work).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The keeper's end of a connection that is carried.
    fn carried() -> TcpStream {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let keeper = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (ours, _) = listener.accept().unwrap();
        spawn(move || drop(carry(ours))).unwrap();
        keeper
    }

    #[test]
    fn a_server_on_the_loopback_address_is_reached_both_ways() {
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut keeper = carried();
        keeper.write_all(&server.local_addr().unwrap().port().to_be_bytes()).unwrap();
        let mut answer = [9];
        keeper.read_exact(&mut answer).unwrap();
        assert_eq!(answer, REACHED);

        let (mut served, _) = server.accept().unwrap();
        keeper.write_all(b"question").unwrap();
        keeper.shutdown(Shutdown::Write).unwrap();
        let mut heard = String::new();
        served.read_to_string(&mut heard).unwrap();
        assert_eq!(heard, "question");
        served.write_all(b"answer").unwrap();
        drop(served);
        let mut heard = String::new();
        keeper.read_to_string(&mut heard).unwrap();
        assert_eq!(heard, "answer");
    }

    #[test]
    fn where_nobody_listens_the_keeper_is_told() {
        let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let mut keeper = carried();
        keeper.write_all(&free.to_be_bytes()).unwrap();
        let mut heard = Vec::new();
        keeper.read_to_end(&mut heard).unwrap();
        assert_eq!(heard, NOBODY);
    }
}
