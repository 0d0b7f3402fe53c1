//! One spelling for all names that some file system takes for the same one.
//!
//! As git does it for HFS+ and NTFS (`is_hfs_dotgit`, `is_ntfs_dotgit` in its `utf8.c` and `path.c`), and as ext4 and f2fs do
//! it in case-folding directories (`utf8nfdicf` in the kernel's `fs/unicode`), which also skips what Unicode calls ignorable.

/// A name without case, invisible characters, and what NTFS cuts off.
pub(super) fn fold(name: &[u8]) -> Vec<u8> {
    let text = String::from_utf8_lossy(name);
    let seen = text.chars().filter(|c| !is_ignorable(*c));
    // Up and down again: `ſ` and `K` (the sign for Kelvin) become `s` and `k`.
    let folded: String = seen.flat_map(char::to_uppercase).flat_map(char::to_lowercase).collect();
    let named = folded.split(':').next().unwrap_or_default();
    let named = named.trim_end_matches(['.', ' ']);
    match named {
        // All but dots: `.`, `..` and `...` are no names that matter here, but must not become empty.
        "" => folded.into_bytes(),
        // How NTFS shortens a first name that begins with a dot.
        "git~1" => b".git".to_vec(),
        "gitmod~1" => b".gitmodules".to_vec(),
        other => other.as_bytes().to_vec(),
    }
}

/// The same of a plain name, without making room for it; `None` for a name that needs more than lower case.
pub(super) fn fold_plain<'b>(name: &[u8], room: &'b mut [u8]) -> Option<&'b [u8]> {
    let is_plain = |byte: &u8| byte.is_ascii() && !byte.is_ascii_control() && !matches!(byte, b':' | b'~');
    if !name.iter().all(is_plain) || matches!(name.last(), None | Some(b'.' | b' ')) {
        return None;
    }
    let room = room.get_mut(..name.len())?;
    room.copy_from_slice(name);
    room.make_ascii_lowercase();
    Some(room)
}

/// Unicode's `Default_Ignorable_Code_Point`, and what HFS+ ignores besides.
fn is_ignorable(c: char) -> bool {
    matches!(u32::from(c),
        0xad | 0x34f | 0x61c | 0x115f..=0x1160 | 0x17b4..=0x17b5 | 0x180b..=0x180f | 0x200b..=0x200f
        | 0x202a..=0x202e | 0x2060..=0x206f | 0x3164 | 0xfe00..=0xfe0f | 0xfeff | 0xffa0 | 0xfff0..=0xfff8
        | 0x1bca0..=0x1bca3 | 0x1d173..=0x1d17a | 0xe0000..=0xe0fff)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_folded_name_is_its_own_folding(name in "\\PC{0,20}") {
            let once = fold(name.as_bytes());
            // Cutting at `:` may lay bare what is cut next, as it would on NTFS.
            prop_assert_eq!(fold(&fold(&once)), fold(&once));
        }

        #[test]
        fn plain_names_fold_alike_both_ways(name in "[ -~]{0,20}") {
            let mut room = [0u8; 64];
            if let Some(folded) = fold_plain(name.as_bytes(), &mut room) {
                prop_assert_eq!(folded, fold(name.as_bytes()));
            }
        }

        #[test]
        fn no_name_becomes_empty(name in proptest::collection::vec(any::<u8>(), 1..40)) {
            prop_assume!(String::from_utf8_lossy(&name).chars().any(|c| !is_ignorable(c)));
            prop_assert!(!fold(&name).is_empty());
        }
    }
}
