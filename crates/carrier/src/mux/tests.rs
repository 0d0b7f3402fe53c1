//! Both ends in one process, and one end alone against whatever may come.

use super::*;
use airlock_linux::{fd, pty};
use airlock_protocol::carry::{MOST_DATA, WINDOW};
use proptest::{collection::vec, prelude::*};
use std::{
    fs::File,
    io::{PipeReader, PipeWriter, Read as _, Write as _},
    thread,
};

/// Two ends that are turned in turns.
struct Pair {
    left: Mux,
    right: Mux,
    most_held: usize,
}

impl Pair {
    fn new() -> Pair {
        let (left, right) = fd::pair().unwrap();
        Pair { left: Mux::new(left).unwrap(), right: Mux::new(right).unwrap(), most_held: 0 }
    }

    /// A stream from a pipe at the left to one at the right: what writes there, and what reads here.
    fn pipe(&mut self, number: u32) -> (PipeWriter, PipeReader) {
        let (from, write) = io::pipe().unwrap();
        let (read, to) = io::pipe().unwrap();
        self.left.open(number, Endpoint::new(from.into(), Owner::Others).unwrap(), Ways::Out).unwrap();
        self.right.open(number, Endpoint::new(to.into(), Owner::Us).unwrap(), Ways::In).unwrap();
        (write, read)
    }

    fn turn(&mut self) {
        for mux in [&mut self.left, &mut self.right] {
            let waiting =
                Waiting { others: Vec::new(), listens: true, timeout: Some(Duration::from_millis(1)) };
            assert_eq!(mux.turn(waiting).unwrap().message, None);
        }
        self.most_held = self.most_held.max(self.left.held()).max(self.right.held());
    }

    fn turn_until(&mut self, mut is_done: impl FnMut(&Pair) -> bool) {
        while !is_done(self) {
            self.turn();
        }
    }
}

#[test]
fn a_hundred_megabytes_pass_whole_and_little_is_held() {
    const TOTAL: usize = 100 << 20;
    let mut pair = Pair::new();
    let (mut write, mut read) = pair.pipe(1);
    let writer = thread::spawn(move || {
        let piece: Vec<u8> =
            (0..1 << 20).map(|byte: u32| byte.to_le_bytes()[0] ^ byte.to_le_bytes()[1]).collect();
        for _ in 0..TOTAL >> 20 {
            write.write_all(&piece).unwrap();
        }
        piece
    });
    let reader = thread::spawn(move || {
        let mut all = Vec::new();
        read.read_to_end(&mut all).unwrap();
        all
    });
    pair.turn_until(|pair| pair.left.streams.is_empty() && pair.right.streams.is_empty());
    let (piece, all) = (writer.join().unwrap(), reader.join().unwrap());
    assert_eq!(all.len(), TOTAL);
    assert!(all.chunks(piece.len()).all(|chunk| chunk == piece));
    assert!(pair.most_held < 512 * 1024, "{} bytes were held", pair.most_held);
}

#[test]
fn a_flood_does_not_hold_up_another_stream() {
    let mut pair = Pair::new();
    let (mut flood, mut drain) = pair.pipe(1);
    let (mut write, mut read) = pair.pipe(2);
    let flooding = thread::spawn(move || while flood.write_all(&[0; 65536]).is_ok() {});
    let draining = thread::spawn(move || {
        let mut bytes = vec![0; 65536];
        let mut count = 0;
        while count < 8 << 20 {
            count += drain.read(&mut bytes).unwrap();
        }
    });
    let mut seen = [0; 5];
    for _ in 0..100 {
        write.write_all(b"hello").unwrap();
        let mut turns = 0;
        while rustix::io::ioctl_fionread(&read).unwrap() < 5 {
            pair.turn();
            turns += 1;
        }
        // Read, sent, received and written, with what the port had taken before in between.
        assert!(turns <= 20, "{turns} turns");
        read.read_exact(&mut seen).unwrap();
        assert_eq!(&seen, b"hello");
    }
    pair.turn_until(|_| draining.is_finished());
    pair.turn_until(|_| flooding.is_finished());
}

