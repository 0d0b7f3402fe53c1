//! Where a sandbox's files are: the state directory, overlays, shifted ids.

use super::{Facts, Finding, Fix, Step, walls::later};
use airlock_linux::{disk, probe::trial::Step as Try};
use airlock_protocol::size;

/// File systems that cannot hold the writable layer of an overlay.
const UNFIT: [&str; 8] = ["overlay", "nfs", "cifs", "smb", "9p", "vfat", "ecryptfs", "ramfs"];

pub(super) fn state(facts: &Facts) -> Finding {
    let (name, state) = ("state", &facts.state);
    let (path, place) = (state.path.display(), &state.place);
    if let Some(refused) = &state.refused {
        let finding = Finding::stopping(name, refused.clone());
        return match refused.contains("others may enter it") {
            true => finding.fixed_by(Fix::own(vec![Step::run(["chmod", "700", &path.to_string()])])),
            false => finding.advised("export AIRLOCK_HOME=/a/directory/of/yours"),
        };
    }
    if place.is_read_only {
        return Finding::stopping(name, format!("{path} is on a file system that is mounted read-only"))
            .advised(MOVE);
    }
    if place.is_noexec {
        let says = format!(
            "{path} is on a file system that is mounted noexec, and the first program of a sandbox lies there"
        );
        return Finding::stopping(name, says).advised(MOVE);
    }
    let reserve = disk::reserve(place.total);
    if place.free < reserve {
        let says = format!(
            "{} free at {path}, and sandboxes are frozen below {}",
            size::show(place.free),
            size::show(reserve)
        );
        return Finding::degraded(name, says).advised("free some space, or `airlock prune`");
    }
    if ["tmpfs", "ramfs"].contains(&place.kind.as_str()) {
        let says = format!(
            "{path} is in memory: what sandboxes write counts as memory and is gone after a restart of the host"
        );
        return Finding::degraded(name, says).advised(MOVE);
    }
    let made = if state.exists { "" } else { " (made at the first run)" };
    Finding::ok(name, format!("{path} on {}, {} free{made}", place.kind, size::show(place.free)))
}

pub(super) fn overlay(facts: &Facts) -> Finding {
    let name = "overlay";
    let Some(no) = facts.trial.answer(Try::Overlay).no() else {
        return later(
            facts,
            Try::Overlay,
            Finding::ok(name, "overlays work in a user namespace, with their layers in the state directory"),
        );
    };
    let kind = facts.state.place.kind.as_str();
    let path = facts.state.path.display();
    let says = match kind {
        _ if UNFIT.contains(&kind) => {
            format!("the state directory {path} is on {kind}, which cannot hold the layers of an overlay")
        }
        _ => format!("an overlay with its layers in {path} does not work: {}", no.said),
    };
    let finding = Finding::stopping(name, says);
    match (&facts.nesting.container, UNFIT.contains(&kind)) {
        (Some(_), true) => finding.advised(format!("put a volume there: docker run -v airlock:{path}")),
        (None, true) => finding.advised(MOVE),
        _ if no.errno == NO_SUCH_FILE_SYSTEM => {
            finding.fixed_by(Fix::root(vec![Step::run(["modprobe", "overlay"])]))
        }
        _ => finding.advised(MOVE),
    }
}

pub(super) fn shifted_ids(facts: &Facts) -> Finding {
    let name = "idmap";
    if !facts.is_root() {
        return Finding::ok(name, "not needed by an ordinary user");
    }
    match facts.trial.answer(Try::Shift).no() {
        Some(no) => {
            Finding::stopping(name, format!("this file system cannot be shown with shifted ids: {}", no.said))
                .advised("run airlock as an ordinary user, or from a directory on ext4, xfs or btrfs")
        }
        None => later(
            facts,
            Try::Shift,
            Finding::ok(name, "the host's directories can be shown with shifted ids"),
        ),
    }
}

const MOVE: &str = "export AIRLOCK_HOME=/a/directory/of/yours   (on ext4, xfs or btrfs)";
/// ENODEV.
const NO_SUCH_FILE_SYSTEM: i32 = 19;
