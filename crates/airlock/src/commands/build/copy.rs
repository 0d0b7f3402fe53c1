//! `COPY`, `ADD` and `WORKDIR`: layers written straight from what is copied. Nothing runs, nothing is unpacked.

use super::{
    add,
    job::{Job, Layer, Where, lock, rewound},
    owner,
    stage::{Running, StepEnd},
};
use crate::failure::Failure;
use airlock_images::{
    build::{
        chmod::Chmod,
        context::Context,
        dockerfile::Origin,
        ignore::Ignore,
        instruction::{Instruction, Transfer},
        layer, lines, parse, path,
        transfer::{self, Item, Items, Source, Target},
        tree::{Kind, Node, Place, Tree, take::Taken},
        words,
    },
    digest::Digest,
    manifest::{Descriptor, media},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs::File,
    io::{self, Read},
};

/// Which instruction it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verb {
    Copy,
    Add,
}

/// A tree that is copied from, and how its contents are had.
#[derive(Debug)]
pub(super) struct From {
    /// Where it is; the context's files are where they are.
    pub(super) tree: Option<Tree>,
    pub(super) content: Content,
    /// What is taken: the path as found, and the name it gets.
    pub(super) taken: Vec<Named>,
    /// Everything about it that makes a difference to the result.
    pub(super) key: String,
    /// What histories call it.
    pub(super) kind: &'static str,
}

/// A path as found, and the name that it gets.
type Named = (Vec<u8>, Vec<u8>);

/// Where contents are.
#[derive(Debug)]
pub(super) enum Content {
    /// In the context.
    Context,
    /// In layers.
    Layers(Vec<Layer>),
    /// In an archive that is the context.
    Archive(File),
    /// In an archive that is unpacked.
    Unpacked(File),
    /// Here.
    Bytes(BTreeMap<Vec<u8>, Vec<u8>>),
}

/// The expanded texts of an instruction.
struct Said {
    sources: Vec<String>,
    destination: String,
    target: Target,
    chown: Option<String>,
}

/// Does a `COPY` or `ADD`.
pub(super) fn perform(
    job: &Job,
    stage: &mut Running,
    instruction: &Instruction,
    (verb, transfer): (Verb, &Transfer),
) -> Result<StepEnd, Failure> {
    let said = expanded(job, stage, instruction, transfer)?;
    let heredocs = heredocs(job, stage, instruction, transfer, &said)?;
    let plain: Vec<&String> = said.sources.iter().filter(|source| lines::heredoc(source).is_none()).collect();
    let layers = copied_layers(job, stage, instruction, transfer)?;
    let mut froms: Vec<From> = heredocs.into_iter().collect();
    if layers.is_none() && !plain.is_empty() {
        froms.extend(match verb {
            Verb::Copy => vec![of_context(job, instruction, transfer, &plain)?],
            Verb::Add => add::gathered(job, instruction, transfer, &plain)?,
        });
    }
    let target = &said.target;
    let mut keys: Vec<String> = froms.iter().map(|from| from.key.clone()).collect();
    keys.extend(layers.as_ref().map(|layers| key_of_layers(layers, &plain)));
    let form =
        (target.is_directory, &said.chown, &target.mode, &transfer.exclude, target.parents, transfer.unpack);
    let sum = Digest::of(keys.join("\n").as_bytes()).hex();
    let name = if verb == Verb::Copy { "COPY" } else { "ADD" };
    let key = job.key(name, &stage.layers, &[&target.path, &format!("{form:?}"), &sum]);
    let what = match (froms.as_slice(), &layers) {
        ([one], None) => one.kind,
        _ => "multi",
    };
    let text = stage.state.nothing_ran(&format!("{name} {what}:{sum} in {} ", said.destination));
    if let Some(layers) = job.cached(&key)? {
        return Ok(stage.reuse(layers, text));
    }
    stage.begin(job);
    if let Some(layers) = layers {
        froms.push(of_layers(job, instruction, transfer, layers, &plain)?);
    }
    add::read_archives(&mut froms)?;
    let image = job.tree(&stage.layers)?;
    let mut target = said.target.clone();
    if let Some(chown) = &said.chown {
        let fail = |why: String| job.fail(instruction, why);
        target.owner = Some(owner::find(job, &stage.layers, &image, chown)?.map_err(fail)?);
    }
    let context = lock(&job.opened);
    let sources = sources(&froms, context.as_ref());
    let items =
        transfer::plan(&image, &sources, &target).map_err(|bad| job.fail(instruction, bad.to_string()))?;
    let layers = written(job, &stage.layers, &items, (&froms, context.as_ref()), key)?;
    Ok(stage.advance(layers, text))
}

