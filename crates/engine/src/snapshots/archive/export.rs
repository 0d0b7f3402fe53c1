//! Writing one.

use super::{
    AT, CONFIG_TYPE, Descriptor, Index, LAYER_TYPE, MANIFEST_TYPE, Manifest, PART, Portable, SANDBOX,
    VERSION, place_of,
};
use crate::{
    plan::{chain, refusal},
    snapshots::{
        fork::Origin,
        layers::{self, Layer},
        take::{open_at, open_dir, parts},
    },
    store::Store,
};
use airlock_files::{
    layers::{
        layout,
        pack::{Form, Packed, pack},
    },
    within,
};
use airlock_protocol::control::Refusal;
use rustix::fs::{Mode, OFlags};
use serde::Serialize;
use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, Write},
    os::fd::AsFd as _,
    path::{Path, PathBuf},
};

/// Our own files of `/etc`: every sandbox gets its own, and they tell about this host.
const OURS: [&str; 11] = [
    "hosts",
    "hostname",
    "resolv.conf",
    "passwd",
    "group",
    "shadow",
    "gshadow",
    "passwd-",
    "group-",
    "shadow-",
    "gshadow-",
];
const WHAT: &str = "the files of this sandbox could not be exported";

/// What was written.
#[derive(Debug, Default)]
pub struct Exported {
    /// Entries that this form has no words for: sockets, and names that begin with `.wh.`.
    pub left_out: u64,
}

/// A layer's part, packed.
struct Blob {
    packed: Packed,
    file: File,
    part: String,
    at: String,
}

/// Writes what the layers hold. Somebody has to keep them from going meanwhile.
pub fn export(
    store: &Store,
    origin: &Origin,
    level: i32,
    out: &mut dyn Write,
    progress: &mut dyn FnMut(u64),
) -> Result<Exported, Refusal> {
    let failed = |err: io::Error| refusal(125, WHAT, Some(&chain(&err)), None);
    if origin.spec.rootfs.is_some() {
        let why = "its root is a directory of this host, which nobody else has";
        return Err(refusal(125, WHAT, Some(why), Some("run it from an image (airlock images import)")));
    }
    let exporting = Exporting { store, origin, level };
    let mut blobs = Vec::new();
    for layer in layers::open(store, &origin.chain)?.iter().rev() {
        exporting.pack(layer, progress, &mut blobs)?;
    }
    let left_out = blobs.iter().map(|blob| blob.packed.left_out).sum();
    let small = documents(origin, &blobs).map_err(|err| failed(err.into()))?;
    let mut blobs: Vec<(String, u64, File)> =
        blobs.into_iter().map(|blob| (blob.packed.digest, blob.packed.size, blob.file)).collect();
    // Two layers may be the same; a blob is there once.
    blobs.sort_by(|a, b| a.0.cmp(&b.0));
    blobs.dedup_by(|a, b| a.0 == b.0);
    layout::write(out, &small, &mut blobs, &mut |_| {}).map_err(failed)?;
    Ok(Exported { left_out })
}

/// What all layers of one archive have in common.
struct Exporting<'a> {
    store: &'a Store,
    origin: &'a Origin,
    level: i32,
}

