//! As much of DER as certificates need here. Total: any bytes are read, what is not understood is nothing.

/// The content of the element of this tag that `bytes` begin with, and what follows it.
pub(super) fn element(bytes: &[u8], tag: u8) -> Option<(&[u8], &[u8])> {
    let (first, content, rest) = next(bytes)?;
    (first == tag).then_some((content, rest))
}

/// The tag and content of the element that `bytes` begin with, and what follows it.
pub(super) fn next(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let [tag, length, rest @ ..] = bytes else { return None };
    if *length < 0x80 {
        let (content, rest) = rest.split_at_checked(usize::from(*length))?;
        return Some((*tag, content, rest));
    }
    let (digits, rest) = rest.split_at_checked(usize::from(*length & 0x7f))?;
    if digits.is_empty() || digits.len() > 4 {
        return None;
    }
    let length = digits.iter().fold(0usize, |length, digit| length << 8 | usize::from(*digit));
    let (content, rest) = rest.split_at_checked(length)?;
    Some((*tag, content, rest))
}

/// An element of this tag and content.
pub(super) fn write(tag: u8, content: &[u8]) -> Vec<u8> {
    let length = content.len().to_be_bytes();
    let digits: Vec<u8> = length.iter().copied().skip_while(|digit| *digit == 0).collect();
    let mut out = vec![tag];
    match (u8::try_from(content.len()), u8::try_from(digits.len())) {
        (Ok(short), _) if short < 0x80 => out.push(short),
        (_, count) => {
            out.push(0x80 | count.unwrap_or(8));
            out.extend_from_slice(&digits);
        }
    }
    out.extend_from_slice(content);
    out
}
