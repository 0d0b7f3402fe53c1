use proptest::prelude::*;
use serde_json::json;

use super::*;

fn descriptor(kind: &str) -> Value {
    json!({"mediaType": kind, "digest": Digest::of(b"").to_string(), "size": 0})
}

fn entry(platform: &str) -> Descriptor {
    let platform: Platform = platform.parse().unwrap();
    let digest = Digest::of(platform.to_string().as_bytes());
    Descriptor { platform: Some(platform), ..Descriptor::of(media::OCI_MANIFEST, digest, 1) }
}

fn index(platforms: &[&str]) -> Index {
    let manifests = platforms.iter().map(|platform| entry(platform)).collect();
    Index { schema_version: 2, media_type: None, manifests, annotations: None, other: Other::new() }
}

fn chosen(index: &Index, wanted: &str) -> Option<String> {
    let chosen = index.choose(&wanted.parse().unwrap()).ok()?;
    chosen.platform.as_ref().map(ToString::to_string)
}

#[test]
fn fields_without_a_name_here_are_written_again() {
    let text = json!({
        "schemaVersion": 2,
        "config": {"mediaType": media::OCI_CONFIG, "digest": Digest::of(b"").to_string(), "size": 2, "data": "e30="},
        "layers": [],
        "subject": descriptor(media::OCI_MANIFEST),
    });
    let Document::Manifest(manifest) = read(text.to_string().as_bytes(), None).unwrap() else {
        panic!("an index")
    };
    assert_eq!(serde_json::to_value(&manifest).unwrap(), text);
}

#[test]
fn a_manifest_that_is_an_index_too_is_refused() {
    let both =
        json!({"schemaVersion": 2, "manifests": [], "layers": [], "config": descriptor(media::OCI_CONFIG)});
    assert!(matches!(read(both.to_string().as_bytes(), None), Err(Error::Ambiguous)));
    let lying = json!({"schemaVersion": 2, "mediaType": media::OCI_MANIFEST, "manifests": []});
    assert!(matches!(read(lying.to_string().as_bytes(), None), Err(Error::Ambiguous)));
    let said = json!({"schemaVersion": 2, "layers": [], "config": descriptor(media::OCI_CONFIG)});
    assert!(matches!(read(said.to_string().as_bytes(), Some(media::DOCKER_INDEX)), Err(Error::Ambiguous)));
}

#[test]
fn the_first_generation_of_manifests_and_too_many_layers_are_refused() {
    assert!(matches!(
        read(br#"{"schemaVersion": 1, "name": "x", "fsLayers": []}"#, None),
        Err(Error::Kind(_))
    ));
    let layers = vec![descriptor(media::OCI_LAYER); MOST_LAYERS + 1];
    let many = json!({"schemaVersion": 2, "config": descriptor(media::OCI_CONFIG), "layers": layers});
    assert!(matches!(read(many.to_string().as_bytes(), None), Err(Error::Layers(501))));
}

#[test]
fn a_config_of_docker_with_nulls_is_read() {
    let text = json!({
        "architecture": "amd64", "os": "linux", "created": "2026-01-01T00:00:00Z", "docker_version": "28.5.2",
        "config": {"Cmd": null, "Env": null, "Labels": null, "Volumes": {"/data": {}}, "Entrypoint": ["/bin/sh"], "OnBuild": null},
        "rootfs": {"type": "layers", "diff_ids": null}, "history": null,
    });
    let config = read_config(text.to_string().as_bytes()).unwrap();
    assert_eq!(config.config.cmd, None);
    assert_eq!(config.config.entrypoint, Some(vec!["/bin/sh".to_owned()]));
    assert_eq!(config.config.volumes.keys().collect::<Vec<_>>(), ["/data"]);
    assert_eq!(config.other.get("docker_version"), Some(&json!("28.5.2")));
    let again = read_config(&config.to_bytes().unwrap()).unwrap();
    assert_eq!(again, config);
}

#[test]
fn a_config_with_other_layers_than_its_manifest_is_refused() {
    let config = Config::of(&Platform::here(), String::new());
    let digest = Digest::of(b"");
    let manifest = Manifest::of(
        Descriptor::of(media::OCI_CONFIG, digest, 0),
        vec![Descriptor::of(media::OCI_LAYER, digest, 0)],
    );
    assert!(matches!(manifest.layers_of(&config), Err(Error::Differ { manifest: 1, config: 0 })));
}

#[test]
fn an_index_gives_the_closest_platform() {
    let arm = index(&["linux/amd64", "linux/arm/v5", "linux/arm/v7", "linux/arm64/v8", "windows/amd64"]);
    assert_eq!(chosen(&arm, "linux/amd64").as_deref(), Some("linux/amd64"));
    assert_eq!(chosen(&arm, "linux/x86_64").as_deref(), Some("linux/amd64"));
    assert_eq!(chosen(&arm, "linux/arm64").as_deref(), Some("linux/arm64/v8"));
    assert_eq!(chosen(&arm, "linux/arm/v6").as_deref(), Some("linux/arm/v5"));
    assert_eq!(chosen(&arm, "linux/riscv64"), None);
    assert_eq!(
        chosen(&index(&["linux/amd64/v3", "linux/amd64"]), "linux/amd64").as_deref(),
        Some("linux/amd64")
    );
    assert_eq!(chosen(&index(&["linux/amd64/v3"]), "linux/amd64"), None);
}

#[test]
fn who_finds_no_platform_is_told_which_there_are() {
    let error =
        index(&["linux/arm64", "unknown/unknown"]).choose(&"linux/amd64".parse().unwrap()).unwrap_err();
    assert_eq!(error.to_string(), "it has no image for linux/amd64, but for linux/arm64");
}

#[test]
fn what_is_no_platform_is_refused() {
    for text in ["", "linux", "linux/", "/amd64", "linux/amd64/v1/x", "linux/am d", "linux//v8"] {
        assert!(text.parse::<Platform>().is_err(), "{text}");
    }
}

proptest! {
    #[test]
    fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        drop(read(&bytes, None));
        drop(read_config(&bytes));
    }

    #[test]
    fn any_document_with_our_names_is_read_or_refused(
        names in proptest::collection::vec("schemaVersion|mediaType|manifests|layers|config|rootfs|history|os|created", 0..6),
        values in proptest::collection::vec("2|null|\\[\\]|\\{\\}|\"x\"|\\[null\\]|-1|1e400|\\{\"digest\":\"sha256:0\"\\}", 6),
    ) {
        let fields: Vec<_> = names.iter().zip(&values).map(|(name, value)| format!("{name:?}:{value}")).collect();
        let text = format!("{{{}}}", fields.join(","));
        drop(read(text.as_bytes(), None));
        drop(read_config(text.as_bytes()));
    }
}
