//! Words of an instruction: splitting them, JSON lists, and expanding variables by Docker's rules. Pure and total.
//!
//! What expands: `$name`, `${name}`, `${name:-else}`, `${name:+then}`, `${name:?why}`, the same without a colon,
//! `${name#pattern}`, `##`, `%`, `%%`, `${name/pattern/new}` and `${name//pattern/new}`. An escape character takes the
//! meaning from what follows it; nothing is expanded between single quotes.

use super::glob;
use std::{iter::Peekable, str::Chars};

/// Longest text that an expansion may make.
const LONGEST: usize = 1 << 20;
/// Deepest nesting of `${…${…}}`.
const DEEPEST: usize = 32;

/// Why words cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Bad {
    /// A quote that is not closed.
    #[error("a quote is not closed: {0}")]
    Quote(char),
    /// `${` without `}`.
    #[error("`${{` is not closed by `}}`")]
    Brace,
    /// `${a^b}`
    #[error("unknown modifier `{1}` in `${{{0}{1}…}}`")]
    Modifier(String, char),
    /// `${a:?why}`
    #[error("{0}: {1}")]
    Demanded(String, String),
    /// It grows too much.
    #[error("variables expand to more than {LONGEST} bytes, or are nested deeper than {DEEPEST}")]
    Size,
    /// A list of something else than strings.
    #[error("a list in JSON form holds strings only")]
    Strings,
    /// No list.
    #[error("not a list in JSON form")]
    List,
}

/// Which value a variable has.
pub type Values<'v> = &'v dyn Fn(&str) -> Option<String>;

/// The first word and what follows it.
pub fn head(text: &str) -> (&str, &str) {
    let text = text.trim_start();
    match text.split_once(char::is_whitespace) {
        Some((first, rest)) => (first, rest.trim()),
        None => (text, ""),
    }
}

/// The words of `text` as they stand, quotes and escapes kept: a space within quotes, or behind an escape, parts nothing.
pub fn split(text: &str, escape: char) -> Vec<String> {
    let mut words = Vec::new();
    let mut word = String::new();
    let mut quote = None;
    let mut chars = text.chars();
    while let Some(char) = chars.next() {
        if quote.is_none() && char.is_whitespace() {
            if !word.is_empty() {
                words.push(std::mem::take(&mut word));
            }
            continue;
        }
        word.push(char);
        match quote {
            _ if char == escape && quote != Some('\'') => word.extend(chars.next()),
            Some(open) if open == char => quote = None,
            None if matches!(char, '"' | '\'') => quote = Some(char),
            _ => {}
        }
    }
    if !word.is_empty() {
        words.push(word);
    }
    words
}

/// A list in JSON form. What follows its end does not count, as in Docker.
pub fn list(text: &str) -> Result<Vec<String>, Bad> {
    if !text.trim_start().starts_with('[') {
        return Err(Bad::List);
    }
    let mut values = serde_json::Deserializer::from_str(text).into_iter::<Vec<serde_json::Value>>();
    let Some(Ok(values)) = values.next() else { return Err(Bad::List) };
    values
        .into_iter()
        .map(|value| match value {
            serde_json::Value::String(text) => Ok(text),
            _ => Err(Bad::Strings),
        })
        .collect()
}

/// One word with its variables expanded and its quotes taken away.
pub fn expand(text: &str, escape: char, values: Values<'_>) -> Result<String, Bad> {
    let mut scan = Scan::new(text, escape, values);
    scan.until(None, Escapes::Taken).map(|out| out.whole)
}

/// The words of a text with variables expanded: a value with spaces makes several words.
pub fn expand_words(text: &str, escape: char, values: Values<'_>) -> Result<Vec<String>, Bad> {
    let mut scan = Scan::new(text, escape, values);
    let mut out = scan.until(None, Escapes::Taken)?;
    out.part();
    Ok(out.words)
}

