//! What a machine boots into: an archive in the format `newc` of cpio (Documentation/driver-api/early-userspace/buffer-format.rst).
//! Pure, and the same bytes for the same files.
//!
//! ```
//! use airlock_backends::microvm::initramfs::Archive;
//! let mut archive = Archive::default();
//! archive.directory("dev");
//! archive.file("init", 0o755, b"#!/bin/sh\n");
//! assert_eq!(archive.finish().len() % 512, 0);
//! ```

/// An archive that is being written.
#[derive(Debug, Default)]
pub struct Archive {
    bytes: Vec<u8>,
    entries: u32,
}

const DIRECTORY: u32 = 0o040_755;
const FILE: u32 = 0o100_000;
/// What ends an archive.
const LAST: &str = "TRAILER!!!";

/// Directories that the first program mounts something at.
const PLACES: [&str; 5] = ["dev", "proc", "sys", "new", "modules"];

/// The kernel's modules, each kind in the order it is loaded in.
#[derive(Debug, Clone, Copy)]
pub struct Modules<'a> {
    /// Those of every machine.
    pub usual: &'a [(String, Vec<u8>)],
    /// Those of one with disks.
    pub for_disks: &'a [(String, Vec<u8>)],
    /// Those of one whose ports are a vsock's.
    pub for_vsock: &'a [(String, Vec<u8>)],
}

/// The archive of a machine: the carrier as `/init`, the guest, and the kernel's modules.
#[must_use]
pub fn of_machine(carrier: &[u8], guest: &[u8], modules: Modules<'_>) -> Vec<u8> {
    let mut archive = Archive::default();
    PLACES.iter().for_each(|place| archive.directory(place));
    archive.file("init", 0o755, carrier);
    archive.file("guest", 0o755, guest);
    for (file, modules) in
        [("order", modules.usual), ("disk", modules.for_disks), ("vsock", modules.for_vsock)]
    {
        let order: String = modules.iter().map(|(name, _)| format!("{name}\n")).collect();
        archive.file(&format!("modules/{file}"), 0o644, order.as_bytes());
        for (name, module) in modules {
            archive.file(&format!("modules/{name}"), 0o644, module);
        }
    }
    archive.finish()
}

impl Archive {
    /// Adds an empty directory; its parent comes before it.
    pub fn directory(&mut self, path: &str) {
        self.entry(path, DIRECTORY, &[]);
    }

    /// Adds a file with this mode; its directory comes before it.
    pub fn file(&mut self, path: &str, mode: u32, content: &[u8]) {
        self.entry(path, FILE | mode, content);
    }

    /// The whole archive.
    #[must_use]
    pub fn finish(mut self) -> Vec<u8> {
        self.entry(LAST, 0, &[]);
        self.pad(512);
        self.bytes
    }

    fn entry(&mut self, path: &str, mode: u32, content: &[u8]) {
        self.entries += 1;
        let number = |length: usize| u32::try_from(length).unwrap_or(u32::MAX);
        let links = if mode == DIRECTORY { 2 } else { 1 };
        let (size, name) = (number(content.len()), number(path.len() + 1));
        // inode, mode, user, group, links, time, size, device (2), node (2), name, checksum
        let fields = [self.entries, mode, 0, 0, links, 0, size, 0, 0, 0, 0, name, 0];
        self.bytes.extend_from_slice(b"070701");
        for field in fields {
            self.bytes.extend_from_slice(format!("{field:08x}").as_bytes());
        }
        self.bytes.extend_from_slice(path.as_bytes());
        self.bytes.push(0);
        self.pad(4);
        self.bytes.extend_from_slice(content);
        self.pad(4);
    }

    fn pad(&mut self, to: usize) {
        let length = self.bytes.len().next_multiple_of(to);
        self.bytes.resize(length, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_a_header_a_name_and_its_content_in_fours() {
        let mut archive = Archive::default();
        archive.file("a", 0o644, b"hello");
        let bytes = archive.finish();

        let header = "070701\
            00000001000081a400000000000000000000000100000000\
            00000005000000000000000000000000000000000000000200000000";
        assert_eq!(&bytes[..110], header.as_bytes());
        assert_eq!(&bytes[110..120], b"a\0hello\0\0\0");
        assert_eq!(&bytes[120..126], b"070701");
        assert!(bytes.windows(10).any(|window| window == b"TRAILER!!!"));
    }

    #[test]
    fn a_machine_loads_its_modules_in_their_order() {
        let usual = [("b.ko".to_owned(), b"B".to_vec()), ("a.ko".to_owned(), b"A".to_vec())];
        let for_disks = [("d.ko".to_owned(), b"D".to_vec())];
        let modules = Modules { usual: &usual, for_disks: &for_disks, for_vsock: &[] };
        let bytes = of_machine(b"carrier", b"guest", modules);
        let text = String::from_utf8_lossy(&bytes);

        assert!(text.contains("modules/order\0"), "{text}");
        assert!(text.contains("b.ko\na.ko\n"), "{text}");
        assert!(text.contains("modules/disk\0"), "{text}");
        assert_eq!(bytes, of_machine(b"carrier", b"guest", modules));
    }
}
