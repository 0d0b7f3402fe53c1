//! Whether every other process has stopped: a signal is on its way until its receiver leaves the kernel.

use std::{fs, time::Duration};

/// How long is waited: what sleeps in the kernel for longer changes no file.
const TRIES: u32 = 500;
const PAUSE: Duration = Duration::from_millis(2);

/// Waits until all stand still, but not for ever.
pub(crate) fn wait() {
    for _ in 0..TRIES {
        if is_still() {
            return;
        }
        std::thread::sleep(PAUSE);
    }
}

fn is_still() -> bool {
    let Ok(entries) = fs::read_dir("/proc") else { return true };
    let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|pid| *pid != 1).all(|pid| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat"));
        stat.ok().and_then(|stat| state_of(&stat)).is_none_or(|state| "TtZXx".contains(state))
    })
}

/// The state in a line of `/proc/PID/stat`, which follows a name that may hold anything.
fn state_of(stat: &str) -> Option<char> {
    stat.rsplit_once(") ")?.1.chars().next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_brackets_hides_no_state() {
        assert_eq!(state_of("7 (a) T (b) S 1 7"), Some('S'));
        assert_eq!(state_of("7 (sh) T 1"), Some('T'));
        assert_eq!(state_of(""), None);
    }
}
