//! What becomes of a registry's answers: indexes are written anew, artefacts come in if they are old enough.

use super::{
    Asked, MOST_INDEX, Packages, Place,
    index::{self, Hide, Rewritten, Told, Unreadable, http_date},
    lookup::{Ask, PATIENCE},
    maven, npm, pypi,
    rules::{Package, Rules, Since, hidden},
    semver, stopped,
};
use crate::http::filter::{Passing, Remade, Stop, Whole};
use airlock_gate::{Reason, gate::Cause};
use airlock_protocol::policy::RegistryKind;
use http::{HeaderMap, HeaderValue, Method, header, response};
use hyper::body::Bytes;
use std::{
    collections::{HashMap, HashSet},
    io::Read as _,
};

/// Most bytes of an index after decoding.
const MOST_DECODED: u64 = 128 << 20;
/// Indexes up to this are read on the keeper's own thread.
const SMALL: usize = 128 * 1024;
/// Versions whose age is asked for one by one, the greatest first, where an index has no times.
const MOST_ASKED: usize = 16;

impl Packages {
    /// The head of an answer that is no index.
    pub(super) async fn artefact(&self, passing: &Passing, head: &response::Parts) -> Result<(), Stop> {
        let Some((place, Asked::Artefact(package, version))) = self.asked(passing) else { return Ok(()) };
        // Whoever is sent elsewhere asks there.
        if !head.status.is_success() {
            return Ok(());
        }
        let rules = self.settings();
        let rules = &rules.rules;
        if let Some(decided) = rules.decided(&package, &version) {
            return decided.or_else(|refused| self.refuse(passing, &refused));
        }
        let known = self.times.borrow().since(&package, &version);
        let dated = last_modified(&head.headers);
        let now = (self.now)();
        let since = match (known, dated) {
            (Some(known), _) => Some(known),
            (None, Some(dated)) if rules.is_old(dated, now) => Some(dated),
            (None, dated) => self.look_up(&place, &package, &version).await.or(dated),
        };
        rules.judge(&package, &version, since, now).or_else(|refused| self.refuse(passing, &refused))
    }

    /// An index, or what tells of one version.
    pub(super) async fn index(&self, passing: &Passing, head: &mut response::Parts, body: Whole) -> Remade {
        let Whole::Body(body) = body else {
            let what = format!("the registry's index is longer than {} MB", MOST_INDEX >> 20);
            return Err(Stop::Failed(what));
        };
        let Some((place, asked)) = self.asked(passing) else { return Ok(Some(body)) };
        if head.status != http::StatusCode::OK {
            return Ok(Some(body));
        }
        let body = decoded(&head.headers, body)?;
        let made = match asked {
            Asked::Index(package) => self.index_of(passing, (&place, &package), head, body).await?,
            Asked::About(package, _) => self.about(passing, &package, body)?,
            Asked::Digest(ending) => self.digest(passing, ending, head, body),
            _ => body,
        };
        tidy(&mut head.headers);
        Ok(Some(made))
    }

