//! Images from registries and to them: real ones, and some that fail and lie.

use airlock_tests::{
    Airlock, World, eventually,
    images::{Image, Layer, sha256},
    registry::{Asked, Debian, LAYER, Login, Proxy, Registry, Reply, answer, processors},
};
use serde_json::{Value, json};
use std::{
    fs,
    io::Write as _,
    os::unix::fs::PermissionsExt as _,
    path::Path,
    process::{Command, Stdio},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

/// An image of some layers with so many bytes each.
fn image(layers: usize, bytes: usize) -> Image {
    (0..layers).fold(Image::scratch(), |image, number| {
        let mut content = vec![0u8; bytes];
        let mut seed = u32::try_from(number).unwrap() + 1;
        for byte in &mut content {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            *byte = seed.to_be_bytes()[0];
        }
        image.layer(Layer::new().file(&format!("file{number}"), 0o644, &content))
    })
}

fn pull(world: &World, name: &str) -> Airlock {
    world.airlock(["images", "pull", "--plain-http", name])
}

/// Names of files in a folder of the store.
fn stored(world: &World, folder: &str) -> Vec<String> {
    let entries = fs::read_dir(world.home().join("images").join(folder)).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

fn digest(bytes: &[u8]) -> String {
    format!("sha256:{}", sha256(bytes))
}

fn blob(repository: &str, bytes: &[u8]) -> String {
    format!("/v2/{repository}/blobs/{}", digest(bytes))
}

fn configure(world: &World, text: &str) {
    fs::create_dir_all(world.home()).unwrap();
    fs::set_permissions(world.home(), fs::Permissions::from_mode(0o700)).unwrap();
    fs::write(world.home().join("config.toml"), text).unwrap();
}

/// Files of a user's ids are only deleted by airlock itself.
fn clear(world: &World) {
    world.airlock(["images", "prune", "--all", "--force"]).run().succeeded();
}

#[test]
fn what_is_pulled_is_verified_unpacked_and_told() {
    let world = World::new();
    let registry = Registry::start();
    let image = image(2, 100_000);
    let manifest = registry.add("team/app", "1", &image);

    let pulled = pull(&world, &registry.name("team/app:1")).run();
    let again = pull(&world, &registry.name("team/app:1")).args(["--json"]).run().succeeded();

    assert_eq!(pulled.succeeded(), format!("{}\n", image.id()));
    let lines: Vec<Value> = again.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines[0]["digest"], manifest);
    let states: Vec<&Value> =
        lines.iter().map(|line| &line["state"]).filter(|state| !state.is_null()).collect();
    assert!(states.iter().all(|state| *state == "exists" || *state == "done"), "{again}");
    assert_eq!(lines.last().unwrap()["id"], image.id());
    assert_eq!(stored(&world, "blobs/sha256").len(), 4);
    assert_eq!(stored(&world, "incoming"), Vec::<String>::new());
    assert_eq!(stored(&world, "layers").len(), 2);
    clear(&world);
}

#[test]
fn an_image_goes_to_a_real_registry_and_comes_back_with_tls_and_a_password() {
    let world = World::new();
    let Some(real) = Debian::start(&world.aside("registry"), Login::Ada) else { return };
    let registry = Registry::start();
    let image = image(3, 300_000);
    let manifest = registry.add("team/app", "1", &image);
    pull(&world, &registry.name("team/app:1")).run().succeeded();
    let name = real.name("mine/app:7");
    let docker = world.aside("docker");

    let push = || {
        world.airlock(["images", "push", &registry.name("team/app:1"), &name]).env("DOCKER_CONFIG", &docker)
    };
    let untrusted = push().run().failed(1);
    configure(&world, &format!("[images]\nca = \"{}\"\n", real.authority().display()));
    let nobody = push().run().failed(1);
    // printf ada:lovelace | base64
    let auth = json!({"auths": {real.address(): {"auth": "YWRhOmxvdmVsYWNl"}}});
    fs::write(docker.join("config.json"), auth.to_string()).unwrap();
    let pushed = push().run().succeeded();
    let other = World::new();
    configure(&other, &format!("[images]\nca = \"{}\"\n", real.authority().display()));
    let pulled = other.airlock(["images", "pull", &name]).env("DOCKER_CONFIG", &docker).run().succeeded();

    assert!(
        untrusted.contains("cannot be trusted: ") && untrusted.contains("fix:  if its certificate"),
        "{untrusted}"
    );
    assert!(nobody.contains("docker login"), "{nobody}");
    assert_eq!(pushed, format!("{}@{manifest}\n", real.name("mine/app")));
    assert_eq!(pulled, format!("{}\n", image.id()));
    clear(&world);
    clear(&other);
}

#[test]
fn a_helper_of_docker_is_asked_for_what_lets_one_in() {
    let world = World::new();
    let Some(real) = Debian::start(&world.aside("registry"), Login::Ada) else { return };
    let (docker, bin) = (world.aside("docker"), world.aside("bin"));
    let helper = bin.join("docker-credential-tests");
    fs::write(&helper, "#!/bin/sh\nread -r it; printf '{\"ServerURL\":\"%s\",\"Username\":\"ada\",\"Secret\":\"lovelace\"}' \"$it\"\n").unwrap();
    fs::set_permissions(&helper, fs::Permissions::from_mode(0o755)).unwrap();
    fs::write(docker.join("config.json"), r#"{"credsStore": "tests"}"#).unwrap();
    configure(&world, &format!("[images]\nca = \"{}\"\n", real.authority().display()));
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());

    let missing = world.airlock(["images", "pull", &real.name("no/such:1")]).env("DOCKER_CONFIG", &docker);
    let said = missing.env("PATH", path).run().failed(1);

    assert!(said.contains("has no no/such:1"), "let in, and then not found: {said}");
}

/// A registry that wants a token of its own service, and a password there.
fn with_tokens(address: Arc<Mutex<String>>) -> Registry {
    Registry::with(move |asked: &Asked| {
        let address = address.lock().unwrap().clone();
        if let Some(query) = asked.path.strip_prefix("/token?") {
            let is_ada = asked.headers.get("authorization").is_some_and(|it| it == "Basic YWRhOmxvdmVsYWNl");
            let is_wanted =
                query.contains("service=tests") && query.contains("scope=repository:team/app:pull");
            return match is_ada && is_wanted {
                true => answer("200 OK", "", r#"{"token": "open-sesame"}"#),
                false => answer("401 Unauthorized", "", ""),
            };
        }
        match asked.headers.get("authorization").map(String::as_str) {
            Some("Bearer open-sesame") => Reply::Usual,
            _ => {
                let header = format!(
                    "www-authenticate: Bearer realm=\"http://{address}/token\",service=\"tests\"\r\n"
                );
                answer("401 Unauthorized", &header, "")
            }
        }
    })
}

#[test]
fn a_token_is_fetched_with_the_password_and_opens_the_registry() {
    let world = World::new();
    let address = Arc::new(Mutex::new(String::new()));
    let registry = with_tokens(Arc::clone(&address));
    *address.lock().unwrap() = registry.address();
    let image = image(1, 10);
    registry.add("team/app", "1", &image);
    let docker = world.aside("docker");

    let without = pull(&world, &registry.name("team/app:1")).env("DOCKER_CONFIG", &docker).run().failed(1);
    let auth = json!({"auths": {registry.address(): {"auth": "YWRhOmxvdmVsYWNl"}}});
    fs::write(docker.join("config.json"), auth.to_string()).unwrap();
    let with = pull(&world, &registry.name("team/app:1")).env("DOCKER_CONFIG", &docker).run().succeeded();

    assert!(
        without.contains("does not let us have a token") && without.contains("docker login"),
        "{without}"
    );
    assert_eq!(with, format!("{}\n", image.id()));
    clear(&world);
}

#[test]
fn what_lets_one_in_is_not_carried_to_another_server() {
    let world = World::new();
    let elsewhere = Arc::new(Registry::start());
    let other = Arc::clone(&elsewhere);
    let registry = Registry::with(move |asked| {
        if !asked.headers.contains_key("authorization") {
            return answer("401 Unauthorized", "www-authenticate: Basic realm=\"tests\"\r\n", "");
        }
        match asked.path.contains("/blobs/") {
            true => answer(
                "307 Temporary Redirect",
                &format!("location: http://{}{}\r\n", other.address(), asked.path),
                "",
            ),
            false => Reply::Usual,
        }
    });
    let image = image(1, 10);
    registry.add("team/app", "1", &image);
    elsewhere.add("team/app", "1", &image);
    let docker = world.aside("docker");
    let auth = json!({"auths": {registry.address(): {"auth": "YWRhOmxvdmVsYWNl"}}});
    fs::write(docker.join("config.json"), auth.to_string()).unwrap();

    pull(&world, &registry.name("team/app:1")).env("DOCKER_CONFIG", &docker).run().succeeded();

    let asked = elsewhere.asked();
    assert!(!asked.is_empty());
    assert!(asked.iter().all(|asked| !asked.headers.contains_key("authorization")), "{asked:?}");
    clear(&world);
}

#[test]
fn a_download_that_breaks_off_goes_on_where_it_was() {
    let world = World::new();
    let registry = Registry::with(|asked| match (asked.path.contains("/blobs/"), asked.before) {
        (true, before @ 0..4) => Reply::Cut(70_000 + before * 1234),
        _ => Reply::Usual,
    });
    let image = image(1, 500_000);
    registry.add("team/app", "1", &image);

    let pulled = pull(&world, &registry.name("team/app:1")).run();

    let path = blob("team/app", &image.layers()[0]);
    assert!(pulled.stderr.contains("tries again: the connection to"), "{}", pulled.stderr);
    assert_eq!(pulled.succeeded(), format!("{}\n", image.id()));
    assert_eq!(registry.served(&path), image.layers()[0].len(), "no byte travelled twice");
    clear(&world);
}

#[test]
fn pulls_that_are_killed_are_gone_on_with() {
    let world = World::new();
    let registry = Registry::with(|asked| match asked.path.contains("/blobs/") && asked.before < 5 {
        true => Reply::Gated(90_000 * (asked.before + 1) % 400_000),
        false => Reply::Usual,
    });
    let image = image(1, 2_000_000);
    registry.add("team/app", "1", &image);
    let layer = &image.layers()[0];
    let hex = sha256(layer);
    let arrived =
        || fs::metadata(world.home().join("images/incoming").join(&hex)).map_or(0, |file| file.len());

    // The config is asked for once: the layer is what is gated after the first try of each.
    let mut before = 0;
    for _ in 0..4 {
        let running = pull(&world, &registry.name("team/app:1")).start();
        let came = eventually("some of it arrives", || Some(arrived()).filter(|length| *length > before));
        drop(running);
        before = came;
    }
    registry.open_gate();
    let pulled = pull(&world, &registry.name("team/app:1")).run().succeeded();

    assert_eq!(pulled, format!("{}\n", image.id()));
    let path = blob("team/app", layer);
    let ranges: Vec<_> = registry
        .asked()
        .into_iter()
        .filter(|asked| asked.path == path)
        .map(|asked| asked.headers.get("range").cloned())
        .collect();
    assert!(ranges[1..].iter().all(Option::is_some), "{ranges:?}");
    assert_eq!(stored(&world, "incoming"), Vec::<String>::new());
    clear(&world);
}

#[test]
fn twenty_processes_download_each_layer_once() {
    let world = World::new();
    let registry = Registry::start();
    let image = image(3, 400_000);
    registry.add("team/app", "1", &image);
    let name = registry.name("team/app:1");

    let running: Vec<_> = (0..20).map(|_| pull(&world, &name).start()).collect();
    for one in running {
        assert_eq!(one.wait().succeeded(), format!("{}\n", image.id()));
    }

    let asked = registry.asked();
    for layer in image.layers() {
        let path = blob("team/app", layer);
        assert_eq!(asked.iter().filter(|asked| asked.path == path).count(), 1, "{path}");
    }
    assert_eq!(stored(&world, "incoming"), Vec::<String>::new());
    clear(&world);
}

#[test]
fn the_platform_is_chosen_from_an_index() {
    let world = World::new();
    let registry = Registry::start();
    let [here, other] = processors();
    let (ours, theirs) = (image(1, 10), image(2, 10));
    let manifests = [registry.manifest("app", &theirs), registry.manifest("app", &ours)];
    registry.index("app", "1", &[(other, &manifests[0]), (here, &manifests[1])]);
    let name = registry.name("app:1");

    let usual = pull(&world, &name).run().succeeded();
    let chosen = pull(&world, &name).args(["--platform", &format!("linux/{other}")]).run().succeeded();
    let none = pull(&world, &name).args(["--platform", "linux/riscv64"]).run().failed(1);

    let before = registry.asked().len();
    let looked =
        world.airlock(["images", "inspect", "--remote", "--json", "--plain-http", &name]).run().succeeded();
    let looked: Value = serde_json::from_str(&looked).unwrap();
    assert_eq!(looked["id"], ours.id());
    assert_eq!(registry.asked().len(), before + 3, "index, manifest, config");

    assert_eq!((usual, chosen), (format!("{}\n", ours.id()), format!("{}\n", theirs.id())));
    assert!(none.contains("has no image for linux/riscv64, but for"), "{none}");
    clear(&world);
}

/// Pulls from a registry that does this; gives why it failed, and asserts that nothing of its layers was stored.
#[track_caller]
fn refused(hook: impl Fn(&Asked) -> Reply + Send + Sync + 'static) -> String {
    let world = World::new();
    let registry = Registry::with(hook);
    registry.add("app", "1", &image(1, 100_000));
    let failed = pull(&world, &registry.name("app:1")).run().failed(1);
    assert_eq!(stored(&world, "blobs/sha256"), Vec::<String>::new());
    assert_eq!(stored(&world, "layers"), Vec::<String>::new());
    failed
}

fn is_layer(asked: &Asked) -> bool {
    asked.path == blob("app", &image(1, 100_000).layers()[0])
}

#[test]
fn a_layer_of_other_bytes_or_another_length_is_refused() {
    let layer = image(1, 100_000).layers()[0].clone();
    let mut wrong = layer.clone();
    wrong[5_000] ^= 1;
    let answered = |body: &[u8], head: &str| {
        let mut bytes = format!("HTTP/1.1 200 OK\r\n{head}\r\n").into_bytes();
        bytes.extend(body);
        bytes
    };
    let length = layer.len();
    let cases = [
        (answered(&wrong, &format!("content-length: {length}\r\n")), "its digest is sha256:"),
        (answered(&layer, "content-length: 7\r\n"), "it has another length"),
        (answered(&[&layer[..], b"more"].concat(), ""), "it has more bytes than it should"),
        (
            answered(&layer, &format!("content-encoding: gzip\r\ncontent-length: {length}\r\n")),
            "it is encoded",
        ),
        (b"HTTP/1.1 206 Partial Content\r\ncontent-range: bytes 0-9/10\r\n\r\n".to_vec(), "it is a part"),
        (b"HTTP/1.1 302 Found\r\nlocation: ftp://127.0.0.1/\r\n\r\n".to_vec(), "does not say where to"),
        (
            b"HTTP/1.1 302 Found\r\nlocation: /v2/app/manifests/../loop\r\n\r\n".to_vec(),
            "has no such thing|404",
        ),
    ];
    for (bytes, words) in cases {
        let said =
            refused(move |asked| if is_layer(asked) { Reply::Raw(bytes.clone()) } else { Reply::Usual });
        assert!(words.split('|').any(|words| said.contains(words)), "{words}: {said}");
    }
}

#[test]
fn a_registry_that_leads_in_circles_is_left() {
    let said = refused(|asked| match asked.path.contains("/manifests/") {
        true => answer("302 Found", &format!("location: {}\r\n", asked.path), ""),
        false => Reply::Usual,
    });
    assert!(said.contains("it goes on and on"), "{said}");
}

#[test]
fn a_manifest_that_lies_is_refused() {
    let huge = "x".repeat(5 << 20);
    let kind = "content-type: application/vnd.oci.image.manifest.v1+json\r\n";
    let wrong = format!("docker-content-digest: {}\r\n", digest(b"other"));
    let artifact = json!({"schemaVersion": 2, "layers": [], "config": {
        "mediaType": "application/vnd.example.chart+json", "digest": digest(b"{}"), "size": 2}});
    let both = json!({"schemaVersion": 2, "layers": [], "manifests": [], "config": artifact["config"]});
    let large = json!({"schemaVersion": 2, "layers": [{"mediaType": LAYER, "digest": digest(b"l"), "size": 1u64 << 62}],
        "config": {"mediaType": "application/vnd.oci.image.config.v1+json", "digest": digest(b"{}"), "size": 1u64 << 40}});
    let cases = [
        ("<html>".to_owned(), String::new(), "is no manifest of an image"),
        (huge, String::new(), "sent more than"),
        (json!({"schemaVersion": 1}).to_string(), kind.to_owned(), "schema version 1"),
        (both.to_string(), kind.to_owned(), "a manifest and an index at once"),
        (artifact.to_string(), kind.to_owned(), "is no image: its config is of the kind"),
        (artifact.to_string(), wrong, "its digest is"),
        (large.to_string(), kind.to_owned(), "too many for a document"),
    ];
    for (body, headers, words) in cases {
        let said = refused(move |asked| match asked.path.contains("/manifests/") {
            true => answer("200 OK", &headers, &body),
            false => Reply::Usual,
        });
        assert!(said.contains(words), "{words}: {said}");
    }
}

#[test]
fn a_failure_that_passes_is_waited_out_and_one_that_stays_is_told() {
    let world = World::new();
    let tries = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&tries);
    let registry = Registry::with(move |_| match seen.fetch_add(1, Ordering::SeqCst) {
        0 => answer("503 Service Unavailable", "", ""),
        1 => answer("429 Too Many Requests", "retry-after: 0\r\n", ""),
        2 => Reply::Raw(Vec::new()),
        _ => Reply::Usual,
    });
    let image = image(1, 10);
    registry.add("app", "1", &image);

    let pulled = pull(&world, &registry.name("app:1")).run().succeeded();
    let said = refused(|_| {
        answer("500 Internal Server Error", "", r#"{"errors":[{"message":"the disk is full"}]}"#)
    });
    let never = refused(|_| answer("429 Too Many Requests", "retry-after: 86400\r\n", ""));

    assert_eq!(pulled, format!("{}\n", image.id()));
    assert!(said.contains("answered 500") && said.contains("the disk is full"), "{said}");
    assert!(never.contains("answered 429"), "{never}");
    clear(&world);
}

#[test]
fn a_name_that_is_not_there_is_told_with_those_that_are() {
    let world = World::new();
    let registry = Registry::start();
    registry.add("team/app", "1", &image(1, 10));
    registry.put("/v2/team/app/tags/list?n=100", br#"{"name":"team/app","tags":["1","1.1"]}"#);

    let said = pull(&world, &registry.name("team/app")).run().failed(1);
    let short = world.airlock(["images", "pull", "app"]).run().failed(2);
    let tls = world.airlock(["images", "pull", &registry.name("team/app:1")]).run().failed(1);

    assert!(said.contains("has no team/app:latest") && said.contains("fix:  there are: 1, 1.1"), "{said}");
    assert!(
        short.contains("names no registry") && short.contains("under [images] in config.toml"),
        "{short}"
    );
    assert!(tls.contains("insecure = ["), "plain HTTP only when told: {tls}");
}

#[test]
fn a_registry_of_short_names_and_a_plain_one_are_settings() {
    let world = World::new();
    let registry = Registry::start();
    let image = image(1, 10);
    registry.add("app", "latest", &image);
    configure(&world, &format!("[images]\nregistry = \"{0}\"\ninsecure = [\"{0}\"]\n", registry.address()));

    let pulled = world.airlock(["images", "pull", "app"]).run().succeeded();
    let before = registry.asked().len();
    let prefetched = world.airlock(["prefetch", &registry.name("app")]).run().succeeded();

    assert_eq!(pulled, format!("{}\n", image.id()));
    assert_eq!((prefetched.as_str(), registry.asked().len()), ("", before), "it was here");
    clear(&world);
}

/// A key of cosign's kind, and a signature of an image beside it.
struct Signer<'a> {
    folder: &'a Path,
    name: &'a str,
}

impl Signer<'_> {
    fn new<'a>(folder: &'a Path, name: &'a str) -> Signer<'a> {
        let signer = Signer { folder, name };
        signer.openssl(&format!("ecparam -name prime256v1 -genkey -noout -out {name}.key"));
        signer.openssl(&format!("ec -in {name}.key -pubout -out {name}.pub"));
        signer
    }

    fn openssl(&self, line: &str) {
        let done = Command::new("openssl").args(line.split(' ')).current_dir(self.folder).output().unwrap();
        assert!(done.status.success(), "openssl {line}: {}", String::from_utf8_lossy(&done.stderr));
    }

    /// The payload, and its signature in base 64.
    fn sign(&self, digest: &str) -> (String, String) {
        let payload = json!({"critical": {"identity": {"docker-reference": ""}, "image": {"docker-manifest-digest": digest},
            "type": "cosign container image signature"}, "optional": null});
        let payload = payload.to_string();
        fs::write(self.folder.join("payload"), &payload).unwrap();
        self.openssl(&format!("dgst -sha256 -sign {}.key -out signature payload", self.name));
        self.openssl("base64 -A -in signature -out signature.b64");
        (payload, fs::read_to_string(self.folder.join("signature.b64")).unwrap())
    }

    /// Puts a signature beside an image, as cosign does.
    fn sign_at(&self, registry: &Registry, repository: &str, digest: &str) {
        let (payload, signature) = self.sign(digest);
        let layer = registry.add_blob(repository, payload.as_bytes());
        let config = registry.add_blob(repository, b"{}");
        let manifest = json!({"schemaVersion": 2, "mediaType": airlock_tests::registry::MANIFEST,
            "config": {"mediaType": "application/vnd.oci.image.config.v1+json", "digest": config, "size": 2},
            "layers": [{"mediaType": "application/vnd.dev.cosign.simplesigning.v1+json", "digest": layer,
                "size": payload.len(), "annotations": {"dev.cosignproject.cosign/signature": signature}}]});
        registry.add_manifest(repository, &format!("{}.sig", digest.replace(':', "-")), &manifest);
    }
}

fn demand(registry: &Registry, key: &Path, more: &str) -> String {
    format!(
        "[images]\ninsecure = [\"{0}\"]\n[[images.verify]]\nrepository = \"{0}/team/*\"\nkey = \"{1}\"\n{more}",
        registry.address(),
        key.display()
    )
}

#[test]
fn only_what_the_right_key_signed_is_pulled() {
    let world = World::new();
    let keys = world.aside("keys");
    let (ours, other) = (Signer::new(&keys, "ours"), Signer::new(&keys, "other"));
    let registry = Registry::start();
    let unsigned = registry.add("team/unsigned", "1", &image(1, 10));
    let signed = registry.add("team/signed", "1", &image(2, 10));
    let strange = registry.add("team/strange", "1", &image(3, 10));
    let moved = registry.add("team/moved", "1", &image(4, 10));
    registry.add("free/app", "1", &image(1, 10));
    ours.sign_at(&registry, "team/signed", &signed);
    other.sign_at(&registry, "team/strange", &strange);
    // A good signature of another image, under the tag of this one.
    let (payload, signature) = ours.sign(&unsigned);
    let layer = registry.add_blob("team/moved", payload.as_bytes());
    let config = registry.add_blob("team/moved", b"{}");
    let manifest = json!({"schemaVersion": 2, "mediaType": airlock_tests::registry::MANIFEST,
        "config": {"mediaType": "application/vnd.oci.image.config.v1+json", "digest": config, "size": 2},
        "layers": [{"mediaType": "application/vnd.dev.cosign.simplesigning.v1+json", "digest": layer,
            "size": payload.len(), "annotations": {"dev.cosignproject.cosign/signature": signature}}]});
    registry.add_manifest("team/moved", &format!("{}.sig", moved.replace(':', "-")), &manifest);
    configure(&world, &demand(&registry, &keys.join("ours.pub"), ""));

    let pull = |name: &str| world.airlock(["images", "pull", &registry.name(name)]).run();

    pull("free/app:1").succeeded();
    pull("team/signed:1").succeeded();
    for (name, words) in [
        ("team/unsigned:1", "there is no signature for"),
        ("team/strange:1", "no key that is demanded made it"),
        ("team/moved:1", "it is for sha256:"),
    ] {
        let said = pull(name).failed(4);
        assert!(said.contains("is not signed as your config.toml demands") && said.contains(words), "{said}");
    }
    clear(&world);
}

#[test]
fn a_signature_in_a_file_counts_without_one_in_the_registry() {
    let world = World::new();
    let keys = world.aside("keys");
    let ours = Signer::new(&keys, "ours");
    let registry = Registry::start();
    let manifest = registry.add("team/app", "1", &image(1, 10));
    let (payload, signature) = ours.sign(&manifest);
    fs::write(keys.join("payload"), payload).unwrap();
    ours.openssl("base64 -A -in payload -out payload.b64");
    let line = json!({"Base64Signature": signature, "Payload": fs::read_to_string(keys.join("payload.b64")).unwrap()});
    fs::write(keys.join("signatures"), format!("{line}\n")).unwrap();
    let more = format!("signatures = \"{}\"\n", keys.join("signatures").display());

    configure(&world, &demand(&registry, &keys.join("ours.pub"), ""));
    world.airlock(["images", "pull", &registry.name("team/app:1")]).run().failed(4);
    configure(&world, &demand(&registry, &keys.join("ours.pub"), &more));
    world.airlock(["images", "pull", &registry.name("team/app:1")]).run().succeeded();
    clear(&world);
}

#[test]
fn an_image_runs_only_while_its_signature_is_the_demanded_one() {
    let world = World::new();
    let Some(busybox) = Image::busybox() else { return };
    let keys = world.aside("keys");
    let (ours, _) = (Signer::new(&keys, "ours"), Signer::new(&keys, "other"));
    let registry = Registry::start();
    let manifest = registry.add("team/app", "1", &busybox);
    ours.sign_at(&registry, "team/app", &manifest);
    let name = registry.name("team/app:1");
    let run = || world.airlock(["run", "--image", &name, "--", "echo", "inside"]).run();

    configure(&world, &demand(&registry, &keys.join("ours.pub"), ""));
    assert_eq!(run().succeeded(), "inside\n", "it is pulled where it is not here");
    let before = registry.asked().len();
    assert_eq!(run().succeeded(), "inside\n");
    assert_eq!(registry.asked().len(), before, "what is here is checked here");
    configure(&world, &demand(&registry, &keys.join("other.pub"), ""));
    let said = run().failed(4);
    let folder = world.aside("context");
    fs::write(folder.join("Dockerfile"), format!("FROM {name}\nENV a=b\n")).unwrap();
    let built = world.airlock(["build"]).args([&folder]).run().failed(4);

    assert!(said.contains("is not signed as your config.toml demands"), "{said}");
    assert!(
        built.contains("Dockerfile:1: ") && built.contains("is not signed as your config.toml demands"),
        "{built}"
    );
    clear(&world);
}

#[test]
fn a_server_that_sends_a_few_bytes_at_a_time_is_waited_for() {
    let world = World::new();
    let registry = Registry::with(|asked| Reply::Slow(if asked.path.contains("/blobs/") { 512 } else { 16 }));
    let image = image(2, 40_000);
    registry.add("team/app", "1", &image);

    let pulled = pull(&world, &registry.name("team/app:1")).run().succeeded();

    assert_eq!(pulled, format!("{}\n", image.id()));
    assert!(registry.asked().iter().all(|asked| asked.before == 0), "nothing is asked for twice");
    clear(&world);
}

#[test]
fn a_server_that_falls_silent_is_left_and_asked_for_the_rest() {
    let world = World::new();
    let registry = Registry::with(|asked| match asked.path.contains("/blobs/") && asked.before == 0 {
        true => Reply::Stalled(10_000),
        false => Reply::Usual,
    });
    let image = image(1, 40_000);
    registry.add("team/app", "1", &image);

    let patient =
        pull(&world, &registry.name("team/app:1")).args(["--json"]).deadline(Duration::from_secs(280));
    let told = patient.run().succeeded();

    assert!(told.contains("\"state\":\"retries\""), "{told}");
    let rest = registry.asked().into_iter().rfind(|asked| asked.path.contains(&digest(&image.layers()[0])));
    assert_eq!(rest.and_then(|asked| asked.headers.get("range").cloned()).as_deref(), Some("bytes=10000-"));
    clear(&world);
}

#[test]
fn a_registry_is_reached_through_a_proxy_and_by_its_name_alone() {
    let world = World::new();
    let registry = Registry::start();
    let image = image(2, 40_000);
    registry.add("team/app", "1", &image);
    let proxy = Proxy::to(&registry.address());
    let name = "registry.nowhere.test:5000/team/app:1";

    let direct = pull(&world, name).run();
    let pulled = pull(&world, name).env("https_proxy", proxy.url()).run().succeeded();
    let excepted = pull(&world, name).env("https_proxy", proxy.url()).env("no_proxy", ".nowhere.test").run();

    assert_ne!((direct.code, excepted.code), (0, 0), "nobody knows this name");
    assert_eq!(pulled, format!("{}\n", image.id()));
    assert!(proxy.asked().iter().all(|asked| asked == "registry.nowhere.test:5000"), "{:?}", proxy.asked());
    assert!(!proxy.asked().is_empty());
    clear(&world);
}

#[test]
fn tls_goes_through_a_proxy_to_its_end() {
    let world = World::new();
    let Some(real) = Debian::start(&world.aside("registry"), Login::Ada) else { return };
    let proxy = Proxy::to(&real.address());
    let docker = world.aside("docker");
    let auth = json!({"auths": {"registry.nowhere.test": {"auth": "YWRhOmxvdmVsYWNl"}}});
    fs::write(docker.join("config.json"), auth.to_string()).unwrap();
    let text = format!(
        "[images]\nca = \"{}\"\n[network]\nproxy = \"{}\"\n",
        real.authority().display(),
        proxy.url()
    );
    configure(&world, &text);

    let missing =
        world.airlock(["images", "pull", "registry.nowhere.test/no/such:1"]).env("DOCKER_CONFIG", &docker);
    let said = missing.run().failed(1);

    assert!(said.contains("has no no/such:1"), "let in, and then not found: {said}");
    assert_eq!(proxy.asked().first().map(String::as_str), Some("registry.nowhere.test:443"));
}

#[test]
fn a_proxy_in_tls_is_verified_and_leads_to_a_registry() {
    let world = World::new();
    let folder = world.aside("registry");
    let Some(real) = Debian::start(&folder, Login::Nobody) else { return };
    let Some(image) = Image::busybox() else { return };
    let archive = image.named("app:1").docker_archive(&world.aside("archives").join("app.tar"));
    world.airlock(["images", "load", "-q", "-i"]).args([&archive]).run().succeeded();
    let plain = Proxy::to(&real.address());
    let proxy = plain.in_tls(&folder);
    let name = "registry.nowhere.test/team/app:1";
    let trusts = format!("[images]\nca = \"{}\"\n", real.authority().display());

    configure(&world, &format!("{trusts}[network]\nproxy = \"{}\"\n", proxy.url()));
    world.airlock(["images", "push", "app:1", name]).run().succeeded();
    configure(&world, &trusts);
    world.airlock(["images", "prune", "--all", "--force"]).run().succeeded();
    world.airlock(["images", "pull", name]).env("HTTPS_PROXY", proxy.url()).run().succeeded();
    let said = ["run", "-q", "--image", name, "--workspace", "none", "--", "echo", "from afar"];
    let ran = world.airlock(said).run().succeeded();
    configure(&world, "");
    let asked = plain.asked().len();
    let untrusted = world.airlock(["images", "pull", name]).env("HTTPS_PROXY", proxy.url()).run();
    let spelled = world.airlock(["images", "pull", name]).env("HTTPS_PROXY", "socks5://127.0.0.1:1").run();

    assert_eq!(ran, "from afar\n");
    assert!(plain.asked().iter().all(|asked| asked == "registry.nowhere.test:443"), "{:?}", plain.asked());
    let why = untrusted.failed(1);
    assert!(why.contains("proxy cannot be spoken to in private"), "{why}");
    assert_eq!(plain.asked().len(), asked, "who is not trusted is not asked");
    let why = spelled.failed(2);
    assert!(why.contains("HTTPS_PROXY") && why.contains("other schemes are not spoken"), "{why}");
}

#[test]
fn a_terminal_shows_a_bar_for_each_layer_and_lines_go_elsewhere() {
    let world = World::new();
    let image = image(2, 98_304);
    let second = digest(&image.layers()[1]);
    let late = second.clone();
    let registry = Registry::with(move |asked| match asked.path.contains(&late) {
        true => Reply::Gated(50_176),
        false => Reply::Usual,
    });
    registry.add("team/app", "1", &image);
    let name = registry.name("team/app:1");
    let short = |at: usize| digest(&image.layers()[at])[7..19].to_owned();
    let size = "97.5K";

    let mut terminal = world.on_terminal(["images", "pull", "--plain-http", &name]);
    let half = format!("{}  [============            ] downloading 49K of {size}", short(1));
    let done = format!("{}  done, {size}", short(0));
    let is_half = |seen: &[String]| seen.contains(&half) && seen.contains(&done);
    eventually(&format!("{half} and {done}"), || is_half(&terminal.seen()).then_some(()));
    assert_eq!(terminal.seen().len(), 2, "{:?}", terminal.seen());
    registry.open_gate();
    assert_eq!(terminal.wait(), 0);
    let last = [done, format!("{}  done, {size}", short(1)), image.id()];
    eventually("the end", || {
        let mut seen = terminal.seen();
        seen.sort();
        let mut last = last.to_vec();
        last.sort();
        (seen == last).then_some(())
    });

    clear(&world);
    let plain = pull(&world, &name).run();
    for at in [0, 1] {
        for words in [format!("{}: downloaded {size}", short(at)), format!("{}: done, {size}", short(at))] {
            assert!(plain.stderr.lines().any(|line| line == words), "{words}: {plain}");
        }
    }
    assert!(!plain.stderr.contains('\x1b') && plain.stdout == format!("{}\n", image.id()), "{plain}");
    clear(&world);
}

#[test]
fn layers_are_taken_plain_and_compressed_by_gzip_and_zstd() {
    let (world, registry) = (World::new(), Registry::start());
    let Some(mut image) = Image::busybox() else { return };
    for name in ["gzip", "zstd"] {
        image = image.layer(Layer::new().file(name, 0o644, format!("by {name}\n").as_bytes()));
    }
    let mut manifest = registry.manifest("team/app", &image);
    for (at, kind) in [(1, "gzip"), (2, "zstd")] {
        let mut packer = Command::new(kind);
        let mut packer =
            packer.arg("-c").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it is installed");
        packer.stdin.take().unwrap().write_all(&image.layers()[at]).unwrap();
        let packed = packer.wait_with_output().unwrap().stdout;
        let digest = registry.add_blob("team/app", &packed);
        manifest["layers"][at] =
            json!({"mediaType": format!("{LAYER}+{kind}"), "digest": digest, "size": packed.len()});
    }
    registry.add_manifest("team/app", "1", &manifest);
    let name = registry.name("team/app:1");

    let pulled = pull(&world, &name).run().succeeded();
    let flags = ["run", "-q", "--image", &name, "--pull", "never", "--workspace", "none"];
    let said = world.airlock(flags).args(["--", "cat", "/gzip", "/zstd"]).run().succeeded();

    assert_eq!(pulled, format!("{}\n", image.id()));
    assert_eq!(said, "by gzip\nby zstd\n");
}
