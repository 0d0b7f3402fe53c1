//! The server's side: its key is one that the person knows, and we are whom the person's keys say.

use super::{
    Broken,
    agent::Agent,
    command::Command,
    exchange::Side,
    keys::OwnKey,
    known, near,
    pump::Channel,
    talk::{Both, Talk},
    wire::{Flag, Reader, Writer},
};
use airlock_protocol::control::Ssh;
use data_encoding::BASE64;
use std::{io, path::Path};
use zeroize::Zeroizing;

const USERAUTH_BANNER: u8 = 53;
const USERAUTH_PK_OK: u8 = 60;
const WINDOW_ADJUST: u8 = 93;
/// Keys that are tried; servers end the connection after six.
const MOST_KEYS: usize = 6;
/// Longest file that is read.
const LONGEST_FILE: u64 = 4 << 20;
/// Messages between a request and its answer.
const MOST_MESSAGES: usize = 64;

/// Why nothing is run at a server.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unreached {
    /// Nobody has said which key it has.
    #[error("the key of {0} is not known: connect to it once outside, or add it to ~/.ssh/known_hosts")]
    Unknown(String),
    /// It has another key than is known, or it is not what it should be.
    #[error("{0} cannot be trusted: {1}")]
    Untrusted(String, Broken),
    /// There is no key at all.
    #[error(
        "there is no key to log in at {0} with: neither an agent (SSH_AUTH_SOCK) nor an Ed25519 key without passphrase in ~/.ssh"
    )]
    NoKey(String),
    /// None of our keys is right.
    #[error("{user} may not log in at {host} with any of {tried} keys of yours")]
    Rejected {
        /// Where.
        host: String,
        /// Who.
        user: String,
        /// How many were tried.
        tried: usize,
    },
    /// It does not run it.
    #[error("{0} does not run it")]
    NotRun(String),
    /// The connection ended.
    #[error("the connection to {0} failed: {1}")]
    Failed(String, Broken),
}

/// A server that runs a command.
pub(crate) struct Far<S> {
    pub(super) talk: Talk<S>,
    pub(super) channel: Channel,
}

/// The keys that a server may have; an error if none is known, before anything is dialled.
pub(crate) fn known_keys(outside: &Ssh, host: &str, port: u16) -> Result<Vec<Vec<u8>>, Unreached> {
    let texts: Vec<Vec<u8>> = outside.known_hosts.iter().filter_map(|path| read(path).ok()).collect();
    // Of all files together: what one revokes, none vouches for.
    let keys = known::keys(&String::from_utf8_lossy(&texts.join(&b'\n')), host, port);
    if keys.is_empty() { Err(Unreached::Unknown(host.to_owned())) } else { Ok(keys) }
}

/// What is to be run, and as whom.
pub(crate) struct Wish<'a> {
    pub(crate) host: &'a str,
    pub(crate) user: &'a str,
    pub(crate) command: &'a Command,
    pub(crate) protocol: Option<&'a str>,
}

impl<S: Both> Far<S> {
    /// Logs in and has the command run.
    pub(crate) async fn reach(
        stream: S,
        known: Vec<Vec<u8>>,
        outside: &Ssh,
        wish: &Wish<'_>,
    ) -> Result<Far<S>, Unreached> {
        let failed = |broken| Unreached::Failed(wish.host.to_owned(), broken);
        let mut talk = Talk::new(stream, Side::Client(known)).map_err(failed)?;
        talk.send(Writer::new(near::SERVICE_REQUEST).string(b"ssh-userauth").done()).map_err(failed)?;
        match talk.message().await {
            Ok(message) if message.first() == Some(&near::SERVICE_ACCEPT) => {}
            Ok(_) => return Err(failed(Broken::Early)),
            Err(broken @ (Broken::Stranger | Broken::Key(_))) => {
                return Err(Unreached::Untrusted(wish.host.to_owned(), broken));
            }
            // A server whose keys are of other kinds than those that are known.
            Err(broken @ Broken::Nothing("kind of host key")) => {
                return Err(Unreached::Untrusted(wish.host.to_owned(), broken));
            }
            Err(broken) => return Err(failed(broken)),
        }
        log_in(&mut talk, outside, wish).await?;
        let channel = run(&mut talk, wish).await.map_err(|broken| match broken {
            Broken::Nothing(_) => Unreached::NotRun(wish.host.to_owned()),
            broken => failed(broken),
        })?;
        Ok(Far { talk, channel })
    }
}

