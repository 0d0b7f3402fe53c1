//! Hostile bytes for what looks for secrets.

use super::{
    decode::Decoder,
    swap::Swap,
    table::{Found, Needles},
};
use crate::fuzz::{cut, run};
use hyper::body::Bytes;
use std::{convert::Infallible, io::Write as _};

const SOUGHT: [&[u8]; 3] = [b"sk-secret-value", b"c2stc2VjcmV0", b"aab"];

fn swapped(needles: &Needles, pieces: &[&[u8]]) -> Vec<u8> {
    let instead = |found: Found| Ok::<_, Infallible>(vec![b'*'; found.end - found.start]);
    let (mut swap, mut out) = (Swap::default(), Vec::new());
    for piece in pieces {
        out.extend_from_slice(&swap.push(needles, Bytes::copy_from_slice(piece), instead).unwrap());
    }
    out.extend_from_slice(&swap.flush(needles, instead).unwrap());
    out
}

#[test]
fn nothing_that_is_sought_comes_out_however_a_body_is_cut() {
    let needles = Needles::new(&SOUGHT.map(<[u8]>::to_vec)).unwrap();
    let seeds: [&[u8]; 3] =
        [b"{\"key\": \"sk-secret-value\"}", b"aaaaab sk-secret-sk-secret-value", b"c2stc2VjcmV0aab"];
    run(&seeds, |input| {
        let whole = swapped(&needles, &[input]);
        let (first, second) = cut(input);
        assert_eq!(swapped(&needles, &[first, second]), whole);
        assert_eq!(swapped(&needles, &input.chunks(1).collect::<Vec<_>>()), whole);
        assert_eq!(whole.len(), input.len());
        for sought in SOUGHT {
            assert!(!whole.windows(sought.len()).any(|window| window == sought));
        }
        let stars = whole.iter().filter(|byte| **byte == b'*').count();
        format!("{} {}", stars, whole.len() / 32)
    });
}

#[test]
fn any_body_is_decoded_in_bounds_or_refused() {
    let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    packer.write_all(&[b'x'; 20_000]).unwrap();
    let (gzip, zstd) = (packer.finish().unwrap(), zstd::encode_all(&[b'x'; 20_000][..], 3).unwrap());
    for (encoding, seeds) in [
        ("gzip", [gzip.as_slice(), b"\x1f\x8b"]),
        ("zstd", [&zstd, b""]),
        ("br", [b"\x0b\x02\x80hello\x03", b"\x3b"]),
    ] {
        run(&seeds, |input| {
            let decoded = |pieces: &[&[u8]]| {
                let mut decoder = Decoder::new(encoding).unwrap().unwrap();
                let mut out = Vec::new();
                for piece in pieces {
                    out.extend(decoder.piece(piece)?);
                }
                out.extend(decoder.end()?);
                Ok::<_, super::decode::Undecoded>(out)
            };
            let whole = decoded(&[input]);
            let (first, second) = cut(input);
            if let (Ok(whole), Ok(cut)) = (&whole, &decoded(&[first, second])) {
                assert_eq!(whole, cut);
            }
            assert!(whole.as_ref().map_or(0, Vec::len) <= 16 << 20);
            format!("{:?}", whole.map(|out| out.len() / 64))
        });
    }
}
