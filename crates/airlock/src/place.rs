//! Where a sandbox runs: which backend, and which program is PID 1 of its namespaces. Also what a place needs beforehand.

use crate::{failure::Failure, keep::GUEST, say::Voice};
use airlock_backends::namespaces::Namespaces;
use airlock_engine::{Backend, keeper::birth::Guest, store::Sandbox};
use airlock_protocol::{
    control::Refusal,
    spec::{self, Spec},
};

/// A place to run.
pub(crate) struct Place {
    backend: Box<dyn Backend>,
    first: &'static Guest<'static>,
}

impl Place {
    pub(crate) fn backend(&self) -> &dyn Backend {
        self.backend.as_ref()
    }

    /// The program that becomes PID 1 of the sandbox's namespaces.
    pub(crate) fn first(&self) -> &'static Guest<'static> {
        self.first
    }
}

/// The place that a sandbox asks for.
pub(crate) fn choose(sandbox: &Sandbox, spec: &Spec) -> Result<Place, Refusal> {
    match spec.backend {
        spec::Place::Namespaces => Ok(Place { backend: Box::new(Namespaces), first: &GUEST }),
        spec::Place::Microvm => machine(sandbox.store().home(), spec),
    }
}

#[cfg(feature = "microvm")]
mod machines {
    use super::{Failure, GUEST, Guest, Place, Refusal, Spec, Voice};
    use crate::{packages::Client, say::say_anyway};
    use airlock_backends::microvm::{Asked, Microvm, Programs, kernel, memory, monitor::Monitor, qemu, warm};
    use airlock_engine::{
        doctor::{Finding, Fix, Report, Status, Step},
        plan::{bounds::MACHINE_MEMORY, chain},
    };
    use std::{
        fs, io,
        os::fd::OwnedFd,
        path::{Path, PathBuf},
        process::{Command, Stdio},
    };

    /// In the guest's place where there is a machine; also its `/init`.
    static CARRIER: Guest<'static> =
        Guest { id: env!("AIRLOCK_CARRIER_ID"), program: include_bytes!(env!("AIRLOCK_CARRIER")) };

    /// Debian's package that always depends on the newest kernel for machines.
    const PACKAGE: &str = "linux-image-cloud-amd64";
    const UNPACKER: &str = "/usr/bin/dpkg-deb";
    const DECOMPRESSOR: &str = "/usr/bin/xz";

    pub(crate) fn machine(home: &Path, spec: &Spec) -> Result<Place, Refusal> {
        let asked = Asked { kernel: spec.kernel.as_deref(), monitor: spec.monitor.as_ref() };
        Ok(Place { backend: Box::new(prepared(home, asked)?), first: &CARRIER })
    }

    fn prepared(home: &Path, asked: Asked<'_>) -> Result<Microvm, Refusal> {
        Microvm::prepare(home, asked, Programs { carrier: CARRIER.program, guest: GUEST.program })
    }

    /// Gets a kernel and boots a machine of the usual size once.
    pub(crate) fn fetch(home: &Path, voice: Voice) -> Result<(), Failure> {
        let client = Client::open()?;
        client.update(voice)?;
        let package = newest(&client.simulate(&[PACKAGE])?)
            .ok_or_else(|| Failure::new("there is no kernel for machines among this host's packages"))?;
        let version = package.trim_start_matches("linux-image-").to_owned();
        say_anyway(voice, &format!("getting {package}"));
        let fetched = client.fetch(&package)?;
        let failed = |err: io::Error| Failure::because(format!("{package} cannot be unpacked"), &err);
        unpack(fetched.path()).map_err(failed)?;
        let tree = fetched.path().join("tree");
        let image = fs::read(tree.join(format!("boot/vmlinuz-{version}"))).map_err(failed)?;
        let modules = files_below(&tree.join("lib/modules"));
        let modules = if modules.is_empty() { files_below(&tree.join("usr/lib/modules")) } else { modules };
        kernel::install(home, &version, &image, |name| module(&modules, name))
            .map_err(|err| Failure::because("the kernel cannot be put in place", &err))?;
        say_anyway(voice, &format!("{version} is here; booting it once"));
        let machine = prepared(home, Asked::default())?;
        machine
            .warm_up(MACHINE_MEMORY)
            .map_err(|err| Failure::because("the machine cannot be booted", &err).fix("airlock doctor"))
    }

    /// Saves the memory of a machine whose monitor takes orders there.
    pub(crate) fn save_memory(monitor: OwnedFd, file: OwnedFd) -> Result<(), Failure> {
        memory::save_to(monitor, file)
            .map_err(|err| Failure::because("the memory of this machine cannot be saved", &err))
    }

