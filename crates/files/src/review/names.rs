//! Names of files as git writes them: plain where they are plain, else in double quotes with escapes.
//!
//! ```
//! use airlock_files::review::names::{quote, read};
//! assert_eq!(quote(b"src/main.rs"), "src/main.rs");
//! assert_eq!(quote(b"two\nlines"), r#""two\nlines""#);
//! assert_eq!(quote(b"\xff"), r#""\377""#);
//! assert_eq!(read(&quote(b"\x1b[2J")), Some(b"\x1b[2J".to_vec()));
//! ```

/// The name as git would write it. Nothing in it can move a cursor, hide or turn round text.
pub fn quote(name: &[u8]) -> String {
    let mut text = String::with_capacity(name.len() + 2);
    let mut is_plain = true;
    for chunk in name.utf8_chunks() {
        for c in chunk.valid().chars() {
            is_plain &= push(&mut text, c);
        }
        for byte in chunk.invalid() {
            is_plain = false;
            push_octal(&mut text, *byte);
        }
    }
    if is_plain { text } else { format!("\"{text}\"") }
}

/// What [`quote`] was given; `None` where it did not write this.
pub fn read(text: &str) -> Option<Vec<u8>> {
    let Some(quoted) = text.strip_prefix('"') else { return Some(text.as_bytes().to_vec()) };
    let mut bytes = quoted.strip_suffix('"')?.bytes();
    let mut name = Vec::new();
    while let Some(byte) = bytes.next() {
        if byte != b'\\' {
            name.push(byte);
            continue;
        }
        name.push(match bytes.next()? {
            b'n' => b'\n',
            b't' => b'\t',
            b'r' => b'\r',
            b'a' => 7,
            b'b' => 8,
            b'v' => 11,
            b'f' => 12,
            same @ (b'"' | b'\\') => same,
            first @ b'0'..=b'3' => {
                let digit = |byte: u8| matches!(byte, b'0'..=b'7').then(|| byte - b'0');
                let (second, third) = (digit(bytes.next()?)?, digit(bytes.next()?)?);
                (first - b'0') * 64 + second * 8 + third
            }
            _ => return None,
        });
    }
    Some(name)
}

/// Whether a character would do something else than be seen.
pub(super) fn is_unseen(c: char) -> bool {
    c.is_control()
        || matches!(u32::from(c), 0xad | 0x61c | 0x180e | 0x200b..=0x200f | 0x2028..=0x202e | 0x2060..=0x206f | 0xfeff | 0xfff9..=0xfffb | 0xe0000..=0xe0fff)
}

/// Adds one character; `false` if it had to be escaped.
fn push(text: &mut String, c: char) -> bool {
    let escape = match c {
        '"' => "\\\"",
        '\\' => "\\\\",
        '\n' => "\\n",
        '\t' => "\\t",
        '\r' => "\\r",
        '\x07' => "\\a",
        '\x08' => "\\b",
        '\x0b' => "\\v",
        '\x0c' => "\\f",
        c if is_unseen(c) => {
            c.encode_utf8(&mut [0; 4]).bytes().for_each(|byte| push_octal(text, byte));
            return false;
        }
        c => {
            text.push(c);
            return true;
        }
    };
    text.push_str(escape);
    false
}

fn push_octal(text: &mut String, byte: u8) {
    text.push('\\');
    for shift in [6, 3, 0] {
        text.push(char::from(b'0' + ((byte >> shift) & 7)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_name_can_be_read_back(name in proptest::collection::vec(any::<u8>(), 0..60)) {
            prop_assert_eq!(read(&quote(&name)), Some(name));
        }

        #[test]
        fn no_quoted_name_holds_what_a_terminal_obeys(name in proptest::collection::vec(any::<u8>(), 0..60)) {
            prop_assert!(!quote(&name).chars().any(is_unseen));
        }

        #[test]
        fn any_text_is_read_or_refused(text in "\\PC{0,40}") {
            let _ = read(&text);
        }
    }
}
