//! `airlock images`: root file systems that came from elsewhere.

mod archives;
mod list;
mod make;
mod pull;
mod push;
mod remote;
mod remove;
mod show;

use crate::{
    args::{ImagesArgs, ImagesVerb, TagArgs},
    failure::{Failure, Outcome},
    home,
};
use airlock_engine::images;
use airlock_images::{
    archive,
    digest::Digest,
    store::{Image, Store},
};
use airlock_protocol::state::Status;
use serde::Serialize;
use std::{
    collections::{BTreeMap, BTreeSet},
    error::Error as _,
};

pub(crate) use list::names;
pub(crate) use make::prefetch;
pub(crate) use pull::tell;

pub(crate) fn perform(args: &ImagesArgs) -> Outcome {
    let images = || Images::open();
    match &args.verb {
        ImagesVerb::Pull(args) => pull::pull(args),
        ImagesVerb::Push(args) => push::push(args),
        ImagesVerb::Ls(args) => list::list(&images()?, args),
        ImagesVerb::Inspect(args) if args.remote => remote::inspect(args),
        ImagesVerb::Inspect(args) => show::inspect(&images()?, args),
        ImagesVerb::History(args) => show::history(&images()?, args),
        ImagesVerb::Tag(args) => tag(&images()?, args),
        ImagesVerb::Rm(args) => remove::remove(&images()?, args),
        ImagesVerb::Prune(args) => remove::prune(&images()?, args),
        ImagesVerb::Du(args) => show::usage(&images()?, args),
        ImagesVerb::Load(args) => archives::load(&images()?, args),
        ImagesVerb::Save(args) => archives::save(&images()?, args),
        ImagesVerb::Import(args) => archives::import(&images()?, args),
        ImagesVerb::Make(args) => make::make(&images()?, args),
    }
}

/// The images of a state directory, and the sandboxes that use them.
pub(crate) struct Images {
    home: airlock_engine::store::Store,
    store: Store,
}

/// A sandbox that uses an image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct User {
    id: String,
    sandbox: String,
    status: Status,
}

impl Images {
    pub(crate) fn open() -> Result<Images, Failure> {
        let home = home::store()?;
        let store = Store::open(home.home())?;
        Ok(Images { home, store })
    }

    /// Images that a sandbox or a snapshot needs.
    fn in_use(&self) -> Result<BTreeSet<Digest>, Failure> {
        let ids = images::in_use(&self.home)?;
        Ok(ids.iter().filter_map(|id| id.parse().ok()).collect())
    }

    /// Which sandboxes use which image, by its id.
    fn users(&self) -> Result<BTreeMap<String, Vec<User>>, Failure> {
        let mut users: BTreeMap<String, Vec<User>> = BTreeMap::new();
        for entry in self.home.list()? {
            let Some(image) = entry.sandbox.spec().ok().and_then(|spec| spec.image) else { continue };
            users.entry(image.id).or_default().push(User {
                id: entry.state.id.to_string(),
                sandbox: entry.state.name.to_string(),
                status: entry.state.status,
            });
        }
        Ok(users)
    }
}

fn tag(images: &Images, args: &TagArgs) -> Outcome {
    let hold = images.store.hold()?;
    let image = hold.find(&args.image)?;
    hold.tag(&image.id, &args.name)?;
    Ok(0)
}

/// What of an image stands in every `--json`.
#[derive(Serialize)]
struct Summary {
    id: String,
    names: Vec<String>,
    digests: Vec<String>,
    created: Option<String>,
    size_bytes: u64,
    platform: String,
}

impl Summary {
    fn of(image: &Image) -> Summary {
        Summary {
            id: image.id.to_string(),
            names: image.names.iter().map(ToString::to_string).collect(),
            digests: image.digests.iter().map(ToString::to_string).collect(),
            created: image.created().map(|created| created.to_string()),
            size_bytes: image.size,
            platform: image.config.platform().to_string(),
        }
    }
}

impl From<archive::Error> for Failure {
    fn from(err: archive::Error) -> Failure {
        let why = err.source().map(airlock_engine::plan::chain);
        Failure { code: err.exit_code(), fix: err.fix(), why, ..Failure::new(err.to_string()) }
    }
}
