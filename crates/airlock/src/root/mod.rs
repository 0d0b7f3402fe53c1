//! Which root file system a run has: the host's own system, an image, or a directory.

pub(crate) mod config;

use crate::{
    args::{Pull, RunArgs},
    config::own::Own,
    failure::Failure,
    progress::Progress,
    pulling::{self, Form, Show, Way, Wish},
    say::{Voice, say_anyway},
};
use airlock_engine::{
    plan::{Caller, base, find_user_in, ids},
    store::Store,
};
use airlock_images::{
    layer::Ids,
    manifest::RunConfig,
    reference::Reference,
    store::{self as images, Hold, Image},
};
use airlock_protocol::{guest::User, spec};
use std::path::PathBuf;

/// The word for the host's own system.
const HOST: &str = "host";

/// A root that is not the host's own system.
#[derive(Debug, Clone)]
pub(crate) struct Root {
    /// The image, if it is one.
    pub(crate) image: Option<spec::Image>,
    /// The directory, if it is one.
    pub(crate) rootfs: Option<PathBuf>,
    /// How it is run.
    pub(crate) run: RunConfig,
    /// The trees of its layers.
    trees: Vec<PathBuf>,
    /// Keeps its layers until a sandbox's spec names them.
    _hold: Option<Hold>,
}

/// The root that the flags mean; none is the host's own system.
pub(crate) fn choose(args: &RunArgs, store: &Store, own: &Own) -> Result<Option<Root>, Failure> {
    if let Some(path) = &args.rootfs {
        let rootfs = path.canonicalize().map_err(|err| {
            Failure::because(format!("{} cannot be a root file system", path.display()), &err)
        })?;
        let (rootfs, run) = (Some(rootfs), RunConfig::default());
        return Ok(Some(Root { image: None, rootfs, run, trees: Vec::new(), _hold: None }));
    }
    let Some(name) = args.image.as_deref().filter(|name| *name != HOST) else { return Ok(None) };
    let voice = if args.quiet { Voice::Quiet } else { Voice::Normal };
    let hold = hold(store)?;
    let pull = args.pull.unwrap_or_default();
    let image = find(&hold, name, pull, (own, voice))?;
    pulling::check_signed(own, &hold, &image, name)?;
    let of = |image: &Image| Root::of(store, hold.clone(), image, name, (args.user.as_deref(), voice));
    let root = match of(&image) {
        Err(failure) if !is_whole(&hold, &image) => {
            let image = fetch_again(&hold, name, pull, (own, voice))?.ok_or(failure)?;
            of(&image)?
        }
        other => other?,
    };
    // What a sandbox is made of is there after a power cut too.
    hold.settle_trees(&root.trees)?;
    Ok(Some(root))
}

/// Keeps images from being collected.
pub(crate) fn hold(store: &Store) -> Result<Hold, Failure> {
    images::Store::open(store.home()).and_then(|images| images.hold()).map_err(Failure::from)
}

/// The same, where there are images.
pub(crate) fn hold_any(store: &Store) -> Result<Option<Hold>, Failure> {
    store.home().join("images").is_dir().then(|| hold(store)).transpose()
}

impl Root {
    /// An image whose layers are ready for this user inside; without one, for the image's own.
    pub(crate) fn of(
        store: &Store,
        hold: Hold,
        image: &Image,
        name: &str,
        (user, voice): (Option<&str>, Voice),
    ) -> Result<Root, Failure> {
        let layers = image.layers.iter().map(|(_, diff)| diff.to_string()).collect();
        let named = spec::Image { id: image.id.to_string(), name: name.to_owned(), layers };
        let run = image.config.config.clone();
        let own = Some(run.user.as_str()).filter(|user| !user.is_empty());
        let user = user.or(own).unwrap_or("0");
        let trees = unpack(store, &hold, (image, &named), user, voice)?;
        Ok(Root { image: Some(named), rootfs: None, run, trees, _hold: Some(hold) })
    }
}

