//! What was typed of a copy. Pure.

use std::path::{Component, Path, PathBuf};

/// One side of a copy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Side {
    /// A path of this host.
    Host(PathBuf),
    /// A path inside a sandbox.
    Inside { sandbox: String, path: String },
    /// A tar archive on stdin or stdout.
    Stream,
}

/// `-`, `SANDBOX:PATH`, or a path of this host: one that begins with `/` or `.` always is one.
pub(super) fn parse(text: &str) -> Side {
    if text == "-" {
        return Side::Stream;
    }
    match text.split_once(':') {
        Some((sandbox, path)) if !text.starts_with(['/', '.']) && !sandbox.contains('/') => {
            Side::Inside { sandbox: sandbox.to_owned(), path: path.to_owned() }
        }
        _ => Side::Host(PathBuf::from(text)),
    }
}

/// The name of what is copied; none where the contents of a directory are meant (`DIR/.`, `..`, `/`).
pub(super) fn last_name(path: &str) -> Option<PathBuf> {
    if path.ends_with("/.") {
        return None;
    }
    match Path::new(path).components().next_back() {
        Some(Component::Normal(name)) => Some(PathBuf::from(name)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_side_is_a_stream_a_sandbox_or_a_path() {
        let inside = |sandbox: &str, path: &str| Side::Inside { sandbox: sandbox.into(), path: path.into() };
        assert_eq!(parse("-"), Side::Stream);
        assert_eq!(parse("web:/etc"), inside("web", "/etc"));
        assert_eq!(parse("-:a:b"), inside("-", "a:b"));
        assert_eq!(parse(":x"), inside("", "x"));
        for host in ["a", "/a:b", "./a:b", "../a:b", "dir/a:b", ".", ""] {
            assert_eq!(parse(host), Side::Host(host.into()), "{host}");
        }
    }

    #[test]
    fn what_is_copied_has_a_name_unless_contents_are_meant() {
        for (path, name) in [
            ("/a/b", Some("b")),
            ("a/", Some("a")),
            ("a/.", None),
            ("/", None),
            ("..", None),
            (".", None),
            ("a/..", None),
        ] {
            assert_eq!(last_name(path), name.map(PathBuf::from), "{path}");
        }
    }
}
