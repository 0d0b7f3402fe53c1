//! The forms in which a text may stand in a message: as it is, percent-encoded, escaped for JSON and HTML, and inside base64
//! at each of its three alignments. Pure.

use data_encoding::{BASE64_NOPAD, BASE64URL_NOPAD, Encoding};
use std::fmt::Write as _;

/// How a text is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// As it is.
    Plain,
    /// With some characters as `%2F` or `%2f`, by one of several habits.
    Percent(Habit),
    /// As the inside of a string of JSON, by one of several habits.
    Json(Escapes),
    /// As text of HTML.
    Html(&'static str),
    /// Inside base64: so many bytes behind a multiple of three, in this alphabet.
    Base64(usize, Alphabet),
}

/// Which characters are percent-encoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Habit {
    /// Left as they are, beside letters and digits.
    pub(super) left: &'static [u8],
    /// Whether a space becomes `+`.
    pub(super) plus: bool,
    /// Whether hexadecimal digits are small.
    pub(super) small: bool,
}

/// Which characters are escaped in JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Escapes {
    /// Written as `\u003c`, beside what has to be.
    pub(super) unicode: &'static str,
    /// Whether a slash becomes `\/`.
    pub(super) slash: bool,
    /// Whether hexadecimal digits are small.
    pub(super) small: bool,
}

/// The two alphabets of base64.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Alphabet {
    /// With `+` and `/`.
    Standard,
    /// With `-` and `_`.
    Url,
}

/// RFC 3986, 2.3.
pub(super) const UNRESERVED: &[u8] = b"-._~";
/// What `encodeURIComponent` leaves.
const COMPONENT: &[u8] = b"-._~!'()*";
/// What is left in paths by some.
const SLASHES: &[u8] = b"-._~/";
/// What forms leave (the URL standard, application/x-www-form-urlencoded).
const FORM: &[u8] = b"-._*";

const EVERY: [Form; 22] = [
    Form::Plain,
    percent(UNRESERVED, false, false),
    percent(UNRESERVED, false, true),
    percent(COMPONENT, false, false),
    percent(COMPONENT, false, true),
    percent(SLASHES, false, false),
    percent(SLASHES, false, true),
    percent(FORM, true, false),
    percent(FORM, true, true),
    json("", false, true),
    json("", true, true),
    json("<>&", false, true),
    json("<>&'=", false, true),
    json("<>&'+\"`", false, false),
    Form::Html("&#39;"),
    Form::Html("&#x27;"),
    Form::Base64(0, Alphabet::Standard),
    Form::Base64(1, Alphabet::Standard),
    Form::Base64(2, Alphabet::Standard),
    Form::Base64(0, Alphabet::Url),
    Form::Base64(1, Alphabet::Url),
    Form::Base64(2, Alphabet::Url),
];

const fn percent(left: &'static [u8], plus: bool, small: bool) -> Form {
    Form::Percent(Habit { left, plus, small })
}

const fn json(unicode: &'static str, slash: bool, small: bool) -> Form {
    Form::Json(Escapes { unicode, slash, small })
}

/// Every way in which `text` may stand somewhere; each once.
pub(super) fn every(text: &str) -> Vec<(Form, Vec<u8>)> {
    let mut found: Vec<(Form, Vec<u8>)> = Vec::new();
    for form in EVERY {
        let written = form.write(text);
        if !found.iter().any(|(_, other)| *other == written) {
            found.push((form, written));
        }
    }
    found
}

impl Form {
    /// `text` in this form; for base64 those characters that it alone decides.
    pub(super) fn write(self, text: &str) -> Vec<u8> {
        match self {
            Form::Plain => text.as_bytes().to_vec(),
            Form::Percent(habit) => habit.encode(text.as_bytes()).into_bytes(),
            Form::Json(escapes) => escapes.encode(text).into_bytes(),
            Form::Html(apostrophe) => html(text, apostrophe).into_bytes(),
            Form::Base64(shift, alphabet) => core(text.as_bytes(), shift, alphabet.encoding()),
        }
    }
}

impl Habit {
    /// Percent-encoded, as queries need it.
    pub(super) const STRICT: Habit = Habit { left: UNRESERVED, plus: false, small: false };

    /// Percent-encodes.
    pub(super) fn encode(self, bytes: &[u8]) -> String {
        let mut text = String::with_capacity(bytes.len());
        for byte in bytes {
            let _ = match *byte {
                b' ' if self.plus => text.write_char('+'),
                byte if byte.is_ascii_alphanumeric() || self.left.contains(&byte) => {
                    text.write_char(char::from(byte))
                }
                byte if self.small => write!(text, "%{byte:02x}"),
                byte => write!(text, "%{byte:02X}"),
            };
        }
        text
    }
}

