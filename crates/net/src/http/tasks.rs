//! Tasks of opened connections.

use hyper::rt::Executor;
use std::{
    cell::RefCell,
    future::poll_fn,
    rc::Rc,
    task::{Context, Poll},
};
use tokio::task::{AbortHandle, JoinSet};

/// Where tasks are started.
#[derive(Clone, Default)]
pub(super) struct Tasks(Rc<RefCell<JoinSet<()>>>);

impl Tasks {
    /// Starts one; what ends it before its time.
    pub(super) fn start(&self, task: impl Future<Output = ()> + 'static) -> AbortHandle {
        let mut running = self.0.borrow_mut();
        while running.try_join_next().is_some() {}
        running.spawn_local(task)
    }

    /// Ends all of them. They know where others are started, so they would keep each other alive.
    pub(super) fn end(&self) {
        let running = self.0.take();
        drop(running);
    }

    /// Waits for all of them.
    pub(super) async fn all(&self) {
        poll_fn(|cx| self.poll_all(cx)).await;
    }

    fn poll_all(&self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            match self.0.borrow_mut().poll_join_next(cx) {
                Poll::Ready(Some(_)) => {}
                Poll::Ready(None) => return Poll::Ready(()),
                Poll::Pending => return Poll::Pending,
            }
        }
    }
}

impl<F: Future + 'static> Executor<F> for Tasks {
    fn execute(&self, task: F) {
        self.start(async move {
            task.await;
        });
    }
}
