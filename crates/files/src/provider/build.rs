//! From a description to providers.

use super::{Caller, Memory, Overlay, Owner, Provider, Readonly, Real, Router};
use airlock_protocol::files;
use rustix::io::Errno;
use std::{
    os::{fd::OwnedFd, unix::ffi::OsStrExt as _},
    path::Component,
    sync::Arc,
};

/// Bytes of a mount in memory that says nothing of its size.
const MEMORY: u64 = 64 << 20;
/// Providers within providers.
const DEEPEST: usize = 8;

/// A directory of the host that was checked and opened.
#[derive(Debug)]
pub struct Source {
    /// The directory.
    pub directory: OwnedFd,
    /// Its user and group on the host.
    pub owner: (u32, u32),
}

/// A description that cannot be served.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadProvider {
    /// Providers within providers within providers.
    #[error("there are more than {DEEPEST} mounts within each other")]
    Deep,
    /// A router's path.
    #[error("the path {path:?} of a router is empty, absolute, has `..` in it, or is a part of another one")]
    Route {
        /// Which.
        path: String,
    },
    /// A directory cannot be served.
    #[error("a directory of this host cannot be served")]
    Directory(#[source] Errno),
    /// Fewer directories were opened than there are.
    #[error("a directory of this host is missing")]
    Missing,
}

/// Makes what `description` describes. Its directories of the host are `sources`, in the order in which they stand there;
/// new files and the directories' owners are `inside`.
pub fn build(
    description: &files::Provider,
    sources: &mut dyn Iterator<Item = Source>,
    inside: Caller,
) -> Result<Arc<dyn Provider>, BadProvider> {
    Builder { sources, inside }.make(description, 0)
}

struct Builder<'s> {
    sources: &'s mut dyn Iterator<Item = Source>,
    inside: Caller,
}

impl Builder<'_> {
    fn make(
        &mut self,
        description: &files::Provider,
        depth: usize,
    ) -> Result<Arc<dyn Provider>, BadProvider> {
        if depth >= DEEPEST {
            return Err(BadProvider::Deep);
        }
        Ok(match description {
            files::Provider::Memory { size } => Arc::new(Memory::new(size.unwrap_or(MEMORY), self.inside)),
            files::Provider::Real { .. } => {
                let source = self.sources.next().ok_or(BadProvider::Missing)?;
                let owner = Owner { host: source.owner, inside: self.inside };
                Arc::new(Real::new(source.directory, owner).map_err(BadProvider::Directory)?)
            }
            files::Provider::Readonly { of } => Arc::new(Readonly::new(self.make(of, depth + 1)?)),
            files::Provider::Overlay { lower, upper } => {
                let lower = self.make(lower, depth + 1)?;
                Arc::new(Overlay::new(lower, self.make(upper, depth + 1)?))
            }
            files::Provider::Router { routes } => self.router(routes, depth)?,
        })
    }

    /// A router's numbers leave no room for another router's; one within it is a part of it.
    fn router(&mut self, routes: &[files::Route], depth: usize) -> Result<Arc<dyn Provider>, BadProvider> {
        let mut made = Vec::new();
        for route in routes {
            let bad = || BadProvider::Route { path: route.path.display().to_string() };
            let part = |part: Component<'_>| match part {
                Component::Normal(name) => Ok(name.as_bytes().to_vec()),
                _ => Err(bad()),
            };
            let path = route.path.components().map(part).collect::<Result<Vec<_>, _>>()?;
            if path.is_empty() || made.iter().any(|(other, _): &(Vec<Vec<u8>>, _)| overlap(other, &path)) {
                return Err(bad());
            }
            made.push((path, self.boxed(&route.provider, depth)?));
        }
        let router = Router::new(made, self.inside);
        Ok(Arc::new(router.map_err(|_| BadProvider::Route { path: String::new() })?))
    }

    fn boxed(
        &mut self,
        description: &files::Provider,
        depth: usize,
    ) -> Result<Arc<dyn Provider>, BadProvider> {
        if holds_router(description) {
            return Err(BadProvider::Deep);
        }
        self.make(description, depth + 1)
    }
}

/// Whether a router's own numbers would come out of it: an overlay has numbers of its own.
fn holds_router(description: &files::Provider) -> bool {
    match description {
        files::Provider::Router { .. } => true,
        files::Provider::Readonly { of } => holds_router(of),
        _ => false,
    }
}

fn overlap(one: &[Vec<u8>], other: &[Vec<u8>]) -> bool {
    one.starts_with(other) || other.starts_with(one)
}