/// The image that is meant, as it is here or at its registry.
fn find(hold: &Hold, name: &str, pull: Pull, (own, voice): (&Own, Voice)) -> Result<Image, Failure> {
    let whole = name.parse().ok().map(|short| pulling::whole_name(own, &short));
    let here = || match (hold.find(name), &whole) {
        (Err(images::Error::NoSuch { .. }), Some(whole)) => hold.find(&whole.to_string()),
        (found, _) => found,
    };
    let known = whole.as_ref().filter(|whole| whole.registry.is_some());
    match (pull, known) {
        (Pull::Always, Some(whole)) => fetch(hold, whole, own, voice),
        (Pull::Missing, Some(whole)) => match here() {
            Err(images::Error::NoSuch { .. }) => fetch(hold, whole, own, voice),
            found => found.map_err(Failure::from),
        },
        (Pull::Always, None) => Err(no_registry(name)),
        (Pull::Missing | Pull::Never, _) => here().map_err(|err| match err {
            images::Error::NoSuch { .. } if pull == Pull::Missing => no_registry(name).code(3),
            other => Failure::from(other),
        }),
    }
}

/// Whether a tree can be made of each of its layers. What was damaged on the disk is thrown away by whoever sees it.
fn is_whole(hold: &Hold, image: &Image) -> bool {
    image.layers.iter().all(|(layer, _)| hold.has_blob(&layer.digest))
}

/// The image from its registry again, where it has one and may be asked for.
fn fetch_again(
    hold: &Hold,
    name: &str,
    pull: Pull,
    (own, voice): (&Own, Voice),
) -> Result<Option<Image>, Failure> {
    let whole = name.parse().ok().map(|short| pulling::whole_name(own, &short));
    let Some(whole) = whole.filter(|whole| whole.registry.is_some() && pull != Pull::Never) else {
        return Ok(None);
    };
    say_anyway(voice, &format!("a layer of {name} was damaged on the disk; it is fetched again"));
    fetch(hold, &whole, own, voice).map(Some)
}

fn fetch(hold: &Hold, name: &Reference, own: &Own, voice: Voice) -> Result<Image, Failure> {
    let settings = pulling::settings(own, name, &Wish::default())?;
    let form = Form::of(false, voice == Voice::Quiet);
    pulling::pull(hold, name, &settings, &mut Show::new(form, Way::Down))
}

fn no_registry(name: &str) -> Failure {
    Failure::new(format!("the image {name} is not here"))
        .why("its name has no registry, and the settings name none")
        .fix("`airlock images load` brings one from a file; registry = \"…\" under [images] in config.toml names where to ask")
}

/// Has a tree of every layer for the ids that a sandbox with this user has. Quick where they are there.
fn unpack(
    store: &Store,
    hold: &Hold,
    (image, named): (&Image, &spec::Image),
    user: &str,
    voice: Voice,
) -> Result<Vec<PathBuf>, Failure> {
    let caller = Caller::current();
    let root = User { uid: 0, gid: 0, groups: Vec::new() };
    let ids = ids::of_images(&caller, &root);
    if caller.is_root() || caller.has_single_id() {
        return make(hold, image, &ids, voice);
    }
    // Whom a name means stands in the image, and whose its files are depends on whom is meant.
    let is_somewhere = |layer: &String| airlock_engine::images::any_tree(store, layer).is_some();
    if !named.layers.iter().all(is_somewhere) {
        make(hold, image, &ids, voice)?;
    }
    let accounts = base::accounts_of(named, store, &caller)?;
    let (user, _) = find_user_in(user, &accounts, &caller)?;
    make(hold, image, &ids::of_images(&caller, &user), voice)
}

fn make(hold: &Hold, image: &Image, ids: &Ids, voice: Voice) -> Result<Vec<PathBuf>, Failure> {
    if let Some(trees) = image.layers.iter().map(|(_, diff)| hold.layer(diff, ids)).collect() {
        return Ok(trees);
    }
    let mut progress = Progress::new("unpacked", voice);
    hold.make_layers(image, ids, &mut |bytes| progress.add(bytes)).map_err(Failure::from)
}

/// Says what a run without a command lacks.
pub(crate) fn no_command() -> Failure {
    Failure::new("no command was given").code(2).fix("airlock run -- COMMAND, or an image that has one")
}
