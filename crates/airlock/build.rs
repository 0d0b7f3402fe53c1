//! Builds the guest (PID 1 inside every sandbox) as a static program, so that `airlock` can carry it inside itself:
//!
//! ```text
//! static GUEST: &[u8] = include_bytes!(env!("AIRLOCK_GUEST"));
//! ```
//!
//! With the feature `microvm` also the carrier, which is in the guest's place where there is a machine. With the feature `scripts` also the program that runs scripts, from its own workspace in `script`.
//!
//! It runs a second cargo with a target directory of its own (the outer cargo holds the lock of the first), one
//! for all profiles, so that debug and release builds share one guest.

use std::{
    env,
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    process::{Command, ExitCode, Stdio},
};

/// Linked with the C library inside and at a fixed address: nothing to load, nothing to relocate at start.
const STATIC: [&str; 2] = ["-Ctarget-feature=+crt-static", "-Crelocation-model=static"];

/// What the guest is made of, from the top of the workspace.
const SOURCES: [&str; 7] = [
    "crates/guest",
    "crates/copy",
    "crates/linux",
    "crates/protocol",
    "Cargo.toml",
    "Cargo.lock",
    "rust-toolchain.toml",
];

/// What the carrier is made of besides.
const CARRIER_SOURCES: [&str; 2] = ["crates/carrier", "crates/files"];

/// What the program that runs scripts is made of besides.
const SCRIPT_SOURCES: [&str; 3] = ["script/src", "script/Cargo.toml", "script/Cargo.lock"];

/// A program that is carried inside.
struct Program {
    package: &'static str,
    profile: &'static str,
    /// The folder of its workspace, from the top.
    workspace: &'static str,
    library: Library,
}

/// The C library inside a program.
#[derive(PartialEq)]
enum Library {
    /// The one the target names.
    Same,
    /// musl, where Rust has it (`rustup target add`): glibc asks the processor a hundred questions before the first
    /// instruction of ours, and in a virtual machine each costs microseconds. That is 0.4 ms of every start.
    Smallest,
}

impl Library {
    fn target(&self, target: &str) -> String {
        let other = target.strip_suffix("-gnu").map(|stem| format!("{stem}-musl"));
        other.filter(|other| *self == Library::Smallest && has_target(other)).unwrap_or_else(|| target.into())
    }
}

/// Whether this Rust can build for a target.
fn has_target(target: &str) -> bool {
    let rustc = env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let found = Command::new(rustc).args(["--print", "target-libdir", "--target", target]).output();
    found.is_ok_and(|found| Path::new(String::from_utf8_lossy(&found.stdout).trim()).exists())
}

const GUEST: Program =
    Program { package: "airlock-guest", profile: "guest", workspace: ".", library: Library::Smallest };
const CARRIER: Program =
    Program { package: "airlock-carrier", profile: "guest", workspace: ".", library: Library::Smallest };
const SCRIPT: Program =
    Program { package: "airlock-script", profile: "script", workspace: "script", library: Library::Same };

fn main() -> ExitCode {
    match embed_all() {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("error: {why}");
            ExitCode::FAILURE
        }
    }
}

fn embed_all() -> Result<(), String> {
    let guest = embed(&GUEST, &SOURCES)?;
    println!("cargo::rustc-env=AIRLOCK_GUEST={}", guest.display());
    println!("cargo::rustc-env=AIRLOCK_GUEST_ID={}", identity(&guest));
    if env::var_os("CARGO_FEATURE_MICROVM").is_some() {
        let carrier = embed(&CARRIER, &CARRIER_SOURCES)?;
        println!("cargo::rustc-env=AIRLOCK_CARRIER={}", carrier.display());
        println!("cargo::rustc-env=AIRLOCK_CARRIER_ID={}", identity(&carrier));
    }
    if env::var_os("CARGO_FEATURE_SCRIPTS").is_some() {
        let script = embed(&SCRIPT, &SCRIPT_SOURCES)?;
        println!("cargo::rustc-env=AIRLOCK_SCRIPT={}", script.display());
    }
    Ok(())
}

/// Tells builds of the guest apart; what lies under its name is compared with the guest itself when it is installed.
fn identity(guest: &Path) -> String {
    let mut hasher = std::hash::DefaultHasher::new();
    std::hash::Hash::hash(&fs::read(guest).unwrap_or_default(), &mut hasher);
    format!("{:016x}", std::hash::Hasher::finish(&hasher))
}