#[test]
fn a_reader_that_does_not_read_holds_up_only_its_own_stream() {
    let mut pair = Pair::new();
    let (mut flood, stuck) = pair.pipe(1);
    let (mut write, mut read) = pair.pipe(2);
    let flooding = thread::spawn(move || while flood.write_all(&[0; 65536]).is_ok() {});
    pair.turn_until(|pair| pair.right.held() > WINDOW as usize - 65536 - MOST_DATA);
    write.write_all(b"hello").unwrap();
    pair.turn_until(|_| rustix::io::ioctl_fionread(&read).unwrap() == 5);
    let mut seen = [0; 5];
    read.read_exact(&mut seen).unwrap();
    assert!(pair.most_held <= WINDOW as usize + 2 * 65536, "{} bytes were held", pair.most_held);
    drop(stuck);
    // Who writes is told that nobody reads any more.
    pair.turn_until(|_| flooding.is_finished());
}

#[test]
fn a_reader_that_goes_is_missed_by_who_does_not_write() {
    let mut pair = Pair::new();
    let (write, read) = pair.pipe(1);
    drop(read);
    pair.turn_until(|pair| pair.left.streams.is_empty() && pair.right.streams.is_empty());
    assert_eq!((&write).write(b"x").unwrap_err().kind(), io::ErrorKind::BrokenPipe);
}

#[test]
fn a_socket_that_ends_one_way_goes_on_the_other() {
    let mut pair = Pair::new();
    let ((mine, near), (far, theirs)) = (fd::pair().unwrap(), fd::pair().unwrap());
    pair.left.open(1, Endpoint::new(near, Owner::Others).unwrap(), Ways::Both).unwrap();
    pair.right.open(1, Endpoint::new(far, Owner::Us).unwrap(), Ways::Both).unwrap();
    let (mut mine, mut theirs) = (File::from(mine), File::from(theirs));
    mine.write_all(b"question").unwrap();
    rustix::net::shutdown(&mine, rustix::net::Shutdown::Write).unwrap();
    let answering = thread::spawn(move || {
        let mut question = String::new();
        theirs.read_to_string(&mut question).unwrap();
        theirs.write_all(b"answer").unwrap();
        question
    });
    pair.turn_until(|pair| pair.left.streams.is_empty() && pair.right.streams.is_empty());
    assert_eq!(answering.join().unwrap(), "question");
    let mut answer = String::new();
    mine.read_to_string(&mut answer).unwrap();
    assert_eq!(answer, "answer");
}

#[test]
fn what_was_written_before_a_mark_is_sent_before_it_is_gone() {
    let mut pair = Pair::new();
    let (mut write, read) = pair.pipe(1);
    write.write_all(&[7; 60_000]).unwrap();
    pair.left.mark_sending(&[1]);
    assert!(pair.left.is_marked(&[1]));
    pair.turn_until(|pair| !pair.left.is_marked(&[1]));
    // What is at the other end by now may have to wait there, for its own reader.
    pair.turn();
    pair.right.mark_receiving(&[1]);
    pair.turn_until(|pair| !pair.right.is_marked(&[1]));
    assert_eq!(rustix::io::ioctl_fionread(&read).unwrap(), 60_000);
}

#[test]
fn a_terminal_that_shows_nothing_holds_up_nobody() {
    let Ok(pts) = rustix::fs::open(
        "/dev/pts",
        rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::CLOEXEC,
        rustix::fs::Mode::empty(),
    ) else {
        println!("skipped: there are no terminals here");
        return;
    };
    let Ok(made) = pty::open(pts.as_fd()) else {
        println!("skipped: no terminal can be made here");
        return;
    };
    let (port, _other) = fd::pair().unwrap();
    let mut mux = Mux::new(port).unwrap();
    mux.open(1, Endpoint::new(made.master, Owner::Us).unwrap(), Ways::Both).unwrap();
    mux.mark_sending(&[1]);
    assert!(mux.is_marked(&[1]));
    mux.turn(Waiting { others: Vec::new(), listens: true, timeout: None }).unwrap();
    assert!(!mux.is_marked(&[1]));
}

