//! How images come here: `[images]` in `config.toml`.
//!
//! ```toml
//! [images]
//! registry = "registry.example"              # what short names are of
//! insecure = ["localhost:5000"]              # spoken to without TLS
//! ca = "registry-ca.pem"                     # trusted for registries, besides what this host trusts
//!
//! [[images.verify]]
//! repository = "registry.example/team/*"
//! key = ["team.pub", "old-team.pub"]         # one of them must have signed
//! signatures = "signatures.jsonl"            # for images without their registry
//! ```

use super::reader::Value;
use crate::failure::Failure;
use airlock_images::{
    reference::Reference,
    registry::verify::{self, Demand, Key, Pattern, Policy},
};
use std::path::{Path, PathBuf};

/// The keys of the table.
pub(crate) const KEYS: [&str; 4] = ["registry", "insecure", "ca", "verify"];
/// Those of a demand.
const VERIFY: [&str; 3] = ["repository", "key", "signatures"];
/// Longest file of a key.
const LONGEST_KEY: u64 = 64 << 10;

/// What is in `[images]`.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Images {
    /// The registry of short names.
    pub(crate) registry: Option<String>,
    pub(crate) insecure: Vec<String>,
    pub(crate) ca: Option<PathBuf>,
    demands: Vec<Written>,
}

/// A demand as it is written; its files are read when it counts.
#[derive(Debug, Clone, PartialEq)]
struct Written {
    repository: Pattern,
    keys: Vec<PathBuf>,
    signatures: Option<PathBuf>,
}

impl Images {
    /// Takes in one key; relative paths are meant from `folder`.
    pub(crate) fn set(&mut self, value: &Value<'_, '_>, folder: &Path) -> Result<(), Failure> {
        match value.key() {
            "registry" => self.registry = Some(value.parsed(registry)?),
            "insecure" => self.insecure = value.each(registry)?,
            "ca" => self.ca = Some(value.parsed(|text| Ok(folder.join(text)))?),
            "verify" => {
                for (item, table) in value.tables()? {
                    let mut parts = Parts::default();
                    for entry in item.entries(table) {
                        parts.set(&entry, folder)?;
                    }
                    let lacks = |what: &str| item.wrong(format!("a table of [[images.verify]] has a {what}"));
                    self.demands.push(Written {
                        repository: parts.repository.ok_or_else(|| lacks("repository"))?,
                        keys: if parts.keys.is_empty() { return Err(lacks("key")) } else { parts.keys },
                        signatures: parts.signatures,
                    });
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// What is demanded, with its keys. A key that cannot be read is an error: nothing would be checked otherwise.
    pub(crate) fn policy(&self) -> Result<Policy, Failure> {
        let mut demands = Vec::new();
        for written in &self.demands {
            let signatures = match &written.signatures {
                None => Vec::new(),
                Some(path) => verify::read_file(path).map_err(|err| {
                    Failure::because(format!("could not read the signatures in {}", path.display()), &err)
                        .code(2)
                        .fix("correct signatures under [[images.verify]] in config.toml")
                })?,
            };
            demands.push(Demand {
                repository: written.repository.clone(),
                keys: written.keys.iter().map(|path| key(path)).collect::<Result<_, _>>()?,
                signatures,
            });
        }
        Ok(Policy { demands })
    }
}

#[derive(Default)]
struct Parts {
    repository: Option<Pattern>,
    keys: Vec<PathBuf>,
    signatures: Option<PathBuf>,
}

impl Parts {
    fn set(&mut self, value: &Value<'_, '_>, folder: &Path) -> Result<(), Failure> {
        let path = |text: &str| Ok(folder.join(text));
        match value.key() {
            "repository" => self.repository = Some(value.parsed(str::parse)?),
            "key" => self.keys = value.each(path)?,
            "signatures" => self.signatures = Some(value.parsed(path)?),
            _ => return Err(value.unknown(&VERIFY)),
        }
        Ok(())
    }
}

fn key(path: &Path) -> Result<Key, Failure> {
    let failed = |err: &dyn std::error::Error| {
        Failure::because(format!("could not read the key {}", path.display()), err)
            .code(2)
            .fix("correct key under [[images.verify]] in config.toml: a public key of ECDSA P-256 in PEM")
    };
    let length = std::fs::metadata(path).map_err(|err| failed(&err))?.len();
    if length > LONGEST_KEY {
        return Err(failed(&verify::BadKey::Pem));
    }
    let text = std::fs::read_to_string(path).map_err(|err| failed(&err))?;
    Key::from_pem(&text).map_err(|err| failed(&err))
}

/// `HOST[:PORT]`, as names of images have it.
fn registry(text: &str) -> Result<String, String> {
    let wrong = || format!("{text:?} is no registry: write HOST or HOST:PORT");
    let reference: Reference = format!("{text}/x").parse().map_err(|_| wrong())?;
    match reference.registry {
        Some(registry) if registry == text => Ok(registry),
        _ => Err(wrong()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{own, reader::Source};

    fn parsed(text: &str) -> Result<Images, Failure> {
        own::parse(Source { name: "config.toml", text }, Path::new("/h")).map(|own| own.images)
    }

    #[test]
    fn every_setting_arrives() {
        let text = "\
[images]
registry = \"registry.example\"
insecure = [\"localhost:5000\"]
ca = \"ca.pem\"
[[images.verify]]
repository = \"registry.example/team/*\"
key = \"team.pub\"
[[images.verify]]
repository = \"*\"
key = [\"/a.pub\", \"b.pub\"]
signatures = \"s\"
";
        let images = parsed(text).unwrap();
        assert_eq!(images.registry.as_deref(), Some("registry.example"));
        assert_eq!((images.insecure, images.ca), (vec!["localhost:5000".into()], Some("/h/ca.pem".into())));
        let expected = [
            Written {
                repository: "registry.example/team/*".parse().unwrap(),
                keys: vec!["/h/team.pub".into()],
                signatures: None,
            },
            Written {
                repository: "*".parse().unwrap(),
                keys: vec!["/a.pub".into(), "/h/b.pub".into()],
                signatures: Some("/h/s".into()),
            },
        ];
        assert_eq!(images.demands, expected);
    }

    #[test]
    fn what_cannot_be_meant_is_refused_with_its_place() {
        for (text, words) in [
            ("[images]\nregistry = \"https://x\"\n", "config.toml:2:12: \"https://x\" is no registry"),
            ("[images]\nregistri = \"x\"\n", "config.toml:2:1: there is no setting \"registri\" here"),
            ("[[images.verify]]\nkey = \"k\"\n", "a table of [[images.verify]] has a repository"),
            ("[[images.verify]]\nrepository = \"r.example/a\"\n", "has a key"),
            ("[[images.verify]]\nrepository = \"a:1\"\nkey = \"k\"\n", "names no repositories"),
            ("[images]\nverify = 1\n", "verify is a list of tables"),
        ] {
            let failure = parsed(text).unwrap_err();
            assert!(failure.what.contains(words), "{failure}");
            assert_eq!(failure.code, 2);
        }
    }

    #[test]
    fn a_key_that_is_not_there_is_no_policy() {
        let text = "[[images.verify]]\nrepository = \"*\"\nkey = \"/no/such/key\"\n";
        let failure = parsed(text).unwrap().policy().unwrap_err();
        assert!(failure.what.contains("/no/such/key"), "{failure}");
    }
}
