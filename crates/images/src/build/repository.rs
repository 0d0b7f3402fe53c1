//! Git repositories as sources of `ADD`. Pure and total.
//!
//! ```
//! use airlock_images::build::repository::Repository;
//!
//! let repository = Repository::of("https://example.com/a.git#v1:docs").unwrap().unwrap();
//! assert_eq!((repository.reference.as_str(), repository.directory.as_str()), ("v1", "docs"));
//! assert_eq!(Repository::of("https://example.com/a.tar"), None);
//! ```

/// A repository, and what of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Repository {
    /// Where it is, without what stands behind `#`.
    pub url: String,
    /// Host and port as a URL has them.
    pub authority: String,
    /// The port.
    pub port: u16,
    /// A branch, a tag or a commit.
    pub reference: String,
    /// A directory of it; `.` is all.
    pub directory: String,
}

/// Why a repository cannot be taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Bad {
    /// It would need a key.
    #[error("{0}: a repository behind SSH needs a key of yours, which no step is given")]
    Ssh(String),
    /// Something behind `#`.
    #[error("{0}: behind # stands a branch, tag or commit, and perhaps :DIRECTORY")]
    Fragment(String),
    /// No host.
    #[error("{0}: this names no host")]
    Host(String),
}

impl Repository {
    /// The repository that a source means; none if it is something else.
    pub fn of(source: &str) -> Option<Result<Repository, Bad>> {
        let (url, fragment) = source.split_once('#').unwrap_or((source, ""));
        if url.starts_with("git@") || url.starts_with("ssh://") {
            return Some(Err(Bad::Ssh(source.to_owned())));
        }
        let (scheme, rest) = url.split_once("://")?;
        let port = match scheme {
            "https" => 443,
            "http" => 80,
            "git" => 9418,
            _ => return None,
        };
        if scheme != "git" && !url.ends_with(".git") {
            return None;
        }
        let authority = rest.split('/').next().unwrap_or_default();
        // A name and a password belong into no Dockerfile, and no image's history.
        if authority.is_empty() || authority.contains('@') {
            return Some(Err(Bad::Host(source.to_owned())));
        }
        let behind = authority.rsplit_once(':').and_then(|(_, port)| port.parse().ok());
        let (reference, directory) = fragment.split_once(':').unwrap_or((fragment, ""));
        if !is_reference(reference) || !is_directory(directory) {
            return Some(Err(Bad::Fragment(source.to_owned())));
        }
        let or = |text: &str, other: &str| if text.is_empty() { other } else { text }.to_owned();
        Some(Ok(Repository {
            url: url.to_owned(),
            authority: authority.to_owned(),
            port: behind.unwrap_or(port),
            reference: or(reference, "HEAD"),
            directory: or(directory.trim_matches('/'), "."),
        }))
    }
}

/// Git refuses the rest by itself; a word that begins with `-` would be a flag.
fn is_reference(text: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"/._-+".contains(&byte);
    text.bytes().all(allowed) && !text.starts_with('-') && !text.contains("..")
}

fn is_directory(text: &str) -> bool {
    !text.starts_with('-') && !text.contains('\0') && text.split('/').all(|part| part != "..")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stands_behind_the_hash_is_a_reference_and_a_directory() {
        for (source, wanted) in [
            ("https://h.test/a.git", ("https://h.test/a.git", 443, "HEAD", ".")),
            ("http://h.test:8080/a/b.git#main", ("http://h.test:8080/a/b.git", 8080, "main", ".")),
            ("git://h.test/a#v1:/docs/", ("git://h.test/a", 9418, "v1", "docs")),
            ("https://h.test/a.git#:docs/en", ("https://h.test/a.git", 443, "HEAD", "docs/en")),
        ] {
            let found = Repository::of(source).unwrap().unwrap();
            let found = (&*found.url, found.port, &*found.reference, &*found.directory);
            assert_eq!(found, wanted, "{source}");
        }
    }

    #[test]
    fn other_sources_are_no_repositories() {
        for source in ["a.git", "https://h.test/a.tar.gz", "ftp://h.test/a.git", "dir", ""] {
            assert_eq!(Repository::of(source), None, "{source}");
        }
    }

    #[test]
    fn flags_ways_out_and_passwords_are_refused() {
        for source in [
            "https://h.test/a.git#--upload-pack=x",
            "https://h.test/a.git#a b",
            "https://h.test/a.git#main:../..",
            "https://user:word@h.test/a.git",
            "git@h.test:a.git",
            "ssh://git@h.test/a.git",
            "https:///a.git",
        ] {
            assert!(Repository::of(source).unwrap().is_err(), "{source}");
        }
    }
}
