//! The package gate: versions that are too young are hidden from the indexes of registries, and are not handed out.
//!
//! | module | what |
//! |---|---|
//! | `asked` | what a request asks of a registry, by its path |
//! | `rules` | whether a version may be fetched |
//! | `index`, `npm`, `pypi`, `maven`, `semver` | indexes, read and written anew |
//! | `places` | the registries of a policy |
//! | `times` | what is known of versions |
//! | `lookup`, `fetch` | what the keeper asks a registry itself |
//! | `answers` | what becomes of a registry's answers |
//!
//! The wall is at the artefact: whatever an index shows, a version comes in only if it may. Its age is what the index told when it
//! passed; else the date of the file itself (`last-modified`) if that is old enough; else what the index tells the keeper. What
//! nobody tells is too young.

mod answers;
mod asked;
mod fetch;
mod index;
mod lookup;
mod maven;
mod npm;
mod places;
mod pypi;
mod rules;
mod semver;
#[cfg(test)]
mod tests;
mod times;

pub(crate) use fetch::Registries;

use crate::http::filter::{Change, Changed, Filter, Local, Passing, Remade, Stop, Way, Whole};
use airlock_gate::{
    Gate, Reason,
    gate::{Cause, Part, Stopped},
    host::Target,
};
use airlock_protocol::policy::RegistryKind;
use asked::Asked;
use http::{HeaderMap, HeaderValue, header, request, response};
use lookup::Lookup;
use places::{Place, Settings};
use rules::Refused;
use std::{
    cell::{Cell, RefCell},
    collections::{HashMap, HashSet},
    rc::Rc,
    time::SystemTime,
};
use times::Times;

/// Most bytes of an index.
const MOST_INDEX: usize = 64 << 20;
/// Most paths of old clients, and of indexes with digests, that are remembered.
const MOST_READERS: usize = 1024;
/// Most bytes of a file with a digest.
const MOST_DIGEST: usize = 4096;

