use std::sync::OnceLock;

use airlock_files::layers::compression::Compression;
use proptest::prelude::*;
use serde_json::{Value, json};
use tar::{Builder, EntryType, Header};

use super::*;
use crate::{
    digest::Digest,
    manifest::{Platform, RunConfig},
    store::{Hold, Image, Store},
};

fn hold() -> (tempfile::TempDir, Hold) {
    let home = tempfile::tempdir().unwrap();
    let hold = Store::open(home.path()).unwrap().hold().unwrap();
    (home, hold)
}

fn tar(entries: &[(&str, &[u8])]) -> Vec<u8> {
    let mut builder = Builder::new(Vec::new());
    for (name, bytes) in entries {
        let mut header = Header::new_gnu();
        header.set_size(bytes.len() as u64);
        header.set_mode(0o644);
        builder.append_data(&mut header, name, *bytes).unwrap();
    }
    builder.into_inner().unwrap()
}

fn layer() -> &'static [u8] {
    static LAYER: OnceLock<Vec<u8>> = OnceLock::new();
    LAYER.get_or_init(|| tar(&[("file", b"content")]))
}

fn config(diffs: &[Digest]) -> Vec<u8> {
    let config =
        json!({"architecture": "amd64", "os": "linux", "rootfs": {"type": "layers", "diff_ids": diffs}});
    config.to_string().into_bytes()
}

fn docker_archive(manifest: &Value, layer: &[u8]) -> Vec<u8> {
    let config = config(&[Digest::of(self::layer())]);
    let manifest = manifest.to_string();
    tar(&[("c.json", config.as_slice()), ("l/layer.tar", layer), ("manifest.json", manifest.as_bytes())])
}

fn good() -> Vec<u8> {
    docker_archive(&json!([{"Config": "c.json", "RepoTags": ["x:1"], "Layers": ["l/layer.tar"]}]), layer())
}

fn load_all(hold: &Hold, bytes: &[u8]) -> Result<Vec<Image>, Error> {
    Ok(load(hold, bytes, &mut |_| {})?.into_iter().map(|loaded| loaded.image).collect())
}

#[test]
fn only_the_names_that_came_are_told() {
    let (_home, hold) = hold();
    let image = load_all(&hold, &good()).unwrap().remove(0);
    hold.tag(&image.id, &"other".parse().unwrap()).unwrap();

    let loaded = load(&hold, good().as_slice(), &mut |_| {}).unwrap().remove(0);

    assert_eq!(loaded.names, ["x:1".parse().unwrap()]);
    assert_eq!(loaded.image.names.len(), 2);
}

#[test]
fn an_archive_is_loaded_whatever_it_is_compressed_by() {
    for form in ["none", "gzip", "bzip2", "xz", "zstd"] {
        let (_home, hold) = hold();
        let form: Form = form.parse().unwrap();
        let bytes = form.encode(Vec::new(), |to| to.write_all(&good())).unwrap();
        assert_eq!(Form::of(&bytes), form);

        let images = load_all(&hold, &bytes).unwrap();

        let [image] = images.as_slice() else { panic!("{images:?}") };
        assert_eq!(image.label(), "x:1");
        assert_eq!(image.id, Digest::of(&config(&[Digest::of(layer())])));
        assert_eq!(hold.read_blob(&image.layers[0].0.digest, 1 << 20).unwrap(), layer());
    }
}

#[test]
fn what_is_saved_is_loaded_again_as_the_same_image() {
    let (_home, hold) = hold();
    let gzip = Form::Layer(Compression::Gzip).encode(Vec::new(), |to| to.write_all(layer())).unwrap();
    let archive = docker_archive(
        &json!([{"Config": "c.json", "RepoTags": ["x:1", "y"], "Layers": ["l/layer.tar"]}]),
        &gzip,
    );
    let image = load_all(&hold, &archive).unwrap().remove(0);
    for layout in [Layout::Docker, Layout::Oci] {
        let mut saved = Vec::new();
        save(&hold, &[(image.clone(), image.names.clone())], layout, &mut saved, &mut |_| {}).unwrap();
        let mut again = Vec::new();
        save(&hold, &[(image.clone(), image.names.clone())], layout, &mut again, &mut |_| {}).unwrap();
        assert!(saved == again, "the same image is saved in the same bytes");

        let (_home, other) = self::hold();
        let loaded = load_all(&other, &saved).unwrap().remove(0);

        assert_eq!((loaded.id, &loaded.names), (image.id, &image.names));
        assert_eq!(loaded.manifest_digest == image.manifest_digest, layout == Layout::Oci);
        let kept = if layout == Layout::Oci { gzip.as_slice() } else { layer() };
        assert_eq!(other.read_blob(&loaded.layers[0].0.digest, 1 << 20).unwrap(), kept);
    }
}

