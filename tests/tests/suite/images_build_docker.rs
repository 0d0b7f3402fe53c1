//! The same Dockerfiles built by us and by a dockerd's classic builder: the same files, the same config, the same history.

use airlock_tests::{
    Who, World,
    build::{LISTING, base, built, busybox_root, context},
    dockerd::Dockerd,
    not_applicable, who,
};
use serde_json::{Value, json};
use std::{
    fs,
    io::Write as _,
    path::{Path, PathBuf},
    process::Stdio,
};

/// Each is built from the same context. What follows `FROM base` is often all there is.
const DOCKERFILES: &[(&str, &str)] = &[
    ("copy a file", "COPY a.txt /x\n"),
    ("copy into a directory", "COPY a.txt /tmp/\n"),
    ("copy into a directory without slash", "COPY a.txt /tmp\n"),
    ("copy into a new directory", "COPY a.txt /new/deep/\n"),
    ("copy under a new name", "COPY a.txt /new/deep/name\n"),
    ("copy a directory", "COPY dir /dir\n"),
    ("copy a directory into one that is there", "COPY dir /tmp/\n"),
    ("copy a directory to the root", "COPY dir /\n"),
    ("copy everything", "COPY . /all/\n"),
    ("copy by a pattern", "COPY *.txt /t/\n"),
    ("copy by a class", "COPY [ab].t?t /t/\n"),
    ("copy several", "COPY a.txt b.txt dir /t/\n"),
    ("copy in list form", "COPY [\"with space.txt\", \"/t/\"]\n"),
    ("copy a link at the top", "COPY top /t\n"),
    ("copy a link to a directory", "COPY dirlink /t\n"),
    ("copy through a link of the image", "COPY a.txt /lib/\n"),
    ("copy over a file", "COPY a.txt /etc/group\n"),
    ("copy with an owner by name", "COPY --chown=ada:staff dir /home/ada/dir\n"),
    ("copy with an owner by number", "COPY --chown=5:6 a.txt /n/x\n"),
    ("copy relative to the working directory", "WORKDIR /w\nCOPY a.txt .\nCOPY b.txt sub/\n"),
    ("copy with variables", "ENV to=/var/v\nCOPY a.txt ${to}/${name:-default}\n"),
    ("copy executables", "COPY run.sh /usr/bin/run\nRUN run > /out\n"),
    ("add an archive", "ADD plain.tar /unpacked\n"),
    ("add a compressed archive", "ADD plain.tar.gz /unpacked/\n"),
    ("add an archive by bzip2", "ADD plain.tar.bz2 /unpacked/\n"),
    ("add an archive by xz", "ADD plain.tar.xz /unpacked/\n"),
    ("add what only looks like one", "ADD broken.tar.gz /as/it/is\n"),
    ("add several", "ADD plain.tar a.txt /many/\n"),
    ("add a directory", "ADD dir /d\n"),
    ("run in a shell", "RUN echo a > /x; mkdir /d && touch /d/e && chmod 4755 /d/e && ln -s /x /l\n"),
    ("run words", "RUN [\"touch\", \"/a b\"]\n"),
    ("run and remove", "RUN rm -rf /home/ada /etc/group && echo new > /etc/group2\n"),
    ("run and replace a directory", "RUN rm -rf /var && mkdir /var && touch /var/x && chown -R 7:8 /var\n"),
    ("run nothing", "RUN true\n"),
    ("run in several lines", "RUN echo one \\\n  # a comment\n  two \\\n\n  three > /x\n"),
    (
        "run as a user",
        "USER ada\nRUN id -u > /tmp/id; echo $HOME >> /tmp/id\nUSER 0:50\nRUN id -g > /tmp/g\n",
    ),
    ("run with hard links", "RUN echo x > /a && ln /a /b\n"),
    (
        "variables",
        "ENV a=1 b=\"two words\" c=three\\ words\nENV d $a and $b\nENV a=2 e=$a\nRUN env | grep '^[a-e]=' | sort > /e\n",
    ),
    ("arguments", "ARG x=1\nARG y\nARG z=$x-$y\nENV w=$z\nRUN echo $x $y $z $w > /a\n"),
    ("an argument below a variable", "ENV x=env\nARG x=arg\nRUN echo $x > /x\n"),
    ("labels", "LABEL a=b c=\"d e\" \"f g\"='h i'\nLABEL multi=\"one \\\ntwo\"\n"),
    ("ports", "EXPOSE 80 443/tcp 53/udp\nEXPOSE 8000-8002\n"),
    ("volumes", "VOLUME /data /more\nVOLUME [\"/a b\"]\n"),
    ("a command and an entrypoint", "CMD a b\nENTRYPOINT [\"e\", \"f\"]\nCMD [\"c\"]\n"),
    ("an entrypoint takes the command away", "ENTRYPOINT run me\n"),
    ("another shell", "SHELL [\"/bin/busybox\", \"sh\", \"-c\"]\nRUN echo shell > /s\nCMD now\n"),
    (
        "a health check",
        "HEALTHCHECK --interval=5m --timeout=3s --retries=3 --start-period=1s CMD wget -q localhost || exit 1\n",
    ),
    ("no health check", "HEALTHCHECK NONE\n"),
    ("a signal", "STOPSIGNAL SIGQUIT\n"),
    ("a maintainer", "MAINTAINER Ada <ada@example.org>\nENV a=b\n"),
    (
        "working directories",
        "WORKDIR /a/b\nWORKDIR c\nWORKDIR ../d\nENV w=/e\nWORKDIR $w/f\nRUN pwd > /pwd\n",
    ),
    ("what others have to do", "ONBUILD COPY a.txt /on\nONBUILD RUN echo x\n"),
];

