//! One command of a build, in a process that does nothing else: `airlock build-step`, started by `airlock build`.
//!
//! What to do comes as JSON on stdin; what the command prints and how it ended goes as lines of JSON to stdout.

use super::given;
use crate::{
    failure::{Failure, Outcome},
    home,
    root::{self, Root},
    say::Voice,
    step::{self, Done, Files, Step},
};
use airlock_files::within;
use airlock_images::{
    digest::Digest,
    layer::{self, Below, Compression, Form, Packed},
};
use airlock_protocol::{
    files::VolumeUse,
    policy::Policy,
    spec::{Egress, Mount, Tmpfs},
};
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    fs::{File, OpenOptions},
    io::{self, BufWriter, Read as _, Write as _},
    os::fd::AsFd as _,
    path::PathBuf,
    rc::Rc,
};

/// User and group of what has a path.
pub(super) type Owners = BTreeMap<String, (u32, u32)>;

/// What is to be done.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Asked {
    /// The image of all layers so far; none is the host's own system.
    pub(super) image: Option<Digest>,
    pub(super) command: Vec<String>,
    pub(super) env: BTreeMap<String, String>,
    pub(super) workdir: PathBuf,
    pub(super) user: String,
    pub(super) mounts: Vec<Mount>,
    pub(super) volumes: Vec<VolumeUse>,
    pub(super) tmpfs: Vec<Tmpfs>,
    /// Files that belong to somebody inside.
    pub(super) owned: Vec<Owned>,
    /// Volumes that are to belong to somebody inside when they are fresh.
    pub(super) caches: Vec<Cache>,
    /// Where what it prints to stdout goes. What it changes is then forgotten.
    pub(super) output: Option<PathBuf>,
    pub(super) policy: Policy,
    pub(super) egress: Egress,
    /// Nothing in the layer is told to be of later than this.
    pub(super) epoch: u64,
    /// Whose things of the image are that are not root's, for who has a single id: the disk cannot say. A byte of a path is a
    /// character.
    pub(super) below: Option<Owners>,
}

/// A file of this host that is somebody's inside.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Owned {
    pub(super) path: PathBuf,
    /// User and group inside.
    pub(super) owner: (u32, u32),
    pub(super) mode: u32,
}

/// A volume, and whose it is when it is fresh.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Cache {
    pub(super) volume: String,
    /// User and group inside.
    pub(super) owner: (u32, u32),
    pub(super) mode: u32,
}

/// What is heard of it.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Heard {
    /// A line that it printed.
    Output(String),
    /// How it ended.
    End(Answer),
}

/// How it ended.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Answer {
    /// It changed this.
    Layer { digest: Digest, size: u64, diff: Digest, media: String },
    /// It changed nothing.
    Nothing,
    /// It failed.
    Exit(u8),
    /// It could not be run.
    Failed { code: u8, what: String, why: Option<String>, fix: Option<String> },
}

/// Longest line that is told whole.
const LINE: usize = 16 << 10;
/// Bytes that are written at once.
const PIECE: usize = 1 << 20;

/// Does what stdin says.
pub(crate) fn perform() -> Outcome {
    let mut text = Vec::new();
    io::stdin().lock().read_to_end(&mut text)?;
    let answer = match answered(&text) {
        Ok(answer) => answer,
        Err(failure) => {
            Answer::Failed { code: failure.code, what: failure.what, why: failure.why, fix: failure.fix }
        }
    };
    tell(&Heard::End(answer))?;
    Ok(0)
}

