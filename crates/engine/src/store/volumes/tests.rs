//! Volumes on disk.

use super::*;
use std::os::unix::fs::MetadataExt as _;

fn store() -> (tempfile::TempDir, Store) {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(&dir.path().join("home")).unwrap();
    (dir, store)
}

fn name(text: &str) -> Name {
    text.parse().unwrap()
}

#[test]
fn a_volume_is_made_once_and_listed_by_name() {
    let (_dir, store) = store();
    let volumes = store.volumes().unwrap();

    for text in ["b", "a"] {
        volumes.create(&name(text), BTreeMap::from([("k".to_owned(), "v".to_owned())])).unwrap();
    }

    assert!(matches!(volumes.create(&name("a"), BTreeMap::new()), Err(Error::Exists { .. })));
    let names: Vec<String> = volumes.list().unwrap().into_iter().map(|volume| volume.name).collect();
    assert_eq!(names, ["a", "b"]);
    assert_eq!(volumes.get(&name("a")).unwrap().labels["k"], "v");
    assert_eq!(fs::metadata(volumes.files(&name("a"))).unwrap().mode() & 0o777, 0o755);
}

#[test]
fn a_removed_volume_leaves_nothing() {
    let (_dir, store) = store();
    let volumes = store.volumes().unwrap();
    volumes.create(&name("a"), BTreeMap::new()).unwrap();
    fs::create_dir_all(volumes.files(&name("a")).join("x/y")).unwrap();
    fs::create_dir(volumes.folder.join(".gone-1-old")).unwrap();

    volumes.remove(&name("a")).unwrap();
    volumes.sweep().unwrap();

    assert!(matches!(volumes.remove(&name("a")), Err(Error::NoSuch { .. })));
    let left: Vec<_> =
        fs::read_dir(&volumes.folder).unwrap().flatten().map(|entry| entry.file_name()).collect();
    assert_eq!(left, [".lock"]);
}

#[test]
fn a_size_counts_what_is_there_and_follows_no_link() {
    let (_dir, store) = store();
    let volumes = store.volumes().unwrap();
    volumes.create(&name("a"), BTreeMap::new()).unwrap();
    let files = volumes.files(&name("a"));
    fs::create_dir(files.join("d")).unwrap();
    fs::write(files.join("d/f"), vec![1; 100_000]).unwrap();
    std::os::unix::fs::symlink("/usr", files.join("out")).unwrap();

    let size = volumes.size(&name("a"));

    assert_eq!((size.entries, size.is_complete), (3, true));
    assert!((100_000..200_000).contains(&size.bytes), "{size:?}");
}
