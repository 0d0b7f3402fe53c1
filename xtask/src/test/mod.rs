//! `cargo xtask test`: installs what the tests need, then runs all of them.
//!
//! All tests run once as root. The black-box suites then run again as an ordinary user with ranges of ids and as one
//! without: the suites learn from `AIRLOCK_TEST_USER` who they are, from `AIRLOCK_BIN` where the product is, and from
//! `AIRLOCK_TEST_RUST` where a Rust toolchain is that every user can read.
//!
//! As root everything runs inside a virtual internet; `AIRLOCK_TEST_INTERNET` says where its files are. Nothing the tests
//! send leaves this machine, and what they need is downloaded and built before.
//!
//! `--as root|ranges|single` runs them as some of the users only. `--backend microvm` runs the suites with every sandbox in a
//! machine (`AIRLOCK_TEST_BACKEND`), and leaves out those that choose their place by themselves.

mod asked;
mod clients;
mod internet;
mod suites;
pub(crate) mod users;

use crate::{
    system::{self, Package, Scratch},
    workspace::{cargo, executables, succeed},
};
use anyhow::{Context as _, Result, bail};
use asked::{Asked, Kind};
use internet::Internet;
use std::{
    env,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};
use suites::{Outcome, run_twice};
use users::{SINGLE, User, WITH_RANGES};

/// What tests need beyond Rust and a C compiler.
const PACKAGES: [Package; 49] = [
    Package { name: "squashfs-tools", program: "mksquashfs", reason: "images as disks of machines" },
    Package {
        name: "qemu-system-x86",
        program: "qemu-system-x86_64",
        reason: "machines with a kernel of their own",
    },
    Package { name: "uidmap", program: "newuidmap", reason: "ordinary users with ranges of ids" },
    Package { name: "libcap2-bin", program: "capsh", reason: "shows capabilities from inside" },
    Package { name: "busybox-static", program: "busybox", reason: "a program that needs no library" },
    Package { name: "strace", program: "strace", reason: "ends a start at a chosen system call" },
    Package { name: "bindfs", program: "bindfs", reason: "a file system that can be made to hang" },
    Package { name: "fuse3", program: "fusermount3", reason: "mounts it for ordinary users" },
    Package { name: "fio", program: "fio", reason: "writes files in many ways and verifies them" },
    Package { name: "e2fsprogs", program: "mkfs.ext4", reason: "disks of a fixed size" },
    Package { name: "bzip2", program: "bzip2", reason: "archives that builds unpack" },
    Package { name: "xz-utils", program: "xz", reason: "archives that builds unpack" },
    Package { name: "zstd", program: "zstd", reason: "answers that grow" },
    Package { name: "python3", program: "python3", reason: "makes system calls from inside" },
    Package { name: "python3-pip", program: "pip3", reason: "pip install works inside" },
    Package { name: "npm", program: "npm", reason: "npm install -g works inside" },
    Package { name: "nftables", program: "nft", reason: "shows that the host's firewall bears no load" },
    Package { name: "iproute2", program: "ip", reason: "the virtual internet" },
    Package { name: "openssl", program: "openssl", reason: "certificates, and a client of TLS" },
    Package { name: "curl", program: "curl", reason: "a client of HTTP" },
    Package { name: "git", program: "git", reason: "a client and a server of git" },
    Package { name: "python3-requests", program: REQUESTS, reason: "a client of HTTP" },
    Package { name: "bind9-dnsutils", program: "dig", reason: "a client of DNS" },
    Package { name: "openssh-client", program: "ssh", reason: "a client of SSH" },
    Package { name: "openssh-server", program: "sshd", reason: "a server of SSH" },
    Package { name: "postgresql-client", program: "psql", reason: "a client of PostgreSQL" },
    Package { name: "postgresql", program: "pg_createcluster", reason: "a server of PostgreSQL" },
    Package { name: "dns2tcp", program: "dns2tcpc", reason: "a tunnel through DNS, to be stopped" },
    Package { name: "nginx-light", program: "nginx", reason: "a server of HTTP" },
    Package { name: "haproxy", program: "haproxy", reason: "a server of HTTP" },
    Package { name: "apache2", program: "apache2", reason: "a server of HTTP" },
    Package { name: "nghttp2-server", program: "nghttpd", reason: "a server of HTTP/2" },
    Package { name: "python3-h2", program: H2, reason: "a server of HTTP/2 that checks nothing" },
    Package { name: "python3-grpcio", program: GRPC, reason: "a server of gRPC" },
    Package { name: "python3-httpx", program: HTTPX, reason: "a client of HTTP/2" },
    Package { name: "python3-aiohttp", program: AIOHTTP, reason: "a client of HTTP" },
    Package { name: "python3-websockets", program: WEBSOCKETS, reason: "a client of WebSockets" },
    Package {
        name: "python3-boto3",
        program: BOTO3,
        reason: "a client that signs its requests, and who checks them",
    },
    Package { name: "default-jdk-headless", program: "javac", reason: "a client of HTTP in Java" },
    Package { name: "maven", program: "mvn", reason: "a client of Maven's registries" },
    Package { name: "nodejs", program: "node", reason: "a client and a server of HTTP" },
    Package { name: "docker.io", program: "dockerd", reason: "builds images to compare ours with" },
    Package { name: "umoci", program: "umoci", reason: "unpacks images, to be compared with" },
    Package { name: "docker-registry", program: "docker-registry", reason: "a registry of images" },
    Package { name: "gnome-keyring", program: "gnome-keyring-daemon", reason: "a keychain" },
    Package { name: "libsecret-tools", program: "secret-tool", reason: "asks a keychain" },
    Package { name: "dbus-daemon", program: "dbus-run-session", reason: "the bus of a keychain" },
    Package { name: "net-tools", program: "ifconfig", reason: "the addresses of a tunnel through DNS" },
    Package { name: "ptunnel", program: "ptunnel", reason: "a tunnel through ICMP, to be stopped" },
];

