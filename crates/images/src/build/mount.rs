//! `RUN --mount=…`. Pure and total.

use super::words::{self, Values};

/// What a `RUN` sees besides its image, while it runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    /// What it is.
    pub kind: Kind,
    /// Where; as written, relative to the working directory.
    pub target: String,
}

/// Kinds of mounts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    /// A part of the context, a stage or an image.
    Bind {
        /// The stage or image; the context if there is none.
        from: Option<String>,
        /// Which path of it.
        source: String,
        /// Whether the command may write; what it writes is thrown away.
        writable: bool,
    },
    /// A directory that outlives the build and is in no layer.
    Cache {
        /// Its name: the target if none was given.
        id: String,
        /// Whether the command must not write.
        read_only: bool,
        /// Whether others may use it at the same time.
        sharing: Sharing,
        /// Mode and owner of a new one.
        mode: u32,
        /// Its user.
        uid: u32,
        /// Its group.
        gid: u32,
    },
    /// Memory, gone afterwards.
    Tmpfs {
        /// Most bytes.
        size: Option<u64>,
    },
    /// A secret as a file in memory, or as a variable.
    Secret {
        /// Which.
        id: String,
        /// The variable, if it is one.
        env: Option<String>,
        /// Whether the build fails without it.
        required: bool,
        /// Mode of the file.
        mode: u32,
        /// Its user.
        uid: u32,
        /// Its group.
        gid: u32,
    },
}

/// Who may use a cache directory at the same time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sharing {
    /// All.
    Shared,
    /// One after the other.
    Locked,
    /// Each its own.
    Private,
}

