//! The filter whole, with a registry that is a table.

use super::*;
use crate::packages::lookup::{Ask, Fetched};
use crate::tests::setup;
use airlock_gate::Setup;
use airlock_protocol::policy::{self, Policy, Registry};
use http::{Request, Response};
use hyper::body::Bytes;
use std::{collections::HashMap, time::Duration};

/// 2023-11-14T22:13:20Z.
const NOW: u64 = 1_700_000_000;

#[derive(Default)]
struct Table {
    answers: HashMap<String, (HeaderMap, String)>,
    asked: RefCell<Vec<String>>,
}

impl Lookup for Table {
    fn ask<'a>(&'a self, ask: Ask) -> Local<'a, Option<Fetched>> {
        self.asked.borrow_mut().push(ask.path.clone());
        let answer = self.answers.get(&ask.path).map(|(headers, body)| Fetched {
            status: 200,
            headers: headers.clone(),
            body: body.clone().into_bytes(),
        });
        Box::pin(std::future::ready(answer))
    }
}

struct World {
    _folder: tempfile::TempDir,
    gate: Rc<Gate>,
    table: Rc<Table>,
    packages: Packages,
}

fn world(kind: RegistryKind, packages: policy::Packages, table: Table) -> World {
    let folder = tempfile::tempdir().unwrap();
    let registries = vec![Registry { kind, url: "https://r.example/base/".into() }];
    let policy = Policy { packages: policy::Packages { registries, ..packages }, ..Policy::default() };
    let ask_timeout = Duration::from_secs(1);
    let gate = Gate::new(Setup { ask_timeout, can_open: true, ..setup(folder.path(), policy) }).unwrap();
    let (gate, table) = (Rc::new(gate), Rc::new(table));
    let mut packages = Packages::new(gate.clone(), table.clone());
    packages.now = || NOW;
    World { _folder: folder, gate, table, packages }
}

fn passing(path: &str) -> Passing {
    Passing {
        target: "r.example".parse().unwrap(),
        port: 443,
        is_verified: true,
        method: "GET".into(),
        path: path.into(),
        rule: None,
        body: None,
    }
}