/// Does a `WORKDIR`: a directory is made where there is none.
pub(super) fn workdir(
    job: &Job,
    stage: &mut Running,
    instruction: &Instruction,
    text: &str,
) -> Result<StepEnd, Failure> {
    let user = stage.state.config.config.user.clone();
    let fault = |fault: &airlock_images::build::Fault| job.fault(fault);
    let directory = stage.state.enter(&job.scope, instruction, text).map_err(|err| fault(&err))?;
    let said = stage.state.nothing_ran(&format!("WORKDIR {directory}"));
    let key = job.key("WORKDIR", &stage.layers, &[&directory, &user]);
    if let Some(layers) = job.cached(&key)? {
        return Ok(stage.reuse(layers, said));
    }
    stage.begin(job);
    let image = job.tree(&stage.layers)?;
    let owner = match user.as_str() {
        "" | "0" | "root" | "0:0" => (0, 0),
        user => owner::find(job, &stage.layers, &image, user)?.map_err(|why| job.fail(instruction, why))?,
    };
    let items = transfer::directory(&image, &directory, owner)
        .map_err(|bad| job.fail(instruction, bad.to_string()))?;
    let layers = written(job, &stage.layers, &items, (&[], None), key)?;
    Ok(stage.advance(layers, said))
}

fn expanded(
    job: &Job,
    stage: &Running,
    instruction: &Instruction,
    transfer: &Transfer,
) -> Result<Said, Failure> {
    let expand =
        |text: &str| stage.state.expand(&job.scope, instruction, text).map_err(|fault| job.fault(&fault));
    // A here-document's word is no text with variables.
    let source = |text: &String| if lines::heredoc(text).is_some() { Ok(text.clone()) } else { expand(text) };
    let sources = transfer.sources.iter().map(source).collect::<Result<Vec<_>, _>>()?;
    let destination = expand(&transfer.destination)?;
    if destination.is_empty() {
        return Err(job.fail(instruction, "the destination is empty"));
    }
    let chown = transfer.chown.as_deref().map(expand).transpose()?;
    let mode = transfer.chmod.as_deref().map(expand).transpose()?;
    let mode = mode.map(|text| text.parse::<Chmod>()).transpose();
    let mode = mode.map_err(|bad| job.fail(instruction, bad.to_string()))?;
    let exclude = Ignore::of_patterns(&transfer.exclude)
        .map_err(|bad| job.fail(instruction, format!("--exclude: {bad}")))?;
    let target = Target {
        path: path::joined(stage.state.workdir(), &destination),
        is_directory: parse::is_directory(&destination),
        owner: None,
        mode,
        exclude,
        parents: transfer.parents,
    };
    Ok(Said { sources, destination, target, chown })
}

/// Files that stand in the Dockerfile.
fn heredocs(
    job: &Job,
    stage: &Running,
    instruction: &Instruction,
    transfer: &Transfer,
    said: &Said,
) -> Result<Option<From>, Failure> {
    let mut bytes = BTreeMap::new();
    let mut tree = Tree::default();
    let mut taken = Vec::new();
    let mut key = String::from("here");
    for word in said.sources.iter().filter_map(|source| lines::heredoc(source)) {
        let Some(heredoc) = transfer.heredocs.iter().find(|heredoc| heredoc.name == word.name) else {
            continue;
        };
        let mut text = heredoc.said();
        if heredoc.expand {
            text = words::expand_heredoc(&text, &|name| stage.state.value(&job.scope, name))
                .map_err(|bad| job.fail(instruction, bad.to_string()))?;
        }
        let name = heredoc.name.clone().into_bytes();
        let sum = Digest::of(text.as_bytes());
        let size = u64::try_from(text.len()).unwrap_or(0);
        let place = Place { archive: 0, path: name.clone() };
        tree.insert(name.clone(), Node { place, ..Node::of(Kind::File { size, sum: Some(sum) }, 0o644) });
        key.push_str(&format!(" {} {}", heredoc.name, sum.hex()));
        taken.push((name.clone(), name.clone()));
        bytes.insert(name, text.into_bytes());
    }
    let tree = Some(tree);
    Ok((!taken.is_empty()).then_some(From { tree, content: Content::Bytes(bytes), taken, key, kind: "file" }))
}