/// Why a mount cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Bad {
    /// An agent.
    #[error(
        "a mount of type ssh is not given: an agent signs whatever it is asked to, so a command that has it logs in anywhere as you"
    )]
    Agent,
    /// No such kind.
    #[error("a mount has a type of bind, cache, tmpfs or secret, not `{0}`")]
    Type(String),
    /// Not a key of this kind.
    #[error("a mount of type {0} has no key `{1}`, or not with that value")]
    Key(&'static str, String),
    /// A key is missing.
    #[error("a mount of type {0} needs `{1}`")]
    Missing(&'static str, &'static str),
    /// Variables.
    #[error(transparent)]
    Words(#[from] words::Bad),
}

/// The stage or image that a mount as written names, if that needs no variables.
pub fn from(text: &str) -> Option<&str> {
    text.split(',').find_map(|pair| pair.trim().strip_prefix("from="))
}

/// Reads a mount, such as `type=cache,target=/root/.cache`.
pub fn parse(text: &str, escape: char, values: Values<'_>) -> Result<Mount, Bad> {
    let mut pairs = Vec::new();
    for pair in text.split(',').map(str::trim).filter(|pair| !pair.is_empty()) {
        let (key, value) = pair.split_once('=').map_or((pair, None), |(key, value)| (key, Some(value)));
        let value = value.map(|value| words::expand(value, escape, values)).transpose()?;
        pairs.push((key.to_ascii_lowercase(), value));
    }
    let kind = take(&mut pairs, &["type"]).flatten().unwrap_or_else(|| "bind".to_owned());
    let target =
        take(&mut pairs, &["target", "dst", "destination"]).flatten().filter(|target| !target.is_empty());
    let (name, mount) = match kind.as_str() {
        "bind" => ("bind", bind(&mut pairs, target)?),
        "cache" => ("cache", cache(&mut pairs, target)?),
        "tmpfs" => ("tmpfs", tmpfs(&mut pairs, target)?),
        "secret" => ("secret", secret(&mut pairs, target)?),
        "ssh" => return Err(Bad::Agent),
        _ => return Err(Bad::Type(kind)),
    };
    match pairs.first() {
        Some((key, _)) => Err(Bad::Key(name, key.clone())),
        None => Ok(mount),
    }
}

type Pairs = Vec<(String, Option<String>)>;

fn take(pairs: &mut Pairs, names: &[&str]) -> Option<Option<String>> {
    let at = pairs.iter().position(|(key, _)| names.contains(&key.as_str()))?;
    Some(pairs.swap_remove(at).1)
}

fn truth(pairs: &mut Pairs, kind: &'static str, names: &[&str]) -> Result<Option<bool>, Bad> {
    match take(pairs, names) {
        None => Ok(None),
        Some(None) => Ok(Some(true)),
        Some(Some(value)) => match value.as_str() {
            "true" | "1" => Ok(Some(true)),
            "false" | "0" => Ok(Some(false)),
            _ => Err(Bad::Key(kind, names.first().copied().unwrap_or_default().to_owned())),
        },
    }
}

fn number(pairs: &mut Pairs, kind: &'static str, name: &str, radix: u32) -> Result<Option<u32>, Bad> {
    let Some(value) = take(pairs, &[name]) else { return Ok(None) };
    let read = value.as_deref().and_then(|value| u32::from_str_radix(value, radix).ok());
    read.map(Some).ok_or_else(|| Bad::Key(kind, name.to_owned()))
}

fn bind(pairs: &mut Pairs, target: Option<String>) -> Result<Mount, Bad> {
    let from = take(pairs, &["from"]).flatten();
    let source = take(pairs, &["source", "src"]).flatten().unwrap_or_else(|| "/".to_owned());
    let writable = truth(pairs, "bind", &["rw", "readwrite"])?;
    let read_only = truth(pairs, "bind", &["ro", "readonly"])?;
    let writable = writable.or(read_only.map(|read_only| !read_only)).unwrap_or(false);
    let target = target.ok_or(Bad::Missing("bind", "target"))?;
    Ok(Mount { kind: Kind::Bind { from, source, writable }, target })
}

fn cache(pairs: &mut Pairs, target: Option<String>) -> Result<Mount, Bad> {
    let target = target.ok_or(Bad::Missing("cache", "target"))?;
    let id = take(pairs, &["id"]).flatten().filter(|id| !id.is_empty()).unwrap_or_else(|| target.clone());
    let writable = truth(pairs, "cache", &["rw", "readwrite"])?;
    let read_only = truth(pairs, "cache", &["ro", "readonly"])?;
    let read_only = read_only.or(writable.map(|writable| !writable)).unwrap_or(false);
    let sharing = match take(pairs, &["sharing"]).flatten().as_deref() {
        None | Some("shared") => Sharing::Shared,
        Some("locked") => Sharing::Locked,
        Some("private") => Sharing::Private,
        Some(_) => return Err(Bad::Key("cache", "sharing".to_owned())),
    };
    if let Some((key, _)) = pairs.iter().find(|(key, _)| matches!(key.as_str(), "from" | "source" | "src")) {
        return Err(Bad::Key("cache", key.clone()));
    }
    let mode = number(pairs, "cache", "mode", 8)?.unwrap_or(0o755);
    let uid = number(pairs, "cache", "uid", 10)?.unwrap_or(0);
    let gid = number(pairs, "cache", "gid", 10)?.unwrap_or(0);
    Ok(Mount { kind: Kind::Cache { id, read_only, sharing, mode, uid, gid }, target })
}

fn tmpfs(pairs: &mut Pairs, target: Option<String>) -> Result<Mount, Bad> {
    let size = match take(pairs, &["size"]) {
        None => None,
        Some(value) => {
            Some(value.as_deref().and_then(bytes).ok_or_else(|| Bad::Key("tmpfs", "size".to_owned()))?)
        }
    };
    let target = target.ok_or(Bad::Missing("tmpfs", "target"))?;
    Ok(Mount { kind: Kind::Tmpfs { size }, target })
}

fn secret(pairs: &mut Pairs, target: Option<String>) -> Result<Mount, Bad> {
    let env = take(pairs, &["env"]).flatten();
    let id = take(pairs, &["id"]).flatten().filter(|id| !id.is_empty());
    let last = target.as_deref().and_then(|target| target.rsplit('/').next()).map(str::to_owned);
    let id = id.or(last).ok_or(Bad::Missing("secret", "id"))?;
    let required = truth(pairs, "secret", &["required"])?.unwrap_or(false);
    let mode = number(pairs, "secret", "mode", 8)?.unwrap_or(0o400);
    let uid = number(pairs, "secret", "uid", 10)?.unwrap_or(0);
    let gid = number(pairs, "secret", "gid", 10)?.unwrap_or(0);
    let target = target.unwrap_or_else(|| format!("/run/secrets/{id}"));
    Ok(Mount { kind: Kind::Secret { id, env, required, mode, uid, gid }, target })
}

/// Bytes, with k, m or g behind them.
fn bytes(text: &str) -> Option<u64> {
    let text = text.trim_end_matches(['b', 'B']);
    let digits = text.trim_end_matches(|char: char| char.is_ascii_alphabetic());
    let unit: u64 = match text.get(digits.len()..)?.to_ascii_lowercase().as_str() {
        "" => 1,
        "k" => 1 << 10,
        "m" => 1 << 20,
        "g" => 1 << 30,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(unit)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(text: &str) -> Result<Mount, Bad> {
        parse(text, '\\', &|name| (name == "x").then(|| "value".to_owned()))
    }

    #[test]
    fn a_cache_is_named_by_its_target() {
        let Mount { kind: Kind::Cache { id, mode, .. }, target } = read("type=cache,target=/c/$x").unwrap()
        else {
            panic!()
        };
        assert_eq!((id.as_str(), mode, target.as_str()), ("/c/value", 0o755, "/c/value"));
    }

    #[test]
    fn a_secret_has_a_place_of_its_own() {
        let mount = read("type=secret,id=token").unwrap();
        assert_eq!(mount.target, "/run/secrets/token");
        let kind =
            Kind::Secret { id: "token".to_owned(), env: None, required: false, mode: 0o400, uid: 0, gid: 0 };
        assert_eq!(mount.kind, kind);
    }

    #[test]
    fn a_mount_without_type_is_a_bind() {
        let mount = read("from=a,source=/s,target=/t,rw").unwrap();
        let kind = Kind::Bind { from: Some("a".to_owned()), source: "/s".to_owned(), writable: true };
        assert_eq!(mount.kind, kind);
        assert_eq!(from("type=bind,from=a,target=/t"), Some("a"));
    }

    #[test]
    fn what_a_mount_has_not_is_refused() {
        assert_eq!(read("type=ssh"), Err(Bad::Agent));
        assert_eq!(read("type=nfs"), Err(Bad::Type("nfs".to_owned())));
        assert_eq!(read("type=tmpfs,target=/t,id=a"), Err(Bad::Key("tmpfs", "id".to_owned())));
        assert_eq!(read("type=cache"), Err(Bad::Missing("cache", "target")));
        assert_eq!(read("type=tmpfs,target=/t,size=1x"), Err(Bad::Key("tmpfs", "size".to_owned())));
    }

    proptest! {
        #[test]
        fn any_text_is_a_mount_or_not(text in "(type=(bind|cache|tmpfs|secret),)?[a-z=,$/{}]{0,40}") {
            let _ = read(&text);
        }
    }
}
