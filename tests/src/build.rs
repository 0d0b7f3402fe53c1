//! Builds for tests: a context with a bit of everything, a base image, what an image holds as one text.

use crate::{World, images::Layer};
use serde_json::Value;
use std::{fs, os::unix::fs::PermissionsExt as _, path::Path, process::Command};

/// Where Debian's `busybox-static` is.
const BUSYBOX: [&str; 2] = ["/usr/bin/busybox", "/bin/busybox"];

/// Prints everything that an image holds, but what every sandbox and container has of its own.
pub const LISTING: &str = "find / -xdev \\( -path /proc -o -path /sys -o -path /dev -o -path /run -o -path /.dockerenv \
    -o -path /etc/hosts -o -path /etc/hostname -o -path /etc/resolv.conf -o -path /etc/mtab \\) -prune -o -print | sort | while read -r f; do \
    if [ -L \"$f\" ]; then echo \"$f link $(readlink \"$f\")\"; \
    elif [ -f \"$f\" ]; then echo \"$f $(stat -c '%a %u %g %s' \"$f\") $(sha256sum < \"$f\")\"; \
    else echo \"$f $(stat -c '%F %a %u %g' \"$f\")\"; fi; done";

/// An archive of a root with a busybox, users and `/tmp`. Nothing where there is no busybox that needs no library.
pub fn busybox_root() -> Option<Vec<u8>> {
    let Some(program) = BUSYBOX.iter().map(Path::new).find(|path| path.is_file()) else {
        crate::skip("there is no busybox-static");
        return None;
    };
    let listed = Command::new(program).arg("--list").output().expect("busybox runs");
    let mut layer = Layer::new();
    for directory in
        ["bin", "dev", "etc", "home", "home/ada", "proc", "root", "run", "sys", "usr", "usr/lib", "var"]
    {
        layer = layer.directory(directory, 0o755);
    }
    layer = layer.directory("tmp", 0o1777).file("bin/busybox", 0o755, &fs::read(program).expect("busybox"));
    for applet in String::from_utf8(listed.stdout).expect("names").lines().filter(|name| *name != "busybox") {
        layer = layer.link(&format!("bin/{applet}"), "busybox");
    }
    layer = layer
        .link("lib", "usr/lib")
        .file("etc/passwd", 0o644, b"root:x:0:0:root:/root:/bin/sh\nada:x:1000:1000::/home/ada:/bin/sh\n")
        .file("etc/group", 0o644, b"root:x:0:\nada:x:1000:\nstaff:x:50:ada\n");
    Some(layer.bytes())
}

/// Writes a context with files, directories, modes, links and archives.
pub fn context(folder: &Path) {
    fs::create_dir_all(folder.join("dir/sub")).expect("a directory");
    fs::create_dir_all(folder.join("node/modules")).expect("a directory");
    for (name, text) in [
        ("a.txt", "a\n"),
        ("b.txt", "b\n"),
        ("c.md", "c\n"),
        ("with space.txt", "space\n"),
        ("dir/one", "one\n"),
        ("dir/two", "two\n"),
        ("dir/sub/three", "three\n"),
        ("node/modules/big", "big\n"),
        ("node/keep", "keep\n"),
    ] {
        fs::write(folder.join(name), text).expect("a file");
    }
    fs::write(folder.join("run.sh"), "#!/bin/sh\necho ran\n").expect("a file");
    fs::set_permissions(folder.join("run.sh"), fs::Permissions::from_mode(0o755)).expect("a mode");
    fs::set_permissions(folder.join("dir/two"), fs::Permissions::from_mode(0o600)).expect("a mode");
    fs::set_permissions(folder.join("dir/sub"), fs::Permissions::from_mode(0o750)).expect("a mode");
    for (link, to) in [("dir/link", "one"), ("top", "a.txt"), ("dirlink", "dir")] {
        std::os::unix::fs::symlink(to, folder.join(link)).expect("a link");
    }
    let plain = Layer::new().directory("in", 0o711).file("in/side", 0o640, b"inside\n").bytes();
    fs::write(folder.join("plain.tar"), &plain).expect("an archive");
    for (program, how) in [("gzip", "-nk"), ("bzip2", "-k"), ("xz", "-k")] {
        let zipped = Command::new(program).args([how, "plain.tar"]).current_dir(folder).status();
        assert!(zipped.expect("it runs").success(), "{program}");
    }
    fs::write(folder.join("broken.tar.gz"), b"this is no archive\n").expect("a file");
}

/// Makes the image `base` of the archive, by a build.
pub fn base(world: &World, root: &[u8]) {
    let folder = world.aside("base");
    fs::write(folder.join("root.tar"), root).expect("an archive");
    fs::write(folder.join("Dockerfile"), "FROM scratch\nADD root.tar /\nCMD [\"sh\"]\n")
        .expect("a Dockerfile");
    world.airlock(["build", "-q", "-t", "base"]).args([folder]).run().succeeded();
}

/// The last line of `airlock build --json`: the image.
#[track_caller]
pub fn built(world: &World, flags: &[&str], context: &Path) -> Value {
    let text = world.airlock(["build", "--json"]).args(flags).args([context]).run().succeeded();
    serde_json::from_str(text.lines().last().unwrap_or_default()).expect("an object")
}
