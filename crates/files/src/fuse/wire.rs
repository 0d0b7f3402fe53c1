//! Bytes to numbers and back, as the kernel has them (include/uapi/linux/fuse.h): this machine's byte order.

/// The bytes that are left of a message.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Bytes<'a> {
        Bytes(bytes)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*first)
    }

    pub(super) fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_ne_bytes)
    }

    pub(super) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_ne_bytes)
    }

    pub(super) fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_ne_bytes)
    }

    pub(super) fn skip(&mut self, count: usize) -> Option<()> {
        self.0 = self.0.get(count..)?;
        Some(())
    }

    /// Up to the next NUL, which is taken too.
    pub(super) fn text(&mut self) -> Option<&'a [u8]> {
        let end = self.0.iter().position(|byte| *byte == 0)?;
        let (text, rest) = self.0.split_at_checked(end)?;
        self.0 = rest.get(1..)?;
        Some(text)
    }

    pub(super) fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }
}

/// Numbers are appended to an answer.
pub(super) trait Put {
    fn put16(&mut self, number: u16);
    fn put32(&mut self, number: u32);
    fn put64(&mut self, number: u64);
}

impl Put for Vec<u8> {
    fn put16(&mut self, number: u16) {
        self.extend_from_slice(&number.to_ne_bytes());
    }

    fn put32(&mut self, number: u32) {
        self.extend_from_slice(&number.to_ne_bytes());
    }

    fn put64(&mut self, number: u64) {
        self.extend_from_slice(&number.to_ne_bytes());
    }
}
