//! Images that are kept: listed, named, loaded, saved, removed; by many processes at once, and by some that are killed.

use airlock_tests::{
    Who, World,
    dockerd::Dockerd,
    images::{Image, Layer, entries, sha256},
    not_applicable, who,
};
use serde_json::{Value, json};
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

fn small() -> Image {
    let layer = Layer::new().directory("etc", 0o755).file("etc/motd", 0o644, b"hello\n");
    Image::scratch().layer(layer).configured("Cmd", json!(["/bin/tool"]))
}

fn archive(world: &World, image: &Image, name: &str) -> PathBuf {
    image.docker_archive(&world.aside("archives").join(name))
}

#[track_caller]
fn load(world: &World, path: &Path) -> String {
    world.airlock(["images", "load", "-i"]).args([path]).run().succeeded()
}

#[track_caller]
fn listed(world: &World) -> Vec<Value> {
    let text = world.airlock(["images", "ls", "--all", "--json"]).run().succeeded();
    text.lines().map(|line| serde_json::from_str(line).expect("one object a line")).collect()
}

fn files_below(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

#[test]
fn what_was_loaded_is_listed_inspected_tagged_and_removed() {
    let world = World::new();
    let image = small().named("r.test/team/tool:1");
    assert_eq!(load(&world, &archive(&world, &image, "a.tar")), "Loaded image: r.test/team/tool:1\n");

    let table = world.airlock(["images", "ls"]).run().succeeded();
    let short = image.id()[7..19].to_owned();
    assert!(
        table.starts_with("NAME") && table.contains("r.test/team/tool  1    ") && table.contains(&short),
        "{table}"
    );
    assert_eq!(world.airlock(["images", "ls", "-q"]).run().succeeded(), format!("{short}\n"));
    let inspected = world.airlock(["images", "inspect", &short]).run().succeeded();
    let inspected: Value = serde_json::from_str(&inspected).unwrap();
    assert_eq!(inspected[0]["id"], image.id());
    assert_eq!(inspected[0]["config"]["Cmd"], json!(["/bin/tool"]));
    assert_eq!(inspected[0]["layers"][0]["diff_id"], format!("sha256:{}", sha256(&image.layers()[0])));
    let history = world.airlock(["images", "history", "r.test/team/tool:1"]).run().succeeded();
    assert!(history.contains("layer 1"), "{history}");

    world.airlock(["images", "tag", &short, "tool"]).run().succeeded();
    let by_id = world.airlock(["images", "rm", &short]).run().failed(1);
    assert!(by_id.contains("has several names"), "{by_id}");
    assert_eq!(world.airlock(["images", "rm", "tool:latest"]).run().succeeded(), "Untagged: tool:latest\n");
    let gone = world.airlock(["images", "rm", "r.test/team/tool:1"]).run().succeeded();
    assert_eq!(gone, format!("Untagged: r.test/team/tool:1\nDeleted: {}\n", image.id()));
    assert_eq!(listed(&world), Vec::<Value>::new());
    assert_eq!(files_below(&world.home().join("images/blobs/sha256")), Vec::<String>::new());
}

#[test]
fn what_is_not_there_is_3_and_what_is_no_name_is_2() {
    let world = World::new();
    for verb in ["inspect", "history", "rm", "save"] {
        world.airlock(["images", verb, "no/such"]).run().failed(3);
    }
    world.airlock(["images", "tag", "no/such", "NAME"]).run().failed(2);
    load(&world, &archive(&world, &small().named("a"), "a.tar"));
    world.airlock(["images", "tag", "a", "host"]).run().failed(2);
}

#[test]
fn an_archive_is_loaded_from_a_pipe_in_every_compression() {
    let world = World::new();
    let image = small().named("a:1");
    let plain = archive(&world, &image, "a.tar");
    for program in ["cat", "gzip", "bzip2", "xz", "zstd"] {
        let Ok(packed) =
            Command::new(program).args(["-c"].iter().filter(|_| program != "cat")).arg(&plain).output()
        else {
            airlock_tests::skip(&format!("there is no {program}"));
            continue;
        };
        let loaded = world.airlock(["images", "load", "--json"]).input(packed.stdout).run().succeeded();
        let loaded: Value = serde_json::from_str(&loaded).unwrap();
        assert_eq!(loaded["id"], image.id(), "{program}");
        world.airlock(["images", "prune", "--all", "--force"]).run().succeeded();
        assert_eq!(listed(&world), Vec::<Value>::new(), "{program}");
    }
}

#[test]
fn what_is_saved_is_what_docker_saves_and_is_loaded_again() {
    let world = World::new();
    let image = small().named("a:1").named("b:2");
    load(&world, &image.oci_archive(&world.aside("archives").join("oci.tar")));
    let saved = world.aside("archives").join("saved.tar");

    world.airlock(["images", "save", "-o"]).args([&saved]).args(["a:1", "b:2"]).run().succeeded();

    let found = entries(&saved);
    let names: Vec<&str> = found.iter().map(|(name, _)| name.as_str()).collect();
    let blob = |bytes: &[u8]| format!("blobs/sha256/{}", sha256(bytes));
    let (layer, config) = (blob(&image.layers()[0]), blob(&image.config_bytes()));
    assert_eq!(names[..4], ["blobs/", "blobs/sha256/", &layer, &config]);
    assert_eq!(names[5..], ["index.json", "manifest.json", "oci-layout", "repositories"]);
    let manifest = found.iter().find(|(name, _)| name == "manifest.json").map(|(_, bytes)| bytes).unwrap();
    let manifest: Value = serde_json::from_slice(manifest).unwrap();
    assert_eq!(manifest[0]["Config"], config);
    assert_eq!(manifest[0]["RepoTags"], json!(["a:1", "b:2"]));
    assert_eq!(manifest[0]["Layers"], json!([layer]));

    world.airlock(["images", "rm", "--force", &image.id()]).run().succeeded();
    assert_eq!(load(&world, &saved), "Loaded image: a:1\nLoaded image: b:2\n");
}

#[test]
fn an_imported_root_file_system_is_an_image() {
    let world = World::new();
    let layer = Layer::new().file("etc/motd", 0o644, b"x").bytes();
    let import = |epoch: &str| {
        world
            .airlock(["images", "import", "--change", "CMD [\"sh\"]", "--message", "by hand", "-", "base:1"])
            .env("SOURCE_DATE_EPOCH", epoch)
            .input(layer.clone())
            .run()
    };
    let id = import("1000000000").succeeded();
    assert_eq!(import("1000000000").succeeded(), id, "the same archive is the same image");
    import("never").failed(2);
    let inspected = world.airlock(["images", "inspect", "--json", "base:1"]).run().succeeded();
    let inspected: Value = serde_json::from_str(&inspected).unwrap();
    assert_eq!(inspected["created"], "2001-09-09T01:46:40Z");
    assert_eq!(inspected["config"]["Cmd"], json!(["sh"]));
    world.airlock(["images", "import", "-", "x"]).input(b"no archive".repeat(100)).run().failed(125);
}

#[test]
fn hostile_archives_are_refused_and_leave_nothing() {
    let world = World::new();
    let evil = format!("blobs/sha256/{}", sha256(b"good"));
    let manifest = |text: &str| Layer::new().file("manifest.json", 0o644, text.as_bytes()).bytes();
    let cases = [
        ("nothing", Vec::new()),
        ("no archive", b"hello".repeat(1000)),
        ("a blob that is another", Layer::new().file(&evil, 0o644, b"evil").bytes()),
        ("no image", Layer::new().file("etc/passwd", 0o644, b"x").bytes()),
        ("paths outside", manifest(r#"[{"Config":"../../../etc/passwd","Layers":["/etc/shadow"]}]"#)),
        ("deep", manifest(&"[".repeat(200_000))),
        ("escapes", manifest("[{\"Config\":\"\\u001b[2Jx\",\"Layers\":[]}]")),
    ];
    for (what, bytes) in cases {
        let output = world.airlock(["images", "load"]).input(bytes).run();
        let told = output.to_string();
        assert!(told.contains("error:") && !told.contains('\u{1b}'), "{what}: {told}");
        assert_eq!(listed(&world), Vec::<Value>::new(), "{what}");
        assert_eq!(files_below(&world.home().join("images/blobs/sha256")), Vec::<String>::new(), "{what}");
        assert_eq!(files_below(&world.home().join("images/incoming")), Vec::<String>::new(), "{what}");
    }
}

#[test]
fn an_image_that_a_sandbox_uses_stays_until_the_sandbox_goes() {
    let Some(image) = Image::busybox() else { return };
    let world = World::new();
    load(&world, &archive(&world, &image.named("bb:1"), "bb.tar"));
    let id = world
        .airlock(["run", "-d", "--workspace", "none", "--image", "bb:1", "--", "sh", "-c", "sleep 1000"])
        .run()
        .succeeded();
    let id = id.trim_end();

    let refused = world.airlock(["images", "rm", "bb:1"]).run().failed(1);
    assert!(refused.contains("is used by") && refused.contains(id), "{refused}");
    assert_eq!(world.airlock(["images", "rm", "--force", "bb:1"]).run().succeeded(), "Untagged: bb:1\n");
    world.airlock(["images", "prune", "--all", "--force"]).run().succeeded();
    assert_eq!(listed(&world).len(), 1);
    world.airlock(["stop", "-t", "0s", id]).run().succeeded();
    world.airlock(["start", id]).run().succeeded();
    assert_eq!(world.exec(id, "echo alive").run().succeeded(), "alive\n");

    world.airlock(["rm", "--force", id]).run().succeeded();
    world.airlock(["images", "prune", "--force"]).run().succeeded();
    assert_eq!(listed(&world), Vec::<Value>::new());
    assert_eq!(files_below(&world.home().join("images/layers")), Vec::<String>::new());
}

/// Whatever is killed at whatever moment, every image that is listed is whole, and in the end nothing is left.
#[test]
fn many_at_once_some_of_them_killed_leave_the_store_whole() {
    let world = World::new();
    let archives: Vec<PathBuf> = (0..4u8)
        .map(|number| {
            let common = Layer::new().file("common", 0o644, &vec![7; 300_000]);
            let own = Layer::new().file("own", 0o644, &vec![number; 500_000]);
            let image = Image::scratch().layer(common).layer(own).named(&format!("i{number}:1"));
            archive(&world, &image, &format!("{number}.tar"))
        })
        .collect();
    let act = |what: usize, moment: usize| {
        let (path, name) = (archives[what % 4].display().to_string(), format!("i{}:1", moment % 4));
        let words: Vec<&str> = match what % 8 {
            0..4 => vec!["images", "load", "-q", "-i", &path],
            4 => vec!["images", "rm", "--force", &name],
            5 => vec!["images", "prune", "--force"],
            6 => vec!["images", "tag", &name, "other:1"],
            _ => vec!["images", "prune", "--all", "--force"],
        };
        let airlock = world.airlock(words).into_command();
        let variables = airlock.get_envs().filter_map(|(name, value)| Some((name, value?)));
        let mut killed = Command::new("timeout");
        killed.args(["--signal=KILL", &format!("0.{:03}", 1 + moment * 37 % 160)]);
        killed.arg(airlock.get_program()).args(airlock.get_args()).env_clear().envs(variables);
        killed.output().expect("timeout runs")
    };

    std::thread::scope(|scope| {
        for worker in 0..6usize {
            let act = &act;
            scope.spawn(move || {
                (0..20).for_each(|round| drop(act(worker * 5 + round * 3, worker * 31 + round * 17)))
            });
        }
    });

    for image in listed(&world) {
        let id = image["id"].as_str().unwrap();
        let saved = world.aside("archives").join("check.tar");
        world.airlock(["images", "save", "-o"]).args([saved.as_os_str(), id.as_ref()]).run().succeeded();
        for (name, bytes) in entries(&saved) {
            if let Some(digest) = name.strip_prefix("blobs/sha256/").filter(|digest| !digest.is_empty()) {
                assert_eq!(sha256(&bytes), digest);
            }
        }
    }
    for path in &archives {
        load(&world, path);
    }
    world.airlock(["images", "prune", "--all", "--force"]).run().succeeded();
    for folder in ["blobs/sha256", "incoming", "layers"] {
        assert_eq!(files_below(&world.home().join("images").join(folder)), Vec::<String>::new(), "{folder}");
    }
}

#[test]
fn room_is_told_for_each_image_and_for_all() {
    let world = World::new();
    let shared = Layer::new().file("shared", 0o644, &[7; 3000]).bytes();
    let image = |name: &str, bytes: &[u8]| {
        let own = Layer::new().file("own", 0o644, bytes);
        Image::scratch().layer(Layer::from_bytes(&shared)).layer(own).named(name)
    };
    load(&world, &archive(&world, &image("a:1", &[1; 5000]), "a.tar"));
    load(&world, &archive(&world, &image("b:1", &[2; 9000]), "b.tar"));

    let told = world.airlock(["images", "du", "--json"]).run().succeeded();
    let table = world.airlock(["images", "du"]).run().succeeded();

    let lines: Vec<Value> = told.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let of = |name: &str| lines.iter().find(|line| line["names"] == json!([name])).unwrap();
    for (name, own) in [("a:1", 5000), ("b:1", 9000)] {
        let line = of(name);
        assert!(line["shared_bytes"].as_u64().unwrap() >= 3000, "{line}");
        assert!(line["own_bytes"].as_u64().unwrap() >= own, "{line}");
        assert_eq!(
            line["bytes"].as_u64().unwrap(),
            line["shared_bytes"].as_u64().unwrap() + line["own_bytes"].as_u64().unwrap()
        );
        assert_eq!(line["is_used"], false);
    }
    let all = lines.last().unwrap();
    assert_eq!((&all["images"], &all["incoming_bytes"]), (&json!(2), &json!(0)));
    assert_eq!(all["reclaimable_bytes"], all["blob_bytes"], "{all}");
    assert!(table.starts_with("NAME") && table.contains("`airlock images prune --all` frees"), "{table}");
    world.airlock(["images", "prune", "--all", "--force"]).run().succeeded();
    assert_eq!(files_below(&world.home().join("images/blobs/sha256")), Vec::<String>::new());
}

#[test]
fn docker_loads_what_is_saved_and_what_docker_saves_is_loaded() {
    if who() != Who::Root {
        return not_applicable("dockerd needs root");
    }
    let world = World::new();
    let Some(image) = Image::busybox() else { return };
    let image = image.named("team/tool:1");
    load(&world, &archive(&world, &image, "tool.tar"));
    let Some(docker) = Dockerd::start(&world.aside("d")) else { return };
    let saved = world.aside("archives").join("saved.tar").display().to_string();
    let theirs = world.aside("archives").join("theirs.tar").display().to_string();

    // Docker reads archives of zstd from version 23 on.
    for flags in [&[][..], &["--compress", "gzip"]] {
        world.airlock(["images", "save", "-o", &saved]).args(flags).args(["team/tool:1"]).run().succeeded();
        docker.run(&["load", "-i", &saved]);
        let id = docker.run(&["image", "inspect", "--format", "{{.Id}}", "team/tool:1"]);
        assert_eq!(id.trim(), image.id(), "{flags:?}");
        let run = ["run", "--rm", "--network", "none", "team/tool:1", "echo", "of ours"];
        assert_eq!(docker.run(&run), "of ours\n");
        docker.run(&["tag", "team/tool:1", "kept"]);
        docker.run(&["save", "-o", &theirs, "team/tool:1"]);
        docker.run(&["image", "rm", "team/tool:1", "kept"]);
    }
    world.airlock(["images", "prune", "--all", "--force"]).run().succeeded();
    assert_eq!(load(&world, Path::new(&theirs)), "Loaded image: team/tool:1\n");
    assert_eq!(listed(&world)[0]["id"], image.id());
}
