//! What a `RUN` sees by its mounts: files laid out for the time it runs, secrets in memory.

use super::{
    copy::{self, Content, From},
    job::{Job, lock},
    stage::Running,
};
use crate::failure::Failure;
use airlock_images::build::{
    dockerfile::Origin,
    instruction::{Instruction, Transfer},
    mount::{Kind as MountKind, Mount},
    path,
    transfer::{Item, Items},
    tree::{Kind, Tree},
};
use std::{
    ffi::OsStr,
    fs::{self, DirBuilder, File, OpenOptions, Permissions},
    io::{self, Write as _},
    os::unix::{
        ffi::OsStrExt as _,
        fs::{DirBuilderExt as _, PermissionsExt as _},
    },
    path::{Path, PathBuf},
};

/// Where files are in memory.
const MEMORY: &str = "/dev/shm";

/// Directories that go when the step has ended.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    made: Vec<PathBuf>,
    locks: Vec<File>,
}

/// What makes a difference about a mount to the result. Secrets and caches make none.
pub(super) fn key(
    job: &Job,
    stage: &Running,
    instruction: &Instruction,
    mount: &Mount,
) -> Result<String, Failure> {
    let MountKind::Bind { from, source, .. } = &mount.kind else {
        return Ok(match &mount.kind {
            MountKind::Secret { id, mode, uid, gid, .. } => {
                format!("secret {id} {} {mode:o} {uid}:{gid}", mount.target)
            }
            MountKind::Cache { id, .. } => format!("cache {id} {}", mount.target),
            _ => format!("tmpfs {}", mount.target),
        });
    };
    let found = origin(job, stage, instruction, from.as_deref(), source)?;
    Ok(format!("bind {} {} {}", mount.target, source, found.key))
}

/// Lays out what a bind shows; returns the path of this host.
pub(super) fn shown(
    job: &Job,
    stage: &Running,
    instruction: &Instruction,
    (from, source, writable): (Option<&str>, &str, bool),
    scratch: &mut Scratch,
) -> Result<PathBuf, Failure> {
    let found = origin(job, stage, instruction, from, source)?;
    let context = lock(&job.opened);
    let tree = found.tree.as_ref().or(context.as_ref().map(|context| &context.tree));
    let tree = tree.ok_or_else(|| job.fail(instruction, "there is no context"))?;
    let top = tree.resolve(source.as_bytes()).map_err(|err| job.fail(instruction, err.to_string()))?;
    let items = below(tree, &top);
    let froms = [found];
    let taken = copy::contents(job, &items, &froms)?;
    let directory = scratch.directory(&std::env::temp_dir())?;
    let open = copy::opener(&froms, context.as_ref(), &taken);
    let laid = (|| -> io::Result<PathBuf> {
        let mut single = None;
        for (name, item) in &items {
            let top = directory.join("shown");
            let to = if name.is_empty() { top } else { top.join(OsStr::from_bytes(name)) };
            if name.is_empty() && !item.node.is_directory() {
                single = Some(to.clone());
            }
            let add = if writable { 0o222 } else { 0 };
            match &item.node.kind {
                Kind::Directory => {
                    fs::create_dir_all(&to)?;
                    fs::set_permissions(&to, Permissions::from_mode(0o755 | add))?;
                }
                Kind::File { .. } => {
                    io::copy(&mut open(item)?, &mut File::create(&to)?)?;
                    let mode = (item.node.mode & 0o111) | 0o444 | add;
                    fs::set_permissions(&to, Permissions::from_mode(mode))?;
                }
                Kind::Link(target) => std::os::unix::fs::symlink(OsStr::from_bytes(target), &to)?,
                Kind::Other => {}
            }
        }
        Ok(single.unwrap_or_else(|| directory.join("shown")))
    })();
    laid.map_err(|err| Failure::because("what a mount shows could not be laid out", &err))
}

