//! Fields of a record, in a fixed order: what `isolation/image.rs` and `isolation/order.rs` write.
#![forbid(unsafe_code)]

use core::ffi::CStr;

/// Reads fields from the front of what is left. None: the record is not what it should be.
#[derive(Clone, Copy)]
pub struct Fields<'a>(pub &'a [u8]);

impl<'a> Fields<'a> {
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*taken)
    }

    pub fn u8(&mut self) -> Option<u8> {
        self.array::<1>().map(|[byte]| byte)
    }

    pub fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    pub fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    /// Bytes behind their number.
    pub fn bytes(&mut self) -> Option<&'a [u8]> {
        let len = self.u32()? as usize;
        let (taken, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(taken)
    }

    /// Bytes up to and with the next NUL.
    pub fn word(&mut self) -> Option<&'a CStr> {
        let word = CStr::from_bytes_until_nul(self.0).ok()?;
        self.0 = self.0.get(word.to_bytes_with_nul().len()..)?;
        Some(word)
    }
}
