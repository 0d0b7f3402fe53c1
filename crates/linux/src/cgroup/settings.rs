//! What to write into which file for a limit. Pure.

use super::group::Limits;
use super::layout::{Controller, Version};

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Need {
    Always,
    WherePresent,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Setting {
    pub(super) file: &'static str,
    pub(super) value: String,
    pub(super) need: Need,
}

/// What to write, in this order, for the limits that this hierarchy enforces.
pub(super) fn settings(version: Version, controllers: &[Controller], limits: &Limits) -> Vec<Setting> {
    let always = |file, value: String| Setting { file, value, need: Need::Always };
    let mut list = Vec::new();
    for controller in controllers {
        match (controller, version) {
            (Controller::Memory, Version::V1) => list.extend(limits.memory.into_iter().flat_map(|bytes| {
                let with_swap = Setting {
                    file: "memory.memsw.limit_in_bytes",
                    value: bytes.to_string(),
                    need: Need::WherePresent,
                };
                [always("memory.limit_in_bytes", bytes.to_string()), with_swap]
            })),
            (Controller::Memory, Version::V2) => list.extend(limits.memory.into_iter().flat_map(|bytes| {
                let no_swap =
                    Setting { file: "memory.swap.max", value: "0".to_owned(), need: Need::WherePresent };
                [always("memory.max", bytes.to_string()), no_swap]
            })),
            (Controller::Pids, _) => {
                list.extend(limits.pids.map(|count| always("pids.max", count.to_string())))
            }
            (Controller::Cpu, Version::V1) => list.extend(limits.cpu_millis.into_iter().flat_map(|millis| {
                let (quota, period) = cpu_quota(millis);
                [
                    always("cpu.cfs_period_us", period.to_string()),
                    always("cpu.cfs_quota_us", quota.to_string()),
                ]
            })),
            (Controller::Cpu, Version::V2) => list.extend(limits.cpu_millis.map(|millis| {
                let (quota, period) = cpu_quota(millis);
                always("cpu.max", format!("{quota} {period}"))
            })),
            (Controller::Freezer, _) => {}
        }
    }
    list
}

/// Microseconds of processor time per period. The kernel takes no quota below 1 ms and no period above 1 s.
fn cpu_quota(millis: u64) -> (u64, u64) {
    match millis {
        0..10 => (millis.max(1) * 1000, 1_000_000),
        more => (more.saturating_mul(100), 100_000),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(version: Version, limits: &Limits) -> Vec<String> {
        let all = [Controller::Memory, Controller::Pids, Controller::Cpu, Controller::Freezer];
        settings(version, &all, limits).into_iter().map(|one| format!("{}={}", one.file, one.value)).collect()
    }

    #[test]
    fn each_version_has_its_own_files() {
        let limits = Limits { memory: Some(4096), cpu_millis: Some(1500), pids: Some(7) };

        let v1 = written(Version::V1, &limits);
        let v2 = written(Version::V2, &limits);

        let expected = [
            "memory.limit_in_bytes=4096",
            "memory.memsw.limit_in_bytes=4096",
            "pids.max=7",
            "cpu.cfs_period_us=100000",
            "cpu.cfs_quota_us=150000",
        ];
        assert_eq!(v1, expected);
        assert_eq!(v2, ["memory.max=4096", "memory.swap.max=0", "pids.max=7", "cpu.max=150000 100000"]);
    }

    #[test]
    fn no_limit_writes_nothing() {
        assert!(written(Version::V1, &Limits::default()).is_empty());
        assert!(written(Version::V2, &Limits::default()).is_empty());
    }

    #[test]
    fn the_smallest_share_is_one_the_kernel_takes() {
        assert_eq!(cpu_quota(0), (1000, 1_000_000));
        assert_eq!(cpu_quota(9), (9000, 1_000_000));
        assert_eq!(cpu_quota(10), (1000, 100_000));
        assert_eq!(cpu_quota(u64::MAX), (u64::MAX, 100_000));
    }
}