/// Those that begin in another way.
const WHOLE: &[(&str, &str)] = &[
    (
        "stages",
        "FROM base AS one\nRUN echo one > /one\nFROM base\nCOPY --from=one /one /two\nCOPY --from=0 /one /t/\n",
    ),
    (
        "a stage upon a stage",
        "FROM base AS one\nRUN echo one > /one\nENV a=b\nFROM one\nRUN cat /one > /two\nCOPY --from=base /etc/passwd /p\n",
    ),
    ("arguments before", "ARG which=base\nARG v=7\nFROM ${which}\nARG v\nRUN echo \"$v-$which\" > /v\n"),
    ("another escape", "# escape=`\nFROM base\nRUN echo a`\nb > /x\nENV p=c:\\d\n"),
    ("in lower case", "from base as x\nrun echo a > /a\nfrom x\nenv b=c\n"),
    ("from nothing", "FROM scratch\nADD base.tar /\nCOPY a.txt /x\nCMD [\"sh\"]\n"),
];

/// The parts of a config that both have; what is not there is empty.
fn parts(config: &Value) -> Value {
    let names = [
        "Env",
        "Cmd",
        "Entrypoint",
        "Labels",
        "User",
        "WorkingDir",
        "ExposedPorts",
        "Volumes",
        "Healthcheck",
        "StopSignal",
        "Shell",
        "OnBuild",
    ];
    let is_nothing = |value: &Value| match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        _ => false,
    };
    let kept = names.iter().filter(|name| !is_nothing(&config[**name]));
    kept.map(|name| ((*name).to_owned(), config[*name].clone())).collect::<serde_json::Map<_, _>>().into()
}

/// A step of a history without what depends on who hashed what.
fn step(text: &str) -> String {
    // Younger versions of Docker know one more time of a health check.
    let text = text.replace(" \"0s\"", "");
    let mut words: Vec<&str> = text.split(' ').collect();
    for word in &mut words {
        // An owner stands before it, without a space.
        if ["file:", "dir:", "multi:"].iter().any(|kind| word.contains(kind)) {
            *word = "FILES";
        }
    }
    words.join(" ")
}

/// The base image and the context, for both.
fn prepare(world: &World, docker: &Dockerd, root: &[u8]) -> PathBuf {
    let mut import = docker.docker(&["import", "-c", "CMD [\"sh\"]", "-", "base"]);
    let mut import = import.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    import.stdin.take().unwrap().write_all(root).unwrap();
    assert!(import.wait().unwrap().success());
    base(world, root);
    let folder = world.aside("context");
    context(&folder);
    fs::write(folder.join("base.tar"), root).unwrap();
    let ignored = "node\n!node/keep\n*.md\nbase.tar\n!base.tar\nDockerfile\n.dockerignore\n";
    fs::write(folder.join(".dockerignore"), ignored).unwrap();
    folder
}

