//! A machine that stands still while its memory is saved. Whoever saves it speaks with its monitor; the keeper only sees to
//! it that the machine goes on, in whatever way that ends.

use super::{Keeper, plan};
use airlock_protocol::{control::Refusal, guest::ToGuest, spec::Place, state::Status};
use std::{
    os::fd::{AsFd as _, OwnedFd},
    time::Duration,
};

/// How long a machine may take to stand still.
const PATIENCE: Duration = Duration::from_secs(60);
/// What a monitor is told when its machine is to go on, whatever it was told before. Nobody waits for its answers; they are short.
const GO_ON: &[u8] = b"{\"execute\":\"migrate_cancel\"}{\"execute\":\"cont\"}";

impl Keeper {
    /// Has the machine stand still until [`Keeper::release`]. What is known of it outside is written to `known`. Gives where its
    /// monitor takes orders, and the key of its memory.
    pub async fn rest(&self, known: OwnedFd) -> Result<(OwnedFd, String), Refusal> {
        let Some(monitor) = &self.launched.monitor else { return Err(no_memory(self.spec.backend)) };
        let status = self.state.borrow().status;
        if status != Status::Running {
            let what = format!("this sandbox is {}", status.word());
            return Err(plan::refusal(1, &what, Some("only the memory of one that runs is saved"), None));
        }
        let socket = monitor.socket.try_clone().map_err(|err| {
            plan::refusal(125, "the machine cannot be reached", Some(&err.to_string()), None)
        })?;
        self.held.set(true);
        self.rests.set(true);
        let note = Some("frozen: its memory is being saved".to_owned());
        self.update(|state| (state.status, state.note) = (Status::Paused, note));
        let answered = self.programs.await_word();
        self.tell(ToGuest::Rest { main: self.main.get() }, vec![known]).await?;
        let answered = tokio::time::timeout(PATIENCE, answered).await;
        if matches!(answered, Ok(Ok(()))) && self.programs.is_still() {
            return Ok((socket, monitor.key.clone()));
        }
        self.release().await;
        let why = "something in it does not stand still: a program that cannot be stopped, or a file that is waited for";
        Err(plan::refusal(
            125,
            "the memory of this machine cannot be saved now",
            Some(why),
            Some("try again"),
        ))
    }

    /// The machine goes on.
    pub(super) async fn rise(&self) -> Result<(), Refusal> {
        if let Some(monitor) = &self.launched.monitor {
            // Where nobody reads any more, the sandbox is about to end.
            let _ = airlock_linux::fd::send_all(monitor.socket.as_fd(), GO_ON, &[]);
        }
        self.tell(ToGuest::Rise, Vec::new()).await
    }
}

fn no_memory(place: Place) -> Refusal {
    let what = "the memory of this sandbox cannot be saved";
    let why = match place {
        Place::Namespaces => {
            "its programs are processes of this host's kernel; only a machine (--backend microvm) has a memory of its own"
        }
        Place::Microvm => {
            "its monitor, Firecracker, is given no files to write; QEMU saves a memory (--monitor qemu)"
        }
    };
    plan::refusal(125, what, Some(why), Some("without --memory its files are kept"))
}
