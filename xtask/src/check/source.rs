//! Rust text reduced to its code: comments and the insides of literals become nothing, so that a search for a word
//! finds code only.
//!
//! ```ignore
//! assert_eq!(code_only("f(\"unsafe\"); // unsafe"), "f(\"\"); ");
//! ```

/// The text without comments and without what stands inside string and character literals. Lines stay lines.
pub(crate) fn code_only(text: &str) -> String {
    let mut code = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let skipped = skip(rest, code.chars().next_back());
        if skipped == 0 {
            code.push(first);
            rest = rest.get(first.len_utf8()..).unwrap_or_default();
            continue;
        }
        let (gone, after) = rest.split_at(skipped);
        code.push_str(if gone.starts_with('/') { "" } else { "\"\"" });
        code.extend(gone.chars().filter(|c| *c == '\n'));
        rest = after;
    }
    code
}

/// Length in bytes of the comment or literal that begins here; 0 if none does.
fn skip(rest: &str, before: Option<char>) -> usize {
    if rest.starts_with("//") {
        return rest.find('\n').unwrap_or(rest.len());
    }
    if rest.starts_with("/*") {
        return block_comment(rest);
    }
    if rest.starts_with('"') {
        return 1 + closing_quote(rest.get(1..).unwrap_or_default());
    }
    let inside_a_word = before.is_some_and(|c| c.is_alphanumeric() || c == '_');
    if rest.starts_with('r') && (!inside_a_word || before == Some('b')) {
        return raw_string(rest);
    }
    if rest.starts_with('\'') {
        return character(rest);
    }
    0
}

fn block_comment(rest: &str) -> usize {
    let mut depth = 0usize;
    for (at, _) in rest.char_indices() {
        let here = rest.get(at..).unwrap_or_default();
        if here.starts_with("/*") {
            depth += 1;
        } else if here.starts_with("*/") {
            depth = depth.saturating_sub(1);
            if depth == 0 {
                return at + 2;
            }
        }
    }
    rest.len()
}

/// Length up to and with the quote that ends a string.
fn closing_quote(inside: &str) -> usize {
    let mut escaped = false;
    for (at, c) in inside.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return at + 1,
            _ => {}
        }
    }
    inside.len()
}

fn raw_string(rest: &str) -> usize {
    let after = rest.get(1..).unwrap_or_default();
    let hashes = after.len() - after.trim_start_matches('#').len();
    let Some(inside) = after.get(hashes..).and_then(|text| text.strip_prefix('"')) else { return 0 };
    let end = format!("\"{}", "#".repeat(hashes));
    inside.find(&end).map_or(rest.len(), |at| 2 + hashes + at + end.len())
}

/// Length of a character literal; 0 for a lifetime.
fn character(rest: &str) -> usize {
    let mut chars = rest.char_indices().skip(1);
    match (chars.next(), chars.next()) {
        (Some((_, '\\')), Some((at, _))) => {
            let after = at + 1;
            rest.get(after..).and_then(|text| text.find('\'')).map_or(0, |end| after + end + 1)
        }
        (Some(_), Some((at, '\''))) => at + 1,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_literals_are_gone_and_code_stays() {
        let text = "let a = \"unsafe \\\" {\"; // unsafe\n/* unsafe /* nested */ */ let b = r#\"un\"safe\"#;\nfor<'a> f('\\'', 'x', b\"y\", br\"z\");\n";

        let code = code_only(text);

        assert_eq!(code, "let a = \"\"; \n let b = \"\";\nfor<'a> f(\"\", \"\", b\"\", b\"\");\n");
    }

    #[test]
    fn a_literal_over_lines_keeps_the_number_of_lines() {
        assert_eq!(code_only("a(\"1\n2\n3\")\nb"), "a(\"\"\n\n)\nb");
    }

    #[test]
    fn text_that_ends_in_the_middle_of_a_literal_ends() {
        for text in ["\"abc", "r#\"abc", "/* abc", "'\\", "'", "//"] {
            code_only(text);
        }
    }
}
