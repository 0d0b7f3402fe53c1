//! The functions that a start calls, side by side in the binary.
//!
//! A start maps the pages it touches, 16 at a time, anew in each of its four processes, and every such step takes microseconds. The
//! functions it calls are a twentieth of all and lie everywhere. Which ones they are is seen: every function of a binary with symbols
//! gets a breakpoint, a few starts are run, and the linker is told the names of those that were met.

use super::link::{Link, Symbols};
use crate::system::{Scratch, is_root, program};
use anyhow::{Context as _, Result, bail};
use nix::{
    errno::Errno,
    sys::{
        ptrace::{self, Options},
        signal::Signal,
        wait::{WaitPidFlag, WaitStatus, waitpid},
    },
    unistd::Pid,
};
use std::{
    collections::{BTreeMap, HashSet},
    fs::{self, File},
    io::Write as _,
    os::unix::fs::FileExt as _,
    path::Path,
    process::{Command, Stdio},
};

/// What is run: a sandbox that ends at once, and a further program in one that stays.
const STARTS: &str = r#"read -r _; "$0" run -- /bin/true && id=$("$0" run -d -- sleep 100) &&
"$0" exec "$id" /bin/true && "$0" rm --force "$id""#;
/// Nobody in particular: a user that has one id.
const NOBODY: &str = "65534";
/// The instruction that stops a program.
const STOP: u8 = 0xcc;

/// Links the binary once more, with the functions of a start side by side; gives their number.
pub(super) fn put_in_order(link: &Link, folder: &Path, output: &Path) -> Result<usize> {
    let binary = folder.join("with-symbols");
    link.again(&binary, Symbols::Kept, &[])?;
    let image = Image::read(&binary)?;
    let mut met = Vec::new();
    for who in Who::all() {
        met.extend(image.met(&binary, who)?);
    }
    let list = folder.join("order");
    let names: Vec<&str> = image.names(&met);
    fs::write(&list, names.join("\n")).with_context(|| format!("could not write {}", list.display()))?;
    let order = format!("-Wl,--symbol-ordering-file={}", list.display());
    link.again(output, Symbols::LeftOut, &[order, "-Wl,--no-warn-symbol-ordering".to_owned()])?;
    Ok(names.len())
}

/// Who starts sandboxes to be looked at.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Who {
    Caller,
    Nobody,
}

impl Who {
    fn all() -> Vec<Who> {
        if is_root() { vec![Who::Caller, Who::Nobody] } else { vec![Who::Caller] }
    }

    /// A shell that runs the starts when it is told to; addresses are not left to chance, so that all its programs have the same.
    fn shell(self, binary: &Path, home: &Path) -> Command {
        let mut command = Command::new("setpriv");
        if self == Who::Nobody {
            command.args(["--reuid", NOBODY, "--regid", NOBODY, "--clear-groups"]);
        }
        command.args(["setarch", "-R", "sh", "-c", STARTS]).arg(binary).current_dir(home.join("workspace"));
        command
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .env("AIRLOCK_HOME", home.join("state"))
            .env("HOME", home);
        command
    }
}

/// The code of a binary, and where its functions begin.
struct Image {
    /// Where the code lies in memory, from where the binary does.
    address: u64,
    code: Vec<u8>,
    functions: BTreeMap<u64, Vec<String>>,
}

impl Image {
    fn read(binary: &Path) -> Result<Image> {
        let told = |flag: &str| -> Result<String> {
            let output = Command::new("readelf").args([flag, "-W"]).arg(binary).output();
            Ok(String::from_utf8_lossy(&output.context("could not run readelf")?.stdout).into_owned())
        };
        let (offset, address, size) = code_of(&told("-l")?).context("the binary has no code")?;
        let functions = functions_of(&told("-s")?);
        let mut code = vec![0; usize::try_from(size)?];
        File::open(binary)?.read_exact_at(&mut code, offset).context("could not read the binary's code")?;
        Ok(Image { address, code, functions })
    }

