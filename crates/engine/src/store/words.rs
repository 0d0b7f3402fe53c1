//! Names for sandboxes that were given none: an adjective and a noun.

use airlock_protocol::Name;

const ADJECTIVES: [&str; 64] = [
    "amber", "bold", "brave", "bright", "brisk", "calm", "clear", "clever", "cool", "coral", "cosy", "crisp",
    "deft", "eager", "early", "fair", "fine", "fond", "fresh", "gentle", "glad", "golden", "grand", "green",
    "happy", "hardy", "honest", "ivory", "jolly", "keen", "kind", "late", "light", "lively", "loyal",
    "lucky", "mellow", "merry", "mild", "modest", "neat", "nimble", "noble", "olive", "plain", "proud",
    "quick", "quiet", "rapid", "ready", "rosy", "sharp", "silent", "silver", "smart", "snug", "solid",
    "steady", "sunny", "swift", "tidy", "true", "warm", "wise",
];

const NOUNS: [&str; 64] = [
    "acorn", "alder", "aspen", "badger", "beacon", "beech", "birch", "bison", "breeze", "brook", "canyon",
    "cedar", "cliff", "cloud", "comet", "condor", "cove", "crane", "creek", "delta", "dune", "eagle", "elm",
    "ember", "falcon", "fern", "finch", "fjord", "forest", "fox", "glade", "grove", "harbor", "hare", "hawk",
    "heron", "hill", "island", "lake", "lark", "linden", "lynx", "maple", "marsh", "meadow", "moss", "oak",
    "ocean", "otter", "owl", "pebble", "pine", "plover", "pond", "raven", "reef", "ridge", "river", "robin",
    "spruce", "stone", "swan", "tern", "willow",
];

/// A fresh name such as `calm-otter`. From the third `attempt` on it carries a number too, so that a host with
/// thousands of sandboxes still finds a free one.
pub fn generate_name(attempt: u32) -> Name {
    let mut random = [0u8; 4];
    // Without randomness the name is merely less surprising; whether it is free is checked anyway.
    let _ = rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty());
    let [first, second, third, fourth] = random;
    let adjective = pick(&ADJECTIVES, first);
    let noun = pick(&NOUNS, second);
    let text = match attempt {
        0..3 => format!("{adjective}-{noun}"),
        _ => format!("{adjective}-{noun}-{}", u16::from_be_bytes([third, fourth])),
    };
    #[expect(clippy::expect_used, reason = "every word is made of lower-case letters, as a test checks")]
    text.parse().expect("words make names")
}

fn pick(words: &[&'static str; 64], byte: u8) -> &'static str {
    words.get(usize::from(byte & 63)).copied().unwrap_or("plain")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_is_lower_case_letters_and_used_once() {
        for words in [ADJECTIVES, NOUNS] {
            let mut sorted = words;
            sorted.sort_unstable();
            assert_eq!(sorted, words);
            assert!(sorted.windows(2).all(|pair| pair[0] != pair[1]));
            assert!(words.iter().all(|word| word.bytes().all(|byte| byte.is_ascii_lowercase())));
        }
    }

    #[test]
    fn later_attempts_carry_a_number() {
        assert_eq!(generate_name(0).as_str().matches('-').count(), 1);
        assert_eq!(generate_name(3).as_str().matches('-').count(), 2);
    }
}
