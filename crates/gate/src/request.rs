//! A request inside a connection, as far as rules look at it.

use crate::host::Target;
use airlock_protocol::policy::Git;

/// One request. Whoever reads it off the wire has checked and normalised it: what is here can be compared as it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// The name or address.
    pub target: Target,
    /// The port.
    pub port: u16,
    /// Whether it is inside TLS.
    pub is_tls: bool,
    /// `GET`, `POST`, …
    pub method: String,
    /// The path, percent-decoded where that is unambiguous; it begins with `/` and holds no `.` or `..` segment, no `//`,
    /// no backslash. Slashes that are encoded stay so: `/projects/acme%2Fweb`.
    pub path: String,
    /// Where some are: the path as it is for a server that decodes them too, `/projects/acme/web`.
    pub read_as: Option<String>,
    /// The query, decoded, in its order.
    pub query: Vec<(String, String)>,
    /// The headers in their order, names in lower case; values that are no text are left out.
    pub headers: Vec<(String, String)>,
    /// Whether it asks for a WebSocket.
    pub websocket: bool,
    /// What it asks of git, if it does.
    pub git: Option<GitCall>,
    /// Whether it is a command of git inside SSH: its method is the command, its path the repository's.
    pub is_ssh: bool,
}

/// What a request asks of git, over smart HTTP or SSH.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GitCall {
    /// Whether it reads or writes.
    pub wants: Git,
    /// Which (`acme/web`), without `.git`.
    pub repository: String,
}

/// What of a repository's own files plain downloads read (`git-http-backend`, "dumb" HTTP).
const PLAIN_FILES: [&str; 4] =
    ["/HEAD", "/objects/info/packs", "/objects/info/alternates", "/objects/info/http-alternates"];

impl GitCall {
    /// What a request asks of git, as far as its head tells; nothing if it is not git's.
    ///
    /// A large file's upload is announced by a `batch` whose body says so, and done by a `PUT`: the former only asks where
    /// to, so it counts as reading, and the latter as writing.
    ///
    /// ```
    /// use airlock_gate::request::GitCall;
    /// let query = [("service".to_owned(), "git-receive-pack".to_owned())];
    /// let call = GitCall::of("GET", "/acme/web.git/info/refs", &query, None).expect("a push");
    /// assert_eq!((call.wants, call.repository.as_str()), (airlock_protocol::policy::Git::Push, "acme/web"));
    /// assert_eq!(GitCall::of("GET", "/acme/web/issues", &[], None), None);
    /// ```
    pub fn of(
        method: &str,
        path: &str,
        query: &[(String, String)],
        content_type: Option<&str>,
    ) -> Option<GitCall> {
        let (repository, wants) = None
            .or_else(|| advertised(method, path, query))
            .or_else(|| exchanged(method, path, content_type))
            .or_else(|| large(method, path))
            .or_else(|| plain(method, path))?;
        let repository = repository.strip_prefix('/')?;
        let repository = repository.strip_suffix(".git").unwrap_or(repository);
        (!repository.is_empty()).then(|| GitCall { wants, repository: repository.to_owned() })
    }
}

/// What a repository has, asked for by name of what is to be done with it.
fn advertised<'a>(method: &str, path: &'a str, query: &[(String, String)]) -> Option<(&'a str, Git)> {
    let repository = path.strip_suffix("/info/refs").filter(|_| is_read(method))?;
    let mut services =
        query.iter().filter(|(name, _)| name == "service").map(|(_, service)| service.as_str());
    let wants = services.try_fold(Git::Fetch, |wants, service| match service {
        "git-upload-pack" => Some(wants),
        "git-receive-pack" => Some(Git::Push),
        _ => None,
    })?;
    Some((repository, wants))
}

fn exchanged<'a>(method: &str, path: &'a str, content_type: Option<&str>) -> Option<(&'a str, Git)> {
    let kind = content_type.and_then(|text| text.split(';').next()).unwrap_or_default().trim();
    if method != "POST" {
        return None;
    }
    if let Some(repository) = path.strip_suffix("/git-receive-pack") {
        return Some((repository, Git::Push));
    }
    let repository = path.strip_suffix("/git-upload-pack")?;
    kind.eq_ignore_ascii_case("application/x-git-upload-pack-request").then_some((repository, Git::Fetch))
}

/// Large files (git-lfs, `docs/api` there).
fn large<'a>(method: &str, path: &'a str) -> Option<(&'a str, Git)> {
    let (repository, rest) = path
        .split_once("/info/lfs/")
        .or_else(|| path.split_once("/gitlab-lfs/").filter(|(_, rest)| !rest.is_empty()))?;
    let is_asking = method == "POST" && rest == "objects/batch";
    Some((repository, if is_read(method) || is_asking { Git::Fetch } else { Git::Push }))
}

fn plain<'a>(method: &str, path: &'a str) -> Option<(&'a str, Git)> {
    if !is_read(method) {
        return None;
    }
    let repository = PLAIN_FILES.iter().find_map(|file| path.strip_suffix(file)).or_else(|| {
        let (repository, object) = path.rsplit_once("/objects/")?;
        is_object(object).then_some(repository)
    })?;
    Some((repository, Git::Fetch))
}

