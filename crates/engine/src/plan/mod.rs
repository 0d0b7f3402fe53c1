//! From what was asked for to what was checked: only a [`Plan`] can be launched.
//!
//! - [`base`]: what the root is made of
//! - [`ids`]: which ids a sandbox has on this host
//! - [`places`]: host paths that may be shown inside, and where
//! - [`volumes`]: directories that outlive the sandbox
//! - [`bounds`]: limits, asked for and by default
//! - [`search`]: what of a workspace is covered, hidden and protected
//! - [`ignored`]: what git inside is told of hidden files
//! - [`placeholder`]: what stands for protected paths that are not there

pub mod base;
pub mod bounds;
pub mod ids;
mod ignored;
pub mod placeholder;
pub mod places;
pub mod search;
mod secret;
mod volumes;

use crate::{
    snapshots::layers::{self, Layer},
    store::Sandbox,
};
use airlock_images::{
    host::{self, Hide, HostImage, Tree, View},
    trust,
};
use airlock_linux::{
    caps::{Cap, CapSet},
    idmap::IdMap,
    mount::Access,
    net::seat::OUTSIDE_V4,
    seccomp::{Nested, SetId},
};
use airlock_protocol::{
    control::Refusal,
    files::HideAs,
    guest::User,
    spec::{HomeFile, Publish, Spec, Tmpfs},
};
use std::path::{Path, PathBuf};

pub use base::{Accounts, Base, Lower};
pub use bounds::Bounds;
pub use ids::Caller;
pub use places::{Bind, Served};

