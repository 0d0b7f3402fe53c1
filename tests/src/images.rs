//! Images for tests, made of nothing but what is here: archives as `docker save` and as OCI write them.
//!
//! ```no_run
//! use airlock_tests::{World, images::Image};
//! let world = World::new();
//! let Some(image) = Image::busybox() else { return };
//! let archive = image.named("bb:1").docker_archive(&world.aside("images").join("bb.tar"));
//! world.airlock(["images", "load", "-i"]).args([archive]).run().succeeded();
//! ```

use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use std::{
    fs,
    io::Read as _,
    path::{Path, PathBuf},
    process::Command,
};
use tar::{Builder, EntryType, Header};

/// An image that is put together.
#[derive(Debug, Clone)]
pub struct Image {
    names: Vec<String>,
    config: Value,
    layers: Vec<Vec<u8>>,
}

/// A layer that is put together: an archive that is not compressed.
pub struct Layer(Builder<Vec<u8>>);

/// Where Debian's `busybox-static` is.
const BUSYBOX: [&str; 2] = ["/usr/bin/busybox", "/bin/busybox"];

impl Image {
    /// An image without layers.
    pub fn scratch() -> Image {
        let config = json!({
            "created": "2026-01-01T00:00:00Z",
            "architecture": architecture(),
            "os": "linux",
            "config": {"Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"]},
            "rootfs": {"type": "layers", "diff_ids": []},
            "history": [],
        });
        Image { names: Vec::new(), config, layers: Vec::new() }
    }

    /// One layer with a busybox, a link to it for each of its programs, users and `/tmp`; it runs `sh`. Nothing where there
    /// is no busybox that needs no library; return then.
    pub fn busybox() -> Option<Image> {
        let Some(program) = BUSYBOX.iter().map(Path::new).find(|path| path.is_file()) else {
            crate::skip("there is no busybox-static");
            return None;
        };
        let listed = Command::new(program).arg("--list").output().expect("busybox runs");
        let applets = String::from_utf8(listed.stdout).expect("names of programs");
        let mut layer = Layer::new();
        for directory in ["bin", "dev", "etc", "home", "proc", "root", "sys", "usr", "usr/bin", "var"] {
            layer = layer.directory(directory, 0o755);
        }
        layer =
            layer.directory("tmp", 0o1777).file("bin/busybox", 0o755, &fs::read(program).expect("busybox"));
        for applet in applets.lines().filter(|applet| *applet != "busybox") {
            layer = layer.link(&format!("bin/{applet}"), "busybox");
        }
        layer = layer
            .file("etc/passwd", 0o644, b"root:x:0:0:root:/root:/bin/sh\nada:x:1000:1000::/home/ada:/bin/sh\n")
            .file("etc/group", 0o644, b"root:x:0:\nada:x:1000:\nstaff:x:50:ada\n");
        Some(Image::scratch().layer(layer).configured("Cmd", json!(["sh"])))
    }

    /// With one more name.
    #[must_use]
    pub fn named(mut self, name: &str) -> Image {
        self.names.push(name.to_owned());
        self
    }

    /// With one more layer above the others.
    #[must_use]
    pub fn layer(mut self, layer: Layer) -> Image {
        let bytes = layer.bytes();
        let digest = format!("sha256:{}", sha256(&bytes));
        let by = format!("layer {}", self.layers.len() + 1);
        push(&mut self.config["rootfs"]["diff_ids"], json!(digest));
        push(&mut self.config["history"], json!({"created": "2026-01-01T00:00:00Z", "created_by": by}));
        self.layers.push(bytes);
        self
    }

    /// With a field of the part that says how it is run: `Cmd`, `Env`, `User`.
    #[must_use]
    pub fn configured(mut self, field: &str, value: Value) -> Image {
        self.config["config"][field] = value;
        self
    }

    /// Its id: the digest of its config.
    pub fn id(&self) -> String {
        format!("sha256:{}", sha256(&self.config_bytes()))
    }

    /// The bytes of its config.
    pub fn config_bytes(&self) -> Vec<u8> {
        self.config.to_string().into_bytes()
    }

    /// Its layers, lowest first, as archives that are not compressed.
    pub fn layers(&self) -> &[Vec<u8>] {
        &self.layers
    }

    /// Writes it as `docker save` did before 25: `<hex>.json`, `<hex>/layer.tar`, `manifest.json`. Gives the path.
    pub fn docker_archive(&self, path: &Path) -> PathBuf {
        let config = format!("{}.json", sha256(&self.config_bytes()));
        let names: Vec<String> =
            self.layers.iter().map(|layer| format!("{}/layer.tar", sha256(layer))).collect();
        let manifest = json!([{"Config": config, "RepoTags": self.names, "Layers": names}]);
        let mut archive = Layer::new();
        for (name, layer) in names.iter().zip(&self.layers) {
            archive = archive.file(name, 0o644, layer);
        }
        archive = archive.file(&config, 0o644, &self.config_bytes());
        archive.file("manifest.json", 0o644, manifest.to_string().as_bytes()).write(path)
    }

    /// Writes it as an OCI layout in one archive. Gives the path.
    pub fn oci_archive(&self, path: &Path) -> PathBuf {
        let config = self.config_bytes();
        let described = |kind: &str, bytes: &[u8]| json!({"mediaType": kind, "digest": format!("sha256:{}", sha256(bytes)), "size": bytes.len()});
        let layers: Vec<Value> = self
            .layers
            .iter()
            .map(|layer| described("application/vnd.oci.image.layer.v1.tar", layer))
            .collect();
        let kind = "application/vnd.oci.image.manifest.v1+json";
        let manifest = json!({
            "schemaVersion": 2, "mediaType": kind, "layers": layers,
            "config": described("application/vnd.oci.image.config.v1+json", &config),
        });
        let manifest = manifest.to_string().into_bytes();
        let mut entries = Vec::new();
        for name in self.names.iter().map(Some).chain(self.names.is_empty().then_some(None)) {
            let mut entry = described(kind, &manifest);
            if let Some(name) = name {
                entry["annotations"] = json!({"io.containerd.image.name": name});
            }
            entries.push(entry);
        }
        let index = json!({"schemaVersion": 2, "manifests": entries});
        let mut archive = Layer::new().file("oci-layout", 0o644, br#"{"imageLayoutVersion":"1.0.0"}"#).file(
            "index.json",
            0o644,
            index.to_string().as_bytes(),
        );
        for blob in self.layers.iter().chain([&config, &manifest]) {
            archive = archive.file(&format!("blobs/sha256/{}", sha256(blob)), 0o644, blob);
        }
        archive.write(path)
    }
}

