use std::{
    collections::BTreeSet,
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use airlock_linux::idmap::{Extent, IdMap, Writer};

use super::*;
use crate::{
    digest::Digest,
    layer::{Ids, Told},
    manifest::{Config, Descriptor, Manifest, Platform, media},
    reference::Reference,
};

fn store() -> (tempfile::TempDir, Store) {
    let home = tempfile::tempdir().unwrap();
    let store = Store::open(home.path()).unwrap();
    (home, store)
}

fn name(text: &str) -> Reference {
    text.parse().unwrap()
}

/// An image of these layers, whose bytes are no archives: nothing here unpacks them.
fn image(hold: &Hold, layers: &[&str], label: &str) -> Record {
    let mut config = Config::of(&Platform::here(), "2026-01-01T00:00:00Z".to_owned());
    config.config.labels.insert("label".to_owned(), label.to_owned());
    let mut described = Vec::new();
    for layer in layers {
        let digest = hold.put(layer.as_bytes()).unwrap();
        config.rootfs.diff_ids.push(digest);
        described.push(Descriptor::of(media::OCI_LAYER, digest, layer.len() as u64));
    }
    let bytes = config.to_bytes().unwrap();
    let id = hold.put(&bytes).unwrap();
    let manifest = Manifest::of(Descriptor::of(media::OCI_CONFIG, id, bytes.len() as u64), described);
    let manifest = hold.put(&serde_json::to_vec(&manifest).unwrap()).unwrap();
    Record::new(id, manifest)
}

fn collect(store: &Store, which: Which<'_>, in_use: &[Digest]) -> Collected {
    let in_use: BTreeSet<_> = in_use.iter().copied().collect();
    store.collect(which, Duration::from_secs(20), || Ok::<_, Error>(in_use)).unwrap().unwrap()
}

fn own_ids() -> Ids {
    let extent = |id: u32| vec![Extent { inside: 0, outside: id, count: 1 }];
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let map = IdMap { users: extent(uid), groups: extent(gid), writer: Writer::SingleId };
    Ids { key: "single".to_owned(), map }
}

/// What unpacking would leave.
fn finish(making: Making, file: &str) -> std::path::PathBuf {
    std::fs::create_dir(making.folder().join("tree")).unwrap();
    std::fs::write(making.folder().join("tree").join(file), b"x").unwrap();
    making.finish(Told { bytes: 1, entries: 1, ..Told::default() }).unwrap()
}

fn tree(hold: &Hold, diff: &Digest) -> std::path::PathBuf {
    match hold.begin_layer(diff, &own_ids(), Wait::Yes).unwrap() {
        Begun::There(tree) => tree,
        Begun::Ours(making) => finish(making, "file"),
        Begun::Busy => panic!("who waits is not told to"),
    }
}

#[test]
fn an_image_is_found_by_name_id_beginning_and_digest() {
    let (_home, store) = store();
    let hold = store.hold().unwrap();
    let mut record = image(&hold, &["a"], "one").named(&name("r.test/tool:1"));
    let pulled = Digest::of(b"index");
    record.digests.push(name("r.test/tool").at(pulled));
    let id = record.id;
    let manifest = record.manifest;
    hold.add(record).unwrap();
    hold.tag(&id, &name("short")).unwrap();

    for selector in [
        "r.test/tool:1".to_owned(),
        "short".to_owned(),
        "short:latest".to_owned(),
        id.to_string(),
        id.hex(),
        id.short(),
        format!("r.test/tool@{pulled}"),
        format!("r.test/tool@{manifest}"),
        format!("r.test/tool:other@{pulled}"),
    ] {
        assert_eq!(store.find(&selector).unwrap().id, id, "{selector}");
    }
    for selector in ["r.test/tool", "r.test/tool:2", "other", "ffffffffffff", "-"] {
        assert!(store.find(selector).is_err(), "{selector}");
    }
}

#[test]
fn a_name_belongs_to_one_image_and_an_ambiguous_beginning_is_told() {
    let (_home, store) = store();
    let hold = store.hold().unwrap();
    let ids: Vec<Digest> = (0..40)
        .map(|number| {
            let record = image(&hold, &["a"], &number.to_string()).named(&name("tool"));
            hold.add(record).unwrap().id
        })
        .collect();

    assert_eq!(store.find("tool").unwrap().id, *ids.last().unwrap());
    let named = store.list().unwrap().into_iter().filter(|image| !image.names.is_empty()).count();
    assert_eq!(named, 1);
    // Of forty ids, two begin with the same of sixteen digits.
    let ambiguous = "0123456789abcdef"
        .chars()
        .filter(|digit| matches!(store.find(&format!("sha256:{digit}")), Err(Error::Ambiguous { .. })));
    assert!(ambiguous.count() > 0);
}

#[test]
fn no_image_can_be_named_host_or_scratch() {
    let (_home, store) = store();
    let hold = store.hold().unwrap();
    let record = image(&hold, &[], "one");
    for reserved in ["host", "host:1", "scratch"] {
        let added = hold.add(record.clone().named(&name(reserved)));
        assert!(matches!(added, Err(Error::Reserved(_))), "{reserved}");
    }
    assert!(hold.add(record.named(&name("r.test/host"))).is_ok());
}

#[test]
fn with_the_last_tag_of_a_repository_go_its_digests() {
    let (_home, store) = store();
    let hold = store.hold().unwrap();
    let mut record = image(&hold, &[], "one").named(&name("r.test/a:1")).named(&name("r.test/a:2"));
    record.digests.push(name("r.test/a").at(Digest::of(b"x")));
    hold.add(record).unwrap();

    assert_eq!(store.untag("r.test/a:1").unwrap().gone, [name("r.test/a:1")]);
    let last = store.untag("r.test/a:2").unwrap();
    assert_eq!(last.gone, [name("r.test/a:2"), name("r.test/a").at(Digest::of(b"x"))]);
    assert_eq!(last.left, []);
}

#[test]
fn what_differs_from_its_digest_never_gets_its_name() {
    let (_home, store) = store();
    let hold = store.hold().unwrap();
    let digest = Digest::of(b"good");

    let Arrival::Ours(mut incoming) = hold.incoming(&digest, 4).unwrap() else { panic!("not ours") };
    incoming.append(b"evil").unwrap();
    assert!(matches!(incoming.finish(), Err(Error::Differs { .. })));
    assert!(!store.has_blob(&digest));

    let Arrival::Ours(mut incoming) = hold.incoming(&digest, 4).unwrap() else { panic!("not ours") };
    assert_eq!(incoming.length(), 0, "the wrong bytes are gone");
    assert!(matches!(incoming.append(b"goods"), Err(Error::Long { .. })));
    incoming.append(b"go").unwrap();
    assert!(matches!(incoming.finish(), Err(Error::Short { found: 2, .. })));

    let Arrival::Ours(mut incoming) = hold.incoming(&digest, 4).unwrap() else { panic!("not ours") };
    assert_eq!(incoming.length(), 2, "a short one is gone on with");
    incoming.append(b"od").unwrap();
    incoming.finish().unwrap();
    assert_eq!(store.read_blob(&digest, 10).unwrap(), b"good");
    assert!(matches!(hold.incoming(&digest, 4).unwrap(), Arrival::There));
}

#[test]
fn many_at_once_get_the_same_content_once() {
    let (_home, store) = store();
    let content = vec![7u8; 100_000];
    let (digest, downloads) = (Digest::of(&content), AtomicUsize::new(0));

    std::thread::scope(|scope| {
        for _ in 0..20 {
            scope.spawn(|| {
                let hold = store.hold().unwrap();
                let Arrival::Ours(mut incoming) = hold.wait_incoming(&digest, 100_000).unwrap() else {
                    return;
                };
                downloads.fetch_add(1, Ordering::SeqCst);
                content.chunks(999).for_each(|piece| incoming.append(piece).unwrap());
                incoming.finish().unwrap();
            });
        }
    });

    assert_eq!(downloads.into_inner(), 1);
    assert_eq!(store.read_blob(&digest, 100_000).unwrap(), content);
}

#[test]
fn content_that_another_gets_is_busy() {
    let (_home, store) = store();
    let hold = store.hold().unwrap();
    let digest = Digest::of(b"x");
    let first = hold.incoming(&digest, 1).unwrap();
    assert!(matches!(hold.incoming(&digest, 1).unwrap(), Arrival::Busy));
    drop(first);
    assert!(matches!(hold.incoming(&digest, 1).unwrap(), Arrival::Ours(_)));
}

#[test]
fn a_layer_is_made_once_and_a_half_made_one_is_made_anew() {
    let (_home, store) = store();
    let (diff, made) = (Digest::of(b"layer"), AtomicUsize::new(0));
    {
        let hold = store.hold().unwrap();
        let Begun::Ours(half) = hold.begin_layer(&diff, &own_ids(), Wait::Yes).unwrap() else {
            panic!("there")
        };
        std::fs::create_dir(half.folder().join("tree")).unwrap();
        assert!(matches!(hold.begin_layer(&diff, &own_ids(), Wait::No).unwrap(), Begun::Busy));
        assert_eq!(store.layer(&diff, &own_ids()), None);
    }

    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let hold = store.hold().unwrap();
                let Begun::Ours(making) = hold.begin_layer(&diff, &own_ids(), Wait::Yes).unwrap() else {
                    return;
                };
                made.fetch_add(1, Ordering::SeqCst);
                finish(making, "whole");
            });
        }
    });

    assert_eq!(made.into_inner(), 1);
    let tree = store.layer(&diff, &own_ids()).unwrap();
    let names: Vec<_> = std::fs::read_dir(&tree).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["whole"]);
}

