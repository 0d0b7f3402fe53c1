//! The package gate, with the clients people use and a registry of our own: one version is ten days old, one an hour.

use crate::net::{Net, net};
use airlock_tests::{has_program, rust, skip};

/// A policy that allows the registry and looks at what comes from there.
fn gated(net: &Net, name: &str, more: &str) -> [String; 2] {
    net.trusting("");
    let registries = format!(
        "[packages.registries]\nnpm = \"https://{name}/packages/npm/\"\npypi = \"https://{name}/packages/pypi/simple/\"\n\
         crates = \"https://{name}/packages/crates/index/\"\ngo = \"https://{name}/packages/go/\"\nmaven = \"https://{name}/packages/maven/\"\n"
    );
    net.policy(&format!("[[rule]]\nallow = \"{name}\"\nports = [443]\n\n{more}\n{registries}"))
}

#[track_caller]
fn sh(net: &Net, flags: &[String], script: &str) -> String {
    net.world.sh(flags.iter().map(String::as_str), script).run().succeeded()
}

#[test]
fn npm_installs_the_version_that_is_old_enough() {
    if !has_program("npm") {
        return skip("there is no npm");
    }
    let Some(net) = net() else { return };
    let name = net.internet.name("web");
    let flags = gated(&net, &name, "");

    let said = sh(
        &net,
        &flags,
        &format!(
            "mkdir -p n && cd n && echo '{{}}' > package.json && \
             npm install --no-audit --no-fund --registry https://{name}/packages/npm/ --cache ./c airlock-demo >/dev/null && \
             node -p \"require('airlock-demo')\"; \
             npm install --no-audit --no-fund --registry https://{name}/packages/npm/ --cache ./c airlock-demo@1.1.0 2>&1 | grep -o ETARGET | head -1; \
             curl -sS -m 30 https://{name}/packages/npm/airlock-demo/-/airlock-demo-1.1.0.tgz"
        ),
    );

    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines[..2], ["1.0.0", "ETARGET"], "{said}");
    assert!(lines[2].contains("airlock-demo 1.1.0 is 1 hour old"), "{said}");
    assert!(lines[2].contains("min_age = 2 days"), "{said}");
}

#[test]
fn pip_installs_the_version_that_is_old_enough() {
    let Some(net) = net() else { return };
    let name = net.internet.name("web");
    let flags = gated(&net, &name, "");

    let said = sh(
        &net,
        &flags,
        &format!(
            "pip() {{ python3 -m pip -q --isolated --disable-pip-version-check --no-cache-dir install \
               --index-url https://{name}/packages/pypi/simple/ --target ./p \"$@\"; }}; \
             pip airlock-demo && PYTHONPATH=p python3 -c 'import airlock_demo; print(airlock_demo.version)'; \
             pip airlock-demo==1.1.0 2>&1 | grep -c 'No matching distribution'; \
             curl -sS -m 30 https://{name}/packages/pypi/files/airlock_demo-1.1.0-py3-none-any.whl"
        ),
    );

    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines[..2], ["1.0.0", "1"], "{said}");
    assert!(lines[2].contains("airlock-demo 1.1.0 is 1 hour old"), "{said}");
}

#[test]
fn cargo_fetches_the_version_that_is_old_enough() {
    let (Some(net), Some(rust)) = (net(), rust()) else { return };
    let name = net.internet.name("web");
    let flags = [&gated(&net, &name, "")[..], &rust].concat();

    let said = sh(
        &net,
        &flags,
        &format!(
            "mkdir -p k/src && cd k && touch src/lib.rs && export CARGO_HOME=$PWD/home && \
             export CARGO_REGISTRIES_OWN_INDEX=sparse+https://{name}/packages/crates/index/ && \
             printf '[package]\\nname = \"k\"\\nversion = \"0.1.0\"\\nedition = \"2021\"\\n[dependencies]\\nairlock-demo = {{ version = \"1\", registry = \"own\" }}\\n' > Cargo.toml && \
             cargo fetch -q >&2 && grep -A1 airlock-demo Cargo.lock | grep -o '1\\.[01]\\.0' | head -1; \
             curl -sS -m 30 https://{name}/packages/crates/dl/airlock-demo/1.1.0/download"
        ),
    );

    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines[0], "1.0.0", "{said}");
    assert!(lines[1].contains("airlock-demo 1.1.0 is 1 hour old"), "{said}");
}

/// Settings of go, and `version`, which tells which version of a module it downloads.
fn go(name: &str) -> String {
    format!(
        "export PATH=$PATH:/usr/local/go/bin GOTOOLCHAIN=local GOSUMDB=off GOFLAGS=-modcacherw GOPATH=$PWD/g GOCACHE=$PWD/c \
         GOPROXY=https://{name}/packages/go; \
         version() {{ go mod download -json airlock.test/$1 2>&1 | grep -oE '\"Version\": \"[^\"]*\"|403 Forbidden' | tail -1; }}; "
    )
}

fn has_go() -> bool {
    has_program("go") || std::path::Path::new("/usr/local/go/bin/go").exists()
}