    /// The names of functions, in this order.
    fn names(&self, met: &[u64]) -> Vec<&str> {
        let mut known = HashSet::new();
        let fresh = met.iter().filter(|address| known.insert(**address));
        fresh.filter_map(|address| self.functions.get(address)).flatten().map(String::as_str).collect()
    }

    /// Runs the starts and gives where the functions that were called begin, in the order in which they were.
    fn met(&self, binary: &Path, who: Who) -> Result<Vec<u64>> {
        let scratch = Scratch::below(Path::new("/tmp"), "order")?;
        let binary = scratch.program(binary, "airlock")?;
        let home = scratch.folder("home")?;
        for folder in ["", "state", "workspace"] {
            let path = home.join(folder);
            fs::create_dir_all(&path)?;
            if who == Who::Nobody {
                std::os::unix::fs::chown(&path, Some(NOBODY.parse()?), Some(NOBODY.parse()?))?;
            }
        }
        crate::workspace::succeed(Command::new("chmod").arg("700").arg(home.join("state")))?;
        // The first one finds nothing prepared.
        run(&mut who.shell(&binary, &home))?;
        let mut shell = who.shell(&binary, &home).stdin(Stdio::piped()).stdout(Stdio::null()).spawn()?;
        let met = Watch { image: self, binary: &binary, base: 0, met: Vec::new() }.over(&mut shell)?;
        if met.is_empty() {
            bail!("no function of the binary was called");
        }
        Ok(met)
    }
}

fn run(shell: &mut Command) -> Result<()> {
    let mut child =
        shell.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().context("could not run a shell")?;
    child.stdin.take().context("the shell has no input")?.write_all(b"\n")?;
    let status = child.wait()?;
    if !status.success() {
        bail!("a start that was to be looked at failed ({status})");
    }
    Ok(())
}

/// Programs that run with breakpoints.
struct Watch<'a> {
    image: &'a Image,
    binary: &'a Path,
    /// Where the binary lies in memory; the same in all of them.
    base: u64,
    met: Vec<u64>,
}

impl Watch<'_> {
    fn over(mut self, shell: &mut std::process::Child) -> Result<Vec<u64>> {
        let first = Pid::from_raw(i32::try_from(shell.id())?);
        let follow = Options::PTRACE_O_TRACEFORK
            | Options::PTRACE_O_TRACEVFORK
            | Options::PTRACE_O_TRACECLONE
            | Options::PTRACE_O_TRACEEXEC;
        ptrace::seize(first, follow).context("could not watch a start")?;
        shell.stdin.take().context("the shell has no input")?.write_all(b"\n")?;
        let mut ended = None;
        loop {
            match waitpid(None, Some(WaitPidFlag::__WALL)) {
                Err(Errno::ECHILD) => break,
                Err(Errno::EINTR) => {}
                Err(err) => return Err(err).context("could not wait for a start"),
                Ok(WaitStatus::Exited(pid, code)) if pid == first => ended = Some(code),
                Ok(status) => self.go_on(status)?,
            }
        }
        match ended {
            Some(0) => Ok(self.met),
            _ => bail!("a start that was looked at failed"),
        }
    }

    /// Lets a process that stopped go on.
    fn go_on(&mut self, status: WaitStatus) -> Result<()> {
        let (pid, signal) = match status {
            WaitStatus::PtraceEvent(pid, _, event) => {
                if event == nix::libc::PTRACE_EVENT_EXEC {
                    self.executed(pid)?;
                }
                (pid, None)
            }
            WaitStatus::Stopped(pid, Signal::SIGTRAP) => {
                self.stopped(pid)?;
                (pid, None)
            }
            WaitStatus::Stopped(pid, signal) => (pid, Some(signal)),
            _ => return Ok(()),
        };
        // It may have been killed meanwhile.
        let _ = ptrace::cont(pid, signal);
        Ok(())
    }

    /// Puts a breakpoint at the beginning of every function.
    fn executed(&mut self, pid: Pid) -> Result<()> {
        let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
        let own = self.binary.display().to_string();
        let Some(line) = maps.lines().find(|line| line.ends_with(&own)) else { return Ok(()) };
        let start = line.split('-').next().unwrap_or_default();
        self.base = u64::from_str_radix(start, 16).context("could not read where the binary lies")?;
        let mut code = self.image.code.clone();
        for address in self.image.functions.keys() {
            let at = address.checked_sub(self.image.address).and_then(|at| usize::try_from(at).ok());
            if let Some(byte) = at.and_then(|at| code.get_mut(at)) {
                *byte = STOP;
            }
        }
        self.memory(pid)?
            .write_all_at(&code, self.base + self.image.address)
            .context("could not write breakpoints")
    }

    /// Notes the function and lets it begin.
    fn stopped(&mut self, pid: Pid) -> Result<()> {
        let mut registers = ptrace::getregs(pid).context("could not read registers")?;
        let at = registers.rip.wrapping_sub(1);
        let address = at.wrapping_sub(self.base);
        let byte = address.checked_sub(self.image.address).and_then(|at| usize::try_from(at).ok());
        let Some(byte) = byte.and_then(|at| self.image.code.get(at)) else {
            bail!("a program stopped where there is no function");
        };
        self.met.push(address);
        self.memory(pid)?.write_all_at(&[*byte], at).context("could not remove a breakpoint")?;
        registers.rip = at;
        ptrace::setregs(pid, registers).context("could not write registers")
    }

    fn memory(&self, pid: Pid) -> Result<File> {
        File::options()
            .read(true)
            .write(true)
            .open(format!("/proc/{pid}/mem"))
            .context("could not open memory")
    }
}

