//! What a question looks like on a screen of a certain size. Pure.
//!
//! The destination is always shown whole, over several lines if need be: its end says whose it is. Everything else gives way.
//! On a screen that cannot hold it, the page says so and can only be refused or put off.

use crate::clean::clean_line;
use airlock_protocol::{approval::Pending, spec::WindowSize};

/// A screen that does not tell its size.
const USUAL: WindowSize = WindowSize { rows: 24, columns: 80 };

/// What is drawn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Page {
    pub(super) lines: Vec<String>,
    /// Whether all that matters is on it.
    pub(super) is_whole: bool,
}

/// How much a line matters; those that matter least go first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Weight {
    Gap,
    Hint,
    Key,
    About,
    Must,
}

/// The question, with the words that mark a real one.
pub(super) fn page(pending: &Pending, words: &str, size: WindowSize) -> Page {
    let rows = if size.rows == 0 { USUAL.rows } else { size.rows };
    let columns = if size.columns == 0 { USUAL.columns } else { size.columns };
    // The last column and the last row stay free: a terminal may scroll on them.
    let (most, width) = (usize::from(rows).saturating_sub(1), usize::from(columns).saturating_sub(1));
    let title = title(words, width);
    let destination = wrapped(&destination(pending), width);
    let is_whole = width_of(&title) <= width && destination.is_some();
    let mut lines = vec![(Weight::Must, title), (Weight::Gap, String::new())];
    lines.push((Weight::About, format!("The sandbox {} wants", pending.sandbox)));
    lines.push((Weight::Gap, String::new()));
    lines.extend(destination.unwrap_or_default().into_iter().map(|line| (Weight::Must, line)));
    lines.extend(rest(pending));
    let mut lines: Vec<(Weight, String)> =
        lines.into_iter().map(|(weight, line)| (weight, cut(&clean_line(&line), width))).collect();
    for weight in [Weight::Gap, Weight::Hint, Weight::Key, Weight::About] {
        if lines.len() <= most {
            break;
        }
        lines.retain(|(of, _)| *of != weight);
        if weight == Weight::Key {
            lines.push((Weight::Must, cut("y s a: allow  n d: refuse", width)));
        }
    }
    match is_whole && lines.len() <= most {
        true => Page { lines: lines.into_iter().map(|(_, line)| line).collect(), is_whole },
        false => too_small(pending, most, width),
    }
}

fn rest(pending: &Pending) -> Vec<(Weight, String)> {
    let until = pending.until.get(11..19).unwrap_or(&pending.until);
    let kind = if pending.method.is_some() { "request" } else { "connection" };
    let of = |weight: Weight| move |line: &str| (weight, line.to_owned());
    let (gap, key, hint) = (of(Weight::Gap), of(Weight::Key), of(Weight::Hint));
    vec![
        gap(""),
        (Weight::About, format!("Rule: {}", pending.rule)),
        gap(""),
        key(&format!("  y    allow this {kind}, and others like it that wait now")),
        key("  s    allow it as long as this sandbox lives"),
        key("  a    allow it always: the rule is written down"),
        key("  n    refuse"),
        key("  d    refuse it as long as this sandbox lives"),
        key("  Esc  later"),
        gap(""),
        hint(&format!("Unanswered it is refused at {until} UTC.")),
        hint(&format!("`airlock approve {}` answers it from elsewhere.", pending.id)),
        hint("The program is not shown meanwhile and sees no key."),
    ]
}

/// Nothing of the destination is shown: half a name may be somebody else's.
fn too_small(pending: &Pending, most: usize, width: usize) -> Page {
    let lines = [
        "airlock asks, but this window is too small to show what".to_owned(),
        "Make it larger".to_owned(),
        "n d: refuse  Esc: later".to_owned(),
        format!("`airlock approvals` shows it, as {}", pending.id),
    ];
    Page { lines: lines.iter().map(|line| cut(line, width)).take(most).collect(), is_whole: false }
}

fn title(words: &str, width: usize) -> String {
    let wide = format!("airlock asks                                {words}");
    let narrow = format!("airlock asks  {words}");
    [wide, narrow].into_iter().find(|title| width_of(title) <= width).unwrap_or_else(|| words.to_owned())
}

fn destination(pending: &Pending) -> String {
    let what = match pending.kind.as_str() {
        "publish" => format!("a connection from {} to port {} inside", pending.host, pending.port),
        _ => match (&pending.method, &pending.path) {
            (Some(method), Some(path)) => {
                let query = pending.query.as_deref().map(|query| format!("?{query}")).unwrap_or_default();
                format!("a request to {} port {}: {method} {path}{query}", pending.host, pending.port)
            }
            _ => format!("a connection to {} port {}", pending.host, pending.port),
        },
    };
    clean_line(&what)
}