fn embed(program: &Program, sources: &[&str]) -> Result<PathBuf, String> {
    let top = top()?;
    let asked = text("TARGET")?;
    let target = program.library.target(&asked);
    let out = PathBuf::from(text("OUT_DIR")?);
    let linker = linker_variable(&asked);
    for source in sources {
        println!("cargo::rerun-if-changed={}", top.join(source).display());
    }
    println!("cargo::rerun-if-env-changed={linker}");

    let folder = target_folder(&out);
    let built = build(program, &top, &target, &folder)?;
    if !built {
        return Err(match static_libc(&target, &linker) {
            true => format!("{} did not build; the compiler's output is above", program.package),
            false => missing_libc(&target),
        });
    }
    let copied = out.join(program.package);
    let made = folder.join(&target).join(program.profile).join(program.package);
    fs::copy(&made, &copied)
        .map_err(|err| format!("could not copy {} from {}: {err}", program.package, made.display()))?;
    Ok(copied)
}

fn top() -> Result<PathBuf, String> {
    let crate_folder = PathBuf::from(text("CARGO_MANIFEST_DIR")?);
    let top = crate_folder.ancestors().nth(2);
    top.map(Path::to_path_buf).ok_or_else(|| format!("{} is not in the workspace", crate_folder.display()))
}

fn text(variable: &str) -> Result<String, String> {
    env::var(variable).map_err(|_| format!("cargo did not set {variable}"))
}

fn linker_variable(target: &str) -> String {
    format!("CARGO_TARGET_{}_LINKER", target.to_uppercase().replace('-', "_"))
}

/// Cargo marks its target directory with `CACHEDIR.TAG`; where it did not, the guest is built for this profile alone.
fn target_folder(out: &Path) -> PathBuf {
    let marked = out.ancestors().find(|folder| folder.join("CACHEDIR.TAG").exists());
    marked.unwrap_or(out).join("embedded")
}

fn build(program: &Program, top: &Path, target: &str, folder: &Path) -> Result<bool, String> {
    let cargo = text("CARGO")?;
    let mut command = Command::new(&cargo);
    command
        .args([
            "build",
            "--package",
            program.package,
            "--profile",
            program.profile,
            "--target",
            target,
            "--target-dir",
        ])
        .arg(folder)
        .current_dir(top.join(program.workspace))
        .env_clear()
        .envs(env::vars_os().filter(|(name, _)| passes(name)))
        .env("CARGO_ENCODED_RUSTFLAGS", STATIC.join("\x1f"))
        .stdout(Stdio::null());
    // Whatever the C library, the linker is the same.
    if let Some(linker) = env::var_os(linker_variable(&text("TARGET")?)) {
        command.env(linker_variable(target), linker);
    }
    command.status().map(|status| status.success()).map_err(|err| format!("could not run {cargo}: {err}"))
}

/// Whether the second cargo may see a variable. What the first cargo (or clippy) set for this script alone would
/// make it build something else; what the person set about linkers and the network stays.
fn passes(name: &OsString) -> bool {
    let Some(name) = name.to_str() else { return true };
    let of_this_script = [
        "OUT_DIR",
        "TARGET",
        "HOST",
        "PROFILE",
        "OPT_LEVEL",
        "DEBUG",
        "NUM_JOBS",
        "RUSTFLAGS",
        "RUSTDOCFLAGS",
        "RUSTDOC",
        "RUSTC_WRAPPER",
        "RUSTC_WORKSPACE_WRAPPER",
        "RUSTC_LINKER",
        "CLIPPY_ARGS",
        "CLIPPY_CONF_DIR",
    ];
    if of_this_script.contains(&name) {
        return false;
    }
    let of_the_person =
        ["CARGO_HOME", "CARGO_NET_", "CARGO_HTTP_", "CARGO_REGISTR", "CARGO_SOURCE_", "CARGO_TERM_"];
    // The jobserver, so that both cargos together run no more jobs than asked for.
    let shared = name == "CARGO_MAKEFLAGS";
    let about_linking = name.starts_with("CARGO_TARGET_") && name.ends_with("_LINKER");
    !name.starts_with("CARGO_")
        || shared
        || about_linking
        || of_the_person.iter().any(|prefix| name.starts_with(prefix))
}

/// Whether the C compiler finds a static C library; asked only after the build failed.
fn static_libc(target: &str, linker: &str) -> bool {
    let compiler = env::var(linker).unwrap_or_else(|_| "cc".into());
    if !target.ends_with("-gnu") {
        return true;
    }
    // A compiler that finds no such file answers with the bare name.
    let answer = Command::new(compiler).arg("-print-file-name=libc.a").output();
    answer.is_ok_and(|answer| answer.stdout.starts_with(b"/"))
}

fn missing_libc(target: &str) -> String {
    let package = match target.starts_with("aarch64") && cfg!(not(target_arch = "aarch64")) {
        true => "gcc-aarch64-linux-gnu libc6-dev-arm64-cross",
        false => "build-essential",
    };
    format!(
        "the guest could not be linked: there is no C compiler with a static C library (libc.a) for {target}\n  \
         fix:  apt-get install {package}"
    )
}
