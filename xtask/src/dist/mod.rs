//! `cargo xtask dist`: one static binary per architecture into `dist/`, with `SHA256SUMS`.
//!
//! - [`link`]: doing the link again
//! - [`order`]: the functions of a start side by side

mod link;
mod order;

pub(crate) use link::called_as_linker;

use crate::workspace::{cargo, executables, succeed, target, top};
use anyhow::{Context as _, Result, bail};
use link::Link;
use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

/// An architecture we give out binaries for.
struct Architecture {
    /// Debian's word, used in file names.
    name: &'static str,
    /// Rust's word.
    target: &'static str,
    /// The target that the guest inside is built for, where Rust has it: it starts quicker with musl.
    guest: &'static str,
    /// The C compiler that links for it from another architecture.
    cross: &'static str,
    /// The packages of that compiler and its static C library.
    packages: &'static str,
}

const ARCHITECTURES: [Architecture; 2] = [
    Architecture {
        name: "amd64",
        target: "x86_64-unknown-linux-gnu",
        guest: "x86_64-unknown-linux-musl",
        cross: "x86_64-linux-gnu-gcc",
        packages: "gcc-x86-64-linux-gnu libc6-dev-amd64-cross",
    },
    Architecture {
        name: "arm64",
        target: "aarch64-unknown-linux-gnu",
        guest: "aarch64-unknown-linux-musl",
        cross: "aarch64-linux-gnu-gcc",
        packages: "gcc-aarch64-linux-gnu libc6-dev-arm64-cross",
    },
];

/// The C library inside. The places that depend on the address of the program, some 30,000, are listed as one bit each
/// (`DT_RELR`, glibc 2.36 and its like) in place of 24 bytes, all of which every start would have to read.
const FLAGS: [&str; 2] = ["-Ctarget-feature=+crt-static", "-Clink-arg=-Wl,-z,pack-relative-relocs"];

/// Builds what this machine can build; the architecture of this machine must succeed.
pub(crate) fn run(_: Vec<String>) -> Result<()> {
    let folder = top().join("dist");
    fs::create_dir_all(&folder).with_context(|| format!("could not make {}", folder.display()))?;
    let mut names = Vec::new();
    for architecture in &ARCHITECTURES {
        match lacking(architecture) {
            Some(why) => println!("dist: {}: skipped: {why}", architecture.name),
            None => names.push(give_out(architecture, &folder)?),
        }
    }
    let sums = Command::new("sha256sum").args(&names).current_dir(&folder).output();
    let sums = sums.context("could not run sha256sum")?.stdout;
    fs::write(folder.join("SHA256SUMS"), &sums).context("could not write SHA256SUMS")?;
    print!("{}", String::from_utf8_lossy(&sums));
    Ok(())
}

/// Builds the static release binary for this machine and says where it is.
pub(crate) fn for_this_machine() -> Result<PathBuf> {
    let native = ARCHITECTURES.iter().find(|architecture| is_native(architecture));
    build(native.context("there is no binary for this machine's architecture")?)
}

fn is_native(architecture: &Architecture) -> bool {
    architecture.target.split('-').next() == Some(std::env::consts::ARCH)
}

fn rust_has(target: &str) -> bool {
    let output = Command::new("rustc").args(["--print", "target-libdir", "--target", target]).output();
    let libraries = output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    libraries.is_ok_and(|path| Path::new(&path).exists())
}

/// Why this machine cannot build for the architecture.
fn lacking(architecture: &Architecture) -> Option<String> {
    if !rust_has(architecture.target) {
        return Some(format!("Rust has no target {0} (rustup target add {0})", architecture.target));
    }
    let linker = Command::new(architecture.cross).arg("--version").output();
    if !is_native(architecture) && linker.is_err() {
        return Some(format!(
            "there is no {} (apt-get install {})",
            architecture.cross, architecture.packages
        ));
    }
    None
}

