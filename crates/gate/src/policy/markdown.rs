//! The front matter of a Markdown file.
//!
//! ```text
//! ---
//! title: what the agent may reach
//! domains:
//!   - api.example.com
//!   - "*.example.org"
//!   - db.example.com:5432
//! ---
//! ```
//!
//! Of YAML only this is read: a list under `domains`, in either of its two forms, of plain or quoted words. Other keys are passed over.

use super::{
    BadPolicy, LARGEST, MOST_RULES, PolicyFile, Source,
    hosts::{Hosts, Word},
    read::Lines,
    rule,
};
use crate::groups::Discovered;
use airlock_protocol::policy::{Origin, Policy, Verdict};

/// Reads the text of a file.
pub(super) fn read(source: Source<'_>, discovered: &Discovered) -> Result<PolicyFile, BadPolicy> {
    if source.text.len() > LARGEST {
        return Err(BadPolicy::nowhere(source.name, format!("the file has more than {LARGEST} bytes")));
    }
    let entries = entries(source)?;
    if entries.len() > MOST_RULES {
        return Err(BadPolicy::nowhere(source.name, format!("the file has more than {MOST_RULES} domains")));
    }
    let hosts = Hosts { source, known: discovered };
    let lines = Lines::of(source.text);
    let mut rules = Vec::new();
    for word in entries {
        let origin = Origin { from: source.name.to_string(), line: lines.line(word.1.start) };
        rules.extend(rule::from_word(&hosts, Verdict::Allow, word, &origin)?);
    }
    // The order of a list of domains means nothing, and neither does one that another covers.
    let policy = super::union(vec![Policy { rules, ..Policy::default() }]);
    Ok(PolicyFile { policy, ..PolicyFile::default() })
}

/// The words under `domains`, each with its place.
fn entries(source: Source<'_>) -> Result<Vec<Word<'_>>, BadPolicy> {
    let mut lines = front_matter(source)?.into_iter();
    let key = |line: &Word<'_>| {
        line.0.strip_prefix("domains").is_some_and(|rest| rest.trim_start().starts_with(':'))
    };
    let Some((line, at)) = lines.find(key) else {
        let bad = BadPolicy::nowhere(source.name, "the front matter has no `domains`");
        return Err(bad.fix("write `domains:` and below it `- HOST`, one a line"));
    };
    let (head, value) = line.split_once(':').unwrap_or((line, ""));
    let start = at.start + head.len() + 1;
    if !uncommented(value).trim().is_empty() {
        return flow(source, value, start);
    }
    let mut found = Vec::new();
    for (line, at) in lines {
        let bare = line.trim_start();
        let indent = line.len() - bare.len();
        if uncommented(bare).trim().is_empty() {
            continue;
        }
        let Some(item) =
            bare.strip_prefix('-').filter(|item| item.is_empty() || item.starts_with([' ', '\t']))
        else {
            if indent == 0 {
                break;
            }
            return Err(source
                .bad(at.start + indent..at.end, "this is not an entry of `domains`")
                .fix("write `- HOST`"));
        };
        found.push(word(source, item, at.start + indent + 1)?);
    }
    Ok(found)
}

/// The lines between the first two `---`, with their places.
fn front_matter(source: Source<'_>) -> Result<Vec<Word<'_>>, BadPolicy> {
    let mut start = source.text.len() - source.text.trim_start_matches('\u{feff}').len();
    let mut lines = Vec::new();
    let mut inside = false;
    for raw in source.text.get(start..).unwrap_or("").split_inclusive('\n') {
        let line = raw.trim_end_matches(['\n', '\r']);
        let at = start..start + line.len();
        start += raw.len();
        match (inside, line.trim_end()) {
            (false, "---") => inside = true,
            (false, _) => break,
            (true, "---" | "...") => return Ok(lines),
            (true, _) => lines.push((line, at)),
        }
    }
    let (what, fix) = match inside {
        true => ("the front matter has no end", "end it with a line `---`"),
        false => ("there is no front matter", "begin the file with a line `---`, and `domains:` below it"),
    };
    Err(source.bad(0..0, what).fix(fix))
}

/// `[a, b, "c"]`
fn flow<'a>(source: Source<'_>, value: &'a str, start: usize) -> Result<Vec<Word<'a>>, BadPolicy> {
    let whole = start..start + value.len();
    let list = uncommented(value).trim_end();
    let open = list.len() - list.trim_start().len();
    let Some(inner) = list.trim_start().strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) else {
        return Err(source
            .bad(whole, "`domains` is a list")
            .fix("write [HOST, HOST] on one line, or `- HOST` lines below"));
    };
    let mut found = Vec::new();
    let mut at = start + open + 1;
    for part in inner.split(',') {
        if !part.trim().is_empty() {
            found.push(word(source, part, at)?);
        }
        at += part.len() + 1;
    }
    Ok(found)
}

/// One word, plain or quoted, that begins somewhere in `text`, which stands at `start`.
fn word<'a>(source: Source<'_>, text: &'a str, start: usize) -> Result<Word<'a>, BadPolicy> {
    let bare = text.trim_start();
    let start = start + (text.len() - bare.len());
    for quote in ['"', '\''] {
        let Some(rest) = bare.strip_prefix(quote) else { continue };
        let at = start..start + bare.trim_end().len();
        let Some((inner, behind)) = rest.split_once(quote) else {
            return Err(source.bad(at, "the quote has no end"));
        };
        if !uncommented(behind).trim().is_empty() || inner.contains('\\') {
            return Err(source.bad(at, "this is not a host").fix("write one host an entry, without escapes"));
        }
        return Ok((inner, start..start + inner.len() + 2));
    }
    let plain = uncommented(bare).trim_end();
    Ok((plain, start..start + plain.len()))
}

/// A line without its comment: a `#` at its beginning or behind a space.
fn uncommented(text: &str) -> &str {
    let comment = text.match_indices('#').find(|(at, _)| {
        text.get(..*at).is_some_and(|before| before.is_empty() || before.ends_with([' ', '\t']))
    });
    comment.and_then(|(at, _)| text.get(..at)).unwrap_or(text)
}
