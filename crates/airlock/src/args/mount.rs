//! What `--mount` shows: a path of the host as it is, or files that the keeper serves. Pure.

use super::values;
use airlock_protocol::{
    files::{Provided, Provider},
    spec::Mount,
};
use std::path::{Path, PathBuf};

/// What `--mount` shows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum MountWord {
    /// A path of the host, as it is.
    Bind(Mount),
    /// Files that the keeper serves.
    Provided(Provided),
}

impl MountWord {
    /// Paths of the host in it.
    pub(crate) fn sources(&mut self) -> Vec<&mut PathBuf> {
        match self {
            MountWord::Bind(mount) => vec![&mut mount.source],
            MountWord::Provided(provided) => sources(&mut provided.provider),
        }
    }

    /// Paths of the host that programs inside may write.
    pub(crate) fn writable(&self) -> Vec<PathBuf> {
        match self {
            MountWord::Bind(mount) if mount.read_only => Vec::new(),
            MountWord::Bind(mount) => vec![mount.source.clone()],
            MountWord::Provided(provided) => match &provided.provider {
                Provider::Readonly { .. } => Vec::new(),
                written => sources(&mut written.clone()).into_iter().map(|path| path.clone()).collect(),
            },
        }
    }
}

fn sources(provider: &mut Provider) -> Vec<&mut PathBuf> {
    match provider {
        Provider::Memory { .. } => Vec::new(),
        Provider::Real { source } => vec![source],
        Provider::Readonly { of } => sources(of),
        Provider::Overlay { lower, upper } => sources(lower).into_iter().chain(sources(upper)).collect(),
        Provider::Router { routes } => {
            routes.iter_mut().flat_map(|route| sources(&mut route.provider)).collect()
        }
    }
}

/// `SRC:DST[:ro]`, or `type=…,dst=…` and what else that type has.
pub(crate) fn mount_word(text: &str) -> Result<MountWord, String> {
    match text.starts_with("type=") {
        true => provided(text).map(MountWord::Provided),
        false => values::mount(text).map(MountWord::Bind),
    }
}

fn provided(text: &str) -> Result<Provided, String> {
    let mut pairs = std::collections::BTreeMap::new();
    for part in text.split(',') {
        let Some((key, value)) = part.split_once('=') else {
            return Err(format!("{part:?} is not KEY=VALUE"));
        };
        let key = match key {
            "src" | "source" => "src",
            "dst" | "target" => "dst",
            known @ ("type" | "size" | "lower" | "upper") => known,
            other => return Err(format!("{other:?} is none of type, src, dst, size, lower, upper")),
        };
        if pairs.insert(key, value).is_some() {
            return Err(format!("{key} is there twice"));
        }
    }
    let target = values::inside(pairs.remove("dst").ok_or("dst= is missing: where inside?")?)?;
    let kind = pairs.remove("type").unwrap_or_default();
    let bytes = pairs.remove("size").map(values::size).transpose()?;
    let mut path = |key: &str| {
        let value = pairs.remove(key).filter(|value| !value.is_empty());
        value.ok_or_else(|| format!("{key}= is missing: which directory?"))
    };
    let provider = match kind {
        "memory" => Provider::Memory { size: bytes },
        "real" => real(path("src")?)?,
        "readonly" => Provider::Readonly { of: Box::new(real(path("src")?)?) },
        "overlay" => Provider::Overlay {
            lower: Box::new(part_of_overlay(path("lower")?, bytes)?),
            upper: Box::new(part_of_overlay(path("upper")?, bytes)?),
        },
        other => return Err(format!("{other:?} is none of memory, real, readonly, overlay")),
    };
    match (pairs.keys().next(), kind, bytes) {
        (Some(key), _, _) => Err(format!("{kind} has no {key}")),
        (None, "real" | "readonly", Some(_)) => Err(format!("{kind} has no size")),
        _ => Ok(Provided { target, provider, hooks: Vec::new() }),
    }
}

fn real(path: &str) -> Result<Provider, String> {
    let source = std::path::absolute(path).map_err(|err| err.to_string())?;
    Ok(Provider::Real { source })
}

/// A directory, or `memory`.
fn part_of_overlay(text: &str, size: Option<u64>) -> Result<Provider, String> {
    match text {
        "memory" => Ok(Provider::Memory { size }),
        path => real(path),
    }
}

/// A place inside that was read elsewhere, checked.
pub(crate) fn inside_path(target: &Path) -> Result<PathBuf, String> {
    values::inside(target.to_str().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_with_a_type_is_served() {
        let MountWord::Provided(served) =
            mount_word("type=overlay,lower=/a,upper=memory,size=1M,dst=/o").unwrap()
        else {
            panic!("not served")
        };
        let lower = Box::new(Provider::Real { source: "/a".into() });
        let upper = Box::new(Provider::Memory { size: Some(1 << 20) });
        assert_eq!(served.provider, Provider::Overlay { lower, upper });
        assert_eq!(served.target, Path::new("/o"));
        for bad in [
            "type=memory",
            "type=real,dst=/a",
            "type=nothing,dst=/a",
            "type=memory,dst=/a,src=/b",
            "type=real,src=/b,dst=/a,size=1M",
            "type=memory,dst=/a,dst=/b",
            "type=memory,dst=a",
        ] {
            assert!(mount_word(bad).is_err(), "{bad}");
        }
    }
}