#[test]
fn a_layer_behind_a_link_in_the_archive_is_found_and_none_outside() {
    let (_home, hold) = hold();
    let manifest = json!([{"Config": "c.json", "RepoTags": null, "Layers": ["a/layer.tar"]}]).to_string();
    let make = |target: &str| {
        let mut bytes = tar(&[
            ("c.json", config(&[Digest::of(layer())]).as_slice()),
            ("b/layer.tar", layer()),
            ("manifest.json", manifest.as_bytes()),
        ]);
        bytes.truncate(bytes.len() - 1024);
        let mut builder = Builder::new(bytes);
        let mut header = Header::new_gnu();
        header.set_entry_type(EntryType::Symlink);
        header.set_size(0);
        builder.append_link(&mut header, "a/layer.tar", target).unwrap();
        builder.into_inner().unwrap()
    };

    assert_eq!(load_all(&hold, &make("../b/layer.tar")).unwrap().len(), 1);
    for target in ["../../b/layer.tar", "/etc/passwd", "layer.tar", "."] {
        assert!(matches!(load_all(&hold, &make(target)), Err(Error::Refused(_))), "{target}");
    }
}

#[test]
fn a_directory_with_an_oci_layout_is_loaded() {
    let (home, hold) = hold();
    let image = load_all(&hold, &good()).unwrap().remove(0);
    let mut saved = Vec::new();
    save(&hold, &[(image.clone(), Vec::new())], Layout::Oci, &mut saved, &mut |_| {}).unwrap();
    let top = home.path().join("layout");
    tar::Archive::new(saved.as_slice()).unpack(&top).unwrap();
    let (_home, other) = self::hold();

    assert_eq!(load_directory(&other, &top, &mut |_| {}).unwrap().remove(0).image.id, image.id);

    let blob = top.join("blobs/sha256").join(image.id.hex());
    std::fs::write(&blob, b"{}").unwrap();
    let (_home, other) = self::hold();
    assert!(load_directory(&other, &top, &mut |_| {}).is_err(), "a blob that is not what its name says");
}

#[test]
fn hostile_archives_are_refused_and_record_nothing() {
    let one = |entry: Value| docker_archive(&json!([entry]), layer());
    let digest = Digest::of(layer());
    let wrong = format!("blobs/sha256/{digest:?}").replace("sha256:", "");
    let blob = format!("blobs/sha256/{}", Digest::of(b"other").hex());
    let many = vec![json!({"Config": "c.json", "Layers": []}); 2_000];
    let layers = vec!["l/layer.tar"; 501];
    let index = |manifests: Value| {
        let index = json!({"schemaVersion": 2, "manifests": manifests}).to_string();
        tar(&[("index.json", index.as_bytes()), ("oci-layout", b"{}")])
    };
    let described = |kind: &str| json!([{"mediaType": kind, "digest": digest, "size": 1}]);
    let hostile: Vec<(&str, Vec<u8>)> = vec![
        ("nothing", Vec::new()),
        ("no archive", b"hello".repeat(1000)),
        ("an empty archive", tar(&[])),
        ("a root file system", tar(&[("etc/passwd", b"x")])),
        ("no list", docker_archive(&json!({}), layer())),
        ("an empty list", docker_archive(&json!([]), layer())),
        ("too many images", docker_archive(&json!(many), layer())),
        ("too many layers", one(json!({"Config": "c.json", "Layers": layers}))),
        ("no config", one(json!({"Config": "d.json", "Layers": ["l/layer.tar"]}))),
        ("a config outside", one(json!({"Config": "../../c.json", "Layers": ["l/layer.tar"]}))),
        ("no layer", one(json!({"Config": "c.json", "Layers": ["m/layer.tar"]}))),
        ("a layer too few", one(json!({"Config": "c.json", "Layers": []}))),
        ("a config that is a layer", one(json!({"Config": "l/layer.tar", "Layers": ["l/layer.tar"]}))),
        (
            "a name that is none",
            one(json!({"Config": "c.json", "RepoTags": ["../x"], "Layers": ["l/layer.tar"]})),
        ),
        (
            "a name that is ours",
            one(json!({"Config": "c.json", "RepoTags": ["host"], "Layers": ["l/layer.tar"]})),
        ),
        ("a blob that differs", tar(&[(blob.as_str(), b"evil")])),
        ("a blob without a digest", tar(&[(wrong.as_str(), b"x"), ("blobs/sha256/0", b"x")])),
        ("deep JSON", tar(&[("manifest.json", "[".repeat(100_000).as_bytes())])),
        ("an index of nothing", index(json!([]))),
        ("an index of what is not there", index(described(crate::manifest::media::OCI_MANIFEST))),
        ("cut off", good()[..1000].to_vec()),
    ];
    for (what, bytes) in hostile {
        let (_home, hold) = hold();
        assert!(load_all(&hold, &bytes).is_err(), "{what}");
        assert_eq!(hold.list().unwrap(), [], "{what}");
    }
}

