//! Debian's `docker-registry` on loopback, with one large image in it.

use super::super::contender::try_out;
use crate::system::{Scratch, program};
use anyhow::{Context as _, Result, bail};
use std::{
    fs::{self, File},
    net::{TcpListener, TcpStream},
    path::Path,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

/// A registry, ended when dropped.
pub(crate) struct Registry {
    child: Child,
    port: u16,
}

/// How long it may take to listen.
const PATIENCE: Duration = Duration::from_secs(20);

/// Half a gigabyte in six layers, as an OCI layout: many small files, some large ones, text that compresses as programs do.
const MAKE: &str = r#"
import gzip, hashlib, io, json, os, random, sys, tarfile
top = sys.argv[1]
blobs = f"{top}/blobs/sha256"
os.makedirs(blobs)
rng = random.Random(7)
words = [rng.randbytes(rng.randrange(3, 12)) for _ in range(5000)]
def text(size):
    parts, length = [], 0
    while length < size:
        part = b"".join(rng.choices(words, k=400)) + rng.randbytes(400)
        parts.append(part); length += len(part)
    return b"".join(parts)[:size]
pool = text(8 << 20)
def some(size):
    start = rng.randrange(0, len(pool) - 1)
    data = pool[start:start + size]
    while len(data) < size:
        data += pool[: size - len(data)]
    return data
def put(data):
    name = hashlib.sha256(data).hexdigest()
    open(f"{blobs}/{name}", "wb").write(data)
    return {"digest": "sha256:" + name, "size": len(data)}
layers, diffs = [], []
for number in range(6):
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.PAX_FORMAT) as tar:
        def add(name, data):
            info = tarfile.TarInfo(name); info.size = len(data); info.mtime = 1700000000
            tar.addfile(info, io.BytesIO(data))
        left = 83 << 20
        for file in range(4000):
            size = rng.randrange(200, 16000); left -= size
            add(f"opt/{number}/small/{file % 80}/{file}", some(size))
        for file in range(6):
            add(f"opt/{number}/large/{file}", some(left // 6))
    raw = raw.getvalue()
    diffs.append("sha256:" + hashlib.sha256(raw).hexdigest())
    layers.append(dict(put(gzip.compress(raw, 6, mtime=0)), mediaType="application/vnd.oci.image.layer.v1.tar+gzip"))
config = json.dumps({"architecture": "amd64", "os": "linux", "config": {}, "rootfs": {"type": "layers", "diff_ids": diffs}}).encode()
config = dict(put(config), mediaType="application/vnd.oci.image.config.v1+json")
manifest = json.dumps({"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json", "config": config, "layers": layers}).encode()
manifest = dict(put(manifest), mediaType="application/vnd.oci.image.manifest.v1+json")
json.dump({"schemaVersion": 2, "manifests": [manifest]}, open(f"{top}/index.json", "w"))
json.dump({"imageLayoutVersion": "1.0.0"}, open(f"{top}/oci-layout", "w"))
"#;

impl Registry {
    /// Starts it, and puts the image there.
    pub(crate) fn start(scratch: &Scratch) -> Result<Registry> {
        let program = program("docker-registry").context("there is no docker-registry")?;
        let folder = scratch.folder("registry")?;
        let port = free_port()?;
        let settings = folder.join("config.yml");
        let text = format!(
            "version: 0.1\nlog: {{level: error}}\nstorage: {{filesystem: {{rootdirectory: {}/data}}}}\n\
             http: {{addr: 127.0.0.1:{port}}}\n",
            folder.display()
        );
        fs::write(&settings, text).with_context(|| format!("could not write {}", settings.display()))?;
        let log = File::create(folder.join("log")).context("could not make a log")?;
        let child = Command::new(program)
            .arg("serve")
            .arg(&settings)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .context("could not start docker-registry")?;
        let mut registry = Registry { child, port };
        registry.wait_until_it_listens()?;
        registry.fill(&scratch.folder("layout")?)?;
        Ok(registry)
    }

    /// Host and port.
    pub(crate) fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// The name of the image.
    pub(crate) fn image(&self) -> String {
        format!("{}/large:1", self.address())
    }

    fn wait_until_it_listens(&mut self) -> Result<()> {
        let begin = Instant::now();
        while TcpStream::connect(self.address()).is_err() {
            if self.child.try_wait()?.is_some() || begin.elapsed() > PATIENCE {
                bail!("docker-registry does not listen");
            }
            // It tells nobody when it is ready; asking again is the only way.
            thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }

    fn fill(&self, layout: &Path) -> Result<()> {
        println!("making an image of half a gigabyte");
        try_out(Command::new("python3").args(["-c", MAKE]).arg(layout))?;
        let skopeo = program("skopeo").context("there is no skopeo")?;
        try_out(
            Command::new(skopeo)
                .args(["copy", "--quiet", "--insecure-policy", "--dest-tls-verify=false"])
                .arg(format!("oci:{}", layout.display()))
                .arg(format!("docker://{}", self.image())),
        )
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        if let Err(why) = self.child.kill().and_then(|()| self.child.wait()) {
            eprintln!("could not end docker-registry: {why}");
        }
    }
}

/// A port that was free a moment ago.
fn free_port() -> Result<u16> {
    let listener = TcpListener::bind("127.0.0.1:0").context("there is no free port")?;
    Ok(listener.local_addr()?.port())
}
