//! A program in a cell: beside the first process of a sandbox, in its PID namespace and control groups, with nothing around it
//! but the files it needs, as a user who is nobody. For a virtual machine monitor, which holds what a machine can reach.

use crate::{
    caps::{self, CapSet},
    clone::{self, Child, Dumpable, Namespaces, Side},
    mount::{self, Access, Depth},
    seccomp::{Filter, Nested, Relax, SetId},
    spawn,
};
use rustix::{
    fs::CWD,
    process::{Resource, Rlimit, setrlimit},
};
use std::{
    convert::Infallible,
    ffi::{CString, c_char},
    fs, io,
    os::fd::{AsFd as _, OwnedFd},
    path::{Path, PathBuf},
};

/// What is run, and what it has.
#[derive(Debug)]
pub struct Cell {
    /// The program's path in the cell, and its arguments; the first is the program again.
    pub command: Vec<CString>,
    /// Its files.
    pub trees: Trees,
    /// What it finds open under the numbers from 3 on.
    pub descriptors: Vec<OwnedFd>,
    /// Its standard output and its standard error.
    pub output: OwnedFd,
    /// The user and the group it is, in numbers of this user namespace.
    pub user: (u32, u32),
    /// Bytes of the largest file that it writes besides its output.
    pub largest: u64,
    /// How it comes by what it is connected with.
    pub means: Means,
}

/// How a program in a cell comes by what it is connected with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Means {
    /// It has all of it as descriptors: it makes no sockets, and has a network with nothing in it.
    Handed,
    /// It opens the devices of the network it was started in by itself, and makes Unix sockets in [`ROOM`].
    Own,
}

/// Where a program that makes sockets makes them: in memory, and seen by nobody else.
pub const ROOM: &str = "/run";

/// The id it has inside: nobody's.
const NOBODY: u32 = 65_534;

/// Most bytes it may write into any file where it has none but its output.
const MOST_OUTPUT: u64 = 256 << 10;
/// Threads of all cells of one user namespace, of which there is one.
const MOST_THREADS: u64 = 128;
const MOST_FILES: u64 = 128;

/// Calls of a sandbox's programs that a program in a cell does not need.
const REFUSED: [libc::c_long; 3] =
    [libc::SYS_ptrace, libc::SYS_process_vm_readv, libc::SYS_process_vm_writev];
/// The same for one that makes no sockets: it has them.
const REFUSED_SOCKETS: [libc::c_long; 5] =
    [libc::SYS_socket, libc::SYS_socketpair, libc::SYS_connect, libc::SYS_bind, libc::SYS_listen];

/// What is run in a cell that is beside nothing.
#[derive(Debug)]
pub struct Lone {
    /// As in [`Cell`].
    pub command: Vec<CString>,
    /// Paths of this host that are there under the same names, as in [`Trees::open`].
    pub shown: Vec<PathBuf>,
    /// Files that are there under other names.
    pub files: Vec<(PathBuf, PathBuf)>,
    /// Devices, writable.
    pub devices: Vec<PathBuf>,
    /// As in [`Cell`].
    pub descriptors: Vec<OwnedFd>,
    /// As in [`Cell`].
    pub output: OwnedFd,
}

/// Starts a program in a cell of its own. It ends with the thread that started it. As host root it is nobody of the host.
///
/// Fails where this process has more than one thread. Where the cell cannot be built, the child ends with 125.
pub fn start(lone: Lone) -> io::Result<Child> {
    let ids = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    match clone::fork(Namespaces::NONE, None)? {
        Side::Parent(child) => Ok(child),
        Side::Child => {
            let Err(_) = become_lone(lone, ids);
            clone::exit_now(125)
        }
    }
}

fn become_lone(lone: Lone, (uid, gid): (u32, u32)) -> io::Result<Infallible> {
    clone::die_with_parent()?;
    let user = match uid {
        0 => (NOBODY, NOBODY),
        _ => {
            clone::set_dumpable(Dumpable::Yes)?;
            clone::unshare(Namespaces::USER)?;
            fs::write("/proc/self/setgroups", "deny")?;
            fs::write("/proc/self/uid_map", format!("0 {uid} 1"))?;
            fs::write("/proc/self/gid_map", format!("0 {gid} 1"))?;
            (0, 0)
        }
    };
    clone::unshare(Namespaces::MOUNT)?;
    mount::make_private()?;
    let mut files = Vec::new();
    for (name, path) in &lone.files {
        files.push((name.clone(), mount::open_place(CWD, path)?));
    }
    let trees = Trees::open(&lone.shown, &files, &lone.devices)?;
    let Lone { command, descriptors, output, .. } = lone;
    let means = Means::Handed;
    become_program(Cell { command, trees, descriptors, output, user, largest: 0, means })
}

/// Becomes the program; returns only with why not. It ends with its parent.
///
/// The caller is a process of one thread, with every power in its user namespace and a mount namespace of that one.
pub fn execute(cell: Cell) -> io::Error {
    let Err(err) = become_program(cell);
    err
}

