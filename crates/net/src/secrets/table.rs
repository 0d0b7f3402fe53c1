//! Finds many texts at once, also where one begins in one piece and ends in the next.

use aho_corasick::{AhoCorasick, MatchKind, packed};

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
    /// There is nothing to look for.
    Nothing,
    /// Vector instructions; for few texts.
    Packed(Box<packed::Searcher>),
    /// For many.
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
        let rest = text.get(at..)?;
        let (which, start, end) = match &self.search {
            Search::Nothing => return None,
            Search::Packed(search) => {
                search.find(rest).map(|found| (found.pattern().as_usize(), found.start(), found.end()))
            }
            Search::Automaton(search) => {
                search.find(rest).map(|found| (found.pattern().as_usize(), found.start(), found.end()))
            }
        }?;
        Some(Found { which, start: start + at, end: end + at })
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

impl Search {
    fn new(texts: &[Vec<u8>]) -> Result<Search, aho_corasick::BuildError> {
        if texts.is_empty() {
            return Ok(Search::Nothing);
        }
        let mut config = packed::Config::new();
        let builder = config.match_kind(packed::MatchKind::LeftmostLongest).builder().extend(texts).build();
        if let Some(packed) = builder {
            return Ok(Search::Packed(Box::new(packed)));
        }
        let automaton = AhoCorasick::builder().match_kind(MatchKind::LeftmostLongest).build(texts)?;
        Ok(Search::Automaton(automaton))
    }
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

        #[test]
        fn what_is_held_is_the_longest_beginning(texts in prop::collection::vec("[ab]{1,6}", 1..5), text in "[ab]{0,12}") {
            let needles = needles(&texts.iter().map(String::as_str).collect::<Vec<_>>());
            let is_beginning = |end: &str| texts.iter().any(|text| text.len() > end.len() && text.starts_with(end));
            let naive = (0..text.len()).find(|at| is_beginning(&text[*at..])).unwrap_or(text.len());
            prop_assert_eq!(needles.held(text.as_bytes(), 0), naive);
        }
    }
}
