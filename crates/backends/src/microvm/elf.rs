//! A kernel out of the file that a boot loader would unpack (Documentation/arch/x86/boot.rst), for a monitor that loads ELF files only.
//! Pure and total.
//!
//! Debian's cloud kernel is packed by LZ4 in its old format: pieces, each with its length before it, and the length of the whole behind
//! the last one.

/// Longest kernel that is unpacked.
const MOST: usize = 256 << 20;
const ELF: &[u8] = b"\x7fELF";
const LZ4: &[u8] = &[0x02, 0x21, 0x4c, 0x18];
/// Where the header of a kernel says how long its first part is, what it is, and where the packed one lies.
const SETUP_SECTORS: usize = 0x1f1;
const MAGIC: usize = 0x202;
const PAYLOAD: usize = 0x248;

/// Whether it needs no unpacking.
#[must_use]
pub fn is_elf(image: &[u8]) -> bool {
    image.starts_with(ELF)
}

/// The kernel in such a file; nothing where it is packed in another way, or is none.
#[must_use]
pub fn unpack(image: &[u8]) -> Option<Vec<u8>> {
    if image.get(MAGIC..MAGIC + 4)? != b"HdrS" {
        return None;
    }
    let sectors = match *image.get(SETUP_SECTORS)? {
        0 => 4,
        some => usize::from(some),
    };
    let start = (sectors + 1) * 512 + word(image, PAYLOAD)?;
    let payload = image.get(start..)?.get(..word(image, PAYLOAD + 4)?)?;
    let mut pieces = payload.strip_prefix(LZ4)?;
    let mut unpacked = Vec::new();
    while pieces.len() > 4 {
        let length = word(pieces, 0)?;
        lz4(pieces.get(4..4 + length)?, &mut unpacked)?;
        pieces = pieces.get(4 + length..)?;
    }
    (word(pieces, 0)? == unpacked.len() && is_elf(&unpacked)).then_some(unpacked)
}

/// One piece: runs of letters and of what was there before (lz4_Block_format.md).
fn lz4(mut piece: &[u8], into: &mut Vec<u8>) -> Option<()> {
    let begin = into.len();
    while let Some((&token, rest)) = piece.split_first() {
        piece = rest;
        let letters = length(usize::from(token >> 4), &mut piece)?;
        into.extend_from_slice(piece.get(..letters)?);
        piece = piece.get(letters..)?;
        if piece.is_empty() {
            return Some(());
        }
        let back = usize::from(u16::from_le_bytes(*piece.first_chunk()?));
        piece = piece.get(2..)?;
        let count = length(usize::from(token & 0xf), &mut piece)? + 4;
        let from = into.len().checked_sub(back).filter(|from| back > 0 && *from >= begin)?;
        if into.len() + count > MOST {
            return None;
        }
        // What is repeated may be what is just being written.
        for place in from..from + count {
            into.push(*into.get(place)?);
        }
    }
    Some(())
}

/// A length that goes on as long as its bytes are full.
fn length(mut known: usize, piece: &mut &[u8]) -> Option<usize> {
    if known == 15 {
        loop {
            let (&more, rest) = piece.split_first()?;
            *piece = rest;
            known += usize::from(more);
            if more != u8::MAX {
                break;
            }
        }
    }
    Some(known)
}

fn word(bytes: &[u8], at: usize) -> Option<usize> {
    let word = bytes.get(at..at.checked_add(4)?)?.first_chunk()?;
    usize::try_from(u32::from_le_bytes(*word)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn packed(pieces: &[&[u8]], length: u32) -> Vec<u8> {
        let mut payload = LZ4.to_vec();
        for piece in pieces {
            payload.extend(u32::try_from(piece.len()).unwrap().to_le_bytes());
            payload.extend(*piece);
        }
        payload.extend(length.to_le_bytes());
        let mut image = vec![0; 1024];
        image[SETUP_SECTORS] = 1;
        image[MAGIC..MAGIC + 4].copy_from_slice(b"HdrS");
        image[PAYLOAD + 4..PAYLOAD + 8].copy_from_slice(&u32::try_from(payload.len()).unwrap().to_le_bytes());
        image.extend(payload);
        image
    }

    #[test]
    fn a_packed_kernel_is_unpacked() {
        // Four letters and then, from two places back, six more; another piece of one letter.
        let pieces: [&[u8]; 2] = [b"\x42\x7fELF\x02\x00", b"\x10x"];
        assert_eq!(unpack(&packed(&pieces, 11)).unwrap(), b"\x7fELFLFLFLFx");
        assert_eq!(unpack(&packed(&pieces, 12)), None);
        assert_eq!(unpack(&packed(&[b"\x42\x7fELF\x09\x00"], 10)), None);
        assert_eq!(unpack(b"MZ"), None);
    }

    #[test]
    fn a_long_run_has_a_long_length() {
        let mut piece = b"\x4f\x7fELF\x01\x00".to_vec();
        piece.extend([255, 10]);
        let unpacked = unpack(&packed(&[&piece], 4 + 15 + 255 + 10 + 4)).unwrap();
        assert_eq!(unpacked[4..], [b'F'; 284]);
    }

    proptest! {
        #[test]
        fn whatever_a_file_holds_nothing_breaks(piece in prop::collection::vec(any::<u8>(), 0..400), cut in 0usize..1500) {
            let image = packed(&[&piece], 7);
            drop(unpack(&image));
            drop(unpack(image.get(..cut).unwrap_or(&image)));
        }
    }
}
