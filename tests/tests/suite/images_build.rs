//! `airlock build`: images of Dockerfiles.

use airlock_tests::{
    Who, World,
    build::{LISTING, base, built, busybox_root, context},
    images::{Image, entries},
    internet::internet,
    registry::Registry,
    who,
};
use serde_json::Value;
use std::{fs, path::PathBuf};

/// A world with a base image and a context with this Dockerfile. Nothing where there is no busybox.
fn prepared(dockerfile: &str) -> Option<(World, PathBuf)> {
    let root = busybox_root()?;
    let world = World::new();
    base(&world, &root);
    let folder = world.aside("context");
    context(&folder);
    fs::write(folder.join("Dockerfile"), dockerfile).unwrap();
    Some((world, folder))
}

/// What a command prints in the image `app`.
#[track_caller]
fn inside(world: &World, script: &str) -> String {
    let flags = ["run", "-q", "--image", "app", "--workspace", "none", "--", "sh", "-c", script];
    world.airlock(flags).run().succeeded()
}

#[test]
fn a_dockerfile_becomes_an_image_that_runs() {
    let text = "FROM base AS build\nWORKDIR /src\nCOPY . .\nARG V=1\nRUN echo built $V > out && ls | wc -l >> out\n\
        FROM base\nCOPY --from=build --chmod=640 /src/out /opt/\nENV GREETING=\"hello there\"\n\
        CMD [\"sh\", \"-c\", \"echo $GREETING; cat /opt/out\"]\n";
    let Some((world, folder)) = prepared(text) else { return };

    built(&world, &["-t", "app", "--build-arg", "V=2"], &folder);

    let said = world.airlock(["run", "-q", "--image", "app", "--workspace", "none"]).run().succeeded();
    assert_eq!(said, "hello there\nbuilt 2\n16\n");
    assert_eq!(
        inside(&world, "stat -c '%a %u' /opt/out; ls /src 2>&1 || true"),
        "640 0\nls: /src: No such file or directory\n"
    );
}

#[test]
fn the_same_input_gives_the_same_image_and_nothing_is_done_twice() {
    let text = "FROM base\nCOPY dir /dir\nWORKDIR /w\nRUN date > /dev/null; echo x > made; mkdir -p d/e\nLABEL a=b\n";
    let Some((world, folder)) = prepared(text) else { return };
    let first = built(&world, &["-t", "app"], &folder);

    let again = world.airlock(["build", "-t", "app"]).args([&folder]).run();
    let told = again.stderr.clone();
    again.succeeded();
    assert_eq!(told.matches("CACHED").count(), 3, "{told}");
    assert!(!told.contains("done in"), "{told}");

    let anew = built(&world, &["--no-cache"], &folder);
    assert_eq!(anew["id"], first["id"]);
    // Times make no difference, modes do.
    let file = fs::File::options().append(true).open(folder.join("dir/one")).unwrap();
    file.set_modified(std::time::SystemTime::UNIX_EPOCH).unwrap();
    assert_eq!(built(&world, &[], &folder)["id"], first["id"]);
    fs::set_permissions(folder.join("dir/one"), std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    assert_ne!(built(&world, &[], &folder)["id"], first["id"]);
}

#[test]
fn mounts_of_a_run_leave_nothing_in_the_image() {
    let text = "FROM base\nRUN --mount=type=secret,id=token --mount=type=cache,target=/cache \
        --mount=type=tmpfs,target=/scratch --mount=type=bind,source=dir,target=/ctx \
        wc -c < /run/secrets/token > /seen && cat /ctx/sub/three >> /seen && date >> /cache/log && touch /scratch/x && \
        wc -l < /cache/log >> /seen\n";
    let Some((world, folder)) = prepared(text) else { return };
    let secret = world.aside("secret").join("token");
    fs::write(&secret, "do-not-leak").unwrap();
    let flag = format!("id=token,src={}", secret.display());

    let image = built(&world, &["-t", "app", "--secret", &flag], &folder);

    assert_eq!(
        inside(&world, "cat /seen; ls /cache /scratch /ctx /run/secrets 2>/dev/null || true"),
        "11\nthree\n1\n"
    );
    assert!(!image.to_string().contains("do-not-leak"));
    let found = std::process::Command::new("grep")
        .args(["-rlsaF", "do-not-leak"])
        .arg(world.home())
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&found.stdout), "");
    // What a cache holds is there the next time.
    built(&world, &["-t", "app", "--no-cache", "--secret", &flag], &folder);
    assert_eq!(inside(&world, "tail -n 1 /seen"), "2\n");
    let volumes = world.airlock(["volume", "ls", "-q"]).run().succeeded();
    world.airlock(["volume", "rm"]).args(volumes.lines()).run().succeeded();
}

