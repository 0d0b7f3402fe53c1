//! What messages of SSH are made of (RFC 4251, section 5): read within bounds, and written.
//!
//! ```text
//! Writer::new(SERVICE_REQUEST).string(b"ssh-userauth").done()
//! ```

/// Reads a message from its beginning. What is not there is an error, and nothing is read twice.
#[derive(Debug, Clone)]
pub(crate) struct Reader<'a>(&'a [u8]);

/// A message is not what it should be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a message of SSH is cut or too long")]
pub(crate) struct Cut;

impl<'a> Reader<'a> {
    /// From the first byte.
    pub(crate) fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader(bytes)
    }

    /// So many bytes.
    pub(crate) fn bytes(&mut self, count: usize) -> Result<&'a [u8], Cut> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or(Cut)?;
        self.0 = rest;
        Ok(taken)
    }

    /// One byte.
    pub(crate) fn byte(&mut self) -> Result<u8, Cut> {
        self.bytes(1)?.first().copied().ok_or(Cut)
    }

    /// A truth.
    pub(crate) fn flag(&mut self) -> Result<bool, Cut> {
        Ok(self.byte()? != 0)
    }

    /// A number.
    pub(crate) fn number(&mut self) -> Result<u32, Cut> {
        let bytes = self.bytes(4)?;
        bytes.try_into().map(u32::from_be_bytes).map_err(|_| Cut)
    }

    /// Bytes with their count before them.
    pub(crate) fn string(&mut self) -> Result<&'a [u8], Cut> {
        let count = usize::try_from(self.number()?).map_err(|_| Cut)?;
        self.bytes(count)
    }

    /// A string that is text.
    pub(crate) fn text(&mut self) -> Result<&'a str, Cut> {
        std::str::from_utf8(self.string()?).map_err(|_| Cut)
    }

    /// A large number that is not negative, without zeros before it.
    pub(crate) fn large(&mut self) -> Result<&'a [u8], Cut> {
        let bytes = self.string()?;
        if bytes.first().is_some_and(|first| first & 0x80 != 0) {
            return Err(Cut);
        }
        let zeros = bytes.iter().take_while(|byte| **byte == 0).count();
        Ok(bytes.get(zeros..).unwrap_or_default())
    }

    /// What is left.
    #[cfg(test)]
    pub(crate) fn rest(&self) -> &'a [u8] {
        self.0
    }
}

/// Writes a message.
#[derive(Debug, Clone, Default)]
pub(crate) struct Writer(Vec<u8>);

impl Writer {
    /// A message of this kind.
    pub(crate) fn new(kind: u8) -> Writer {
        Writer(vec![kind])
    }

    /// As they are.
    pub(crate) fn bytes(mut self, bytes: &[u8]) -> Writer {
        self.0.extend_from_slice(bytes);
        self
    }

    /// A truth.
    pub(crate) fn flag(self, flag: Flag) -> Writer {
        self.bytes(&[u8::from(flag == Flag::Yes)])
    }

    /// A number.
    pub(crate) fn number(self, number: u32) -> Writer {
        self.bytes(&number.to_be_bytes())
    }

    /// Bytes with their count before them.
    pub(crate) fn string(self, bytes: &[u8]) -> Writer {
        // Nothing that is written here comes near four gigabytes.
        self.number(u32::try_from(bytes.len()).unwrap_or(u32::MAX)).bytes(bytes)
    }

    /// A large number from its bytes.
    pub(crate) fn large(self, bytes: &[u8]) -> Writer {
        let zeros = bytes.iter().take_while(|byte| **byte == 0).count();
        let plain = bytes.get(zeros..).unwrap_or_default();
        match plain.first().is_some_and(|first| first & 0x80 != 0) {
            true => self.string(&[&[0], plain].concat()),
            false => self.string(plain),
        }
    }

    /// The whole message.
    pub(crate) fn done(self) -> Vec<u8> {
        self.0
    }
}

/// A truth, as a message has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flag {
    /// It is so.
    Yes,
    /// It is not.
    No,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn large_numbers_are_written_without_zeros_and_never_negative() {
        let written = |bytes: &[u8]| Writer::default().large(bytes).done();
        assert_eq!(written(&[0, 0, 0x7f]), [0, 0, 0, 1, 0x7f]);
        assert_eq!(written(&[0x80]), [0, 0, 0, 2, 0, 0x80]);
        assert_eq!(written(&[0, 0]), [0, 0, 0, 0]);
        assert_eq!(Reader::new(&written(&[0, 0x80, 1])).large(), Ok([0x80, 1].as_slice()));
        assert_eq!(Reader::new(&[0, 0, 0, 1, 0x80]).large(), Err(Cut));
    }

    proptest! {
        #[test]
        fn what_was_written_is_read(number: u32, flag: bool, text in ".{0,40}", bytes: Vec<u8>) {
            let yes = if flag { Flag::Yes } else { Flag::No };
            let message = Writer::new(7).number(number).flag(yes).string(text.as_bytes()).string(&bytes).done();
            let mut reader = Reader::new(&message);
            prop_assert_eq!(reader.byte(), Ok(7));
            prop_assert_eq!(reader.number(), Ok(number));
            prop_assert_eq!(reader.flag(), Ok(flag));
            prop_assert_eq!(reader.text(), Ok(text.as_str()));
            prop_assert_eq!(reader.string(), Ok(bytes.as_slice()));
            prop_assert!(reader.rest().is_empty());
            for cut in 0..message.len() {
                let mut reader = Reader::new(&message[..cut]);
                let read = reader.byte().and_then(|_| reader.number()).and_then(|_| reader.flag());
                prop_assert!(read.and_then(|_| reader.string()).and_then(|_| reader.string()).is_err());
            }
        }
    }
}
