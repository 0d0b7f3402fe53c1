use super::*;
use crate::layers::pack::{Form, Packed, pack};
use proptest::prelude::*;
use std::{
    fs::{self, File, Permissions},
    os::unix::fs::{FileExt as _, MetadataExt as _, PermissionsExt as _, symlink},
    path::Path,
};
use tar::{Builder, EntryType, Header};
use tempfile::TempDir;

const PLENTY: u64 = 8 << 30;

fn packed(from: &Path, prefix: &str, without: &[&str]) -> (Packed, Vec<u8>) {
    let mut bytes = Vec::new();
    let top = File::open(from).unwrap();
    let form = Form { prefix: prefix.as_bytes(), without, ..Form::of_sandbox(3) };
    (pack(top.as_fd(), form, &mut bytes, &mut |_| {}).unwrap(), bytes)
}

/// Unpacks layers into a directory of its own.
fn unpacked(layers: &[Vec<u8>], prefix: &str, most: u64) -> Result<TempDir, Error> {
    let (to, trash) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (top, gone) = (File::open(to.path()).unwrap(), File::open(trash.path()).unwrap());
    let mut unpacking = Unpacking::new(top.as_fd(), gone.as_fd(), Way::Stacked);
    let mut bounds = Bounds { bytes: most };
    for layer in layers {
        unpacking.layer(layer.as_slice(), prefix.as_bytes(), &mut bounds, &mut |_| {})?;
    }
    Ok(to)
}

/// Kind, name, where a link leads, bytes.
type Raw<'a> = (EntryType, &'a str, &'a str, &'a [u8]);

