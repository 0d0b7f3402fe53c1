//! Reading one.

use super::{
    AT, Index, MANIFEST_TYPE, Manifest, Origin as OfImage, PART, Portable, SANDBOX, VERSION, export::unnamed,
    is_part,
};
use crate::{
    plan::{self, Caller, chain, ids, refusal},
    snapshots::{
        fork::{self, Naming, Origin},
        layers::{Chain, Guard, Making},
        take::{open_at, open_dir},
    },
    store::{self, Sandbox, Store},
};
use airlock_files::{
    layers::{
        layout::Layout,
        unpack::{Bounds, Unpacking, Way},
    },
    within,
};
use airlock_linux::idmap::IdMap;
use airlock_protocol::{
    Name,
    control::Refusal,
    spec::{Image, Spec, Stdio, Stream, Workspace},
};
use rustix::fs::Mode;
use std::{
    fs::File,
    io::{self, Read, Seek as _},
    os::fd::{AsFd as _, OwnedFd},
    path::{Path, PathBuf},
};

/// What the person says about it.
#[derive(Debug, Clone)]
pub struct Wish {
    /// Its name, where not the exported one.
    pub name: Option<Name>,
    /// The project that its changes are seen upon.
    pub workspace: Option<PathBuf>,
    /// Most bytes of its files.
    pub most: u64,
}

/// Most bytes of an index, a manifest or a configuration.
const MOST_WORDS: u64 = 4 << 20;
/// Most layers of an archive.
const MOST_LAYERS: usize = 2_048;
const WHAT: &str = "this archive cannot be imported";
/// What programs are looked for in, where nothing else is known of the environment.
const SEARCH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Makes a stopped sandbox of an archive.
pub fn import(
    store: &Store,
    file: &File,
    wish: &Wish,
    progress: &mut dyn FnMut(u64),
) -> Result<Sandbox, Refusal> {
    let broken = |err: io::Error| refusal(125, WHAT, Some(&chain(&err)), None);
    let layout = Layout::open(file).map_err(broken)?;
    let archive = Archive { manifest: manifest(&layout).map_err(broken)?, layout };
    let portable = portable(&archive.manifest).map_err(broken)?;
    let mut spec = spec_of(&portable, wish)?;
    if let Some(origin) = &portable.image {
        upon(&mut spec, origin, store)?;
    }
    let ids = ids_for(&spec, store)?;
    let making = Making::begin(store, &ids)?;
    let has_workspace = match archive.unpack(&making, &ids, wish.most, progress) {
        Ok(has_workspace) => has_workspace,
        Err(err) => {
            making.abandon();
            return Err(broken(err));
        }
    };
    let naming = match &wish.name {
        Some(name) => Naming::Exactly(name.clone()),
        None => Naming::Near(portable.name),
    };
    let guard = Guard::take(store)?;
    let chain = Chain { layers: vec![making.finish(&guard)?], workspace: usize::from(has_workspace) };
    fork::fork(&guard, &Origin { spec, chain, copied_since: None, memory: None }, &naming)
}

/// Everything of a stream, in a file without a name.
pub fn spool(store: &Store, from: &mut dyn Read, most: u64) -> Result<File, Refusal> {
    let broken = |err: io::Error| refusal(125, WHAT, Some(&chain(&err)), None);
    let mut file = unnamed(store).map_err(broken)?;
    let copied = io::copy(&mut from.take(most.saturating_add(1)), &mut file).map_err(broken)?;
    if copied > most {
        return Err(refusal(125, WHAT, Some("it holds more than it may"), Some("--most SIZE")));
    }
    file.rewind().map_err(broken)?;
    Ok(file)
}

fn manifest(layout: &Layout<'_>) -> io::Result<Manifest> {
    let index: Index = serde_json::from_slice(&layout.small("index.json", MOST_WORDS)?)?;
    let descriptor = index.manifests.iter().find(|found| found.media_type == MANIFEST_TYPE);
    let digits =
        descriptor.and_then(|found| found.digits()).ok_or_else(|| io::Error::other("it has no manifest"))?;
    let manifest: Manifest = serde_json::from_slice(&layout.checked(digits, MOST_WORDS)?)?;
    let config = manifest.config.digits().ok_or_else(|| io::Error::other("it has no configuration"))?;
    layout.checked(config, MOST_WORDS)?;
    if manifest.layers.len() > MOST_LAYERS {
        return Err(io::Error::other("it has too many layers"));
    }
    Ok(manifest)
}

fn portable(manifest: &Manifest) -> io::Result<Portable> {
    let text = manifest.annotations.get(SANDBOX);
    let text = text.ok_or_else(|| io::Error::other("it is no sandbox that `airlock export` wrote"))?;
    let portable: Portable = serde_json::from_str(text)?;
    if portable.version > VERSION {
        return Err(io::Error::other("it was written by a newer airlock"));
    }
    Ok(portable)
}