impl Exporting<'_> {
    fn pack(
        &self,
        layer: &Layer,
        progress: &mut dyn FnMut(u64),
        blobs: &mut Vec<Blob>,
    ) -> Result<(), Refusal> {
        let failed = |err: io::Error| refusal(125, WHAT, Some(&chain(&err)), None);
        let disk = open_dir(&layer.disk).map_err(failed)?;
        let workspace = self.origin.spec.workspace.path().map(PathBuf::as_path);
        let workspace = workspace.filter(|_| layer.counts_for_workspace);
        for part in parts(&disk).map_err(failed)? {
            let Some(at) = place_of(&part, workspace) else { continue };
            let file = unnamed(self.store).map_err(failed)?;
            let without: &[&str] = if part == "upper-etc" { &OURS } else { &[] };
            let form = Form { prefix: at.as_bytes(), without, ..Form::of_sandbox(self.level) };
            let packed: Packed = within::run(&layer.ids, progress, |progress| {
                let tree = open_at(&disk, Path::new(&part)).map_err(|err| chain(&err))?;
                let mut out = io::BufWriter::new(&file);
                let packed = pack(tree.as_fd(), form, &mut out, progress).map_err(|err| chain(&err))?;
                out.flush().map_err(|err| chain(&err))?;
                Ok(packed)
            })
            .map_err(|err| refusal(125, WHAT, Some(&chain(&err)), None))?;
            if packed.entries > 0 {
                blobs.push(Blob { packed, file, part, at });
            }
        }
        Ok(())
    }
}

/// The index, the manifest and the configuration, by their names in the layout.
fn documents(origin: &Origin, blobs: &[Blob]) -> serde_json::Result<Vec<(String, Vec<u8>)>> {
    let spec = &origin.spec;
    let portable = Portable {
        version: VERSION,
        name: spec.name.clone(),
        command: spec.command.clone(),
        workdir: spec.workdir.clone(),
        user: spec.user.clone(),
        read_only: spec.read_only,
        workspace: spec.workspace.path().cloned(),
        image: spec.image.as_ref().map(|image| super::Origin {
            id: image.id.clone(),
            name: image.name.clone(),
            volumes: spec.anonymous.clone(),
        }),
    };
    let config = serde_json::to_vec(&serde_json::json!({
        "architecture": if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" },
        "os": "linux",
        "config": { "Cmd": spec.command, "WorkingDir": spec.workdir, "User": spec.user },
        "rootfs": {
            "type": "layers",
            "diff_ids": blobs.iter().map(|blob| format!("sha256:{}", blob.packed.diff_id)).collect::<Vec<_>>(),
        },
    }))?;
    let layer = |blob: &Blob| {
        let told = [(PART, &blob.part), (AT, &blob.at)];
        let annotations = told.map(|(key, value)| (key.to_owned(), value.clone()));
        descriptor(LAYER_TYPE, &blob.packed.digest, blob.packed.size, annotations.into())
    };
    let (config, config_blob) = (of_bytes(CONFIG_TYPE, &config), config);
    let manifest = serde_json::to_vec(&Manifest {
        schema_version: 2,
        media_type: MANIFEST_TYPE.to_owned(),
        config: config.clone(),
        layers: blobs.iter().map(layer).collect(),
        annotations: [(SANDBOX.to_owned(), serde_json::to_string(&portable)?)].into(),
    })?;
    let index = Index { schema_version: 2, manifests: vec![of_bytes(MANIFEST_TYPE, &manifest)] };
    let version = serde_json::json!({ "imageLayoutVersion": "1.0.0" });
    Ok(vec![
        ("oci-layout".to_owned(), to_vec(&version)?),
        ("index.json".to_owned(), to_vec(&index)?),
        (layout::blob_name(&layout::digest(&manifest)), manifest),
        (layout::blob_name(&layout::digest(&config_blob)), config_blob),
    ])
}

fn to_vec(value: &impl Serialize) -> serde_json::Result<Vec<u8>> {
    serde_json::to_vec(value)
}

fn of_bytes(kind: &str, bytes: &[u8]) -> Descriptor {
    let size = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
    descriptor(kind, &layout::digest(bytes), size, BTreeMap::new())
}

fn descriptor(kind: &str, digest: &str, size: u64, annotations: BTreeMap<String, String>) -> Descriptor {
    Descriptor { media_type: kind.to_owned(), digest: format!("sha256:{digest}"), size, annotations }
}

/// A file without a name, gone when it is closed.
pub(in crate::snapshots) fn unnamed(store: &Store) -> io::Result<File> {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    Ok(rustix::fs::open(store.home(), flags, Mode::RUSR | Mode::WUSR)?.into())
}
