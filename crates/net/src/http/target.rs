//! What a request's target says: its path and query, and whether it is for the host of its connection.
//!
//! The path that goes on is the one that came, byte for byte. It is judged as its decoded form, and both are the same to every
//! server, whether that decodes before it looks for slashes or after, once or twice: a path in which this could make a
//! difference is refused. So there is no encoded slash, no backslash, no segment of dots in any spelling (`.`, `%2e%2e`,
//! `..;x`, `%252e.`), no empty segment, no control character, nothing that is not UTF-8.
//!
//! One encoded slash is taken: that in the name of a scoped package of npm (`/@scope%2fname`), the only spelling that npm
//! sends. It is judged as a slash. Others pass where a rule takes them (`encoded_slashes`): then both readings are plain, and rules know both.

use super::Bad;
use airlock_gate::{Reason, host::Target};
use http::{
    Method, Version, header, request,
    uri::{Authority, PathAndQuery, Scheme},
};

/// Most parameters of a query.
const MOST_PARAMETERS: usize = 1000;
/// So many times a path may be encoded one in another; more is refused.
const MOST_ENCODED: usize = 4;

/// The connection that a request came over.
#[derive(Debug, Clone)]
pub(crate) struct Connection {
    /// The name or address that it leads to.
    pub(crate) target: Target,
    /// The port.
    pub(crate) port: u16,
    /// Whether it is inside TLS.
    pub(crate) is_tls: bool,
}

/// A target that can be read in one way only, of the right host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Checked {
    /// The path as rules compare it; `*` for `OPTIONS *`.
    pub(crate) path: String,
    /// Where slashes are encoded in it: the path as servers read it that decode them.
    pub(crate) read_as: Option<String>,
    /// The query, decoded, in its order. What cannot be decoded stands as it came.
    pub(crate) query: Vec<(String, String)>,
    /// What is sent.
    pub(crate) sent: PathAndQuery,
}

/// Checks the target of a request (all forms but that of `CONNECT`): 400 if it can be read in more than one way, 421 if it
/// is for another host.
pub(crate) fn check(head: &request::Parts, connection: &Connection) -> Result<Checked, Bad> {
    scheme(head, connection)?;
    host(head, connection)?;
    let sent = head.uri.path_and_query().cloned().ok_or_else(|| bad("the request has no path"))?;
    let (path, read_as) = match sent.as_str() {
        "*" if head.method == Method::OPTIONS => ("*".to_owned(), None),
        _ => slashed(sent.path())?,
    };
    Ok(Checked { path, read_as, query: query(sent.query().unwrap_or_default())?, sent })
}

/// Where a request to a proxy goes: `CONNECT host:port`, or the absolute form `http://host/`. `None` where it is neither.
pub(crate) fn proxied(head: &request::Parts) -> Result<Option<(Target, u16)>, Bad> {
    if !matches!(head.version, Version::HTTP_10 | Version::HTTP_11) {
        return match head.method == Method::CONNECT {
            true => Err(bad("CONNECT inside HTTP/2")),
            false => Ok(None),
        };
    }
    let Some(authority) = head.uri.authority() else {
        return match head.method == Method::CONNECT {
            true => Err(bad("CONNECT without host and port")),
            false => Ok(None),
        };
    };
    let (target, port) = place(authority.as_str())?;
    match (head.uri.scheme(), port) {
        (None, Some(port)) if head.method == Method::CONNECT => Ok(Some((target, port))),
        (Some(scheme), port) if *scheme == Scheme::HTTP && head.method != Method::CONNECT => {
            Ok(Some((target, port.unwrap_or(80))))
        }
        (None, _) => Err(bad("the target is neither a path nor a URL")),
        _ => Err(bad("a proxy is asked for http URLs, and for others with CONNECT")),
    }
}

fn scheme(head: &request::Parts, connection: &Connection) -> Result<(), Bad> {
    let wanted = if connection.is_tls { Scheme::HTTPS } else { Scheme::HTTP };
    match head.uri.scheme() {
        Some(scheme) if *scheme != wanted => Err(bad("the scheme is not that of the connection")),
        _ => Ok(()),
    }
}

