//! How Go prints values: histories have that form.

/// A text as `%q` prints it.
pub(super) fn quoted(text: &str) -> String {
    let mut made = String::from("\"");
    for char in text.chars() {
        match char {
            '"' => made.push_str("\\\""),
            '\\' => made.push_str("\\\\"),
            '\n' => made.push_str("\\n"),
            '\t' => made.push_str("\\t"),
            '\r' => made.push_str("\\r"),
            char if char.is_control() => made.push_str(&format!("\\x{:02x}", u32::from(char))),
            char => made.push(char),
        }
    }
    made.push('"');
    made
}

/// A list as `%q` prints it.
pub(super) fn quoted_list(list: &[String]) -> String {
    let parts: Vec<String> = list.iter().map(|text| quoted(text)).collect();
    format!("[{}]", parts.join(" "))
}

/// A list as `%v` prints it.
pub(super) fn plain_list(list: &[String]) -> String {
    format!("[{}]", list.join(" "))
}

/// A small number as `%q` prints it: as a character.
pub(super) fn quoted_number(number: u32) -> String {
    match char::from_u32(number) {
        Some(char) if char.is_control() => format!("'\\x{number:02x}'"),
        Some(char) => format!("'{char}'"),
        None => "'\u{fffd}'".to_owned(),
    }
}
