//! Certificates in PEM (RFC 7468), as files of many of them have it.

use data_encoding::BASE64;

const BEGIN: &[u8] = b"-----BEGIN CERTIFICATE-----";
const END: &[u8] = b"-----END CERTIFICATE-----";

/// Every certificate of a text in DER. What is between them, and what cannot be read, is left out.
pub fn certificates(text: &[u8]) -> Vec<Vec<u8>> {
    let mut found = Vec::new();
    let mut rest = text;
    while let Some((_, after)) = split(rest, BEGIN) {
        let Some((body, behind)) = split(after, END) else { break };
        let bare: Vec<u8> = body.iter().copied().filter(|byte| !byte.is_ascii_whitespace()).collect();
        found.extend(BASE64.decode(&bare).ok().filter(|der| !der.is_empty()));
        rest = behind;
    }
    found
}

fn split<'t>(text: &'t [u8], mark: &[u8]) -> Option<(&'t [u8], &'t [u8])> {
    let at = text.windows(mark.len()).position(|window| window == mark)?;
    Some((text.get(..at)?, text.get(at.checked_add(mark.len())?..)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn every_certificate_is_found_and_what_is_between_is_not() {
        let text = b"# a\n-----BEGIN CERTIFICATE-----\nAAEC\nAwQF\n-----END CERTIFICATE-----\r\nnoise\n\
            -----BEGIN CERTIFICATE-----\n!!\n-----END CERTIFICATE-----\n-----BEGIN CERTIFICATE-----\r\nBgc=\r\n-----END CERTIFICATE-----";
        assert_eq!(certificates(text), [vec![0, 1, 2, 3, 4, 5], vec![6, 7]]);
        assert!(certificates(b"-----BEGIN CERTIFICATE-----\nAAEC\n").is_empty());
    }

    proptest! {
        #[test]
        fn any_bytes_are_read(text in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = certificates(&text);
        }
    }
}
