//! Registries for tests: one of our own that can be made to fail and to lie, and Debian's `docker-registry`.
//!
//! ```no_run
//! use airlock_tests::{World, images::Image, registry::Registry};
//! let world = World::new();
//! let registry = Registry::start();
//! registry.add("team/app", "1", &Image::scratch());
//! world.airlock(["images", "pull", "--plain-http", &registry.name("team/app:1")]).run().succeeded();
//! ```

mod debian;
mod proxy;

pub use debian::{Debian, Login};
pub use proxy::{InTls, Proxy};

use crate::images::{Image, architecture, sha256};
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{Shutdown, TcpListener, TcpStream},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

/// What a manifest of one image is called.
pub const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
/// What a choice of images is called.
pub const INDEX: &str = "application/vnd.oci.image.index.v1+json";
/// What a layer is called that is not compressed.
pub const LAYER: &str = "application/vnd.oci.image.layer.v1.tar";

/// A request that arrived.
#[derive(Debug, Clone)]
pub struct Asked {
    /// The method.
    pub method: String,
    /// Path and query.
    pub path: String,
    /// Names in lower case.
    pub headers: BTreeMap<String, String>,
    /// How often this path was asked for before.
    pub before: usize,
}

/// What becomes of a request.
#[derive(Debug, Clone)]
pub enum Reply {
    /// What is there.
    Usual,
    /// As usual, but the connection ends after so many bytes of the content.
    Cut(usize),
    /// As usual, but in pieces that wait until the test says so: see [`Registry::open_gate`].
    Gated(usize),
    /// As usual, but slowly: so many bytes at a time, the head too.
    Slow(usize),
    /// As usual, but nothing more comes after so many bytes of the content, and the connection stays.
    Stalled(usize),
    /// These bytes, whatever they say.
    Raw(Vec<u8>),
}

/// Between two pieces of a slow answer.
const SLOWNESS: Duration = Duration::from_millis(2);

type Hook = Box<dyn Fn(&Asked) -> Reply + Send + Sync>;

/// A registry in this process. It serves what was added, and records what it was asked.
pub struct Registry {
    port: u16,
    state: Arc<State>,
}

struct State {
    content: Mutex<BTreeMap<String, (String, Vec<u8>)>>,
    asked: Mutex<Vec<Asked>>,
    served: Mutex<BTreeMap<String, usize>>,
    gate: (Mutex<bool>, std::sync::Condvar),
    hook: Hook,
}

impl Registry {
    /// One that does what it should.
    pub fn start() -> Registry {
        Registry::with(|_| Reply::Usual)
    }

    /// One that asks `hook` what to do.
    pub fn with(hook: impl Fn(&Asked) -> Reply + Send + Sync + 'static) -> Registry {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let state = Arc::new(State {
            content: Mutex::default(),
            asked: Mutex::default(),
            served: Mutex::default(),
            gate: Default::default(),
            hook: Box::new(hook),
        });
        let serving = Arc::clone(&state);
        // It ends with the process.
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let state = Arc::clone(&serving);
                thread::spawn(move || state.serve(stream));
            }
        });
        Registry { port, state }
    }

    /// Where it listens, as names of images have it.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// A name in it.
    pub fn name(&self, rest: &str) -> String {
        format!("{}/{rest}", self.address())
    }

    /// Adds an image; gives the digest of its manifest.
    pub fn add(&self, repository: &str, tag: &str, image: &Image) -> String {
        self.add_manifest(repository, tag, &self.manifest(repository, image))
    }

    /// Adds the parts of an image; gives its manifest.
    pub fn manifest(&self, repository: &str, image: &Image) -> Value {
        let described = |kind: &str, bytes: &[u8]| {
            let digest = self.add_blob(repository, bytes);
            json!({"mediaType": kind, "digest": digest, "size": bytes.len()})
        };
        let layers: Vec<Value> = image.layers().iter().map(|layer| described(LAYER, layer)).collect();
        let config = described("application/vnd.oci.image.config.v1+json", &image.config_bytes());
        json!({"schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": layers})
    }

    /// Adds any manifest under a tag and its digest, which it gives.
    pub fn add_manifest(&self, repository: &str, tag: &str, manifest: &Value) -> String {
        let bytes = manifest.to_string().into_bytes();
        let digest = format!("sha256:{}", sha256(&bytes));
        let kind = manifest["mediaType"].as_str().unwrap_or(MANIFEST).to_owned();
        for name in [tag, &digest] {
            let path = format!("/v2/{repository}/manifests/{name}");
            lock(&self.state.content).insert(path, (kind.clone(), bytes.clone()));
        }
        digest
    }

    /// Adds a blob; gives its digest.
    pub fn add_blob(&self, repository: &str, bytes: &[u8]) -> String {
        let digest = format!("sha256:{}", sha256(bytes));
        self.put(&format!("/v2/{repository}/blobs/{digest}"), bytes);
        digest
    }

    /// Puts any bytes at a path.
    pub fn put(&self, path: &str, bytes: &[u8]) {
        let kind = "application/octet-stream".to_owned();
        lock(&self.state.content).insert(path.to_owned(), (kind, bytes.to_vec()));
    }

    /// An index of these manifests, each for a processor.
    pub fn index(&self, repository: &str, tag: &str, manifests: &[(&str, &Value)]) -> String {
        let entries: Vec<Value> = manifests
            .iter()
            .map(|(processor, manifest)| {
                let digest = self.add_manifest(repository, processor, manifest);
                let size = manifest.to_string().len();
                let platform = json!({"os": "linux", "architecture": processor});
                json!({"mediaType": MANIFEST, "digest": digest, "size": size, "platform": platform})
            })
            .collect();
        self.add_manifest(
            repository,
            tag,
            &json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": entries}),
        )
    }

    /// What was asked so far.
    pub fn asked(&self) -> Vec<Asked> {
        lock(&self.state.asked).clone()
    }

    /// How many bytes of a path's content went out so far.
    pub fn served(&self, path: &str) -> usize {
        lock(&self.state.served).get(path).copied().unwrap_or(0)
    }

    /// Lets what waits go on, once.
    pub fn open_gate(&self) {
        let (open, changed) = &self.state.gate;
        *lock(open) = true;
        changed.notify_all();
    }
}

