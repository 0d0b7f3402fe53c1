//! Layers of images: unpacked as others unpack them, committed, exported, and hostile ones.

use airlock_tests::{
    Who, World, eventually, has_program,
    images::{Image, Layer, sha256},
    not_applicable, skip, who,
};
use rustix::fs::XattrFlags;
use std::{
    collections::BTreeMap,
    ffi::OsStr,
    fs::{self, File},
    io::Read as _,
    os::unix::{
        ffi::OsStrExt as _,
        fs::{FileExt as _, MetadataExt as _, PermissionsExt as _, symlink},
    },
    path::Path,
    process::Command,
};
use tar::{EntryType, Header};

/// Flags of a sandbox of the image `bb:1` that stays.
const KEPT: [&str; 5] = ["--image", "bb:1", "--workspace", "none", "--keep"];

/// A world with the image `bb:1`.
fn with_busybox() -> Option<World> {
    let world = World::new();
    load(&world, Image::busybox()?.named("bb:1"));
    Some(world)
}

fn load(world: &World, image: Image) {
    let archive = image.docker_archive(&world.aside("images").join("image.tar"));
    world.airlock(["images", "load", "-i"]).args([archive]).run().succeeded();
}

/// What a script says in a sandbox of an image.
fn says(world: &World, image: &str, script: &str) -> String {
    world.sh(["--image", image, "--workspace", "none"], script).run().succeeded()
}

#[test]
fn a_committed_sandbox_is_an_image_with_what_it_changed_and_nothing_of_ours() {
    let Some(world) = with_busybox() else { return };
    let script = "echo new >/new; ln /new /again; chmod 4755 /new; rm /etc/group; rm -r /home; mkdir /home; echo x >/home/x";
    world.sh(KEPT.into_iter().chain(["--name", "web"]), script).run().succeeded();

    let commit = ["commit", "web", "bb:2", "--message", "done", "--change", "CMD [\"cat\", \"/new\"]"];
    let id = world.airlock(commit).env("SOURCE_DATE_EPOCH", "1000").run().succeeded();

    let plain = world.airlock(["run", "--image", "bb:2", "--workspace", "none"]).run().succeeded();
    assert_eq!(plain, "new\n");
    let look =
        "stat -c '%a %h %Y' /new /again; ls /etc/group /home 2>/dev/null; [ -e /etc/group ] || echo gone";
    assert_eq!(says(&world, "bb:2", look), "4755 2 1000\n4755 2 1000\n/home:\nx\ngone\n");
    let again = world.airlock(commit).env("SOURCE_DATE_EPOCH", "1000").run().succeeded();
    assert_eq!(again, id);
}

#[test]
fn the_layer_of_a_commit_holds_what_the_program_did_and_no_more() {
    let Some(world) = with_busybox() else { return };
    world.sh(KEPT.into_iter().chain(["--name", "web"]), "echo new >/root/new").run().succeeded();
    world.airlock(["commit", "web", "bb:2"]).run().succeeded();
    let archive = world.aside("saved").join("bb.tar");

    world.airlock(["images", "save", "bb:2", "-o"]).args([&archive]).run().succeeded();

    let saved = airlock_tests::images::entries(&archive);
    let manifest = saved.iter().find(|(name, _)| name == "manifest.json").expect("a manifest");
    let manifest: serde_json::Value = serde_json::from_slice(&manifest.1).expect("JSON");
    let top =
        manifest[0]["Layers"].as_array().and_then(|layers| layers.last()).and_then(|name| name.as_str());
    let (_, layer) = saved.iter().find(|(name, _)| Some(name.as_str()) == top).expect("its layer");
    let mut held = Vec::new();
    for entry in tar::Archive::new(layer.as_slice()).entries().expect("an archive") {
        held.push(String::from_utf8_lossy(&entry.expect("an entry").path_bytes()).into_owned());
    }
    assert_eq!(held, ["root/", "root/new"]);
}