/// In lines with a margin, broken anywhere: a broken name is still the whole name. `None` if they would hold nothing.
fn wrapped(text: &str, width: usize) -> Option<Vec<String>> {
    let room = width.checked_sub(4).filter(|room| *room >= 8)?;
    let mut lines = vec![String::new()];
    for c in text.chars() {
        match lines.last_mut() {
            Some(line) if width_of(line) + width_of_char(c) <= room => line.push(c),
            _ => lines.push(c.to_string()),
        }
    }
    Some(lines.into_iter().map(|line| format!("    {line}")).collect())
}

fn cut(line: &str, width: usize) -> String {
    let mut used = 0;
    line.chars()
        .take_while(|c| {
            used += width_of_char(*c);
            used <= width
        })
        .collect()
}

fn width_of(text: &str) -> usize {
    text.chars().map(width_of_char).sum()
}

/// Columns that a character takes at most.
fn width_of_char(c: char) -> usize {
    if c.is_ascii() { 1 } else { 2 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn pending(host: &str) -> Pending {
        Pending {
            id: "3f9a0c2e7b14-1".into(),
            sandbox: "web".into(),
            since: String::new(),
            until: "2026-01-31T12:01:00.000000Z".into(),
            kind: "connect".into(),
            host: host.into(),
            port: 8443,
            rule: "ask *.example.com (airlock.toml:12)".into(),
            ..Pending::default()
        }
    }

    fn on(host: &str, rows: u16, columns: u16) -> Page {
        page(&pending(host), "calm-otter", WindowSize { rows, columns })
    }

    #[test]
    fn a_long_name_is_shown_to_its_end_with_its_port() {
        let name = format!("github.com.{}.evil.example", "a".repeat(60));
        let page = on(&name, 24, 60);
        assert!(page.is_whole);
        let destination = [
            "    a connection to github.com.aaaaaaaaaaaaaaaaaaaaaaaaaaaa",
            "    aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa.evil.example port 8443",
        ];
        let at = page.lines.iter().position(|line| line == destination[0]).unwrap();
        assert_eq!(page.lines[at..at + 2], destination);
    }

    #[test]
    fn a_request_is_shown_with_its_method_and_path_and_nothing_that_steers() {
        let request = Pending {
            kind: "request".into(),
            method: Some("POST".into()),
            path: Some("/v1/\u{1b}[2Jorders".into()),
            query: Some("x=1".into()),
            ..pending("api.example.com")
        };
        let page = page(&request, "calm-otter", WindowSize { rows: 24, columns: 80 });
        let text = page.lines.join("\n");
        assert!(text.contains("    a request to api.example.com port 8443: POST /v1/orders?x=1"), "{text}");
        assert!(text.contains("allow this request") && !text.contains('\u{1b}'), "{text}");
    }

    #[test]
    fn a_low_window_keeps_the_words_the_destination_and_the_keys() {
        let expected = ["airlock asks  calm-otter", "    a connection to api.exampl", "    e.com port 8443"];
        let low = on("api.example.com", 5, 31);
        assert_eq!((&low.lines[..3], low.is_whole), (&expected.map(str::to_owned)[..], true));
        assert_eq!(low.lines[3..], ["y s a: allow  n d: refuse"]);
        let higher = on("api.example.com", 12, 80);
        assert!(higher.is_whole && higher.lines.iter().any(|line| line.starts_with("  y    allow")));
    }

    #[test]
    fn a_window_that_cannot_hold_the_destination_shows_nothing_of_it() {
        for (rows, columns) in [(4, 31), (2, 80), (1, 80), (24, 10), (5, 20)] {
            let page = on("api.example.com", rows, columns);
            assert!(!page.is_whole, "{rows} {columns}");
            assert!(!page.lines.concat().contains("connection"), "{page:?}");
        }
    }

    #[test]
    fn a_window_of_unknown_size_is_a_usual_one() {
        assert_eq!(on("api.example.com", 0, 0), on("api.example.com", 24, 80));
    }

    proptest! {
        #[test]
        fn a_page_fits_and_shows_the_whole_destination_or_says_that_it_does_not(
            host in "[a-z0-9.-]{1,253}|\\PC{0,60}", rows in 0u16..40, columns in 0u16..200,
        ) {
            let page = on(&host, rows, columns);
            let most = if rows == 0 { 23 } else { usize::from(rows) - 1 };
            let width = if columns == 0 { 79 } else { usize::from(columns) - 1 };
            prop_assert!(page.lines.len() <= most);
            prop_assert!(page.lines.iter().all(|line| width_of(line) <= width));
            let shown: String = page.lines.iter().filter_map(|line| line.strip_prefix("    ")).collect();
            prop_assert_eq!(page.is_whole, shown.contains(&destination(&pending(&host))) && !shown.is_empty());
        }
    }
}
