//! What happens, for whoever watches. A watcher that is too slow loses events; the gate never waits for it.

use airlock_protocol::event::Event;
use std::cell::OnceCell;
use tokio::sync::broadcast;

/// Events that a watcher may be behind.
const BEHIND: usize = 256;

/// Tells events; costs nothing while nobody watches.
#[derive(Debug, Default)]
pub(crate) struct Events(OnceCell<broadcast::Sender<Event>>);

impl Events {
    /// Everything from now on.
    pub(crate) fn watch(&self) -> broadcast::Receiver<Event> {
        self.0.get_or_init(|| broadcast::channel(BEHIND).0).subscribe()
    }

    /// Whether somebody watches.
    pub(crate) fn are_watched(&self) -> bool {
        self.0.get().is_some_and(|sender| sender.receiver_count() > 0)
    }

    /// Tells an event, made only if somebody watches.
    pub(crate) fn tell(&self, event: impl FnOnce() -> Event) {
        if let Some(sender) = self.0.get().filter(|_| self.are_watched()) {
            // The last watcher may just have left.
            let _ = sender.send(event());
        }
    }
}
