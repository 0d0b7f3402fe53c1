//! Programmable mounts: who serves them, what they tell; and mounts while the sandbox runs.

use super::{Keeper, gone};
use crate::{
    inside::{self, Done, Ids, Order, What},
    plan::{self, Bind, Served, places::Kind},
};
use airlock_files::{
    fuse::Server,
    provider::{self, Caller, Hooked, Provider, Rules, Source, Told},
};
use airlock_gate::Remount;
use airlock_linux::{caps::Cap, mount::Access, seccomp::Nested};
use airlock_protocol::{
    control::{Refusal, Shown},
    event::Event,
    files::{self, Provided},
};
use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    io,
    os::fd::{AsFd, OwnedFd},
    path::{Path, PathBuf},
    rc::Rc,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio::sync::Notify;

/// Within this time, alike are told once.
const TELL_EVERY: Duration = Duration::from_millis(250);
/// Different ones told at once; more are told as one.
const MOST_TOLD: usize = 256;
/// Most mounts added to a sandbox that runs.
const MOST_MOUNTS: usize = 64;

/// The programmable mounts of a sandbox, and what was mounted while it runs.
#[derive(Default)]
pub(super) struct Mounts {
    all: RefCell<Vec<Mounted>>,
    telling: Arc<Telling>,
    is_changing: Cell<bool>,
}

struct Mounted {
    target: PathBuf,
    source: String,
    /// Its number, where it was mounted while the sandbox runs.
    number: Option<u64>,
    server: Option<Server>,
}

/// What the threads that serve have to tell.
#[derive(Default)]
struct Telling {
    counted: Mutex<BTreeMap<(PathBuf, Told), u64>>,
    news: Notify,
}

impl Telling {
    fn count(&self, mount: &Path, told: Told) {
        let mut counted = self.counted.lock().unwrap_or_else(PoisonError::into_inner);
        let mut key = (mount.to_owned(), told);
        if counted.len() >= MOST_TOLD && !counted.contains_key(&key) {
            key.1.path = "*".to_owned();
        }
        *counted.entry(key).or_default() += 1;
        drop(counted);
        self.news.notify_one();
    }
}

impl Mounts {
    /// Serves a mount.
    fn serve(&self, served: &Served, device: OwnedFd, inside: Caller) -> Result<Server, Refusal> {
        let what = format!("{} cannot be served", served.target.display());
        let failed = |why: String| plan::refusal(125, &what, Some(&why), None);
        let provider = self.provider(served, inside).map_err(failed)?;
        Server::start(device, provider).map_err(|err| failed(plan::chain(&err)))
    }

    fn provider(&self, served: &Served, inside: Caller) -> Result<Arc<dyn Provider>, String> {
        let again =
            |source: &Source| Ok(Source { directory: source.directory.try_clone()?, owner: source.owner });
        let sources: io::Result<Vec<Source>> = served.sources.iter().map(again).collect();
        let sources = sources.map_err(|err| plan::chain(&err))?;
        let provider = provider::build(&served.provider, &mut sources.into_iter(), inside)
            .map_err(|err| plan::chain(&err))?;
        if served.hooks.is_empty() {
            return Ok(provider);
        }
        let (telling, target) = (self.telling.clone(), served.target.clone());
        let rules = Rules::new(&served.hooks, Arc::new(move |told| telling.count(&target, told)));
        Ok(Arc::new(Hooked::new(provider, Arc::new(rules.map_err(|err| plan::chain(&err))?))))
    }

    /// Ends every connection; the threads are gone when this returns, but for those that hang.
    pub(super) fn stop(&self) {
        self.all.take().into_iter().filter_map(|mounted| mounted.server).for_each(Server::stop);
    }
}

impl Keeper {
    /// Serves what the sandbox was built with.
    pub(super) fn serve_mounts(&self, devices: Vec<OwnedFd>) -> Result<(), Refusal> {
        for (served, device) in self.plan.provided.iter().zip(devices) {
            let server = Some(self.mounts.serve(served, device, self.inside())?);
            let (target, source) = (served.target.clone(), words(&served.provider));
            self.mounts.all.borrow_mut().push(Mounted { target, source, number: None, server });
        }
        Ok(())
    }

    /// Shows something inside until the sandbox stops.
    pub async fn mount(&self, shown: Shown) -> Result<(), Refusal> {
        self.refuse_change()?;
        self.mounts.is_changing.set(true);
        let mounted = match shown {
            Shown::Bind { mount } => self.mount_bind(&mount).await,
            Shown::Provided { mount } => self.mount_provided(mount).await,
        };
        self.mounts.is_changing.set(false);
        mounted
    }

