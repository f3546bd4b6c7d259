//! Fields of a record: little endian, in a fixed order, each with a bound.
#![forbid(unsafe_code)]

use super::protocol::{ProtocolError, RunNumber, VERSION};

/// Writes the fields of a record.
pub(super) struct Writer(pub(super) Vec<u8>);

impl Writer {
    pub(super) fn new(tag: u8) -> Self {
        Self(vec![VERSION, tag])
    }
    pub(super) fn u8(mut self, value: u8) -> Self {
        self.0.push(value);
        self
    }
    pub(super) fn u16(mut self, value: u16) -> Self {
        self.0.extend(value.to_le_bytes());
        self
    }
    pub(super) fn i32(mut self, value: i32) -> Self {
        self.0.extend(value.to_le_bytes());
        self
    }
    pub(super) fn u64(mut self, value: u64) -> Self {
        self.0.extend(value.to_le_bytes());
        self
    }
    /// A count that may be absent: one flag byte and the number, 0 where it is absent.
    pub(super) fn maybe(self, value: Option<u64>) -> Self {
        self.u8(value.is_some().into()).u64(value.unwrap_or(0))
    }
    /// A short text: one length byte and the bytes. Ids are far below 255 bytes.
    pub(super) fn text(mut self, value: &str) -> Self {
        self.0.push(u8::try_from(value.len()).expect("ids are shorter than 256 bytes"));
        self.0.extend(value.as_bytes());
        self
    }
}

/// Reads the fields of a record.
pub(super) struct Reader<'a>(pub(super) &'a [u8]);

impl<'a> Reader<'a> {
    /// Checks the version and gives the tag.
    pub(super) fn open(bytes: &'a [u8]) -> Result<(u8, Self), ProtocolError> {
        let mut reader = Self(bytes);
        match reader.u8("version")? {
            VERSION => Ok((reader.u8("tag")?, reader)),
            other => Err(ProtocolError::Version(other)),
        }
    }
    pub(super) fn take(&mut self, len: usize, field: &'static str) -> Result<&'a [u8], ProtocolError> {
        let (taken, rest) = self.0.split_at_checked(len).ok_or(ProtocolError::Short(field))?;
        self.0 = rest;
        Ok(taken)
    }
    pub(super) fn array<const N: usize>(&mut self, field: &'static str) -> Result<[u8; N], ProtocolError> {
        Ok(self.take(N, field)?.try_into().expect("take gave N bytes"))
    }
    pub(super) fn u8(&mut self, field: &'static str) -> Result<u8, ProtocolError> {
        Ok(self.array::<1>(field)?[0])
    }
    pub(super) fn u16(&mut self, field: &'static str) -> Result<u16, ProtocolError> {
        self.array(field).map(u16::from_le_bytes)
    }
    pub(super) fn i32(&mut self, field: &'static str) -> Result<i32, ProtocolError> {
        self.array(field).map(i32::from_le_bytes)
    }
    pub(super) fn u64(&mut self, field: &'static str) -> Result<u64, ProtocolError> {
        self.array(field).map(u64::from_le_bytes)
    }
    pub(super) fn flag(&mut self, field: &'static str) -> Result<bool, ProtocolError> {
        match self.u8(field)? {
            0 => Ok(false),
            1 => Ok(true),
            other => Err(ProtocolError::Unknown(field, other)),
        }
    }
    pub(super) fn maybe(&mut self, field: &'static str) -> Result<Option<u64>, ProtocolError> {
        match (self.flag(field)?, self.u64(field)?) {
            (true, value) => Ok(Some(value)),
            (false, 0) => Ok(None),
            (false, _) => Err(ProtocolError::Unknown(field, 0)),
        }
    }
    pub(super) fn id<T: std::str::FromStr>(&mut self, field: &'static str) -> Result<T, ProtocolError> {
        let len = self.u8(field)?;
        let bytes = self.take(len.into(), field)?;
        let text = std::str::from_utf8(bytes).map_err(|_| ProtocolError::Id(field))?;
        text.parse().map_err(|_| ProtocolError::Id(field))
    }
    pub(super) fn number(&mut self) -> Result<RunNumber, ProtocolError> {
        self.u64("run number").map(RunNumber)
    }
    pub(super) fn end(self) -> Result<(), ProtocolError> {
        if self.0.is_empty() { Ok(()) } else { Err(ProtocolError::Long(self.0.len())) }
    }
}