/// What is compared of an image: its configuration, its steps, its files.
struct Seen {
    config: Value,
    steps: Vec<String>,
    files: Vec<String>,
}

/// Who looks at the files, and what at them.
const LOOK: [&str; 7] = ["--user", "0", "--entrypoint", "", "app", "/bin/sh", "-c"];

fn theirs(docker: &Dockerd, folder: &Path, skip: usize) -> Seen {
    let path = folder.display().to_string();
    docker.run(&["build", "-q", "--network", "none", "-t", "app", "--build-arg", "y=given", &path]);
    let told: Value = serde_json::from_str(&docker.run(&["inspect", "app"])).unwrap();
    let history = docker.run(&["history", "--no-trunc", "--format", "{{json .}}", "app"]);
    let said = |line: &str| step(serde_json::from_str::<Value>(line).unwrap()["CreatedBy"].as_str().unwrap());
    // The newest stands first; what came before is each one's own way to make the base.
    let steps = history.lines().rev().skip(skip).map(said).collect();
    let run = ["run", "--rm", "--network", "none"];
    let files = docker.run(&[&run[..], &LOOK, &[LISTING]].concat());
    Seen { config: parts(&told[0]["Config"]), steps, files: files.lines().map(str::to_owned).collect() }
}

fn ours(world: &World, folder: &Path, skip: usize) -> Seen {
    let told = built(world, &["-t", "app", "--build-arg", "y=given"], folder);
    let history = told["image"]["history"].as_array().unwrap();
    let said = |said: &Value| step(said["created_by"].as_str().unwrap());
    let steps = history.iter().skip(2 * skip).map(said).collect();
    let run = ["run", "-q", "--workspace", "none", "--image", "app", "--user", "0", "--entrypoint", ""];
    let look = ["--", "/bin/sh", "-c", LISTING];
    let files = world.airlock([&run[..], &look].concat()).run().succeeded();
    Seen { config: parts(&told["image"]["config"]), steps, files: files.lines().map(str::to_owned).collect() }
}

/// Where they are not the same.
fn differences(name: &str, theirs: &Seen, ours: &Seen) -> Vec<Value> {
    let only = |one: &[String], other: &[String]| -> Vec<String> {
        one.iter().filter(|line| !other.contains(line)).cloned().collect()
    };
    let mut found = Vec::new();
    if theirs.config != ours.config {
        found.push(json!({"of": name, "theirs": theirs.config, "ours": ours.config}));
    }
    if theirs.steps != ours.steps {
        found.push(json!({"of": name, "theirs": theirs.steps, "ours": ours.steps}));
    }
    if theirs.files != ours.files {
        let (their, our) = (&theirs.files, &ours.files);
        found.push(json!({"of": name, "theirs": only(their, our), "ours": only(our, their)}));
    }
    found
}

#[test]
fn images_are_those_of_dockers_classic_builder() {
    if who() != Who::Root {
        return not_applicable("dockerd needs root");
    }
    let Some(root) = busybox_root() else { return };
    let world = World::new();
    let Some(docker) = Dockerd::start(&world.aside("d")) else { return };
    let folder = prepare(&world, &docker, &root);
    let shorter = DOCKERFILES.iter().map(|(name, text)| (*name, format!("FROM base\n{text}")));
    let whole = WHOLE.iter().map(|(name, text)| (*name, (*text).to_owned()));

    let mut found = Vec::new();
    for (name, text) in shorter.chain(whole) {
        fs::write(folder.join("Dockerfile"), &text).unwrap();
        let skip = usize::from(!text.contains("FROM scratch"));
        found.extend(differences(name, &theirs(&docker, &folder, skip), &ours(&world, &folder, skip)));
    }

    assert!(DOCKERFILES.len() + WHOLE.len() >= 40);
    assert!(found.is_empty(), "{}", serde_json::to_string_pretty(&found).unwrap());
}
