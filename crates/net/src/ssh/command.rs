//! The one command that a client may ask for: git's own two, spelled as git spells them. Anything else never reaches the server.

use airlock_gate::request::GitCall;
use airlock_protocol::policy::Git;

/// Longest path of a repository.
const LONGEST: usize = 1024;
/// Longest name of a user.
const LONGEST_USER: usize = 64;

/// What git asks for.
///
/// ```text
/// Command::parse("git-upload-pack 'acme/web.git'")
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Command {
    wants: Git,
    /// As the client wrote it.
    path: String,
}

/// It is none of git's, or it could be read in two ways.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BadCommand {
    /// Another program.
    #[error("only git-upload-pack and git-receive-pack are carried")]
    Other,
    /// Not one path in quotes.
    #[error("the repository is not one path in single quotes")]
    Quotes,
    /// A path with characters that shells or servers read in ways of their own.
    #[error("the repository's path has a character that is not carried")]
    Character,
    /// `..`, `//`, `.git` as a part by itself.
    #[error("the repository's path could be read in two ways")]
    Ambiguous,
}

impl Command {
    /// Reads what a client asks to be run.
    pub(crate) fn parse(text: &str) -> Result<Command, BadCommand> {
        let (program, rest) = text.split_once(' ').ok_or(BadCommand::Other)?;
        let wants = match program {
            "git-upload-pack" => Git::Fetch,
            "git-receive-pack" => Git::Push,
            _ => return Err(BadCommand::Other),
        };
        let path =
            rest.strip_prefix('\'').and_then(|rest| rest.strip_suffix('\'')).ok_or(BadCommand::Quotes)?;
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._/~+@".contains(&byte);
        if path.is_empty() || path.len() > LONGEST || !path.bytes().all(is_plain) {
            return Err(if path.contains('\'') { BadCommand::Quotes } else { BadCommand::Character });
        }
        let parts = path.strip_prefix('/').unwrap_or(path);
        let is_odd = |part: &str| matches!(part, "" | "." | ".." | ".git") || part.starts_with('-');
        if parts.split('/').any(is_odd) {
            return Err(BadCommand::Ambiguous);
        }
        Ok(Command { wants, path: path.to_owned() })
    }

    /// git's name for it.
    pub(crate) fn program(&self) -> &'static str {
        match self.wants {
            Git::Fetch => "git-upload-pack",
            Git::Push => "git-receive-pack",
        }
    }

    /// The repository as a path, with a `/` before it.
    pub(crate) fn path(&self) -> String {
        format!("/{}", self.path.strip_prefix('/').unwrap_or(&self.path))
    }

    /// As rules have it.
    pub(crate) fn call(&self) -> GitCall {
        let plain = self.path.strip_prefix('/').unwrap_or(&self.path);
        let repository = plain.strip_suffix(".git").unwrap_or(plain).to_owned();
        GitCall { wants: self.wants, repository }
    }

    /// As it is asked of the server. There is no quote in the path.
    pub(crate) fn line(&self) -> String {
        format!("{} '{}'", self.program(), self.path)
    }
}

/// A user's name as it is sent on.
pub(crate) fn is_user(name: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    (1..=LONGEST_USER).contains(&name.len()) && name.bytes().all(is_plain) && !name.starts_with('-')
}

/// A version of git's protocol, the only variable that is sent on.
pub(crate) fn is_protocol(value: &str) -> bool {
    value.strip_prefix("version=").is_some_and(|digit| matches!(digit, "0" | "1" | "2"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn gits_two_commands_are_taken() {
        for (text, wants, repository, path) in [
            ("git-upload-pack 'acme/web.git'", Git::Fetch, "acme/web", "/acme/web.git"),
            ("git-upload-pack '/acme/web'", Git::Fetch, "acme/web", "/acme/web"),
            ("git-receive-pack 'acme/web.git'", Git::Push, "acme/web", "/acme/web.git"),
            ("git-upload-pack '~ada/notes'", Git::Fetch, "~ada/notes", "/~ada/notes"),
        ] {
            let command = Command::parse(text).unwrap();
            assert_eq!(command.call(), GitCall { wants, repository: repository.to_owned() });
            assert_eq!((command.path().as_str(), command.line().as_str()), (path, text));
        }
    }

    #[test]
    fn nothing_else_is() {
        use BadCommand::{Ambiguous, Character, Other, Quotes};
        for (text, why) in [
            ("", Other),
            ("sh", Other),
            ("git-upload-archive 'acme/web'", Other),
            ("git-lfs-authenticate 'acme/web' upload", Other),
            ("git upload-pack 'acme/web'", Other),
            (" git-upload-pack 'acme/web'", Other),
            ("/usr/bin/git-upload-pack 'acme/web'", Other),
            ("git-upload-pack acme/web", Quotes),
            ("git-upload-pack 'acme/web' ", Quotes),
            ("git-upload-pack --strict 'acme/web'", Quotes),
            ("git-upload-pack 'acme/web' 'acme/other'", Quotes),
            ("git-upload-pack 'acme'\\''web'", Quotes),
            ("git-upload-pack 'acme/web'; id; echo ''", Quotes),
            ("git-upload-pack '$(id)'", Character),
            ("git-upload-pack 'acme/we b'", Character),
            ("git-upload-pack 'acme/web\n'", Character),
            ("git-upload-pack ''", Character),
            ("git-upload-pack 'acme/../other/web'", Ambiguous),
            ("git-upload-pack 'acme//web'", Ambiguous),
            ("git-upload-pack '//acme/web'", Ambiguous),
            ("git-upload-pack 'acme/web/'", Ambiguous),
            ("git-upload-pack 'acme/web/.git'", Ambiguous),
            ("git-upload-pack '--upload-pack=x/y'", Character),
            ("git-upload-pack '-x/y'", Ambiguous),
            ("git-upload-pack '/'", Ambiguous),
        ] {
            assert_eq!(Command::parse(text), Err(why), "{text}");
        }
    }

    #[test]
    fn names_and_versions_are_plain() {
        assert!(is_user("git") && is_user("ada.b-c_1"));
        assert!(!is_user("") && !is_user("-oProxyCommand") && !is_user("a b") && !is_user(&"a".repeat(65)));
        assert!(is_protocol("version=2") && !is_protocol("version=2:x") && !is_protocol("LD_PRELOAD"));
    }

    proptest! {
        #[test]
        fn what_is_sent_on_has_one_path_and_no_way_out_of_its_quotes(text in "git-(upload|receive)-pack '?[a-z/.'\"; $~\\\\-]{0,20}'?") {
            if let Ok(command) = Command::parse(&text) {
                let line = command.line();
                prop_assert_eq!(line.matches('\'').count(), 2);
                prop_assert!(!line.contains(['"', ';', '$', '\\', '\n']) && !line.contains(".."));
                prop_assert_eq!(&line, &text);
                prop_assert!(text.contains(&command.call().repository));
            }
        }
    }
}
