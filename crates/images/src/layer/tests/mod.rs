mod hostile;

use super::*;
use crate::digest::Digest;
use airlock_files::layers::{compression::Encoder, unpack::Owners};
use std::{
    fs::{self, File},
    io::{self, Write as _},
    os::{
        fd::AsFd as _,
        unix::fs::{MetadataExt as _, PermissionsExt as _},
    },
};
use tempfile::TempDir;

/// A blob with this content.
pub(super) fn blob(content: &[u8], compression: Compression) -> File {
    let mut encoder = Encoder::new(Vec::new(), compression, 3).unwrap();
    encoder.write_all(content).unwrap();
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(&encoder.finish().unwrap()).unwrap();
    file
}

fn unpacked(blob: &File, diff: &Digest) -> io::Result<(TempDir, Told)> {
    let (tree, trash) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let open = |dir: &TempDir| File::open(dir.path()).unwrap();
    let told = unpack(blob, diff, (open(&tree).as_fd(), open(&trash).as_fd()), Owners::One, &mut |_| {})?;
    Ok((tree, told))
}

/// A layer with one file of so many bytes.
fn archive(bytes: &[u8]) -> Vec<u8> {
    let mut archive = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_ustar();
    header.set_path("su").unwrap();
    header.set_size(bytes.len() as u64);
    header.set_mode(0o4755);
    header.set_mtime(42);
    header.set_cksum();
    archive.append(&header, bytes).unwrap();
    archive.into_inner().unwrap()
}

#[test]
fn a_layer_is_unpacked_whatever_its_compression_and_keeps_its_bits() {
    let content = archive(&(0..300_000u32).flat_map(u32::to_le_bytes).collect::<Vec<_>>());
    for compression in [Compression::Plain, Compression::Gzip, Compression::Zstd] {
        let (tree, told) = unpacked(&blob(&content, compression), &Digest::of(&content)).unwrap();

        let found = fs::metadata(tree.path().join("su")).unwrap();
        assert_eq!(
            (found.permissions().mode() & 0o7777, found.mtime(), found.len()),
            (0o4755, 42, 1_200_000),
            "{compression:?}"
        );
        assert_eq!(told, Told { entries: 1, bytes: 1_200_000, ..Told::default() });
        assert!(fs::read(tree.path().join("su")).unwrap() == content[512..1_200_512], "{compression:?}");
    }
}

#[test]
fn a_layer_that_is_not_what_its_image_says_is_refused() {
    let content = archive(b"hello");

    let outcome = unpacked(&blob(&content, Compression::Gzip), &Digest::of(b"else"));

    let said = outcome.unwrap_err().to_string();
    assert_eq!(
        said,
        format!("its content is {}, and the image says {}", Digest::of(&content), Digest::of(b"else"))
    );
}

#[test]
fn what_follows_the_archive_counts_for_its_digest() {
    let mut content = archive(b"hello");
    content.extend([7u8; 100_000]);

    assert!(unpacked(&blob(&content, Compression::Gzip), &Digest::of(&content)).is_ok());
}

#[test]
fn a_packed_tree_is_the_same_bytes_again_and_unpacks_to_the_same_tree() {
    let from = tempfile::tempdir().unwrap();
    fs::create_dir(from.path().join("d")).unwrap();
    fs::write(from.path().join("d/file"), "text").unwrap();
    fs::hard_link(from.path().join("d/file"), from.path().join("again")).unwrap();
    fs::set_permissions(from.path().join("d/file"), fs::Permissions::from_mode(0o4711)).unwrap();
    let top = File::open(from.path()).unwrap();
    let packed = |compression| {
        let mut bytes = Vec::new();
        (pack(top.as_fd(), Form::of_image(compression, Some(1000)), &mut bytes, &mut |_| {}).unwrap(), bytes)
    };

    for compression in [Compression::Gzip, Compression::Zstd, Compression::Plain] {
        let (first, bytes) = packed(compression);
        assert_eq!((&first, &bytes), (&packed(compression).0, &packed(compression).1));
        assert_eq!((first.digest, first.size), (Digest::of(&bytes), bytes.len() as u64));
        let mut blob = tempfile::tempfile().unwrap();
        blob.write_all(&bytes).unwrap();

        let (tree, _) = unpacked(&blob, &first.diff).unwrap();

        let found = |name: &str| fs::metadata(tree.path().join(name)).unwrap();
        assert_eq!(found("d/file").ino(), found("again").ino());
        assert_eq!((found("again").mode() & 0o7777, found("d").mtime()), (0o4711, 1000));
        assert_eq!(fs::read_to_string(tree.path().join("again")).unwrap(), "text");
    }
}