/// Packages of Python without a program.
const HTTPX: &str = "/usr/lib/python3/dist-packages/httpx";
const AIOHTTP: &str = "/usr/lib/python3/dist-packages/aiohttp";
const WEBSOCKETS: &str = "/usr/lib/python3/dist-packages/websockets";
const BOTO3: &str = "/usr/lib/python3/dist-packages/boto3";
const REQUESTS: &str = "/usr/lib/python3/dist-packages/requests";
const H2: &str = "/usr/lib/python3/dist-packages/h2";
const GRPC: &str = "/usr/lib/python3/dist-packages/grpc";

/// What every run of tests stands on, readable by all users.
struct Ground {
    airlock: PathBuf,
    /// A kernel for machines, where one could be fetched.
    machines: Option<PathBuf>,
    rust: PathBuf,
    /// Where every sandbox runs, unless each test says.
    backend: Option<String>,
    // Ends before its files go.
    internet: Option<Internet>,
    scratch: Scratch,
}

/// Installs, builds, runs, and repeats the closing lines at the end.
pub(crate) fn run(args: Vec<String>) -> Result<()> {
    let asked = Asked::read(args)?;
    let strict = env::var("AIRLOCK_TEST_STRICT").is_ok_and(|value| value == "1");
    if let Err(why) = system::install(&PACKAGES) {
        if strict {
            return Err(why);
        }
        println!("{why:#}\nwithout them some tests are skipped");
    }
    let airlock = executables(&mut cargo(&[
        "build",
        "--package",
        "airlock",
        "--features",
        "scripts,microvm",
        "--message-format=json",
    ]))?;
    let (_, airlock) =
        airlock.into_iter().find(|(name, _)| name == "airlock").context("cargo built no airlock")?;
    let scratch = Scratch::new("test")?;
    // Copied now: the tests are built without scripts, and the program anew with them.
    let airlock = scratch.program(&airlock, "airlock")?;

    let machines = machines(&airlock, &scratch);

    // Inside the virtual internet there is nothing to download from.
    succeed(&mut cargo(&["test", "--workspace", "--no-run"]))?;

    let internet = internet(&scratch)?;
    let (backend, rust) = (asked.backend.clone(), rust(&scratch)?);
    let ground = Ground { airlock, machines, rust, backend, internet, scratch };
    let mut outcomes = Vec::new();
    if asked.includes(Kind::Root) {
        outcomes.push(everything(&ground, &asked.args)?);
    }
    if system::is_root() {
        outcomes.extend(as_users(&ground, &asked)?);
    } else if strict {
        bail!("the suites run as three users: run this as root");
    } else {
        println!("skipped: the suites as other users (not root)");
    }
    conclude(&outcomes)
}