#[test]
fn what_a_record_or_a_sandbox_needs_is_never_collected() {
    let (_home, store) = store();
    let hold = store.hold().unwrap();
    let kept = hold.add(image(&hold, &["shared", "kept"], "1").named(&name("kept"))).unwrap();
    let dangling = hold.add(image(&hold, &["shared", "dangling"], "2")).unwrap();
    let used = hold.add(image(&hold, &["used"], "3")).unwrap();
    let stray = hold.put(b"belongs to nobody").unwrap();
    for image in [&kept, &dangling, &used] {
        image.layers.iter().for_each(|(_, diff)| drop(tree(&hold, diff)));
    }
    drop(hold);

    let collected = collect(&store, Which::Dangling, &[used.id]);

    assert_eq!(collected.images.iter().map(|record| record.id).collect::<Vec<_>>(), [dangling.id]);
    for image in [&kept, &used] {
        assert_eq!(store.image(&image.id).unwrap(), *image);
        for (layer, diff) in &image.layers {
            assert!(store.has_blob(&layer.digest) && store.layer(diff, &own_ids()).is_some());
        }
    }
    assert!(!store.has_blob(&stray) && !store.has_blob(&dangling.id));
    assert_eq!(store.layer(&Digest::of(b"dangling"), &own_ids()), None);
    assert!(std::fs::read_dir(store.layers()).unwrap().all(|entry| !is_hidden_name(&entry.unwrap())));

    collect(&store, Which::Unused, &[]);
    assert_eq!(store.list().unwrap(), []);
    for folder in ["blobs/sha256", "layers", "incoming"] {
        assert_eq!(std::fs::read_dir(store.folder().join(folder)).unwrap().count(), 0, "{folder}");
    }
}

