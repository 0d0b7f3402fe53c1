//! The kinds of content in images, as descriptors name them.

/// A manifest, after OCI.
pub const OCI_MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
/// An index, after OCI.
pub const OCI_INDEX: &str = "application/vnd.oci.image.index.v1+json";
/// A config, after OCI.
pub const OCI_CONFIG: &str = "application/vnd.oci.image.config.v1+json";
/// A layer that is not compressed, after OCI.
pub const OCI_LAYER: &str = "application/vnd.oci.image.layer.v1.tar";
/// A layer in gzip, after OCI.
pub const OCI_LAYER_GZIP: &str = "application/vnd.oci.image.layer.v1.tar+gzip";
/// A layer in zstd, after OCI.
pub const OCI_LAYER_ZSTD: &str = "application/vnd.oci.image.layer.v1.tar+zstd";
/// A manifest, after Docker.
pub const DOCKER_MANIFEST: &str = "application/vnd.docker.distribution.manifest.v2+json";
/// A list of manifests, after Docker.
pub const DOCKER_INDEX: &str = "application/vnd.docker.distribution.manifest.list.v2+json";
/// A config, after Docker.
pub const DOCKER_CONFIG: &str = "application/vnd.docker.container.image.v1+json";
/// A layer that is not compressed, after Docker.
pub const DOCKER_LAYER: &str = "application/vnd.docker.image.rootfs.diff.tar";
/// A layer in gzip, after Docker.
pub const DOCKER_LAYER_GZIP: &str = "application/vnd.docker.image.rootfs.diff.tar.gzip";
/// A layer in zstd, as some builders name it after Docker's.
pub const DOCKER_LAYER_ZSTD: &str = "application/vnd.docker.image.rootfs.diff.tar.zstd";

/// Whether this is a manifest of one image.
pub fn is_manifest(kind: &str) -> bool {
    matches!(kind, OCI_MANIFEST | DOCKER_MANIFEST)
}

/// Whether this is a choice of images.
pub fn is_index(kind: &str) -> bool {
    matches!(kind, OCI_INDEX | DOCKER_INDEX)
}

/// Whether this is the config of an image, and not of something else that a registry can hold.
pub fn is_config(kind: &str) -> bool {
    matches!(kind, OCI_CONFIG | DOCKER_CONFIG)
}

/// Whether this is a layer that can be unpacked, whatever its compression.
pub fn is_layer(kind: &str) -> bool {
    matches!(
        kind,
        OCI_LAYER | OCI_LAYER_GZIP | OCI_LAYER_ZSTD | DOCKER_LAYER | DOCKER_LAYER_GZIP | DOCKER_LAYER_ZSTD
    )
}
