//! Numbers of archives' headers. Pure and total.

/// A field of a header: octal digits between spaces and zeros, or GNU's base 256.
pub fn octal(field: &[u8]) -> Option<u64> {
    if let Some((first, rest)) = field.split_first().filter(|(first, _)| **first & 0x80 != 0) {
        let step = |so_far: u64, byte: &u8| so_far.checked_mul(256).map(|big| big | u64::from(*byte));
        return rest.iter().try_fold(u64::from(first & 0x7f), step);
    }
    let is_blank = |byte: &u8| matches!(byte, b' ' | 0);
    let start = field.iter().position(|byte| !is_blank(byte)).unwrap_or(field.len());
    let text = field.get(start..).unwrap_or_default().split(is_blank).next().unwrap_or_default();
    let step = |so_far: u64, byte: &u8| match byte {
        b'0'..=b'7' => so_far.checked_mul(8).map(|big| big | u64::from(byte - b'0')),
        _ => None,
    };
    text.iter().try_fold(0, step)
}

/// A number of an extended header.
pub fn decimal(text: &[u8]) -> Option<u64> {
    let is_number = !text.is_empty() && text.iter().all(u8::is_ascii_digit);
    std::str::from_utf8(text).ok().filter(|_| is_number)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_octal_or_of_base_256() {
        for (field, wanted) in [
            (&b"0000644\0"[..], Some(0o644)),
            (b"   644 \0", Some(0o644)),
            (b"\0\0 17\0\0", Some(0o17)),
            (b"\0\0\0\0", Some(0)),
            (&[0x80, 0, 1, 0], Some(256)),
            (b"9\0", None),
            (b"77777777777777777777777", None),
            (&[0xff; 12], None),
        ] {
            assert_eq!(octal(field), wanted, "{field:?}");
        }
        assert_eq!((decimal(b"12"), decimal(b""), decimal(b"+1")), (Some(12), None, None));
    }
}