    /// Takes away what was shown while it runs.
    pub async fn unmount(&self, target: &Path) -> Result<(), Refusal> {
        self.refuse_change()?;
        let what = format!("{} cannot be unmounted", target.display());
        let found = self.mounts.all.borrow().iter().rposition(|mounted| mounted.target == target);
        let number = found.and_then(|index| self.mounts.all.borrow().get(index).and_then(|one| one.number));
        let (Some(index), Some(number)) = (found, number) else {
            let why = "it was not mounted with `airlock mount`";
            return Err(plan::refusal(
                1,
                &what,
                Some(why),
                Some("airlock stop, and start it without the mount"),
            ));
        };
        let source = self.mounts.all.borrow().get(index).map(|one| one.source.clone()).unwrap_or_default();
        self.record(source, target, "none")?;
        self.mounts.is_changing.set(true);
        let done = self.inside_order(What::Unmount { target: target.to_owned(), mount: number }).await;
        self.mounts.is_changing.set(false);
        let (Done::Unmounted, _) = done? else {
            return Err(plan::refusal(125, &what, Some("nobody said that it is gone"), None));
        };
        let server = self.mounts.all.borrow_mut().remove(index).server;
        server.into_iter().for_each(drop);
        Ok(())
    }

    /// One change at a time, and none where a program inside could undo what makes it safe.
    fn refuse_change(&self) -> Result<(), Refusal> {
        let what = "mounts of this sandbox cannot be changed while it runs";
        if self.plan.nested == Nested::Yes || self.plan.caps.contains(Cap::SYS_ADMIN) {
            let why = "its programs may change mounts themselves, also make a read-only one writable";
            return Err(plan::refusal(125, what, Some(why), Some("give it to `airlock run --mount`")));
        }
        if self.mounts.is_changing.get() || self.mounts.all.borrow().len() >= MOST_MOUNTS {
            let why = "another change is under way, or there are too many mounts";
            return Err(plan::refusal(125, what, Some(why), Some("try again")));
        }
        Ok(())
    }

    async fn mount_bind(&self, mount: &airlock_protocol::spec::Mount) -> Result<(), Refusal> {
        let bind = plan::places::further_bind(mount, &self.plan.caller, self.sandbox.store().home())?;
        self.refuse_target(&bind.target)?;
        self.refuse_unsafe(&bind)?;
        let identity = rustix::fs::fstat(&bind.source).map(|stat| (stat.st_dev, stat.st_ino));
        let identity =
            identity.map_err(|err| plan::refusal(125, "it cannot be read", Some(&err.to_string()), None))?;
        let access = if bind.access == Access::ReadOnly { "ro" } else { "rw" };
        let source = bind.host.display().to_string();
        self.record(source.clone(), &bind.target, access)?;
        let what = What::Bind {
            host: bind.host.clone(),
            identity,
            target: bind.target.clone(),
            is_directory: bind.kind == Kind::Directory,
            is_read_only: bind.access == Access::ReadOnly,
            ids: self.ids_of(&bind),
        };
        let (done, _) = self.inside_order(what).await?;
        self.mounted(done, (bind.target, source), None)
    }

    async fn mount_provided(&self, provided: Provided) -> Result<(), Refusal> {
        let home = self.sandbox.store().home();
        let served = plan::places::served(std::slice::from_ref(&provided), &self.plan.caller, home)?;
        let Some(served) = served.into_iter().next() else { return Err(gone()) };
        self.refuse_target(&served.target)?;
        // What cannot be served is not mounted.
        self.mounts.provider(&served, self.inside()).map_err(|why| {
            let what = format!("{} cannot be served", served.target.display());
            plan::refusal(125, &what, Some(&why), None)
        })?;
        let source = words(&served.provider);
        let access = if matches!(served.provider, files::Provider::Readonly { .. }) { "ro" } else { "rw" };
        self.record(source.clone(), &served.target, access)?;
        let owner = (self.plan.user.uid, self.plan.user.gid);
        let what = What::Serve { target: served.target.clone(), owner };
        let (done, device) = self.inside_order(what).await?;
        let device = device.ok_or_else(gone)?;
        let server = self.mounts.serve(&served, device, self.inside())?;
        self.mounted(done, (served.target, source), Some(server))
    }

    fn mounted(
        &self,
        done: Done,
        (target, source): (PathBuf, String),
        server: Option<Server>,
    ) -> Result<(), Refusal> {
        let Done::Mounted(number) = done else { return Err(gone()) };
        let mounted = Mounted { target, source, number: Some(number), server };
        self.mounts.all.borrow_mut().push(mounted);
        Ok(())
    }

    /// Nothing lies over or in a mount that somebody serves.
    fn refuse_target(&self, target: &Path) -> Result<(), Refusal> {
        let all = self.mounts.all.borrow();
        let is_served = |mounted: &&Mounted| mounted.server.is_some() && target.starts_with(&mounted.target);
        let Some(near) = all.iter().find(is_served) else { return Ok(()) };
        let what = format!("nothing can be mounted at {}", target.display());
        let why = format!("{} is a programmable mount", near.target.display());
        Err(plan::refusal(125, &what, Some(&why), Some("choose another path inside")))
    }