/// A here-document's content with variables expanded; quotes are as they stand.
pub fn expand_heredoc(text: &str, values: Values<'_>) -> Result<String, Bad> {
    let mut scan = Scan::new(text, '\\', values);
    let mut whole = String::new();
    while let Some(&char) = scan.rest.peek() {
        match char {
            '$' => whole.push_str(&scan.dollar()?),
            '\\' => {
                scan.rest.next();
                match scan.rest.peek() {
                    Some(&('$' | '\\')) => whole.extend(scan.rest.next()),
                    _ => whole.push('\\'),
                }
            }
            _ => whole.extend(scan.rest.next()),
        }
        if whole.len() > LONGEST.max(text.len()) {
            return Err(Bad::Size);
        }
    }
    Ok(whole)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Escapes {
    Taken,
    Kept,
}

#[derive(Debug, Default)]
struct Out {
    whole: String,
    words: Vec<String>,
    word: String,
    in_word: bool,
}

impl Out {
    /// Text that parts nothing, whatever it holds.
    fn add(&mut self, text: &str) -> Result<(), Bad> {
        self.whole.push_str(text);
        self.word.push_str(text);
        self.in_word = true;
        if self.whole.len() > LONGEST { Err(Bad::Size) } else { Ok(()) }
    }

    /// A character that parts words if it is a space.
    fn char(&mut self, char: char) -> Result<(), Bad> {
        if !char.is_whitespace() {
            return self.add(char.encode_utf8(&mut [0; 4]));
        }
        self.whole.push(char);
        self.part();
        Ok(())
    }

    fn part(&mut self) {
        if std::mem::take(&mut self.in_word) {
            self.words.push(std::mem::take(&mut self.word));
        }
    }
}

struct Scan<'t> {
    rest: Peekable<Chars<'t>>,
    escape: char,
    values: Values<'t>,
    depth: usize,
}

impl<'t> Scan<'t> {
    fn new(text: &'t str, escape: char, values: Values<'t>) -> Self {
        Self { rest: text.chars().peekable(), escape, values, depth: 0 }
    }

    /// Reads up to `stop`, which is taken, or to the end.
    fn until(&mut self, stop: Option<char>, escapes: Escapes) -> Result<Out, Bad> {
        let mut out = Out::default();
        while let Some(&char) = self.rest.peek() {
            if Some(char) == stop {
                self.rest.next();
                return Ok(out);
            }
            match char {
                '\'' => out.add(&self.single(escapes)?)?,
                '"' => out.add(&self.double(escapes)?)?,
                '$' => {
                    for char in self.dollar()?.chars() {
                        out.char(char)?;
                    }
                }
                _ if char == self.escape => {
                    self.rest.next();
                    if escapes == Escapes::Kept {
                        out.char(char)?;
                    }
                    if let Some(next) = self.rest.next() {
                        out.add(next.encode_utf8(&mut [0; 4]))?;
                    }
                }
                _ => {
                    self.rest.next();
                    out.char(char)?;
                }
            }
        }
        if stop.is_some() { Err(Bad::Brace) } else { Ok(out) }
    }

    fn single(&mut self, escapes: Escapes) -> Result<String, Bad> {
        self.rest.next();
        let mut text = String::new();
        loop {
            match self.rest.next() {
                None => return Err(Bad::Quote('\'')),
                Some('\'') => return Ok(text),
                // A pattern's special characters mean themselves between quotes.
                Some(char) => {
                    if escapes == Escapes::Kept && matches!(char, '*' | '?' | '\\') {
                        text.push('\\');
                    }
                    text.push(char);
                }
            }
        }
    }

    fn double(&mut self, escapes: Escapes) -> Result<String, Bad> {
        self.rest.next();
        let mut text = String::new();
        while let Some(&char) = self.rest.peek() {
            match char {
                '"' => {
                    self.rest.next();
                    return Ok(text);
                }
                '$' => text.push_str(&self.dollar()?),
                _ if char == self.escape => {
                    self.rest.next();
                    match self.rest.next() {
                        None => return Err(Bad::Quote('"')),
                        Some(next) if next == '"' || next == '$' || next == self.escape => {
                            if escapes == Escapes::Kept {
                                text.push(char);
                            }
                            text.push(next);
                        }
                        Some(next) => text.extend([char, next]),
                    }
                }
                _ => text.extend(self.rest.next()),
            }
            if text.len() > LONGEST {
                return Err(Bad::Size);
            }
        }
        Err(Bad::Quote('"'))
    }

    /// What `$` and what follows it stands for.
    fn dollar(&mut self) -> Result<String, Bad> {
        self.rest.next();
        if self.rest.peek() != Some(&'{') {
            let name = self.name();
            return Ok(if name.is_empty() { "$".to_owned() } else { self.value(&name).unwrap_or_default() });
        }
        self.rest.next();
        self.depth += 1;
        if self.depth > DEEPEST {
            return Err(Bad::Size);
        }
        let name = self.name();
        let result = self.braced(&name);
        self.depth -= 1;
        result
    }

