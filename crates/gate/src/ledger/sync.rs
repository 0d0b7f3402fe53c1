//! From the kernel's memory to the disk.
//!
//! A record survives our death once it is written, and a power cut once it is synced: within a second, or, where the
//! ledger is durable, before its effect. Whoever waits at the same time shares one sync.

use super::Error;
use std::{
    cell::{Cell, RefCell},
    fs::File,
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};
use tokio::sync::Notify;

/// From the first unsynced record to the sync.
const SOON: Duration = Duration::from_millis(400);

/// What is written and perhaps not on the disk.
#[derive(Debug)]
pub(super) struct Unsynced {
    folder: PathBuf,
    batch: RefCell<Batch>,
    /// What a sync on its way has.
    flying: RefCell<Batch>,
    /// Counts records.
    written: Cell<u64>,
    /// As many of them are on the disk.
    synced: Cell<u64>,
    is_syncing: Cell<bool>,
    trouble: RefCell<Option<String>>,
    wake: Notify,
    done: Notify,
}

#[derive(Debug, Default, Clone)]
struct Batch {
    files: Vec<Arc<File>>,
    folder: Option<PathBuf>,
}

impl Unsynced {
    pub(super) fn in_folder(folder: &Path) -> Unsynced {
        Unsynced {
            folder: folder.to_owned(),
            batch: RefCell::default(),
            flying: RefCell::default(),
            written: Cell::new(0),
            synced: Cell::new(0),
            is_syncing: Cell::new(false),
            trouble: RefCell::new(None),
            wake: Notify::new(),
            done: Notify::new(),
        }
    }

    /// A record was written to this file.
    pub(super) fn wrote(&self, file: &Arc<File>) {
        self.written.set(self.written.get() + 1);
        let mut batch = self.batch.borrow_mut();
        if !batch.files.iter().any(|known| Arc::ptr_eq(known, file)) {
            batch.files.push(file.clone());
            self.wake.notify_one();
        }
    }

    /// A file was made.
    pub(super) fn folder_changed(&self) {
        self.batch.borrow_mut().folder = Some(self.folder.clone());
    }

    /// Refuses while the last sync failed.
    pub(super) fn check(&self) -> Result<(), Error> {
        match &*self.trouble.borrow() {
            Some(why) => Err(Error::Sync { why: why.clone() }),
            None => Ok(()),
        }
    }

    /// Waits until everything written before this call is on the disk.
    pub(super) async fn sync(&self) -> Result<(), Error> {
        let wanted = self.written.get();
        while self.synced.get() < wanted {
            if self.is_syncing.get() {
                self.done.notified().await;
                continue;
            }
            let running = Running::begin(self);
            let batch = self.flying.borrow().clone();
            let synced = tokio::task::spawn_blocking(move || batch.sync()).await;
            running.end(synced.unwrap_or_else(|err| Err(io::Error::other(err))))?;
        }
        Ok(())
    }

    /// Syncs soon after each record, and again after a failure, until dropped.
    pub(super) async fn keep(&self) {
        loop {
            self.wake.notified().await;
            tokio::time::sleep(SOON).await;
            if self.sync().await.is_err() {
                self.wake.notify_one();
            }
        }
    }

    /// Whether everything written is on the disk.
    #[cfg(test)]
    pub(super) fn is_clean(&self) -> bool {
        self.synced.get() >= self.written.get()
    }

    /// As [`Unsynced::sync`], blocking.
    pub(super) fn sync_now(&self) -> Result<(), Error> {
        if self.synced.get() >= self.written.get() {
            return Ok(());
        }
        let mut all = self.flying.borrow().clone();
        all.merge(&self.batch.borrow());
        all.sync().map_err(|err| Error::Sync { why: err.to_string() })?;
        self.batch.take();
        self.synced.set(self.written.get());
        Ok(())
    }
}

impl Batch {
    fn merge(&mut self, other: &Batch) {
        self.files.extend_from_slice(&other.files);
        self.folder = self.folder.take().or_else(|| other.folder.clone());
    }

    fn sync(&self) -> io::Result<()> {
        self.files.iter().try_for_each(|file| file.sync_data())?;
        match &self.folder {
            Some(folder) => File::open(folder)?.sync_all(),
            None => Ok(()),
        }
    }
}

/// A sync on its way. If it is given up, what it had is unsynced again.
struct Running<'a> {
    of: &'a Unsynced,
    upto: u64,
    succeeded: bool,
}

impl Running<'_> {
    fn begin(of: &Unsynced) -> Running<'_> {
        of.is_syncing.set(true);
        of.flying.replace(of.batch.take());
        Running { of, upto: of.written.get(), succeeded: false }
    }

    fn end(mut self, result: io::Result<()>) -> Result<(), Error> {
        match result {
            Ok(()) => {
                self.succeeded = true;
                self.of.synced.set(self.upto.max(self.of.synced.get()));
                *self.of.trouble.borrow_mut() = None;
                Ok(())
            }
            Err(err) => {
                let why = err.to_string();
                *self.of.trouble.borrow_mut() = Some(why.clone());
                self.of.wake.notify_one();
                Err(Error::Sync { why })
            }
        }
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        let flown = self.of.flying.take();
        if !self.succeeded {
            self.of.batch.borrow_mut().merge(&flown);
        }
        self.of.is_syncing.set(false);
        self.of.done.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn while_the_disk_refuses_nothing_is_added_and_it_goes_on_when_it_works_again() {
        let parent = tempfile::tempdir().unwrap();
        let folder = parent.path().join("gone");
        let unsynced = Unsynced::in_folder(&folder);
        unsynced.folder_changed();
        unsynced.wrote(&Arc::new(tempfile::tempfile().unwrap()));
        assert!(unsynced.check().is_ok());

        assert!(unsynced.sync().await.is_err());
        assert!(unsynced.check().is_err());

        std::fs::create_dir(&folder).unwrap();
        let keeping = unsynced.keep();
        tokio::pin!(keeping);
        let works_again = async {
            while unsynced.check().is_err() {
                tokio::task::yield_now().await;
            }
        };
        tokio::select! { () = &mut keeping => unreachable!(), () = works_again => {} }
        assert!(unsynced.is_clean());
    }

    #[tokio::test]
    async fn a_sync_that_is_given_up_leaves_its_files_unsynced() {
        let folder = tempfile::tempdir().unwrap();
        let unsynced = Unsynced::in_folder(folder.path());
        unsynced.wrote(&Arc::new(tempfile::tempfile().unwrap()));
        {
            let mut given_up = Box::pin(unsynced.sync());
            let mut context = std::task::Context::from_waker(std::task::Waker::noop());
            assert!(given_up.as_mut().poll(&mut context).is_pending());
        }
        assert_eq!(unsynced.batch.borrow().files.len(), 1);
        unsynced.sync().await.unwrap();
        assert!(unsynced.is_clean() && unsynced.batch.borrow().files.is_empty());
    }
}