/// The layers that `--from` names.
fn copied_layers(
    job: &Job,
    stage: &Running,
    instruction: &Instruction,
    transfer: &Transfer,
) -> Result<Option<Vec<Layer>>, Failure> {
    let Some(from) = &transfer.from else { return Ok(None) };
    let layers = match job.file.origin(from, stage.at) {
        Origin::Scratch => Some(Vec::new()),
        Origin::Stage(at) => stage.others.get(&at).map(|done| done.layers.clone()),
        Origin::Image(name) => job.image(&name, stage.at)?.map(|image| image.layers.clone()),
    };
    let layers =
        layers.ok_or_else(|| job.fail(instruction, format!("there is no stage or image `{from}`")))?;
    Ok(Some(layers))
}

fn key_of_layers(layers: &[Layer], sources: &[&String]) -> String {
    let diffs: Vec<String> = layers.iter().map(|(_, diff)| diff.hex()).collect();
    format!("layers {} {sources:?}", diffs.join(" "))
}

/// Sources in a stage or an image.
fn of_layers(
    job: &Job,
    instruction: &Instruction,
    transfer: &Transfer,
    layers: Vec<Layer>,
    sources: &[&String],
) -> Result<From, Failure> {
    let tree = job.tree(&layers)?;
    let taken = found(job, instruction, &tree, transfer, sources)?;
    let (tree, content, key) = (Some(tree), Content::Layers(layers), String::new());
    Ok(From { tree, content, taken, key, kind: "multi" })
}

/// Sources in the context, with all that they hold.
pub(super) fn of_context(
    job: &Job,
    instruction: &Instruction,
    transfer: &Transfer,
    sources: &[&String],
) -> Result<From, Failure> {
    let mut context = job.context()?;
    let Some(context) = context.as_mut() else { return Err(job.fail(instruction, "there is no context")) };
    let taken = found(job, instruction, &context.tree, transfer, sources)?;
    let mut key = String::from("context");
    for (path, name) in &taken {
        let place = context.tree.resolve(path).map_err(|err| job.fail(instruction, err.to_string()))?;
        context.digest(&place).map_err(|err| Failure::because("the build's context cannot be used", &err))?;
        key.push_str(&described(&context.tree, &place, name));
    }
    let is_directory = |path: &[u8]| {
        context.tree.resolve(path).is_ok_and(|path| context.tree.get(&path).is_some_and(Node::is_directory))
    };
    let kind = match taken.as_slice() {
        [(path, _)] if is_directory(path) => "dir",
        [_] => "file",
        _ => "multi",
    };
    let content = match &job.context {
        Where::Archive(file, _) => Content::Archive(
            file.try_clone().map_err(|err| Failure::because("the build's context cannot be used", &err))?,
        ),
        Where::Directory(_) | Where::Nothing => Content::Context,
    };
    Ok(From { tree: None, content, taken, key, kind })
}

/// The paths that sources mean, and the name that each gets.
pub(super) fn found(
    job: &Job,
    instruction: &Instruction,
    tree: &Tree,
    transfer: &Transfer,
    sources: &[&String],
) -> Result<Vec<Named>, Failure> {
    let mut taken = Vec::new();
    for source in sources {
        let paths = transfer::sources(tree, source).map_err(|bad| {
            let failure = job.fail(instruction, bad.to_string());
            match (&bad, &transfer.from) {
                (transfer::Bad::Missing(..), None) => {
                    failure.fix("it is not in the context, or .dockerignore keeps it out")
                }
                _ => failure,
            }
        })?;
        for path in paths {
            let name = match transfer.parents {
                true => transfer::kept_path(source, &path),
                false => path::last(&path).1.to_vec(),
            };
            taken.push((path, name));
        }
    }
    Ok(taken)
}

/// Everything about what lies at a path that makes a difference: names, modes, owners, contents.
fn described(tree: &Tree, place: &[u8], name: &[u8]) -> String {
    let mut items = Items::new();
    let mut add = |path: Vec<u8>, node: &Node| {
        items.insert(path, Item { node: node.clone(), origin: None });
    };
    if let Some(node) = tree.get(place) {
        // A directory's own mode makes no difference: what it holds is copied.
        let node = if node.is_directory() { Node::directory() } else { node.clone() };
        add(Vec::new(), &node);
    }
    for (below, node) in tree.below(place) {
        add(below.to_vec(), node);
    }
    format!("\n{} {}", String::from_utf8_lossy(name), layer::key(&items).hex())
}