#[test]
fn go_downloads_the_version_that_is_old_enough() {
    if !has_go() {
        return skip("there is no go");
    }
    let Some(net) = net() else { return };
    let name = net.internet.name("web");
    let script = go(&name)
        + &format!(
            "go list -m -versions airlock.test/demo; version demo@latest; version demo@v1.1.0; version timeless@v1.0.0; \
             for file in demo/@v/v1.1.0 timeless/@v/v1.0.0; do \
               curl -sS -m 30 https://{name}/packages/go/airlock.test/$file.zip; done"
        );

    let said = sh(&net, &gated(&net, &name, ""), &script);

    let lines: Vec<&str> = said.lines().collect();
    let old = "\"Version\": \"v1.0.0\"";
    assert_eq!(lines[..4], ["airlock.test/demo v1.0.0", old, "403 Forbidden", "403 Forbidden"], "{said}");
    assert!(lines[4].contains("airlock.test/demo v1.1.0 is 1 hour old"), "{said}");
    assert!(lines[4].contains("min_age = 2 days"), "{said}");
    assert!(lines[5].contains("nobody tells how old airlock.test/timeless v1.0.0 is"), "{said}");

    let allowed = gated(&net, &name, "[packages]\nallow = \"airlock.test/demo@v1.1.0\"\n");
    let young = "\"Version\": \"v1.1.0\"\n";
    assert_eq!(sh(&net, &allowed, &(go(&name) + "version demo@latest")), young);
    let denied = gated(&net, &name, "[packages]\ndeny = \"go:airlock.test/demo\"\n");
    assert_eq!(sh(&net, &denied, &(go(&name) + "version demo@v1.0.0")), "403 Forbidden\n");
}

/// Has Maven load an extension, which it fetches itself: whatever else it does needs plugins. Tells which version it got, or why not.
fn maven(name: &str) -> String {
    let settings = format!(
        "<settings><mirrors><mirror><id>own</id><mirrorOf>*</mirrorOf><url>https://{name}/packages/maven/</url></mirror></mirrors></settings>"
    );
    let project = "<project><modelVersion>4.0.0</modelVersion><groupId>own</groupId><artifactId>own</artifactId><version>1</version>\
                   <packaging>pom</packaging><build><extensions><extension><groupId>test.airlock</groupId>\
                   <artifactId>$1</artifactId><version>$2</version></extension></extensions></build></project>";
    format!(
        "echo '{settings}' > settings.xml; \
         load() {{ echo \"{project}\" > pom.xml; rm -rf repository; \
           mvn -B -C -s settings.xml -Dmaven.repo.local=$PWD/repository validate > said 2>&1 && ls repository/test/airlock/$1 | grep '^[0-9]' || \
           grep -o '403 Forbidden' said | head -1; }}; "
    )
}

#[test]
fn maven_fetches_the_version_that_is_old_enough() {
    if !has_program("mvn") {
        return skip("there is no mvn");
    }
    let Some(net) = net() else { return };
    let name = net.internet.name("web");
    let script = maven(&name)
        + &format!(
            "load demo '[1.0,2.0)'; load demo 1.1.0; load timeless 1.0.0; \
             for file in demo/1.1.0/demo-1.1.0 timeless/1.0.0/timeless-1.0.0; do \
               curl -sS -m 30 https://{name}/packages/maven/test/airlock/$file.jar; done"
        );

    let said = sh(&net, &gated(&net, &name, ""), &script);

    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines[..3], ["1.0.0", "403 Forbidden", "403 Forbidden"], "{said}");
    assert!(lines[3].contains("test.airlock:demo 1.1.0 is 1 hour old"), "{said}");
    assert!(lines[3].contains("min_age = 2 days"), "{said}");
    assert!(lines[4].contains("nobody tells how old test.airlock:timeless 1.0.0 is"), "{said}");

    let allowed = gated(&net, &name, "[packages]\nallow = \"maven:test.airlock:demo@1.1.0\"\n");
    assert_eq!(sh(&net, &allowed, &(maven(&name) + "load demo '[1.0,2.0)'")), "1.1.0\n");
    let denied = gated(&net, &name, "[packages]\ndeny = \"maven:test.airlock:demo\"\n");
    assert_eq!(sh(&net, &denied, &(maven(&name) + "load demo 1.0.0")), "403 Forbidden\n");
}

#[test]
fn lists_and_an_age_of_nothing_are_obeyed() {
    let Some(net) = net() else { return };
    let name = net.internet.name("web");
    let fetch = format!(
        "curl -sS -m 30 -o out -w '%{{http_code}} ' https://{name}/packages/npm/airlock-demo/-/airlock-demo-1.1.0.tgz; \
         curl -sS -m 30 -o out -w '%{{http_code}}' https://{name}/packages/npm/airlock-demo/-/airlock-demo-1.0.0.tgz"
    );
    let with = |more: &str| {
        let flags = gated(&net, &name, more);
        sh(&net, &flags, &fetch)
    };
    // Where nothing is looked at, the connection is not opened, and the server shows its own certificate.
    let unopened = |more: &str| {
        let flags = gated(&net, &name, more);
        sh(&net, &flags, &fetch.replace("-sS", "-sS --cacert ca.pem"))
    };

    assert_eq!(with("[packages]\n"), "403 200");
    assert_eq!(with("[packages]\nallow = \"airlock-demo@1.1.0\"\n"), "200 200");
    assert_eq!(with("[packages]\ndeny = \"npm:airlock-demo\"\n"), "403 403");
    assert_eq!(unopened("[packages]\nmin_age = 0\n"), "200 200");
    assert_eq!(with("[packages]\nmin_age = \"20d\"\n"), "403 403");
}
