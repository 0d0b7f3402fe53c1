//! What is run on the second host, as data: who, what, and what it must show.
//!
//! The scripts are for bash, run in the user's login session in `~/work`, with stdin closed and no terminal as output.
//! Programs they may use are those of a minimal Debian: coreutils, perl-base, python3-minimal, util-linux.

use super::expect::Expect;
use std::fmt;

/// One thing to run.
#[derive(Debug, Clone, Copy)]
pub(super) struct Case {
    /// Whose session it runs in.
    pub(super) user: User,
    /// A fact, unique for the user.
    pub(super) name: &'static str,
    /// After which it is killed and counts as failed (exit code 124 or 137).
    pub(super) seconds: u32,
    /// The script.
    pub(super) script: &'static str,
    /// What it must show.
    pub(super) expect: Expect,
}

/// Who logs in on the second host, each on a serial terminal of their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum User {
    /// An ordinary user with ranges of subordinate ids.
    Ranges,
    /// An ordinary user with a single id.
    Single,
    /// The host's root.
    Root,
}

impl User {
    /// Everybody, in the order of their terminals (`ttyS1`, `ttyS2`, `ttyS3`).
    pub(super) const ALL: [Self; 3] = [Self::Ranges, Self::Single, Self::Root];

    /// The name to log in with.
    pub(super) fn login(self) -> &'static str {
        match self {
            Self::Ranges => "airlock-test",
            Self::Single => "airlock-single",
            Self::Root => "root",
        }
    }
}

impl fmt::Display for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.login())
    }
}

/// That the machine is the host it is meant to be. None of these uses the product.
pub(super) fn facts() -> Vec<Case> {
    let everybody = User::ALL.into_iter().flat_map(|user| [(user, LOGGED_IN), (user, ONLY_CGROUP_V2)]);
    let ordinary = [User::Ranges, User::Single].into_iter().flat_map(|user| {
        [(user, SCOPE_IS_DELEGATED), (user, MEMORY_IS_BOUND_IN_A_SCOPE), (user, OVERLAY_IN_A_USER_NAMESPACE)]
    });
    let single = [
        (User::Ranges, IDS_COME_IN_RANGES),
        (User::Single, IDS_ARE_SINGLE),
        (User::Root, A_PROJECT_QUOTA_HOLDS),
        (User::Root, A_FILE_MOUNTS_AS_A_DISK),
    ];
    everybody.chain(ordinary).chain(single).map(|(user, fact)| fact.of(user)).collect()
}

/// What `crates/linux` does here: it makes the control groups and the disks.
pub(super) fn kernel() -> Vec<Case> {
    vec![
        LINUX_TESTS_PASS.of(User::Root),
        LINUX_TESTS_PASS_IN_A_SCOPE.of(User::Ranges),
        LINUX_TESTS_PASS_IN_A_SCOPE.of(User::Single),
    ]
}

/// What the product does here.
pub(super) fn product() -> Vec<Case> {
    let everybody =
        User::ALL.into_iter().flat_map(|user| [(user, DOCTOR_IS_CONTENT), (user, A_PROGRAM_RUNS)]);
    let limited = [User::Ranges, User::Root].into_iter().flat_map(|user| {
        [
            (user, MEMORY_OVER_THE_LIMIT_ENDS_WITH_137),
            (user, MEMORY_OVER_THE_LIMIT_IS_SAID_IN_WORDS),
            (user, PIDS_ARE_BOUND),
            (user, CPU_IS_BOUND),
            (user, TIME_IS_BOUND),
            (user, GET_NAMES_CGROUP_V2),
            (user, LIMITS_TESTS_PASS),
        ]
    });
    let disks = [
        (User::Root, DISK_IS_BOUND_BY_A_LOOP_IMAGE),
        (User::Root, DISK_IS_BOUND_BY_QUOTA),
        (User::Root, WHAT_IS_WRITTEN_IS_BOUND_BY_A_LOOP_IMAGE),
        (User::Root, WHAT_IS_WRITTEN_IS_BOUND_BY_QUOTA),
    ];
    let last = [User::Ranges, User::Root].into_iter().map(|user| (user, NOTHING_IS_LEFT));
    let paused = User::ALL.into_iter().map(|user| (user, PAUSE_TESTS_PASS));
    everybody
        .chain(limited)
        .chain(disks)
        .chain(paused)
        .chain(last)
        .map(|(user, fact)| fact.of(user))
        .collect()
}