/// Somebody who can sign.
enum Signer {
    Agent(Vec<u8>),
    File(OwnKey),
}

async fn log_in<S: Both>(talk: &mut Talk<S>, outside: &Ssh, wish: &Wish<'_>) -> Result<(), Unreached> {
    let mut agent = match &outside.agent {
        Some(path) => Agent::at(path).await.ok(),
        None => None,
    };
    let mut signers = Vec::new();
    if let Some(agent) = &mut agent {
        signers.extend(agent.keys().await.unwrap_or_default().into_iter().map(Signer::Agent));
    }
    let files = outside.keys.iter().filter_map(|path| read_key(path).ok());
    signers.extend(files.map(Signer::File));
    signers.truncate(MOST_KEYS);
    if signers.is_empty() {
        return Err(Unreached::NoKey(wish.host.to_owned()));
    }
    let tried = signers.len();
    for signer in signers {
        match try_key(talk, &mut agent, &signer, wish.user).await {
            Ok(Login::In) => return Ok(()),
            Ok(Login::Rejected) => {}
            // Servers end the connection when they have seen enough keys.
            Err(Broken::Disconnected | Broken::Lost) => break,
            Err(broken) => return Err(Unreached::Failed(wish.host.to_owned(), broken)),
        }
    }
    Err(Unreached::Rejected { host: wish.host.to_owned(), user: wish.user.to_owned(), tried })
}

enum Login {
    In,
    Rejected,
}

/// Asks first whether the key would do: nothing is signed for nothing (RFC 4252, section 7).
async fn try_key<S: Both>(
    talk: &mut Talk<S>,
    agent: &mut Option<Agent>,
    signer: &Signer,
    user: &str,
) -> Result<Login, Broken> {
    let key = match signer {
        Signer::Agent(key) => key.clone(),
        Signer::File(key) => key.public(),
    };
    let kind = Reader::new(&key).text()?;
    let algorithm = match kind {
        "ssh-rsa" => "rsa-sha2-512",
        "ssh-rsa-cert-v01@openssh.com" => "rsa-sha2-512-cert-v01@openssh.com",
        kind => kind,
    };
    let request = |is_signed: Flag| {
        let writer = Writer::new(near::USERAUTH_REQUEST).string(user.as_bytes()).string(b"ssh-connection");
        writer.string(b"publickey").flag(is_signed).string(algorithm.as_bytes()).string(&key)
    };
    talk.send(request(Flag::No).done())?;
    match login_answer(talk).await? {
        USERAUTH_PK_OK => {}
        near::USERAUTH_SUCCESS => return Ok(Login::In),
        _ => return Ok(Login::Rejected),
    }
    let text = Writer::default().string(talk.machine.session()).bytes(&request(Flag::Yes).done()).done();
    let signature = match (signer, agent) {
        (Signer::File(key), _) => key.sign(&text),
        (Signer::Agent(key), Some(agent)) => match agent.sign(key, &text).await {
            Ok(signature) => signature,
            Err(_) => return Ok(Login::Rejected),
        },
        (Signer::Agent(_), None) => return Ok(Login::Rejected),
    };
    talk.send(request(Flag::Yes).string(&signature).done())?;
    Ok(if login_answer(talk).await? == near::USERAUTH_SUCCESS { Login::In } else { Login::Rejected })
}

async fn login_answer<S: Both>(talk: &mut Talk<S>) -> Result<u8, Broken> {
    for _ in 0..MOST_MESSAGES {
        match talk.message().await?.first() {
            Some(&USERAUTH_BANNER) => {}
            Some(kind @ (&near::USERAUTH_FAILURE | &near::USERAUTH_SUCCESS | &USERAUTH_PK_OK)) => {
                return Ok(*kind);
            }
            _ => return Err(Broken::Early),
        }
    }
    Err(Broken::Flood)
}

