//! The `host` image is useful: software can be installed in it, and the host does not notice.

use airlock_tests::{Who, World, eventually, has_program, not_applicable, rust, skip, who};
use std::{fs, path::Path, process::Command};

/// A Debian package with one program, `airlock-hello`, in the workspace.
fn make_deb(world: &World) {
    let tree = world.aside("deb");
    fs::create_dir_all(tree.join("DEBIAN")).unwrap();
    fs::create_dir_all(tree.join("usr/bin")).unwrap();
    let control = "Package: airlock-hello\nVersion: 1.0\nArchitecture: all\nMaintainer: A <a@example.com>\nDescription: says hello\n";
    fs::write(tree.join("DEBIAN/control"), control).unwrap();
    let program = tree.join("usr/bin/airlock-hello");
    fs::write(&program, "#!/bin/sh\necho hello from a package\n").unwrap();
    rustix::fs::chmod(&program, 0o755.into()).unwrap();
    let made = Command::new("dpkg-deb")
        .args(["--root-owner-group", "--build"])
        .arg(&tree)
        .arg(world.work().join("hello.deb"))
        .output();
    let made = made.unwrap();
    assert!(made.status.success(), "{made:?}");
}

/// A Python wheel with one module and one program, in the workspace; made without pip or network.
fn make_wheel(world: &World) {
    let script = r#"
import zipfile
files = {
    'airlock_hello.py': 'def main(): print("hello from a wheel")\n',
    'airlock_hello-1.0.dist-info/METADATA': 'Metadata-Version: 2.1\nName: airlock-hello\nVersion: 1.0\n',
    'airlock_hello-1.0.dist-info/WHEEL': 'Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n',
    'airlock_hello-1.0.dist-info/entry_points.txt': '[console_scripts]\nairlock-hello-py = airlock_hello:main\n',
}
record = ''.join(name + ',,\n' for name in files) + 'airlock_hello-1.0.dist-info/RECORD,,\n'
with zipfile.ZipFile('airlock_hello-1.0-py3-none-any.whl', 'w') as wheel:
    for name, text in files.items(): wheel.writestr(name, text)
    wheel.writestr('airlock_hello-1.0.dist-info/RECORD', record)
"#;
    world.python(["--workspace", "rw"], script).run().succeeded();
}

fn make_npm_package(world: &World) {
    let package = world.work().join("pkg");
    fs::create_dir(&package).unwrap();
    fs::write(
        package.join("package.json"),
        r#"{"name": "airlock-hello", "version": "1.0.0", "bin": {"airlock-hello-js": "cli.js"}}"#,
    )
    .unwrap();
    fs::write(package.join("cli.js"), "#!/usr/bin/env node\nconsole.log('hello from npm')\n").unwrap();
    rustix::fs::chmod(package.join("cli.js"), 0o755.into()).unwrap();
}

#[test]
fn programs_of_the_host_are_there() {
    let world = World::new();

    assert_eq!(world.sh([], "command -v sh grep sed awk >/dev/null && echo yes").run().succeeded(), "yes\n");
}

#[test]
fn as_host_root_the_system_can_be_written_and_the_host_does_not_change() {
    if who() != Who::Root {
        return not_applicable("the system is read-only without root");
    }
    let world = World::new();

    let output = world.sh([], "touch /usr/bin/airlock-mark /etc/airlock-mark /opt/airlock-mark /var/airlock-mark && rm /usr/bin/awk && echo x >> /etc/profile && ls /usr/bin/airlock-mark").run();

    assert_eq!(output.succeeded(), "/usr/bin/airlock-mark\n");
    for path in ["/usr/bin/airlock-mark", "/etc/airlock-mark", "/opt/airlock-mark", "/var/airlock-mark"] {
        assert!(!Path::new(path).exists(), "{path}");
    }
    assert!(
        Path::new("/usr/bin/awk").exists() && !fs::read_to_string("/etc/profile").unwrap().ends_with("x\n")
    );
}

