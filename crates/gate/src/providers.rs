//! What is known of the secrets of well-known services: where each goes, in which form, and which files programs read it from.
//! Each service is a data file.
//!
//! ```
//! let known = airlock_gate::providers::find("ANTHROPIC_API_KEY").unwrap();
//! assert_eq!(known.hosts, ["api.anthropic.com"]);
//! assert!(airlock_gate::providers::find("MY_OWN_TOKEN").is_none());
//! ```

use airlock_protocol::secret::Place;
use toml::de::{DeTable, DeValue};

/// A secret of a well-known service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Provided {
    /// The service, in one line.
    pub about: String,
    /// The variables that hold it.
    pub names: Vec<String>,
    /// Variables that hold it too, since programs look at one or the other.
    pub also: Vec<String>,
    /// Where it goes.
    pub hosts: Vec<String>,
    /// Where in a request.
    pub places: Vec<Place>,
    /// The credential files that programs read it from.
    pub files: Vec<String>,
    /// Whom such a file names beside it.
    pub user: Option<String>,
    /// Secrets that it is no use without.
    pub brings: Vec<String>,
    /// Secrets that belong to it where they are set.
    pub may_bring: Vec<String>,
    /// It signs requests of AWS, together with this one.
    pub aws_access_key: Option<String>,
}

macro_rules! data {
    ($($name:literal),* $(,)?) => { [$(($name, include_str!(concat!("../providers/", $name, ".toml")))),*] };
}

const DATA: [(&str, &str); 6] = data!["anthropic", "aws", "github", "gitlab", "google", "openai"];

/// What is known of the secret that a variable of this name holds.
pub fn find(name: &str) -> Option<Provided> {
    list().into_iter().find(|provided| provided.names.iter().any(|own| own == name))
}

/// All that is known.
pub fn list() -> Vec<Provided> {
    DATA.iter().flat_map(|(_, text)| read(text).unwrap_or_default()).collect()
}

fn read(text: &str) -> Option<Vec<Provided>> {
    let top = DeTable::parse(text).ok()?;
    let about = top.get_ref().get("about")?.get_ref().as_str()?;
    let secrets = top.get_ref().get("secret")?.get_ref().as_array()?;
    secrets.iter().map(|secret| provided(about, secret.get_ref().as_table()?)).collect()
}

fn provided(about: &str, table: &DeTable<'_>) -> Option<Provided> {
    let texts = |key: &str| -> Vec<String> {
        let list = table.get(key).and_then(|list| list.get_ref().as_array());
        let texts = list.into_iter().flat_map(|list| list.iter()).filter_map(|text| text.get_ref().as_str());
        texts.map(str::to_owned).collect()
    };
    let text = |key: &str| match table.get(key).map(|text| text.get_ref()) {
        Some(DeValue::String(text)) => Some(text.to_string()),
        _ => None,
    };
    Some(Provided {
        about: about.to_owned(),
        names: texts("names"),
        also: texts("also"),
        hosts: texts("hosts"),
        places: texts("in").iter().map(|word| place(word)).collect::<Option<_>>()?,
        files: texts("files"),
        user: text("user"),
        brings: texts("brings"),
        may_bring: texts("may_bring"),
        aws_access_key: text("aws_access_key"),
    })
}

/// A place in a request, as a person writes it.
pub fn place(word: &str) -> Option<Place> {
    Some(match word {
        "header" => Place::Header,
        "basic" => Place::Basic,
        "query" => Place::Query,
        "body" => Place::Body,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pattern::Pattern;

    #[test]
    fn every_data_file_says_where_each_of_its_secrets_goes() {
        for (name, text) in DATA {
            let all = read(text).unwrap();
            assert!(!all.is_empty(), "{name}");
            for provided in all {
                assert!(
                    !provided.names.is_empty() && !provided.hosts.is_empty() && !provided.places.is_empty(),
                    "{name}"
                );
                for host in &provided.hosts {
                    let pattern: Pattern = host.parse().unwrap();
                    assert!(pattern != Pattern::EveryName && pattern.to_string() == *host, "{host}");
                }
                for other in provided.brings.iter().chain(&provided.may_bring).chain(&provided.aws_access_key)
                {
                    assert!(find(other).is_some(), "{other}");
                }
            }
        }
    }

    #[test]
    fn no_name_is_known_twice() {
        let mut names: Vec<String> = list().into_iter().flat_map(|provided| provided.names).collect();
        let count = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), count);
    }
}