fn sources<'f>(froms: &'f [From], context: Option<&'f Context>) -> Vec<Source<'f>> {
    let mut sources = Vec::new();
    for (origin, from) in froms.iter().enumerate() {
        let Some(tree) = from.tree.as_ref().or(context.map(|context| &context.tree)) else { continue };
        for (path, name) in &from.taken {
            // Where it leads was looked at before; a loop leads nowhere.
            let path = tree.resolve(path).unwrap_or_else(|_| path.clone());
            sources.push(Source { tree, origin, path, name: name.clone() });
        }
    }
    sources
}

/// The layers with one more, or as they are if nothing is in it.
pub(super) fn written(
    job: &Job,
    below: &[Layer],
    items: &Items,
    (froms, context): (&[From], Option<&Context>),
    key: String,
) -> Result<Vec<Layer>, Failure> {
    let mut layers = below.to_vec();
    if items.is_empty() {
        job.keep(&layers, vec![key])?;
        return Ok(layers);
    }
    let by_content = job.key("layer", below, &[&layer::key(items).hex()]);
    if let Some(layers) = job.cached(&by_content)? {
        job.keep(&layers, vec![key])?;
        return Ok(layers);
    }
    let fail = |err: io::Error| Failure::because("a layer cannot be written", &err);
    let taken = contents(job, items, froms)?;
    let mut spool = job.hold.spool()?;
    let open = opener(froms, context, &taken);
    let written = layer::write(items, job.epoch, &mut spool, &mut |_, item: &Item| open(item));
    let written = written.map_err(fail)?;
    spool.finish_as(&written.digest)?;
    let blob = Descriptor::of(media::DOCKER_LAYER_GZIP, written.digest, written.size);
    layers.push((blob, written.diff));
    job.keep(&layers, vec![key, by_content])?;
    Ok(layers)
}

/// Gives the content of an item.
pub(super) fn opener<'c>(
    froms: &'c [From],
    context: Option<&'c Context>,
    taken: &'c BTreeMap<usize, Taken>,
) -> impl Fn(&Item) -> io::Result<Box<dyn Read + 'c>> {
    move |item| {
        let origin = item.origin.unwrap_or_default();
        let place = &item.node.place;
        let missing = || io::Error::other("its content is nowhere");
        match froms.get(origin).map(|from| &from.content) {
            Some(Content::Context) => Ok(Box::new(context.ok_or_else(missing)?.file(&place.path)?)),
            Some(Content::Bytes(bytes)) => {
                Ok(Box::new(bytes.get(&place.path).ok_or_else(missing)?.as_slice()))
            }
            Some(Content::Layers(_) | Content::Archive(_) | Content::Unpacked(_)) => {
                taken.get(&origin).ok_or_else(missing)?.open(place.archive, &place.path)
            }
            None => Err(missing()),
        }
    }
}

/// Contents out of layers and archives, by source.
pub(super) fn contents(job: &Job, items: &Items, froms: &[From]) -> Result<BTreeMap<usize, Taken>, Failure> {
    let mut all = BTreeMap::new();
    for (origin, from) in froms.iter().enumerate() {
        let mut wanted: BTreeMap<usize, BTreeSet<Vec<u8>>> = BTreeMap::new();
        for item in items.values().filter(|item| item.origin == Some(origin)) {
            let place = &item.node.place;
            wanted.entry(place.archive).or_default().insert(place.path.clone());
        }
        if matches!(from.content, Content::Context | Content::Bytes(_)) {
            continue;
        }
        let mut taken = Taken::new(job.hold.spool()?.into_file()?);
        for (archive, wanted) in &wanted {
            let plain: Box<dyn Read> = match &from.content {
                Content::Layers(layers) => match layers.get(*archive) {
                    Some(layer) => job.plain(layer)?,
                    None => continue,
                },
                Content::Archive(file) | Content::Unpacked(file) => rewound(file)?,
                _ => continue,
            };
            taken
                .add(*archive, plain, wanted)
                .map_err(|err| Failure::because("files cannot be taken out of a layer", &err))?;
        }
        all.insert(origin, taken);
    }
    Ok(all)
}
