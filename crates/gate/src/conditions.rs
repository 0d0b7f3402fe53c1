//! What a rule asks of a request, ready to be compared.

use crate::{
    glob::{BadGlob, Glob},
    judge::git_word,
    request::{GitCall, Request},
};
use airlock_protocol::policy::{self, Git, Verdict};
use std::collections::BTreeMap;

/// Longest name of a method, a parameter or a header.
const LONGEST_NAME: usize = 128;

/// What must be true of a request.
#[derive(Debug, Clone)]
pub(crate) struct Conditions {
    methods: Vec<String>,
    paths: Vec<Glob>,
    query: Vec<(String, Glob)>,
    headers: Vec<(String, Glob)>,
    websocket: Option<bool>,
    git: Option<Git>,
    repositories: Vec<Glob>,
    encoded_slashes: bool,
    verdict: Verdict,
}

/// Methods that are told apart at a glance.
const METHODS: [&str; 9] = ["GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT"];
/// So many bytes of a path are compared at a glance.
const BEGINNING: usize = 32;

/// What rejects most requests without looking at the rule itself: of a thousand rules about one host few are looked at.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Glance {
    /// A bit for each known method, and one for all others.
    methods: u16,
    beginning: [u8; BEGINNING],
    length: u8,
}

impl Glance {
    /// A method as it is compared.
    pub(crate) fn of_method(method: &str) -> Glance {
        let known = METHODS.iter().position(|known| *known == method).unwrap_or(METHODS.len());
        Glance { methods: 1 << known, beginning: [0; BEGINNING], length: 0 }
    }

    /// Whether a request with this method and path may fit, where the path is looked at; one that does not fit may seem to.
    pub(crate) fn could_fit(&self, method: &Glance, path: Option<&[u8]>) -> bool {
        let beginning = self.beginning.get(..usize::from(self.length)).unwrap_or_default();
        self.methods & method.methods != 0 && path.is_none_or(|path| path.starts_with(beginning))
    }
}

/// What of a request is not as a rule asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Miss {
    /// Its method.
    Method,
    /// Its path.
    Path,
    /// A parameter.
    Query,
    /// A header.
    Header,
    /// Whether it is a WebSocket.
    Websocket,
    /// What it asks of git.
    Git,
    /// The repository.
    Repository,
}

impl Conditions {
    /// Checked; none where nothing is asked of requests.
    pub(crate) fn compile(asked: &policy::Request, verdict: Verdict) -> Result<Option<Conditions>, String> {
        if asked.is_any() {
            return Ok(None);
        }
        let methods = asked.methods.iter().map(|text| method(text)).collect::<Result<_, _>>()?;
        let paths = asked.paths.iter().map(|text| path(text)).collect::<Result<_, _>>()?;
        let repositories =
            asked.repositories.iter().map(|text| repository(text)).collect::<Result<_, _>>()?;
        Ok(Some(Conditions {
            methods,
            paths,
            query: values(&asked.query, parameter)?,
            headers: values(&asked.headers, header)?,
            websocket: asked.websocket,
            git: asked.git,
            repositories,
            encoded_slashes: asked.encoded_slashes,
            verdict,
        }))
    }

    /// Whether only git fits.
    pub(crate) fn is_about_git(&self) -> bool {
        self.git.is_some()
    }

    /// What can be compared at a glance.
    pub(crate) fn glance(&self) -> Glance {
        let bits = self.methods.iter().map(|method| Glance::of_method(method).methods);
        let methods = if self.methods.is_empty() { u16::MAX } else { bits.fold(0, |all, bit| all | bit) };
        let mut glance = Glance { methods, beginning: [0; BEGINNING], length: 0 };
        let mut heads = self.paths.iter().map(Glob::beginning);
        let Some(first) = heads.next() else { return glance };
        let common = heads.fold(first, |common, head| {
            let same = common.iter().zip(head).take_while(|(one, other)| one == other).count();
            common.get(..same).unwrap_or_default()
        });
        for (place, byte) in glance.beginning.iter_mut().zip(common) {
            *place = *byte;
            glance.length += 1;
        }
        glance
    }

    /// What of the request is not as asked for; none if it is.
    pub(crate) fn missed(&self, request: &Request) -> Option<Miss> {
        let any =
            |globs: &[Glob], text: &str| globs.is_empty() || globs.iter().any(|glob| glob.matches(text));
        if !self.methods.is_empty() && !self.methods.contains(&request.method) {
            return Some(Miss::Method);
        }
        if !self.fits_path(request) {
            return Some(Miss::Path);
        }
        if self.websocket.is_some_and(|wanted| wanted != request.websocket) {
            return Some(Miss::Websocket);
        }
        if !self.query.iter().all(|wanted| self.holds(wanted, &request.query)) {
            return Some(Miss::Query);
        }
        if !self.headers.iter().all(|wanted| self.holds(wanted, &request.headers)) {
            return Some(Miss::Header);
        }
        match (self.git, &request.git) {
            // What opens names git: other keys are about HTTP.
            (None, _) if request.is_ssh && self.verdict != Verdict::Deny => Some(Miss::Git),
            (None, _) => None,
            (Some(wanted), Some(call)) if self.is_git(wanted, call) => {
                (!any(&self.repositories, &call.repository)).then_some(Miss::Repository)
            }
            (Some(_), _) => Some(Miss::Git),
        }
    }