fn is_hidden_name(entry: &std::fs::DirEntry) -> bool {
    entry.file_name().as_encoded_bytes().starts_with(b".")
}

#[test]
fn nothing_is_collected_while_somebody_holds() {
    let (_home, store) = store();
    let hold = store.hold().unwrap();
    let digest = hold.put(b"not recorded yet").unwrap();
    let refused = store.collect(Which::Unused, Duration::ZERO, || Ok::<_, Error>(BTreeSet::new()));
    assert!(matches!(refused, Ok(None)));
    assert!(store.has_blob(&digest));
}

#[test]
fn what_a_build_may_find_again_stays_until_everything_goes() {
    let (_home, store) = store();
    let hold = store.hold().unwrap();
    let mut record = image(&hold, &["a"], "1").named(&name("tool"));
    record.keys.push("key".to_owned());
    let id = hold.add(record).unwrap().id;
    drop(hold);
    store.untag("tool").unwrap();

    collect(&store, Which::These(&[id]), &[]);
    let cached = store.cached("key").unwrap().unwrap();
    assert_eq!((cached.id, cached.kind), (id, Kind::Cache));

    collect(&store, Which::Unused, &[]);
    assert_eq!(store.cached("key").unwrap(), None);
}

#[test]
fn records_that_cannot_be_read_stop_the_collection() {
    let (_home, store) = store();
    let hold = store.hold().unwrap();
    let image = hold.add(image(&hold, &["a"], "1")).unwrap();
    drop(hold);
    std::fs::write(store.folder().join("index.json"), b"{").unwrap();
    let refused = store.collect(Which::Unused, Duration::ZERO, || Ok::<_, Error>(BTreeSet::new()));
    assert!(matches!(refused, Err(Error::Unreadable { .. })));
    assert!(store.has_blob(&image.id));
}

