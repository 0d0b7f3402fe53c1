//! What stands for a value inside: as long as it, of the same shape, and nothing of it but a prefix that everybody knows.
//!
//! Programs look at keys before they use them: their prefix, their length, their characters. A placeholder passes such looks.
//! It holds letters and digits only, beside the prefix, the dots of a token, the dashes of a UUID and `=` at the end; so it
//! reads the same in a URL, in JSON and in a shell.

/// Shortest value. Shorter ones would be found everywhere by chance.
const SHORTEST: usize = 8;
/// Longest value.
const LONGEST: usize = 8 * 1024;
/// Characters behind a prefix that are kept at least for chance.
const LEAST_RANDOM: usize = 8;

/// Prefixes of well known keys, longer ones before what they begin with.
const PREFIXES: [&str; 49] = [
    "sk-ant-api03-",
    "sk-ant-oat01-",
    "sk-ant-ort01-",
    "sk-ant-admin01-",
    "sk-ant-",
    "sk-proj-",
    "sk-svcacct-",
    "sk-or-v1-",
    "sk-lf-",
    "sk-",
    "github_pat_",
    "ghp_",
    "gho_",
    "ghu_",
    "ghs_",
    "ghr_",
    "glpat-",
    "gldt-",
    "glrt-",
    "glcbt-",
    "glsoat-",
    "npm_",
    "pypi-",
    "cio",
    "dckr_pat_",
    "dckr_oat_",
    "hf_",
    "gsk_",
    "r8_",
    "AIza",
    "ya29.",
    "1//",
    "AKIA",
    "ASIA",
    "xoxb-",
    "xoxp-",
    "xoxe-",
    "xapp-",
    "sk_live_",
    "sk_test_",
    "rk_live_",
    "rk_test_",
    "whsec_",
    "SG.",
    "dop_v1_",
    "lin_api_",
    "ntn_",
    "xai-",
    "eyJ",
];

const LOWER: &[u8] = b"abcdefghijklmnopqrstuvwxyz";
const UPPER: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ";
const DIGITS: &[u8] = b"0123456789";

/// Why a text cannot be a secret's value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadValue {
    /// Too short.
    #[error("it has {0} bytes; a secret has at least {SHORTEST}")]
    Short(usize),
    /// Too long.
    #[error("it has {0} bytes; a secret has at most {LONGEST}")]
    Long(usize),
    /// A line end or another control character: it could end a header and begin another.
    #[error("it holds {0}; a secret is one line of text")]
    Control(&'static str),
}

/// Whether a text can be a secret's value.
pub fn check(value: &str) -> Result<(), BadValue> {
    let control = value.bytes().find_map(|byte| match byte {
        b'\r' | b'\n' => Some("a line end"),
        0 => Some("a NUL"),
        byte if byte.is_ascii_control() => Some("a control character"),
        _ => None,
    });
    match (control, value.len()) {
        (Some(what), _) => Err(BadValue::Control(what)),
        (None, length) if length < SHORTEST => Err(BadValue::Short(length)),
        (None, length) if length > LONGEST => Err(BadValue::Long(length)),
        (None, _) => Ok(()),
    }
}

/// A placeholder for `value`; `random` fills its argument with random bytes.
///
/// ```
/// let random = |bytes: &mut [u8]| bytes.fill(7); // the kernel's, outside of examples
/// let made = airlock_gate::secrets::placeholder("ghp_0123456789abcdefghijABCDEFGHIJ012345", random)?;
/// assert!(made.starts_with("ghp_") && made.len() == 40);
/// # Ok::<(), airlock_gate::secrets::BadValue>(())
/// ```
pub fn placeholder(value: &str, mut random: impl FnMut(&mut [u8])) -> Result<String, BadValue> {
    check(value)?;
    let prefix = prefix(value);
    let rest = value.as_bytes().get(prefix.len()..).unwrap_or_default();
    let shape = Shape::of(prefix, rest);
    let padding = rest.iter().rev().take_while(|byte| **byte == b'=').count().min(2);
    let body = rest.len() - padding;
    let mut made = prefix.to_owned();
    for (at, byte) in rest.iter().enumerate() {
        made.push(match byte {
            b'=' if at >= body => '=',
            b'.' if shape.keeps_dots => '.',
            b'-' if shape.keeps_dashes => '-',
            _ => pick(&shape.letters, &mut random),
        });
    }
    Ok(made)
}

/// A known prefix, if enough is left behind it.
fn prefix(value: &str) -> &'static str {
    let known = PREFIXES.into_iter().find(|prefix| value.starts_with(prefix)).unwrap_or("");
    if value.len() < known.len() + LEAST_RANDOM { "" } else { known }
}

/// What the part behind the prefix is made of.
struct Shape {
    letters: Vec<u8>,
    keeps_dots: bool,
    keeps_dashes: bool,
}

impl Shape {
    fn of(prefix: &str, rest: &[u8]) -> Shape {
        let has = |class: &[u8]| rest.iter().any(|byte| class.contains(byte));
        let only =
            |classes: &[&[u8]]| rest.iter().all(|byte| classes.iter().any(|class| class.contains(byte)));
        let mut letters = Vec::new();
        if only(&[DIGITS, b"abcdef-"]) && has(b"abcdef") {
            letters.extend_from_slice(b"0123456789abcdef");
        } else if only(&[DIGITS, b"ABCDEF-"]) && has(b"ABCDEF") {
            letters.extend_from_slice(b"0123456789ABCDEF");
        } else {
            for class in [DIGITS, LOWER, UPPER] {
                if has(class) {
                    letters.extend_from_slice(class);
                }
            }
        }
        // Symbols alone, or another script: what stands for it is plain text all the same.
        if letters.is_empty() {
            letters.extend_from_slice(LOWER);
        }
        Shape { letters, keeps_dots: prefix == "eyJ", keeps_dashes: is_uuid(rest) }
    }
}

fn is_uuid(rest: &[u8]) -> bool {
    let groups: Vec<usize> = rest.split(|byte| *byte == b'-').map(<[u8]>::len).collect();
    groups == [8, 4, 4, 4, 12] && rest.iter().all(|byte| byte.is_ascii_hexdigit() || *byte == b'-')
}

/// One of `letters`, each as likely as the others.
fn pick(letters: &[u8], random: &mut impl FnMut(&mut [u8])) -> char {
    let count = letters.len().max(1);
    let fair = 256 - 256 % count;
    for _ in 0..64 {
        let mut byte = [0];
        random(&mut byte);
        let [byte] = byte;
        if usize::from(byte) < fair {
            return letters.get(usize::from(byte) % count).map_or('x', |letter| char::from(*letter));
        }
    }
    // Nobody's random bytes are all that large.
    'x'
}