/// A layer of raw entries.
fn raw(entries: &[Raw<'_>]) -> Vec<u8> {
    let mut archive = Builder::new(Vec::new());
    for (kind, name, link, bytes) in entries {
        let mut header = Header::new_ustar();
        header.set_entry_type(*kind);
        let ustar = header.as_ustar_mut().unwrap();
        ustar.name[..name.len()].copy_from_slice(name.as_bytes());
        ustar.linkname[..link.len()].copy_from_slice(link.as_bytes());
        header.set_size(bytes.len() as u64);
        header.set_mode(0o6777);
        header.set_uid(u64::from(rustix::process::geteuid().as_raw()));
        header.set_gid(u64::from(rustix::process::getegid().as_raw()));
        header.set_mtime(1);
        header.set_cksum();
        archive.append(&header, *bytes).unwrap();
    }
    zstd::encode_all(archive.into_inner().unwrap().as_slice(), 3).unwrap()
}

#[test]
fn what_is_packed_is_unpacked_the_same() {
    let from = tempfile::tempdir().unwrap();
    let path = |name: &str| from.path().join(name);
    let long = "n".repeat(200);
    fs::create_dir_all(path("a/b")).unwrap();
    fs::write(path("a/one"), "same").unwrap();
    fs::hard_link(path("a/one"), path("a/b/two")).unwrap();
    fs::write(path("a").join(&long), "long").unwrap();
    symlink("../../etc/passwd", path("a/link")).unwrap();
    fs::set_permissions(path("a/one"), Permissions::from_mode(0o640)).unwrap();
    fs::set_permissions(path("a/b"), Permissions::from_mode(0o1711)).unwrap();
    File::create(path("hole")).unwrap().set_len(64 << 20).unwrap();
    let top = File::open(from.path()).unwrap();
    make_whiteout(top.as_fd(), c"gone").unwrap();
    set_attribute(File::open(path("a/b")).unwrap().as_fd(), tree::OPAQUE, b"y").unwrap();
    set_attribute(File::open(path("a/one")).unwrap().as_fd(), c"user.colour", b"red\n=1").unwrap();
    fs::write(path("ours"), "never travels").unwrap();

    let (told, layer) = packed(from.path(), "home/ada", &["ours"]);
    let to = unpacked(&[layer], "home/ada", PLENTY).unwrap();

    let made = |name: &str| to.path().join(name);
    let stat = |name: &str| fs::symlink_metadata(made(name)).unwrap();
    assert_eq!(told.left_out, 0);
    assert_eq!((stat("a/b/two").ino(), stat("a/b").mode() & 0o7777), (stat("a/one").ino(), 0o1711));
    assert_eq!(
        (stat("a/one").mode() & 0o7777, fs::read_to_string(made("a/one")).unwrap()),
        (0o640, "same".into())
    );
    assert_eq!(fs::read_to_string(made("a").join(&long)).unwrap(), "long");
    assert_eq!(fs::read_link(made("a/link")).unwrap(), Path::new("../../etc/passwd"));
    assert_eq!((stat("hole").size(), stat("hole").blocks() < 64), (64 << 20, true));
    assert_eq!((stat("gone").rdev(), stat("gone").mode() & 0o170_000), (0, 0o020_000));
    assert!(!made("ours").exists());
    let found = |name: &str| tree::attributes(File::open(made(name)).unwrap().as_fd()).unwrap();
    assert_eq!(found("a/b"), [(tree::OPAQUE.to_owned(), b"y".to_vec())]);
    assert_eq!(found("a/one"), [(c"user.colour".to_owned(), b"red\n=1".to_vec())]);
}

#[test]
fn an_upper_layer_replaces_deletes_and_hides_what_a_lower_one_has() {
    let lower = raw(&[
        (EntryType::Directory, "d/", "", b""),
        (EntryType::Regular, "d/old", "", b"old"),
        (EntryType::Directory, "e/f/", "", b""),
        (EntryType::Regular, "e/f/deep", "", b"x"),
        (EntryType::Regular, "kind", "", b"file"),
        (EntryType::Directory, "gone/", "", b""),
        (EntryType::Regular, "gone/x", "", b"x"),
    ]);
    let upper = raw(&[
        (EntryType::Regular, "d/.wh..wh..opq", "", b""),
        (EntryType::Regular, "d/new", "", b"new"),
        (EntryType::Regular, ".wh.gone", "", b""),
        (EntryType::Directory, "kind/", "", b""),
        (EntryType::Regular, "e", "", b"now a file"),
    ]);

    let to = unpacked(&[lower, upper], "", PLENTY).unwrap();

    let made = |name: &str| to.path().join(name);
    assert!(
        !made("d/old").exists() && made("d/new").exists() && made("kind").is_dir() && made("e").is_file()
    );
    assert!(tree::is_whiteout(&rustix::fs::lstat(made("gone")).unwrap()));
}

#[test]
fn set_id_bits_never_come_in() {
    let to = unpacked(
        &[raw(&[(EntryType::Regular, "su", "", b"x"), (EntryType::Directory, "d/", "", b"")])],
        "",
        PLENTY,
    );
    let to = to.unwrap();
    for name in ["su", "d"] {
        assert_eq!(fs::metadata(to.path().join(name)).unwrap().mode() & 0o6000, 0, "{name}");
    }
}

#[test]
fn what_leads_out_or_is_a_device_is_refused() {
    let outside = tempfile::tempdir().unwrap();
    let out = outside.path().to_str().unwrap().to_owned();
    let hostile: Vec<Vec<Raw<'_>>> = vec![
        vec![(EntryType::Regular, "../x", "", b"x")],
        vec![(EntryType::Regular, "a/../../x", "", b"x")],
        vec![(EntryType::Link, "a", "../../etc/passwd", b"")],
        vec![(EntryType::Symlink, "s", "/etc/passwd", b""), (EntryType::Link, "a", "s", b"")],
        vec![(EntryType::Char, "null", "", b"")],
        vec![(EntryType::Block, "sda", "", b"")],
        vec![(EntryType::GNUSparse, "sparse", "", b"x")],
        vec![(EntryType::Regular, "", "", b"x")],
    ];
    for entries in hostile {
        assert!(unpacked(&[raw(&entries)], "", PLENTY).is_err(), "{entries:?}");
    }
    // A link is replaced, never followed.
    let through = raw(&[(EntryType::Symlink, "s", &out, b""), (EntryType::Regular, "s/x", "", b"x")]);
    let to = unpacked(&[through], "", PLENTY).unwrap();
    assert!(to.path().join("s").is_dir() && to.path().join("s/x").exists());
    assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 0);
    // An absolute path is one below the top.
    let absolute = unpacked(&[raw(&[(EntryType::Regular, "/etc/x", "", b"x")])], "", PLENTY).unwrap();
    assert!(absolute.path().join("etc/x").exists());
}

