//! What bounds a sandbox before its first instruction: control groups, a disk of bounded size.

use crate::{
    plan::{self, Plan, bounds},
    store::Sandbox,
};
use airlock_linux::{
    cgroup::{self, Controller, Group, Layout, Version},
    disk::{self, Limited},
};
use airlock_protocol::{
    control::Refusal,
    spec::DiskBy,
    state::{By, Enforced, Limit},
};
use std::{fs, path::PathBuf};

/// The control groups a sandbox is to have.
pub(super) struct Confined {
    layout: Layout,
    pub(super) limits: cgroup::Limits,
    pub(super) enforced: Vec<Enforced>,
}

/// Control groups: what was asked for must hold, the defaults where this host can.
pub(super) fn confine(plan: &Plan) -> Result<Confined, Refusal> {
    let layout = cgroup::layout().map_err(|err| {
        plan::refusal(5, "the control groups of this host cannot be read", Some(&err.to_string()), None)
    })?;
    let bounds = &plan.bounds;
    let can = |controller| layout.can(controller).is_ok();
    let limits = cgroup::Limits {
        memory: (bounds.memory.requested || can(Controller::Memory))
            .then_some(bounds.memory.value.saturating_add(bounds.besides.memory)),
        cpu_millis: bounds.cpu_millis,
        // The resource limit bounds them too, so that a bound on pids never needs a group.
        pids: can(Controller::Pids).then_some(bounds.pids.value.saturating_add(bounds.besides.pids)),
    };
    let by = |controller| match layout.version_of(controller) {
        Some(Version::V1) => By::CgroupV1,
        Some(Version::V2) => By::CgroupV2,
        None => By::Nothing,
    };
    let own = |limit, value, requested, by| Enforced { limit, value, requested, by };
    let memory_by = if limits.memory.is_some() { by(Controller::Memory) } else { By::Nothing };
    let pids_by = if limits.pids.is_some() { by(Controller::Pids) } else { By::Rlimit };
    let mut enforced = vec![
        own(Limit::Memory, bounds.memory.value, bounds.memory.requested, memory_by),
        own(Limit::Pids, bounds.pids.value, bounds.pids.requested, pids_by),
    ];
    if let Some(value) = bounds.cpu_millis {
        enforced.push(own(Limit::Cpu, value, true, by(Controller::Cpu)));
    }
    Ok(Confined { layout, limits, enforced })
}

impl Confined {
    pub(super) fn is_needed(&self) -> bool {
        self.limits != cgroup::Limits::default()
    }

    pub(super) fn paths(&self, sandbox: &Sandbox) -> Result<Vec<PathBuf>, Refusal> {
        if !self.is_needed() {
            return Ok(Vec::new());
        }
        let id = sandbox.id().as_str();
        Group::paths_for(&self.layout, id, &self.limits, &[]).map_err(|err| refuse_limit(&err))
    }

    pub(super) fn make(&self, sandbox: &Sandbox) -> Result<Option<Group>, Refusal> {
        if !self.is_needed() {
            return Ok(None);
        }
        let id = sandbox.id().as_str();
        Group::create(&self.layout, id, &self.limits, &[]).map(Some).map_err(|err| refuse_limit(&err))
    }
}

pub(super) fn refuse_limit(err: &cgroup::Error) -> Refusal {
    let fix = match err {
        cgroup::Error::Cannot(cannot) => cannot.fix(),
        _ => "airlock doctor".to_owned(),
    };
    plan::refusal(125, "a limit of this sandbox cannot be enforced", Some(&plan::chain(err)), Some(&fix))
}

/// A disk of bounded size, as host root.
pub(super) fn bounded_disk(
    plan: &Plan,
    sandbox: &Sandbox,
    base: Option<(u32, u32)>,
) -> Result<Option<Limited>, Refusal> {
    let Some(wanted) = plan.bounds.disk.filter(|disk| disk.by == DiskBy::Kernel) else { return Ok(None) };
    let templates = sandbox.store().host().join("disks");
    let failed = |why: String, fix: Option<String>| {
        plan::refusal(125, "the disk of this sandbox cannot be bounded", Some(&why), fix.as_deref())
    };
    fs::create_dir_all(&templates).map_err(|err| failed(err.to_string(), None))?;
    let limited = disk::open_limited(sandbox.folder(), wanted.bytes, &templates)
        .map_err(|err| failed(plan::chain(&err), err.fix()))?;
    if let Some((user, group)) = base {
        let owner = (rustix::fs::Uid::from_raw(user), rustix::fs::Gid::from_raw(group));
        rustix::fs::chownat(
            &limited.mount,
            "",
            Some(owner.0),
            Some(owner.1),
            rustix::fs::AtFlags::EMPTY_PATH,
        )
        .map_err(|err| failed(err.to_string(), None))?;
    }
    Ok(Some(limited))
}

pub(super) fn other_limits(plan: &Plan, sandbox: &Sandbox) -> Vec<Enforced> {
    let own = |limit, value, requested, by| Enforced { limit, value, requested, by };
    let bounds = &plan.bounds;
    let total = disk::free(&plan.disk).map_or(0, |free| free.total);
    let mut limits = vec![
        own(Limit::Nofile, bounds.nofile.value, bounds.nofile.requested, By::Rlimit),
        own(Limit::DiskReserve, disk::reserve(total), false, By::Keeper),
        own(Limit::Log, bounds::LOG_BYTES, false, By::Keeper),
    ];
    if let Some(wanted) = bounds.disk {
        let by = match (wanted.by, disk::backing(sandbox.folder())) {
            (DiskBy::Kernel, disk::Backing::ProjectQuota) => By::Quota,
            (by, _) => By::from(by),
        };
        limits.push(own(Limit::Disk, wanted.bytes, true, by));
    }
    if let Some(timeout) = bounds.timeout {
        let millis = u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX);
        limits.push(own(Limit::Timeout, millis, true, By::Keeper));
    }
    limits
}
