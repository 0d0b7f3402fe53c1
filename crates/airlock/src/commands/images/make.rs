//! `airlock images make`: an image of Debian's packages, where there is no registry. This host's package client downloads and verifies;
//! two sandboxes without a network make a root file system of it.

use super::{Images, Summary};
use crate::{
    args::MakeImageArgs,
    commands::{print_json, snapshot},
    epoch,
    failure::{Failure, Outcome},
    packages::{Client, Downloaded, ESSENTIAL},
    root::Root,
    say::{Voice, say, terminal_width},
    step::{self, Done, Files, Step},
    table::Table,
};
use airlock_engine::{plan::Caller, snapshots::root};
use airlock_images::{
    archive::{self, Import},
    digest::Digest,
    manifest::{Platform, RunConfig},
    reference::Reference,
    store::{Hold, Image, Which},
    variants::{
        self, Recipe,
        order::{self, Turn},
        script,
    },
};
use airlock_protocol::{size, spec::Mount};
use std::{
    collections::VecDeque,
    fs::File,
    io::{self, Seek as _, Write as _},
    path::{Path, PathBuf},
    time::Duration,
};

/// Where programs are in Debian.
const PATH: (&str, &str) = ("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
/// Of what a sandbox says, so much is told when it fails.
const LAST_WORDS: usize = 2 << 10;

pub(super) fn make(images: &Images, args: &MakeImageArgs) -> Outcome {
    let Some(name) = args.variant.as_deref().filter(|_| !args.list) else { return list(args) };
    let recipe = recipe(name)?;
    refuse_single_id()?;
    let tag = args.tag.clone().map_or_else(|| own_name(&recipe), Ok)?;
    let voice = if args.quiet { Voice::Quiet } else { Voice::Normal };
    let sources = if args.offline { Sources::AsTheyWere } else { Sources::Asked };
    let image = of_recipe(images, &recipe, &tag, sources, voice)?;
    match (args.json, args.quiet) {
        (true, _) => print_json(&Summary::of(&image))?,
        (_, true) => writeln!(io::stdout(), "{}", image.id)?,
        _ => writeln!(io::stdout(), "{tag}  {}  {}", image.id.short(), size::show(image.size))?,
    }
    Ok(0)
}

/// Whether package sources are asked what there is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sources {
    Asked,
    AsTheyWere,
}

/// Makes a variant that is not here, for later; its name.
pub(crate) fn prefetch(variant: &str, voice: Voice) -> Result<Reference, Failure> {
    let images = Images::open()?;
    let recipe = recipe(variant)?;
    refuse_single_id()?;
    let tag = own_name(&recipe)?;
    if images.store.find(&tag.to_string()).is_err() {
        of_recipe(&images, &recipe, &tag, Sources::Asked, voice)?;
    }
    Ok(tag)
}

fn of_recipe(
    images: &Images,
    recipe: &Recipe,
    tag: &Reference,
    sources: Sources,
    voice: Voice,
) -> Result<Image, Failure> {
    let (image, base) = Making { images, hold: images.store.hold()?, recipe, voice }.image(tag, sources)?;
    // What it was made of is nobody's any more. If others are busy, it goes with the next `prune`.
    let _ = images.store.collect(Which::These(&[base]), Duration::ZERO, || images.in_use());
    Ok(image)
}

/// What can be made, and how large it is about.
fn list(args: &MakeImageArgs) -> Outcome {
    let mut table = Table::new(["VARIANT", "DOWNLOAD", "SIZE", "WHAT"]);
    for name in variants::NAMES {
        let recipe = recipe(name)?;
        if args.json {
            print_json(&serde_json::json!({
                "variant": recipe.name, "about": recipe.about, "packages": recipe.packages,
                "download_bytes": recipe.download, "size_bytes": recipe.unpacked,
            }))?;
        }
        table.row([recipe.name, size::show(recipe.download), size::show(recipe.unpacked), recipe.about]);
    }
    if !args.json {
        write!(io::stdout(), "{}", table.text(terminal_width()))?;
    }
    Ok(0)
}

/// A variant by its name, or a recipe by the path of its file.
fn recipe(name: &str) -> Result<Recipe, Failure> {
    let wrong = |err: variants::Error| {
        Failure::because(format!("{name} cannot be made"), &err)
            .code(2)
            .fix("`airlock images make --list` tells what can be, or name a file: ./NAME.toml")
    };
    let path = Path::new(name);
    if path.extension().is_none_or(|extension| extension != "toml") {
        return variants::find(name).map_err(wrong);
    }
    let text = std::fs::read_to_string(path)
        .map_err(|err| Failure::because(format!("could not read {name}"), &err).code(2))?;
    variants::read(&path.file_stem().unwrap_or_default().to_string_lossy(), &text).map_err(wrong)
}

fn own_name(recipe: &Recipe) -> Result<Reference, Failure> {
    let name = format!("airlock/{}:latest", recipe.name);
    name.parse().map_err(|err| {
        Failure::because(format!("{name} is no name for an image"), &err).code(2).fix("-t NAME")
    })
}

