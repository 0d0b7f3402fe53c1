//! The root of a sandbox that was made of an image: what it changed there as layers, and all of it as one archive.
//!
//! Both are done by a process with the ids that the files have inside. What we made ourselves for mounting lies in a layer of its
//! own and comes into neither.

use super::{
    Origin,
    layers::{self, Layer},
    take::{self, open_at, open_dir},
};
use crate::{
    plan::{
        Base, Caller, Lower, Plan,
        base::{self, Owners},
        chain,
        ids::{self, IDS},
        refusal,
    },
    store::{Sandbox, Store},
};
use airlock_files::{
    layers::{merge, pack::Form},
    within,
};
use airlock_images::layer::{self, Compression, Packed};
use airlock_linux::{
    idmap::{self, Extent, IdMap},
    mount::{self, Depth},
};
use airlock_protocol::{control::Refusal, guest::User, spec::Spec};
use rustix::fs::CWD;
use std::{
    fs::File,
    io::{self, BufWriter, Write as _},
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
    path::Path,
};

/// The part of a disk that holds what was changed in the root.
const PART: &str = "root";
/// Bytes that are written at once.
const PIECE: usize = 1 << 20;

/// How changes become layers.
#[derive(Debug, Clone, Copy)]
pub struct Packing {
    /// How they are compressed.
    pub compression: Compression,
    /// Nothing in them is told to be of later than this second.
    pub not_after: Option<u64>,
}

/// Refuses a sandbox whose root is this host's own system: neither its changes nor all of it are anything without this host.
pub fn refuse_host(spec: &Spec, what: &str) -> Result<(), Refusal> {
    if base::is_layered(spec) {
        return Ok(());
    }
    let why = "its root is this host's own system, of which an image cannot be made";
    let fix = "`airlock export` takes what it changed; `airlock run --image NAME` has a root of its own";
    Err(refusal(125, what, Some(why), Some(fix)))
}

/// What a sandbox changed in its root, lowest first: one layer for each that it was forked from, and one of its own. It stands
/// still meanwhile: it is stopped, or frozen; `held` is the bounded disk of one that runs, as its keeper has it. Each is in a file without
/// a name; those that hold nothing are left out.
pub fn changes(
    sandbox: &Sandbox,
    held: Option<OwnedFd>,
    form: Packing,
    progress: &mut dyn FnMut(u64),
) -> Result<Vec<(Packed, File)>, Refusal> {
    let what = "what this sandbox changed could not be packed";
    let failed = |err: &dyn std::error::Error| refusal(125, what, Some(&chain(err)), None);
    let mut packed = Vec::new();
    for (disk, ids) in take::written(sandbox, held)?.into_iter().rev() {
        let Ok(tree) = open_at(&disk, Path::new(PART)) else { continue };
        let file = super::archive::export::unnamed(sandbox.store()).map_err(|err| failed(&err))?;
        let work = |progress: &mut dyn FnMut(u64)| {
            let mut out = BufWriter::with_capacity(PIECE, &file);
            let form = Form::of_image(form.compression, form.not_after);
            let packed = layer::pack(tree.as_fd(), form, &mut out, progress);
            let packed = packed.map_err(|err| chain(&err))?;
            out.flush().map_err(|err| chain(&err))?;
            Ok(packed)
        };
        let one: Packed = within::run(&ids, progress, work).map_err(|err| failed(&err))?;
        if one.entries > 0 {
            packed.push((one, file));
        }
    }
    Ok(packed)
}

/// Writes the whole root to `out` as one archive: the image and what was changed, nothing deleted. Somebody has to keep the layers
/// from going meanwhile. Gives how many entries were left out: sockets, and names that mean something else in layers.
pub fn whole(
    store: &Store,
    origin: &Origin,
    not_after: Option<u64>,
    out: &File,
    progress: &mut dyn FnMut(u64),
) -> Result<u64, Refusal> {
    let what = "the root of this sandbox could not be packed";
    refuse_host(&origin.spec, what)?;
    let failed = |err: &dyn std::error::Error| refusal(125, what, Some(&chain(err)), None);
    let caller = Caller::current();
    let layers = layers::open(store, &origin.chain)?;
    let user = user_of(&layers, &caller);
    let ids = ids::of_images(&caller, &user).map;
    let mut trees = Vec::new();
    for layer in &layers {
        trees.extend(changed(layer, &caller, &ids).map_err(|err| failed(&err))?);
    }
    if let Base::Layers(lower) = base::of(&origin.spec, store, &caller, &user)? {
        trees.extend(below(&lower, &caller, &ids).map_err(|err| failed(&err))?);
    }
    let form = Form::of_root(not_after);
    pack(&trees, &ids, form, out, progress).map_err(|err| failed(&err))
}

