//! Lines of `KEY = VALUE`, as npm and pip write them. Pure.

/// Every key with its value, in order; a key below `[SECTION]` is `SECTION.KEY`. A line that begins with a blank goes on with
/// the value of the line before.
pub(super) fn pairs(text: &str) -> Vec<(String, String)> {
    let mut pairs: Vec<(String, String)> = Vec::new();
    let mut section = String::new();
    for line in text.trim_start_matches('\u{feff}').lines() {
        let bare = line.trim();
        if bare.is_empty() || bare.starts_with(['#', ';']) {
            continue;
        }
        if line.starts_with([' ', '\t'])
            && let Some((_, value)) = pairs.last_mut()
        {
            value.push(' ');
            value.push_str(bare);
            continue;
        }
        if let Some(name) = bare.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            section = format!("{}.", name.trim());
            continue;
        }
        let Some((key, value)) = bare.split_once('=') else { continue };
        let value = value.trim();
        let unquoted = value.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).unwrap_or(value);
        pairs.push((format!("{section}{}", key.trim()), unquoted.to_owned()));
    }
    pairs
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn sections_comments_quotes_and_long_values_are_understood() {
        let text =
            "# c\nkey = \"v\"\n[global]\n; c\nindex-url = a\nextra-index-url =\n    b\n    c\nnothing\n";
        let expected = [("key", "v"), ("global.index-url", "a"), ("global.extra-index-url", " b c")];
        assert_eq!(pairs(text), expected.map(|(key, value)| (key.to_owned(), value.to_owned())));
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "[\\PC\n\t]{0,200}") {
            let _ = pairs(&text);
        }
    }
}