/// Every place that the head names is that of the connection, and there is at least one.
fn host(head: &request::Parts, connection: &Connection) -> Result<(), Bad> {
    let mut hosts = head.headers.get_all(header::HOST).iter();
    let host = hosts.next();
    if hosts.next().is_some() {
        return Err(bad("two host"));
    }
    let authority = head.uri.authority().map(Authority::as_str);
    if host.is_none() && (authority.is_none() || head.version < Version::HTTP_2) {
        return Err(bad("the request does not say which host it is for"));
    }
    let host = host.map(|value| value.to_str().map_err(|_| bad("host is no text"))).transpose()?;
    for named in [authority, host].into_iter().flatten() {
        is_for(named, connection)?;
    }
    Ok(())
}

fn is_for(named: &str, connection: &Connection) -> Result<(), Bad> {
    if is_as_written(named, connection) {
        return Ok(());
    }
    let (target, port) = place(named)?;
    let implied = if connection.is_tls { 443 } else { 80 };
    if target == connection.target && port.unwrap_or(implied) == connection.port {
        return Ok(());
    }
    let Connection { target, port, .. } = connection;
    let why = format!("the request is for {named}, its connection is to {target} port {port}");
    Err(Bad { status: 421, reason: Reason::Host, why })
}

/// Whether it is the very name of the connection, as nearly every request says it.
fn is_as_written(named: &str, connection: &Connection) -> bool {
    let implied = if connection.is_tls { 443 } else { 80 };
    connection.port == implied && connection.target.name().is_some_and(|name| name.as_str() == named)
}

/// Host and port of `HOST[:PORT]`.
fn place(text: &str) -> Result<(Target, Option<u16>), Bad> {
    if !text.bytes().all(|byte| byte.is_ascii_graphic()) || text.contains('@') {
        return Err(bad("the host has characters that no host has"));
    }
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') => (host, Some(port)),
        _ => (text, None),
    };
    // Only an address in brackets has a colon.
    if host.contains(':') != host.starts_with('[') {
        return Err(bad("the host is neither a name nor an address"));
    }
    let target = host.parse().map_err(|err| bad(&format!("the host cannot be read: {err}")))?;
    Ok((target, port.map(number).transpose()?))
}

fn number(port: &str) -> Result<u16, Bad> {
    let is_number = (1..=5).contains(&port.len()) && port.bytes().all(|byte| byte.is_ascii_digit());
    let number = port.parse().ok().filter(|port| *port > 0 && is_number);
    number.ok_or_else(|| bad("the port is no number"))
}

/// The path as rules compare it, and where it has encoded slashes, as it is read by a server that decodes them. Both are plain: what
/// could be read in a third way is refused.
fn slashed(sent: &str) -> Result<(String, Option<String>), Bad> {
    if !sent.contains('%') {
        return Ok((path(sent)?, None));
    }
    let parts: Vec<&str> = sent.split("%2f").flat_map(|part| part.split("%2F")).collect();
    if parts.len() == 1 || scoped_package(sent).is_some() {
        return Ok((path(sent)?, None));
    }
    // Whatever is encoded more than once is refused there, so that `%2F` stands for nothing else.
    let read_as = path(&parts.join("/"))?;
    let kept: Option<Vec<String>> = parts.iter().map(|part| decoded(part)).collect();
    let kept = kept.ok_or_else(|| bad("the path is not percent-encoded UTF-8"))?;
    Ok((kept.join("%2F"), Some(read_as)))
}

/// What is said where no rule takes encoded slashes.
pub(crate) fn encoded_slash() -> Bad {
    bad("the path has an encoded slash")
}

/// The path as rules compare it.
fn path(sent: &str) -> Result<String, Bad> {
    if !sent.starts_with('/') {
        return Err(bad("the path does not begin with a slash"));
    }
    if !sent.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(bad("the path has characters that no URL has"));
    }
    if !sent.contains('%') {
        return is_plain(sent).map(|()| sent.to_owned());
    }
    let scoped = scoped_package(sent);
    let sent = scoped.as_deref().unwrap_or(sent);
    let judged = decoded(sent).ok_or_else(|| bad("the path is not percent-encoded UTF-8"))?;
    is_plain(sent)?;
    let mut read = sent.to_owned();
    for _ in 0..MOST_ENCODED {
        let again = decoded_as_far_as_possible(&read);
        if again == read {
            return Ok(judged);
        }
        if again.matches('/').count() != read.matches('/').count() {
            return Err(bad("the path has an encoded slash"));
        }
        is_plain(&again)?;
        read = again;
    }
    Err(bad("the path is encoded too many times"))
}