fn become_program(cell: Cell) -> io::Result<Infallible> {
    let (user, group) = cell.user;
    spawn::become_user(user, group, &[])?;
    // A change of ids closes the process to its own user, who has to write its maps.
    clone::set_dumpable(Dumpable::Yes)?;
    clone::unshare(match cell.means {
        Means::Handed => Namespaces::CELL,
        Means::Own => Namespaces::CELL_WITH_NETWORK,
    })?;
    be_nobody(cell.user)?;
    enter(cell.trees, cell.means)?;
    let mut kept = Vec::new();
    for one in cell.descriptors {
        kept.push(rustix::io::fcntl_dupfd_cloexec(one, spawn::OUT_OF_THE_WAY)?);
    }
    let output = rustix::io::fcntl_dupfd_cloexec(cell.output, spawn::OUT_OF_THE_WAY)?;
    let null = fs::File::open("/dev/null")?;
    for (stream, number) in [(null.as_fd(), 0), (output.as_fd(), 1), (output.as_fd(), 2)] {
        spawn::duplicate_onto(stream, number)?;
    }
    let first_free = spawn::place(&kept, 3)?;
    crate::fd::close_on_exec_from(first_free)?;
    for (resource, most) in [
        (Resource::Core, 0),
        (Resource::Fsize, MOST_OUTPUT.max(cell.largest)),
        (Resource::Nproc, MOST_THREADS),
        (Resource::Nofile, MOST_FILES),
    ] {
        setrlimit(resource, Rlimit { current: Some(most), maximum: Some(most) })?;
    }
    caps::limit_to(CapSet::EMPTY)?;
    rustix::thread::set_no_new_privs(true)?;
    clone::die_with_parent()?;
    match cell.means {
        Means::Handed => Filter::but(&[&REFUSED[..], &REFUSED_SOCKETS].concat()).install()?,
        Means::Own => {
            Filter::but(&REFUSED).install()?;
            Filter::unix_sockets_only().install()?;
        }
    }
    Filter::compile(&Relax { caps: CapSet::EMPTY, nested: Nested::No, set_id: SetId::Refused }).install()?;
    Err(replace(&cell.command))
}

fn replace(command: &[CString]) -> io::Error {
    let Some(program) = command.first() else { return io::ErrorKind::InvalidInput.into() };
    let mut arguments: Vec<*const c_char> = command.iter().map(|word| word.as_ptr()).collect();
    arguments.push(std::ptr::null());
    let environment = [std::ptr::null::<c_char>()];
    // SAFETY: NUL-terminated strings and null-terminated arrays that outlive the call.
    unsafe { libc::execve(program.as_ptr(), arguments.as_ptr(), environment.as_ptr()) };
    io::Error::last_os_error()
}

/// What the root of a cell is made of, attached nowhere yet.
#[derive(Debug)]
pub struct Trees {
    trees: Vec<(PathBuf, OwnedFd, Form)>,
    links: Vec<(PathBuf, PathBuf)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Directory,
    File,
    Device,
}

impl Trees {
    /// Paths of this mount namespace that are there under the same names, read-only (what is not there is left out); files
    /// that are there under other names, places of this mount namespace; devices, writable.
    ///
    /// Nobody else may be changing this mount namespace meanwhile.
    pub fn open(shown: &[PathBuf], files: &[(PathBuf, OwnedFd)], devices: &[PathBuf]) -> io::Result<Trees> {
        let mut trees = Trees { trees: Vec::new(), links: Vec::new() };
        for path in shown {
            let Ok(about) = fs::symlink_metadata(path) else { continue };
            if about.is_symlink() {
                trees.links.push((path.clone(), fs::read_link(path)?));
                continue;
            }
            let form = if about.is_dir() { Form::Directory } else { Form::File };
            trees.push(path, mount::clone_tree(CWD, path, Depth::Recursive)?, form);
        }
        for (path, place) in files {
            trees.push(path, mount::clone_tree(place.as_fd(), Path::new(""), Depth::One)?, Form::File);
        }
        for path in devices.iter().map(PathBuf::as_path).chain([Path::new("/dev/null")]) {
            trees.push(path, mount::clone_tree(CWD, path, Depth::One)?, Form::Device);
        }
        Ok(trees)
    }

    fn push(&mut self, path: &Path, tree: OwnedFd, form: Form) {
        self.trees.push((path.to_owned(), tree, form));
    }
}

/// One id inside; outside it is the one this process has.
fn be_nobody((user, group): (u32, u32)) -> io::Result<()> {
    fs::write("/proc/self/setgroups", "deny")?;
    fs::write("/proc/self/uid_map", format!("{NOBODY} {user} 1"))?;
    fs::write("/proc/self/gid_map", format!("{NOBODY} {group} 1"))
}

/// The root becomes what was prepared, and nothing else.
fn enter(trees: Trees, means: Means) -> io::Result<()> {
    mount::make_private()?;
    let root = mount::tmpfs(&[(c"size", c"65536"), (c"nr_inodes", c"64"), (c"mode", c"0755")])?;
    let place = mount::open_place(CWD, Path::new("/proc"))?;
    mount::attach(root.as_fd(), place.as_fd())?;
    for (path, tree, form) in trees.trees {
        let target = match form {
            Form::Directory => mount::make_dir(root.as_fd(), &path)?,
            Form::File | Form::Device => mount::make_file(root.as_fd(), &path)?,
        };
        if form != Form::Device {
            mount::restrict(tree.as_fd(), Access::ReadOnly, Depth::Recursive)?;
        }
        mount::attach(tree.as_fd(), target.as_fd())?;
    }
    for (path, leads_to) in trees.links {
        let path = path.strip_prefix("/").map_err(io::Error::other)?;
        rustix::fs::symlinkat(&leads_to, &root, path)?;
    }
    if means == Means::Own {
        let room = mount::tmpfs(&[(c"size", c"65536"), (c"nr_inodes", c"16"), (c"mode", c"0700")])?;
        let place = mount::make_dir(root.as_fd(), Path::new(ROOM))?;
        mount::attach(room.as_fd(), place.as_fd())?;
    }
    mount::make_read_only(root.as_fd(), Depth::One)?;
    mount::pivot_into(root.as_fd())
}