impl Escapes {
    /// What has to be escaped, and nothing else.
    pub(super) const LEAST: Escapes = Escapes { unicode: "", slash: false, small: true };

    /// The inside of a string of JSON.
    pub(super) fn encode(self, text: &str) -> String {
        let mut written = String::with_capacity(text.len());
        for c in text.chars() {
            let _ = match c {
                c if self.unicode.contains(c) && self.small => write!(written, "\\u{:04x}", u32::from(c)),
                c if self.unicode.contains(c) => write!(written, "\\u{:04X}", u32::from(c)),
                '"' | '\\' => write!(written, "\\{c}"),
                '/' if self.slash => write!(written, "\\/"),
                c => written.write_char(c),
            };
        }
        written
    }
}

impl Alphabet {
    fn encoding(self) -> Encoding {
        match self {
            Alphabet::Standard => BASE64_NOPAD,
            Alphabet::Url => BASE64URL_NOPAD,
        }
    }
}

fn html(text: &str, apostrophe: &str) -> String {
    let mut written = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => written.push_str("&amp;"),
            '<' => written.push_str("&lt;"),
            '>' => written.push_str("&gt;"),
            '"' => written.push_str("&quot;"),
            '\'' => written.push_str(apostrophe),
            c => written.push(c),
        }
    }
    written
}

/// The characters of base64 that `bytes` alone decide when `shift` unknown bytes stand before them.
fn core(bytes: &[u8], shift: usize, encoding: Encoding) -> Vec<u8> {
    let mut whole = vec![0; shift];
    whole.extend_from_slice(bytes);
    let decided = whole.len() * 8 / 6;
    let undecided = (shift * 8).div_ceil(6);
    let encoded = encoding.encode(&whole).into_bytes();
    encoded.get(undecided..decided).unwrap_or_default().to_vec()
}

/// `text` made as long as `length` bytes, by repeating or cutting it. Only for ASCII.
pub(super) fn fitted(text: &str, length: usize) -> String {
    text.chars().cycle().take(length).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn forms(text: &str) -> Vec<String> {
        every(text).into_iter().map(|(_, form)| String::from_utf8(form).unwrap()).collect()
    }

    #[test]
    fn a_plain_token_has_few_forms() {
        assert_eq!(
            forms("sk-abcdefgh123456"),
            [
                "sk-abcdefgh123456",
                "c2stYWJjZGVmZ2gxMjM0NT",
                "NrLWFiY2RlZmdoMTIzNDU2",
                "zay1hYmNkZWZnaDEyMzQ1N"
            ]
        );
    }

    #[test]
    fn symbols_are_written_in_many_ways() {
        let forms = forms("a/b+c=d\"e&f g");
        for form in ["a%2Fb%2Bc%3Dd%22e%26f%20g", "a%2fb%2bc%3dd%22e%26f%20g", "a/b%2Bc%3Dd%22e%26f%20g"] {
            assert!(forms.iter().any(|found| found == form), "{form} {forms:?}");
        }
        for form in [
            "a%2Fb%2Bc%3Dd%22e%26f+g",
            "a\\/b+c=d\\\"e&f g",
            "a/b+c=d\\\"e\\u0026f g",
            "a/b+c=d&quot;e&amp;f g",
        ] {
            assert!(forms.iter().any(|found| found == form), "{form} {forms:?}");
        }
    }

    proptest! {
        #[test]
        fn wherever_a_text_stands_in_base64_one_form_is_found(
            before in prop::collection::vec(any::<u8>(), 0..7),
            text in "[ -~]{8,40}",
            after in prop::collection::vec(any::<u8>(), 0..7),
        ) {
            let whole = [&before[..], text.as_bytes(), &after].concat();
            for encoded in [data_encoding::BASE64.encode(&whole), data_encoding::BASE64URL.encode(&whole)] {
                prop_assert!(forms(&text).iter().any(|form| encoded.contains(form)), "{encoded}");
            }
        }

        #[test]
        fn forms_of_texts_of_one_length_in_base64_are_of_one_length(one in "[ -~]{12}", other in "[ -~]{12}") {
            for (form, written) in every(&one) {
                if let Form::Base64(..) = form {
                    prop_assert_eq!(written.len(), form.write(&other).len());
                }
            }
        }
    }
}
