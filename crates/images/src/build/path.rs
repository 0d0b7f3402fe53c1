//! Paths inside an image as texts and bytes: joined and cleaned, never looked up. Pure and total.

/// `path` below `base`, or `path` itself if it is absolute; cleaned, absolute, `..` not above the root.
pub fn joined(base: &str, path: &str) -> String {
    let whole = if path.starts_with('/') { path.to_owned() } else { format!("{base}/{path}") };
    let mut parts: Vec<&str> = Vec::new();
    for part in whole.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    format!("/{}", parts.join("/"))
}

/// The parts of a path without empty ones and dots; `..` goes up, not above the root.
pub fn parts(path: &[u8]) -> Vec<&[u8]> {
    let mut parts: Vec<&[u8]> = Vec::new();
    for part in path.split(|byte| *byte == b'/') {
        match part {
            b"" | b"." => {}
            b".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    parts
}

/// A path relative to the root, cleaned.
pub fn relative(path: &[u8]) -> Vec<u8> {
    parts(path).join(&b'/')
}

/// `name` in the directory `parent`, both relative to the root.
pub fn below(parent: &[u8], name: &[u8]) -> Vec<u8> {
    match (parent, name) {
        (b"", name) => name.to_vec(),
        (parent, b"") => parent.to_vec(),
        (parent, name) => [parent, b"/", name].concat(),
    }
}

/// The directory of a path, and its last part.
pub fn last(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|byte| *byte == b'/') {
        Some(at) => (path.get(..at).unwrap_or_default(), path.get(at + 1..).unwrap_or_default()),
        None => (b"", path),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn paths_are_joined_and_cleaned() {
        assert_eq!(joined("/a", "b/../c/."), "/a/c");
        assert_eq!(joined("/a", "/b//c/"), "/b/c");
        assert_eq!(joined("/", "../../x"), "/x");
        assert_eq!(last(b"a/b/c"), (b"a/b".as_slice(), b"c".as_slice()));
    }

    proptest! {
        #[test]
        fn nothing_leads_above_the_root(base in "[a./]{0,20}", path in "[a./]{0,20}") {
            let made = joined(&base, &path);
            prop_assert!(made.starts_with('/'));
            prop_assert!(made.split('/').all(|part| part != ".."));
            prop_assert_eq!(joined("/", &made), made);
        }
    }
}
