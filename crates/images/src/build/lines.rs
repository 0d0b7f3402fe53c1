//! A Dockerfile's logical lines: parser directives read, comments left out, continued lines joined, here-documents taken.
//! Pure and total.

use super::{Fault, words};

/// Longest Dockerfile.
pub const LONGEST: usize = 4 << 20;
/// Most here-documents of one instruction.
const HEREDOCS: usize = 256;

/// A Dockerfile, line by line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lines {
    /// What `# escape=` says, else a backslash.
    pub escape: char,
    /// What `# syntax=` says.
    pub syntax: Option<String>,
    /// Its instructions, each in one line.
    pub lines: Vec<Line>,
}

/// One instruction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// Where it begins, from 1.
    pub number: usize,
    /// Its text, continued lines joined.
    pub text: String,
    /// The here-documents that follow it.
    pub heredocs: Vec<Heredoc>,
}

/// A here-document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Heredoc {
    /// The word that ends it.
    pub name: String,
    /// Whether variables in it are expanded: its word has no quotes.
    pub expand: bool,
    /// `<<-`: tabs at the beginning of lines do not count.
    pub chomp: bool,
    /// Its lines, as they stand.
    pub content: String,
}

impl Heredoc {
    /// What it says: as it stands, or without leading tabs.
    pub fn said(&self) -> String {
        if !self.chomp {
            return self.content.clone();
        }
        self.content.split_inclusive('\n').map(|line| line.trim_start_matches('\t')).collect()
    }
}

/// Splits the text of a Dockerfile into its instructions.
pub fn split(text: &str) -> Result<Lines, Fault> {
    if text.len() > LONGEST {
        return Err(Fault::new(1, "", format!("a Dockerfile has at most {LONGEST} bytes")));
    }
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut found = Lines { escape: '\\', syntax: None, lines: Vec::new() };
    directives(text, &mut found)?;
    let mut rest = text.split_inclusive('\n').enumerate().map(|(at, line)| (at + 1, line));
    while let Some((number, line)) = rest.next() {
        let line = ended(line).trim_start();
        if line.starts_with('#') {
            continue;
        }
        let (mut joined, mut goes_on) = continued(line, found.escape);
        if joined.trim().is_empty() && !goes_on {
            continue;
        }
        while goes_on {
            let Some((_, next)) = rest.next() else { break };
            let next = ended(next);
            if next.trim_start().starts_with('#') || next.trim().is_empty() {
                continue;
            }
            let (part, more) = continued(next, found.escape);
            joined.push_str(&part);
            goes_on = more;
        }
        let text = joined.trim().to_owned();
        if text.is_empty() {
            continue;
        }
        let mut heredocs = begun(&text);
        if heredocs.len() > HEREDOCS {
            return Err(Fault::new(
                number,
                &text,
                format!("an instruction has at most {HEREDOCS} here-documents"),
            ));
        }
        for heredoc in &mut heredocs {
            take(heredoc, &mut rest).ok_or_else(|| {
                let why = format!("the here-document `{}` has no end: no line says just that", heredoc.name);
                Fault::new(number, &text, why)
            })?;
        }
        found.lines.push(Line { number, text, heredocs });
    }
    Ok(found)
}

/// The here-document that one word begins, such as `<<EOF`, `<<-"E"` or `3<<E`.
pub fn heredoc(word: &str) -> Option<Heredoc> {
    let rest = word.trim_start_matches(|char: char| char.is_ascii_digit()).strip_prefix("<<")?;
    let (chomp, rest) = rest.strip_prefix('-').map_or((false, rest), |rest| (true, rest));
    if rest.contains('<') || rest.chars().any(char::is_whitespace) {
        return None;
    }
    let name: String = rest.chars().filter(|char| !matches!(char, '"' | '\'' | '\\')).collect();
    if name.is_empty() {
        return None;
    }
    Some(Heredoc { expand: name == rest, name, chomp, content: String::new() })
}

/// Reads the directives: comments at the very top of the form `# name=value`.
fn directives(text: &str, found: &mut Lines) -> Result<(), Fault> {
    let mut seen: Vec<String> = Vec::new();
    for (at, line) in text.lines().enumerate() {
        let Some((name, value)) = directive(line) else { return Ok(()) };
        let name = name.to_ascii_lowercase();
        if !matches!(name.as_str(), "syntax" | "escape" | "check") {
            return Ok(());
        }
        if seen.contains(&name) {
            return Err(Fault::new(at + 1, line, format!("the directive `{name}` may be given once")));
        }
        match name.as_str() {
            "escape" if value == "\\" => found.escape = '\\',
            "escape" if value == "`" => found.escape = '`',
            "escape" => {
                return Err(Fault::new(at + 1, line, "the escape character is a backslash or a backtick"));
            }
            "syntax" => found.syntax = Some(value.to_owned()),
            _ => {}
        }
        seen.push(name);
    }
    Ok(())
}

fn directive(line: &str) -> Option<(&str, &str)> {
    let (name, value) = line.trim().strip_prefix('#')?.split_once('=')?;
    let (name, value) = (name.trim(), value.trim());
    let is_name = name.starts_with(|char: char| char.is_ascii_alphabetic())
        && name.chars().all(|char| char.is_ascii_alphanumeric());
    (is_name && !value.is_empty()).then_some((name, value))
}