#[test]
fn what_several_images_have_is_shared_and_the_rest_is_their_own() {
    let (_home, store) = store();
    let hold = store.hold().unwrap();
    let one = hold.add(image(&hold, &["common", "1"], "1").named(&name("one"))).unwrap();
    hold.add(image(&hold, &["common"], "2").named(&name("two"))).unwrap();
    tree(&hold, &Digest::of(b"1"));

    let usage = store.usage(&BTreeSet::from([one.id])).unwrap();

    let share = usage.images.iter().find(|share| share.image.id == one.id).unwrap();
    assert_eq!((share.shared, share.unpacked), (6, 1));
    assert_eq!(share.bytes, one.size + 1);
    assert_eq!(share.own, one.size + 1 - 6);
    let all: u64 = usage.images.iter().map(|share| share.bytes).sum();
    assert_eq!(usage.blobs + usage.unpacked, all - 6);
    let other = usage.images.iter().find(|share| share.image.id != one.id).unwrap();
    assert_eq!(usage.reclaimable, other.own);
}

#[test]
fn many_change_the_records_and_none_is_lost() {
    let (_home, store) = store();
    std::thread::scope(|scope| {
        for worker in 0..8 {
            let store = &store;
            scope.spawn(move || {
                let hold = store.hold().unwrap();
                for number in 0..5 {
                    let label = format!("i{worker}-{number}");
                    hold.add(image(&hold, &["a"], &label).named(&name(&label))).unwrap();
                }
            });
        }
    });
    assert_eq!(store.list().unwrap().len(), 40);
}

fn is_marked(path: &std::path::Path) -> bool {
    use std::os::unix::fs::PermissionsExt as _;
    path.metadata().unwrap().permissions().mode() & 0o222 == 0
}

#[test]
fn what_is_recorded_is_marked_and_a_builds_steps_are_not() {
    let (_home, store) = store();
    let hold = store.hold().unwrap();
    let mut step = image(&hold, &["a"], "step");
    step.kind = Kind::Cache;
    let diff = Digest::of(b"a");
    let made = tree(&hold, &diff).with_file_name("layer.json");

    let step = hold.add(step).unwrap();
    assert!(
        ![store.blob_path(&diff), store.blob_path(&step.id), made.clone()].iter().any(|path| is_marked(path))
    );
    let whole = hold.add(image(&hold, &["a", "b"], "whole")).unwrap();

    let parts = [whole.id, whole.manifest_digest, diff, Digest::of(b"b")];
    assert!(parts.iter().all(|part| is_marked(&store.blob_path(part))));
    assert!(is_marked(&made));
    assert!(!is_marked(&store.blob_path(&step.id)));
    // What has a mark can be replaced and deleted like everything else.
    hold.tag(&step.id, &name("step")).unwrap();
    assert!(is_marked(&store.blob_path(&step.id)));
    drop(hold);
    collect(&store, Which::Unused, &[]);
    assert!(!store.has_blob(&diff) && !made.exists());
}