/// Files of packages belong to several users: with one id there is only one.
fn refuse_single_id() -> Result<(), Failure> {
    if !Caller::current().has_single_id() {
        return Ok(());
    }
    Err(Failure::new("images cannot be made of packages with a single id")
        .why("files of packages belong to several users, and you have no ranges in /etc/subuid and /etc/subgid")
        .fix("airlock doctor tells how to get ranges; `airlock images load` brings an image from elsewhere")
        .code(5))
}

/// An image that is being made.
struct Making<'a> {
    images: &'a Images,
    hold: Hold,
    recipe: &'a Recipe,
    voice: Voice,
}

impl Making<'_> {
    /// The image, and the one without a name that it was made of.
    fn image(self, tag: &Reference, sources: Sources) -> Result<(Image, Digest), Failure> {
        let client = Client::open()?;
        if sources == Sources::Asked {
            client.update(self.voice)?;
        }
        let mut packages = vec![ESSENTIAL];
        packages.extend(self.recipe.packages.iter().map(String::as_str));
        let turns = |packages: &[&str]| -> Result<Vec<Turn>, Failure> {
            let said = client.simulate(packages)?;
            order::turns(&said).map_err(|err| Failure::because("packages cannot be put in order", &err))
        };
        let (essential, all) = (turns(&[ESSENTIAL])?, turns(&packages)?);
        say(self.voice, &format!("downloading {} packages", order::unpacked(&all).count()));
        let downloaded = client.download(&packages)?;
        let base = self.bootstrap(&downloaded, &essential)?;
        let done = self.configure(&downloaded, &base, &all)?;
        Ok((self.finish(done, tag)?, base.id))
    }

    /// The essential packages, laid out and no more, as an image without a name.
    fn bootstrap(&self, downloaded: &Downloaded, essential: &[Turn]) -> Result<Image, Failure> {
        say(self.voice, "laying out the essential packages");
        let names: Vec<&str> = order::unpacked(essential).collect();
        let archive = self.hold.unnamed()?;
        let mut step = self.step(None, script::bootstrap(&names), downloaded);
        step.files = Files::OfSandbox;
        step.stdout = Some(archive.try_clone()?.into());
        self.run(&step, "the essential packages could not be laid out")?;
        self.import(archive, None)
    }

    /// Everything set up, in a sandbox on what was laid out.
    fn configure(&self, downloaded: &Downloaded, base: &Image, all: &[Turn]) -> Result<Done, Failure> {
        say(self.voice, &format!("setting up {} packages", order::unpacked(all).count()));
        let name = base.id.to_string();
        let root = Root::of(&self.images.home, self.hold.clone(), base, &name, (Some("0"), self.voice))?;
        let step = self.step(Some(root), script::configure(all), downloaded);
        self.run(&step, "the packages could not be set up")
    }

    /// One layer of all that there is now.
    fn finish(&self, done: Done, tag: &Reference) -> Result<Image, Failure> {
        let (sandbox, lock) = done.into_sandbox().ok_or_else(|| Failure::new("the sandbox is gone"))?;
        drop(lock);
        let written = snapshot::of_sandbox(&sandbox, Voice::Quiet).and_then(|(_guard, origin)| {
            let archive = self.hold.unnamed()?;
            let store = &self.images.home;
            root::whole(store, &origin, epoch::from_environment()?, &archive, &mut |_| {})?;
            Ok(archive)
        });
        if let Ok(lock) = sandbox.lock() {
            // What is left is removed by the next prune.
            let _ = sandbox.remove(lock);
        }
        self.import(written?, Some(tag))
    }

    fn step(&self, root: Option<Root>, script: String, downloaded: &Downloaded) -> Step {
        let command = ["sh", "-c"].map(str::to_owned).into_iter().chain([script]).collect();
        let mut step = Step::new(root, command);
        step.env.insert(PATH.0.to_owned(), PATH.1.to_owned());
        step.mounts.push(Mount {
            source: downloaded.path().to_owned(),
            target: PathBuf::from(script::PACKAGES),
            read_only: true,
        });
        step
    }

    fn run(&self, step: &Step, what: &str) -> Result<Done, Failure> {
        let mut last = VecDeque::new();
        let done = step::begin(&self.images.home, step)?.relay(&mut |bytes| {
            last.extend(bytes);
            let over = last.len().saturating_sub(LAST_WORDS);
            last.drain(..over);
        })?;
        if done.exit.code == 0 {
            return Ok(done);
        }
        let said = String::from_utf8_lossy(last.make_contiguous()).into_owned();
        let said: Vec<&str> = said.lines().rev().filter(|line| !line.trim().is_empty()).take(3).collect();
        Err(Failure::new(what).why(said.into_iter().rev().collect::<Vec<_>>().join("; ")))
    }

    fn import(&self, mut archive: File, tag: Option<&Reference>) -> Result<Image, Failure> {
        archive.rewind()?;
        let wish = Import {
            name: tag.cloned(),
            run: RunConfig {
                env: vec![format!("{}={}", PATH.0, PATH.1)],
                cmd: Some(self.recipe.command.clone()),
                ..RunConfig::default()
            },
            message: Some(format!("made of packages: {}", self.recipe.about)),
            platform: Platform::here(),
            created: epoch::now(epoch::from_environment()?)?,
        };
        Ok(archive::import(&self.hold, archive, wish, &mut |_| {})?)
    }
}