/// Only root can make one; the tests that need it say that they were skipped.
fn internet(scratch: &Scratch) -> Result<Option<Internet>> {
    if !system::is_root() {
        return Ok(None);
    }
    // The tests see a copy of the list of users.
    users::ensure(&SINGLE)?;
    let user = users::ensure(&WITH_RANGES)?;
    let internet = Internet::start(scratch, user.name)?;
    clients::provide(internet.folder())?;
    Ok(Some(internet))
}

/// `cargo xtask internet COMMAND…`: runs a command where the tests run, for whoever writes one.
pub(crate) fn run_inside(args: Vec<String>) -> Result<()> {
    system::install(&PACKAGES)?;
    let scratch = Scratch::new("internet")?;
    let internet = internet(&scratch)?.context("only root can make a virtual internet")?;
    let (program, args) = args.split_first().context("name the command to run")?;
    let mut command = Command::new(program);
    command.args(args).current_dir(env::current_dir()?).env("AIRLOCK_TEST_INTERNET", internet.folder());
    succeed(&mut internet.inside(&command))
}

/// A copy of the toolchain that runs this: the person's own may lie in a home that others cannot enter.
fn rust(scratch: &Scratch) -> Result<PathBuf> {
    let output =
        Command::new("rustc").args(["--print", "sysroot"]).output().context("could not run rustc")?;
    let from = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
    let to = scratch.folder("rust")?;
    for part in ["bin", "lib"] {
        // Links cost neither time nor space; between file systems only copies can be had.
        let copy = |how: &str| {
            succeed(Command::new("cp").arg(how).arg(from.join(part)).arg(&to).stderr(Stdio::null()))
        };
        copy("-al").or_else(|_| copy("-a"))?;
    }
    Ok(to)
}

fn everything(ground: &Ground, args: &[String]) -> Result<Outcome> {
    open_devices();
    run_twice("all tests", |more| {
        let mut tests = match ground.backend {
            None => cargo(&["test", "--workspace", "--no-fail-fast"]),
            Some(_) => cargo(&["test", "--package", "airlock-tests", "--no-fail-fast"]),
        };
        tests.arg("--").args(args).args(more);
        let mut tests = ground.placed(tests);
        ground.tell(&mut tests);
        if system::is_root() {
            tests.env("AIRLOCK_TEST_USER", "root");
        }
        tests
    })
}

/// Programmable mounts and machines of ordinary users need these devices open to them, as most distributions have them. Where they are
/// not there, their tests say so.
fn open_devices() {
    use std::os::unix::fs::PermissionsExt as _;
    for device in ["/dev/fuse", "/dev/net/tun"] {
        let _ = std::fs::set_permissions(device, std::fs::Permissions::from_mode(0o666));
    }
}

