//! The package gate, with the clients people use and a registry of our own: one version is ten days old, one an hour.

use crate::net::{Net, net};
use airlock_tests::{has_program, rust, skip};

/// A policy that allows the registry and looks at what comes from there.
fn gated(net: &Net, name: &str, more: &str) -> [String; 2] {
    net.trusting("");
    let registries = format!(
        "[packages.registries]\nnpm = \"https://{name}/packages/npm/\"\npypi = \"https://{name}/packages/pypi/simple/\"\n\
         crates = \"https://{name}/packages/crates/index/\"\n"
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
