//! The program that runs a script, and questions to it.

use super::Told;
use airlock_protocol::{
    script::{self, Answer, Ask, Hooks, Said},
    spec::Script,
};
use std::{
    collections::BTreeMap, io, os::unix::net::UnixStream as StdStream, process::Child, rc::Rc, time::Duration,
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::UnixStream,
    sync::Mutex,
    time::timeout,
};

/// Statements that one call may execute.
const STEPS: u64 = 1_000_000;
/// How long one call may take.
const CALL: Duration = Duration::from_secs(1);
/// How long a question may wait for those before it.
const TURN: Duration = Duration::from_secs(20);
/// How long the script may take to be read.
const LOAD: Duration = Duration::from_secs(5);

/// Starts the program.
pub type Start = Rc<dyn Fn() -> io::Result<Helper>>;

/// The program while it runs. It ends with this.
#[derive(Debug)]
pub struct Helper {
    /// Questions and answers.
    pub stream: StdStream,
    /// The process.
    pub child: Child,
}

impl Drop for Helper {
    fn drop(&mut self) {
        // One that is gone already cannot be killed again.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The script's program, started anew after it failed.
pub(super) struct Link {
    start: Start,
    load: Ask,
    told: Told,
    running: Mutex<Running>,
}

enum Running {
    /// Started, and spoken to without a runtime so far.
    Fresh(Helper),
    /// In use.
    Live { stream: UnixStream, _helper: Helper },
    /// It failed; the next question starts it anew.
    Gone,
}

impl Link {
    /// Starts the program, and has it read the script.
    pub(super) fn begin(
        start: Start,
        script: Script,
        secrets: BTreeMap<String, String>,
        told: Told,
    ) -> Result<(Link, Hooks), String> {
        let load = Ask::Load { name: script.name, text: script.text, secrets, steps: STEPS };
        let mut helper =
            start().map_err(|err| format!("the program that runs scripts cannot be started: {err}"))?;
        let answer = first(&mut helper, &load)
            .map_err(|err| format!("the program that runs scripts failed: {err}"))?;
        answer.printed.iter().for_each(|line| told(line));
        let hooks = match answer.said {
            Said::Ready(hooks) => hooks,
            Said::Failed(why) => return Err(why),
            _ => return Err("the program that runs scripts answers something else".to_owned()),
        };
        let running = Mutex::new(Running::Fresh(helper));
        Ok((Link { start, load, told, running }, hooks))
    }

    /// Asks. Whatever goes wrong is [`Said::Failed`].
    pub(super) async fn ask(&self, ask: Ask) -> Said {
        let Ok(mut running) = timeout(TURN, self.running.lock()).await else {
            return Said::Failed("too many questions wait for it".to_owned());
        };
        // Whoever gives up in the middle of a question leaves a program that would answer the old one to the next.
        let mut taken = std::mem::replace(&mut *running, Running::Gone);
        match self.ask_now(&mut taken, &ask).await {
            Ok(answer) => {
                *running = taken;
                answer.printed.iter().for_each(|line| (self.told)(line));
                if let Said::Failed(why) = &answer.said {
                    (self.told)(why);
                }
                answer.said
            }
            Err(why) => {
                (self.told)(&why);
                Said::Failed(why)
            }
        }
    }

    async fn ask_now(&self, running: &mut Running, ask: &Ask) -> Result<Answer, String> {
        if let Running::Gone = running {
            let helper = (self.start)().map_err(|err| format!("it cannot be started: {err}"))?;
            *running = Running::Fresh(helper);
            let read = exchange(live(running)?, &self.load, LOAD).await?;
            if !matches!(read.said, Said::Ready(_)) {
                return Err("it cannot be read any more".to_owned());
            }
        }
        exchange(live(running)?, ask, CALL).await
    }
}

/// The stream, for use in the runtime from now on.
fn live(running: &mut Running) -> Result<&mut UnixStream, String> {
    if let Running::Fresh(helper) = running {
        let fresh = |err: io::Error| format!("it cannot be spoken to: {err}");
        helper.stream.set_nonblocking(true).map_err(fresh)?;
        let stream = helper.stream.try_clone().and_then(UnixStream::from_std).map_err(fresh)?;
        let Running::Fresh(helper) = std::mem::replace(running, Running::Gone) else {
            return Err("it is gone".to_owned());
        };
        *running = Running::Live { stream, _helper: helper };
    }
    match running {
        Running::Live { stream, .. } => Ok(stream),
        _ => Err("it is gone".to_owned()),
    }
}

async fn exchange(stream: &mut UnixStream, ask: &Ask, patience: Duration) -> Result<Answer, String> {
    let question = script::encode(ask).map_err(|err| err.to_string())?;
    let exchanged = async {
        stream.write_all(&question).await?;
        let mut head = [0; 4];
        stream.read_exact(&mut head).await?;
        let length = script::length(head)?;
        let mut body = Vec::new();
        let wanted = u64::try_from(length).unwrap_or(u64::MAX);
        if (&mut *stream).take(wanted).read_to_end(&mut body).await? < length {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        script::decode(&body)
    };
    match timeout(patience, exchanged).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(err)) if err.kind() == io::ErrorKind::InvalidData => {
            Err(format!("it answers nonsense: {err}"))
        }
        Ok(Err(_)) => Err("it ended, most likely for want of memory".to_owned()),
        Err(_) => Err(format!("it took longer than {} s", patience.as_secs())),
    }
}

/// The first question, before there is a runtime.
fn first(helper: &mut Helper, load: &Ask) -> io::Result<Answer> {
    helper.stream.set_read_timeout(Some(LOAD))?;
    helper.stream.set_write_timeout(Some(LOAD))?;
    script::write(&mut helper.stream, load)?;
    let answer = script::read(&mut helper.stream)?;
    answer.ok_or_else(|| io::Error::new(io::ErrorKind::UnexpectedEof, "it ended at once"))
}