    /// What machines need and have here, behind what is known of this host otherwise.
    pub(crate) fn examine(home: &Path, report: &mut Report) {
        let own = |name, status, says: String, fix| Finding { name, status, says, fix, stops_run: false };
        let kernel = kernel::Kernel::usual(home);
        let monitor = Monitor::qemu(home, kernel.as_ref().ok());
        report.findings.push(match &monitor {
            Some(monitor) => {
                own("qemu", Status::Ok, format!("QEMU {} runs micro-VMs", monitor.version), None)
            }
            None => {
                let says = format!("there is no {} for micro-VMs (`run` does not need it)", qemu::PROGRAM);
                let fix = Fix::root(vec![Step::run(["apt-get", "install", "qemu-system-x86"])]);
                own("qemu", Status::Missing, says, Some(fix))
            }
        });
        report.findings.push(match kernel {
            Ok(kernel) => {
                own("vm-kernel", Status::Ok, format!("micro-VMs boot Linux {}", kernel.version), None)
            }
            Err(err) => {
                let fix = Fix::advice("airlock prefetch --backend microvm");
                own(
                    "vm-kernel",
                    Status::Missing,
                    format!("{} (`run` does not need it)", chain(&err)),
                    Some(fix),
                )
            }
        });
        if let Some(path) = Monitor::usual_firecracker() {
            report.findings.push(match Monitor::firecracker(path) {
                Ok(monitor) => {
                    let says = format!("{} runs micro-VMs (--monitor firecracker)", monitor.name());
                    own("firecracker", Status::Ok, says, None)
                }
                Err(unfit) => {
                    let says = format!("{unfit} (--monitor qemu does not need it)");
                    own("firecracker", Status::Missing, says, Some(Fix::advice(unfit.fix())))
                }
            });
        }
        report.findings.extend(warm::failures(home).into_iter().take(1).map(|why| {
            let says = format!("a machine that was booted once is not kept, so that starts are slow: {why}");
            own("vm-warm", Status::Degraded, says, Some(Fix::advice("airlock prefetch --backend microvm")))
        }));
        // That the device can be opened says little.
        let emulated = monitor.and_then(|monitor| monitor.emulated);
        if let Some(why) = emulated
            && let Some(kvm) = report.findings.iter_mut().find(|finding| finding.name == "kvm")
            && kvm.status == Status::Ok
        {
            (kvm.status, kvm.says) = (Status::Degraded, format!("micro-VMs are emulated, slow: {why}"));
        }
    }

    /// The package of a line such as `Inst linux-image-6.1.0-55-cloud-amd64 (6.1.192-1 Debian:12/stable [amd64])`.
    fn newest(told: &str) -> Option<String> {
        let package = |line: &str| {
            let name = line.strip_prefix("Inst linux-image-")?.split(' ').next()?;
            name.starts_with(|letter: char| letter.is_ascii_digit()).then(|| format!("linux-image-{name}"))
        };
        told.lines().find_map(package)
    }

    fn unpack(folder: &Path) -> io::Result<()> {
        let is_package = |path: &PathBuf| path.extension().is_some_and(|ending| ending == "deb");
        let package = files_below(folder).into_iter().find(is_package).ok_or(io::ErrorKind::NotFound)?;
        let status = Command::new(UNPACKER).arg("-x").arg(package).arg(folder.join("tree")).status()?;
        if status.success() {
            Ok(())
        } else {
            Err(io::Error::other(format!("{UNPACKER} ended with {status}")))
        }
    }

    /// A module by its name; Debian 13 and later compress them.
    fn module(files: &[PathBuf], name: &str) -> io::Result<Option<Vec<u8>>> {
        let find = |ending: &str| {
            let wanted = format!("{name}{ending}");
            files.iter().find(|path| path.file_name().is_some_and(|name| name == wanted.as_str()))
        };
        if let Some(path) = find(".ko") {
            return fs::read(path).map(Some);
        }
        let Some(path) = find(".ko.xz") else { return Ok(None) };
        let output = Command::new(DECOMPRESSOR).arg("-dc").arg(path).stdin(Stdio::null()).output()?;
        match output.status.success() {
            true => Ok(Some(output.stdout)),
            false => Err(io::Error::other(format!("{} cannot be read", path.display()))),
        }
    }

    fn files_below(folder: &Path) -> Vec<PathBuf> {
        let (mut files, mut folders) = (Vec::new(), vec![folder.to_owned()]);
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
                match entry.file_type() {
                    Ok(kind) if kind.is_dir() => folders.push(entry.path()),
                    Ok(kind) if kind.is_file() => files.push(entry.path()),
                    _ => {}
                }
            }
        }
        files
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn the_kernel_is_the_package_that_the_newest_one_depends_on() {
            let told = "Inst libc6 (2.36)\nInst linux-image-6.1.0-55-cloud-amd64 (6.1.192-1 Debian:12)\n\
                        Inst linux-image-cloud-amd64 (6.1.192-1)\n";
            assert_eq!(newest(told).as_deref(), Some("linux-image-6.1.0-55-cloud-amd64"));
            assert_eq!(newest("Inst linux-image-cloud-amd64 (6.1)\n"), None);
        }
    }
}

#[cfg(not(feature = "microvm"))]
mod machines {
    use super::{Failure, Place, Refusal, Spec, Voice};
    use airlock_engine::plan::refusal;
    use std::{os::fd::OwnedFd, path::Path};

    pub(crate) fn machine(_: &Path, _: &Spec) -> Result<Place, Refusal> {
        none()
    }

    fn none<T>() -> Result<T, Refusal> {
        let fix = "cargo build --features microvm, or --backend namespaces";
        Err(refusal(2, "this airlock runs no machines", Some("it was built without them"), Some(fix)))
    }

    pub(crate) fn examine(_: &Path, _: &mut airlock_engine::doctor::Report) {}

    pub(crate) fn save_memory(_: OwnedFd, _: OwnedFd) -> Result<(), Failure> {
        none().map_err(Failure::from)
    }

    pub(crate) fn fetch(_: &Path, _: Voice) -> Result<(), Failure> {
        none().map_err(Failure::from)
    }
}

use machines::machine;
pub(crate) use machines::{examine, fetch, save_memory};