#[test]
fn an_entry_outside_of_its_part_is_refused() {
    assert!(unpacked(&[raw(&[(EntryType::Regular, "etc/passwd", "", b"x")])], "usr", PLENTY).is_err());
    assert!(unpacked(&[raw(&[(EntryType::Regular, "usrx/a", "", b"x")])], "usr", PLENTY).is_err());
    let to = unpacked(&[raw(&[(EntryType::Regular, "usr/a", "", b"x")])], "usr", PLENTY).unwrap();
    assert!(to.path().join("a").exists());
}

#[test]
fn a_bomb_is_stopped_at_the_bound() {
    let zeros = vec![0u8; 32 << 20];
    let big = raw(&[(EntryType::Regular, "zeros", "", &zeros)]);
    assert!(big.len() < 64 << 10);
    assert!(unpacked(std::slice::from_ref(&big), "", 1 << 20).is_err());
    assert!(unpacked(&[big], "", 64 << 20).is_ok());
    let names: Vec<String> = (0..2000).map(|number| format!("{number}")).collect();
    let many: Vec<_> = names.iter().map(|name| (EntryType::Regular, name.as_str(), "", &b""[..])).collect();
    assert!(unpacked(&[raw(&many)], "", 1 << 20).is_err());
    let words = vec![b'1'; 2 << 20];
    assert!(unpacked(&[raw(&[(EntryType::XHeader, "x", "", &words)])], "", PLENTY).is_err());
}

#[test]
fn attributes_of_overlays_and_of_security_never_come_in() {
    let mut archive = Builder::new(Vec::new());
    let words: [(&str, &[u8]); 3] = [
        ("SCHILY.xattr.user.overlay.redirect", b"/etc"),
        ("SCHILY.xattr.security.capability", b"x"),
        ("SCHILY.xattr.user.plain", b"y"),
    ];
    archive.append_pax_extensions(words).unwrap();
    let mut header = Header::new_ustar();
    header.set_path("f").unwrap();
    header.set_size(0);
    header.set_mode(0o644);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header.set_cksum();
    archive.append(&header, io::empty()).unwrap();
    let layer = zstd::encode_all(archive.into_inner().unwrap().as_slice(), 3).unwrap();

    let to = unpacked(&[layer], "", PLENTY).unwrap();

    let found = tree::attributes(File::open(to.path().join("f")).unwrap().as_fd()).unwrap();
    assert_eq!(found, [(c"user.plain".to_owned(), b"y".to_vec())]);
}

#[test]
fn names_that_would_mean_something_else_are_left_out_and_counted() {
    let from = tempfile::tempdir().unwrap();
    fs::write(from.path().join(".wh.trick"), "").unwrap();
    fs::write(from.path().join("plain"), "").unwrap();
    File::create(from.path().join("data")).unwrap().write_all_at(b"x", 0).unwrap();

    let (told, _) = packed(from.path(), "", &[]);

    assert_eq!((told.entries, told.left_out), (2, 1));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn no_bytes_are_too_strange_to_be_unpacked(bytes in proptest::collection::vec(any::<u8>(), 0..2048)) {
        let _ = unpacked(&[zstd::encode_all(bytes.as_slice(), 3).unwrap(), bytes], "", 1 << 20);
    }

    #[test]
    fn no_path_leads_upwards(path in "[./a]{0,40}") {
        if let Ok(names) = components(path.as_bytes()) {
            prop_assert!(names.iter().all(|name| !matches!(name.as_bytes(), b"" | b"." | b"..") && !name.as_bytes().contains(&b'/')));
        }
    }
}
