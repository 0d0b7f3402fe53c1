//! What a person may have meant.

/// Longest word that is compared.
const LONGEST: usize = 40;

/// The word of `among` that `word` is probably a slip of.
pub fn suggestion<'a>(word: &str, among: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    if word.len() > LONGEST {
        return None;
    }
    let word = word.to_lowercase();
    let near = (word.chars().count() / 3).clamp(1, 3);
    among
        .into_iter()
        .filter(|other| other.len() <= LONGEST)
        .map(|other| (distance(&word, other), other))
        .filter(|(distance, _)| *distance <= near)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, other)| other)
}

/// Single-character edits from one word to the other (Levenshtein).
fn distance(one: &str, other: &str) -> usize {
    let other: Vec<char> = other.chars().collect();
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (i, a) in one.chars().enumerate() {
        let mut diagonal = i;
        let mut left = i + 1;
        let mut next = vec![left];
        for (b, up) in other.iter().zip(row.iter().skip(1)) {
            left = (diagonal + usize::from(a != *b)).min(left + 1).min(up + 1);
            diagonal = *up;
            next.push(left);
        }
        row = next;
    }
    row.last().copied().unwrap_or(0)
}
