//! A machine may say anything. The keeper hears only what makes sense, and never more than it can hold.

use super::*;
use airlock_protocol::{
    carry::{MOST_DATA, Resume, WINDOW},
    copy::{Copy, CopyJob},
    frame::Decoder,
    guest::{End, Start, User},
};
use proptest::{collection::vec, prelude::*};
use std::{io::Read as _, os::unix::net::UnixStream};

/// A host end between a keeper and a machine that are played here.
struct Stage {
    host: Host,
    keeper: UnixStream,
    machine: UnixStream,
}

impl Stage {
    fn new() -> Stage {
        let (keeper, keepers) = UnixStream::pair().unwrap();
        let (machine, port) = UnixStream::pair().unwrap();
        let host = Host::new(Link::new(keepers.into()).unwrap(), Mux::new(port.into()).unwrap(), None);
        Stage { host, keeper, machine }
    }

    /// With a machine that is ready, and a program whose output goes to a pipe.
    fn with_program() -> (Stage, io::PipeReader) {
        let mut stage = Stage::new();
        stage.host.is_ready = true;
        let (read, write) = io::pipe().unwrap();
        let null = || OwnedFd::from(File::open("/dev/null").unwrap());
        stage.host.asked(ToGuest::Start(start(1)), vec![null(), write.into(), null()]).unwrap();
        (stage, read)
    }

    /// The machine says this and is gone; gives how it ended, and what the keeper heard.
    fn after(mut self, bytes: &[u8]) -> (Ended, Vec<FromGuest>) {
        let machine = self.machine.try_clone().unwrap();
        let said = bytes.to_vec();
        let talking = std::thread::spawn(move || {
            let _ = (&machine).write_all(&said);
            let _ = machine.shutdown(std::net::Shutdown::Write);
        });
        let mut heard = Vec::new();
        self.keeper.set_nonblocking(true).unwrap();
        let ended = loop {
            let turned = self.host.turn(None);
            let _ = self.keeper.read_to_end(&mut heard);
            match turned {
                Ok(Peer::There) => {}
                Ok(Peer::Gone) => panic!("the keeper is there"),
                Err(ended) => break ended,
            }
        };
        drop(self.host);
        drop(self.machine);
        talking.join().unwrap();
        let mut decoder = Decoder::default();
        decoder.feed(&heard);
        let mut all = Vec::new();
        while let Some(frame) = decoder.next().expect("whole frames") {
            assert_eq!(frame.descriptors, 0);
            all.push(frame.parse().expect("a message of a guest"));
        }
        (ended, all)
    }
}

fn start(process: u32) -> Start {
    Start {
        process,
        command: vec!["true".to_owned()],
        env: Vec::new(),
        workdir: "/".to_owned(),
        user: User { uid: 0, gid: 0, groups: Vec::new() },
        terminal: false,
        nofile: None,
    }
}

fn said(message: &FromGuest) -> Message {
    Message::Guest { descriptors: Vec::new(), message: serde_json::to_vec(message).unwrap() }
}

fn bytes(messages: &[Message]) -> Vec<u8> {
    messages.iter().flat_map(|message| message.encode().unwrap()).collect()
}

fn guest() -> impl Strategy<Value = FromGuest> {
    let process = 0u32..4;
    prop_oneof![
        (process.clone(), any::<u32>()).prop_map(|(process, pid)| FromGuest::Started { process, pid }),
        (process.clone(), any::<i32>()).prop_map(|(process, signal)| FromGuest::Stopped { process, signal }),
        (process, any::<u8>(), any::<bool>()).prop_map(|(process, code, alone)| FromGuest::Ended {
            process,
            end: End::Exited { code },
            alone
        }),
        Just(FromGuest::Cleared),
        Just(FromGuest::Frozen),
        any::<bool>().prop_map(|still| FromGuest::Resting { still }),
        Just(FromGuest::OutOfMemory),
        ".{0,40}".prop_map(|why| FromGuest::Broken { why }),
    ]
}