    /// Whether it lets encoded slashes pass.
    pub(crate) fn takes_encoded_slashes(&self) -> bool {
        self.encoded_slashes
    }

    /// What allows must take encoded slashes, and compares them as part of a segment. What denies or asks looks at both readings.
    fn fits_path(&self, request: &Request) -> bool {
        let fits = |path: &str| self.paths.is_empty() || self.paths.iter().any(|glob| glob.matches(path));
        match &request.read_as {
            None => fits(&request.path),
            Some(_) if self.verdict == Verdict::Allow => self.encoded_slashes && fits(&request.path),
            Some(read) => fits(&request.path) || fits(read),
        }
    }

    /// What it asks for, for a person who missed it: `only GET and HEAD`.
    pub(crate) fn wanted(&self, miss: Miss) -> String {
        let globs = |globs: &[Glob]| listed(globs.iter().map(Glob::to_string));
        let named =
            |pairs: &[(String, Glob)]| listed(pairs.iter().map(|(name, glob)| format!("{name} = {glob}")));
        match miss {
            Miss::Method => format!("only {}", listed(self.methods.iter().cloned())),
            Miss::Path if self.paths.is_empty() => "no encoded slashes".to_owned(),
            Miss::Path => format!("only {}", globs(&self.paths)),
            Miss::Query => format!("only with {} in the query", named(&self.query)),
            Miss::Header => format!("only with the header {}", named(&self.headers)),
            Miss::Websocket if self.websocket == Some(true) => "only WebSockets".to_owned(),
            Miss::Websocket => "no WebSockets".to_owned(),
            Miss::Git => self.git.map_or("only HTTP".to_owned(), |git| format!("only git {}", git_word(git))),
            Miss::Repository => format!("only the repositories {}", globs(&self.repositories)),
        }
    }

    /// Whether every request that fits `other` is known to fit this one too; where it is hard to tell, no.
    pub(crate) fn covers(&self, other: &Conditions) -> bool {
        let globs = |own: &[Glob], others: &[Glob]| {
            own.is_empty()
                || !others.is_empty() && others.iter().all(|other| own.iter().any(|own| own.covers(other)))
        };
        let named =
            |own: &[(String, Glob)], others: &[(String, Glob)]| own.iter().all(|one| others.contains(one));
        let methods = self.methods.is_empty()
            || !other.methods.is_empty() && other.methods.iter().all(|method| self.methods.contains(method));
        // One that looks at all values of a name matches less than one that looks for any.
        let alike = self.looks_at_all() == other.looks_at_all()
            || self.query.is_empty() && self.headers.is_empty()
            || other.looks_at_all();
        let git = self.git.is_none() || self.git == other.git && self.verdict == other.verdict;
        methods
            && alike
            && git
            && globs(&self.paths, &other.paths)
            && globs(&self.repositories, &other.repositories)
            && named(&self.query, &other.query)
            && named(&self.headers, &other.headers)
            && (self.websocket.is_none() || self.websocket == other.websocket)
            && (self.encoded_slashes || !other.encoded_slashes)
    }

    /// A name may occur more than once, and servers differ in which one they take. What opens therefore looks at all of them,
    /// what denies or asks looks for any.
    fn holds(&self, (name, glob): &(String, Glob), pairs: &[(String, String)]) -> bool {
        let mut values = pairs.iter().filter(|(own, _)| own == name).map(|(_, value)| value).peekable();
        match self.looks_at_all() {
            true => values.peek().is_some() && values.all(|value| glob.matches(value)),
            false => values.any(|value| glob.matches(value)),
        }
    }

    fn looks_at_all(&self) -> bool {
        self.verdict == Verdict::Allow
    }

    /// Who may write may read; what denies or asks about writing says nothing about reading.
    fn is_git(&self, wanted: Git, call: &GitCall) -> bool {
        wanted == call.wants || wanted == Git::Push && self.verdict == Verdict::Allow
    }
}

fn values(
    asked: &BTreeMap<String, String>,
    name: fn(&str) -> Result<String, String>,
) -> Result<Vec<(String, Glob)>, String> {
    asked.iter().map(|(key, pattern)| Ok((name(key)?, value(pattern)?))).collect()
}