/// The files that a bind is of.
fn origin(
    job: &Job,
    stage: &Running,
    instruction: &Instruction,
    from: Option<&str>,
    source: &str,
) -> Result<From, Failure> {
    let source = source.to_owned();
    let transfer = Transfer { from: from.map(str::to_owned), ..Transfer::default() };
    let Some(from) = from else { return copy::of_context(job, instruction, &transfer, &[&source]) };
    let layers = match job.file.origin(from, stage.at) {
        Origin::Scratch => Some(Vec::new()),
        Origin::Stage(at) => stage.others.get(&at).map(|done| done.layers.clone()),
        Origin::Image(name) => job.image(&name, stage.at)?.map(|image| image.layers.clone()),
    };
    let layers =
        layers.ok_or_else(|| job.fail(instruction, format!("there is no stage or image `{from}`")))?;
    let diffs: Vec<String> = layers.iter().map(|(_, diff)| diff.hex()).collect();
    let key = format!("layers {}", diffs.join(" "));
    let tree = job.tree(&layers)?;
    let top = tree.resolve(source.as_bytes()).map_err(|err| job.fail(instruction, err.to_string()))?;
    if tree.get(&top).is_none() {
        return Err(job.fail(instruction, format!("{source} is not in {from}")));
    }
    Ok(From { tree: Some(tree), content: Content::Layers(layers), taken: Vec::new(), key, kind: "multi" })
}

/// A path and all below it, by names relative to it.
fn below(tree: &Tree, top: &[u8]) -> Items {
    let item = |node: &airlock_images::build::tree::Node| {
        let origin = matches!(node.kind, Kind::File { .. }).then_some(0);
        Item { node: node.clone(), origin }
    };
    let mut items = Items::new();
    items.extend(tree.get(top).map(|node| (Vec::new(), item(node))));
    items.extend(tree.below(top).map(|(name, node)| (path::relative(name), item(node))));
    items
}

impl Scratch {
    /// A file that holds a secret: in memory, readable by this user alone until its step gives it away.
    pub(super) fn secret(&mut self, value: &[u8]) -> Result<PathBuf, Failure> {
        let memory = Path::new(MEMORY);
        let is_memory = rustix::fs::statfs(memory).is_ok_and(|found| found.f_type == 0x0102_1994);
        if !is_memory {
            return Err(Failure::new("there is no place in memory for a secret")
                .why(format!("{MEMORY} is no tmpfs"))
                .fix(format!("mount -t tmpfs tmpfs {MEMORY}")));
        }
        self.written(memory, value, 0o400)
    }

    /// A file of this host.
    pub(super) fn file(&mut self, content: &[u8], mode: u32) -> Result<PathBuf, Failure> {
        self.written(&std::env::temp_dir(), content, mode)
    }

    /// Waits until nobody else has this lock, and keeps it.
    pub(super) fn lock(&mut self, path: &Path) -> Result<(), Failure> {
        let locked =
            OpenOptions::new().create(true).truncate(false).write(true).open(path).and_then(|file| {
                file.lock()?;
                Ok(file)
            });
        let locked =
            locked.map_err(|err| Failure::because(format!("{} cannot be locked", path.display()), &err))?;
        self.locks.push(locked);
        Ok(())
    }

    fn written(&mut self, base: &Path, content: &[u8], mode: u32) -> Result<PathBuf, Failure> {
        let path = self.directory(base)?.join("file");
        let write = || {
            let mut file = File::create(&path)?;
            file.write_all(content)?;
            fs::set_permissions(&path, Permissions::from_mode(mode))
        };
        write().map_err(|err| Failure::because("a file for a step could not be written", &err))?;
        Ok(path)
    }

    /// A directory that nobody else may enter.
    fn directory(&mut self, base: &Path) -> Result<PathBuf, Failure> {
        let make = || {
            let mut bytes = [0u8; 8];
            rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
            let name = format!("airlock-build-{}", data_encoding::HEXLOWER.encode(&bytes));
            let path = base.join(name);
            DirBuilder::new().mode(0o700).create(&path)?;
            Ok(path)
        };
        let path = make()
            .map_err(|err: io::Error| Failure::because("a place for a step could not be made", &err))?;
        self.made.push(path.clone());
        Ok(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        for path in &self.made {
            // What cannot be removed is in a directory that nobody else may enter.
            let _ = airlock_files::remove::remove_tree(path);
        }
    }
}