#[test]
fn a_commit_of_a_fork_has_the_layers_of_what_it_was_forked_from() {
    let Some(world) = with_busybox() else { return };
    world.sh(KEPT.into_iter().chain(["--name", "web"]), "echo one >/one; echo x >/gone").run().succeeded();
    let fork = ["fork", "web", "--name", "further", "--start", "--", "sh", "-c", "rm /gone; echo two >/two"];
    world.airlock(fork).run().succeeded();
    world.airlock(["wait", "further"]).run().succeeded();

    world.airlock(["commit", "further", "bb:2"]).run().succeeded();

    assert_eq!(says(&world, "bb:2", "cat /one /two; [ -e /gone ] || echo gone"), "one\ntwo\ngone\n");
}

#[test]
fn a_sandbox_that_runs_is_committed_and_goes_on() {
    let Some(world) = with_busybox() else { return };
    let script = "echo ready >/ready; while [ ! -e /go ]; do sleep 0.05; done; echo went on";
    let id = world.detached(["--image", "bb:1", "--workspace", "none"], script);
    eventually("it runs", || world.exec(&id, "cat /ready").run().stdout.contains("ready").then_some(()));

    world.airlock(["commit", &id, "bb:2"]).run().succeeded();
    world.exec(&id, "touch /go").run().succeeded();
    world.airlock(["wait", &id]).run().succeeded();

    assert!(world.airlock(["logs", &id]).run().stdout.contains("went on"));
    assert_eq!(says(&world, "bb:2", "cat /ready; [ -e /go ] || echo no"), "ready\nno\n");
}

#[test]
fn a_bounded_disk_is_committed_and_exported_while_its_sandbox_runs() {
    if who() != Who::Root {
        return not_applicable("only host root has a disk of its own");
    }
    let Some(world) = with_busybox() else { return };
    let script = "echo ready >/ready; while [ ! -e /go ]; do sleep 0.05; done; echo went on";
    let id = world.detached(["--image", "bb:1", "--workspace", "none", "--disk", "64M"], script);
    eventually("it runs", || world.exec(&id, "cat /ready").run().stdout.contains("ready").then_some(()));

    world.airlock(["commit", &id, "bb:2"]).run().succeeded();
    let [tree, file] = ["root.tar", "web.tar"].map(|name| world.aside("archives").join(name));
    world.airlock(["export", &id, "--rootfs", "-o"]).args([&tree]).run().succeeded();
    world.airlock(["export", &id, "-o"]).args([&file]).run().succeeded();
    world.exec(&id, "touch /go").run().succeeded();
    world.airlock(["wait", &id]).run().succeeded();

    assert!(world.airlock(["logs", &id]).run().stdout.contains("went on"));
    let look = "cat /ready; [ -e /go ] || echo no";
    assert_eq!(says(&world, "bb:2", look), "ready\nno\n");
    world.airlock(["images", "import"]).args([&tree]).args(["bb:3"]).run().succeeded();
    assert_eq!(says(&world, "bb:3", look), "ready\nno\n");
    let imported = world.airlock(["import"]).args([&file]).run().succeeded();
    assert!(!imported.trim().is_empty(), "it names a sandbox");
}

#[test]
fn a_sandbox_of_this_host_is_neither_committed_nor_exported_whole() {
    let world = World::new();
    world.sh(["--workspace", "none", "--keep", "--name", "web"], "true").run().succeeded();

    let commit = world.airlock(["commit", "web", "x:1"]).run().failed(125);
    let export = world.airlock(["export", "--rootfs", "web", "-o", "x.tar"]).run().failed(125);

    for said in [&commit, &export] {
        assert!(said.contains("its root is this host's own system"), "{said}");
    }
    assert!(!world.work().join("x.tar").exists());
}

#[test]
fn a_change_that_touches_files_is_refused_before_anything_is_packed() {
    let Some(world) = with_busybox() else { return };
    world.sh(KEPT.into_iter().chain(["--name", "web"]), "true").run().succeeded();

    let said = world.airlock(["commit", "web", "x:1", "--change", "RUN true"]).run().failed(2);

    assert!(said.contains("a change cannot be `RUN`"), "{said}");
}