    fn braced(&mut self, name: &str) -> Result<String, Bad> {
        let Some(mut sign) = self.rest.next() else { return Err(Bad::Brace) };
        if name.is_empty() {
            return Err(Bad::Modifier(String::new(), sign));
        }
        let value = self.value(name);
        if sign == '}' {
            return Ok(value.unwrap_or_default());
        }
        if sign == '/' {
            return self.replaced(value.unwrap_or_default());
        }
        let empty_is_unset = sign == ':';
        if empty_is_unset {
            sign = self.rest.next().ok_or(Bad::Brace)?;
        }
        let known = match sign {
            '-' | '+' | '?' => true,
            '#' | '%' => !empty_is_unset,
            _ => false,
        };
        if !known {
            return Err(Bad::Modifier(name.to_owned(), sign));
        }
        let escapes = if matches!(sign, '#' | '%') { Escapes::Kept } else { Escapes::Taken };
        let word = self.until(Some('}'), escapes)?.whole;
        let set = value.as_ref().filter(|value| !(empty_is_unset && value.is_empty()));
        match sign {
            '-' => Ok(set.cloned().unwrap_or(word)),
            '+' => Ok(set.map(|_| word).unwrap_or_default()),
            '?' => set.cloned().ok_or_else(|| {
                let why = if word.is_empty() { "must be set".to_owned() } else { word };
                Bad::Demanded(name.to_owned(), why)
            }),
            _ => Ok(trimmed(&value.unwrap_or_default(), sign, &word)),
        }
    }

    /// `${name/pattern/new}`, behind the first slash.
    fn replaced(&mut self, value: String) -> Result<String, Bad> {
        let all = self.rest.next_if_eq(&'/').is_some();
        let pattern = self.until(Some('/'), Escapes::Kept)?.whole;
        let new = self.until(Some('}'), Escapes::Taken)?.whole;
        let mut made = String::new();
        let mut rest = value.as_str();
        while let Some(char) = rest.chars().next() {
            let longest = ends(rest).rev().find(|&end| end > 0 && fits(&pattern, rest.get(..end)));
            match longest {
                Some(end) => {
                    made.push_str(&new);
                    rest = rest.get(end..).unwrap_or_default();
                    if !all {
                        break;
                    }
                }
                None => {
                    made.push(char);
                    rest = rest.get(char.len_utf8()..).unwrap_or_default();
                }
            }
            if made.len() > LONGEST {
                return Err(Bad::Size);
            }
        }
        made.push_str(rest);
        Ok(made)
    }

    fn name(&mut self) -> String {
        let mut name = String::new();
        match self.rest.peek() {
            Some(char) if char.is_ascii_digit() => {
                while let Some(char) = self.rest.next_if(char::is_ascii_digit) {
                    name.push(char);
                }
            }
            Some('@' | '*' | '#' | '?' | '-' | '$' | '!') => name.extend(self.rest.next()),
            _ => {
                while let Some(char) = self.rest.next_if(|char| char.is_alphanumeric() || *char == '_') {
                    name.push(char);
                }
            }
        }
        name
    }

    fn value(&self, name: &str) -> Option<String> {
        (self.values)(name)
    }
}

/// The value without the shortest (`#`, `%`) or longest (`##`, `%%`) beginning or end that fits a pattern.
fn trimmed(value: &str, sign: char, pattern: &str) -> String {
    let (longest, pattern) = pattern.strip_prefix(sign).map_or((false, pattern), |rest| (true, rest));
    let found = |mut at: Box<dyn Iterator<Item = usize> + '_>| {
        if sign == '#' {
            at.find(|&at| fits(pattern, value.get(..at))).and_then(|at| value.get(at..))
        } else {
            at.find(|&at| fits(pattern, value.get(at..))).and_then(|at| value.get(..at))
        }
    };
    // The shortest beginning ends first, the shortest end begins last.
    let forward = (sign == '#') != longest;
    let kept = if forward { found(Box::new(ends(value))) } else { found(Box::new(ends(value).rev())) };
    kept.unwrap_or(value).to_owned()
}

/// Where characters end, from the beginning (0) to the end.
fn ends(text: &str) -> impl DoubleEndedIterator<Item = usize> + '_ {
    text.char_indices().map(|(at, _)| at).chain(std::iter::once(text.len()))
}