/// Nothing in it that some server reads as another path.
fn is_plain(path: &str) -> Result<(), Bad> {
    if path.contains('\\') {
        return Err(bad("the path has a backslash"));
    }
    if path.chars().any(char::is_control) {
        return Err(bad("the path has a control character"));
    }
    let mut segments = path.split('/').skip(1).peekable();
    while let Some(segment) = segments.next() {
        if segment.is_empty() && segments.peek().is_some() {
            return Err(bad("the path has an empty segment"));
        }
        let name = segment.split(';').next().unwrap_or_default();
        if matches!(name.trim(), "." | "..") || (name.trim().is_empty() && !segment.is_empty()) {
            return Err(bad("the path has a segment of dots"));
        }
    }
    Ok(())
}

/// `/@scope/name` for `/@scope%2fname`.
fn scoped_package(sent: &str) -> Option<String> {
    let at = sent.to_ascii_lowercase().find("%2f")?;
    let (scope, rest) = (sent.get(..at)?, sent.get(at + 3..)?);
    let is_scope = scope.rsplit('/').next().is_some_and(|last| last.len() > 1 && last.starts_with('@'));
    (is_scope && !rest.is_empty() && !rest.starts_with('/')).then(|| format!("{scope}/{rest}"))
}

/// Percent-decoded once, if all of it can be and is UTF-8 then.
fn decoded(text: &str) -> Option<String> {
    let (bytes, is_whole) = unescaped(text);
    String::from_utf8(bytes).ok().filter(|_| is_whole)
}

/// Percent-decoded once, as lenient servers do: what is no escape stands for itself.
fn decoded_as_far_as_possible(text: &str) -> String {
    String::from_utf8_lossy(&unescaped(text).0).into_owned()
}

/// The bytes, and whether every `%` began an escape.
fn unescaped(text: &str) -> (Vec<u8>, bool) {
    let (mut bytes, mut is_whole) = (Vec::with_capacity(text.len()), true);
    let mut rest = text.as_bytes();
    while let [byte, tail @ ..] = rest {
        rest = tail;
        match (byte, tail) {
            (b'%', [high, low, tail @ ..]) if high.is_ascii_hexdigit() && low.is_ascii_hexdigit() => {
                bytes.push(digit(*high) * 16 + digit(*low));
                rest = tail;
            }
            _ => {
                is_whole &= *byte != b'%';
                bytes.push(*byte);
            }
        }
    }
    (bytes, is_whole)
}

/// The value of a hexadecimal digit.
fn digit(byte: u8) -> u8 {
    match byte {
        b'0'..=b'9' => byte - b'0',
        _ => byte.to_ascii_lowercase().saturating_sub(b'a') + 10,
    }
}

fn query(sent: &str) -> Result<Vec<(String, String)>, Bad> {
    let pairs: Vec<_> = sent.split('&').filter(|pair| !pair.is_empty()).take(MOST_PARAMETERS + 1).collect();
    if pairs.len() > MOST_PARAMETERS {
        return Err(bad("the query has too many parameters"));
    }
    let plain = |text: &str| decoded(&text.replace('+', " ")).unwrap_or_else(|| text.to_owned());
    Ok(pairs
        .into_iter()
        .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
        .map(|(name, value)| (plain(name), plain(value)))
        .collect())
}