#[test]
fn the_whole_root_is_one_plain_archive_of_the_image_and_what_was_changed() {
    let Some(world) = with_busybox() else { return };
    let script = "echo new >/etc/new; chmod 2750 /etc/new; rm /etc/group; rm -r /home; ln -s new /etc/link";
    world.sh(KEPT.into_iter().chain(["--name", "web"]), script).run().succeeded();

    world.airlock(["export", "--rootfs", "web", "-o", "root.tar"]).run().succeeded();

    let held = archived(&world.work().join("root.tar"));
    assert_eq!(held["etc/new"].mode, 0o2750);
    assert_eq!(
        (held["etc/new"].bytes.as_str(), held["etc/link"].target.as_str()),
        (&*sha256(b"new\n"), "new")
    );
    assert!(
        held.contains_key("bin/busybox") && !held.contains_key("etc/group") && !held.contains_key("home")
    );
    assert!(!held.contains_key("etc/resolv.conf"), "what we made for mounting is not in it");
    let streamed = world.airlock(["export", "--rootfs", "web"]).run();
    assert!(streamed.stdout.len() > 100_000);
}

#[test]
fn a_hostile_image_is_refused_with_words_and_leaves_nothing() {
    let Some(busybox) = Image::busybox() else { return };
    let world = World::new();
    let mut header = Header::new_gnu();
    header.set_entry_type(EntryType::Regular);
    header.set_size(4);
    header.set_mode(0o644);
    header.as_gnu_mut().expect("a header").name[..12].copy_from_slice(b"../../canary");
    header.set_cksum();
    let image = busybox.layer(Layer::new().raw(&header, b"evil")).named("evil:1");
    let archive = image.docker_archive(&world.aside("images").join("image.tar"));
    world.airlock(["images", "load", "-i"]).args([archive]).run();

    let said = world.sh(["--image", "evil:1", "--workspace", "none"], "true").run().failed(125);

    assert!(said.contains("its path leads upwards"), "{said}");
    let layers = world.home().join("images/layers");
    let found = Command::new("find").arg(&layers).args(["-name", "canary"]).output().expect("find runs");
    assert_eq!(String::from_utf8_lossy(&found.stdout), "");
}

#[test]
fn devices_are_left_out_and_owners_that_no_sandbox_has_become_root() {
    let Some(busybox) = Image::busybox() else { return };
    let world = World::new();
    let header = |kind, name: &[u8], owner: u64| {
        let mut header = Header::new_gnu();
        header.set_entry_type(kind);
        header.set_size(0);
        header.set_mode(0o4755);
        header.set_uid(owner);
        header.set_gid(owner);
        header.as_gnu_mut().expect("a header").name[..name.len()].copy_from_slice(name);
        header.set_cksum();
        header
    };
    let layer = Layer::new()
        .raw(&header(EntryType::Char, b"device", 0), b"")
        .raw(&header(EntryType::Regular, b"far", 3_000_000), b"")
        .raw(&header(EntryType::Regular, b"near", 0), b"");
    load(&world, busybox.layer(layer).named("odd:1"));

    let seen = says(&world, "odd:1", "ls /device 2>/dev/null; stat -c '%n %u %a' /far /near");

    let far = if who() == Who::Single { "/far 0 4755" } else { "/far 0 755" };
    assert_eq!(seen, format!("{far}\n/near 0 4755\n"));
}