/// `GET`, `POST`, …: a token (RFC 9110, 9.1), in capitals.
pub(crate) fn method(text: &str) -> Result<String, String> {
    match is_token(text) {
        true => Ok(text.to_ascii_uppercase()),
        false => Err(format!("`{}` is not a method", shown(text))),
    }
}

/// A pattern of paths that some checked path can fit.
pub(crate) fn path(text: &str) -> Result<Glob, String> {
    let glob: Glob = text.parse().map_err(|err: BadGlob| err.to_string())?;
    let segments = || text.split('/');
    let why = if !text.starts_with('/') && !text.starts_with("**") {
        "a path begins with `/`"
    } else if text.contains(['?', '#']) {
        "a path has neither query nor fragment; parameters stand in `query`"
    } else if segments().any(|segment| matches!(segment, "." | "..")) || text.contains("//") {
        "a path with `.`, `..` or an empty segment is refused before rules are asked"
    } else if text.contains(char::is_control) {
        "a path has no control characters"
    } else if text.contains("%2f") {
        "an encoded slash is written `%2F`, beside `encoded_slashes = true`"
    } else {
        return Ok(glob);
    };
    Err(why.to_string())
}

/// A pattern of repositories: `acme/*`.
pub(crate) fn repository(text: &str) -> Result<Glob, String> {
    let why = if text.starts_with('/') {
        "a repository is named without the first `/`"
    } else if text.ends_with(".git") {
        "a repository is named without `.git`"
    } else {
        return text.parse().map_err(|err: BadGlob| err.to_string());
    };
    Err(why.to_string())
}

/// The name of a parameter.
pub(crate) fn parameter(text: &str) -> Result<String, String> {
    match text.is_empty() || text.len() > LONGEST_NAME || text.contains(char::is_control) {
        true => Err(format!("`{}` is not the name of a parameter", shown(text))),
        false => Ok(text.to_string()),
    }
}

/// The name of a header, in small letters.
pub(crate) fn header(text: &str) -> Result<String, String> {
    match is_token(text) {
        true => Ok(text.to_ascii_lowercase()),
        false => Err(format!("`{}` is not the name of a header", shown(text))),
    }
}

/// A pattern of a parameter's or header's value.
pub(crate) fn value(text: &str) -> Result<Glob, String> {
    text.parse().map_err(|err: BadGlob| err.to_string())
}

/// `a`, `a and b`, `a, b and c`.
fn listed(words: impl Iterator<Item = String>) -> String {
    let mut words: Vec<String> = words.collect();
    match (words.pop(), words.is_empty()) {
        (None, _) => String::new(),
        (Some(last), true) => last,
        (Some(last), false) => format!("{} and {last}", words.join(", ")),
    }
}

fn is_token(text: &str) -> bool {
    let is_mark = |byte: u8| b"!#$%&'*+-.^_`|~".contains(&byte);
    (1..=LONGEST_NAME).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || is_mark(byte))
}

fn shown(text: &str) -> String {
    text.chars().take(64).flat_map(char::escape_debug).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn request(method: &str, path: &str) -> Request {
        Request {
            target: "a.test".parse().unwrap(),
            port: 443,
            is_tls: true,
            method: method.to_owned(),
            path: path.to_owned(),
            read_as: None,
            query: Vec::new(),
            headers: Vec::new(),
            websocket: false,
            git: None,
            is_ssh: false,
        }
    }

    fn could_fit(conditions: &Conditions, request: &Request) -> bool {
        conditions.glance().could_fit(&Glance::of_method(&request.method), Some(request.path.as_bytes()))
    }

    #[test]
    fn another_method_and_another_beginning_are_seen_at_a_glance() {
        let asked = policy::Request {
            methods: vec!["GET".into(), "PURGE".into()],
            paths: vec!["/repos/acme/*".into(), "/repos/other".into()],
            ..policy::Request::default()
        };
        let conditions = Conditions::compile(&asked, Verdict::Allow).unwrap().unwrap();

        for (method, path, fits) in [
            ("GET", "/repos/acme/web", true),
            ("PURGE", "/repos/x", true),
            ("POST", "/repos/acme/web", false),
            ("GET", "/users", false),
        ] {
            assert_eq!(could_fit(&conditions, &request(method, path)), fits, "{method} {path}");
        }
    }

    proptest! {
        #[test]
        fn what_fits_is_never_rejected_at_a_glance(
            methods in proptest::collection::vec("GET|POST|PURGE|M[A-C]", 0..3),
            paths in proptest::collection::vec("/[ab/*]{0,40}", 0..3),
            method in "GET|POST|PURGE|M[A-D]", path in "/[ab/]{0,40}"
        ) {
            let asked = policy::Request { methods, paths, ..policy::Request::default() };
            if let Ok(Some(conditions)) = Conditions::compile(&asked, Verdict::Allow) {
                let request = request(&method, &path);
                prop_assert!(conditions.missed(&request).is_some() || could_fit(&conditions, &request));
            }
        }
    }
}
