//! What programs inside see of `/proc`, `/sys` and `/dev`: one list, whether the kernel is this host's or a machine's own.

/// Covered: the files give nothing, the directories are empty. Each tells about a kernel or changes it.
pub const MASKED: [&str; 17] = [
    "/proc/acpi",
    "/proc/asound",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/kmsg",
    "/proc/kpagecgroup",
    "/proc/kpagecount",
    "/proc/kpageflags",
    "/proc/latency_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/proc/sysrq-trigger",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/sys/devices/virtual/powercap",
    "/sys/firmware",
];
/// Readable only.
pub const READ_ONLY: [&str; 4] = ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys"];
/// Device nodes every program expects: name, major, minor.
pub const DEVICES: [(&str, u32, u32); 6] =
    [("null", 1, 3), ("zero", 1, 5), ("full", 1, 7), ("random", 1, 8), ("urandom", 1, 9), ("tty", 5, 0)];
/// Links beside them: name, target.
pub const DEVICE_LINKS: [(&str, &str); 5] = [
    ("fd", "/proc/self/fd"),
    ("stdin", "/proc/self/fd/0"),
    ("stdout", "/proc/self/fd/1"),
    ("stderr", "/proc/self/fd/2"),
    ("ptmx", "pts/ptmx"),
];
