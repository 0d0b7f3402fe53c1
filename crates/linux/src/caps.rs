//! Capabilities: which powers of root a program inside holds, and how a process gives up the others for good.
//!
//! The person's `--cap-add` and `--cap-drop` become a [`CapSet`] once, before anything starts; whatever could
//! never work, or would reach past the wall, is refused there with the reason. The sandbox's first process then
//! calls [`limit_to`] in its own user namespace.
//!
//! ```
//! use airlock_linux::caps::CapSet;
//!
//! let set = CapSet::adjust(&["sys_ptrace".into()], &["CAP_KILL".into()])?;
//! assert!(set.names().any(|name| name == "CAP_SYS_PTRACE"));
//!
//! let refused = CapSet::adjust(&["NET_RAW".into()], &[]).unwrap_err();
//! assert!(refused.to_string().starts_with("CAP_NET_RAW cannot be added"));
//! # Ok::<(), airlock_linux::caps::Refused>(())
//! ```

use std::fmt;
use std::io;

use rustix::thread::{
    CapabilitySet, CapabilitySets, clear_ambient_capability_set, remove_capability_from_bounding_set,
    set_capabilities,
};
use thiserror::Error;

/// One capability that the kernel knows; displays as `CAP_…`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cap(u8);

/// A set of capabilities.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CapSet(u64);

/// A name that no capability has.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{name:?} is not a capability")]
pub struct UnknownCap {
    name: String,
}

/// Why the capabilities asked for cannot be given; [`Refused::fix`] says what to do instead.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Refused {
    /// The name is no capability.
    #[error(transparent)]
    Unknown(#[from] UnknownCap),
    /// `ALL` was to be added.
    #[error("ALL cannot be added: it holds capabilities that no sandbox may have")]
    All,
    /// The capability would reach past the wall or would have no effect.
    #[error("{cap} cannot be added: {why}")]
    Capability {
        /// Which one.
        cap: Cap,
        /// Why not, as the end of a sentence.
        why: &'static str,
        /// What serves instead.
        fix: &'static str,
    },
}

impl Refused {
    /// What the person can do instead: an imperative sentence without a full stop.
    #[must_use]
    pub fn fix(&self) -> &'static str {
        match self {
            Refused::Unknown(_) => "use a name from capabilities(7), with or without CAP_",
            Refused::All => "name the capabilities that the program needs, such as --cap-add SYS_PTRACE",
            Refused::Capability { fix, .. } => fix,
        }
    }
}

impl Cap {
    /// `CAP_DAC_READ_SEARCH`
    pub const DAC_READ_SEARCH: Cap = Cap(2);
    /// `CAP_NET_ADMIN`
    pub const NET_ADMIN: Cap = Cap(12);
    /// `CAP_NET_RAW`
    pub const NET_RAW: Cap = Cap(13);
    /// `CAP_SYS_CHROOT`
    pub const SYS_CHROOT: Cap = Cap(18);
    /// `CAP_SYS_PTRACE`
    pub const SYS_PTRACE: Cap = Cap(19);
    /// `CAP_SYS_ADMIN`
    pub const SYS_ADMIN: Cap = Cap(21);
    /// `CAP_SYS_NICE`
    pub const SYS_NICE: Cap = Cap(23);
    /// Giving files capabilities.
    pub const SETFCAP: Cap = Cap(31);

    /// The name as in capabilities(7), with `CAP_`.
    #[must_use]
    pub fn name(self) -> &'static str {
        KNOWN.get(usize::from(self.0)).map_or("CAP_?", |known| known.name)
    }

    const fn bit(self) -> u64 {
        1 << self.0
    }
}

impl fmt::Display for Cap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl CapSet {
    /// No capability at all.
    pub const EMPTY: CapSet = CapSet(0);

    /// What a program inside holds unless asked otherwise: Docker's default without NET_RAW (packet sockets,
    /// SO_MARK) and MKNOD (without effect in a user namespace). These are exactly the rows of the table below
    /// that say `Usual`.
    pub const DEFAULT: CapSet = CapSet(usual());

    /// The capability of this name, with or without `CAP_`, in any case.
    pub fn parse(name: &str) -> Result<Cap, UnknownCap> {
        let upper = name.to_ascii_uppercase();
        let short = upper.strip_prefix("CAP_").unwrap_or(&upper);
        (0u8..)
            .zip(KNOWN)
            .find(|(_, known)| known.name.strip_prefix("CAP_") == Some(short))
            .map(|(number, _)| Cap(number))
            .ok_or_else(|| UnknownCap { name: name.to_owned() })
    }