impl World {
    /// Sends a request through, and its answer; the body that comes in, or the denial in words.
    async fn fetch(
        &self,
        path: &str,
        headers: &[(&'static str, &str)],
        body: &[u8],
    ) -> Result<Vec<u8>, String> {
        let (passing, words) = (passing(path), |stop| match stop {
            Stop::Denied(denial) => denial.to_string(),
            Stop::Failed(why) => format!("failed: {why}"),
            Stop::Answered(_) => panic!("answered here"),
        });
        let request = Request::get(path).header("if-none-match", "x").header("accept", "text/html");
        let (mut head, ()) = request.body(()).unwrap().into_parts();
        assert!(self.packages.request(&passing, &mut head).await.map_err(words)?.is_none());
        if self.packages.asked(&passing).is_some_and(|(_, asked)| asked != Asked::Other) {
            assert!(!head.headers.contains_key("if-none-match"));
        }
        let mut response = Response::builder().status(200).header("etag", "y");
        for (name, value) in headers {
            response = response.header(*name, *value);
        }
        let (mut head, ()) = response.body(()).unwrap().into_parts();
        if self.packages.gathers(&passing, Way::In, &head.headers).is_none() {
            self.packages.response(&passing, &mut head).await.map_err(words)?;
            return Ok(body.to_vec());
        }
        let whole = Whole::Body(Bytes::copy_from_slice(body));
        let made = self.packages.whole_response(&passing, &mut head, whole).await.map_err(words)?;
        assert!(!head.headers.contains_key("etag") && !head.headers.contains_key("content-encoding"));
        Ok(made.unwrap().to_vec())
    }
}

fn run<T>(test: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(test)
}

const NPM: &str = r#"{"dist-tags":{"latest":"1.1.0"},"versions":{"1.0.0":{},"1.1.0":{}},
    "time":{"1.0.0":"2023-01-01T00:00:00Z","1.1.0":"2023-11-14T20:13:20Z"}}"#;

#[test]
fn a_young_version_is_hidden_and_is_not_handed_out() {
    run(async {
        let world = world(RegistryKind::Npm, policy::Packages::default(), Table::default());

        let index = world.fetch("/base/a", &[], NPM.as_bytes()).await.unwrap();
        let old = world.fetch("/base/a/-/a-1.0.0.tgz", &[], b"old").await;
        let young = world.fetch("/base/a/-/a-1.1.0.tgz", &[], b"young").await;

        let index = String::from_utf8(index).unwrap();
        assert!(!index.contains("1.1.0") && index.contains(r#""latest":"1.0.0""#), "{index}");
        assert_eq!(old.unwrap(), b"old");
        assert_eq!(
            young.unwrap_err(),
            "GET /base/a/-/a-1.1.0.tgz at r.example:443 is not allowed: this package may not be fetched, packages: min_age = 2 days \
             (a 1.1.0 is 2 hours old); hint: name it under allow of [packages] in airlock.toml, or wait"
        );
        assert!(world.table.asked.borrow().is_empty(), "what the index told was enough");
    });
}

#[test]
fn an_artefact_whose_index_never_passed_is_dated_by_itself_or_looked_up() {
    run(async {
        let mut table = Table::default();
        table.answers.insert("/base/a".into(), (HeaderMap::new(), NPM.into()));
        let world = world(RegistryKind::Npm, policy::Packages::default(), table);
        let old = [("last-modified", "Sun, 01 Jan 2023 00:00:00 GMT")];
        let young = [("last-modified", "Tue, 14 Nov 2023 22:00:00 GMT")];

        assert!(world.fetch("/base/b/-/b-1.0.0.tgz", &old, b"").await.is_ok());
        assert!(world.table.asked.borrow().is_empty());
        assert!(
            world.fetch("/base/b/-/b-1.0.1.tgz", &young, b"").await.unwrap_err().contains("13 minutes old")
        );
        assert!(world.fetch("/base/c/-/c-1.0.0.tgz", &[], b"").await.unwrap_err().contains("nobody tells"));
        assert!(world.fetch("/base/a/-/a-1.0.0.tgz", &[], b"").await.is_ok());
        assert!(world.fetch("/base/a/-/a-1.1.0.tgz", &[], b"").await.unwrap_err().contains("2 hours old"));
        assert!(world.fetch("/elsewhere/odd.tgz", &old, b"").await.unwrap_err().contains("which package"));
        assert!(world.fetch("/base/@x/y/-/health", &[], b"").await.is_ok());
    });
}

#[test]
fn lists_go_before_ages_and_other_rules_count_at_once() {
    run(async {
        let packages = policy::Packages {
            allow: vec!["a@1.1.0".into()],
            deny: vec!["b".into()],
            ..policy::Packages::default()
        };
        let world = world(RegistryKind::Npm, packages, Table::default());

        let index = String::from_utf8(world.fetch("/base/a", &[], NPM.as_bytes()).await.unwrap()).unwrap();
        assert!(index.contains(r#""latest":"1.1.0""#), "{index}");
        assert!(world.fetch("/base/a/-/a-1.1.0.tgz", &[], b"").await.is_ok());
        assert!(world.fetch("/base/b", &[], NPM.as_bytes()).await.unwrap_err().contains("deny = \"b\""));

        let off = Policy {
            packages: policy::Packages { min_age: Some(0), ..Default::default() },
            ..Policy::default()
        };
        world.gate.set_policy(off, "set").unwrap();
        assert!(!world.packages.wants(&"r.example".parse().unwrap(), 443));
        assert!(world.fetch("/base/b/-/b-1.0.0.tgz", &[], b"").await.is_ok());
    });
}

#[test]
fn an_index_that_is_wholly_young_is_refused_with_its_age() {
    run(async {
        let world = world(RegistryKind::Crates, policy::Packages::default(), Table::default());
        let line = "{\"name\":\"aaaa\",\"vers\":\"1.0.0\",\"pubtime\":\"2023-11-14T22:13:10Z\"}\n";
        let refused = world.fetch("/base/aa/aa/aaaa", &[], line.as_bytes()).await.unwrap_err();
        assert!(refused.contains("aaaa 1.0.0 is 10 seconds old"), "{refused}");
    });
}

#[test]
fn an_index_without_any_times_is_shown_and_each_file_has_to_tell_its_own() {
    run(async {
        let world = world(RegistryKind::Crates, policy::Packages::default(), Table::default());
        let line = "{\"name\":\"aaaa\",\"vers\":\"1.0.0\"}\n";
        assert_eq!(world.fetch("/base/aa/aa/aaaa", &[], line.as_bytes()).await.unwrap(), line.as_bytes());
        let file = "/dl/aaaa/1.0.0/download";
        assert!(world.fetch(file, &[], b"").await.unwrap_err().contains("nobody tells"));
        let old = [("last-modified", "Sun, 01 Jan 2023 00:00:00 GMT")];
        assert!(world.fetch(file, &old, b"").await.is_ok());
        assert_eq!(*world.table.asked.borrow(), ["/base/aa/aa/aaaa"]);
    });
}

#[test]
fn gzip_is_read_and_a_bomb_is_not() {
    run(async {
        use std::io::Write as _;
        let zipped = |bytes: &[u8], times: usize| {
            let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
            (0..times).for_each(|_| encoder.write_all(bytes).unwrap());
            encoder.finish().unwrap()
        };
        let world = world(RegistryKind::Npm, policy::Packages::default(), Table::default());
        let gzip = [("content-encoding", "gzip")];
        let index = world.fetch("/base/a", &gzip, &zipped(NPM.as_bytes(), 1)).await.unwrap();
        assert!(String::from_utf8(index).unwrap().contains("1.0.0"));
        let bomb = zipped(&[b' '; 1 << 16], 17);
        assert!(answers::gunzip(&bomb, 1 << 20).unwrap_err().contains("longer than 1 MB"));
        assert_eq!(answers::gunzip(&bomb, 2 << 20).unwrap().len(), 17 << 16);
        assert!(world.fetch("/base/a", &[("content-encoding", "br")], b"").await.unwrap_err().contains("br"));
    });
}

#[test]
fn pip_that_reads_no_json_gets_html() {
    run(async {
        let world = world(RegistryKind::Pypi, policy::Packages::default(), Table::default());
        let index = r#"{"files":[{"filename":"a-1.0.tar.gz","url":"f/a-1.0.tar.gz","hashes":{},"upload-time":"2023-01-01T00:00:00Z"},
            {"filename":"a-1.1.tar.gz","url":"f/a-1.1.tar.gz","hashes":{},"upload-time":"2023-11-14T00:00:00Z"}]}"#;
        let json = [("content-type", "application/vnd.pypi.simple.v1+json")];
        let page = world.fetch("/base/A/", &json, index.as_bytes()).await.unwrap();
        let page = String::from_utf8(page).unwrap();
        assert!(page.contains("<a href=\"f/a-1.0.tar.gz\">") && !page.contains("1.1.tar"), "{page}");
        let young = world.fetch("/f/a-1.1.tar.gz", &[], b"").await.unwrap_err();
        assert!(young.contains("a 1.1 is 22 hours old"), "{young}");
    });
}

#[test]
fn go_and_maven_are_asked_version_by_version() {
    run(async {
        let mut table = Table::default();
        let info = |time: &str, version: &str| {
            (HeaderMap::new(), format!("{{\"Version\":\"{version}\",\"Time\":\"{time}\"}}"))
        };
        table.answers.insert("/base/m/@v/v1.0.0.info".into(), info("2023-01-01T00:00:00Z", "v1.0.0"));
        table.answers.insert("/base/m/@v/v1.1.0.info".into(), info("2023-11-14T22:00:00Z", "v1.1.0"));
        let go = world(RegistryKind::Go, policy::Packages::default(), table);

        assert_eq!(go.fetch("/base/m/@v/list", &[], b"v1.1.0\nv1.0.0\n").await.unwrap(), b"v1.0.0\n");
        assert!(go.fetch("/base/m/@v/v1.1.0.zip", &[], b"").await.unwrap_err().contains("13 minutes old"));
        assert!(go.fetch("/base/m/@v/v1.0.0.zip", &[], b"").await.is_ok());
        let latest = br#"{"Version":"v1.2.0","Time":"2023-11-14T22:13:00Z"}"#;
        assert!(go.fetch("/base/m/@latest", &[], latest).await.unwrap_err().contains("20 seconds old"));

        let dated = |date: &'static str| {
            (HeaderMap::from_iter([(header::LAST_MODIFIED, HeaderValue::from_static(date))]), String::new())
        };
        let mut table = Table::default();
        table.answers.insert("/base/g/a/1.0/a-1.0.pom".into(), dated("Sun, 01 Jan 2023 00:00:00 GMT"));
        table.answers.insert("/base/g/a/2.0/a-2.0.pom".into(), dated("Tue, 14 Nov 2023 22:00:00 GMT"));
        let maven = world(RegistryKind::Maven, policy::Packages::default(), table);
        let text = "<versioning><release>2.0</release><versions><version>1.0</version><version>2.0</version></versions></versioning>";
        let made = maven.fetch("/base/g/a/maven-metadata.xml", &[], text.as_bytes()).await.unwrap();
        let made = String::from_utf8(made).unwrap();
        assert!(made.contains("<release>1.0</release>") && !made.contains("2.0"), "{made}");
        let [(_, digest), ..] = crate::packages::maven::digests(made.as_bytes());
        let asked = maven.fetch("/base/g/a/maven-metadata.xml.sha1", &[], b"of the other").await.unwrap();
        assert_eq!(asked, digest.as_bytes());
        assert_eq!(maven.fetch("/base/g/a/maven-metadata.xml.md5", &[], b"of the other").await.unwrap(), b"");
        assert_eq!(
            maven.fetch("/base/g/b/maven-metadata.xml.sha1", &[], b"its own").await.unwrap(),
            b"its own"
        );
        assert!(
            maven.fetch("/base/g/a/2.0/a-2.0.jar", &[], b"").await.unwrap_err().contains("13 minutes old")
        );
    });
}

#[test]
fn everything_that_is_kept_back_is_in_the_ledger() {
    run(async {
        let world = world(RegistryKind::Npm, policy::Packages::default(), Table::default());
        world.fetch("/base/a", &[], NPM.as_bytes()).await.unwrap();
        world.fetch("/base/a/-/a-1.1.0.tgz", &[], b"").await.unwrap_err();
        world.gate.close().unwrap();

        let text = std::fs::read_to_string(world._folder.path().join("ledger.jsonl")).unwrap();

        let told: Vec<&str> = text.lines().filter(|line| line.contains("\"reason\":\"package\"")).collect();
        assert_eq!(told.len(), 2, "{text}");
        assert!(told[0].contains("hidden of a: 1.1.0 (2 hours old)"), "{}", told[0]);
        assert!(told[1].contains("a 1.1.0 is 2 hours old"), "{}", told[1]);
    });
}