#[test]
fn as_an_ordinary_user_the_system_is_read_only() {
    if who() == Who::Root {
        return not_applicable("root has a writable system");
    }
    let world = World::new();

    let output =
        world.sh([], "touch /usr/bin/x; touch /opt/x; touch /var/x; rm /usr/bin/awk; echo end").run();

    assert_eq!(
        (output.stdout.as_str(), output.stderr.matches("Read-only").count()),
        ("end\n", 4),
        "{output}"
    );
}

#[test]
fn as_host_root_dpkg_and_apt_install_a_local_package() {
    if who() != Who::Root {
        return not_applicable("the system is read-only without root");
    }
    if !has_program("dpkg-deb") || !has_program("apt-get") {
        return skip("this host has no dpkg");
    }
    let world = World::new();
    make_deb(&world);

    let dpkg = world.sh([], "dpkg -i ./hello.deb >&2 && airlock-hello").run();
    let apt = world
        .sh([], "apt-get install -y ./hello.deb >&2 && airlock-hello && dpkg -s airlock-hello | grep Status")
        .run();

    assert_eq!(dpkg.succeeded(), "hello from a package\n");
    assert_eq!(apt.succeeded(), "hello from a package\nStatus: install ok installed\n");
    assert!(!Path::new("/usr/bin/airlock-hello").exists());
}

#[test]
fn as_an_ordinary_user_a_system_install_names_the_way_out() {
    if who() == Who::Root {
        return not_applicable("root can install into the system");
    }
    if !has_program("dpkg-deb") || !has_program("apt-get") {
        return skip("this host has no dpkg");
    }
    let world = World::new();
    make_deb(&world);

    for command in ["apt-get install -y ./hello.deb", "dpkg -i ./hello.deb", "apt install -y ./hello.deb"] {
        let output = world.sh([], command).run();

        assert_ne!(output.code, 0, "{command}");
        assert!(output.stderr.contains("--image"), "{command}: {output}");
    }
}

#[test]
fn pip_installs_without_a_flag() {
    if !has_program("pip3") && !Path::new("/usr/bin/pip3").exists() {
        return skip("this host has no pip");
    }
    let world = World::new();
    make_wheel(&world);

    let output = world.sh([], "pip3 install --no-index ./airlock_hello-1.0-py3-none-any.whl >&2 && airlock-hello-py && python3 -c 'import airlock_hello; airlock_hello.main()'").run();

    assert_eq!(output.succeeded(), "hello from a wheel\nhello from a wheel\n");
}

#[test]
fn npm_installs_globally_without_a_flag() {
    if !Path::new("/usr/bin/npm").exists() {
        return skip("this host has no npm");
    }
    let world = World::new();
    make_npm_package(&world);

    let output = world.sh([], "npm install -g --offline ./pkg >&2 && airlock-hello-js").run();

    assert_eq!(output.succeeded(), "hello from npm\n");
}

#[test]
fn cargo_installs_without_a_flag() {
    let world = World::new();
    let Some(rust) = rust() else { return };
    world.write(
        "Cargo.toml",
        "[package]\nname = \"hello\"\nversion = \"1.0.0\"\nedition = \"2021\"\n[workspace]\n",
    );
    fs::create_dir(world.work().join("src")).unwrap();
    world.write("src/main.rs", "fn main() { println!(\"hello from cargo\"); }\n");

    let install = "cargo install --offline --path . >&2 && hello";
    let output = world.sh(rust.iter().map(String::as_str), install).run();

    assert_eq!(output.succeeded(), "hello from cargo\n");
}

#[test]
fn what_is_installed_stays_with_the_sandbox() {
    let world = World::new();
    world.detached(["--name", "web"], "test -e /root/tool && echo kept; touch /root/tool; exec sleep 100000");
    eventually("it is made", || (world.exec("web", "test -e /root/tool").run().code == 0).then_some(()));

    world.airlock(["restart", "--time", "0s", "web"]).run().succeeded();

    eventually("it is kept", || world.airlock(["logs", "web"]).run().stdout.contains("kept").then_some(()));
    let other = world.sh([], "test ! -e /root/tool").run();
    assert_eq!(other.code, 0);
}
