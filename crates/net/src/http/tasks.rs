//! Tasks of one opened connection. They die with it.

use hyper::rt::Executor;
use std::{
    cell::RefCell,
    future::poll_fn,
    rc::Rc,
    task::{Context, Poll},
};
use tokio::task::JoinSet;

/// Where tasks are started.
#[derive(Clone, Default)]
pub(super) struct Tasks(Rc<RefCell<JoinSet<()>>>);

impl Tasks {
    /// Starts one.
    pub(super) fn start(&self, task: impl Future<Output = ()> + 'static) {
        let mut running = self.0.borrow_mut();
        while running.try_join_next().is_some() {}
        running.spawn_local(task);
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

/// Ends the tasks when it is dropped. They know where others are started, so they would keep each other alive.
pub(super) struct Owner(pub(super) Tasks);

impl Drop for Owner {
    fn drop(&mut self) {
        let running = self.0.0.take();
        drop(running);
    }
}