#[test]
fn what_the_classic_builder_cannot_do_is_done_as_written() {
    let text = "# syntax=docker/dockerfile:1\nFROM base\nARG who=me\nRUN <<EOF\necho one > /h\necho $who >> /h\nEOF\n\
        RUN <<EOF\n#!/bin/cat\nscript\nEOF\nRUN cat <<A > /both && cat <<B >> /both\na\nA\nb\nB\n\
        COPY <<one <<\"two\" /docs/\nfor $who\none\nnot $who\ntwo\nCOPY --chmod=700 dir /d\nCOPY --parents dir/./sub/three /p/\n\
        COPY --exclude=*.md --exclude=*.txt *.* /x/\nADD --unpack=false plain.tar /as-it-is/\n";
    let Some((world, folder)) = prepared(text) else { return };

    built(&world, &["-t", "app"], &folder);

    let script =
        "cat /h /both /docs/one /docs/two; stat -c %a /d/one /d/sub/three; cat /p/sub/three; ls /x /as-it-is";
    let wanted = "one\nme\na\nb\nfor me\nnot $who\n700\n700\nthree\n/as-it-is:\nplain.tar\n\n/x:\n\
        broken.tar.gz\nplain.tar\nplain.tar.bz2\nplain.tar.gz\nplain.tar.xz\nrun.sh\n";
    assert_eq!(inside(&world, script), wanted);
}

#[test]
fn what_is_wrong_is_told_with_the_line() {
    for (text, line, words) in [
        ("FROM base\n\nNOPE x\n", 3, "unknown instruction: NOPE"),
        ("FROM base\nRUN exit 7\n", 2, "the command ended with exit code 7"),
        ("FROM base\nCOPY \\\n  missing /x\n", 2, "missing: not found"),
        ("FROM base\nCOPY a.txt b.txt /x\n", 2, "with several sources"),
        ("FROM base\nADD http://files.example/x /x\n", 2, "nothing allows files.example"),
        ("FROM base\nCOPY --chown=nobody a.txt /x\n", 2, "the image has no user `nobody`"),
    ] {
        let Some((world, folder)) = prepared(text) else { return };
        let output = world.airlock(["build"]).args([&folder]).run();
        assert_ne!(output.code, 0, "{text}");
        assert!(output.stderr.contains(&format!("Dockerfile:{line}: ")), "{}", output.stderr);
        assert!(output.stderr.contains(words), "{}", output.stderr);
    }
}

#[test]
fn a_run_reaches_nothing_that_is_not_allowed() {
    let text = "FROM base\nRUN wget -T 3 -q -O /x http://files.example/ || echo nothing > /x\n";
    let Some((world, folder)) = prepared(text) else { return };
    built(&world, &["-t", "app"], &folder);
    assert_eq!(inside(&world, "cat /x"), "nothing\n");
}

#[test]
fn stages_that_nobody_needs_are_not_built() {
    let text = "FROM base AS bad\nRUN exit 1\nFROM base AS good\nRUN echo good > /x\nFROM bad AS last\n";
    let Some((world, folder)) = prepared(text) else { return };
    let told = world.airlock(["build", "-t", "app", "--target", "good"]).args([&folder]).run();
    assert!(!told.stderr.contains("[bad"), "{}", told.stderr);
    told.succeeded();
    assert_eq!(inside(&world, "cat /x"), "good\n");
}

