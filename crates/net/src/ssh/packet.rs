//! Packets of SSH (RFC 4253, section 6), plain before keys are agreed on, then with AES-GCM as OpenSSH has it (RFC 5647 and
//! `PROTOCOL` there): four bytes of length in the clear, then the sealed rest, then sixteen bytes of tag.

use aws_lc_rs::aead::{AES_128_GCM, AES_256_GCM, Aad, Algorithm, LessSafeKey, Nonce, UnboundKey};

/// The longest packet that is read: RFC 4253 asks for 35,000; OpenSSH takes 256 KiB.
pub(crate) const LONGEST: usize = 256 * 1024;
/// With one key. Everybody agrees on new ones long before.
const MOST_PACKETS: u64 = 1 << 31;
const BLOCK: usize = 16;
const TAG: usize = 16;
const LENGTH: usize = 4;

/// A cipher, by the name that is agreed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cipher {
    /// `aes128-gcm@openssh.com`
    Aes128,
    /// `aes256-gcm@openssh.com`
    Aes256,
}

impl Cipher {
    /// Those that are offered, best first.
    pub(crate) const ALL: [Cipher; 2] = [Cipher::Aes128, Cipher::Aes256];

    /// As it is agreed on.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Cipher::Aes128 => "aes128-gcm@openssh.com",
            Cipher::Aes256 => "aes256-gcm@openssh.com",
        }
    }

    fn algorithm(self) -> &'static Algorithm {
        match self {
            Cipher::Aes128 => &AES_128_GCM,
            Cipher::Aes256 => &AES_256_GCM,
        }
    }

    /// How long its key is.
    pub(crate) fn key_length(self) -> usize {
        self.algorithm().key_len()
    }
}

/// A packet cannot be read, or not be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Broken {
    /// Its length is impossible.
    #[error("a packet of SSH has an impossible length")]
    Length,
    /// It was changed on its way.
    #[error("a packet of SSH was not sealed with the keys that were agreed on")]
    Seal,
    /// Too many packets with one key.
    #[error("too much was sent with one key")]
    Worn,
}

/// What seals one direction.
pub(crate) struct Sealed {
    key: LessSafeKey,
    fixed: [u8; 4],
    /// The second part of the nonce: each packet has its own.
    invocation: u64,
    count: u64,
}

impl Sealed {
    /// `key` has the length that the cipher wants, `first` is the first nonce.
    pub(crate) fn new(cipher: Cipher, key: &[u8], first: &[u8]) -> Result<Sealed, Broken> {
        let key = UnboundKey::new(cipher.algorithm(), key).map_err(|_| Broken::Seal)?;
        let (fixed, invocation) = first.split_at_checked(4).ok_or(Broken::Seal)?;
        let fixed = fixed.try_into().map_err(|_| Broken::Seal)?;
        let invocation = u64::from_be_bytes(invocation.try_into().map_err(|_| Broken::Seal)?);
        Ok(Sealed { key: LessSafeKey::new(key), fixed, invocation, count: 0 })
    }

    fn nonce(&mut self) -> Result<Nonce, Broken> {
        if self.count >= MOST_PACKETS {
            return Err(Broken::Worn);
        }
        self.count += 1;
        let mut nonce = [0; 12];
        let (fixed, counted) = nonce.split_at_mut(4);
        fixed.copy_from_slice(&self.fixed);
        counted.copy_from_slice(&self.invocation.to_be_bytes());
        self.invocation = self.invocation.wrapping_add(1);
        Ok(Nonce::assume_unique_for_key(nonce))
    }
}

/// Appends a packet with this message to `out`.
pub(crate) fn write(sealed: Option<&mut Sealed>, message: &[u8], out: &mut Vec<u8>) -> Result<(), Broken> {
    // What is padded is the sealed part; in a plain packet the length counts too (RFC 4253, section 6).
    let (block, counted) = if sealed.is_some() { (BLOCK, 1) } else { (8, LENGTH + 1) };
    let over = (message.len() + counted) % block;
    let padding = if block - over < 4 { 2 * block - over } else { block - over };
    let length = u32::try_from(1 + message.len() + padding).map_err(|_| Broken::Length)?;
    let begin = out.len();
    out.extend_from_slice(&length.to_be_bytes());
    out.push(u8::try_from(padding).map_err(|_| Broken::Length)?);
    out.extend_from_slice(message);
    out.resize(out.len() + padding, 0);
    let Some(sealed) = sealed else { return Ok(()) };
    let nonce = sealed.nonce()?;
    let body = out.get_mut(begin + LENGTH..).ok_or(Broken::Length)?;
    let tag = sealed
        .key
        .seal_in_place_separate_tag(nonce, Aad::from(length.to_be_bytes()), body)
        .map_err(|_| Broken::Seal)?;
    out.extend_from_slice(tag.as_ref());
    Ok(())
}

