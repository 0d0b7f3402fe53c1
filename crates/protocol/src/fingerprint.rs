//! A number that tells texts apart (FNV-1a, <http://www.isthe.com/chongo/tech/comp/fnv>). Chance is all it stands against: never for
//! what somebody might choose in order to deceive.
//!
//! ```
//! use airlock_protocol::fingerprint::fingerprint;
//! assert_eq!(fingerprint(*b"a"), 0xaf63_dc4c_8601_ec8c);
//! ```

/// The number of these bytes. It is the same in every build: files are named by it.
pub fn fingerprint(bytes: impl IntoIterator<Item = u8>) -> u64 {
    bytes.into_iter().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}
