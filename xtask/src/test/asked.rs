//! What was typed behind `cargo xtask test`. Pure.

use anyhow::{Context as _, Result, bail};

/// Whose tests run, where their sandboxes run, and what the test binaries are told.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Asked {
    /// Kinds of users: all where nothing is said.
    users: Vec<Kind>,
    /// Where every sandbox of the suites runs; where each test says, if nothing is said.
    pub(crate) backend: Option<String>,
    /// Goes to every test binary.
    pub(crate) args: Vec<String>,
}

/// Kinds of users whose sandboxes differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Root of this host.
    Root,
    /// With ranges of ids.
    Ranges,
    /// With a single id.
    Single,
}

/// Part 5 runs images in namespaces, and tests of machines ask for one by themselves.
const NOT_SWITCHED: [&str; 4] = ["images_", "attacks_images::", "microvm", "attacks_machine::"];

impl Asked {
    /// `[--backend NAME] [--as root|ranges|single]… [ARGUMENT…]`.
    pub(crate) fn read(words: Vec<String>) -> Result<Asked> {
        let mut asked = Asked { users: Vec::new(), backend: None, args: Vec::new() };
        let mut words = words.into_iter();
        while let Some(word) = words.next() {
            match word.as_str() {
                "--backend" => asked.backend = Some(words.next().context("--backend needs a name")?),
                "--as" => asked.users.push(kind(&words.next().context("--as needs a kind of user")?)?),
                _ => asked.args.push(word),
            }
        }
        if asked.backend.is_some() {
            asked.args.extend(NOT_SWITCHED.iter().flat_map(|name| ["--skip".to_owned(), (*name).to_owned()]));
        }
        Ok(asked)
    }

    /// Whether tests run as this kind of user.
    pub(crate) fn includes(&self, kind: Kind) -> bool {
        self.users.is_empty() || self.users.contains(&kind)
    }
}

fn kind(name: &str) -> Result<Kind> {
    Ok(match name {
        "root" => Kind::Root,
        "ranges" => Kind::Ranges,
        "single" => Kind::Single,
        _ => bail!("{name} is no kind of user: root, ranges or single"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> Result<Asked> {
        Asked::read(line.split_whitespace().map(str::to_owned).collect())
    }

    #[test]
    fn everything_runs_as_everybody_where_nothing_is_said() {
        let asked = read("cp:: --exact").unwrap();
        assert!([Kind::Root, Kind::Ranges, Kind::Single].into_iter().all(|kind| asked.includes(kind)));
        assert_eq!((asked.backend.as_deref(), asked.args), (None, vec!["cp::".into(), "--exact".into()]));
    }

    #[test]
    fn a_backend_leaves_out_the_tests_that_choose_their_own() {
        let asked = read("--backend microvm --as root --as single run::").unwrap();
        assert!(asked.includes(Kind::Root) && asked.includes(Kind::Single) && !asked.includes(Kind::Ranges));
        assert_eq!(asked.backend.as_deref(), Some("microvm"));
        assert_eq!(
            asked.args.join(" "),
            "run:: --skip images_ --skip attacks_images:: --skip microvm --skip attacks_machine::"
        );
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        assert!(read("--as nobody").is_err());
        assert!(read("--backend").is_err());
    }
}