fn bad(why: &str) -> Bad {
    Bad { status: 400, reason: Reason::Ambiguous, why: why.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::Request;
    use proptest::prelude::*;

    fn head(version: Version, target: &str, hosts: &[&str]) -> request::Parts {
        let mut request = Request::builder().version(version).uri(target);
        for host in hosts {
            request = request.header("host", *host);
        }
        request.body(()).unwrap().into_parts().0
    }

    fn connection(host: &str, port: u16) -> Connection {
        Connection { target: host.parse().unwrap(), port, is_tls: port != 80 }
    }

    fn judged(path: &str) -> Result<String, String> {
        let head = head(Version::HTTP_11, path, &["api.test"]);
        let checked = check(&head, &connection("api.test", 443));
        // As where no rule takes them.
        let plain = |checked: Checked| checked.read_as.map_or(Ok(checked.path), |_| Err(encoded_slash()));
        checked.and_then(plain).map_err(|bad| {
            assert_eq!((bad.status, bad.reason), (400, Reason::Ambiguous));
            bad.why
        })
    }

    fn host(version: Version, target: &str, hosts: &[&str], at: &Connection) -> u16 {
        check(&head(version, target, hosts), at).map_or_else(|bad| bad.status, |_| 200)
    }

    #[test]
    fn plain_paths_are_judged_decoded_and_sent_as_they_came() {
        for (sent, read) in [
            ("/", "/"),
            ("/a/b/", "/a/b/"),
            ("/a%20b", "/a b"),
            ("/caf%C3%A9", "/café"),
            ("/%61dmin", "/admin"),
            ("/v1.2/..x/x../...", "/v1.2/..x/x../..."),
            ("/file%2etxt", "/file.txt"),
            ("/100%25", "/100%"),
            ("/a;v=1/b", "/a;v=1/b"),
            ("/a:b@c!$&'()*+,=~_-", "/a:b@c!$&'()*+,=~_-"),
            ("/@scope%2Fname", "/@scope/name"),
            ("/npm/@scope%2fname/-/name-1.0.tgz", "/npm/@scope/name/-/name-1.0.tgz"),
        ] {
            let checked = check(&head(Version::HTTP_11, sent, &["api.test"]), &connection("api.test", 443));
            let checked = checked.unwrap_or_else(|bad| panic!("{sent}: {bad:?}"));
            assert_eq!((checked.path.as_str(), checked.sent.as_str()), (read, sent));
        }
    }

    #[test]
    fn paths_that_servers_read_in_different_ways_are_refused() {
        for path in [
            "/public/../admin",
            "/public/..",
            "/./admin",
            "/public/%2e%2e/admin",
            "/public/%2E./admin",
            "/public/.%2e/admin",
            "/public%2f..%2fadmin",
            "/public%2Fadmin",
            "/public/..%5cadmin",
            "/public\\..\\admin",
            "/public%5Cadmin",
            "//admin",
            "/public//admin",
            "/public/%2f/admin",
            "/public/..;/admin",
            "/public/..;x=1/admin",
            "/public/%2e%2e%3b/admin",
            "/public/;/admin",
            "/public/..%20/admin",
            "/public/%20/admin",
            "/public/%00",
            "/public/%0d%0aHost:%20evil",
            "/public/%7f",
            "/public/%c2%85",
            "/public/%zz",
            "/public/%2",
            "/public/%",
            "/public/%c0%ae%c0%ae/admin",
            "/public/%ff",
            "/public/%252e%252e/admin",
            "/public/%25252e%25252e/admin",
            "/public/%252fadmin",
            "/public/%255c",
            "/a%25/%252e%252e/b",
            "/public/%2525252525252541",
            "/@scope%2f../admin",
            "/@scope%2f%2fname",
            "/@scope%2fa%2fb",
            "/@%2fname",
            "/x@scope%2fname",
            "/caf\u{e9}",
        ] {
            assert!(judged(path).is_err(), "{path:?} was read as {:?}", judged(path));
        }
    }

    #[test]
    fn a_request_is_for_the_host_of_its_connection_or_misdirected() {
        let (tls, plain, odd) =
            (connection("api.test", 443), connection("api.test", 80), connection("api.test", 8443));
        let (one, two) = (Version::HTTP_11, Version::HTTP_2);
        for (status, version, target, hosts, at) in [
            (200, one, "/", &["api.test"][..], &tls),
            (200, one, "/", &["API.Test."], &tls),
            (200, one, "/", &["api.test:443"], &tls),
            (421, one, "/", &["api.test:80"], &tls),
            (200, one, "/", &["api.test"], &plain),
            (200, one, "/", &["api.test:80"], &plain),
            (200, one, "/", &["api.test:8443"], &odd),
            (421, one, "/", &["api.test"], &odd),
            (421, one, "/", &["evil.test"], &tls),
            (421, one, "/", &["api.test.evil.test"], &tls),
            (421, one, "/", &["93.184.216.34"], &tls),
            (400, one, "/", &["api.test", "api.test"], &tls),
            (400, one, "/", &["api.test", "evil.test"], &tls),
            (400, one, "/", &[], &tls),
            (400, Version::HTTP_10, "/", &[], &tls),
            (400, one, "/", &[""], &tls),
            (400, one, "/", &["user@api.test"], &tls),
            (400, one, "/", &["api.test:443:443"], &tls),
            (400, one, "/", &["api.test:"], &tls),
            (400, one, "/", &["api.test:0"], &tls),
            (400, one, "/", &["api.test:+443"], &tls),
            (400, one, "/", &["api.test/x"], &tls),
            (400, one, "/", &["api.test, evil.test"], &tls),
            (400, one, "/", &["0x7f.1"], &tls),
            (200, two, "https://api.test/", &[], &tls),
            (200, two, "https://api.test/", &["api.test"], &tls),
            (200, two, "/", &["api.test"], &tls),
            (421, two, "https://api.test/", &["evil.test"], &tls),
            (421, two, "https://evil.test/", &["api.test"], &tls),
            (421, two, "https://evil.test/", &[], &tls),
            (400, two, "http://api.test/", &[], &tls),
            (400, two, "https://user@api.test/", &[], &tls),
            (400, two, "/", &[], &tls),
            (200, one, "http://api.test/", &["api.test"], &plain),
            (421, one, "http://api.test/", &["evil.test"], &plain),
            (421, one, "http://evil.test/", &["api.test"], &plain),
            (400, one, "http://api.test/", &[], &plain),
        ] {
            assert_eq!(host(version, target, hosts, at), status, "{version:?} {target} {hosts:?}");
        }
        let six = connection("2001:db8::1", 443);
        assert_eq!(host(one, "/", &["[2001:db8::1]"], &six), 200);
        assert_eq!(host(one, "/", &["[2001:DB8:0::1]:443"], &six), 200);
        assert_eq!(host(one, "/", &["2001:db8::1"], &six), 400);
        assert_eq!(host(one, "/", &["[2001:db8::2]"], &six), 421);
    }

    #[test]
    fn the_query_is_decoded_in_its_order() {
        let read = |target: &str| {
            check(&head(Version::HTTP_11, target, &["api.test"]), &connection("api.test", 443)).unwrap().query
        };
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        assert_eq!(
            read("/?a=1&b=x%20y+z&a=2&c&=d&&e=f=g"),
            vec![
                pair("a", "1"),
                pair("b", "x y z"),
                pair("a", "2"),
                pair("c", ""),
                pair("", "d"),
                pair("e", "f=g"),
            ]
        );
        assert_eq!(read("/?%61=%zz&b=%ff"), vec![pair("a", "%zz"), pair("b", "%ff")]);
        let many = format!("/?{}", "a&".repeat(1001));
        assert!(check(&head(Version::HTTP_11, &many, &["api.test"]), &connection("api.test", 443)).is_err());
    }

    #[test]
    fn requests_to_a_proxy_are_told_apart() {
        let told = |method: Method, target: &str| {
            let mut head = head(Version::HTTP_11, target, &[]);
            head.method = method;
            proxied(&head)
        };
        let place = |host: &str, port| Ok(Some((host.parse::<Target>().unwrap(), port)));
        assert_eq!(told(Method::CONNECT, "api.test:443"), place("api.test", 443));
        assert_eq!(told(Method::CONNECT, "[2001:db8::1]:443"), place("2001:db8::1", 443));
        assert_eq!(told(Method::GET, "http://api.test/x"), place("api.test", 80));
        assert_eq!(told(Method::GET, "http://api.test:8080"), place("api.test", 8080));
        assert_eq!(told(Method::GET, "/x"), Ok(None));
        assert_eq!(told(Method::OPTIONS, "*"), Ok(None));
        for (method, target) in [
            (Method::CONNECT, "api.test"),
            (Method::CONNECT, "/x"),
            (Method::CONNECT, "http://api.test:80/"),
            (Method::GET, "https://api.test/"),
            (Method::GET, "ftp://api.test/"),
            (Method::GET, "api.test:443"),
            (Method::GET, "http://user@api.test/"),
            (Method::CONNECT, "0x7f.1:80"),
        ] {
            assert_eq!(told(method, target).unwrap_err().status, 400, "{target}");
        }
    }

    #[test]
    fn only_options_has_the_target_of_the_whole_server() {
        let mut head = head(Version::HTTP_11, "*", &["api.test"]);
        assert!(check(&head, &connection("api.test", 443)).is_err());
        head.method = Method::OPTIONS;
        assert_eq!(check(&head, &connection("api.test", 443)).unwrap().path, "*");
    }

    /// A server that decodes `times` times before and after it looks for slashes, and follows dots.
    fn served(sent: &str, before: usize, after: usize) -> Vec<String> {
        let decode =
            |text: &str, times| (0..times).fold(text.to_owned(), |text, _| decoded_as_far_as_possible(&text));
        let mut segments: Vec<String> = Vec::new();
        for segment in decode(sent, before).split(['/', '\\']).filter(|segment| !segment.is_empty()) {
            match decode(segment, after).split(';').next().unwrap_or_default().trim() {
                "." => (),
                ".." => drop(segments.pop()),
                _ => segments.push(decode(segment, after)),
            }
        }
        segments
    }

    #[test]
    fn encoded_slashes_are_known_in_both_readings() {
        for (sent, kept, read) in [
            ("/projects/acme%2Fweb", "/projects/acme%2Fweb", "/projects/acme/web"),
            ("/projects/acme%2fweb%2Fx/y", "/projects/acme%2Fweb%2Fx/y", "/projects/acme/web/x/y"),
            ("/a%20b%2fc", "/a b%2Fc", "/a b/c"),
        ] {
            assert_eq!(slashed(sent).unwrap(), (kept.to_owned(), Some(read.to_owned())));
        }
        for sent in [
            "/a%2F..%2Fb",
            "/a%2F%2Fb",
            "/a%252Fb",
            "/a%2Fb%252Fc",
            "/a%2f%2e%2e/b",
            "/a%2f/b",
            "/a/%2Fb",
            "/a%2Fb%5c",
        ] {
            assert!(slashed(sent).is_err(), "{sent} was read as {:?}", slashed(sent));
        }
    }

    proptest! {
        #[test]
        fn what_is_taken_leads_every_server_to_the_same_place(
            parts in proptest::collection::vec(
                proptest::sample::select(vec![
                    "/", ".", "..", "%2e", "%2F", "%5c", "%25", "2e", "2f", "a", "b", ";", "@", "%40", "%", "\\", "%20", "%41",
                ]), 0..12)
        ) {
            let sent = format!("/{}", parts.concat());
            if let Ok(judged) = path(&sent) {
                let read: Vec<_> = judged.split('/').filter(|part| !part.is_empty()).map(str::to_owned).collect();
                // A scoped package is one segment to a server that decodes after it looked for slashes.
                if !sent.to_ascii_lowercase().contains("%2f") {
                    prop_assert_eq!(served(&sent, 1, 0), read.clone());
                    prop_assert_eq!(served(&sent, 0, 1), read.clone());
                    prop_assert_eq!(served(&sent, 2, 0).len(), read.len());
                    prop_assert_eq!(served(&sent, 1, 1).len(), read.len());
                }
                prop_assert!(!read.iter().any(|part| part == "." || part == ".."));
            }
        }

        #[test]
        fn both_readings_of_encoded_slashes_are_those_of_servers(
            parts in proptest::collection::vec(
                proptest::sample::select(vec!["/", ".", "..", "%2e", "%2F", "%2f", "%25", "2f", "a", "b", ";", "%20", "%41"]), 0..10)
        ) {
            let sent = format!("/{}", parts.concat());
            if let Ok((kept, Some(read))) = slashed(&sent) {
                let split = |text: &str| text.split('/').filter(|part| !part.is_empty()).map(str::to_owned).collect::<Vec<_>>();
                prop_assert_eq!(served(&sent, 1, 0), split(&read));
                let late: Vec<String> = served(&sent, 0, 1).iter().map(|part| part.replace('/', "%2F")).collect();
                prop_assert_eq!(late, split(&kept));
            }
        }

        #[test]
        fn any_path_query_and_host_are_taken_without_a_panic(text in ".{0,80}", escaped in "[%0-9a-fA-F/.;\\\\@?&=+]{0,80}") {
            for text in [text, escaped] {
                let _ = path(&format!("/{text}"));
                let _ = query(&text);
                let _ = place(&text);
            }
        }
    }
}