fn as_users(ground: &Ground, asked: &Asked) -> Result<Vec<Outcome>> {
    let mut built = cargo(&["test", "--package", "airlock-tests", "--no-run", "--message-format=json"]);
    let mut suites = Vec::new();
    for (name, path) in executables(&mut built)? {
        suites.push((ground.scratch.program(&path, &format!("suite-{name}"))?, name));
    }
    open_devices();
    let mut outcomes = Vec::new();
    for (kind, wanted) in [(Kind::Ranges, &WITH_RANGES), (Kind::Single, &SINGLE)] {
        if !asked.includes(kind) {
            continue;
        }
        let user = users::ensure(wanted)?;
        let _home = users::clean_home(&user)?;
        let machines = machines_of(&user, ground)?;
        for (path, name) in &suites {
            outcomes.push(run_twice(&format!("{name} as {}", user.name), |more| {
                let mut suite = as_user(&user);
                suite.arg(path).args(&asked.args).args(more);
                let mut suite = ground.placed(suite);
                login(&user, suite.env_clear());
                ground.tell(&mut suite);
                suite.envs(machines.as_ref().map(|machines| ("AIRLOCK_TEST_MACHINES", machines)));
                suite
            })?);
        }
    }
    Ok(outcomes)
}

/// A command line that another follows, to be run as that user.
fn as_user(user: &User) -> Command {
    let mut command = Command::new("setpriv");
    command
        .args(["--reuid", user.name, "--regid", &user.gid.to_string(), "--init-groups", "--"])
        .current_dir(&user.home);
    command
}

/// An environment like that of a fresh login.
fn login(user: &User, command: &mut Command) {
    command
        .env("HOME", &user.home)
        .env("USER", user.name)
        .env("LOGNAME", user.name)
        .env("SHELL", "/bin/bash")
        .env("LANG", "C.UTF-8")
        .env("PATH", "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin")
        .env("AIRLOCK_TEST_USER", user.name);
    for name in ["AIRLOCK_TEST_STRICT", "AIRLOCK_TEST_BACKEND", "CI", "RUST_BACKTRACE", "TERM"] {
        command.envs(env::var_os(name).map(|value| (name, value)));
    }
}

impl Ground {
    /// The command where the tests run.
    fn placed(&self, command: Command) -> Command {
        match &self.internet {
            Some(internet) => internet.inside(&command),
            None => command,
        }
    }

    /// Says where everything is.
    fn tell(&self, command: &mut Command) {
        command.env("AIRLOCK_BIN", &self.airlock).env("AIRLOCK_TEST_RUST", &self.rust);
        command.envs(self.backend.as_ref().map(|backend| ("AIRLOCK_TEST_BACKEND", backend)));
        command.envs(self.machines.as_ref().map(|machines| ("AIRLOCK_TEST_MACHINES", machines)));
        command.envs(self.internet.as_ref().map(|internet| ("AIRLOCK_TEST_INTERNET", internet.folder())));
    }
}

/// A copy of root's kernel and saved machine that belongs to a user, as their own `prefetch` would have left it.
fn machines_of(user: &User, ground: &Ground) -> Result<Option<PathBuf>> {
    let Some(machines) = &ground.machines else { return Ok(None) };
    let copy = ground.scratch.folder(&format!("machines-{}", user.name))?;
    succeed(Command::new("cp").args(["-a", "-T"]).arg(machines).arg(&copy))?;
    succeed(Command::new("chown").arg("-R").arg(format!("{}:{}", user.name, user.gid)).arg(&copy))?;
    Ok(Some(copy))
}

/// Has a kernel fetched and booted once.
fn machines(airlock: &Path, scratch: &Scratch) -> Option<PathBuf> {
    let home = scratch.path().join("machines-home");
    let fetched = Command::new(airlock)
        .args(["prefetch", "--backend", "microvm", "--quiet"])
        .env("AIRLOCK_HOME", &home)
        .status();
    match fetched {
        Ok(status) if status.success() => Some(home.join("machines")),
        _ => {
            println!("there is no kernel for machines");
            None
        }
    }
}

fn conclude(outcomes: &[Outcome]) -> Result<()> {
    println!();
    for outcome in outcomes {
        println!("{}:", outcome.name);
        for line in &outcome.closing {
            println!("  {line}");
        }
    }
    let failed: Vec<&str> = outcomes.iter().filter(|o| !o.passed).map(|o| o.name.as_str()).collect();
    if !failed.is_empty() {
        bail!("tests failed: {}", failed.join(", "));
    }
    println!("all tests passed");
    Ok(())
}