fn message() -> impl Strategy<Value = Message> {
    let stream = 0u32..5;
    let now = Now { seconds: 1, nanoseconds: 1 };
    let resume = Resume { hostname: "x".to_owned(), seed: Vec::new(), now, is_copy: true };
    prop_oneof![
        4 => guest().prop_map(|message| said(&message)),
        1 => vec(any::<u8>(), 0..60).prop_map(|message| Message::Guest { descriptors: Vec::new(), message }),
        4 => (stream.clone(), 0..MOST_DATA).prop_map(|(stream, length)| Message::Data { stream, bytes: vec![7; length] }),
        2 => (stream.clone(), 0..2 * WINDOW).prop_map(|(stream, bytes)| Message::Credit { stream, bytes }),
        1 => stream.clone().prop_map(|stream| Message::End { stream }),
        1 => stream.prop_map(|stream| Message::HangUp { stream }),
        1 => prop_oneof![
            Just(Message::Ready),
            Just(Message::Resting),
            Just(Message::Restless),
            Just(Message::Rest),
            Just(Message::Rise),
            Just(Message::Clock(now)),
            Just(Message::Resume(Box::new(resume))),
            Just(Message::Failed("so".to_owned())),
        ],
    ]
}

proptest! {
    #[test]
    fn no_bytes_from_a_machine_harm_the_host(junk in vec(any::<u8>(), 0..600), ready in any::<bool>()) {
        let mut stage = Stage::new();
        stage.host.is_ready = ready;
        let (_, heard) = stage.after(&junk);
        prop_assert_eq!(heard, []);
    }

    #[test]
    fn no_messages_from_a_machine_harm_the_host(messages in vec(message(), 0..40)) {
        let (stage, read) = Stage::with_program();
        // Somebody reads what the program writes.
        let reading = std::thread::spawn(move || io::copy(&mut &read, &mut io::sink()));
        stage.after(&bytes(&messages));
        reading.join().unwrap().unwrap();
    }
}

#[test]
fn whatever_is_no_part_of_a_machine_ends_it() {
    let now = Now { seconds: 0, nanoseconds: 0 };
    for wrong in [
        Message::Rest,
        Message::Rise,
        Message::Resting,
        Message::Clock(now),
        Message::Ready,
        Message::Data { stream: 9, bytes: vec![1] },
        Message::Resize { stream: 2, size: carry::Size { rows: 1, columns: 1 } },
        Message::Guest {
            descriptors: vec![Descriptor { stream: 7, kind: Kind::Input }],
            message: serde_json::to_vec(&FromGuest::Cleared).unwrap(),
        },
    ] {
        let (stage, _read) = Stage::with_program();
        let (ended, heard) = stage.after(&bytes(std::slice::from_ref(&wrong)));
        assert!(matches!(ended, Ended::Rules(_)), "{wrong:?}: {ended}");
        assert_eq!(heard, [], "{wrong:?}");
    }
}

#[test]
fn the_end_of_a_program_comes_behind_what_it_wrote() {
    let (stage, mut read) = Stage::with_program();
    let ended = FromGuest::Ended { process: 1, end: End::Exited { code: 3 }, alone: true };
    let messages = [
        said(&FromGuest::Started { process: 1, pid: 5 }),
        Message::Data { stream: 2, bytes: b"last words".to_vec() },
        Message::End { stream: 2 },
        said(&ended),
    ];
    let (_, heard) = stage.after(&bytes(&messages));
    assert_eq!(heard, [FromGuest::Started { process: 1, pid: 5 }, ended]);
    let mut written = String::new();
    read.read_to_string(&mut written).unwrap();
    assert_eq!(written, "last words");
}

/// The machine's side of a rest, played.
fn hear(machine: &mut UnixStream, decoder: &mut carry::Decoder) -> Message {
    let mut bytes = [0; 4096];
    loop {
        if let Some(message) = decoder.next().unwrap() {
            return message;
        }
        let count = machine.read(&mut bytes).unwrap();
        assert_ne!(count, 0);
        decoder.feed(&bytes[..count]);
    }
}