#[test]
fn a_layer_is_unpacked_bit_by_bit_as_umoci_does() {
    if who() != Who::Root {
        return not_applicable("others cannot give files to other users");
    }
    if !has_program("umoci") {
        return skip("there is no umoci");
    }
    let Some(busybox) = Image::busybox() else { return };
    let world = World::new();
    let tree = world.aside("tree");
    fill(&tree);
    let packed = Command::new("tar")
        .args([
            "--format=pax",
            "--xattrs",
            "--xattrs-include=user.*",
            "--numeric-owner",
            "--sparse",
            "--sort=name",
        ])
        .arg("-C")
        .arg(&tree)
        .args(["-c", "."])
        .output()
        .expect("tar runs");
    let lower = packed.stdout;
    let upper = Layer::new()
        .directory("removed", 0o700)
        .file("removed/.wh.gone", 0o644, b"")
        .directory("opaque", 0o750)
        .file("opaque/.wh..wh..opq", 0o644, b"")
        .file("opaque/new", 0o600, b"new")
        .file("kind", 0o640, b"a file now");
    let image = busybox.layer(Layer::from_bytes(&lower)).layer(upper).named("same:1");
    let archive = image.oci_archive(&world.aside("oci").join("image.tar"));
    world.airlock(["images", "load", "-i"]).args([&archive]).run().succeeded();

    let ours = {
        world
            .sh(["--image", "same:1", "--workspace", "none", "--keep", "--name", "same"], "true")
            .run()
            .succeeded();
        world.airlock(["export", "--rootfs", "same", "-o", "root.tar"]).run().succeeded();
        archived(&world.work().join("root.tar"))
    };
    let theirs = unpacked_by_umoci(&world, &archive);

    for (path, their) in &theirs {
        assert_eq!(ours.get(path), Some(their), "{path}");
    }
    assert_eq!(ours.keys().collect::<Vec<_>>(), theirs.keys().collect::<Vec<_>>());
}

/// Files of every kind that a layer can tell.
fn fill(tree: &Path) {
    let path = |name: &str| tree.join(name);
    for directory in ["removed", "opaque", "kind", "deep/er"] {
        fs::create_dir_all(path(directory)).unwrap();
    }
    for file in ["removed/gone", "removed/stays", "opaque/old", "kind/x", "deep/er/file", "setuid", "setgid"]
    {
        fs::write(path(file), file).unwrap();
    }
    let strange = tree.join(OsStr::from_bytes(b"\xff\xfename\n"));
    fs::write(&strange, "strange").unwrap();
    fs::write(path(&"n".repeat(255)), "long").unwrap();
    fs::hard_link(path("deep/er/file"), path("again")).unwrap();
    symlink("/etc/passwd", path("absolute")).unwrap();
    symlink("../../..", path("deep/up")).unwrap();
    let sparse = File::create(path("sparse")).unwrap();
    sparse.set_len(5 << 20).unwrap();
    sparse.write_all_at(b"piece", 3 << 20).unwrap();
    let coloured = File::open(path("setgid")).unwrap();
    rustix::fs::fsetxattr(&coloured, "user.colour", b"red", XattrFlags::empty()).unwrap();
    for (name, owner, mode) in [
        ("setuid", (1000, 1000), 0o4711),
        ("setgid", (0, 42), 0o2755),
        ("deep/er", (33, 33), 0o3775),
        ("removed", (7, 8), 0o700),
    ] {
        std::os::unix::fs::chown(path(name), Some(owner.0), Some(owner.1)).unwrap();
        fs::set_permissions(path(name), fs::Permissions::from_mode(mode)).unwrap();
    }
    let touched = Command::new("find")
        .arg(tree)
        .args(["-exec", "touch", "-h", "-d", "2001-02-03 04:05:06", "{}", "+"])
        .status();
    assert!(touched.unwrap().success());
}

fn unpacked_by_umoci(world: &World, archive: &Path) -> BTreeMap<String, Found> {
    let (layout, bundle) = (world.aside("layout"), world.aside("bundles").join("one"));
    let unpacked = Command::new("tar").arg("-xf").arg(archive).arg("-C").arg(&layout).status();
    assert!(unpacked.unwrap().success());
    let index = layout.join("index.json");
    let text = fs::read_to_string(&index).unwrap();
    // The names of images are told by other words there.
    fs::write(
        &index,
        text.replace("io.containerd.image.name\":\"same:1", "org.opencontainers.image.ref.name\":\"one"),
    )
    .unwrap();
    let image = format!("{}:one", layout.display());
    let output = Command::new("umoci").args(["unpack", "--image", &image]).arg(&bundle).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let mut found = BTreeMap::new();
    look(&bundle.join("rootfs"), "", &mut found);
    found
}

