//! Files that were deleted at one path and are new, with the same content, at another.
//!
//! Only how a change is shown depends on it: to apply, it is a new file and a deleted one.

use super::{
    change::{Change, Kind, Seen},
    content::fill,
    tree::Tree,
};
use std::{
    collections::{HashMap, HashSet, hash_map::RandomState},
    fs::File,
    hash::{BuildHasher as _, Hasher as _},
    path::PathBuf,
};

/// Larger files are not compared.
const LARGEST: u64 = 32 << 20;
/// Most files that are read to find renames.
const MOST_READ: usize = 100_000;

/// What tells two contents apart. The keys are random, so that nobody can make two that look alike.
type Print = (u64, u64, u64);

/// Marks the pairs.
pub(super) fn find(tree: &Tree, list: &mut [Change]) {
    let keys = [RandomState::new(), RandomState::new()];
    let candidate = |seen: &Seen| seen.kind == Kind::File && seen.size > 0 && seen.size <= LARGEST;
    let added: Vec<(usize, &Seen)> = pick(list, |change| match (&change.was, &change.is) {
        (None, Some(is)) if candidate(is) => Some(is),
        _ => None,
    });
    let deleted: Vec<(usize, &Seen)> = pick(list, |change| match (&change.was, &change.is) {
        (Some(was), None) if candidate(was) => Some(was),
        _ => None,
    });
    let sizes: HashSet<u64> = added.iter().map(|(_, seen)| seen.size).collect();
    let mut gone: HashMap<Print, Vec<usize>> = HashMap::new();
    for (index, seen) in deleted.iter().rev().filter(|(_, seen)| sizes.contains(&seen.size)).take(MOST_READ) {
        let Some(change) = list.get(*index) else { continue };
        if let Some(print) = tree.open_host(&change.path).ok().and_then(|file| print(file, seen.size, &keys))
        {
            gone.entry(print).or_default().push(*index);
        }
    }
    let sizes: HashSet<u64> = gone.keys().map(|(size, ..)| *size).collect();
    let mut pairs = Vec::new();
    for (index, seen) in added.iter().filter(|(_, seen)| sizes.contains(&seen.size)).take(MOST_READ) {
        let Some(change) = list.get(*index) else { continue };
        let file = tree.open_inside(&change.path, seen).ok();
        let from =
            file.and_then(|file| print(file, seen.size, &keys)).and_then(|print| gone.get_mut(&print)?.pop());
        pairs.extend(from.map(|from| (from, *index)));
    }
    for (from, to) in pairs {
        mark(list, from, to);
    }
}

fn pick(list: &[Change], pick: impl Fn(&Change) -> Option<&Seen>) -> Vec<(usize, &Seen)> {
    list.iter().enumerate().filter_map(|(index, change)| Some((index, pick(change)?))).collect()
}

fn mark(list: &mut [Change], from: usize, to: usize) {
    let path = |list: &[Change], index: usize| -> PathBuf {
        list.get(index).map(|change| change.path.clone()).unwrap_or_default()
    };
    let (source, target) = (path(list, from), path(list, to));
    if let Some(change) = list.get_mut(from) {
        change.renamed_to = Some(target);
    }
    if let Some(change) = list.get_mut(to) {
        change.renamed_from = Some(source);
    }
}

/// `None` if the file cannot be read, or is no longer what it was.
fn print(mut file: File, size: u64, keys: &[RandomState; 2]) -> Option<Print> {
    let [mut one, mut other] = [0, 1].map(|at: usize| keys.get(at).map(|key| key.build_hasher()));
    let mut buffer = vec![0u8; 64 << 10];
    let mut length = 0u64;
    loop {
        let block = fill(&mut file, &mut buffer).ok()?;
        if block.is_empty() {
            break;
        }
        length += u64::try_from(block.len()).ok()?;
        if length > size {
            return None;
        }
        one.as_mut()?.write(block);
        other.as_mut()?.write(block);
    }
    (length == size).then_some((size, one?.finish(), other?.finish()))
}
