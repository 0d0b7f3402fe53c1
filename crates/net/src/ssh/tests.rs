//! A client, what stands between, and a server, all of ours. Real ones are in the suite.

use super::{
    exchange::Side,
    near::Asked,
    pump::Channel,
    wire::{Reader, Writer},
    *,
};
use airlock_gate::meter::Meter;
use std::{cell::Cell, path::PathBuf};
use tokio::io::{DuplexStream, duplex};

#[derive(Default)]
struct Seen {
    sent: Cell<usize>,
    received: Cell<usize>,
}

impl Counted for Seen {
    fn sent(&self, bytes: usize) {
        self.sent.set(self.sent.get() + bytes);
    }

    fn received(&self, bytes: usize) {
        self.received.set(self.received.get() + bytes);
    }
}

const DATA: u8 = 94;
const WINDOW_ADJUST: u8 = 93;
const CLOSE: u8 = 97;

/// A key file as `ssh-keygen` writes it; its seed is 32 times 7.
fn outside(folder: &std::path::Path) -> Ssh {
    let public = {
        use aws_lc_rs::signature::KeyPair as _;
        let pair = aws_lc_rs::signature::Ed25519KeyPair::from_seed_unchecked(&[7; 32]).unwrap();
        pair.public_key().as_ref().to_vec()
    };
    let private = Writer::default()
        .number(1)
        .number(1)
        .string(b"ssh-ed25519")
        .string(&public)
        .string(&[&[7; 32], public.as_slice()].concat())
        .string(b"");
    let blob = Writer::default().string(b"ssh-ed25519").string(&public).done();
    let whole = Writer::default()
        .bytes(b"openssh-key-v1\0")
        .string(b"none")
        .string(b"none")
        .string(b"")
        .number(1)
        .string(&blob)
        .string(&private.done());
    let text = data_encoding::BASE64.encode(&whole.done());
    let path: PathBuf = folder.join("id_ed25519");
    let (begin, end) = ("-----BEGIN OPENSSH PRIVATE KEY-----", "-----END OPENSSH PRIVATE KEY-----");
    std::fs::write(&path, format!("{begin}\n{text}\n{end}\n")).unwrap();
    Ssh { agent: None, keys: vec![path], known_hosts: Vec::new() }
}

async fn reach(
    stream: DuplexStream,
    key: &HostKey,
    outside: &Ssh,
    command: &str,
) -> Result<Far<DuplexStream>, Unreached> {
    let command = Command::parse(command).unwrap();
    let wish = Wish { host: "a.test", user: "git", command: &command, protocol: Some("version=2") };
    Far::reach(stream, vec![key.0.public()], outside, &wish).await
}

/// Says `bytes`, then that it is over with this status; what was said to it.
async fn serve(asked: Asked<DuplexStream>, bytes: &[u8], status: u32) -> usize {
    let mut asked = asked;
    asked.accept().unwrap();
    let Asked { mut talk, channel, .. } = asked;
    let (mut window, mut left, mut heard, mut is_over) = (channel.window, bytes, 0, false);
    loop {
        while let Some(piece) =
            left.get(..left.len().min(10_000)).filter(|piece| !piece.is_empty() && window >= 10_000)
        {
            talk.send(Writer::new(DATA).number(channel.theirs).string(piece).done()).unwrap();
            (window, left) = (window - 10_000, &left[piece.len()..]);
        }
        if left.is_empty() && is_over {
            talk.send(Channel::status(channel.theirs, status)).unwrap();
            talk.send(Channel::end(channel.theirs)).unwrap();
            talk.send(Channel::close(channel.theirs)).unwrap();
            while talk.step().await.is_ok() {}
            return heard;
        }
        let talk::Step::Message(message) = talk.step().await.unwrap() else { continue };
        let mut reader = Reader::new(&message);
        match (reader.byte().unwrap(), reader.number().unwrap()) {
            (DATA, _) => {
                let count = reader.string().unwrap().len();
                heard += count;
                let more = u32::try_from(count).unwrap();
                talk.send(Writer::new(WINDOW_ADJUST).number(channel.theirs).number(more).done()).unwrap();
            }
            (WINDOW_ADJUST, _) => window += reader.number().unwrap(),
            (96, _) => is_over = true,
            other => panic!("{other:?}"),
        }
    }
}

/// Says `bytes` and that it is over; how much it was told, and with which status that ended.
async fn speak(far: Far<DuplexStream>, bytes: &[u8]) -> (usize, Option<u32>) {
    let Far { mut talk, channel } = far;
    let (mut window, mut left, mut heard, mut status, mut is_said) = (channel.window, bytes, 0, None, false);
    loop {
        while let Some(piece) =
            left.get(..left.len().min(10_000)).filter(|piece| !piece.is_empty() && window >= 10_000)
        {
            talk.send(Writer::new(DATA).number(channel.theirs).string(piece).done()).unwrap();
            (window, left) = (window - 10_000, &left[piece.len()..]);
        }
        if left.is_empty() && !std::mem::replace(&mut is_said, left.is_empty()) {
            talk.send(Channel::end(channel.theirs)).unwrap();
        }
        let message = match talk.step().await {
            Ok(talk::Step::Message(message)) => message,
            Ok(talk::Step::Said) => continue,
            Err(_) => return (heard, status),
        };
        let mut reader = Reader::new(&message);
        match (reader.byte().unwrap(), reader.number().unwrap()) {
            (DATA, _) => {
                let count = reader.string().unwrap().len();
                heard += count;
                let more = u32::try_from(count).unwrap();
                talk.send(Writer::new(WINDOW_ADJUST).number(channel.theirs).number(more).done()).unwrap();
            }
            (WINDOW_ADJUST, _) => window += reader.number().unwrap(),
            (98, _) => {
                reader.string().unwrap();
                reader.flag().unwrap();
                status = reader.number().ok();
            }
            (CLOSE, _) => return (heard, status),
            _ => {}
        }
    }
}

