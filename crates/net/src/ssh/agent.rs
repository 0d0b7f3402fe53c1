//! The person's agent, which signs without showing its keys (draft-ietf-sshm-ssh-agent).

use super::wire::{Cut, Reader, Writer};
use std::{io, path::Path, time::Duration};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::UnixStream,
    time::timeout,
};

const REQUEST_IDENTITIES: u8 = 11;
const IDENTITIES_ANSWER: u8 = 12;
const SIGN_REQUEST: u8 = 13;
const SIGN_RESPONSE: u8 = 14;
/// For keys of RSA.
const SHA512: u32 = 4;
/// Longest answer.
const LONGEST: usize = 256 * 1024;
/// For a list of keys.
const SOON: Duration = Duration::from_secs(5);
/// For a signature: somebody may have to touch something.
const LATER: Duration = Duration::from_secs(60);

/// A connection to an agent.
pub(super) struct Agent(UnixStream);

impl Agent {
    /// The agent that listens there.
    pub(super) async fn at(path: &Path) -> io::Result<Agent> {
        Ok(Agent(UnixStream::connect(path).await?))
    }

    /// The public halves of its keys.
    pub(super) async fn keys(&mut self) -> io::Result<Vec<Vec<u8>>> {
        let answer = self.ask(Writer::new(REQUEST_IDENTITIES).done(), SOON).await?;
        let mut reader = Reader::new(&answer);
        let mut read = || {
            (reader.byte()? == IDENTITIES_ANSWER).then_some(()).ok_or(Cut)?;
            let mut keys = Vec::new();
            for _ in 0..reader.number()? {
                keys.push(reader.string()?.to_vec());
                reader.string()?;
            }
            Ok(keys)
        };
        read().map_err(|cut: Cut| io::Error::other(cut))
    }

    /// A signature, as SSH writes it.
    pub(super) async fn sign(&mut self, key: &[u8], text: &[u8]) -> io::Result<Vec<u8>> {
        let is_rsa = Reader::new(key).string().is_ok_and(|kind| kind.starts_with(b"ssh-rsa"));
        let flags = if is_rsa { SHA512 } else { 0 };
        let request = Writer::new(SIGN_REQUEST).string(key).string(text).number(flags).done();
        let answer = self.ask(request, LATER).await?;
        let mut reader = Reader::new(&answer);
        match (reader.byte(), reader.string()) {
            (Ok(SIGN_RESPONSE), Ok(signature)) => Ok(signature.to_vec()),
            _ => Err(io::Error::other("it does not sign with this key")),
        }
    }

    async fn ask(&mut self, request: Vec<u8>, patience: Duration) -> io::Result<Vec<u8>> {
        let asked = async {
            self.0.write_all(&Writer::default().string(&request).done()).await?;
            let length = usize::try_from(self.0.read_u32().await?).unwrap_or(usize::MAX);
            if length > LONGEST {
                return Err(io::Error::other("its answer is too long"));
            }
            let mut answer = vec![0; length];
            self.0.read_exact(&mut answer).await?;
            Ok(answer)
        };
        timeout(patience, asked).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
    }
}