/// Opens the channel and asks for the command.
async fn run<S: Both>(talk: &mut Talk<S>, wish: &Wish<'_>) -> Result<Channel, Broken> {
    talk.send(Channel::open())?;
    let mut channel: Option<Channel> = None;
    for _ in 0..MOST_MESSAGES {
        let message = talk.message().await?;
        let mut reader = Reader::new(&message);
        match (reader.byte()?, &mut channel) {
            (near::GLOBAL_REQUEST, _) => {
                if let Some(answer) = near::refused_globally(reader)? {
                    talk.send(answer)?;
                }
            }
            (near::OPEN_CONFIRMATION, None) => {
                reader.number()?;
                let opened = Channel::new(reader.number()?, reader.number()?, reader.number()?);
                ask(talk, opened.theirs, wish)?;
                channel = Some(opened);
            }
            (WINDOW_ADJUST, Some(channel)) => {
                reader.number()?;
                channel.widen(reader.number()?)?;
            }
            (near::CHANNEL_SUCCESS, Some(_)) => return channel.ok_or(Broken::Early),
            (near::CHANNEL_FAILURE | near::OPEN_FAILURE, _) => return Err(Broken::Nothing("command")),
            _ => return Err(Broken::Early),
        }
    }
    Err(Broken::Flood)
}

fn ask<S: Both>(talk: &mut Talk<S>, theirs: u32, wish: &Wish<'_>) -> Result<(), Broken> {
    let request = |kind: &[u8]| Writer::new(near::CHANNEL_REQUEST).number(theirs).string(kind);
    if let Some(version) = wish.protocol {
        let env = request(b"env").flag(Flag::No).string(b"GIT_PROTOCOL").string(version.as_bytes());
        talk.send(env.done())?;
    }
    talk.send(request(b"exec").flag(Flag::Yes).string(wish.command.line().as_bytes()).done())
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    use std::io::Read as _;
    let mut text = Vec::new();
    std::fs::File::open(path)?.take(LONGEST_FILE).read_to_end(&mut text)?;
    Ok(text)
}

/// A private key of OpenSSH (`PROTOCOL.key` there) that has no passphrase.
fn read_key(path: &Path) -> io::Result<OwnKey> {
    let text = Zeroizing::new(read(path)?);
    parse_key(&text).ok_or_else(|| io::Error::other("it is no Ed25519 key without a passphrase"))
}

fn parse_key(text: &[u8]) -> Option<OwnKey> {
    let text = std::str::from_utf8(text).ok()?;
    let inside = text.trim().strip_prefix("-----BEGIN OPENSSH PRIVATE KEY-----")?;
    let inside = inside.strip_suffix("-----END OPENSSH PRIVATE KEY-----")?;
    let plain: Zeroizing<String> = Zeroizing::new(inside.split_ascii_whitespace().collect());
    let bytes = Zeroizing::new(BASE64.decode(plain.as_bytes()).ok()?);
    let mut reader = Reader::new(bytes.strip_prefix(b"openssh-key-v1\0")?);
    let (cipher, kdf) = (reader.string().ok()?, reader.string().ok()?);
    reader.string().ok()?;
    if cipher != b"none" || kdf != b"none" || reader.number().ok()? != 1 {
        return None;
    }
    reader.string().ok()?;
    let mut private = Reader::new(reader.string().ok()?);
    if private.number().ok()? != private.number().ok()? || private.string().ok()? != b"ssh-ed25519" {
        return None;
    }
    let public = private.string().ok()?;
    let seed = private.string().ok()?.get(..32)?;
    OwnKey::of(seed, public).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_without_passphrase_is_read_and_no_other() {
        let folder = tempfile::tempdir().unwrap();
        let make = |name: &str, words: &[&str]| {
            let path = folder.path().join(name);
            let made =
                std::process::Command::new("ssh-keygen").args(["-q", "-f"]).arg(&path).args(words).status();
            made.is_ok_and(|status| status.success()).then_some(path)
        };
        let Some(plain) = make("plain", &["-t", "ed25519", "-N", ""]) else { return };
        let locked = make("locked", &["-t", "ed25519", "-N", "secret"]).unwrap();
        let other = make("other", &["-t", "ecdsa", "-N", ""]).unwrap();

        let key = read_key(&plain).unwrap();
        let public = std::fs::read_to_string(plain.with_extension("pub")).unwrap();
        assert_eq!(public.split(' ').nth(1).unwrap(), BASE64.encode(&key.public()));
        assert!(read_key(&locked).is_err() && read_key(&other).is_err());
    }
}