fn answered(text: &[u8]) -> Result<Answer, Failure> {
    let asked: Asked = serde_json::from_slice(text)
        .map_err(|err| Failure::because("this is for `airlock build` alone", &err).code(2))?;
    let epoch = asked.epoch;
    let below = asked.below.as_ref().map(read_below);
    let store = home::store()?;
    let hold = root::hold(&store)?;
    let root = match &asked.image {
        Some(id) => {
            let image = hold.image(id)?;
            let of = (Some(asked.user.as_str()), Voice::Quiet);
            Some(Root::of(&store, hold.clone(), &image, &image.id.short(), of)?)
        }
        None => None,
    };
    given::give(&store, &asked, root.as_ref())?;
    let stdout = asked.output.as_ref().map(|path| OpenOptions::new().write(true).open(path)).transpose()?;
    let is_forgotten = stdout.is_some();
    let step = Step {
        env: asked.env,
        workdir: asked.workdir,
        user: asked.user,
        mounts: asked.mounts,
        volumes: asked.volumes,
        tmpfs: asked.tmpfs,
        policy: asked.policy,
        egress: asked.egress,
        files: if is_forgotten { Files::OfSandbox } else { Files::OfImages },
        stdout: stdout.map(Rc::new),
        ..Step::new(root, asked.command)
    };
    let mut lines = Lines::default();
    let done = step::begin(&store, &step)?.relay(&mut |bytes| lines.hear(bytes))?;
    lines.end();
    if done.exit.code != 0 {
        return Ok(Answer::Exit(done.exit.code));
    }
    if is_forgotten {
        return Ok(Answer::Nothing);
    }
    packed(&hold, &done, Form { below: below.as_ref(), ..Form::of_image(Compression::Gzip, Some(epoch)) })
}

/// A path as JSON can have it.
pub(super) fn text_of(path: &[u8]) -> String {
    path.iter().map(|byte| char::from(*byte)).collect()
}

fn read_below(told: &Owners) -> Below {
    let path = |text: &String| text.chars().filter_map(|byte| u8::try_from(byte).ok()).collect();
    told.iter().map(|(text, owner)| (path(text), *owner)).collect()
}

/// What the command changed, as a layer in the store.
fn packed(hold: &airlock_images::store::Hold, done: &Done, form: Form<'_>) -> Result<Answer, Failure> {
    let Some(upper) = done.upper() else { return Ok(Answer::Nothing) };
    let what = "what a step changed could not be packed";
    let tree = File::open(&upper).map_err(|err| Failure::because(what, &err))?;
    let mut spool = hold.spool()?;
    let file = hold.spool()?.into_file()?;
    let work = |progress: &mut dyn FnMut(u64)| {
        let mut out = BufWriter::with_capacity(PIECE, &file);
        let packed = layer::pack(tree.as_fd(), form, &mut out, progress);
        let packed = packed.map_err(|err| airlock_engine::plan::chain(&err))?;
        out.flush().map_err(|err| err.to_string())?;
        Ok(packed)
    };
    let one: Packed =
        within::run(&done.ids()?, &mut |_| {}, work).map_err(|err| Failure::because(what, &err))?;
    if one.entries == 0 {
        return Ok(Answer::Nothing);
    }
    let mut file = file;
    io::Seek::rewind(&mut file)?;
    io::copy(&mut file, &mut spool)?;
    spool.finish_as(&one.digest)?;
    Ok(Answer::Layer { digest: one.digest, size: one.size, diff: one.diff, media: one.media_type })
}

fn tell(heard: &Heard) -> Result<(), Failure> {
    let text = serde_json::to_string(heard).map_err(|err| Failure::because("could not write JSON", &err))?;
    let mut stdout = io::stdout().lock();
    writeln!(stdout, "{text}")?;
    Ok(stdout.flush()?)
}

/// Lines out of pieces.
#[derive(Default)]
struct Lines {
    held: Vec<u8>,
}

impl Lines {
    fn hear(&mut self, bytes: &[u8]) {
        for byte in bytes {
            match byte {
                b'\n' => self.end(),
                byte => self.held.push(*byte),
            }
            if self.held.len() > LINE {
                self.end();
            }
        }
    }

    fn end(&mut self) {
        if !self.held.is_empty() {
            let text = String::from_utf8_lossy(&self.held).into_owned();
            // Whoever started us may be gone; then nothing matters any more.
            let _ = tell(&Heard::Output(text));
            self.held.clear();
        }
    }
}
