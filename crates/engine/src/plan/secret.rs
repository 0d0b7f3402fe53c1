//! Whether a file with the name of a secret holds one. What is looked at is the host's: a wrong guess hides too much, or
//! shows what has no secret in it.

use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags};
use std::{
    ffi::OsStr,
    fs::{self, File},
    io::Read as _,
    os::{
        fd::{AsRawFd as _, OwnedFd},
        unix::ffi::OsStrExt as _,
    },
    path::{Path, PathBuf},
};

/// What is read of a file at most.
const MOST_READ: u64 = 1 << 20;

/// Whether a file is hidden. Certificates are public: of files in PEM, those with a private key.
pub(super) fn is_secret(folder: &OwnedFd, name: &OsStr) -> bool {
    let is_pem = name.as_bytes().to_ascii_lowercase().ends_with(b".pem");
    if !is_pem {
        return true;
    }
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
    let Ok(file) = rustix::fs::openat(folder, name, flags, Mode::empty()) else { return true };
    let is_plain = rustix::fs::fstat(&file).is_ok_and(|stat| {
        FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
            && u64::try_from(stat.st_size).is_ok_and(|size| size < MOST_READ)
    });
    let mut text = Vec::new();
    let is_read = is_plain && File::from(file).take(MOST_READ).read_to_end(&mut text).is_ok();
    !is_read || !is_public(&text)
}

/// Whether text in PEM has certificates or public keys in it, and nothing else.
fn is_public(text: &[u8]) -> bool {
    const MARK: &[u8] = b"-----BEGIN ";
    let mut marks = text.windows(MARK.len()).enumerate().filter(|(_, window)| *window == MARK).peekable();
    marks.peek().is_some()
        && marks.all(|(at, _)| {
            let what = text.get(at + MARK.len()..).unwrap_or_default();
            PUBLIC.iter().any(|known| what.starts_with(known.as_bytes()))
        })
}

/// What is public in PEM (RFC 7468).
const PUBLIC: [&str; 7] = [
    "CERTIFICATE",
    "TRUSTED CERTIFICATE",
    "X509 CERTIFICATE",
    "X509 CRL",
    "PUBLIC KEY",
    "RSA PUBLIC KEY",
    "DH PARAMETERS",
];

/// Whether a directory is an environment of Python, which some call `.env`.
pub(super) fn is_environment(folder: &OwnedFd, name: &OsStr) -> bool {
    rustix::fs::statat(folder, Path::new(name).join("pyvenv.cfg"), AtFlags::SYMLINK_NOFOLLOW).is_ok()
}

/// What a link with the name of a secret leads to, as a path below the directory: the link itself cannot be covered. One that
/// leads out of the directory leads nowhere inside.
pub(super) fn target(directory: &OwnedFd, link: &Path) -> Option<PathBuf> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let opened = rustix::fs::openat2(directory, link, flags, Mode::empty(), resolve).ok()?;
    let path = |fd: &OwnedFd| fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd())).ok();
    Some(path(&opened)?.strip_prefix(path(directory)?).ok()?.to_owned())
        .filter(|path| !path.as_os_str().is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn certificates_are_public_and_private_keys_are_not() {
        assert!(is_public(b"# x\n-----BEGIN CERTIFICATE-----\nMII\n-----END CERTIFICATE-----\n"));
        assert!(is_public(b"-----BEGIN PUBLIC KEY-----"));
        let both =
            b"-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n-----BEGIN EC PRIVATE KEY-----\n";
        assert!(!is_public(both));
        assert!(!is_public(b"-----BEGIN ENCRYPTED PRIVATE KEY-----"));
        assert!(!is_public(b"something else"));
    }

    proptest! {
        #[test]
        fn any_bytes_are_judged_and_a_private_key_is_never_public(
            before in proptest::collection::vec(any::<u8>(), 0..200),
            after in proptest::collection::vec(any::<u8>(), 0..50),
        ) {
            let mut text = before;
            text.extend_from_slice(b"-----BEGIN RSA PRIVATE KEY-----");
            text.extend(after);
            prop_assert!(!is_public(&text));
        }
    }
}