#[test]
fn a_context_can_be_an_archive_on_stdin() {
    let text = "FROM base\nCOPY dir /d\nADD plain.tar.gz /u/\n";
    let Some((world, folder)) = prepared(text) else { return };
    fs::write(folder.join(".dockerignore"), "dir/two\n").unwrap();
    let direct = built(&world, &["-t", "app"], &folder);
    let listed = inside(&world, LISTING);
    let archive =
        std::process::Command::new("tar").arg("c").arg(".").current_dir(&folder).output().unwrap().stdout;

    let id = world.airlock(["build", "-q", "-t", "app", "-"]).input(archive).run().succeeded();

    assert_eq!(inside(&world, LISTING), listed);
    assert_eq!(id.trim(), direct["id"].as_str().unwrap());
    assert!(!listed.contains("/d/two"), "{listed}");
    // What is no archive is a Dockerfile without a context.
    world.airlock(["build", "-q", "-"]).input("FROM base\nENV a=b\n").run().succeeded();
}

#[test]
fn a_file_from_elsewhere_is_added_where_it_is_allowed() {
    let Some(internet) = internet() else { return };
    let (name, other) = (internet.name("web"), internet.name("other"));
    let Some((world, folder)) = prepared(&format!("FROM base\nADD http://{name}/page /added\n")) else {
        return;
    };

    let refused = world.airlock(["build", "--allow", &other]).args([&folder]).run().failed(4);
    let image = built(&world, &["-t", "app", "--allow", &name], &folder);

    assert!(refused.contains("nothing allows") && refused.contains("airlock build --allow"), "{refused}");
    assert_eq!(inside(&world, "stat -c '%a %u' /added; test -s /added && echo there"), "600 0\nthere\n");
    let again = built(&world, &["-t", "app", "--allow", &name], &folder);
    assert_eq!(again["id"], image["id"], "the same content");
}