/// A sandbox that can be built on this host.
#[derive(Debug)]
pub struct Plan {
    /// Directory of the sandbox's own files: its root, its layers.
    pub disk: PathBuf,
    /// What lies below it, read-only, topmost first.
    pub layers: Vec<Layer>,
    /// Where the guest program lies, checked against the one inside this binary.
    pub guest: PathBuf,
    /// Program and arguments.
    pub command: Vec<String>,
    /// `NAME=value`, the whole environment.
    pub env: Vec<String>,
    /// Directory to start in.
    pub workdir: String,
    /// Who the program runs as inside.
    pub user: User,
    /// Host name inside.
    pub hostname: String,
    /// Ids inside and outside.
    pub ids: IdMap,
    /// Who builds it.
    pub caller: Caller,
    /// What its root is made of.
    pub base: Base,
    /// What of the host is its root; nothing where it is made of layers.
    pub image: HostImage,
    /// Directories of the image that are no part of the root's changes.
    pub anonymous: Vec<PathBuf>,
    /// Host paths shown inside, the workspace first.
    pub binds: Vec<Bind>,
    /// Programmable mounts.
    pub provided: Vec<Served>,
    /// How hidden files of the workspace look inside.
    pub hide_as: HideAs,
    /// Directories in memory.
    pub tmpfs: Vec<Tmpfs>,
    /// Ports of the host that lead inside.
    pub publish: Vec<Publish>,
    /// Our own files in `/etc`.
    pub etc: Vec<(&'static str, String)>,
    /// Files in the home directory that are there before the program starts.
    pub home_files: Vec<HomeFile>,
    /// The certificate in PEM that the programs inside are to trust, where connections are opened.
    pub certificate: Option<String>,
    /// What programs inside know of the keys of hosts, beside it.
    pub known_hosts: Option<String>,
    /// Capabilities inside.
    pub caps: CapSet,
    /// Whether it may hold sandboxes itself.
    pub nested: Nested,
    /// Whether set-user-id modes may be given to files.
    pub set_id: SetId,
    /// Whether its root can be written.
    pub root: Access,
    /// Limits.
    pub bounds: Bounds,
}

impl Plan {
    /// Has the programs inside trust one more certificate: in the stores of the root, and by variables that nobody set
    /// otherwise.
    pub fn trust(&mut self, certificate: String) {
        let is_set = |name: &str| {
            self.env.iter().any(|entry| entry.split_once('=').is_some_and(|(own, _)| own == name))
        };
        let new: Vec<String> = trust::variables()
            .filter(|(name, _)| !is_set(name))
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        self.env.extend(new);
        self.certificate = Some(certificate);
    }
}

/// Who is inside, and what tells programs there.
#[derive(Debug)]
pub struct Identity {
    /// Our own files in `/etc`.
    pub etc: Vec<(&'static str, String)>,
    /// Who the program runs as inside.
    pub user: User,
    /// Home directory of that user.
    pub home: String,
    /// Ids inside and outside.
    pub ids: IdMap,
}

/// Finds out who is to be inside: the first thing a sandbox is built upon.
pub fn identify(
    spec: &Spec,
    sandbox: &Sandbox,
    caller: &Caller,
    etc: Vec<(&'static str, String)>,
) -> Result<Identity, Refusal> {
    let (user, home) = match base::is_layered(spec) {
        true => find_user_in(&spec.user, &base::accounts(spec, sandbox, caller)?, caller)?,
        false => find_user(&spec.user, &etc)?,
    };
    let ids = ids::map(caller, ids::base_of(sandbox), &user)?;
    Ok(Identity { etc, user, home, ids })
}

/// Checks a spec against this host.
pub fn check(
    spec: &Spec,
    sandbox: &Sandbox,
    caller: Caller,
    identity: Identity,
    guest: PathBuf,
) -> Result<Plan, Refusal> {
    if spec.command.first().is_none_or(String::is_empty) {
        return Err(refusal(125, "no command was given", None, Some("airlock run -- COMMAND")));
    }
    let store = sandbox.store();
    let base = base::of(spec, store, &caller, &identity.user)?;
    let image = match &base {
        Base::Layers(_) => HostImage::default(),
        Base::Host => host::open(&view(sandbox, &caller), &mut |_| {})
            .map_err(|err| refusal(125, "the host image cannot be made", Some(&chain(&err)), None))?,
    };
    refuse_home_in_image(&caller, &image, store.home())?;
    let mut binds = places::binds(spec, &caller, store.home())?;
    binds.extend(volumes::binds(spec, store, &caller, &identity)?);
    let Identity { etc, user, home, ids } = identity;
    places::refuse_below_served(spec)?;
    let provided = places::served(&spec.provided, &caller, store.home())?;
    let layers = layers::layers_of(sandbox)?;
    layers::check_ids(&layers, &ids)?;
    let caps = capabilities(spec, &caller, &binds)?;
    let home_files = spec.home_files.iter().cloned().chain(ignored::home_file(&binds)).collect();
    let writable = binds.iter().any(Bind::reaches_host);
    Ok(Plan {
        disk: sandbox.disk(),
        layers,
        guest,
        command: spec.command.clone(),
        env: environment(spec, &caller, &home),
        anonymous: anonymous(spec)?,
        workdir: workdir(&spec.workdir)?,
        user,
        hostname: spec.hostname.clone(),
        ids,
        bounds: bounds::resolve(&spec.limits, &caller, spec.backend)?,
        caller,
        base,
        image,
        binds,
        provided,
        hide_as: spec.paths.hide_as,
        tmpfs: places::check_tmpfs(&spec.tmpfs)?,
        publish: spec.publish.clone(),
        etc,
        home_files,
        certificate: None,
        known_hosts: None,
        caps,
        nested: if spec.nested { Nested::Yes } else { Nested::No },
        set_id: if writable { SetId::Refused } else { SetId::Allowed },
        root: if spec.read_only { Access::ReadOnly } else { Access::ReadWrite },
    })
}

/// The capabilities inside. Where host root shows a writable directory of its own, capabilities that a program gives to
/// files there would count on the host too: the id map makes root inside the owner, and seccomp cannot see attributes.
fn capabilities(spec: &Spec, caller: &Caller, binds: &[places::Bind]) -> Result<CapSet, Refusal> {
    let what = "these capabilities cannot be given";
    let set = CapSet::adjust(&spec.cap_add, &spec.cap_drop)
        .map_err(|err| refusal(125, what, Some(&chain(&err)), Some(err.fix())))?;
    let counts_outside = |bind: &&places::Bind| bind.reaches_host() && bind.owner.0 == 0;
    let Some(bind) = binds.iter().find(counts_outside).filter(|_| caller.is_root()) else { return Ok(set) };
    let is_asked = |name: &String| CapSet::parse(name).is_ok_and(|cap| cap == Cap::SETFCAP);
    if spec.cap_add.iter().any(is_asked) {
        let why = format!(
            "files in {}, which belongs to root, would have them on this host too",
            bind.host.display()
        );
        let fix = "show it read-only (--workspace ro, SRC:DST:ro), or give the directory to a user";
        return Err(refusal(125, what, Some(&why), Some(fix)));
    }
    Ok(set.without(Cap::SETFCAP))
}

/// The host as the caller may show it.
pub fn view(sandbox: &Sandbox, caller: &Caller) -> View {
    let store = sandbox.store();
    View::of_this_host(store.host(), caller.reader(), vec![store.home().to_owned()])
}

/// Finds the user of a further program as the sandbox's own files name it.
pub fn find_user(text: &str, etc: &[(&'static str, String)]) -> Result<(User, String), Refusal> {
    let file = |name: &str| etc.iter().find(|(file, _)| *file == name).map_or("", |(_, text)| text.as_str());
    let found = look_up(text, file("passwd"), file("group"))?;
    let home = match found.home.as_str() {
        home if home == "/root" || home.starts_with("/home/") => home.to_owned(),
        _ => format!("/home/{}", found.uid),
    };
    Ok((User { uid: found.uid, gid: found.gid, groups: found.groups }, home))
}

/// Finds a user among the accounts of an image, as it names them. With a single id there are no supplementary groups.
pub fn find_user_in(text: &str, accounts: &Accounts, caller: &Caller) -> Result<(User, String), Refusal> {
    let found = look_up(text, &accounts.passwd, &accounts.group)?;
    let groups = if caller.has_single_id() { Vec::new() } else { found.groups };
    Ok((User { uid: found.uid, gid: found.gid, groups }, found.home))
}

fn look_up(text: &str, passwd: &str, group: &str) -> Result<host::users::User, Refusal> {
    host::users::find_user(passwd, group, text).map_err(|err| {
        refusal(
            125,
            "this user cannot be taken",
            Some(&chain(&err)),
            Some("--user takes NAME, UID or UID:GID"),
        )
    })
}

/// Directories of the image that are no part of the root's changes, but for those that something else is shown at.
fn anonymous(spec: &Spec) -> Result<Vec<PathBuf>, Refusal> {
    let others = spec.mounts.iter().map(|mount| &mount.target);
    let others = others.chain(spec.tmpfs.iter().map(|tmpfs| &tmpfs.target));
    let others = others.chain(spec.volumes.iter().map(|volume| &volume.target));
    let others: Vec<&PathBuf> = others.chain(spec.provided.iter().map(|provided| &provided.target)).collect();
    let free = spec.anonymous.iter().filter(|path| !others.contains(path));
    let checked = |path: &PathBuf| match places::check_target(path) {
        Ok(()) => Ok(path.clone()),
        Err(refused) => {
            let what = format!("the image's volume {} cannot be made", path.display());
            Err(refusal(125, &what, refused.why.as_deref(), Some("take another image")))
        }
    };
    free.map(checked).collect()
}

/// The program's whole environment: what the spec names, a home, and what lets the installers of languages work
/// where the sandbox can be written.
fn environment(spec: &Spec, caller: &Caller, home: &str) -> Vec<String> {
    let mut env = spec.env.clone();
    let home = env.entry("HOME".to_owned()).or_insert_with(|| home.to_owned()).clone();
    if base::is_layered(spec) {
        return env.into_iter().map(|(name, value)| format!("{name}={value}")).collect();
    }
    let mut set = |name: &str, value: String| {
        env.entry(name.to_owned()).or_insert(value);
    };
    // A sandbox is no system that an installer could break.
    set("PIP_BREAK_SYSTEM_PACKAGES", "1".to_owned());
    set("PIP_ROOT_USER_ACTION", "ignore".to_owned());
    if !caller.is_root() {
        // The system is read-only: installers go to the sandbox's own home.
        set("PIP_USER", "1".to_owned());
        set("NPM_CONFIG_PREFIX", format!("{home}/.local"));
        let path = env.get("PATH").cloned().unwrap_or_else(|| "/usr/bin:/bin".to_owned());
        let own = format!("{INSTALL_HINTS}:{home}/.local/bin:{home}/.cargo/bin");
        env.insert("PATH".to_owned(), format!("{own}:{path}"));
    }
    env.into_iter().map(|(name, value)| format!("{name}={value}")).collect()
}

/// Where an ordinary user's sandbox has programs that say how to install system packages.
pub const INSTALL_HINTS: &str = "/run/airlock/bin";

/// A layer must not lie in what it is a layer of: the kernel refuses it (`ELOOP`). As host root each sandbox has one of its own
/// for every directory that is shown; an ordinary user has them where something is hidden.
fn refuse_home_in_image(caller: &Caller, image: &HostImage, home: &Path) -> Result<(), Refusal> {
    let is_overlay = |tree: &Tree| {
        caller.is_root() || tree.host == Path::new("/etc") || matches!(tree.hide, Hide::Layer(_))
    };
    let inside = image.trees.iter().find(|tree| home.starts_with(&tree.host) && is_overlay(tree));
    let Some(tree) = inside else { return Ok(()) };
    let what = format!("sandboxes cannot be kept in {}", home.display());
    let why = format!("{} is shown inside them, with their own changes on top", tree.host.display());
    let fix = if caller.is_root() {
        "export AIRLOCK_HOME=/root/.airlock"
    } else {
        "export AIRLOCK_HOME=~/.airlock"
    };
    Err(refusal(125, &what, Some(&why), Some(fix)))
}

/// The environment and directory of a further program.
pub fn workdir(path: &Path) -> Result<String, Refusal> {
    match path.to_str() {
        Some(text) if text.starts_with('/') => Ok(text.to_owned()),
        _ => Err(refusal(
            125,
            "the working directory is not an absolute path in UTF-8",
            None,
            Some("--workdir DIR"),
        )),
    }
}

/// A refusal in words.
pub fn refusal(code: u8, what: &str, why: Option<&str>, fix: Option<&str>) -> Refusal {
    Refusal { code, what: what.to_owned(), why: why.map(str::to_owned), fix: fix.map(str::to_owned) }
}

/// An error and its causes in one line, for a person.
pub fn chain(err: &dyn std::error::Error) -> String {
    let mut text = plain(&err.to_string()).to_owned();
    let mut source = err.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(plain(&cause.to_string()));
        source = cause.source();
    }
    text
}

/// Without the number that the standard library appends: it says nothing that the words do not.
fn plain(text: &str) -> &str {
    text.split_once(" (os error").map_or(text, |(words, _)| words)
}

/// Our own files in `/etc`, whatever the host has there.
pub fn etc_files(spec: &Spec, caller: &Caller) -> Result<Vec<(&'static str, String)>, Refusal> {
    use host::etc;
    let mut files = vec![
        ("hosts", etc::hosts(&spec.hostname)),
        ("hostname", etc::hostname(&spec.hostname)),
        ("resolv.conf", etc::resolv_conf(Some(OUTSIDE_V4.into()))),
    ];
    if base::is_layered(spec) {
        return Ok(files);
    }
    let read = |path: &str| {
        std::fs::read_to_string(path)
            .map_err(|err| refusal(125, &format!("could not read {path}"), Some(&err.to_string()), None))
    };
    let passwd = etc::passwd(&read("/etc/passwd")?, None);
    let group = etc::group(&read("/etc/group")?, &passwd, None);
    if caller.is_root() {
        files.push(("shadow", etc::shadow(&passwd)));
        files.push(("gshadow", etc::gshadow(&group)));
    }
    files.push(("passwd", passwd));
    files.push(("group", group));
    Ok(files)
}

/// Whether a file of [`etc_files`] is the same for every sandbox of one caller, as long as the host's accounts are.
pub fn is_shared(name: &str) -> bool {
    !["hosts", "hostname"].contains(&name)
}
