//! Snapshots as one file: an OCI layout whose layers are the parts of a disk.

pub mod export;
pub mod import;

use airlock_protocol::Name;
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, path::PathBuf};

/// Where a layer says which part of a disk it is.
const PART: &str = "airlock.part";
/// Where a layer says at which path inside its part stands.
const AT: &str = "airlock.at";
/// Where the manifest has the rest.
const SANDBOX: &str = "airlock.sandbox";
const MANIFEST_TYPE: &str = "application/vnd.oci.image.manifest.v1+json";
const CONFIG_TYPE: &str = "application/vnd.oci.image.config.v1+json";
const LAYER_TYPE: &str = "application/vnd.oci.image.layer.v1.tar+zstd";
/// The form that is written, and the newest that is read.
const VERSION: u32 = 1;

/// What of a sandbox travels besides its files: nothing that says what it may reach, see or have.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Portable {
    version: u32,
    name: Name,
    command: Vec<String>,
    workdir: PathBuf,
    user: String,
    #[serde(default)]
    read_only: bool,
    /// Where its project was.
    #[serde(default)]
    workspace: Option<PathBuf>,
    /// The image that it goes on from, which does not travel along.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    image: Option<Origin>,
}

/// An image, as somebody else may have it too.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Origin {
    id: String,
    name: String,
    /// Its volumes, whose content is a part of the disk.
    #[serde(default)]
    volumes: Vec<PathBuf>,
}

/// Points at a blob.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Descriptor {
    media_type: String,
    digest: String,
    size: u64,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    annotations: BTreeMap<String, String>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Index {
    schema_version: u32,
    manifests: Vec<Descriptor>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Manifest {
    schema_version: u32,
    media_type: String,
    config: Descriptor,
    layers: Vec<Descriptor>,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
}

impl Descriptor {
    /// The digits of its digest, if it is one we know.
    fn digits(&self) -> Option<&str> {
        let digits = self.digest.strip_prefix("sha256:")?;
        let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        (digits.len() == 64 && digits.bytes().all(is_digit)).then_some(digits)
    }
}

/// Whether a text is the name of a part of a disk.
fn is_part(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    match name {
        "root" | "workspace/upper" => true,
        name => {
            (name.starts_with("upper-") || name.starts_with("own-"))
                && name.len() <= 200
                && name.bytes().all(plain)
        }
    }
}

/// Where a part of a disk stands inside, without a leading slash.
fn place_of(part: &str, workspace: Option<&std::path::Path>) -> Option<String> {
    match part {
        "root" => Some(String::new()),
        "workspace/upper" => Some(workspace?.to_str()?.trim_start_matches('/').to_owned()),
        part => {
            let place = part.strip_prefix("upper-").or_else(|| part.strip_prefix("own-"))?;
            Some(place.replace('-', "/"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_never_a_path() {
        for good in ["root", "workspace/upper", "upper-usr", "own-var-tmp"] {
            assert!(is_part(good), "{good}");
        }
        for bad in ["", "work-root", "upper-../x", "upper-a/b", "..", "/root", "own-\0", "workspace"] {
            assert!(!is_part(bad), "{bad}");
        }
    }

    #[test]
    fn a_digest_is_sixty_four_digits() {
        let told = |digest: String| Descriptor {
            media_type: String::new(),
            digest,
            size: 0,
            annotations: BTreeMap::new(),
        };
        assert!(told(format!("sha256:{}", "a0".repeat(32))).digits().is_some());
        for bad in ["", "sha256:", "sha512:aa", "sha256:../../x"] {
            assert_eq!(told(bad.to_owned()).digits(), None, "{bad}");
        }
        assert_eq!(told(format!("sha256:{}", "A0".repeat(32))).digits(), None);
    }
}