/// A case before it is somebody's.
struct Fact {
    name: &'static str,
    seconds: u32,
    script: &'static str,
    expect: Expect,
}

impl Fact {
    const fn new(name: &'static str, script: &'static str, expect: Expect) -> Self {
        Self { name, seconds: 90, script, expect }
    }

    fn of(&self, user: User) -> Case {
        Case { user, name: self.name, seconds: self.seconds, script: self.script, expect: self.expect }
    }
}

const LOGGED_IN: Fact = Fact::new(
    "a_login_session_exists",
    r#"loginctl show-session "$XDG_SESSION_ID" -p Type -p Class -p Service -p State"#,
    Expect::Says(0, &["Type=tty", "Class=user", "Service=login", "State=active"]),
);

const ONLY_CGROUP_V2: Fact = Fact::new(
    "the_only_control_groups_are_version_2",
    r#"stat -f -c %T /sys/fs/cgroup
grep " cgroup " /proc/mounts && exit 1
cat /proc/self/cgroup
[ "$(wc -l </proc/self/cgroup)" = 1 ]"#,
    Expect::Says(0, &["cgroup2fs", "0::/user.slice/"]),
);

const SCOPE_IS_DELEGATED: Fact = Fact::new(
    "the_user_manager_delegates_a_scope",
    r#"systemd-run --user --scope -q -p Delegate=yes bash -ec '
here=/sys/fs/cgroup$(cut -d: -f3- /proc/self/cgroup)
echo "has $(cat $here/cgroup.controllers)"
mkdir $here/leaf $here/inner
echo $$ >$here/leaf/cgroup.procs
echo +cpu +memory +pids >$here/cgroup.subtree_control
echo 33554432 >$here/inner/memory.max
echo "memory.max $(cat $here/inner/memory.max)"'"#,
    Expect::Says(0, &["has cpu memory pids", "memory.max 33554432"]),
);

const MEMORY_IS_BOUND_IN_A_SCOPE: Fact = Fact::new(
    "memory_over_a_scopes_limit_is_killed",
    r#"systemd-run --user --scope -q -p MemoryMax=64M perl -e '$x = "a" x (256 << 20); print "survived"'"#,
    Expect::Says(137, &[]),
);

const OVERLAY_IN_A_USER_NAMESPACE: Fact = Fact::new(
    "overlayfs_mounts_in_a_user_namespace",
    r#"unshare --user --map-root-user --mount bash -ec '
mount -t tmpfs none /mnt
mkdir /mnt/upper /mnt/work /mnt/merged
mount -t overlay -o lowerdir=/usr,upperdir=/mnt/upper,workdir=/mnt/work,userxattr none /mnt/merged
touch /mnt/merged/written
ls /mnt/upper'"#,
    Expect::Says(0, &["written"]),
);

const IDS_COME_IN_RANGES: Fact = Fact::new(
    "newuidmap_maps_a_range",
    "unshare --user --map-root-user --map-auto cat /proc/self/uid_map",
    Expect::Says(0, &["100000"]),
);

const IDS_ARE_SINGLE: Fact = Fact::new(
    "the_user_has_no_range_of_ids",
    r#"! grep "$(id -un)" /etc/subuid /etc/subgid"#,
    Expect::Says(0, &[]),
);