/// `ab/<38 or 62 digits>`, `pack/pack-<digits>.pack`
fn is_object(name: &str) -> bool {
    let is_digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let Some((folder, file)) = name.split_once('/') else { return false };
    if folder == "pack" {
        let pack = file.strip_prefix("pack-").and_then(|file| file.rsplit_once('.'));
        return pack.is_some_and(|(digits, kind)| is_digits(digits) && matches!(kind, "pack" | "idx"));
    }
    folder.len() == 2 && is_digits(folder) && matches!(file.len(), 38 | 62) && is_digits(file)
}

fn is_read(method: &str) -> bool {
    matches!(method, "GET" | "HEAD")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// `fetch acme/web`, `push acme/web`, or nothing.
    fn asked(method: &str, target: &str, content_type: Option<&str>) -> String {
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let query: Vec<(String, String)> = query
            .split('&')
            .filter_map(|pair| pair.split_once('='))
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect();
        match GitCall::of(method, path, &query, content_type) {
            None => "nothing".to_owned(),
            Some(GitCall { wants: Git::Fetch, repository }) => format!("fetch {repository}"),
            Some(GitCall { wants: Git::Push, repository }) => format!("push {repository}"),
        }
    }

    #[test]
    fn clones_and_fetches_read() {
        let upload = Some("application/x-git-upload-pack-request");
        for (method, target, content_type) in [
            ("GET", "/acme/web.git/info/refs?service=git-upload-pack", None),
            ("GET", "/acme/web/info/refs?service=git-upload-pack", None),
            ("GET", "/acme/web.git/info/refs", None),
            ("POST", "/acme/web.git/git-upload-pack", upload),
            ("GET", "/acme/web.git/HEAD", None),
            ("GET", "/acme/web.git/objects/info/packs", None),
            ("GET", "/acme/web.git/objects/ab/0123456789012345678901234567890123456789abcd", None),
            ("GET", "/acme/web.git/objects/pack/pack-0123abcd.idx", None),
            ("POST", "/acme/web.git/info/lfs/objects/batch", Some("application/vnd.git-lfs+json")),
            ("GET", "/acme/web.git/info/lfs/objects/0123", None),
            ("GET", "/acme/web.git/info/lfs/locks", None),
            ("GET", "/acme/web.git/gitlab-lfs/objects/0123", None),
        ] {
            let said = asked(method, target, content_type);
            let wanted = if target.contains("/ab/") { "nothing" } else { "fetch acme/web" };
            assert_eq!(said, wanted, "{method} {target}");
        }
        let object = format!("/acme/web.git/objects/ab/{}", "c".repeat(38));
        assert_eq!(asked("GET", &object, None), "fetch acme/web");
    }

    #[test]
    fn pushes_write() {
        for (method, target) in [
            ("GET", "/acme/web.git/info/refs?service=git-receive-pack"),
            ("GET", "/acme/web.git/info/refs?service=git-upload-pack&service=git-receive-pack"),
            ("GET", "/acme/web.git/info/refs?service=git-receive-pack&service=git-upload-pack"),
            ("POST", "/acme/web.git/git-receive-pack"),
            ("PUT", "/acme/web.git/info/lfs/objects/0123"),
            ("POST", "/acme/web.git/info/lfs/objects/verify"),
            ("POST", "/acme/web.git/info/lfs/locks"),
            ("POST", "/acme/web.git/info/lfs/locks/7/unlock"),
            ("PUT", "/acme/web.git/gitlab-lfs/objects/0123/7"),
        ] {
            assert_eq!(asked(method, target, None), "push acme/web", "{method} {target}");
        }
    }

    #[test]
    fn what_is_not_git_is_nothing() {
        for (method, target, content_type) in [
            ("GET", "/", None),
            ("GET", "/acme/web", None),
            ("GET", "/acme/web/issues", None),
            ("POST", "/acme/web.git/info/refs?service=git-upload-pack", None),
            ("GET", "/acme/web.git/info/refs?service=git-upload-archive", None),
            ("GET", "/acme/web.git/git-upload-pack", None),
            ("POST", "/acme/web.git/git-upload-pack", Some("text/plain")),
            ("POST", "/acme/web.git/git-upload-pack", None),
            ("GET", "/info/refs", None),
            ("GET", "/.git/info/refs", None),
            ("PUT", "/acme/web.git/HEAD", None),
            ("GET", "/acme/web.git/objects/zz/y", None),
            ("DELETE", "/acme/web.git/objects/pack/pack-0.pack", None),
        ] {
            assert_eq!(asked(method, target, content_type), "nothing", "{method} {target}");
        }
    }

    proptest! {
        #[test]
        fn any_request_is_taken(method in "GET|POST|PUT|.{0,5}", path in "(/|/info/refs|/git-receive-pack|/info/lfs/|/objects/|a|.git|.){0,8}") {
            if let Some(call) = GitCall::of(&method, &path, &[], None) {
                prop_assert!(!call.repository.is_empty() && path.contains(&call.repository));
            }
        }
    }
}
