//! Copying a file that is mostly holes.

use std::fs::File;
use std::io;

use rustix::fs::{SeekFrom, copy_file_range, ftruncate, ioctl_ficlone, seek};
use rustix::io::Errno;

/// Makes `to`, which is empty, the same as `from`: by sharing its blocks where the file system can, else by copying its data
/// and leaving its holes.
pub fn sparse(from: &File, to: &File) -> io::Result<()> {
    if ioctl_ficlone(to, from).is_ok() {
        return Ok(());
    }
    let length = from.metadata()?.len();
    ftruncate(to, length)?;
    let mut at = 0;
    while let Some((start, end)) = next_data(from, at)? {
        copy_range(from, to, start, end)?;
        at = end;
    }
    Ok(())
}

fn next_data(file: &File, at: u64) -> io::Result<Option<(u64, u64)>> {
    let start = match seek(file, SeekFrom::Data(at)) {
        Ok(start) => start,
        Err(Errno::NXIO) => return Ok(None),
        Err(other) => return Err(other.into()),
    };
    Ok(Some((start, seek(file, SeekFrom::Hole(start))?)))
}

fn copy_range(from: &File, to: &File, start: u64, end: u64) -> io::Result<()> {
    let (mut here, mut there) = (start, start);
    while here < end {
        let left = usize::try_from(end - here).unwrap_or(usize::MAX);
        match copy_file_range(from, Some(&mut here), to, Some(&mut there), left) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(_) => {}
            // Two file systems of different kinds: through memory.
            Err(Errno::XDEV | Errno::OPNOTSUPP | Errno::INVAL | Errno::NOSYS) => {
                return copy_bytes(from, to, here, end);
            }
            Err(other) => return Err(other.into()),
        }
    }
    Ok(())
}

fn copy_bytes(from: &File, to: &File, start: u64, end: u64) -> io::Result<()> {
    use std::os::unix::fs::FileExt;
    let mut buffer = vec![0_u8; 256 << 10];
    let mut at = start;
    while at < end {
        let want = usize::try_from(end - at).unwrap_or(usize::MAX).min(buffer.len());
        let Some(part) = buffer.get_mut(..want) else { break };
        from.read_exact_at(part, at)?;
        to.write_all_at(part, at)?;
        at = at.saturating_add(u64::try_from(want).unwrap_or(u64::MAX));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{FileExt, MetadataExt};

    use super::*;

    #[test]
    fn data_is_copied_and_holes_stay_holes() {
        let (from, to) = (tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap());
        from.set_len(1 << 30).unwrap();
        from.write_all_at(b"first", 0).unwrap();
        from.write_all_at(b"middle", 700 << 20).unwrap();

        sparse(&from, &to).unwrap();

        let mut found = [0_u8; 6];
        to.read_exact_at(&mut found, 700 << 20).unwrap();
        assert_eq!(&found, b"middle");
        assert_eq!(to.metadata().unwrap().len(), 1 << 30);
        assert!(to.metadata().unwrap().blocks() * 512 < 1 << 20);
    }

    #[test]
    fn bytes_through_memory_are_the_same() {
        let (from, to) = (tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap());
        let written: Vec<u8> = (0..600_000_u32).map(|n| n.to_le_bytes()[0]).collect();
        from.write_all_at(&written, 0).unwrap();

        copy_bytes(&from, &to, 0, 600_000).unwrap();

        let mut found = vec![0_u8; 600_000];
        to.read_exact_at(&mut found, 0).unwrap();
        assert_eq!(found, written);
    }
}