fn fits(pattern: &str, text: Option<&str>) -> bool {
    text.is_some_and(|text| glob::shell(pattern, text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn values(name: &str) -> Option<String> {
        match name {
            "a" => Some("one".to_owned()),
            "spaced" => Some("x  y".to_owned()),
            "empty" => Some(String::new()),
            "path" => Some("foobar/foobaz".to_owned()),
            _ => None,
        }
    }

    fn expanded(text: &str) -> String {
        expand(text, '\\', &values).unwrap()
    }

    #[test]
    fn variables_expand_as_in_docker() {
        for (text, wanted) in [
            ("$a", "one"),
            ("${a}b", "oneb"),
            ("$ab", ""),
            ("\\$a", "$a"),
            ("'$a'", "$a"),
            ("\"$a\"", "one"),
            ("\"\\$a\"", "$a"),
            ("\"\\x\"", "\\x"),
            ("${b:-two}", "two"),
            ("${b-two}", "two"),
            ("${empty:-two}", "two"),
            ("${empty-two}", ""),
            ("${a:+set}", "set"),
            ("${b:+set}", ""),
            ("${empty+set}", "set"),
            ("${b:-${a}}", "one"),
            ("${b:-$a/x}", "one/x"),
            ("$", "$"),
            ("a$", "a$"),
            ("$$a", "a"),
            ("a\\\\b", "a\\b"),
            ("it''s", "its"),
            ("${path#foo}", "bar/foobaz"),
            ("${path#*/}", "foobaz"),
            ("${path%/*}", "foobar"),
            ("${path%%o*}", "f"),
            ("${path##*o}", "baz"),
            ("${path/foo/x}", "xbar/foobaz"),
            ("${path//foo/x}", "xbar/xbaz"),
            ("${path/o*/x}", "fx"),
        ] {
            assert_eq!(expanded(text), wanted, "{text}");
        }
    }

    #[test]
    fn a_value_with_spaces_makes_several_words_only_without_quotes() {
        assert_eq!(expand_words("$spaced z", '\\', &values).unwrap(), ["x", "y", "z"]);
        assert_eq!(expand_words("\"$spaced\" z", '\\', &values).unwrap(), ["x  y", "z"]);
    }

    #[test]
    fn what_is_wrong_is_told() {
        for (text, wanted) in [
            ("'a", Bad::Quote('\'')),
            ("\"a", Bad::Quote('"')),
            ("${a", Bad::Brace),
            ("${a:-b", Bad::Brace),
            ("${a^b}", Bad::Modifier("a".to_owned(), '^')),
            ("${b:?needed}", Bad::Demanded("b".to_owned(), "needed".to_owned())),
        ] {
            assert_eq!(expand(text, '\\', &values).unwrap_err(), wanted, "{text}");
        }
    }

    #[test]
    fn words_keep_their_quotes() {
        assert_eq!(split("a=\"b c\" d='e  f' g\\ h", '\\'), ["a=\"b c\"", "d='e  f'", "g\\ h"]);
    }

    #[test]
    fn a_list_holds_strings_only() {
        assert_eq!(list("[\"a\", \"b\"] rest").unwrap(), ["a", "b"]);
        assert_eq!(list("[1]").unwrap_err(), Bad::Strings);
        assert_eq!(list("[a]").unwrap_err(), Bad::List);
    }

    #[test]
    fn a_here_document_keeps_its_quotes() {
        assert_eq!(expand_heredoc("'$a' \\$a \"x\" \\n", &values).unwrap(), "'one' $a \"x\" \\n");
    }

    #[test]
    fn growth_is_bounded() {
        let big = |_: &str| Some("x".repeat(LONGEST));
        assert_eq!(expand("$a$a", '\\', &big).unwrap_err(), Bad::Size);
        assert_eq!(expand(&"${a:-".repeat(100), '\\', &values).unwrap_err(), Bad::Size);
    }

    proptest! {
        #[test]
        fn any_text_expands_or_is_refused(text in "[$a{}:+?#%/\"' \\\\*\\-]{0,40}") {
            let _ = expand(&text, '\\', &values);
            let _ = expand_words(&text, '`', &values);
            let _ = expand_heredoc(&text, &values);
            let _ = split(&text, '\\');
        }

        #[test]
        fn plain_text_stays(text in "[a-z0-9/.=:,]{0,40}") {
            prop_assert_eq!(expand(&text, '\\', &values).unwrap(), text);
        }
    }
}
