//! What this end knows of its machine, written down while that rests: a copy of the machine goes on with it.

use crate::mux::Standing;
use airlock_files::provider::{Known, KnownNode, KnownOpen};
use serde::{Deserialize, Serialize};
use std::{
    fs::File,
    io::{self, BufReader, BufWriter, Read as _, Write as _},
    os::fd::OwnedFd,
};

/// Most that is read.
const MOST: u64 = 512 << 20;

/// Everything.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Saved {
    /// The main program.
    pub(super) main: Main,
    /// The highest numbers that were given to programs and streams.
    pub(super) last_process: u32,
    pub(super) last_stream: u32,
    pub(super) streams: Vec<Standing>,
    /// What was about to be said.
    pub(super) unsaid: Vec<u8>,
    pub(super) files: Files,
}

/// The main program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Main {
    pub(super) process: u32,
    pub(super) pid: u32,
    /// Its streams: input, output, errors.
    pub(super) places: Vec<u32>,
}

/// As [`Known`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Files {
    nodes: Vec<KnownNode>,
    open: Vec<KnownOpen>,
    last: (u64, u64),
}

impl From<Known> for Files {
    fn from(Known { nodes, open, last }: Known) -> Files {
        Files { nodes, open, last }
    }
}

impl From<Files> for Known {
    fn from(Files { nodes, open, last }: Files) -> Known {
        Known { nodes, open, last }
    }
}

impl Saved {
    pub(super) fn write(&self, to: OwnedFd) -> io::Result<()> {
        let mut file = BufWriter::new(File::from(to));
        serde_json::to_writer(&mut file, self)?;
        file.flush()
    }

    pub(super) fn read(from: OwnedFd) -> io::Result<Saved> {
        Ok(serde_json::from_reader(BufReader::new(File::from(from)).take(MOST))?)
    }
}
