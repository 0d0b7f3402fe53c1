//! The mounts below the shown directories, from `/proc/self/mountinfo`.
//!
//! ```ignore
//! let mounts = parse(b"22 1 8:1 / /var/lib\\040x rw - ext4 /dev/sda1 rw\n");
//! assert!(mounts[0].is_local);
//! ```

use std::{
    ffi::OsString,
    os::unix::ffi::OsStringExt,
    path::{Path, PathBuf},
};

/// One mount.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Mount {
    /// Where, relative to the root directory that was asked about.
    pub(super) at: PathBuf,
    /// Whether its files are on this machine: others (network, FUSE, kernel file systems) are never shown.
    pub(super) is_local: bool,
}

/// File systems whose files are this machine's own.
const LOCAL: &[&[u8]] = &[
    b"ext2",
    b"ext3",
    b"ext4",
    b"xfs",
    b"btrfs",
    b"f2fs",
    b"bcachefs",
    b"zfs",
    b"jfs",
    b"nilfs2",
    b"reiserfs",
    b"tmpfs",
    b"ramfs",
    b"squashfs",
    b"erofs",
    b"overlay",
    b"iso9660",
    b"vfat",
];

/// Every mount, in the kernel's order. A line that is not understood is left out: what is mounted there is then neither
/// scanned (the scan crosses no mount) nor shown by an overlay.
pub(super) fn parse(text: &[u8]) -> Vec<Mount> {
    text.split(|byte| *byte == b'\n').filter_map(parse_line).collect()
}

/// The mounts strictly below one of `tops` (names in `root`), one per place, sorted; `at` becomes relative to `root`.
pub(super) fn below(mounts: Vec<Mount>, root: &Path, tops: &[PathBuf]) -> Vec<Mount> {
    let mut found: Vec<Mount> = Vec::new();
    for mount in mounts {
        let Ok(at) = mount.at.strip_prefix(root) else { continue };
        if !tops.iter().any(|top| at.starts_with(top)) {
            continue;
        }
        // A later mount at the same place covers the earlier one.
        found.retain(|earlier| earlier.at != at);
        found.push(Mount { at: at.to_owned(), is_local: mount.is_local });
    }
    found.sort();
    found
}

fn parse_line(line: &[u8]) -> Option<Mount> {
    let mut fields = line.split(|byte| *byte == b' ');
    let at = fields.nth(4)?;
    let kind = fields.skip_while(|field| *field != b"-").nth(1)?;
    at.starts_with(b"/").then(|| Mount {
        at: PathBuf::from(OsString::from_vec(unescape(at))),
        is_local: LOCAL.contains(&kind),
    })
}

/// The kernel writes space, tab, newline and backslash as a backslash and three octal digits.
fn unescape(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((byte, after)) = rest.split_first() {
        match (byte, after) {
            (b'\\', [a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', tail @ ..]) => {
                out.push((a & 3) << 6 | (b & 7) << 3 | (c & 7));
                rest = tail;
            }
            _ => {
                out.push(*byte);
                rest = after;
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn mounts_below_the_shown_directories_are_found_by_what_they_are() {
        let text = b"22 1 8:1 / / rw - ext4 /dev/sda1 rw\n\
            23 22 8:2 / /var/my\\040data rw,relatime shared:1 master:2 - xfs /dev/sda2 rw\n\
            24 22 0:9 / /opt/share rw - nfs4 server:/x rw\n\
            25 22 0:9 / /home rw - ext4 /dev/sdb rw\n\
            26 22 0:9 / /opt/share rw - fuse.sshfs x rw\nnonsense\n";

        let found = below(parse(text), Path::new("/"), &["var".into(), "opt".into()]);

        let expected = vec![
            Mount { at: "opt/share".into(), is_local: false },
            Mount { at: "var/my data".into(), is_local: true },
        ];
        assert_eq!(found, expected);
    }

    proptest! {
        #[test]
        fn any_bytes_are_parsed(text in proptest::collection::vec(any::<u8>(), 0..256)) {
            let _ = parse(&text);
            prop_assert!(unescape(&text).len() <= text.len());
        }
    }
}