#[test]
fn what_opens_a_stream_is_heard_before_what_is_said_of_it() {
    let (port, other) = fd::pair().unwrap();
    let mut mux = Mux::new(port).unwrap();
    let opens = Message::Guest { descriptors: Vec::new(), message: b"{}".to_vec() };
    let said =
        [opens.clone(), Message::Data { stream: 1, bytes: b"hello".to_vec() }, Message::End { stream: 1 }];
    let bytes: Vec<u8> = said.iter().flat_map(|message| message.encode().unwrap()).collect();
    (&File::from(other.try_clone().unwrap())).write_all(&bytes).unwrap();
    let turn = |mux: &mut Mux| {
        mux.turn(Waiting { others: Vec::new(), listens: true, timeout: None }).unwrap().message
    };
    assert_eq!(turn(&mut mux), Some(opens));
    let (mut read, write) = io::pipe().unwrap();
    mux.open(1, Endpoint::new(write.into(), Owner::Us).unwrap(), Ways::In).unwrap();
    while !mux.streams.is_empty() {
        assert_eq!(turn(&mut mux), None);
    }
    let mut seen = String::new();
    read.read_to_string(&mut seen).unwrap();
    assert_eq!(seen, "hello");
}

#[test]
fn what_breaks_a_rule_is_noticed() {
    let data = |count: usize| Message::Data { stream: 1, bytes: vec![0; count] };
    let credit = |bytes| Message::Credit { stream: 1, bytes };
    let cases: [(Ways, Vec<Message>, &str); 8] = [
        (Ways::In, vec![data(MOST_DATA); 9], "Credit"),
        (Ways::In, vec![data(0)], "Credit"),
        (Ways::Out, vec![credit(1)], "Credit"),
        (Ways::Out, vec![credit(u32::MAX)], "Credit"),
        (Ways::Out, vec![data(1)], "Closed"),
        (Ways::In, vec![credit(1)], "Closed"),
        (Ways::Both, vec![Message::End { stream: 1 }, data(1)], "Closed"),
        (Ways::In, vec![Message::End { stream: 2 }], "Unknown"),
    ];
    for (ways, messages, expected) in cases {
        let (mut mux, _ends) = alone(ways);
        let broken = messages.into_iter().find_map(|message| mux.heard(message).err());
        assert_eq!(format!("{:?}", broken.unwrap()), expected, "{ways:?}");
    }
}

/// One end with one stream whose descriptor nobody reads or writes.
fn alone(ways: Ways) -> (Mux, [OwnedFd; 2]) {
    let (port, other) = fd::pair().unwrap();
    let (near, far) = fd::pair().unwrap();
    let mut mux = Mux::new(port).unwrap();
    mux.open(1, Endpoint::new(near, Owner::Us).unwrap(), ways).unwrap();
    (mux, [other, far])
}

fn any_message() -> impl Strategy<Value = Message> {
    let stream = 0u32..3;
    prop_oneof![
        (stream.clone(), 0..MOST_DATA)
            .prop_map(|(stream, count)| Message::Data { stream, bytes: vec![1; count] }),
        (stream.clone(), any::<u32>()).prop_map(|(stream, bytes)| Message::Credit { stream, bytes }),
        (stream.clone(), 0u32..9).prop_map(|(stream, bytes)| Message::Credit { stream, bytes }),
        stream.clone().prop_map(|stream| Message::End { stream }),
        stream.prop_map(|stream| Message::HangUp { stream }),
        Just(Message::Ready),
    ]
}

proptest! {
    #[test]
    fn whatever_is_heard_little_is_held(messages in vec(any_message(), 0..60)) {
        let (mut mux, _ends) = alone(Ways::Both);
        for message in messages {
            if mux.heard(message).is_err() {
                break;
            }
            prop_assert!(mux.held() <= WINDOW as usize + 64);
        }
    }

    #[test]
    fn no_bytes_panic_an_end(
        messages in vec(any_message(), 0..8),
        changes in vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
    ) {
        let (mut mux, [other, _far]) = alone(Ways::Both);
        let mut bytes: Vec<u8> = messages.iter().flat_map(|message| message.encode().unwrap()).collect();
        for (place, byte) in changes {
            if !bytes.is_empty() {
                let place = place.index(bytes.len());
                bytes[place] = byte;
            }
        }
        bytes.truncate(100_000);
        File::from(other).write_all(&bytes).unwrap();
        let turn = |mux: &mut Mux| mux.turn(Waiting { others: Vec::new(), listens: true, timeout: None });
        // The other end is closed by now: it breaks a rule, or it is gone.
        while turn(&mut mux).is_ok() {}
        prop_assert!(mux.held() <= 2 * WINDOW as usize);
    }
}
