//! Finds many texts at once, also where one begins in one piece and ends in the next.

use aho_corasick::{AhoCorasick, Input, MatchKind, Span, packed};
use zeroize::Zeroize as _;

/// Texts that are looked for at once: more are slower than several times as many.
const GROUP: usize = 32;
/// Bytes that every group looks at before any looks on.
const WINDOW: usize = 4096;

/// Texts to look for. Of several that begin at the same place the longest counts.
pub(super) struct Needles {
    search: Search,
    /// In order, to find what begins with something.
    sorted: Vec<Vec<u8>>,
    /// The bytes that any of them begins with.
    first: [bool; 256],
    longest: usize,
}

enum Search {
    /// By vector instructions, which find a few texts at some GB a second: in groups.
    Packed(Vec<packed::Searcher>),
    /// Where there are no such instructions.
    Automaton(AhoCorasick),
}

/// A text that was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Found {
    /// Which, in the order given.
    pub(super) which: usize,
    pub(super) start: usize,
    pub(super) end: usize,
}

impl Needles {
    /// Empty texts are left out of account: they would be everywhere.
    pub(super) fn new(texts: &[Vec<u8>]) -> Result<Needles, aho_corasick::BuildError> {
        let mut sorted: Vec<Vec<u8>> = texts.to_vec();
        sorted.sort();
        let mut first = [false; 256];
        for byte in texts.iter().filter_map(|text| text.first()) {
            if let Some(is_first) = first.get_mut(usize::from(*byte)) {
                *is_first = true;
            }
        }
        let longest = texts.iter().map(Vec::len).max().unwrap_or(0);
        Ok(Needles { search: Search::new(texts)?, sorted, first, longest })
    }

    /// The next one from `at` on.
    pub(super) fn find(&self, text: &[u8], at: usize) -> Option<Found> {
        match &self.search {
            Search::Packed(groups) => match groups.as_slice() {
                [only] => first_of(only, 0, text, Span { start: at, end: text.len() }),
                groups => self.find_by_windows(groups, text, at),
            },
            Search::Automaton(search) => {
                let found = search.find(Input::new(text).span(at.min(text.len())..text.len()))?;
                Some(Found { which: found.pattern().as_usize(), start: found.start(), end: found.end() })
            }
        }
    }

    /// No group looks far ahead of where another has found something.
    fn find_by_windows(&self, groups: &[packed::Searcher], text: &[u8], at: usize) -> Option<Found> {
        let mut start = at;
        while start < text.len() {
            let next = start + WINDOW;
            let span = Span { start, end: next.saturating_add(self.longest).min(text.len()) };
            let found =
                groups.iter().enumerate().filter_map(|(group, search)| first_of(search, group, text, span));
            let first = found.min_by_key(|found| (found.start, usize::MAX - found.end));
            if let Some(found) = first.filter(|found| found.start < next) {
                return Some(found);
            }
            start = next;
        }
        None
    }

    /// Where the end of `text` begins that may be the beginning of one of them; its length if there is none.
    pub(super) fn held(&self, text: &[u8], from: usize) -> usize {
        let nearest = text.len().saturating_sub(self.longest.saturating_sub(1)).max(from);
        let begins = |at: &usize| text.get(*at..).is_some_and(|end| self.is_beginning(end));
        (nearest..text.len()).find(begins).unwrap_or(text.len())
    }

    /// The length of the longest.
    pub(super) fn longest(&self) -> usize {
        self.longest
    }

    /// Whether one of them begins with `text` and goes on.
    fn is_beginning(&self, text: &[u8]) -> bool {
        let can_begin = |byte: &u8| self.first.get(usize::from(*byte)).copied().unwrap_or(false);
        if !text.first().is_some_and(can_begin) {
            return false;
        }
        let after = self.sorted.partition_point(|own| own.as_slice() <= text);
        self.sorted.get(after).is_some_and(|own| own.starts_with(text))
    }
}

impl Drop for Needles {
    fn drop(&mut self) {
        self.sorted.zeroize();
    }
}

impl Search {
    fn new(texts: &[Vec<u8>]) -> Result<Search, aho_corasick::BuildError> {
        let mut config = packed::Config::new();
        config.match_kind(packed::MatchKind::LeftmostLongest);
        let groups = texts.chunks(GROUP).map(|group| config.builder().extend(group).build());
        if let Some(groups) = groups.collect() {
            return Ok(Search::Packed(groups));
        }
        let automaton = AhoCorasick::builder().match_kind(MatchKind::LeftmostLongest).build(texts)?;
        Ok(Search::Automaton(automaton))
    }
}

/// The first that a group finds.
fn first_of(search: &packed::Searcher, group: usize, text: &[u8], span: Span) -> Option<Found> {
    if span.start > span.end || span.end > text.len() {
        return None;
    }
    let found = search.find_in(text, span)?;
    let which = group * GROUP + found.pattern().as_usize();
    Some(Found { which, start: found.start(), end: found.end() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn needles(texts: &[&str]) -> Needles {
        Needles::new(&texts.iter().map(|text| text.as_bytes().to_vec()).collect::<Vec<_>>()).unwrap()
    }

    #[test]
    fn the_longest_of_those_that_begin_first_is_found() {
        let needles = needles(&["abcd", "abcdefgh", "cdef"]);

        assert_eq!(needles.find(b"xxabcdefghyy", 0), Some(Found { which: 1, start: 2, end: 10 }));
        assert_eq!(needles.find(b"xxabcdefgyy", 0), Some(Found { which: 0, start: 2, end: 6 }));
        assert_eq!(needles.find(b"xxabcdefgyy", 3), Some(Found { which: 2, start: 4, end: 8 }));
    }

    #[test]
    fn only_what_may_be_a_beginning_is_held() {
        let needles = needles(&["abcd", "bxyz"]);

        assert_eq!(needles.held(b"event: done\n\n", 0), 13);
        assert_eq!(needles.held(b"xxab", 0), 2);
        assert_eq!(needles.held(b"xxabx", 0), 3);
        assert_eq!(needles.held(b"xxabcd", 0), 6);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        #[test]
        fn few_and_many_are_found_alike(
            texts in prop::collection::vec("[ab]{3,6}", 1..6),
            many in prop::collection::vec("[cd]{3,20}", 200),
            text in "[abc]{0,60}",
        ) {
            let few: Vec<Vec<u8>> = texts.iter().map(|text| text.clone().into_bytes()).collect();
            let more: Vec<Vec<u8>> = few.iter().cloned().chain(many.into_iter().map(String::into_bytes)).collect();
            let (few, more) = (Needles::new(&few).unwrap(), Needles::new(&more).unwrap());
            let place = |found: Option<Found>| found.map(|found| (found.start, found.end));
            if !text.contains('c') {
                prop_assert_eq!(place(few.find(text.as_bytes(), 0)), place(more.find(text.as_bytes(), 0)));
            }
        }

    }

    proptest! {
        #[test]
        fn what_is_held_is_the_longest_beginning(texts in prop::collection::vec("[ab]{1,6}", 1..5), text in "[ab]{0,12}") {
            let needles = needles(&texts.iter().map(String::as_str).collect::<Vec<_>>());
            let is_beginning = |end: &str| texts.iter().any(|text| text.len() > end.len() && text.starts_with(end));
            let naive = (0..text.len()).find(|at| is_beginning(&text[*at..])).unwrap_or(text.len());
            prop_assert_eq!(needles.held(text.as_bytes(), 0), naive);
        }
    }
}
