//! The ledger: what crossed and what was denied, one JSON line each, chained by hashes, outside the sandbox.
//!
//! | module | |
//! |---|---|
//! | `writer` | [`Ledger`]: adds records, each written before its effect, and with them what waited to be written |
//! | `files` | the files of one ledger, and their rotation |
//! | `sync` | from the kernel's memory to the disk: within a second, or first |
//! | `text` | bounds of what came from outside |
//! | `lines` | lines of a file with their hashes, in bounded memory |
//! | [`verify`](mod@verify) | whether a chain holds |
//! | `read` | [`Reader`]: records of a ledger that may still grow |
//! | [`ocsf`] | records in the words of other people's tools |
//! | [`archive`] | ledgers of sandboxes that are gone |
//!
//! ```
//! use airlock_gate::ledger::{Ledger, verify};
//! use airlock_protocol::ledger::Entry;
//! let folder = tempfile::tempdir()?;
//! let ledger = Ledger::open(folder.path(), "3f9a0c2e7b14".parse()?, false)?;
//! ledger.append(Entry::Policy { generation: 1, rules: 3, by: "allow".into() })?;
//! let report = verify::folder(folder.path())?;
//! assert!(report.is_intact() && report.records == 1);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod archive;
mod files;
mod lines;
pub mod ocsf;
mod read;
mod sync;
#[cfg(test)]
mod tests;
mod text;
pub mod verify;
mod writer;

pub use read::{Growth, Item, Reader, is_denial};
pub(crate) use text::shown;
pub use writer::{Error, Happened, Ledger, Told};

/// The bytes of a line that are looked at; our own are far shorter.
const LONGEST_LINE: usize = 64 * 1024;