impl State {
    fn serve(&self, stream: TcpStream) -> Option<()> {
        let mut reader = BufReader::new(stream.try_clone().ok()?);
        let mut stream = stream;
        let Some(asked) = self.read(&mut reader) else {
            // What TLS servers do not say.
            let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
            return None;
        };
        lock(&self.asked).push(asked.clone());
        let reply = (self.hook)(&asked);
        if let Reply::Raw(bytes) = &reply {
            let _ = stream.write_all(bytes);
            let _ = stream.shutdown(Shutdown::Both);
            return None;
        }
        let (head, body) = self.usual(&asked);
        if let Reply::Slow(piece) = reply {
            let _ = stream.set_nodelay(true);
            for piece in head.as_bytes().chunks(piece).chain(body.chunks(piece)) {
                stream.write_all(piece).ok()?;
                // What makes it slow.
                thread::sleep(SLOWNESS);
            }
            return stream.shutdown(Shutdown::Both).ok();
        }
        stream.write_all(head.as_bytes()).ok()?;
        match reply {
            Reply::Cut(most) => self.send(&mut stream, &asked.path, body.get(..most).unwrap_or(&body))?,
            Reply::Gated(first) => {
                let (now, later) = body.split_at(first.min(body.len()));
                self.send(&mut stream, &asked.path, now)?;
                let (open, changed) = &self.gate;
                let mut is_open = lock(open);
                while !*is_open {
                    is_open = changed.wait(is_open).unwrap_or_else(PoisonError::into_inner);
                }
                drop(is_open);
                self.send(&mut stream, &asked.path, later)?;
            }
            Reply::Stalled(most) => {
                self.send(&mut stream, &asked.path, body.get(..most).unwrap_or(&body))?;
                // Until the other side has had enough.
                let _ = reader.read(&mut [0]);
            }
            Reply::Usual | Reply::Slow(_) | Reply::Raw(_) => self.send(&mut stream, &asked.path, &body)?,
        }
        stream.shutdown(Shutdown::Both).ok()
    }

    fn read(&self, reader: &mut BufReader<TcpStream>) -> Option<Asked> {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let mut words = line.split(' ');
        let (method, path) = (words.next()?.to_owned(), words.next()?.to_owned());
        let mut headers = BTreeMap::new();
        loop {
            let mut line = String::new();
            reader.read_line(&mut line).ok()?;
            let Some((name, value)) = line.trim_end().split_once(':') else { break };
            headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
        }
        let length = headers.get("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
        let mut content = vec![0; length];
        reader.read_exact(&mut content).ok()?;
        let before = lock(&self.asked).iter().filter(|asked| asked.path == path).count();
        Some(Asked { method, path, headers, before })
    }

    fn usual(&self, asked: &Asked) -> (String, Vec<u8>) {
        let content = lock(&self.content);
        let Some((kind, bytes)) = content.get(&asked.path) else {
            let body = br#"{"errors":[{"code":"NAME_UNKNOWN","message":"there is no such thing"}]}"#.to_vec();
            return (head("404 Not Found", "application/json", body.len(), ""), body);
        };
        let from = asked.headers.get("range").and_then(|range| range.strip_prefix("bytes="));
        let from = from.and_then(|range| range.strip_suffix('-')?.parse::<usize>().ok());
        match from {
            Some(from) if from < bytes.len() => {
                let range = format!("content-range: bytes {from}-{}/{}\r\n", bytes.len() - 1, bytes.len());
                let part = bytes.get(from..).unwrap_or_default().to_vec();
                (head("206 Partial Content", kind, part.len(), &range), part)
            }
            _ => (head("200 OK", kind, bytes.len(), ""), bytes.clone()),
        }
    }

    fn send(&self, stream: &mut TcpStream, path: &str, bytes: &[u8]) -> Option<()> {
        for piece in bytes.chunks(64 * 1024) {
            stream.write_all(piece).ok()?;
            *lock(&self.served).entry(path.to_owned()).or_default() += piece.len();
        }
        Some(())
    }
}

fn head(status: &str, kind: &str, length: usize, more: &str) -> String {
    format!(
        "HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {length}\r\n{more}connection: close\r\n\r\n"
    )
}

/// A whole answer.
pub fn answer(status: &str, headers: &str, body: &str) -> Reply {
    Reply::Raw(
        format!(
            "HTTP/1.1 {status}\r\n{headers}content-length: {}\r\nconnection: close\r\n\r\n{body}",
            body.len()
        )
        .into_bytes(),
    )
}

/// This machine's processor, and another.
pub fn processors() -> [&'static str; 2] {
    let here = architecture();
    [here, if here == "arm64" { "amd64" } else { "arm64" }]
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