#[test]
fn after_a_boot_only_what_is_marked_or_right_is_left() {
    let (_home, store) = store();
    let hold = store.hold().unwrap();
    let kept = hold.add(image(&hold, &["a"], "kept")).unwrap();
    let marked = tree(&hold, &Digest::of(b"a"));
    hold.settle(&kept).unwrap();
    let (right, torn) = (hold.put(b"right").unwrap(), hold.put(b"torn").unwrap());
    let unmarked = tree(&hold, &Digest::of(b"right"));
    std::fs::write(store.blob_path(&torn), [0; 4]).unwrap();
    drop(hold);

    store.look_after(b"another boot").unwrap();

    assert!(is_marked(&store.blob_path(&right)) && !store.has_blob(&torn));
    assert!(marked.is_dir() && !unmarked.exists());
    assert_eq!(store.image(&kept.id).unwrap(), kept);
    // It is made again, and looked at once.
    let hold = store.hold().unwrap();
    let unmarked = tree(&hold, &Digest::of(b"right"));
    store.look_after(&std::fs::read(store.folder().join("boot")).unwrap()).unwrap();
    assert!(unmarked.is_dir());
}

#[test]
fn a_store_from_before_marks_is_taken_as_it_is() {
    let (_home, store) = store();
    let hold = store.hold().unwrap();
    let (digest, tree) = (hold.put(b"old").unwrap(), tree(&hold, &Digest::of(b"old")));
    drop(hold);
    std::fs::remove_file(store.folder().join("boot")).unwrap();

    store.look_after(b"some boot").unwrap();

    assert!(is_marked(&store.blob_path(&digest)) && tree.is_dir());
    assert!(is_marked(&tree.with_file_name("layer.json")));
}

#[test]
fn what_is_damaged_is_thrown_away_and_put_again() {
    let (_home, store) = store();
    let hold = store.hold().unwrap();
    let digest = hold.put(b"good").unwrap();
    store.check_blob(&digest).unwrap();
    std::fs::write(store.blob_path(&digest), b"evil").unwrap();

    assert_eq!(hold.put(b"good").unwrap(), digest);
    store.check_blob(&digest).unwrap();
    std::fs::write(store.blob_path(&digest), b"evil").unwrap();

    let error = store.check_blob(&digest).unwrap_err();
    assert!(error.is_damage() && error.fix().is_some(), "{error}");
    assert!(!store.has_blob(&digest));
}

#[test]
fn signatures_go_with_their_image() {
    let (_home, store) = store();
    let hold = store.hold().unwrap();
    let mut record = image(&hold, &["a"], "signed").named(&name("r.test/app:1"));
    let index = Digest::of(b"index");
    record.digests.push(name("r.test/app").at(index));
    let manifest = record.manifest;
    hold.add(record).unwrap();
    std::fs::create_dir(store.signatures()).unwrap();
    let path = |digest: &Digest| store.signatures().join(format!("{}.json", digest.hex()));
    let other = Digest::of(b"other");
    [&manifest, &index, &other].iter().for_each(|digest| std::fs::write(path(digest), "{}").unwrap());
    drop(hold);

    collect(&store, Which::Dangling, &[]);
    assert_eq!([&manifest, &index, &other].map(|digest| path(digest).exists()), [true, true, false]);
    store.untag("r.test/app:1").unwrap();
    collect(&store, Which::Dangling, &[]);

    assert_eq!(std::fs::read_dir(store.signatures()).unwrap().count(), 0);
}