#[test]
fn a_machine_rests_and_a_copy_goes_on_with_the_streams_of_its_main_program() {
    let (mut stage, mut read) = Stage::with_program();
    let mut decoder = carry::Decoder::default();
    stage.host.mux.drain().unwrap();
    assert!(matches!(hear(&mut stage.machine, &mut decoder), Message::Guest { .. }));
    let started = said(&FromGuest::Started { process: 1, pid: 77 });
    stage
        .machine
        .write_all(&bytes(&[started, Message::Data { stream: 2, bytes: b"before".to_vec() }]))
        .unwrap();
    // A second program is there, which nobody will know in the copy.
    stage.host.asked(ToGuest::Start(start(2)), Vec::new()).unwrap();
    let file = tempfile::NamedTempFile::new().unwrap();
    while stage.host.hold.running(1).is_none() {
        stage.host.turn(None).unwrap();
    }

    let to = file.reopen().unwrap().into();
    stage.host.asked(ToGuest::Rest { main: 1 }, vec![to]).unwrap();
    // From now on nothing is said.
    let job = CopyJob {
        process: 3,
        copy: Copy::Out { path: "/a".to_owned(), follow: false },
        user: User { uid: 0, gid: 0, groups: Vec::new() },
    };
    stage.host.asked(ToGuest::Copy(job), Vec::new()).unwrap();
    stage.machine.write_all(&bytes(&[Message::Resting])).unwrap();
    while !matches!(stage.host.rest, Rest::Resting) {
        stage.host.turn(None).unwrap();
    }
    assert!(matches!(hear(&mut stage.machine, &mut decoder), Message::Guest { .. }));
    assert_eq!(hear(&mut stage.machine, &mut decoder), Message::Rest);

    // The machine itself.
    stage.host.asked(ToGuest::Rise, Vec::new()).unwrap();
    stage.machine.write_all(&bytes(&[Message::Ready])).unwrap();
    while stage.host.rest.is_silent() {
        stage.host.turn(None).unwrap();
    }
    stage.host.mux.drain().unwrap();
    assert!(matches!(hear(&mut stage.machine, &mut decoder), Message::Resume(resume) if !resume.is_copy));
    assert_eq!(hear(&mut stage.machine, &mut decoder), Message::Rise);
    assert!(matches!(hear(&mut stage.machine, &mut decoder), Message::Guest { .. }));

    goes_on(&file);
    drop(stage);
    let mut written = String::new();
    read.read_to_string(&mut written).unwrap();
    assert_eq!(written, "before");
}

/// A copy of the machine whose memory is in the file goes on.
fn goes_on(file: &tempfile::NamedTempFile) {
    let mut copy = Stage::new();
    copy.host.go_on(Saved::read(File::open(file.path()).unwrap().into()).unwrap()).unwrap();
    let mut decoder = carry::Decoder::default();
    copy.host.mux.drain().unwrap();
    assert!(matches!(hear(&mut copy.machine, &mut decoder), Message::Resume(resume) if resume.is_copy));
    copy.machine.write_all(&bytes(&[Message::Ready])).unwrap();
    while !copy.host.is_ready {
        copy.host.turn(None).unwrap();
    }
    let (mut read_copy, write) = io::pipe().unwrap();
    let null = || OwnedFd::from(File::open("/dev/null").unwrap());
    copy.host.asked(ToGuest::Start(start(1)), vec![null(), write.into(), null()]).unwrap();
    copy.host.mux.drain().unwrap();
    assert_eq!(hear(&mut copy.machine, &mut decoder), Message::Rise);
    let ended = FromGuest::Ended { process: 1, end: End::Exited { code: 0 }, alone: false };
    let others = FromGuest::Ended { process: 2, end: End::Exited { code: 0 }, alone: false };
    let messages = [
        Message::Data { stream: 2, bytes: b"after".to_vec() },
        Message::End { stream: 2 },
        said(&others),
        said(&ended),
    ];
    let (_, heard) = copy.after(&bytes(&messages));

    assert_eq!(heard, [FromGuest::Started { process: 1, pid: 77 }, ended]);
    let mut written = String::new();
    read_copy.read_to_string(&mut written).unwrap();
    assert_eq!(written, "after");
}