#[tokio::test]
async fn what_each_side_says_reaches_the_other_and_so_does_the_status() {
    let folder = tempfile::tempdir().unwrap();
    let outside = outside(folder.path());
    let (ours, theirs) = (HostKey::make().unwrap(), HostKey::make().unwrap());
    let ((program, near), (far, host)) = (duplex(4096), duplex(4096));
    let (up, down) = (vec![1; 3_000_000], vec![2; 5_000_000]);
    let seen = Seen::default();

    let client = async {
        let far = reach(program, &ours, &outside, "git-upload-pack 'acme/web.git'").await.unwrap();
        speak(far, &up).await
    };
    let between = async {
        let asked = hear(near, &ours, "a.test").await.unwrap();
        assert_eq!((asked.user.as_str(), asked.protocol.as_deref()), ("git", Some("version=2")));
        let line = asked.command.clone().unwrap().line();
        let far = reach(far, &theirs, &outside, &line).await.unwrap();
        Between::new(asked, far, Meter::default()).unwrap().carry(&seen).await
    };
    let server = async {
        let asked = hear(host, &theirs, "a.test").await.unwrap();
        assert_eq!(asked.command.clone().unwrap().line(), "git-upload-pack 'acme/web.git'");
        serve(asked, &down, 7).await
    };
    let (spoken, ended, served) = tokio::join!(client, between, server);

    assert_eq!((spoken, ended, served), ((down.len(), Some(7)), Ended::Closed, up.len()));
    assert_eq!((seen.sent.get(), seen.received.get()), (up.len(), down.len()));
}

#[tokio::test]
async fn who_is_refused_reads_why() {
    let folder = tempfile::tempdir().unwrap();
    let outside = outside(folder.path());
    let ours = HostKey::make().unwrap();
    let (program, near) = duplex(4096);

    let client = async {
        let far = reach(program, &ours, &outside, "git-receive-pack 'acme/web.git'").await.unwrap();
        speak(far, b"").await
    };
    let refused = async { hear(near, &ours, "a.test").await.unwrap().refuse("not this one").await };
    let ((heard, status), refused) = tokio::join!(client, refused);

    assert_eq!((heard, status, refused), (0, Some(128), Ok(())));
}

#[tokio::test]
async fn a_host_with_another_key_gets_no_command() {
    let folder = tempfile::tempdir().unwrap();
    let outside = outside(folder.path());
    let (known, other) = (HostKey::make().unwrap(), HostKey::make().unwrap());
    let (far, host) = duplex(4096);

    let client = reach(far, &known, &outside, "git-upload-pack 'acme/web.git'");
    let (reached, heard) = tokio::join!(client, hear(host, &other, "a.test"));

    assert!(matches!(reached.err(), Some(Unreached::Untrusted(_, Broken::Stranger))));
    assert!(heard.is_err());
}

#[tokio::test]
async fn without_a_key_nobody_logs_in() {
    let key = HostKey::make().unwrap();
    let (far, host) = duplex(4096);
    let outside = Ssh::default();

    let client = reach(far, &key, &outside, "git-upload-pack 'acme/web.git'");
    let (reached, _) = tokio::join!(client, hear(host, &key, "a.test"));

    assert!(matches!(reached.err(), Some(Unreached::NoKey(_))));
}

#[tokio::test]
async fn more_than_a_window_is_a_flood() {
    let key = HostKey::make().unwrap();
    let (program, near) = duplex(1 << 22);
    let mut talk = talk::Talk::new(program, Side::Client(vec![key.0.public()])).unwrap();
    let said = [
        Writer::new(5).string(b"ssh-userauth").done(),
        Writer::new(50).string(b"git").string(b"ssh-connection").string(b"none").done(),
        Channel::open(),
        Writer::new(98).number(0).string(b"exec").bytes(&[1]).string(b"git-upload-pack 'a'").done(),
    ];
    for message in
        said.into_iter().chain((0..90).map(|_| Writer::new(DATA).number(0).string(&[0; 32_000]).done()))
    {
        talk.send(message).unwrap();
    }
    let client = async { while talk.step().await.is_ok() {} };
    let folder = tempfile::tempdir().unwrap();
    let outside = outside(folder.path());
    let theirs = HostKey::make().unwrap();
    let (far, host) = duplex(4096);
    let between = async {
        let asked = hear(near, &key, "a.test").await.unwrap();
        let far = reach(far, &theirs, &outside, "git-upload-pack 'a'").await.unwrap();
        Between::new(asked, far, Meter::default()).unwrap().carry(&Seen::default()).await
    };
    let server = async {
        let mut asked = hear(host, &theirs, "a.test").await.unwrap();
        asked.accept().unwrap();
        // It takes nothing more.
        while asked.talk.step().await.is_ok() {}
    };
    let ended = tokio::select! {
        ended = between => ended,
        () = async { tokio::join!(client, server); } => unreachable!(),
    };

    assert_eq!(ended, Ended::Broken(Broken::Flood));
}