    /// [`CapSet::DEFAULT`] less `drop`, then with `add`, as Docker reads the two lists: `ALL` in `drop` empties
    /// the set first, and a capability that stands in both is held. Dropping one that is not held is fine: the
    /// person has what was asked for.
    pub fn adjust(add: &[String], drop: &[String]) -> Result<CapSet, Refused> {
        let mut set = CapSet::DEFAULT;
        for name in drop {
            set = if is_all(name) { CapSet::EMPTY } else { set.without(CapSet::parse(name)?) };
        }
        for name in add {
            if is_all(name) {
                return Err(Refused::All);
            }
            set = set.with(addable(CapSet::parse(name)?)?);
        }
        Ok(set)
    }

    /// Whether the set holds `cap`.
    #[must_use]
    pub const fn contains(self, cap: Cap) -> bool {
        self.0 & cap.bit() != 0
    }

    /// The set with `cap` as well.
    #[must_use]
    pub const fn with(self, cap: Cap) -> CapSet {
        CapSet(self.0 | cap.bit())
    }

    /// The set without `cap`.
    #[must_use]
    pub const fn without(self, cap: Cap) -> CapSet {
        CapSet(self.0 & !cap.bit())
    }

    /// The names in the order of the kernel's numbers, each with `CAP_`.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        (0u8..).zip(KNOWN).filter(move |(number, _)| self.contains(Cap(*number))).map(|(_, known)| known.name)
    }

    /// The set as the kernel shows it in `/proc/PID/status`.
    #[must_use]
    pub const fn bits(self) -> u64 {
        self.0
    }
}

/// Gives up every capability outside `set` for this thread and all it will ever start: bounding, permitted and
/// effective are `set`, inheritable and ambient are empty. System calls only, so it may run between fork and
/// exec.
///
/// The caller is uid 0 of a user namespace in which it holds CAP_SETPCAP and everything in `set`.
pub fn limit_to(set: CapSet) -> io::Result<()> {
    clear_ambient_capability_set()?;
    // The bounding set comes first: emptying it takes CAP_SETPCAP, which the last step may give up.
    for number in 0..u64::BITS {
        let bit = 1 << number;
        if set.0 & bit != 0 {
            continue;
        }
        match remove_capability_from_bounding_set(CapabilitySet::from_bits_retain(bit)) {
            Ok(()) => {}
            // The kernel's last capability is behind us; a newer kernel's unknown ones were dropped too.
            Err(rustix::io::Errno::INVAL) => break,
            Err(err) => return Err(err.into()),
        }
    }
    let held = CapabilitySet::from_bits_retain(set.0);
    let sets = CapabilitySets { effective: held, permitted: held, inheritable: CapabilitySet::empty() };
    Ok(set_capabilities(None, sets)?)
}

const fn usual() -> u64 {
    let mut bits = 0;
    let mut rest: &[Known] = &KNOWN;
    let mut bit = 1;
    while let [known, tail @ ..] = rest {
        if matches!(known.add, Add::Usual) {
            bits |= bit;
        }
        bit <<= 1;
        rest = tail;
    }
    bits
}

fn is_all(name: &str) -> bool {
    name.eq_ignore_ascii_case("ALL") || name.eq_ignore_ascii_case("CAP_ALL")
}

fn addable(cap: Cap) -> Result<Cap, Refused> {
    let add = KNOWN.get(usize::from(cap.0)).map_or(Add::Unused, |known| known.add);
    let (why, fix) = match add {
        Add::Usual | Add::OnRequest => return Ok(cap),
        Add::Unused => ("no kernel function asks for it", DO_WITHOUT),
        Add::HostOnly(what) => (what, DO_WITHOUT),
        Add::Never(why, fix) => (why, fix),
    };
    Err(Refused::Capability { cap, why, fix })
}

struct Known {
    name: &'static str,
    add: Add,
}