/// Writes the trees of an image to `out` as one archive, as sandboxes of this user see them.
pub fn of_image(plan: &Plan, out: &File) -> Result<u64, Refusal> {
    let failed =
        |err: &dyn std::error::Error| refusal(125, "this image could not be packed", Some(&chain(err)), None);
    let Base::Layers(lower) = &plan.base else { return Ok(0) };
    let ids = ids::of_images(&plan.caller, &plan.user).map;
    let trees = below(lower, &plan.caller, &ids).map_err(|err| failed(&err))?;
    pack(&trees, &ids, Form::of_root(None), out, &mut |_| {}).map_err(|err| failed(&err))
}

/// The trees of an image, topmost first, with the ids of images.
fn below(lower: &[Lower], caller: &Caller, ids: &IdMap) -> io::Result<Vec<OwnedFd>> {
    let open = |lower: &Lower| {
        let extent = |to: u32| Extent { inside: 0, outside: to, count: IDS };
        let is_mapped = caller.is_root() && lower.owners == Owners::Host;
        match is_mapped.then(|| first(ids)).flatten() {
            Some((user, group)) => mapped(CWD, &lower.tree, extent(user), extent(group)),
            None => open_dir(&lower.tree),
        }
    };
    lower.iter().map(open).collect()
}

fn pack(
    trees: &[OwnedFd],
    ids: &IdMap,
    form: Form<'_>,
    out: &File,
    progress: &mut dyn FnMut(u64),
) -> Result<u64, within::Error> {
    let trees: Vec<BorrowedFd<'_>> = trees.iter().map(|tree| tree.as_fd()).collect();
    let work = |progress: &mut dyn FnMut(u64)| {
        let mut out = BufWriter::with_capacity(PIECE, out);
        let packed = merge::pack(&trees, form, &mut out, progress);
        let packed = packed.map_err(|err| chain(&err))?;
        out.flush().map_err(|err| chain(&err))?;
        Ok(packed.left_out)
    };
    within::run(ids, progress, work)
}

/// Who the sandbox's user was: an ordinary user is that one inside, so their files tell it.
fn user_of(layers: &[Layer], caller: &Caller) -> User {
    let inside = |extents: &[Extent], own: u32| {
        extents.iter().find(|extent| extent.outside == own).map_or(0, |extent| extent.inside)
    };
    let ids = layers.first().map(|layer| &layer.ids);
    User {
        uid: ids.map_or(0, |ids| inside(&ids.users, caller.uid)),
        gid: ids.map_or(0, |ids| inside(&ids.groups, caller.gid)),
        groups: Vec::new(),
    }
}

/// What one layer has of the root, seen with the ids of images.
fn changed(layer: &Layer, caller: &Caller, ids: &IdMap) -> io::Result<Option<OwnedFd>> {
    let disk = open_dir(&layer.disk)?;
    let tree = match open_at(&disk, Path::new(PART)) {
        Err(err) if err.kind() == io::ErrorKind::NotFound => return Ok(None),
        other => other?,
    };
    if !caller.is_root() {
        return Ok(Some(tree));
    }
    let (Some(from), Some(to)) = (first(&layer.ids), first(ids)) else {
        return Err(io::Error::other("it was written with other ids"));
    };
    if from == to {
        return Ok(Some(tree));
    }
    let extent = |from, to| Extent { inside: from, outside: to, count: IDS };
    mapped(tree.as_fd(), Path::new(""), extent(from.0, to.0), extent(from.1, to.1)).map(Some)
}

/// The user and the group on the host that are root inside.
fn first(ids: &IdMap) -> Option<(u32, u32)> {
    ids.user_outside(0).zip(ids.group_outside(0))
}

/// A tree whose files have other ids to whoever looks at them here.
fn mapped(dir: BorrowedFd<'_>, path: &Path, users: Extent, groups: Extent) -> io::Result<OwnedFd> {
    let ids = idmap::namespace_with(users, groups).map_err(io::Error::other)?;
    let tree = mount::clone_tree(dir, path, Depth::One)?;
    mount::map_ids(tree.as_fd(), ids.as_fd(), Depth::One)?;
    // What names the mount cannot be read; its top can.
    open_at(&tree, Path::new("."))
}