/// What the sandbox is to be: the exported program, and nothing of the host that the person did not name.
fn spec_of(portable: &Portable, wish: &Wish) -> Result<Spec, Refusal> {
    let workspace = match &wish.workspace {
        Some(path) => Workspace::Cow { path: path.clone() },
        None => Workspace::None,
    };
    let workdir = match (&portable.workspace, &wish.workspace) {
        (Some(then), Some(now)) => match portable.workdir.strip_prefix(then) {
            Ok(below) => now.join(below),
            Err(_) => portable.workdir.clone(),
        },
        (Some(then), None) if portable.workdir.starts_with(then) => PathBuf::from("/"),
        _ => portable.workdir.clone(),
    };
    if !workdir.is_absolute() || portable.command.is_empty() {
        return Err(refusal(125, WHAT, Some("it has no command, or no directory to run it in"), None));
    }
    Ok(Spec {
        command: portable.command.clone(),
        name: portable.name.clone(),
        backend: Default::default(),
        kernel: None,
        monitor: None,
        image: None,
        rootfs: None,
        workdir,
        workspace,
        mounts: Vec::new(),
        volumes: Vec::new(),
        anonymous: Vec::new(),
        provided: Vec::new(),
        paths: Default::default(),
        tmpfs: Vec::new(),
        env: [("PATH".to_owned(), SEARCH.to_owned())].into(),
        user: portable.user.clone(),
        hostname: portable.name.to_string(),
        limits: Default::default(),
        cap_add: Vec::new(),
        cap_drop: Vec::new(),
        read_only: portable.read_only,
        nested: false,
        restart: Default::default(),
        stop_signal: None,
        health: None,
        keep: true,
        stdio: Stdio { stdin: Stream::Null, ..Stdio::all(Stream::Captured) },
        policy: Default::default(),
        script: None,
        secrets: Vec::new(),
        home_files: Vec::new(),
        publish: Vec::new(),
        egress: Default::default(),
        approvals: Default::default(),
        ledger: Default::default(),
    })
}

/// Has the sandbox go on from an image that is here. Its layers and variables are what the image says, not the archive.
fn upon(spec: &mut Spec, origin: &OfImage, store: &Store) -> Result<(), Refusal> {
    let image = origin.id.parse().ok().and_then(|id| {
        let images = airlock_images::store::Store::open(store.home()).ok()?;
        images.image(&id).ok()
    });
    let Some(image) = image else {
        let name: String = origin.name.chars().filter(|c| !c.is_control()).take(200).collect();
        let why = format!("it goes on from the image {name}, which is not here");
        return Err(refusal(125, WHAT, Some(&why), Some("airlock images pull, or load; then try again")));
    };
    let layers = image.layers.iter().map(|(_, diff)| diff.to_string()).collect();
    spec.image = Some(Image { id: image.id.to_string(), name: origin.name.clone(), layers });
    spec.anonymous.clone_from(&origin.volumes);
    let env = image.config.config.env.iter().filter_map(|line| line.split_once('='));
    spec.env.extend(env.map(|(name, value)| (name.to_owned(), value.to_owned())));
    Ok(())
}

/// The ids its files are written with: those that the sandbox will have, or can be shifted to.
fn ids_for(spec: &Spec, store: &Store) -> Result<IdMap, Refusal> {
    let caller = Caller::current();
    let (user, _) = match &spec.image {
        Some(image) => {
            plan::find_user_in(&spec.user, &plan::base::accounts_of(image, store, &caller)?, &caller)?
        }
        None => plan::find_user(&spec.user, &plan::etc_files(spec, &caller)?)?,
    };
    let some = store::random_id().map_err(|err| refusal(125, WHAT, Some(&chain(&err)), None))?;
    ids::map(&caller, ids::shifted_base(&some), &user)
}

/// An archive whose words have been read.
struct Archive<'a> {
    layout: Layout<'a>,
    manifest: Manifest,
}

impl Archive<'_> {
    /// Unpacks all its layers. `true` if there were changes of a workspace.
    fn unpack(
        &self,
        making: &Making,
        ids: &IdMap,
        most: u64,
        progress: &mut dyn FnMut(u64),
    ) -> io::Result<bool> {
        let (disk, links) = (open_dir(&making.disk())?, open_dir(&making.links())?);
        let mut bounds = Bounds { bytes: most };
        let mut has_workspace = false;
        for (number, layer) in self.manifest.layers.iter().enumerate() {
            let told = |key: &str| layer.annotations.get(key).map_or("", String::as_str);
            let (part, at) = (told(PART), told(AT));
            if !is_part(part) {
                return Err(io::Error::other("a layer of it belongs to no part of a sandbox"));
            }
            has_workspace |= part == "workspace/upper";
            let digits = layer.digits().ok_or_else(|| io::Error::other("a layer of it has no digest"))?;
            let mut blob = self.layout.blob(digits)?;
            bounds = within::run(ids, progress, |progress| {
                let unpack = || -> io::Result<()> {
                    let tree = part_in(&disk, part)?;
                    let trash = part_in(&links, &format!("{number}"))?;
                    let mut unpacking = Unpacking::new(tree.as_fd(), trash.as_fd(), Way::Stacked);
                    unpacking
                        .layer(&mut blob, at.as_bytes(), &mut bounds, progress)
                        .map_err(io::Error::other)?;
                    blob.finish()
                };
                unpack().map_err(|err| chain(&err))?;
                Ok(bounds)
            })
            .map_err(io::Error::other)?;
        }
        Ok(has_workspace)
    }
}

/// The directory of a part, made if it is not there.
fn part_in(disk: &OwnedFd, part: &str) -> io::Result<OwnedFd> {
    let mut here = disk.try_clone()?;
    for name in part.split('/') {
        match rustix::fs::mkdirat(&here, name, Mode::from_raw_mode(0o755)) {
            Ok(()) | Err(rustix::io::Errno::EXIST) => {}
            Err(err) => return Err(err.into()),
        }
        here = open_at(&here, Path::new(name))?;
    }
    Ok(here)
}