/// One megabyte for project 7 by quotactl(2), four written by somebody who may not exceed it.
const A_PROJECT_QUOTA_HOLDS: Fact = Fact::new(
    "a_project_quota_holds",
    r#"set -e
dir=$(mktemp -d /quota/fact.XXXX)
chmod 777 $dir
chattr -p 7 +P $dir
perl -e '
my ($disk, $quota) = ("/dev/nvme0n3", pack("Q8 L", 1024, (0) x 7, 1));
syscall(179, (0x800008 << 8) | 2, $disk, 7, $quota) == 0 or die $!'
setpriv --reuid nobody --clear-groups dd if=/dev/zero of=$dir/file bs=1M count=4"#,
    Expect::Says(1, &["Disk quota exceeded"]),
);

const A_FILE_MOUNTS_AS_A_DISK: Fact = Fact::new(
    "a_file_mounts_as_a_disk",
    r"set -e
dir=$(mktemp -d)
truncate -s 16M $dir/image
mkfs.ext4 -q $dir/image
mkdir $dir/mounted
mount -o loop $dir/image $dir/mounted
stat -f -c %T $dir/mounted
umount $dir/mounted",
    Expect::Says(0, &["ext2/ext3"]),
);

const DOCTOR_IS_CONTENT: Fact =
    Fact::new("doctor_finds_that_run_works", "airlock doctor", Expect::Says(0, &[]));

const A_PROGRAM_RUNS: Fact =
    Fact::new("a_program_runs", "airlock run -- echo sealed", Expect::Says(0, &["sealed"]));

const MEMORY_OVER_THE_LIMIT_ENDS_WITH_137: Fact = Fact::new(
    "memory_over_the_limit_ends_with_137",
    r#"airlock run --memory 64M -- perl -e '$x = "a" x (256 << 20)'"#,
    Expect::Says(137, &[]),
);

/// On a terminal, for there airlock speaks.
const MEMORY_OVER_THE_LIMIT_IS_SAID_IN_WORDS: Fact = Fact::new(
    "memory_over_the_limit_is_said_in_words",
    r#"script -qec "airlock run --memory 64M -- perl -e '\$x = \"a\" x (256 << 20)'" /dev/null"#,
    Expect::Says(137, &["memory"]),
);

const PIDS_ARE_BOUND: Fact = Fact::new(
    "processes_are_bound",
    r#"airlock run --pids 20 -- perl -e '
my @kids;
while (@kids < 60) { my $kid = fork; last unless defined $kid; if (!$kid) { sleep 80; exit } push @kids, $kid }
kill 9, @kids;
print "forked ", scalar @kids, "\n";
exit(@kids > 5 && @kids < 20 ? 0 : 1)'"#,
    Expect::Says(0, &["forked"]),
);

/// Burns for eight seconds of wall time; half a CPU may use four of them, and a fifth more for the coarse period.
const CPU_IS_BOUND: Fact = Fact::new(
    "cpu_time_is_bound",
    r#"airlock run --cpus 0.5 -- perl -e '
my $end = time + 8;
1 while time < $end;
my ($user, $system) = times;
my $used = $user + $system;
print "used $used s of 8 s\n";
exit($used > 0 && $used < 5 ? 0 : 1)'"#,
    Expect::Says(0, &["used"]),
);

const TIME_IS_BOUND: Fact =
    Fact::new("time_is_bound", "airlock run --timeout 3s -- sleep 80", Expect::Says(124, &[]));

const GET_NAMES_CGROUP_V2: Fact = Fact::new(
    "get_names_cgroup_v2_as_what_enforces",
    r"id=$(airlock run -d --memory 64M --pids 20 --cpus 0.5 -- sleep 80) || exit
airlock get --json $id
code=$?
airlock rm --force $id >&2 || exit
exit $code",
    Expect::Enforced(&[("memory", "cgroup_v2"), ("pids", "cgroup_v2"), ("cpu", "cgroup_v2")]),
);

const DISK_IS_BOUND_BY_A_LOOP_IMAGE: Fact = Fact::new(
    "get_names_a_loop_image_as_what_bounds_the_disk",
    r"id=$(airlock run -d --disk 64M -- sleep 80) || exit
airlock get --json $id
code=$?
airlock rm --force $id >&2 || exit
exit $code",
    Expect::Enforced(&[("disk", "loop_image")]),
);

