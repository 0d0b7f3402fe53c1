//! Secrets of a build: where each is from. Values are read when a step needs them, and are kept in memory only.

use crate::failure::Failure;
use std::{collections::BTreeMap, path::PathBuf};

/// Longest secret.
const LONGEST: usize = 500 << 10;

/// Where a secret is from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Source {
    /// A file of this host.
    File(PathBuf),
    /// A variable of this command.
    Variable(String),
}

/// Reads `id=ID[,src=FILE|,env=NAME]`, one each.
pub(super) fn parse(words: &[String]) -> Result<BTreeMap<String, Source>, Failure> {
    let mut found = BTreeMap::new();
    for word in words {
        let wrong = || {
            Failure::new(format!("--secret {word} makes no sense"))
                .code(2)
                .fix("--secret id=ID,src=FILE, or --secret id=ID,env=NAME")
        };
        let (mut id, mut source) = (None, None);
        for pair in word.split(',') {
            match pair.split_once('=').ok_or_else(wrong)? {
                ("id", value) => id = Some(value.to_owned()),
                ("src" | "source", value) => source = Some(Source::File(value.into())),
                ("env", value) => source = Some(Source::Variable(value.to_owned())),
                ("type", "file") => {}
                ("type", "env") => source = source.or(id.clone().map(Source::Variable)),
                _ => return Err(wrong()),
            }
        }
        let id = id.filter(|id| !id.is_empty()).ok_or_else(wrong)?;
        let is_set = std::env::var_os(&id).is_some();
        let fallback = if is_set { Source::Variable(id.clone()) } else { Source::File(PathBuf::from(&id)) };
        found.insert(id, source.unwrap_or(fallback));
    }
    Ok(found)
}

impl Source {
    /// The value.
    pub(super) fn value(&self, id: &str) -> Result<Vec<u8>, Failure> {
        let fail = |why: String| Failure::new(format!("secret {id} cannot be had")).why(why);
        let value = match self {
            Self::File(path) => {
                std::fs::read(path).map_err(|err| fail(format!("{}: {err}", path.display())))?
            }
            Self::Variable(name) => {
                let value = std::env::var_os(name).ok_or_else(|| fail(format!("{name} is not set")))?;
                std::os::unix::ffi::OsStringExt::into_vec(value)
            }
        };
        if value.len() > LONGEST {
            return Err(fail(format!("it has more than {LONGEST} bytes")));
        }
        Ok(value)
    }
}
