//! `airlock commit`: an image of a sandbox's image and of what the sandbox changed.

use super::{find, lifecycle, print_json, snapshot};
use crate::{
    args::{CommitArgs, LayerCompression},
    epoch,
    failure::{Failure, Outcome},
    home,
    progress::Progress,
    say::{Voice, say},
};
use airlock_doors::control::client::Client;
use airlock_engine::{
    snapshots::root::{self, Packing},
    store::Sandbox,
};
use airlock_images::{
    commit::{self, Words},
    digest::Digest,
    layer::{Compression, Packed},
    manifest::{Config, Descriptor, media},
    store::{self as images, Hold, Image, Record},
};
use airlock_protocol::{
    control::{Reply, Request},
    spec::Spec,
};
use std::{
    fs::File,
    io::{Read as _, Seek as _, Write as _},
};

/// What could not be done.
const WHAT: &str = "this sandbox could not be committed";
/// Bytes that are read at once.
const PIECE: usize = 1 << 20;

pub(crate) fn commit(args: &CommitArgs) -> Outcome {
    let voice = if args.quiet { Voice::Quiet } else { Voice::Normal };
    let epoch = epoch::from_environment()?;
    let words = Words {
        created: epoch::now(epoch)?,
        created_by: "airlock commit".to_owned(),
        author: args.author.clone(),
        message: args.message.clone(),
    };
    let store = home::store()?;
    let sandbox = find(&store, &args.sandbox)?;
    let hold = images::Store::open(store.home()).and_then(|images| images.hold()).map_err(Failure::from)?;
    let base = base(&hold, &sandbox.spec()?)?;
    let config = commit::changed(&base.config, &args.change)
        .map_err(|err| Failure::because("a change cannot be made", &err).code(2))?;
    let compression = match args.compression {
        LayerCompression::Gzip => Compression::Gzip,
        LayerCompression::Zstd => Compression::Zstd,
    };
    let layers = layers(&sandbox, Packing { compression, not_after: epoch }, voice)?;
    let left_out: u64 = layers.iter().map(|(layer, _)| layer.left_out).sum();
    let mut packed = Vec::new();
    for (layer, file) in layers {
        keep(&hold, &layer, file)?;
        packed.push(layer);
    }
    let id = record(&hold, &base, &commit::config(&config, &packed, &words), &packed, args)?;
    if left_out > 0 {
        say(voice, &format!("{left_out} sockets and files named .wh.* are not in the image"));
    }
    match args.json {
        true => print_json(&serde_json::json!({ "id": id, "name": args.name.as_tag().to_string() }))?,
        false => writeln!(std::io::stdout(), "{id}")?,
    }
    Ok(0)
}

/// The image that the sandbox was made of.
fn base(hold: &Hold, spec: &Spec) -> Result<Image, Failure> {
    root::refuse_host(spec, WHAT)?;
    let Some(image) = &spec.image else {
        return Err(Failure::new(WHAT)
            .why("its root is a directory of this host, of which nothing says how it is run")
            .fix("`airlock export --rootfs` it, then `airlock images import` what that wrote"));
    };
    let id: Digest = image.id.parse().map_err(|err| Failure::because(WHAT, &err))?;
    hold.image(&id).map_err(Failure::from)
}

/// What it changed. It is frozen meanwhile, if it runs.
fn layers(sandbox: &Sandbox, packing: Packing, voice: Voice) -> Result<Vec<(Packed, File)>, Failure> {
    let mut progress = Progress::new("packed", voice);
    let mut add = |bytes| progress.add(bytes);
    if !lifecycle::is_live(sandbox)? {
        let _lock = lifecycle::free_lock(sandbox)?;
        return Ok(root::changes(sandbox, None, packing, &mut add)?);
    }
    let mut keeper = Client::connect(sandbox)?;
    if let Reply::Refused(refusal) = keeper.ask(&Request::Hold)? {
        return Err(refusal.into());
    }
    let layers = snapshot::held_disk(sandbox)
        .and_then(|disk| root::changes(sandbox, disk, packing, &mut add).map_err(Failure::from));
    // It goes on from here.
    drop(keeper);
    layers
}

/// Puts a layer into the store.
fn keep(hold: &Hold, layer: &Packed, mut file: File) -> Result<(), Failure> {
    let mut spool = hold.spool().map_err(Failure::from)?;
    file.rewind().map_err(|err| Failure::because(WHAT, &err))?;
    let mut piece = vec![0u8; PIECE];
    loop {
        let count = file.read(&mut piece).map_err(|err| Failure::because(WHAT, &err))?;
        match piece.get(..count).filter(|bytes| !bytes.is_empty()) {
            Some(bytes) => spool.append(bytes).map_err(Failure::from)?,
            None => break,
        }
    }
    spool.finish_as(&layer.digest).map_err(Failure::from)
}

fn record(
    hold: &Hold,
    base: &Image,
    config: &Config,
    layers: &[Packed],
    args: &CommitArgs,
) -> Result<Digest, Failure> {
    let wrong = |err: serde_json::Error| Failure::because(WHAT, &err);
    let bytes = config.to_bytes().map_err(wrong)?;
    let id = hold.put(&bytes).map_err(Failure::from)?;
    let size = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
    let manifest = commit::manifest(&base.manifest, layers, Descriptor::of(media::OCI_CONFIG, id, size));
    let manifest = hold.put(&serde_json::to_vec(&manifest).map_err(wrong)?).map_err(Failure::from)?;
    let mut record = Record::new(id, manifest).named(&args.name);
    record.parent = Some(base.id);
    hold.add(record).map_err(Failure::from)?;
    Ok(id)
}