#[test]
fn a_base_that_is_not_here_comes_from_its_registry() {
    let Some(busybox) = Image::busybox() else { return };
    let (world, registry) = (World::new(), Registry::start());
    registry.add("base", "1", &busybox);
    fs::create_dir_all(world.home()).unwrap();
    fs::set_permissions(world.home(), std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
    let settings = format!("[images]\ninsecure = [\"{}\"]\n", registry.address());
    fs::write(world.home().join("config.toml"), settings).unwrap();
    let folder = world.aside("context");
    fs::write(folder.join("Dockerfile"), format!("FROM {}\nRUN echo built > /x\n", registry.name("base:1")))
        .unwrap();

    built(&world, &["-t", "app"], &folder);

    assert_eq!(inside(&world, "cat /x"), "built\n");
}

#[test]
fn modes_can_be_given_in_words() {
    let text = "FROM base\nCOPY --chmod=u=rwX,go=rX dir /d\nCOPY --chmod=a+x,g-w a.txt /a\nADD --chmod=go= b.txt /b\n";
    let Some((world, folder)) = prepared(text) else { return };
    for (path, mode) in [("dir/one", 0o600), ("a.txt", 0o664), ("b.txt", 0o644)] {
        fs::set_permissions(folder.join(path), std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap();
    }

    built(&world, &["-t", "app"], &folder);

    assert_eq!(inside(&world, "stat -c %a /d/sub /d/one /a /b"), "755\n644\n755\n600\n");
    fs::write(folder.join("Dockerfile"), "FROM base\nCOPY --chmod=often a.txt /a\n").unwrap();
    let said = world.airlock(["build"]).args([&folder]).run().failed(1);
    assert!(
        said.contains("Dockerfile:2: --chmod takes an octal mode, or words such as u=rwX,go-w"),
        "{said}"
    );
}

#[test]
fn secrets_and_caches_have_the_owner_and_the_mode_that_they_are_given() {
    let text = "FROM base\nRUN --mount=type=secret,id=token,uid=33,gid=34,mode=0440 \\\n\
        --mount=type=secret,id=token,target=/plain --mount=type=cache,target=/c,uid=33,gid=34,mode=0700 \\\n\
        stat -c '%u:%g %a' /run/secrets/token /plain /c > /seen\n\
        USER 33:34\nRUN --mount=type=secret,id=token,uid=33 --mount=type=secret,id=token,target=/roots \\\n\
        sh -c 'cat /run/secrets/token > /tmp/own; cat /roots > /tmp/roots || true'\n";
    let Some((world, folder)) = prepared(text) else { return };
    let secret = world.aside("secret").join("token");
    fs::write(&secret, "word").unwrap();
    let flag = format!("id=token,src={}", secret.display());

    built(&world, &["-t", "app", "--secret", &flag], &folder);

    let said = inside(&world, "cat /seen; cat /tmp/own; echo; cat /tmp/roots");
    match who() {
        // There is one id, and everything is its.
        Who::Single => assert_eq!(said, "0:0 440\n0:0 400\n0:0 700\nword\nword"),
        _ => assert_eq!(said, "33:34 440\n0:0 400\n33:34 700\nword\n"),
    }
    let volumes = world.airlock(["volume", "ls", "-q"]).run().succeeded();
    world.airlock(["volume", "rm"]).args(volumes.lines()).run().succeeded();
}

#[test]
fn programs_of_another_processor_are_refused_before_they_run() {
    let text = "FROM scratch\nCOPY run.sh /\nRUN [\"/run.sh\"]\n";
    let Some((world, folder)) = prepared(text) else { return };
    let build = |flags: &[&str]| world.airlock(["build", "-t", "app"]).args(flags).args([&folder]).run();

    let said = build(&["--platform", "linux/mips64"]).failed(5);
    assert!(said.contains("Dockerfile:3: this host runs programs of linux/"), "{said}");
    assert!(said.contains("FROM --platform=$BUILDPLATFORM"), "{said}");

    fs::write(folder.join("Dockerfile"), "FROM base\n").unwrap();
    let said = build(&["--platform", "linux/mips64"]).failed(1);
    assert!(said.contains("it is here for linux/") && said.contains("not for linux/mips64"), "{said}");

    // What is made here for elsewhere.
    let text = "FROM --platform=$BUILDPLATFORM base AS made\nARG TARGETARCH\nRUN echo $TARGETARCH > /x\n\
        FROM scratch\nCOPY --from=made /x /x\n";
    fs::write(folder.join("Dockerfile"), text).unwrap();
    build(&["--platform", "linux/mips64"]).succeeded();
    let image = world.airlock(["images", "inspect", "app"]).run().succeeded();
    assert!(image.contains("mips64"), "{image}");
}

#[test]
fn an_agent_is_not_given_to_a_command() {
    let Some((world, folder)) = prepared("FROM base\nRUN --mount=type=ssh true\n") else { return };
    let said = world.airlock(["build"]).args([&folder]).run().failed(1);
    assert!(said.contains("an agent signs whatever it is asked to") && said.contains("fix:"), "{said}");
}

#[test]
fn a_repository_is_added_as_it_is_at_its_commit() {
    let Some(internet) = internet() else { return };
    let name = internet.name("git");
    let text = format!(
        "FROM base\nADD http://{name}/git/hello.git /src/\nADD --keep-git-dir=true http://{name}/git/hello.git#HEAD /kept\n"
    );
    let Some((world, folder)) = prepared(&text) else { return };

    let refused = world.airlock(["build"]).args([&folder]).run().failed(4);
    let image = built(&world, &["-t", "app", "--allow", &name], &folder);

    assert!(refused.contains("nothing allows") && refused.contains("airlock build --allow"), "{refused}");
    let script = "cat /src/README; stat -c '%a %u' /src/README; test -e /src/.git || echo bare; test -e /kept/.git/HEAD && echo kept";
    assert_eq!(inside(&world, script), "hello from git\n644 0\nbare\nkept\n");
    let again = built(&world, &["-t", "app", "--allow", &name], &folder);
    assert_eq!(again["id"], image["id"], "the same commit");
    fs::write(
        folder.join("Dockerfile"),
        format!("FROM base\nADD http://{name}/git/hello.git#nowhere /src/\n"),
    )
    .unwrap();
    let said = world.airlock(["build", "--allow", &name]).args([&folder]).run().failed(1);
    assert!(said.contains("cannot be cloned") && said.contains("nowhere"), "{said}");
}

#[test]
fn a_branch_a_tag_a_commit_and_a_directory_of_a_repository_are_added() {
    let Some(internet) = internet() else { return };
    let name = internet.name("git");
    let commit = fs::read_to_string(internet.file("parts.commit")).expect("a commit");
    let at = |rest: &str| format!("http://{name}/git/parts.git{rest}");
    let lines = [("", "/main"), ("#draft", "/draft"), ("#v1:docs", "/v1"), ("#:docs", "/docs")];
    let mut text = "FROM base\n".to_owned();
    for (rest, to) in lines.into_iter().chain([(format!("#{commit}").as_str(), "/commit")]) {
        text += &format!("ADD {} {to}/\n", at(rest));
    }
    let Some((world, folder)) = prepared(&text) else { return };

    built(&world, &["-t", "app", "--allow", &name], &folder);

    let script = "cat /main/README /main/docs/guide /draft/docs/guide /v1/guide /docs/guide /commit/README; ls /v1; ls /docs";
    let wanted = "readme two\nguide two\nguide draft\nguide one\nguide two\nreadme one\nguide\nguide\n";
    assert_eq!(inside(&world, script), wanted);
    fs::write(folder.join("Dockerfile"), format!("FROM base\nADD {} /x\n", at("#v1:nowhere"))).unwrap();
    let said = world.airlock(["build", "--allow", &name]).args([&folder]).run().failed(1);
    assert!(said.contains("Dockerfile:2") && said.contains("cannot be cloned"), "{said}");
}

/// The entries of an image's topmost layers, oldest first: names and owners as the archives tell them.
fn owners(world: &World, layers: usize) -> Vec<Vec<(String, u64, u64)>> {
    let archive = world.aside("archives").join("saved.tar");
    world.airlock(["images", "save", "-o"]).args([&archive]).args(["app"]).run().succeeded();
    let found = entries(&archive);
    let file =
        |name: &str| found.iter().find(|(have, _)| have == name).map(|(_, bytes)| bytes.clone()).unwrap();
    let manifest: Value = serde_json::from_slice(&file("manifest.json")).unwrap();
    let names = manifest[0]["Layers"].as_array().unwrap();
    let told = |name: &Value| {
        let bytes = file(name.as_str().unwrap());
        let mut archive = tar::Archive::new(bytes.as_slice());
        let entries = archive.entries().unwrap().map(Result::unwrap);
        let one = |entry: tar::Entry<'_, &[u8]>| {
            let path = entry.path().unwrap().display().to_string();
            (path, entry.header().uid().unwrap(), entry.header().gid().unwrap())
        };
        entries.map(one).collect()
    };
    names[names.len() - layers..].iter().map(told).collect()
}

#[test]
fn a_layer_has_the_same_owners_whoever_builds_it() {
    let text = "FROM base\nCOPY --chown=ada dir /home/ada/dir\nCOPY --chown=5:6 a.txt b.txt /opt/\n\
        RUN touch /home/ada/dir/new && echo more >> /opt/a.txt && rm /opt/b.txt && mkdir /opt/c && touch /opt/c/d\n\
        USER ada\nRUN touch /tmp/mine && echo more >> /home/ada/dir/one && rm /home/ada/dir/two && mkdir /tmp/e && touch /tmp/e/f\n";
    let Some((world, folder)) = prepared(text) else { return };

    built(&world, &["-t", "app"], &folder);

    let layers: Vec<Vec<String>> = owners(&world, 2)
        .into_iter()
        .map(|layer| {
            let mut lines: Vec<String> =
                layer.into_iter().map(|(path, user, group)| format!("{path} {user}:{group}")).collect();
            lines.retain(|line| !line.contains(".wh..wh..opq"));
            lines.sort();
            lines
        })
        .collect();
    let by_root = [
        "home/ 0:0",
        "home/ada/ 0:0",
        "home/ada/dir/ 1000:1000",
        "home/ada/dir/new 0:0",
        "opt/ 5:6",
        "opt/.wh.b.txt 0:0",
        "opt/a.txt 5:6",
        "opt/c/ 0:0",
        "opt/c/d 0:0",
    ];
    let by_ada = [
        "home/ 0:0",
        "home/ada/ 0:0",
        "home/ada/dir/ 1000:1000",
        "home/ada/dir/.wh.two 0:0",
        "home/ada/dir/one 1000:1000",
        "tmp/ 0:0",
        "tmp/e/ 1000:1000",
        "tmp/e/f 1000:1000",
        "tmp/mine 1000:1000",
    ];
    assert_eq!(layers, [by_root, by_ada]);
}

#[test]
fn stages_that_need_nothing_of_each_other_are_built_at_the_same_time() {
    // Each waits for what the other one leaves in their cache.
    let stage = |own: &str, other: &str| {
        format!(
            "FROM base AS {own}\nRUN --mount=type=cache,target=/c touch /c/{own}; for i in $(seq 600); do \
             if [ -e /c/{other} ]; then echo met > /{own}; exit 0; fi; sleep 0.1; done; exit 1\n"
        )
    };
    let (one, two) = (stage("one", "two"), stage("two", "one"));
    let text = format!("{one}{two}FROM base\nCOPY --from=one /one /\nCOPY --from=two /two /\n");
    let Some((world, folder)) = prepared(&text) else { return };

    built(&world, &["-t", "app"], &folder);

    assert_eq!(inside(&world, "cat /one /two"), "met\nmet\n");
    let volumes = world.airlock(["volume", "ls", "-q"]).run().succeeded();
    world.airlock(["volume", "rm"]).args(volumes.lines()).run().succeeded();
}

#[test]
fn what_a_base_demands_of_those_above_is_done_once() {
    let text = "FROM base\nWORKDIR /on\nONBUILD COPY a.txt .\nONBUILD ARG word=none\nONBUILD RUN echo $word >> ran\n";
    let Some((world, folder)) = prepared(text) else { return };
    let below = built(&world, &["-t", "demanding"], &folder);
    assert_eq!(below["image"]["config"]["OnBuild"].as_array().map(Vec::len), Some(3), "{below}");

    fs::write(folder.join("Dockerfile"), "FROM demanding\nRUN echo own >> ran\n").unwrap();
    let image = built(&world, &["-t", "app", "--build-arg", "word=given"], &folder);

    assert_eq!(inside(&world, "cat /on/a.txt /on/ran"), "a\ngiven\nown\n");
    assert!(image["image"]["config"]["OnBuild"].as_array().is_none_or(Vec::is_empty), "{image}");
}

#[test]
fn times_are_those_of_source_date_epoch() {
    let text = "FROM base\nCOPY a.txt /a\nRUN touch /new && touch -d @5 /old\n";
    let Some((world, folder)) = prepared(text) else { return };
    let build = || {
        let flags = ["build", "--json", "--no-cache", "-t", "app"];
        let command = world.airlock(flags).args([&folder]).env("SOURCE_DATE_EPOCH", "1000000000");
        let text = command.run().succeeded();
        serde_json::from_str::<Value>(text.lines().last().unwrap()).unwrap()
    };

    let (first, second) = (build(), build());

    assert_eq!(first["id"], second["id"]);
    let created = |value: &Value| value["created"].as_str().unwrap().to_owned();
    let steps: Vec<String> = first["image"]["history"].as_array().unwrap().iter().map(created).collect();
    // The base was made without one.
    assert_eq!(
        steps,
        ["1970-01-01T00:00:00Z", "1970-01-01T00:00:00Z", "2001-09-09T01:46:40Z", "2001-09-09T01:46:40Z"]
    );
    assert_eq!(created(&first["image"]), "2001-09-09T01:46:40Z");
    assert_eq!(inside(&world, "stat -c %Y /a /new /old"), "1000000000\n1000000000\n5\n");
    assert_ne!(built(&world, &[], &folder)["id"], first["id"]);
}

#[test]
fn a_file_from_elsewhere_is_the_one_whose_sum_is_given() {
    let Some(internet) = internet() else { return };
    let name = internet.name("web");
    let url = format!("http://{name}/bytes/1000");
    let Some((world, folder)) = prepared(&format!("FROM base\nADD {url} /added\n")) else { return };
    built(&world, &["-t", "app", "--allow", &name], &folder);
    let sum = inside(&world, "sha256sum < /added").split_whitespace().next().unwrap().to_owned();
    let with = |sum: &str| {
        fs::write(
            folder.join("Dockerfile"),
            format!("FROM base\n\nADD --checksum=sha256:{sum} {url} /added\n"),
        )
        .unwrap();
        world.airlock(["build", "-q", "--allow", &name]).args([&folder]).run()
    };

    with(&sum).succeeded();
    let said = with(&"0".repeat(64)).failed(1);

    assert!(said.contains("Dockerfile:3") && said.contains(&format!("is sha256:{sum}, not")), "{said}");
}