fn give_out(architecture: &Architecture, folder: &Path) -> Result<String> {
    let built = build(architecture)?;
    let bytes = fs::read(&built).with_context(|| format!("could not read {}", built.display()))?;
    if needs_interpreter(&bytes).context("the binary is not an ELF file")? {
        bail!("{} is not static: it names a dynamic linker", built.display());
    }
    let name = format!("airlock-{}-linux-{}", env!("CARGO_PKG_VERSION"), architecture.name);
    let path = folder.join(&name);
    fs::copy(&built, &path).with_context(|| format!("could not write {}", path.display()))?;
    if is_native(architecture) {
        succeed(Command::new(&path).arg("version"))?;
    }
    println!("dist: {}: {} bytes, static", name, bytes.len());
    Ok(name)
}

/// The C library inside; still at an address of the kernel's choice, which a program that meets hostile input wants.
fn build(architecture: &Architecture) -> Result<PathBuf> {
    if !rust_has(architecture.guest) {
        // Without it, or without a network, the guest is linked with glibc.
        let _ = Command::new("rustup").args(["target", "add", architecture.guest]).status();
    }
    let mut build = cargo(&[
        "build",
        "--profile",
        "dist",
        "--package",
        "airlock",
        "--features",
        "scripts,microvm",
        "--message-format=json",
    ]);
    build
        .args(["--target", architecture.target])
        // The library of TLS takes its random numbers from the kernel alone, and not from the jitter of the processor as
        // well: measuring that takes 50 ms of a start.
        .env("AWS_LC_SYS_NO_JITTER_ENTROPY", "1");
    if !is_native(architecture) {
        let variable = architecture.target.to_uppercase().replace('-', "_");
        build.env("CARGO_ENCODED_RUSTFLAGS", FLAGS.join("\x1f"));
        build.env(format!("CARGO_TARGET_{variable}_LINKER"), architecture.cross);
        return built(&mut build);
    }
    let folder = target()?.join("link");
    fs::create_dir_all(&folder).with_context(|| format!("could not make {}", folder.display()))?;
    let own = env::current_exe().context("could not find this program")?;
    let flags = FLAGS.map(str::to_owned).into_iter().chain([format!("-Clinker={}", own.display())]);
    build.env("CARGO_ENCODED_RUSTFLAGS", flags.collect::<Vec<_>>().join("\x1f")).env(link::FOLDER, &folder);
    in_order(built(&mut build)?, &folder)
}

fn built(build: &mut Command) -> Result<PathBuf> {
    let built = executables(build)?.into_iter().find(|(name, _)| name == "airlock");
    built.map(|(_, path)| path).context("cargo built no airlock")
}

/// The same program, with the functions of a start side by side.
fn in_order(built: PathBuf, folder: &Path) -> Result<PathBuf> {
    if let Some(why) = order::lacking() {
        println!("dist: functions are left in the order they came: {why}");
        return Ok(built);
    }
    let ordered = folder.join("airlock");
    let number = order::put_in_order(&Link::kept_in(folder)?, folder, &ordered)?;
    println!("dist: {number} functions of a start lie side by side");
    Ok(ordered)
}

/// Whether a 64-bit little-endian ELF file has a program header of type `PT_INTERP`; nothing if it is no such file.
pub(crate) fn needs_interpreter(elf: &[u8]) -> Option<bool> {
    const PT_INTERP: u32 = 3;
    if !elf.starts_with(b"\x7fELF\x02\x01") {
        return None;
    }
    let first = usize::try_from(u64::from_le_bytes(field(elf, 32)?)).ok()?;
    let size = usize::from(u16::from_le_bytes(field(elf, 54)?));
    let count = usize::from(u16::from_le_bytes(field(elf, 56)?));
    for number in 0..count {
        let at = first.checked_add(number.checked_mul(size)?)?;
        if u32::from_le_bytes(field(elf, at)?) == PT_INTERP {
            return Some(true);
        }
    }
    Some(false)
}

fn field<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at.checked_add(N)?)?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_test_is_dynamic_and_text_is_no_program() {
        let own = fs::read("/proc/self/exe").unwrap();

        assert_eq!(needs_interpreter(&own), Some(true));
        assert_eq!(needs_interpreter(b"#!/bin/sh"), None);
        assert_eq!(needs_interpreter(own.get(..60).unwrap()), None);
    }
}
