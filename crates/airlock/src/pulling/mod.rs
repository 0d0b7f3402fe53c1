//! Images from and to registries, as this person's settings want it.
//!
//! - [`logins`]: what lets one in
//! - [`show`]: how far it is

mod logins;
mod show;

pub(crate) use show::{Form, Show, Way};

use crate::{config::own::Own, failure::Failure};
use airlock_engine::plan::{
    chain,
    ids::{self, Caller},
};
use airlock_images::{
    layer::Ids,
    manifest::Platform,
    reference::Reference,
    registry::{self, Error, Settings},
    store::{Image, Store},
};
use airlock_protocol::{guest::User, spec::Egress};
use std::{error::Error as _, rc::Rc};

/// What is told to a registry, and asked of it, besides its name.
#[derive(Debug, Clone, Default)]
pub(crate) struct Wish {
    /// Another platform than this host's.
    pub(crate) platform: Option<Platform>,
    /// Without TLS, this once.
    pub(crate) is_plain: bool,
}

/// How the registry of `name` is spoken to.
pub(crate) fn settings(own: &Own, name: &Reference, wish: &Wish) -> Result<Settings, Failure> {
    let mut insecure = own.images.insecure.clone();
    if wish.is_plain {
        insecure.extend(name.registry.clone());
    }
    let mut egress = own.egress.clone();
    if own.images.ca.is_some() {
        egress.extra_ca.clone_from(&own.images.ca);
    }
    if let Some(path) = &egress.extra_ca {
        airlock_images::registry::check_ca(path).map_err(|err| {
            Failure::new(err.to_string())
                .code(2)
                .fix("correct ca under [images] in config.toml: a file in PEM")
        })?;
    }
    if egress.proxy.is_none() {
        proxy_of_environment(&mut egress)?;
    }
    Ok(Settings {
        egress,
        insecure,
        platform: wish.platform.clone().unwrap_or_else(Platform::here),
        logins: Rc::new(logins::login),
        policy: own.images.policy()?,
    })
}

/// The whole name of an image: a short one is of the registry that the settings name.
pub(crate) fn whole_name(own: &Own, name: &Reference) -> Reference {
    let registry = name.registry.clone().or_else(|| own.images.registry.clone());
    Reference { registry, ..name.clone() }.with_default_tag()
}

/// Pulls an image, and unpacks it for sandboxes of root inside. This process must have one thread.
pub(crate) fn pull(
    store: &Store,
    name: &Reference,
    settings: &Settings,
    show: &mut Show,
) -> Result<Image, Failure> {
    let ids = ids_of_root();
    let pulled = registry::pull(store, name, settings, Some(&ids), &mut |event| show.event(event));
    pulled.map_err(|err| failed(format!("could not pull {name}"), &err))
}

/// Refuses an image that is not signed as the settings demand of one of its names, or of the name that was typed.
pub(crate) fn check_signed(own: &Own, store: &Store, image: &Image, typed: &str) -> Result<(), Failure> {
    let policy = own.images.policy()?;
    let typed = typed.parse::<Reference>().ok().map(|name| whole_name(own, &name));
    let names: Vec<Reference> = image.names.iter().chain(&image.digests).cloned().chain(typed).collect();
    let mut digests = vec![image.manifest_digest];
    digests.extend(image.digests.iter().filter_map(|name| name.digest));
    policy.check_stored(store, &names, &digests).map_err(|err| {
        let err = Error::from(err);
        failed(format!("image {} may not be used", image.label()), &err)
    })
}

/// Unpacks what is not unpacked of an image, for sandboxes of root inside. This process must have one thread.
pub(crate) fn unpack(store: &Store, image: &Image) -> Result<(), Failure> {
    let hold = store.hold().map_err(Failure::from)?;
    let trees = hold.make_layers(image, &ids_of_root(), &mut |_| {})?;
    hold.settle_trees(&trees).map_err(Failure::from)
}

/// Whose the files of an image are for sandboxes whose user is root inside.
fn ids_of_root() -> Ids {
    ids::of_images(&Caller::current(), &User { uid: 0, gid: 0, groups: Vec::new() })
}

/// What a person is told.
pub(crate) fn failed(what: String, err: &Error) -> Failure {
    let mut why = err.to_string();
    if let Some(cause) = err.source() {
        why = format!("{why}: {}", chain(cause));
    }
    if let Some(said) = err.said() {
        why = format!("{why}: {said}");
    }
    Failure { fix: err.fix(), ..Failure::new(what).code(err.exit_code()).why(why) }
}

/// What programs of this host go by where `config.toml` names no proxy: `HTTPS_PROXY` and `NO_PROXY`.
fn proxy_of_environment(egress: &mut Egress) -> Result<(), Failure> {
    let variable = |names: [&str; 2]| {
        names.into_iter().find_map(|name| {
            Some((name.to_owned(), std::env::var(name).ok().filter(|value| !value.is_empty())?))
        })
    };
    let Some((name, proxy)) = variable(["https_proxy", "HTTPS_PROXY"]) else { return Ok(()) };
    // As curl has it, a proxy without a scheme is spoken to plainly.
    let proxy = if proxy.contains("://") { proxy } else { format!("http://{proxy}") };
    let tried = Egress { proxy: Some(proxy), ..Egress::default() };
    registry::check_proxy(&tried).map_err(|err| {
        Failure::new(format!("the proxy in {name} cannot be used"))
            .code(2)
            .why(err.to_string())
            .fix("set proxy under [network] in config.toml, which counts before it")
    })?;
    egress.proxy = tried.proxy;
    if let Some((_, direct)) = variable(["no_proxy", "NO_PROXY"]) {
        let entries = direct.split(',').map(|entry| entry.trim().to_owned());
        egress.no_proxy = entries.filter(|entry| is_direct(entry)).collect();
    }
    Ok(())
}

/// Whether an entry is of a form that is understood; curl passes over others too.
fn is_direct(entry: &str) -> bool {
    let settings = Egress { no_proxy: vec![entry.to_owned()], ..Egress::default() };
    !entry.is_empty() && registry::check_proxy(&settings).is_ok()
}