/// The message of the first packet of `bytes`, which is taken away; none if it is not whole yet.
pub(crate) fn read(sealed: Option<&mut Sealed>, bytes: &mut Vec<u8>) -> Result<Option<Vec<u8>>, Broken> {
    let Some(first) = bytes.first_chunk::<LENGTH>().copied() else { return Ok(None) };
    let length = usize::try_from(u32::from_be_bytes(first)).map_err(|_| Broken::Length)?;
    let tag = if sealed.is_some() { TAG } else { 0 };
    let is_aligned =
        if sealed.is_some() { length.is_multiple_of(BLOCK) } else { (length + LENGTH).is_multiple_of(8) };
    if !(6..=LONGEST).contains(&length) || !is_aligned {
        return Err(Broken::Length);
    }
    let whole = LENGTH + length + tag;
    if bytes.len() < whole {
        return Ok(None);
    }
    let mut packet: Vec<u8> = bytes.drain(..whole).skip(LENGTH).collect();
    if let Some(sealed) = sealed {
        let nonce = sealed.nonce()?;
        let opened = sealed.key.open_in_place(nonce, Aad::from(first), &mut packet);
        let length = opened.map_err(|_| Broken::Seal)?.len();
        packet.truncate(length);
    }
    let padding = usize::from(*packet.first().ok_or(Broken::Length)?);
    let end = packet.len().checked_sub(padding).filter(|end| padding >= 4 && *end >= 2);
    packet.truncate(end.ok_or(Broken::Length)?);
    packet.remove(0);
    Ok(Some(packet))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sealed(cipher: Cipher) -> Sealed {
        Sealed::new(cipher, &vec![7; cipher.key_length()], &[9; 12]).unwrap()
    }

    #[test]
    fn a_packet_that_was_changed_is_refused_wherever_it_was() {
        let mut out = Vec::new();
        write(Some(&mut sealed(Cipher::Aes128)), b"\x5ehello", &mut out).unwrap();

        for place in 0..out.len() {
            let mut changed = out.clone();
            changed[place] ^= 1;
            let read = read(Some(&mut sealed(Cipher::Aes128)), &mut changed);
            assert!(matches!(read, Err(_) | Ok(None)), "byte {place}: {read:?}");
        }
    }

    #[test]
    fn the_same_packet_is_not_taken_twice() {
        let mut out = Vec::new();
        write(Some(&mut sealed(Cipher::Aes256)), b"\x5ehello", &mut out).unwrap();
        let mut twice = [out.clone(), out].concat();
        let mut seal = sealed(Cipher::Aes256);

        assert_eq!(read(Some(&mut seal), &mut twice), Ok(Some(b"\x5ehello".to_vec())));
        assert_eq!(read(Some(&mut seal), &mut twice), Err(Broken::Seal));
    }

    proptest! {
        #[test]
        fn what_was_written_is_read(messages in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 1..300), 1..6), is_plain: bool) {
            let (mut one, mut other) = (sealed(Cipher::Aes128), sealed(Cipher::Aes128));
            let mut out = Vec::new();
            for message in &messages {
                write((!is_plain).then_some(&mut one), message, &mut out).unwrap();
            }
            for message in &messages {
                let read = read((!is_plain).then_some(&mut other), &mut out);
                prop_assert_eq!(read, Ok(Some(message.clone())));
            }
            prop_assert!(out.is_empty());
        }

        #[test]
        fn any_bytes_are_taken(mut bytes in proptest::collection::vec(any::<u8>(), 0..64), is_plain: bool) {
            let _ = read((!is_plain).then_some(&mut sealed(Cipher::Aes128)), &mut bytes);
        }
    }
}