    async fn index_of(
        &self,
        passing: &Passing,
        (place, package): (&Place, &Package),
        head: &mut response::Parts,
        body: Bytes,
    ) -> Result<Bytes, Stop> {
        let unreadable = |err: Unreadable| Stop::Failed(err.to_string());
        match package.kind {
            RegistryKind::Go => self.by_asking(passing, place, package, body).await,
            RegistryKind::Maven => {
                let made = self.by_asking(passing, place, package, body.clone()).await?;
                self.note_digests(passing, &body, &made);
                Ok(made)
            }
            RegistryKind::Pypi if !is_json(&head.headers) => Ok(body),
            kind => {
                let rewritten = self.rewritten(package, body).await.map_err(unreadable)?;
                self.learned(passing, package, &rewritten.told)?;
                if kind == RegistryKind::Pypi && self.reads_html(&passing.path) {
                    head.headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(pypi::HTML));
                    return pypi::html(&rewritten.body).map(Bytes::from).map_err(unreadable);
                }
                Ok(Bytes::from(rewritten.body))
            }
        }
    }

    /// A document that tells times; large ones are read beside the keeper's thread.
    async fn rewritten(&self, package: &Package, body: Bytes) -> Result<Rewritten, Unreadable> {
        let (rules, package, now) = (self.settings().rules.clone(), package.clone(), (self.now)());
        let is_small = body.len() <= SMALL;
        let work = move || rewrite(&rules, &package, &body, now);
        match is_small {
            true => work(),
            false => {
                tokio::task::spawn_blocking(work).await.unwrap_or(Err(Unreadable("whoever reads it failed")))
            }
        }
    }

    /// Remembers what an index told, and records what was hidden of it. An index with nothing left is refused.
    fn learned(&self, passing: &Passing, package: &Package, told: &Told) -> Result<(), Stop> {
        let known = told.iter().filter_map(|(version, since)| Some((version.clone(), (*since)?)));
        self.times.borrow_mut().learn(package, known);
        let (settings, now) = (self.settings(), (self.now)());
        let gone = to_hide(&settings.rules, package, told, now);
        let Some((first, since)) = told.iter().find(|(version, _)| gone.contains(version)) else {
            return Ok(());
        };
        let Err(refused) = settings.rules.judge(package, first, *since, now) else { return Ok(()) };
        if gone.len() == told.len() {
            return self.refuse(passing, &refused);
        }
        self.note_hidden(passing, package, told, &gone);
        Ok(())
    }

    /// Go's `.info` and `@latest`.
    fn about(&self, passing: &Passing, package: &Package, body: Bytes) -> Result<Bytes, Stop> {
        let (version, since) = index::go_info(&body).map_err(|err| Stop::Failed(err.to_string()))?;
        if let Some(since) = since {
            self.times.borrow_mut().learn_one(package, &version, since);
        }
        let judged = self.settings().rules.judge(package, &version, since, (self.now)());
        judged.or_else(|refused| self.refuse(passing, &refused))?;
        Ok(body)
    }

    /// The digest of an index that was written anew. One that nobody makes here is not there.
    fn digest(&self, passing: &Passing, ending: &str, head: &mut response::Parts, body: Bytes) -> Bytes {
        let Some(digests) = self.digests_for(passing, ending) else { return body };
        match digests.into_iter().find(|(own, _)| *own == ending) {
            Some((_, digest)) => Bytes::from(digest),
            None => {
                head.status = http::StatusCode::NOT_FOUND;
                Bytes::new()
            }
        }
    }

    /// An index without times: of the greatest versions each is asked for. The others are judged when they are fetched.
    async fn by_asking(
        &self,
        passing: &Passing,
        place: &Place,
        package: &Package,
        body: Bytes,
    ) -> Result<Bytes, Stop> {
        let unreadable = |err: Unreadable| Stop::Failed(err.to_string());
        let is_go = package.kind == RegistryKind::Go;
        let text = std::str::from_utf8(&body).map_err(|_| Stop::Failed("the index is not UTF-8".into()))?;
        let mut versions =
            if is_go { index::go_versions(&body) } else { maven::versions(text) }.map_err(unreadable)?;
        let (settings, now) = (self.settings(), (self.now)());
        let is_settled = maven::last_updated(text).is_some_and(|updated| settings.rules.is_old(updated, now));
        if !is_go && is_settled {
            return Ok(body);
        }
        if is_go {
            versions.sort_by(|a, b| semver::compare(a, b));
        }
        let mut told = Told::new();
        for version in versions.iter().rev().take(MOST_ASKED) {
            let since = match settings.rules.decided(package, version) {
                Some(_) => None,
                None => self.look_up(place, package, version).await,
            };
            told.push((version.clone(), since));
        }
        let rules = &settings.rules;
        let gone: HashSet<String> = told
            .iter()
            .filter(|(version, since)| rules.judge(package, version, *since, now).is_err())
            .map(|(version, _)| version.clone())
            .collect();
        self.note_hidden(passing, package, &told, &gone);
        match is_go {
            true => Ok(Bytes::from(index::go_list(&versions, &gone))),
            false => maven::without(text, &gone).map(Bytes::from).map_err(unreadable),
        }
    }

    /// Records what was hidden of an index.
    fn note_hidden(&self, passing: &Passing, package: &Package, told: &Told, gone: &HashSet<String>) {
        let (settings, now) = (self.settings(), (self.now)());
        let away: Vec<(String, Since)> =
            told.iter().filter(|(version, _)| gone.contains(version)).cloned().collect();
        let Some((first, since)) = away.first() else { return };
        let Err(refused) = settings.rules.judge(package, first, *since, now) else { return };
        let detail = hidden(package, &away, now);
        let cause = Cause { reason: Reason::Package, rule: Some(&refused.rule), detail: &detail, hint: "" };
        self.gate.note_kept_back(stopped(passing), &cause);
    }

    /// Since when a version is public, as its registry tells the keeper.
    async fn look_up(&self, place: &Place, package: &Package, version: &str) -> Since {
        let known = self.times.borrow().since(package, version);
        if known.is_some() {
            return known;
        }
        let ask = question(place, package, version)?;
        let fetched = tokio::time::timeout(PATIENCE, self.lookup.ask(ask)).await.ok()??;
        if fetched.status != 200 {
            return None;
        }
        let told = told(package, version, &fetched.headers, &fetched.body);
        let known: HashMap<String, u64> =
            told.into_iter().filter_map(|(version, since)| Some((version, since?))).collect();
        let since = known.get(version).copied();
        match package.kind {
            RegistryKind::Go | RegistryKind::Maven => {
                if let Some(since) = since {
                    self.times.borrow_mut().learn_one(package, version, since);
                }
            }
            _ => self.times.borrow_mut().learn(package, known.into_iter()),
        }
        since
    }
}