/// What is known of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Found {
    kind: char,
    mode: u32,
    owner: (u64, u64),
    time: u64,
    /// The digest of its bytes.
    bytes: String,
    /// Where a symbolic link leads.
    target: String,
    /// How many names it has.
    names: u64,
    attributes: Vec<(String, Vec<u8>)>,
}

/// Everything in a directory, by its path.
fn look(directory: &Path, above: &str, found: &mut BTreeMap<String, Found>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().as_encoded_bytes().escape_ascii();
        let name = format!("{above}{name}");
        let stat = fs::symlink_metadata(&path).unwrap();
        let kind = stat.file_type();
        let letter = if kind.is_dir() {
            'd'
        } else if kind.is_symlink() {
            'l'
        } else {
            'f'
        };
        let target = fs::read_link(&path).map(|target| target.display().to_string()).unwrap_or_default();
        let bytes = if letter == 'f' { sha256(&fs::read(&path).unwrap()) } else { String::new() };
        let mut attributes = Vec::new();
        if letter != 'l' {
            let mut value = [0u8; 100];
            if let Ok(length) = rustix::fs::getxattr(&path, "user.colour", &mut value) {
                attributes.push(("user.colour".to_owned(), value[..length].to_vec()));
            }
        }
        let one = Found {
            kind: letter,
            mode: if letter == 'l' { 0o777 } else { stat.mode() & 0o7777 },
            owner: (stat.uid().into(), stat.gid().into()),
            time: u64::try_from(stat.mtime()).unwrap(),
            bytes,
            target,
            names: if letter == 'f' { stat.nlink() } else { 1 },
            attributes,
        };
        found.insert(name.clone(), one);
        if letter == 'd' {
            look(&path, &format!("{name}/"), found);
        }
    }
}

/// Everything in an archive, by its path.
fn archived(archive: &Path) -> BTreeMap<String, Found> {
    let mut found: BTreeMap<String, Found> = BTreeMap::new();
    let mut further: Vec<(String, String)> = Vec::new();
    for entry in tar::Archive::new(File::open(archive).unwrap()).entries().unwrap() {
        let mut entry = entry.unwrap();
        let name = |bytes: &[u8]| bytes.strip_suffix(b"/").unwrap_or(bytes).escape_ascii().to_string();
        let path = name(&entry.path_bytes());
        let link = entry.link_name_bytes().map(|link| link.into_owned()).unwrap_or_default();
        let kind = entry.header().entry_type();
        if kind == EntryType::Link {
            further.push((path, name(&link)));
            continue;
        }
        let attributes = match entry.pax_extensions().unwrap() {
            Some(words) => words
                .flatten()
                .filter_map(|word| {
                    let name = word.key().ok()?.strip_prefix("SCHILY.xattr.")?.to_owned();
                    Some((name, word.value_bytes().to_vec()))
                })
                .collect(),
            None => Vec::new(),
        };
        let header = entry.header();
        let letter = match kind {
            EntryType::Directory => 'd',
            EntryType::Symlink => 'l',
            _ => 'f',
        };
        let mut one = Found {
            kind: letter,
            mode: header.mode().unwrap(),
            owner: (header.uid().unwrap(), header.gid().unwrap()),
            time: header.mtime().unwrap(),
            bytes: String::new(),
            target: String::from_utf8_lossy(&link).into_owned(),
            names: 1,
            attributes,
        };
        if letter == 'f' {
            let mut bytes = Vec::new();
            entry.read_to_end(&mut bytes).unwrap();
            one.bytes = sha256(&bytes);
        }
        found.insert(path, one);
    }
    for (path, first) in &further {
        found.insert(path.clone(), found[first].clone());
    }
    for (path, first) in &further {
        let names = further.iter().filter(|(_, of)| of == first).count() as u64 + 1;
        for path in [path, first] {
            found.entry(path.clone()).and_modify(|one| one.names = names);
        }
    }
    found
}
