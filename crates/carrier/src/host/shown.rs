//! What of the served files lies over a root on disks: everything that is mounted below this process's root, but for what a machine has
//! of its own. Pure but for one look.

use airlock_protocol::carry::Shown;
use std::{
    fs, io,
    os::unix::ffi::OsStrExt as _,
    path::{Path, PathBuf},
};

/// What every machine makes itself.
const OWN: [&str; 3] = ["/proc", "/sys", "/dev"];

/// Looks at the mounts of this process.
pub(super) fn look() -> io::Result<Vec<Shown>> {
    let mounts = fs::read("/proc/self/mountinfo")?;
    let mut shown = Vec::new();
    for Mounted { path, kind } in topmost(parse(&mounts)) {
        // Who serves such a mount may not do so yet: it must not be touched. It is a directory.
        let is_directory = kind.starts_with("fuse") || fs::symlink_metadata(&path)?.is_dir();
        let path = path.into_os_string().into_string();
        let path = path.map_err(|path| io::Error::other(format!("{} is not UTF-8", path.display())))?;
        shown.push(Shown { path, is_directory });
    }
    Ok(shown)
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Mounted {
    path: PathBuf,
    kind: String,
}

/// Lines such as `36 35 98:0 /root /place rw,noatime master:1 - ext4 /dev/root rw` (proc_pid_mountinfo(5)).
fn parse(mounts: &[u8]) -> Vec<Mounted> {
    let one = |line: &[u8]| {
        let mut words = line.split(|byte| *byte == b' ');
        let path = unescaped(words.nth(4)?);
        let kind = String::from_utf8_lossy(words.skip_while(|word| *word != b"-").nth(1)?).into_owned();
        Some(Mounted { path: PathBuf::from(std::ffi::OsStr::from_bytes(&path)), kind })
    };
    mounts.split(|byte| *byte == b'\n').filter_map(one).collect()
}

/// Blanks and backslashes are told as `\040`.
fn unescaped(word: &[u8]) -> Vec<u8> {
    let (mut plain, mut rest) = (Vec::new(), word);
    while let [first, more @ ..] = rest {
        rest = more;
        let digits = more.first_chunk::<3>().filter(|digits| *first == b'\\' && digits.iter().all(is_octal));
        match digits {
            None => plain.push(*first),
            Some([a, b, c]) => {
                let value = |digit: &u8| u32::from(digit - b'0');
                plain.push(u8::try_from(value(a) * 64 + value(b) * 8 + value(c)).unwrap_or(b'?'));
                rest = more.get(3..).unwrap_or_default();
            }
        }
    }
    plain
}

fn is_octal(digit: &u8) -> bool {
    (b'0'..b'8').contains(digit)
}

/// Those that lie in no other, without the root and what machines have themselves, each once.
fn topmost(mut mounted: Vec<Mounted>) -> Vec<Mounted> {
    let is_own = |path: &Path| path == Path::new("/") || OWN.iter().any(|own| path.starts_with(own));
    mounted.retain(|mounted| !is_own(&mounted.path));
    mounted.sort();
    let mut kept: Vec<Mounted> = Vec::new();
    for one in mounted {
        if !kept.iter().any(|above| one.path.starts_with(&above.path)) {
            kept.push(one);
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MOUNTS: &str = "\
21 20 0:1 / / rw - overlay overlay rw
22 21 0:2 / /proc rw,nosuid shared:1 - proc proc rw
23 22 0:3 / /proc/sys ro - proc proc ro
24 21 0:4 /x /home/a\\040b rw - ext4 /dev/root rw
25 24 0:5 / /home/a\\040b/secret ro - tmpfs none ro
26 21 0:6 / /etc/hosts rw - tmpfs none rw
27 21 0:7 / /etc/hosts rw - tmpfs none rw
28 21 0:8 / /served rw - fuse.airlock airlock rw
29 21 0:9 / /devices rw - ext4 x rw
";

    #[test]
    fn what_is_mounted_below_the_root_is_told_once_and_only_at_its_top() {
        let told: Vec<(String, String)> = topmost(parse(MOUNTS.as_bytes()))
            .into_iter()
            .map(|mounted| (mounted.path.display().to_string(), mounted.kind))
            .collect();

        let expected = [
            ("/devices", "ext4"),
            ("/etc/hosts", "tmpfs"),
            ("/home/a b", "ext4"),
            ("/served", "fuse.airlock"),
        ];
        assert_eq!(told, expected.map(|(path, kind)| (path.to_owned(), kind.to_owned())));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = topmost(parse(&bytes));
        }
    }
}