impl Default for Layer {
    fn default() -> Layer {
        Layer::new()
    }
}

impl Layer {
    /// An empty one.
    pub fn new() -> Layer {
        Layer(Builder::new(Vec::new()))
    }

    /// One that was packed elsewhere.
    pub fn from_bytes(bytes: &[u8]) -> Layer {
        let mut layer = Layer::new();
        let end =
            bytes.chunks(512).rposition(|block| block.iter().any(|byte| *byte != 0)).map_or(0, |at| at + 1);
        let bytes = bytes.get(..end * 512).unwrap_or(bytes);
        std::io::Write::write_all(layer.0.get_mut(), bytes).expect("an archive in memory");
        layer
    }

    /// With a directory.
    #[must_use]
    pub fn directory(self, path: &str, mode: u32) -> Layer {
        self.entry(EntryType::Directory, &format!("{path}/"), mode, b"")
    }

    /// With a file of root's.
    #[must_use]
    pub fn file(self, path: &str, mode: u32, bytes: &[u8]) -> Layer {
        self.entry(EntryType::Regular, path, mode, bytes)
    }

    /// With a symbolic link.
    #[must_use]
    pub fn link(mut self, path: &str, target: &str) -> Layer {
        let mut header = header(EntryType::Symlink, 0o777, 0);
        self.0.append_link(&mut header, path, target).expect("an archive in memory");
        self
    }

    /// With whatever a header says; nothing about it is checked.
    #[must_use]
    pub fn raw(mut self, header: &Header, bytes: &[u8]) -> Layer {
        self.0.append(header, bytes).expect("an archive in memory");
        self
    }

    /// The archive.
    pub fn bytes(self) -> Vec<u8> {
        self.0.into_inner().expect("an archive in memory")
    }

    fn entry(mut self, kind: EntryType, path: &str, mode: u32, bytes: &[u8]) -> Layer {
        let mut header = header(kind, mode, bytes.len());
        self.0.append_data(&mut header, path, bytes).expect("an archive in memory");
        self
    }

    fn write(self, path: &Path) -> PathBuf {
        fs::write(path, self.bytes())
            .unwrap_or_else(|err| panic!("could not write {}: {err}", path.display()));
        path.to_owned()
    }
}

/// The digest of some bytes, in hexadecimal digits.
pub fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// What an archive holds: the bytes of each file, by name, in order.
pub fn entries(archive: &Path) -> Vec<(String, Vec<u8>)> {
    let file =
        fs::File::open(archive).unwrap_or_else(|err| panic!("could not open {}: {err}", archive.display()));
    let mut archive = tar::Archive::new(file);
    let read = |entry: std::io::Result<tar::Entry<'_, fs::File>>| {
        let mut entry = entry.expect("an entry");
        let mut bytes = Vec::new();
        entry.read_to_end(&mut bytes).expect("its bytes");
        (String::from_utf8(entry.path_bytes().into_owned()).expect("a name"), bytes)
    };
    archive.entries().expect("an archive").map(read).collect()
}

/// This machine's processor, as images call it.
pub fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

fn header(kind: EntryType, mode: u32, size: usize) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header.set_size(size.try_into().expect("a size"));
    header
}

fn push(list: &mut Value, value: Value) {
    list.as_array_mut().expect("a list").push(value);
}