/// Digests of a document, by the endings of their files.
type Digests = [(&'static str, String); 3];

/// The package gate of one sandbox.
pub(crate) struct Packages {
    gate: Rc<Gate>,
    lookup: Rc<dyn Lookup>,
    settings: RefCell<Rc<Settings>>,
    generation: Cell<u64>,
    times: RefCell<Times>,
    /// Paths that were last asked for by a client that reads no JSON.
    html: RefCell<HashSet<String>>,
    /// Digests of indexes that were written anew, by their places.
    digests: RefCell<HashMap<String, Digests>>,
    now: fn() -> u64,
}

impl Packages {
    /// For the policy of `gate`, also when that changes.
    pub(crate) fn new(gate: Rc<Gate>, lookup: Rc<dyn Lookup>) -> Packages {
        let settings = Rc::new(Settings::new(&gate.policy().packages));
        let generation = Cell::new(gate.generation_now());
        let (times, html, digests) = Default::default();
        Packages { gate, lookup, settings: RefCell::new(settings), generation, times, html, digests, now }
    }

    fn settings(&self) -> Rc<Settings> {
        let generation = self.gate.generation_now();
        if self.generation.replace(generation) != generation {
            self.settings.replace(Rc::new(Settings::new(&self.gate.policy().packages)));
        }
        self.settings.borrow().clone()
    }

    /// What a request asks, and of which registry.
    fn asked(&self, passing: &Passing) -> Option<(Place, Asked)> {
        self.settings().asked(&passing.target, passing.port, &passing.path)
    }

    /// Refuses; with `audit_only` it is only recorded.
    fn refuse(&self, passing: &Passing, refused: &Refused) -> Result<(), Stop> {
        let cause = Cause {
            reason: Reason::Package,
            rule: Some(&refused.rule),
            detail: &refused.what,
            hint: "name it under allow of [packages] in airlock.toml, or wait",
        };
        self.gate.stop(stopped(passing), &cause).map_err(Stop::Denied)
    }

    /// Remembers whether whoever asks for an index of pip's reads JSON.
    fn note_reader(&self, passing: &Passing, kind: RegistryKind, headers: &HeaderMap) {
        let mut accepts = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
        let reads_json = accepts.any(|value| value.contains(pypi::JSON));
        let mut html = self.html.borrow_mut();
        match kind == RegistryKind::Pypi && !reads_json {
            false => html.remove(&passing.path),
            true => {
                if html.len() >= MOST_READERS {
                    html.clear();
                }
                html.insert(passing.path.clone())
            }
        };
    }

    /// Remembers the digests of an index that is another one now, and forgets those of one that is not.
    fn note_digests(&self, passing: &Passing, came: &[u8], made: &[u8]) {
        let mut digests = self.digests.borrow_mut();
        if came == made {
            digests.remove(&place_of(passing, ""));
            return;
        }
        if digests.len() >= MOST_READERS {
            digests.clear();
        }
        digests.insert(place_of(passing, ""), maven::digests(made));
    }

    /// The digests of the index that a request asks a digest of, where it was written anew.
    fn digests_for(&self, passing: &Passing, ending: &str) -> Option<Digests> {
        self.digests.borrow().get(&place_of(passing, ending)).cloned()
    }

    fn reads_html(&self, path: &str) -> bool {
        self.html.borrow().contains(path)
    }

    fn unknown(&self, passing: &Passing) -> Result<(), Stop> {
        let what = "nobody can tell which package this file is of".to_owned();
        self.refuse(passing, &Refused { what, rule: "packages".to_owned() })
    }

    /// What can be decided before the request leaves.
    fn before(&self, passing: &Passing, head: &mut request::Parts) -> Result<(), Stop> {
        let Some((_, asked)) = self.asked(passing) else { return Ok(()) };
        let settings = self.settings();
        match asked {
            Asked::Other => Ok(()),
            Asked::Digest(_) => {
                drop_conditions(&mut head.headers);
                Ok(())
            }
            Asked::Unknown => self.unknown(passing),
            Asked::Index(package) | Asked::About(package, _) => {
                settings.rules.denied(&package).or_else(|refused| self.refuse(passing, &refused))?;
                self.note_reader(passing, package.kind, &head.headers);
                ask_for_all(package.kind, &mut head.headers);
                Ok(())
            }
            Asked::Artefact(package, version) => {
                let known = self.times.borrow().since(&package, &version);
                let judged = match known {
                    Some(since) => settings.rules.judge(&package, &version, Some(since), (self.now)()),
                    None => settings.rules.decided(&package, &version).unwrap_or(Ok(())),
                };
                judged.or_else(|refused| self.refuse(passing, &refused))?;
                // An answer of 304 would say nothing of its age.
                drop_conditions(&mut head.headers);
                Ok(())
            }
        }
    }
}

impl Filter for Packages {
    fn wants(&self, target: &Target, port: u16) -> bool {
        self.settings().is_registry(target, port)
    }

    fn looks_at(&self, target: &Target, port: u16, path: &str) -> bool {
        self.settings().asked(target, port, path).is_some()
    }

    fn gathers(&self, passing: &Passing, way: Way, _headers: &HeaderMap) -> Option<usize> {
        if way == Way::Out || passing.method != "GET" {
            return None;
        }
        match self.asked(passing)?.1 {
            Asked::Index(_) | Asked::About(..) => Some(MOST_INDEX),
            Asked::Digest(ending) => self.digests_for(passing, ending).map(|_| MOST_DIGEST),
            _ => None,
        }
    }

    fn request<'a>(&'a self, passing: &'a Passing, head: &'a mut request::Parts) -> Local<'a, Changed> {
        let decided = self.before(passing, head).map(|()| None);
        Box::pin(std::future::ready(decided))
    }

    fn response<'a>(&'a self, passing: &'a Passing, head: &'a mut response::Parts) -> Local<'a, Changed> {
        Box::pin(async { self.artefact(passing, head).await.map(|()| None) })
    }

    fn whole_response<'a>(
        &'a self,
        passing: &'a Passing,
        head: &'a mut response::Parts,
        body: Whole,
    ) -> Local<'a, Remade> {
        Box::pin(self.index(passing, head, body))
    }

    fn upgraded(&self, _passing: &Passing, _way: Way) -> Option<Box<dyn Change>> {
        None
    }
}

/// Host, port and path of a document, of which `ending` was asked.
fn place_of(passing: &Passing, ending: &str) -> String {
    let path = passing.path.strip_suffix(ending).unwrap_or(&passing.path);
    format!("{}:{}{path}", passing.target, passing.port)
}

fn stopped(passing: &Passing) -> Stopped<'_> {
    let Passing { target, port, method, path, .. } = passing;
    Stopped { target, port: *port, part: Part::Request { method, path } }
}

/// Seconds since 1970.
fn now() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Asks for a whole index, in the form that has times, so that it can be written anew.
fn ask_for_all(kind: RegistryKind, headers: &mut HeaderMap) {
    drop_conditions(headers);
    headers.remove(header::RANGE);
    headers.insert(header::ACCEPT_ENCODING, HeaderValue::from_static("gzip"));
    let accept = match kind {
        // The short form of npm has no times.
        RegistryKind::Npm => "application/json",
        RegistryKind::Pypi => "application/vnd.pypi.simple.v1+json, text/html;q=0.1",
        _ => return,
    };
    headers.insert(header::ACCEPT, HeaderValue::from_static(accept));
}

fn drop_conditions(headers: &mut HeaderMap) {
    for name in [header::IF_NONE_MATCH, header::IF_MODIFIED_SINCE, header::IF_RANGE, header::IF_MATCH] {
        headers.remove(name);
    }
}
