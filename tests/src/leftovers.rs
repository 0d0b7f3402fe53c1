//! What a sandbox can leave behind: processes, mounts, control groups, files.

use crate::asked_until;
use std::{
    fs,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

/// What must be gone when a world ends.
pub(crate) struct Traces {
    home: PathBuf,
    ids: Vec<String>,
    cgroups: Vec<PathBuf>,
}

impl Traces {
    /// Traces of these sandboxes, read while they are there.
    pub(crate) fn of(home: &Path, ids: &[String]) -> Traces {
        let cgroups = ids.iter().flat_map(|id| cgroups(&home.join("sandboxes").join(id)));
        Traces { home: home.to_owned(), ids: ids.to_vec(), cgroups: cgroups.collect() }
    }

    /// Waits until nothing is left; names what stays.
    pub(crate) fn assert_gone(&self) {
        let mut left = Vec::new();
        // The keeper of a machine of a new kind boots and saves another one behind its end.
        let patience = if self.home.join("machines").exists() { 180 } else { 10 };
        let gone = asked_until(Instant::now() + Duration::from_secs(patience), || {
            left = self.left();
            left.is_empty().then_some(())
        });
        assert!(gone.is_some(), "left behind: {left:#?}");
    }

    fn left(&self) -> Vec<String> {
        let mut left = self.processes();
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let home = self.home.display().to_string();
        left.extend(mounts.lines().filter(|line| line.contains(&home)).map(|line| format!("mount {line}")));
        let groups = self.cgroups.iter().filter(|path| path.exists());
        left.extend(groups.map(|path| format!("control group {}", path.display())));
        let files = fs::read_dir(self.home.join("sandboxes")).into_iter().flatten().flatten();
        left.extend(files.map(|entry| format!("file {}", entry.path().display())));
        left
    }

    /// Processes with this home in their environment, or one of these ids among their words or control groups.
    fn processes(&self) -> Vec<String> {
        let mark = format!("AIRLOCK_HOME={}\0", self.home.display()).into_bytes();
        let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
        let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        let ours = pids.filter(|pid| *pid != std::process::id()).filter(|pid| {
            let file = |name: &str| fs::read(format!("/proc/{pid}/{name}")).unwrap_or_default();
            let mentions = |bytes: &[u8]| self.ids.iter().any(|id| contains(bytes, id.as_bytes()));
            contains(&file("environ"), &mark) || mentions(&file("cmdline")) || mentions(&file("cgroup"))
        });
        ours.map(|pid| {
            let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            format!("process {pid}: {}", String::from_utf8_lossy(&words).replace('\0', " "))
        })
        .collect()
    }
}

fn cgroups(sandbox: &Path) -> Vec<PathBuf> {
    let state = fs::read(sandbox.join("state.json")).unwrap_or_default();
    let state: serde_json::Value = serde_json::from_slice(&state).unwrap_or_default();
    let paths = state.get("cgroups").and_then(serde_json::Value::as_array).cloned().unwrap_or_default();
    paths.iter().filter_map(|path| path.as_str().map(PathBuf::from)).collect()
}

fn contains(bytes: &[u8], wanted: &[u8]) -> bool {
    !wanted.is_empty() && bytes.windows(wanted.len()).any(|window| window == wanted)
}
