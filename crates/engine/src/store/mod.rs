//! The state directory: `$AIRLOCK_HOME`, where every sandbox is a folder and the folder is the truth.
//!
//! ```text
//! sandboxes/<id>/{spec.json,state.json,keeper.log,control.sock,log.jsonl,disk/…}
//! names/<name>      a symbolic link to the id, made exclusively: a name is used once
//! volumes/<name>/{meta.json,data/}
//! host/  guest/     what is made once per host
//! ```
//!
//! A keeper holds an flock on `keeper.log` as long as it lives: whoever can take it knows that the keeper is dead, and
//! repairs the state. Nothing here is synced to disk before the program starts: after a power cut no process of a
//! sandbox is left either, so the only thing that could be lost is the memory of a sandbox that did nothing yet.
//!
//! ```no_run
//! # use airlock_engine::store::{Store, Error}; use std::path::Path;
//! let store = Store::open(Path::new("/home/ada/.airlock"))?;
//! for entry in store.list()? {
//!     println!("{} {}", entry.state.name, entry.state.status.word());
//! }
//! let newest = store.find("-")?;
//! # Ok::<(), Error>(())
//! ```

mod create;
mod home;
mod list;
mod remove;
mod sandbox;
pub mod volumes;
mod words;

pub use airlock_files::remove::{Blocked, disk_usage, remove_tree};
pub(crate) use airlock_files::remove::{as_ids, remove_with};
pub(crate) use create::random_id;
pub use list::{Entry, Swept};
pub use remove::Gone;
pub use sandbox::{ControlPath, Lock, Sandbox, UPPER, WORKSPACE, is_empty};
pub(crate) use sandbox::{read, write};
pub use words::generate_name;

use airlock_protocol::{Name, SandboxId};
use std::{
    io,
    path::{Path, PathBuf},
};

/// The state directory, checked to be ours alone.
#[derive(Debug, Clone)]
pub struct Store {
    home: PathBuf,
}

/// What went wrong with the state directory. [`Error::fix`] names the next step where there is one.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The directory cannot be trusted with state.
    #[error("the state directory {path} is not safe to use: {why}")]
    Unsafe {
        /// Which part of the path.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// The kernel refused something.
    #[error("could not {tried} {path}")]
    Io {
        /// What was tried.
        tried: &'static str,
        /// On what.
        path: PathBuf,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
    /// A file of ours does not hold what it should.
    #[error("{path} cannot be understood")]
    Unreadable {
        /// Which file.
        path: PathBuf,
        /// Where it stops making sense.
        #[source]
        source: serde_json::Error,
    },
    /// Another sandbox has the name.
    #[error("the name {name} is taken by sandbox {id}")]
    NameTaken {
        /// The name.
        name: Name,
        /// Who has it.
        id: String,
    },
    /// Nothing matches what was asked for.
    #[error("no sandbox {selector:?}")]
    NoSuch {
        /// What was asked for.
        selector: String,
    },
    /// The newest was asked for, and there is none.
    #[error("there is no sandbox yet")]
    NoneYet,
    /// Several match what was asked for.
    #[error("{selector:?} could be {}", candidates.join(", "))]
    Ambiguous {
        /// What was asked for.
        selector: String,
        /// What it could mean, as `name (id)`.
        candidates: Vec<String>,
    },
    /// The sandbox has a live keeper.
    #[error("sandbox {id} is running")]
    Busy {
        /// Which.
        id: SandboxId,
    },
    /// Something below a sandbox's folder could not be deleted.
    #[error("could not delete all of {path}")]
    Remove {
        /// The folder, already out of the way of every other command.
        path: PathBuf,
        /// What stood in the way.
        #[source]
        source: Blocked,
    },
}

impl Store {
    /// The state directory at `home`, an absolute path, made (0700) if it is not there.
    ///
    /// Refused if anyone but this user and root could look into it or put another one in its place.
    pub fn open(home: &Path) -> Result<Store, Error> {
        home::prepare(home)?;
        // Whether a path lies in the state directory is asked of real paths.
        let home = std::fs::canonicalize(home).map_err(failed("resolve", home))?;
        Ok(Store { home })
    }

    /// The state directory itself.
    pub fn home(&self) -> &Path {
        &self.home
    }

    /// Where things that are made once per host are kept.
    pub fn host(&self) -> PathBuf {
        self.home.join("host")
    }

    /// Where the ledgers of sandboxes that are gone are kept.
    pub fn ledgers(&self) -> PathBuf {
        self.home.join("ledger")
    }

    /// Where the guest is kept, for hosts on which it cannot be executed from memory.
    pub fn guest(&self) -> PathBuf {
        self.home.join("guest")
    }

    /// The sandbox with exactly this id, without looking whether it is there.
    pub fn sandbox(&self, id: &SandboxId) -> Sandbox {
        Sandbox::new(self, id.clone())
    }

    pub(crate) fn sandboxes(&self) -> PathBuf {
        self.home.join("sandboxes")
    }

    fn name_link(&self, name: &str) -> PathBuf {
        self.home.join("names").join(name)
    }
}

impl Error {
    /// The exit code a command ends with: 1 where the sandbox runs, 3 where none was meant, 125 where we failed.
    pub fn exit_code(&self) -> u8 {
        match self {
            Error::NoSuch { .. } | Error::NoneYet | Error::Ambiguous { .. } => 3,
            Error::Busy { .. } => 1,
            _ => 125,
        }
    }

    /// What to do next, for a person.
    pub fn fix(&self) -> Option<String> {
        match self {
            Error::Unsafe { path, .. } => Some(format!(
                "chown it to yourself and chmod 700 {}, or set AIRLOCK_HOME to a directory of your own",
                path.display()
            )),
            Error::NameTaken { name, .. } => {
                Some(format!("choose another --name, or remove the old one: airlock rm {name}"))
            }
            Error::NoSuch { .. } => Some("`airlock ls --all` lists them".to_owned()),
            Error::NoneYet => Some("airlock run -- COMMAND".to_owned()),
            Error::Ambiguous { .. } => Some("type more of it".to_owned()),
            Error::Busy { id } => Some(format!("airlock stop {id}, or add --force")),
            Error::Unreadable { .. } => Some("remove the sandbox: airlock rm --force".to_owned()),
            Error::Io { .. } | Error::Remove { .. } => None,
        }
    }
}

/// The time now as every file of ours writes it: RFC 3339, UTC, always six decimals, so that text order is time order.
pub fn now() -> String {
    format!("{:.6}", jiff::Timestamp::now())
}

pub(crate) fn failed(tried: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
    let path = path.to_owned();
    move |source| Error::Io { tried, path, source }
}

#[cfg(test)]
mod tests;
