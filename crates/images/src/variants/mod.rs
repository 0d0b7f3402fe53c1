//! Images that are made of Debian's packages, for those who have no registry: recipes as data, and the scripts that make a root
//! file system of packages.
//!
//! The host's own package client resolves, downloads and verifies, and says in which order packages are unpacked and
//! set up ([`order`]). Two scripts do that, each in a sandbox: [`script::bootstrap`] lays out the essential packages, and
//! [`script::configure`] runs in what came out.

pub mod order;
pub mod script;

use serde::Deserialize;
use thiserror::Error;

/// An image that can be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recipe {
    /// What a person calls it.
    pub name: String,
    /// What is in it, in a few words.
    pub about: String,
    /// Packages by name; what they depend on comes along.
    pub packages: Vec<String>,
    /// What runs in it where nothing else is said.
    pub command: Vec<String>,
    /// About so many bytes are downloaded; 0 where nobody counted.
    pub download: u64,
    /// About so many bytes it has; 0 where nobody counted.
    pub unpacked: u64,
}

/// What a file says.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Said {
    about: String,
    #[serde(default)]
    extends: Option<String>,
    packages: Vec<String>,
    #[serde(default)]
    command: Vec<String>,
    #[serde(default)]
    download: u64,
    #[serde(default)]
    unpacked: u64,
}

/// Why a recipe cannot be taken.
#[derive(Debug, Error)]
pub enum Error {
    /// There is none of this name.
    #[error("there is no variant {name:?}: there are {}", NAMES.join(", "))]
    Unknown {
        /// The name.
        name: String,
    },
    /// The text makes no sense.
    #[error("the recipe {name} makes no sense")]
    Text {
        /// The name.
        name: String,
        /// Where and why.
        #[source]
        source: toml::de::Error,
    },
    /// A word that is no package's name.
    #[error("{word:?} is not the name of a package")]
    Package {
        /// The word.
        word: String,
    },
}

/// The variants that come along, smaller ones first.
pub const NAMES: [&str; 3] = ["minimal", "standard", "full"];
const TEXTS: [&str; 3] = [
    include_str!("../../variants/minimal.toml"),
    include_str!("../../variants/standard.toml"),
    include_str!("../../variants/full.toml"),
];

/// A variant that comes along.
pub fn find(name: &str) -> Result<Recipe, Error> {
    let at = NAMES.iter().position(|known| *known == name);
    let text = at.and_then(|at| TEXTS.get(at)).ok_or_else(|| Error::Unknown { name: name.to_owned() })?;
    read(name, text)
}

/// A recipe of a person's own. It may extend one of those that come along, and nothing else.
pub fn read(name: &str, text: &str) -> Result<Recipe, Error> {
    let said: Said = toml::from_str(text).map_err(|source| Error::Text { name: name.to_owned(), source })?;
    let mut packages = match &said.extends {
        // Variants extend smaller ones only.
        Some(base) if base != name => find(base)?.packages,
        Some(base) => return Err(Error::Unknown { name: base.clone() }),
        None => Vec::new(),
    };
    packages.extend(said.packages);
    packages.sort();
    packages.dedup();
    if let Some(word) = packages.iter().find(|word| !order::is_name(word)) {
        return Err(Error::Package { word: word.clone() });
    }
    let command = if said.command.is_empty() { vec!["sh".to_owned()] } else { said.command };
    let Said { about, download, unpacked, .. } = said;
    Ok(Recipe { name: name.to_owned(), about, packages, command, download, unpacked })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_variant_has_all_of_the_smaller_ones() {
        let [minimal, standard, full] = NAMES.map(|name| find(name).unwrap().packages);
        assert!(minimal.iter().all(|package| standard.contains(package)));
        assert!(standard.iter().all(|package| full.contains(package)));
        assert!(minimal.len() < standard.len() && standard.len() < full.len());
    }

    #[test]
    fn every_variant_tells_its_size() {
        for name in NAMES {
            let recipe = find(name).unwrap();
            assert!(recipe.download > 0 && recipe.unpacked > recipe.download, "{recipe:?}");
        }
    }

    #[test]
    fn a_recipe_of_ones_own_extends_a_variant() {
        let own = read("mine", "about = \"mine\"\nextends = \"minimal\"\npackages = [\"ruby\"]").unwrap();
        assert!(own.packages.contains(&"ruby".to_owned()) && own.packages.contains(&"curl".to_owned()));
        assert_eq!(own.command, ["sh"]);
    }

    #[test]
    fn words_that_are_no_packages_are_refused() {
        for word in ["a b", "-o", "x;reboot", "$(id)", "", "../x", "A"] {
            let text = format!("about = \"\"\npackages = [{word:?}]");
            assert!(read("mine", &text).is_err(), "{word:?}");
        }
        assert!(find("huge").is_err());
        assert!(read("mine", "about = \"\"\nextends = \"mine\"\npackages = []").is_err());
    }
}