#[test]
fn bombs_end_with_an_error() {
    let (_home, hold) = hold();
    // An xz stream that asks for a dictionary of 1.5 GiB.
    let mut xz = Form::Xz.encode(Vec::new(), |to| to.write_all(&good())).unwrap();
    let at = xz.windows(3).position(|bytes| bytes[0] == 0x21 && bytes[1] == 0x01).unwrap() + 2;
    xz[at] = 39;
    assert!(load_all(&hold, &xz).is_err());
    // A zstd frame with a window of 2 GiB.
    let zstd = [0x28, 0xb5, 0x2f, 0xfd, 0x00, 0xa8, 0x01, 0x00, 0x00];
    assert!(load_all(&hold, &zstd).is_err());
    // Many entries of nothing.
    let names: Vec<String> = (0..20_100).map(|number| format!("f{number}.json")).collect();
    let entries: Vec<(&str, &[u8])> = names.iter().map(|name| (name.as_str(), b"".as_slice())).collect();
    assert!(matches!(load_all(&hold, &tar(&entries)), Err(Error::Refused(_))));
}

#[test]
fn a_root_file_system_becomes_an_image_and_the_same_one_the_same() {
    let wish = || Import {
        name: Some("rootfs".parse().unwrap()),
        run: RunConfig { cmd: Some(vec!["sh".to_owned()]), ..RunConfig::default() },
        message: Some("from a test".to_owned()),
        platform: Platform::here(),
        created: "2026-01-01T00:00:00Z".to_owned(),
    };
    let (_home, hold) = hold();
    let plain = import(&hold, layer(), wish(), &mut |_| {}).unwrap();
    let gzip = Form::Layer(Compression::Gzip).encode(Vec::new(), |to| to.write_all(layer())).unwrap();
    assert_eq!(import(&hold, gzip.as_slice(), wish(), &mut |_| {}).unwrap().id, plain.id);
    assert_eq!(plain.config.rootfs.diff_ids, [Digest::of(layer())]);
    assert_eq!((plain.label().as_str(), plain.history().len()), ("rootfs:latest", 1));

    for (what, bytes) in [("nothing", tar(&[])), ("an image", good()), ("no archive", b"x".repeat(600))] {
        assert!(import(&hold, bytes.as_slice(), wish(), &mut |_| {}).is_err(), "{what}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_change_of_an_archive_is_loaded_or_refused(at in any::<prop::sample::Index>(), byte in any::<u8>(), cut in any::<prop::sample::Index>()) {
        let (_home, hold) = hold();
        let mut bytes = good();
        let at = at.index(bytes.len());
        bytes[at] = byte;
        drop(load_all(&hold, &bytes));
        bytes.truncate(cut.index(bytes.len()));
        drop(load_all(&hold, &bytes));
    }

    #[test]
    fn any_bytes_are_no_archive_in_any_form(bytes in proptest::collection::vec(any::<u8>(), 0..600), form in 0usize..5) {
        let (_home, hold) = hold();
        let starts: [&[u8]; 5] = [b"", &[0x1f, 0x8b, 8], b"BZh9", &[0xfd, b'7', b'z', b'X', b'Z', 0], &[0x28, 0xb5, 0x2f, 0xfd]];
        let bytes = [starts[form], &bytes].concat();
        prop_assert!(load_all(&hold, &bytes).is_err());
    }

    #[test]
    fn any_words_in_a_manifest_are_loaded_or_refused(
        config in "c.json|l/layer.tar|\\.\\./x|/|",
        layers in proptest::collection::vec("l/layer.tar|c.json|\\.\\.|//|manifest.json", 0..3),
        tag in "[a-zA-Z0-9:@/._-]{0,20}",
    ) {
        let (_home, hold) = hold();
        let manifest = json!([{"Config": config, "RepoTags": [tag], "Layers": layers}]);
        drop(load_all(&hold, &docker_archive(&manifest, layer())));
    }
}
