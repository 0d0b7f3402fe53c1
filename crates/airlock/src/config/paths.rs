//! `[paths]`: which paths of a workspace are protected or hidden, besides those that always are. Pure.
//!
//! ```toml
//! [paths]
//! protected = ["deploy/**"]
//! shown = ["tests/fixtures/*.key"]
//! hide_as = "empty"
//! ```

use super::reader::Value;
use crate::failure::Failure;
use airlock_files::paths::Lists;
use airlock_protocol::files::{HideAs, Paths};

/// Keys of the table.
pub(crate) const KEYS: [&str; 6] = ["protected", "unprotected", "hidden", "shown", "protect_ci", "hide_as"];

/// Reads the table; every glob in it is checked.
pub(super) fn read(table: &Value<'_, '_>) -> Result<Paths, Failure> {
    let mut paths = Paths::default();
    for value in table.entries(table.table()?) {
        match value.key() {
            "protected" => paths.protected = value.each(glob)?,
            "unprotected" => paths.unprotected = value.each(glob)?,
            "hidden" => paths.hidden = value.each(glob)?,
            "shown" => paths.shown = value.each(glob)?,
            "protect_ci" => paths.protect_ci = value.flag()?,
            "hide_as" => paths.hide_as = value.parsed(hide_as)?,
            _ => return Err(value.unknown(&KEYS)),
        }
    }
    Ok(paths)
}

/// Puts those of one file below those of another: lists are joined.
pub(crate) fn join(above: &mut Paths, below: Paths) {
    let Paths { protected, unprotected, hidden, shown, protect_ci, hide_as } = below;
    above.protected.extend(protected);
    above.unprotected.extend(unprotected);
    above.hidden.extend(hidden);
    above.shown.extend(shown);
    above.protect_ci |= protect_ci;
    if above.hide_as == HideAs::default() {
        above.hide_as = hide_as;
    }
}

/// Whether they only add to what is protected and hidden.
pub(super) fn only_add(paths: &Paths) -> bool {
    paths.unprotected.is_empty() && paths.shown.is_empty()
}

fn glob(text: &str) -> Result<String, String> {
    let alone = Paths { protected: vec![text.to_owned()], ..Paths::default() };
    Lists::new(&alone).map(|_| text.to_owned()).map_err(|bad| bad.to_string())
}

fn hide_as(text: &str) -> Result<HideAs, String> {
    match text {
        "denied" => Ok(HideAs::Denied),
        "empty" => Ok(HideAs::Empty),
        other => Err(format!("{other:?} is no way to hide a file: write \"denied\" or \"empty\"")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{project, reader::Source};
    use std::path::Path;

    fn parsed(text: &str) -> Result<Paths, Failure> {
        project::parse(Source { name: "airlock.toml", text }, Path::new("/p")).map(|settings| settings.paths)
    }

    #[test]
    fn every_key_is_read() {
        let text = "[paths]\nprotected = [\"a/**\"]\nunprotected = \".envrc\"\nhidden = [\"*.secret\"]\n\
                    shown = [\"x.pem\"]\nprotect_ci = true\nhide_as = \"empty\"\n";
        let expected = Paths {
            protected: vec!["a/**".into()],
            unprotected: vec![".envrc".into()],
            hidden: vec!["*.secret".into()],
            shown: vec!["x.pem".into()],
            protect_ci: true,
            hide_as: HideAs::Empty,
        };
        assert_eq!(parsed(text).unwrap(), expected);
        assert!(!only_add(&expected));
        assert!(only_add(&Paths { unprotected: Vec::new(), shown: Vec::new(), ..expected }));
    }

    #[test]
    fn what_cannot_be_meant_is_refused_with_its_place() {
        for (text, words) in [
            ("[paths]\nhiden = 1\n", "airlock.toml:2:1: there is no setting \"hiden\" here"),
            ("[paths]\nhidden = [\"a//b\"]\n", "airlock.toml:2:11: \"a//b\" is not a pattern of paths"),
            ("[paths]\nhide_as = \"gone\"\n", "airlock.toml:2:11: \"gone\" is no way to hide a file"),
            ("paths = 1\n", "airlock.toml:1:9: paths is a table"),
        ] {
            let failure = parsed(text).unwrap_err();
            assert!(failure.what.starts_with(words), "{failure}");
        }
    }

    #[test]
    fn lists_of_files_are_joined() {
        let mut above = parsed("[paths]\nhidden = [\"a\"]\n").unwrap();
        join(&mut above, parsed("[paths]\nhidden = [\"b\"]\nhide_as = \"empty\"\n").unwrap());
        assert_eq!((above.hidden, above.hide_as), (vec!["a".into(), "b".into()], HideAs::Empty));
    }
}