const DISK_IS_BOUND_BY_QUOTA: Fact = Fact::new(
    "get_names_a_quota_as_what_bounds_the_disk",
    r"export AIRLOCK_HOME=/quota/airlock
id=$(airlock run -d --disk 64M -- sleep 80) || exit
airlock get --json $id
code=$?
airlock rm --force $id >&2 || exit
exit $code",
    Expect::Enforced(&[("disk", "quota")]),
);

const WHAT_IS_WRITTEN_IS_BOUND_BY_A_LOOP_IMAGE: Fact = Fact::new(
    "a_full_loop_image_is_told_to_the_program",
    "airlock run --disk 64M -- dd if=/dev/zero of=/var/tmp/big bs=1M count=128",
    Expect::Says(1, &["No space left on device"]),
);

const WHAT_IS_WRITTEN_IS_BOUND_BY_QUOTA: Fact = Fact::new(
    "a_full_quota_is_told_to_the_program",
    "AIRLOCK_HOME=/quota/airlock airlock run --disk 64M -- dd if=/dev/zero of=/var/tmp/big bs=1M count=128",
    Expect::Says(1, &["dd: error writing"]),
);

/// Floods, bombs and busy loops are left out: on an emulated processor they outlast the patience of the tests. The
/// facts above bound the same things.
const LIMITS_TESTS_PASS: Fact = Fact {
    name: "limits_tests_pass",
    seconds: 420,
    script: r"failed=0
for program in /suite/tests/black-box/*; do
    $program limits --test-threads=1 --skip attacks_ --skip flood --skip bomb --skip busy_loop --skip run_out || failed=1
done
exit $failed",
    expect: Expect::TestsPass,
};

/// By the freezer of version 2 where there is a group, by the guest where there is none.
const PAUSE_TESTS_PASS: Fact = Fact {
    name: "pause_tests_pass",
    seconds: 300,
    script: r"failed=0
for program in /suite/tests/black-box/*; do
    $program pause_freezes a_paused_sandbox --test-threads=1 || failed=1
done
exit $failed",
    expect: Expect::TestsPass,
};

/// Two tests are about version 1, which is not here.
const LINUX_TESTS_PASS: Fact = Fact {
    name: "the_kernel_enforces_what_root_asks",
    seconds: 300,
    script: r"/suite/tests/linux/0 cgroup:: disk:: --test-threads=1 --nocapture \
    --skip a_child_that_enters_by_itself_is_bound --skip an_ordinary_user_needs_a_group_of_their_own",
    expect: Expect::TestsPass,
};

/// Those that need no root, in a scope that the user manager delegates. It bears our name, because the user manager
/// of systemd 252 does not mark what it delegates.
const LINUX_TESTS_PASS_IN_A_SCOPE: Fact = Fact {
    name: "the_kernel_enforces_what_a_user_asks_in_a_scope",
    seconds: 300,
    script: r"systemd-run --user --scope -q -p Delegate=yes --unit=airlock-tests \
    /suite/tests/linux/0 --test-threads=1 --nocapture \
    a_process_over_its_memory a_fork_bomb a_spinning_process frozen_processes leftovers_are_killed a_second_group",
    expect: Expect::TestsPass,
};

/// Runs last: no sandbox and no control group of ours. systemd removes an empty scope a moment after its end.
const NOTHING_IS_LEFT: Fact = Fact::new(
    "nothing_is_left_behind",
    r#"left() {
    airlock ls --json | grep '{'
    find /sys/fs/cgroup -type d -name '*airlock*' ! -name '*airlock-test*' ! -name '*airlock-single*' 2>/dev/null
}
for try in {1..50}; do
    [ -z "$(left)" ] && exit
    sleep 0.2
done
left
exit 1"#,
    Expect::Says(0, &[]),
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_one_word_and_unique_for_its_user() {
        let mut seen = Vec::new();
        for case in facts().into_iter().chain(product()) {
            assert!(case.name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_'));
            let key = (case.user.login(), case.name);
            assert!(!seen.contains(&key), "{key:?} twice");
            seen.push(key);
        }
    }
}