#[derive(Clone, Copy)]
enum Add {
    /// Held by default; may be added again after `--cap-drop ALL`.
    Usual,
    /// Not held by default; works in a user namespace, so it may be asked for.
    OnRequest,
    /// The kernel asks for it in the host's first user namespace (or in one that belongs to the keeper) only,
    /// so holding it inside would change nothing; the text says so for the person.
    HostOnly(&'static str),
    /// Something else than the capability serves: why not, and what to do.
    Never(&'static str, &'static str),
    /// The kernel never asks for it.
    Unused,
}

const DO_WITHOUT: &str = "leave it out: the program would not gain anything from it";
const OTHER_WAY_IN: &str = "leave it out: ping and low ports work inside without it";
const RAISE_OUTSIDE: &str = "raise the limit from outside with --nofile, --pids or --memory";

const fn usual_cap(name: &'static str) -> Known {
    Known { name, add: Add::Usual }
}

const fn on_request(name: &'static str) -> Known {
    Known { name, add: Add::OnRequest }
}

const fn host_only(name: &'static str, what: &'static str) -> Known {
    Known { name, add: Add::HostOnly(what) }
}

const fn never(name: &'static str, why: &'static str, fix: &'static str) -> Known {
    Known { name, add: Add::Never(why, fix) }
}

/// Every capability by its number (include/uapi/linux/capability.h). "capable" below is the kernel's check
/// against the first user namespace, "ns_capable" the one against the namespace that owns the thing touched.
const KNOWN: [Known; 41] = [
    usual_cap("CAP_CHOWN"),
    usual_cap("CAP_DAC_OVERRIDE"),
    // ns_capable towards files whose owner is mapped. open_by_handle_at stays refused by the filter all the
    // same.
    on_request("CAP_DAC_READ_SEARCH"),
    usual_cap("CAP_FOWNER"),
    usual_cap("CAP_FSETID"),
    usual_cap("CAP_KILL"),
    usual_cap("CAP_SETGID"),
    usual_cap("CAP_SETUID"),
    usual_cap("CAP_SETPCAP"),
    // ioctl FS_IOC_SETFLAGS: capable.
    host_only("CAP_LINUX_IMMUTABLE", "immutable and append-only files can only be made by the host's root"),
    // Without effect towards a network namespace of the keeper (low ports are opened by its sysctl), but held
    // by default in Docker, and commonly added after --cap-drop ALL.
    usual_cap("CAP_NET_BIND_SERVICE"),
    Known { name: "CAP_NET_BROADCAST", add: Add::Unused },
    never("CAP_NET_ADMIN", "routes and packet rules are part of the wall", OTHER_WAY_IN),
    never("CAP_NET_RAW", "packet sockets and SO_MARK would pass by the wall", OTHER_WAY_IN),
    // mlock: capable (RLIMIT_MEMLOCK decides instead).
    host_only("CAP_IPC_LOCK", "locking memory past the limit is kept to the host's root"),
    // ns_capable towards the owner of the IPC namespace.
    on_request("CAP_IPC_OWNER"),
    host_only("CAP_SYS_MODULE", "kernel modules are the host's"),
    host_only("CAP_SYS_RAWIO", "raw access to devices is the host's"),
    usual_cap("CAP_SYS_CHROOT"),
    // ns_capable. With it the program can also trace the guest, which holds nothing worth taking.
    on_request("CAP_SYS_PTRACE"),
    host_only("CAP_SYS_PACCT", "process accounting is the host's"),
    // ns_capable for mounts, and more calls of the filter open with it; the landlock fence has to be left out
    // then.
    on_request("CAP_SYS_ADMIN"),
    // reboot: ns_capable towards the owner of the PID namespace, which is the keeper's.
    never(
        "CAP_SYS_BOOT",
        "the sandbox is not the program's to reboot",
        "use airlock stop or airlock restart",
    ),
    // Affinity of other users' processes: ns_capable; also opens the memory policy calls. Higher priority:
    // capable.
    on_request("CAP_SYS_NICE"),
    // Raising a hard limit: capable.
    never("CAP_SYS_RESOURCE", "limits cannot be raised from inside", RAISE_OUTSIDE),
    host_only("CAP_SYS_TIME", "the clock is the host's"),
    host_only("CAP_SYS_TTY_CONFIG", "virtual consoles are the host's"),
    // mknod of a device: capable, and every mount inside is nodev.
    host_only("CAP_MKNOD", "device nodes cannot be made in a user namespace"),
    // F_SETLEASE on another's file: capable.
    host_only("CAP_LEASE", "leases on others' files are kept to the host's root"),
    usual_cap("CAP_AUDIT_WRITE"),
    host_only("CAP_AUDIT_CONTROL", "the audit log is the host's"),
    usual_cap("CAP_SETFCAP"),
    host_only("CAP_MAC_OVERRIDE", "mandatory access control is the host's"),
    host_only("CAP_MAC_ADMIN", "mandatory access control is the host's"),
    host_only("CAP_SYSLOG", "the kernel log is the host's"),
    host_only("CAP_WAKE_ALARM", "waking the machine is the host's"),
    host_only("CAP_BLOCK_SUSPEND", "suspending the machine is the host's"),
    host_only("CAP_AUDIT_READ", "the audit log is the host's"),
    host_only("CAP_PERFMON", "performance counters see the whole host, and perf_event_open is refused"),
    host_only("CAP_BPF", "kernel programs see the whole host, and bpf is refused"),
    // Choosing a pid: ns_capable towards the owner of the PID namespace, and clone3 is refused.
    host_only("CAP_CHECKPOINT_RESTORE", "choosing process ids is kept to the keeper"),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seccomp::trial;

    fn words(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn the_default_set_is_dockers_without_net_raw_and_mknod() {
        let docker: u64 = 0xa804_25fb; // CapEff of a container of Docker
        let mknod = CapSet::parse("MKNOD").unwrap();

        assert_eq!(CapSet::DEFAULT, CapSet(docker).without(Cap::NET_RAW).without(mknod));
    }

    #[test]
    fn a_name_is_read_in_any_case_with_or_without_its_prefix() {
        for name in ["SYS_ADMIN", "sys_admin", "CAP_SYS_ADMIN", "cap_Sys_Admin"] {
            assert_eq!(CapSet::parse(name), Ok(Cap::SYS_ADMIN), "{name}");
        }
        for name in ["", "CAP_", "ALL", "SYS_ADMIN ", "CAP_CAP_KILL", "?"] {
            assert!(CapSet::parse(name).is_err(), "{name}");
        }
    }

    #[test]
    fn every_constant_stands_at_its_own_row() {
        for (cap, name) in [
            (Cap::DAC_READ_SEARCH, "CAP_DAC_READ_SEARCH"),
            (Cap::NET_ADMIN, "CAP_NET_ADMIN"),
            (Cap::NET_RAW, "CAP_NET_RAW"),
            (Cap::SYS_CHROOT, "CAP_SYS_CHROOT"),
            (Cap::SYS_PTRACE, "CAP_SYS_PTRACE"),
            (Cap::SYS_ADMIN, "CAP_SYS_ADMIN"),
            (Cap::SYS_NICE, "CAP_SYS_NICE"),
        ] {
            assert_eq!(cap.name(), name);
        }
        // CAP_CHECKPOINT_RESTORE is 40 in the kernel's header.
        assert_eq!(CapSet::parse("CHECKPOINT_RESTORE"), Ok(Cap(40)));
    }

    #[test]
    fn what_is_added_is_held_even_after_everything_was_dropped() {
        let set = CapSet::adjust(&words(&["KILL", "sys_ptrace"]), &words(&["all"])).unwrap();

        assert_eq!(set.names().collect::<Vec<_>>(), ["CAP_KILL", "CAP_SYS_PTRACE"]);
    }

    #[test]
    fn dropping_takes_out_and_leaves_the_rest() {
        let set = CapSet::adjust(&[], &words(&["CHOWN", "NET_RAW"])).unwrap();

        assert_eq!(set, CapSet::DEFAULT.without(CapSet::parse("CHOWN").unwrap()));
    }

    #[test]
    fn network_powers_can_never_be_added() {
        for name in ["NET_RAW", "CAP_NET_ADMIN"] {
            let refused = CapSet::adjust(&words(&[name]), &[]).unwrap_err();

            assert!(refused.to_string().contains("wall"), "{refused}");
            assert!(refused.fix().contains("without it"), "{}", refused.fix());
        }
        assert_eq!(CapSet::adjust(&words(&["ALL"]), &[]), Err(Refused::All));
    }

    #[test]
    fn a_capability_without_effect_is_refused_and_not_ignored() {
        for name in ["SYS_MODULE", "SYS_TIME", "BPF", "MKNOD", "SYSLOG", "SYS_RESOURCE", "NET_BROADCAST"] {
            let refused = CapSet::adjust(&words(&[name]), &[]).unwrap_err();

            assert!(refused.to_string().starts_with(&format!("CAP_{name} cannot be added: ")), "{refused}");
            assert!(!refused.fix().is_empty());
        }
    }

    #[test]
    fn an_unknown_name_is_refused_in_both_lists() {
        let unknown = Err(Refused::Unknown(UnknownCap { name: "SYS_FUN".into() }));

        assert_eq!(CapSet::adjust(&words(&["SYS_FUN"]), &[]), unknown);
        assert_eq!(CapSet::adjust(&[], &words(&["SYS_FUN"])), unknown);
    }

    #[test]
    fn after_the_limit_nothing_else_is_left_in_any_set_also_across_exec() {
        for set in [CapSet::DEFAULT, CapSet::EMPTY, CapSet::DEFAULT.with(Cap::SYS_PTRACE)] {
            let status = trial::in_own_user_namespace(move || {
                limit_to(set)?;
                Ok(trial::replace_by(&["/bin/cat", "/proc/self/status"]))
            });

            let Some(status) = status else { return };
            for (key, bits) in
                [("CapInh", 0), ("CapPrm", set.0), ("CapEff", set.0), ("CapBnd", set.0), ("CapAmb", 0)]
            {
                assert!(status.contains(&format!("{key}:\t{bits:016x}\n")), "{key} of {set:?} in {status}");
            }
        }
    }
}