/// The segment that is executed, as `readelf -l` tells it: offset, address, size.
fn code_of(told: &str) -> Option<(u64, u64, u64)> {
    let line = told.lines().find(|line| line.trim_start().starts_with("LOAD") && line.contains(" R E "))?;
    let mut numbers =
        line.split_whitespace().filter_map(|word| u64::from_str_radix(word.strip_prefix("0x")?, 16).ok());
    let (offset, address) = (numbers.next()?, numbers.next()?);
    Some((offset, address, numbers.nth(1)?))
}

/// The functions, as `readelf -s` tells them, by the address at which they begin.
fn functions_of(told: &str) -> BTreeMap<u64, Vec<String>> {
    let mut functions: BTreeMap<u64, Vec<String>> = BTreeMap::new();
    for line in told.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        if let [_, value, _, "FUNC", _, _, section, name, ..] = words.as_slice()
            && *section != "UND"
            && let Ok(address) = u64::from_str_radix(value, 16)
        {
            functions.entry(address).or_default().push((*name).to_owned());
        }
    }
    functions
}

/// What is missing for it on this machine.
pub(super) fn lacking() -> Option<String> {
    if !cfg!(target_arch = "x86_64") {
        return Some("breakpoints are known for x86-64 only".to_owned());
    }
    let missing = ["setpriv", "setarch", "readelf"].into_iter().find(|name| program(name).is_none());
    missing.map(|name| format!("there is no {name}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_and_functions_are_read_as_readelf_tells_them() {
        let segments = "  LOAD  0x000000 0x0000 0x0000 0xa41a18 0xa41a18 R   0x1000\n\
                        \x20 LOAD  0xa41a40 0xa42a40 0xa42a40 0x143eeb0 0x143eeb0 R E 0x1000\n";
        let symbols = "   1: 0000000000a42a40    16 FUNC    LOCAL  DEFAULT   12 begin\n\
                       \x20  2: 0000000000a42a40    16 FUNC    GLOBAL DEFAULT   12 same\n\
                       \x20  3: 0000000000000000     0 FUNC    GLOBAL DEFAULT  UND elsewhere\n\
                       \x20  4: 0000000000a42a80     8 OBJECT  LOCAL  DEFAULT   12 table\n";

        assert_eq!(code_of(segments), Some((0xa41a40, 0xa42a40, 0x143eeb0)));
        assert_eq!(
            functions_of(symbols).into_iter().collect::<Vec<_>>(),
            [(0xa42a40, vec!["begin".to_owned(), "same".to_owned()])]
        );
    }
}
