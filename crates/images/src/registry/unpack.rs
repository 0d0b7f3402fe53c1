//! A layer is unpacked by a process of its own, while others still travel.
//!
//! That process may wait for another command which unpacks the same layer; were it this one, two commands could wait for
//! each other.

use super::Error;
use crate::{digest::Digest, layer::Ids, manifest::Descriptor, store::Hold};
use airlock_linux::clone::{self, Child, Namespaces, Side};
use std::{
    fmt::Write as _,
    io::{self, Write as _},
};
use tokio::{io::AsyncReadExt as _, net::unix::pipe};

/// Most bytes that such a process says.
const MOST_SAID: usize = 1 << 20;

/// What is unpacked, for whom.
pub(super) struct Unpack<'a> {
    pub(super) hold: &'a Hold,
    pub(super) descriptor: &'a Descriptor,
    pub(super) diff: &'a Digest,
    pub(super) ids: &'a Ids,
}

/// Ends the process if nobody waits for it any more.
struct Working {
    child: Child,
    is_over: bool,
}

impl Drop for Working {
    fn drop(&mut self) {
        if !self.is_over {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

impl Unpack<'_> {
    /// Unpacks it; `told` hears how many bytes of it are done.
    pub(super) async fn run(&self, told: impl Fn(u64)) -> Result<(), Error> {
        let failed = |err: io::Error| Error::Unpack { layer: self.descriptor.digest, why: err.to_string() };
        let (hear, say) = io::pipe().map_err(failed)?;
        let child = match clone::fork(Namespaces::NONE, None).map_err(failed)? {
            Side::Parent(child) => child,
            Side::Child => {
                drop(hear);
                self.work(say);
                clone::exit_now(0);
            }
        };
        drop(say);
        let mut working = Working { child, is_over: false };
        let mut hear = pipe::Receiver::from_owned_fd(hear.into()).map_err(failed)?;
        let (mut heard, mut done) = (Vec::new(), 0u64);
        let mut piece = vec![0; 4096];
        loop {
            let count = hear.read(&mut piece).await.map_err(failed)?;
            if count == 0 {
                break;
            }
            heard.extend(piece.get(..count).unwrap_or_default());
            if heard.len() > MOST_SAID {
                return Err(failed(io::Error::other("its process says too much")));
            }
            let more = take_progress(&mut heard);
            if more > 0 {
                done = done.saturating_add(more);
                told(done);
            }
        }
        working.is_over = true;
        working.child.wait().map_err(failed)?;
        match heard.as_slice() {
            b"ok\n" => Ok(()),
            said => {
                let why = match said.strip_prefix(b"no ") {
                    Some(why) => String::from_utf8_lossy(why).trim().to_owned(),
                    None => "its process was killed".to_owned(),
                };
                Err(Error::Unpack { layer: self.descriptor.digest, why })
            }
        }
    }

    /// In the child.
    fn work(&self, mut say: io::PipeWriter) {
        if clone::die_with_parent().is_err() {
            return;
        }
        let Ok(mut teller) = say.try_clone() else { return };
        let mut told = |bytes: u64| {
            let _ = teller.write_all(format!("+{bytes}\n").as_bytes());
        };
        let outcome = self.hold.make_layer(self.descriptor, self.diff, self.ids, &mut told);
        let words = match outcome {
            Ok(_) => "ok\n".to_owned(),
            Err(err) => {
                let mut words = format!("no {err}");
                let mut cause = std::error::Error::source(&err);
                while let Some(inner) = cause {
                    let _ = write!(words, ": {inner}");
                    cause = inner.source();
                }
                words.replace('\n', " ") + "\n"
            }
        };
        let _ = say.write_all(words.as_bytes());
    }
}

/// Takes whole lines of progress out, and adds them up.
fn take_progress(heard: &mut Vec<u8>) -> u64 {
    let mut sum = 0u64;
    while heard.first() == Some(&b'+') {
        let Some(end) = heard.iter().position(|byte| *byte == b'\n') else { break };
        let line: Vec<u8> = heard.drain(..=end).collect();
        let digits = line.get(1..end).unwrap_or_default();
        let bytes: u64 = std::str::from_utf8(digits).ok().and_then(|text| text.parse().ok()).unwrap_or(0);
        sum = sum.saturating_add(bytes);
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_is_added_up_and_what_follows_is_left() {
        let mut heard = b"+5\n+7\n+1".to_vec();
        assert_eq!((take_progress(&mut heard), heard.as_slice()), (12, &b"+1"[..]));
        heard.extend(b"0\nok\n");
        assert_eq!((take_progress(&mut heard), heard.as_slice()), (10, &b"ok\n"[..]));
    }
}