fn ended(line: &str) -> &str {
    let line = line.strip_suffix('\n').unwrap_or(line);
    line.strip_suffix('\r').unwrap_or(line)
}

/// The line without its continuation, and whether it has one: one escape character, not two, at the end.
fn continued(line: &str, escape: char) -> (String, bool) {
    let bare = line.trim_end_matches([' ', '\t']);
    match bare.strip_suffix(escape) {
        Some(before) if !before.ends_with(escape) => (before.to_owned(), true),
        _ => (line.to_owned(), false),
    }
}

/// The here-documents that an instruction's words begin, without their content.
fn begun(text: &str) -> Vec<Heredoc> {
    let Some(arguments) = heredoc_arguments(text) else { return Vec::new() };
    if arguments.starts_with('[') && words::list(arguments).is_ok() {
        return Vec::new();
    }
    words::split(arguments, '\\').iter().filter_map(|word| heredoc(word)).collect()
}

/// What follows the name of an instruction that may have here-documents, and its flags.
fn heredoc_arguments(text: &str) -> Option<&str> {
    let (mut name, mut rest) = words::head(text);
    if name.eq_ignore_ascii_case("ONBUILD") {
        (name, rest) = words::head(rest);
    }
    let may = ["RUN", "COPY", "ADD"].iter().any(|known| name.eq_ignore_ascii_case(known));
    while rest.starts_with("--") {
        rest = words::head(rest).1;
    }
    may.then_some(rest)
}

/// Takes the lines of a here-document, up to its end.
fn take<'t>(heredoc: &mut Heredoc, rest: &mut impl Iterator<Item = (usize, &'t str)>) -> Option<()> {
    for (_, line) in rest {
        let bare = ended(line);
        let bare = if heredoc.chomp { bare.trim_start_matches('\t') } else { bare };
        if bare == heredoc.name {
            return Some(());
        }
        heredoc.content.push_str(line);
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn texts(text: &str) -> Vec<String> {
        split(text).unwrap().lines.into_iter().map(|line| line.text).collect()
    }

    #[test]
    fn continued_lines_are_joined_and_comments_inside_are_left_out() {
        let text = "FROM a\n# comment\nRUN one \\\n  # inside\n\n  two \\\nthree\n  # last\n";
        assert_eq!(texts(text), ["FROM a", "RUN one   two three"]);
    }

    #[test]
    fn two_escapes_at_the_end_continue_nothing() {
        assert_eq!(texts("RUN a\\\\\nRUN b\n"), ["RUN a\\\\", "RUN b"]);
    }

    #[test]
    fn a_directive_changes_the_escape_character() {
        let found = split("# syntax=docker/dockerfile:1\n# escape=`\nRUN a `\n b \\\n").unwrap();
        assert_eq!((found.escape, found.syntax.as_deref()), ('`', Some("docker/dockerfile:1")));
        assert_eq!(found.lines[0].text, "RUN a  b \\");
    }

    #[test]
    fn a_directive_behind_a_comment_is_a_comment() {
        assert_eq!(split("# hello\n# escape=`\nRUN a\n").unwrap().escape, '\\');
    }

    #[test]
    fn a_directive_given_twice_is_refused_with_its_line() {
        let fault = split("# escape=`\n# escape=`\nRUN a\n").unwrap_err();
        assert_eq!((fault.line, fault.text.as_str()), (2, "# escape=`"));
    }

    #[test]
    fn here_documents_follow_their_instruction() {
        let found = split("RUN <<A cat <<-'B'\none\nA\n\ttwo\n\tB\nRUN x\n").unwrap();
        let [first, second] = &found.lines[..] else { panic!("{found:?}") };
        assert_eq!(first.heredocs.len(), 2);
        assert_eq!((first.heredocs[0].content.as_str(), first.heredocs[0].expand), ("one\n", true));
        assert_eq!((first.heredocs[1].said().as_str(), first.heredocs[1].expand), ("two\n", false));
        assert_eq!((second.number, second.text.as_str()), (6, "RUN x"));
    }

    #[test]
    fn a_here_document_without_an_end_is_told_with_its_line() {
        let fault = split("FROM a\nRUN <<EOF\nx\n").unwrap_err();
        assert_eq!((fault.line, fault.text.as_str()), (2, "RUN <<EOF"));
    }

    #[test]
    fn other_instructions_have_no_here_documents() {
        assert_eq!(texts("ENV a=<<EOF\nRUN [\"a\", \"<<E\"]\n"), ["ENV a=<<EOF", "RUN [\"a\", \"<<E\"]"]);
    }

    proptest! {
        #[test]
        fn any_text_is_split_or_refused(text in "(?s)[#\\\\`<>A-Z \"'\n=\\-\\[a-z]{0,200}") {
            if let Ok(found) = split(&text) {
                for line in found.lines {
                    prop_assert!(!line.text.trim().is_empty());
                    prop_assert!(line.number <= text.lines().count() + 1);
                }
            }
        }
    }
}