/// What is asked to learn the age of a version.
fn question(place: &Place, package: &Package, version: &str) -> Option<Ask> {
    let base = &place.base;
    let name = &package.name;
    let ask = |method: Method, path: String, accept: &'static str| Ask {
        place: place.clone(),
        method,
        path,
        accept,
        most: MOST_INDEX,
    };
    Some(match package.kind {
        RegistryKind::Npm => {
            ask(Method::GET, format!("{base}/{}", name.replace('/', "%2f")), "application/json")
        }
        RegistryKind::Pypi => ask(Method::GET, format!("{base}/{name}/"), pypi::JSON),
        RegistryKind::Crates => ask(Method::GET, format!("{base}/{}", crate_path(name)?), "*/*"),
        RegistryKind::Go => ask(Method::GET, format!("{base}/{name}/@v/{version}.info"), "*/*"),
        RegistryKind::Maven => {
            let (group, artifact) = name.split_once(':')?;
            let group = group.replace('.', "/");
            let path = format!("{base}/{group}/{artifact}/{version}/{artifact}-{version}.pom");
            ask(Method::HEAD, path, "*/*")
        }
    })
}

/// Where cargo's index has a crate.
fn crate_path(name: &str) -> Option<String> {
    Some(match name.len() {
        0 => return None,
        1 => format!("1/{name}"),
        2 => format!("2/{name}"),
        3 => format!("3/{}/{name}", name.get(..1)?),
        _ => format!("{}/{}/{name}", name.get(..2)?, name.get(2..4)?),
    })
}

/// What an answer to a [`question`] tells.
fn told(package: &Package, version: &str, headers: &HeaderMap, body: &[u8]) -> Told {
    let nothing: Hide<'_> = &|_| HashSet::new();
    let read = match package.kind {
        RegistryKind::Npm => npm::rewrite(body, nothing).map(|read| read.told),
        RegistryKind::Pypi => pypi::rewrite(body, nothing).map(|read| read.told),
        RegistryKind::Crates => index::crates(body, nothing).map(|read| read.told),
        RegistryKind::Go => index::go_info(body).map(|(version, since)| vec![(version, since)]),
        RegistryKind::Maven => Ok(vec![(version.to_owned(), last_modified(headers))]),
    };
    read.unwrap_or_default()
}

/// An index that tells times, without what may not be fetched.
fn rewrite(rules: &Rules, package: &Package, body: &[u8], now: u64) -> Result<Rewritten, Unreadable> {
    let hide: Hide<'_> = &|told| to_hide(rules, package, told, now);
    match package.kind {
        RegistryKind::Npm => npm::rewrite(body, hide),
        RegistryKind::Pypi => pypi::rewrite(body, hide),
        _ => index::crates(body, hide),
    }
}

/// What may not be fetched. Where an index tells no time at all, only what lists deny: each artefact has to tell its own.
fn to_hide(rules: &Rules, package: &Package, told: &Told, now: u64) -> HashSet<String> {
    let is_silent = told.iter().all(|(_, since)| since.is_none());
    let is_hidden = |version: &str, since: Since| match (is_silent, rules.decided(package, version)) {
        (true, decided) => decided.is_some_and(|decided| decided.is_err()),
        (false, _) => rules.judge(package, version, since, now).is_err(),
    };
    let hidden = told.iter().filter(|(version, since)| is_hidden(version, *since));
    hidden.map(|(version, _)| version.clone()).collect()
}

fn last_modified(headers: &HeaderMap) -> Since {
    http_date(headers.get(header::LAST_MODIFIED)?.to_str().ok()?)
}

fn is_json(headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    kind.to_ascii_lowercase().split(';').next().is_some_and(|kind| kind.trim().ends_with("json"))
}

/// The body as it is without `content-encoding`.
fn decoded(headers: &HeaderMap, body: Bytes) -> Result<Bytes, Stop> {
    let encoding = headers.get(header::CONTENT_ENCODING).and_then(|encoding| encoding.to_str().ok());
    match encoding.unwrap_or("identity").trim().to_ascii_lowercase().as_str() {
        "identity" | "" => Ok(body),
        "gzip" | "x-gzip" => gunzip(&body, MOST_DECODED).map(Bytes::from).map_err(Stop::Failed),
        other => Err(Stop::Failed(format!("the registry's index comes as {other:.20}, which is not read"))),
    }
}

/// Bounded: what becomes too long is refused.
pub(super) fn gunzip(body: &[u8], most: u64) -> Result<Vec<u8>, String> {
    let mut plain = Vec::new();
    let mut reader = flate2::read::MultiGzDecoder::new(body).take(most + 1);
    reader.read_to_end(&mut plain).map_err(|_| "the registry's index is not gzip".to_owned())?;
    match u64::try_from(plain.len()).is_ok_and(|length| length <= most) {
        true => Ok(plain),
        false => Err(format!("the registry's index is longer than {} MB", most >> 20)),
    }
}

/// The headers of a document that is no longer the registry's own.
fn tidy(headers: &mut HeaderMap) {
    for name in [
        header::CONTENT_ENCODING,
        header::ETAG,
        header::LAST_MODIFIED,
        header::ACCEPT_RANGES,
        header::EXPIRES,
        header::AGE,
    ] {
        headers.remove(name);
    }
    for name in ["content-md5", "digest", "repr-digest", "content-digest"] {
        headers.remove(name);
    }
    // What is hidden today may be shown tomorrow.
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
}