    /// What a start covers cannot be covered in a tree that appears at once; and the filter of a running sandbox stays.
    fn refuse_unsafe(&self, bind: &Bind) -> Result<(), Refusal> {
        let what = format!("{} cannot be mounted while the sandbox runs", bind.host.display());
        let fix = "mount it read-only (SRC:DST:ro), as type=real, or give it to `airlock run --mount`";
        if !bind.found.covered.is_empty() {
            let why = "sockets of the host lie in it, or directories that cannot be searched for them";
            return Err(plan::refusal(125, &what, Some(why), Some("mount it with type=real,src=…,dst=…")));
        }
        let may_set_id = self.plan.set_id == airlock_linux::seccomp::SetId::Allowed;
        if bind.access == Access::ReadWrite && may_set_id {
            let why = "programs of this sandbox may make set-user-id files, which would count on the host";
            return Err(plan::refusal(125, &what, Some(why), Some(fix)));
        }
        let is_roots = bind.access == Access::ReadWrite && bind.owner.0 == 0 && self.plan.caller.is_root();
        if is_roots && self.plan.caps.contains(Cap::SETFCAP) {
            let why = "programs of this sandbox may give files capabilities, which would count on the host";
            return Err(plan::refusal(125, &what, Some(why), Some(fix)));
        }
        Ok(())
    }

    fn record(&self, source: String, target: &Path, access: &'static str) -> Result<(), Refusal> {
        let remount = Remount { source, target: target.display().to_string(), access };
        self.gate.remount(&remount).map_err(|err| {
            let what = "mounts cannot be changed: the ledger cannot be written";
            plan::refusal(125, what, Some(&plan::chain(&err)), None)
        })
    }

    /// As at a start: the owner of the files is the user inside.
    fn ids_of(&self, bind: &Bind) -> Option<Ids> {
        if !self.plan.caller.is_root() {
            return None;
        }
        let (user, group) = (self.plan.user.uid, self.plan.user.gid);
        if bind.owner == (0, 0) && (user, group) == (0, 0) {
            return Some(Ids::Shifted);
        }
        Some(Ids::One {
            user: (bind.owner.0, self.plan.ids.user_outside(user).unwrap_or(0)),
            group: (bind.owner.1, self.plan.ids.group_outside(group).unwrap_or(0)),
        })
    }

    fn inside(&self) -> Caller {
        Caller { user: self.plan.user.uid, group: self.plan.user.gid }
    }

    async fn inside_order(&self, what: What) -> Result<(Done, Option<OwnedFd>), Refusal> {
        let failed = |why: &str| {
            plan::refusal(125, "the mounts of this sandbox could not be changed", Some(why), None)
        };
        let Some(outer) = &self.launched.outer else { return Err(failed("this backend cannot")) };
        let user = &self.plan.user;
        let builder = match self.plan.ids.user_outside(0) {
            Some(_) => (0, self.plan.ids.group_outside(0).map_or(user.gid, |_| 0)),
            None => (user.uid, user.gid),
        };
        let order = Order { what, builder };
        match inside::perform(&order, [outer.as_fd(), self.launched.pidfd()]).await {
            Ok((Done::Failed(why), _)) => Err(failed(&why)),
            Ok(done) => Ok(done),
            Err(err) => Err(failed(&plan::chain(&err))),
        }
    }
}

/// Tells what the threads that serve have counted. Runs until dropped.
pub(super) async fn tell(keeper: Rc<Keeper>) {
    loop {
        keeper.mounts.telling.news.notified().await;
        tokio::time::sleep(TELL_EVERY).await;
        tell_now(&keeper);
    }
}

/// Tells what was counted and not told yet.
pub(super) fn tell_now(keeper: &Keeper) {
    let counted = {
        let mut counted = keeper.mounts.telling.counted.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *counted)
    };
    for ((mount, told), times) in counted {
        let Told { path, is_denied, touch } = told;
        match is_denied {
            true => keeper.gate.refused_file(mount.join(path).display().to_string(), touch, times),
            false => keeper.gate.tell(Event::File {
                mount: mount.display().to_string(),
                path,
                touch: touch.to_owned(),
                times,
            }),
        }
    }
}

/// What serves a mount, in a few words.
fn words(provider: &files::Provider) -> String {
    match provider {
        files::Provider::Memory { .. } => "memory".to_owned(),
        files::Provider::Real { source } => format!("real {}", source.display()),
        files::Provider::Readonly { of } => format!("readonly {}", words(of)),
        files::Provider::Overlay { lower, upper } => {
            format!("overlay of {} and {}", words(lower), words(upper))
        }
        files::Provider::Router { routes } => format!("router of {}", routes.len()),
    }
}
