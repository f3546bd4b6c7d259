//! Ids of records, and digests.

use crate::model::ExecId;
use serde::de::{Deserialize, Deserializer};
use serde::ser::{Serialize, Serializer};
use sha2::{Digest as _, Sha256};
use std::fmt;
use std::str::FromStr;

/// Id of one record: `ev_` and 26 digits. That of a begin is the id of the whole operation.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EvidenceId(String);

/// Not `ev_` and 26 digits.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not an id of a record (ev_ and 26 characters)")]
pub struct NotAnId;

impl EvidenceId {
    /// A new id that can't be guessed and sorts by time of creation.
    #[must_use]
    pub fn generate() -> Self {
        // The same digits as an exec's; only the kind in front differs.
        Self(ExecId::generate().as_str().replacen("ex_", "ev_", 1))
    }

    /// The id as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for EvidenceId {
    type Err = NotAnId;
    fn from_str(text: &str) -> Result<Self, NotAnId> {
        let digits = text.strip_prefix("ev_").ok_or(NotAnId)?;
        format!("ex_{digits}").parse::<ExecId>().map_err(|_| NotAnId)?;
        Ok(Self(text.to_owned()))
    }
}

impl fmt::Display for EvidenceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for EvidenceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Serialize for EvidenceId {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(&self.0)
    }
}

/// A SHA-256, 64 digits in records and answers. Also a link of the chain.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Digest(pub [u8; 32]);

/// Not 64 hexadecimal digits.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not a digest (64 hexadecimal digits)")]
pub struct NotADigest;

impl Digest {
    /// The digest of some bytes.
    #[must_use]
    pub fn of(bytes: impl AsRef<[u8]>) -> Self {
        Self(Sha256::digest(bytes).into())
    }
}

impl FromStr for Digest {
    type Err = NotADigest;
    fn from_str(text: &str) -> Result<Self, NotADigest> {
        let mut bytes = [0; 32];
        unhex(text.as_bytes(), &mut bytes).then_some(Self(bytes)).ok_or(NotADigest)
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = [0; 64];
        f.write_str(hex(&self.0, &mut text))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

impl Serialize for Digest {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        let mut text = [0; 64];
        s.serialize_str(hex(&self.0, &mut text))
    }
}

/// `bytes` in hexadecimal, written to `text`, which has twice as many places.
pub(super) fn hex<'t>(bytes: &[u8], text: &'t mut [u8]) -> &'t str {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    for (byte, pair) in bytes.iter().zip(text.chunks_exact_mut(2)) {
        pair[0] = DIGITS[usize::from(byte >> 4)];
        pair[1] = DIGITS[usize::from(byte & 15)];
    }
    std::str::from_utf8(text).expect("hexadecimal digits are text")
}

/// Reads lower-case hexadecimal; whether it is that and fills `bytes`.
pub(super) fn unhex(text: &[u8], bytes: &mut [u8]) -> bool {
    let digit = |c: u8| match c {
        b'0'..=b'9' => Some(c - b'0'),
        b'a'..=b'f' => Some(c - b'a' + 10),
        _ => None,
    };
    text.len() == bytes.len() * 2
        && text.chunks_exact(2).zip(bytes).all(|(pair, byte)| match (digit(pair[0]), digit(pair[1])) {
            (Some(high), Some(low)) => {
                *byte = high << 4 | low;
                true
            }
            _ => false,
        })
}

/// The first half of a digest: enough to tell what this daemon wrote apart, and it stands in every end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Short(pub [u8; 16]);

impl Short {
    pub(super) fn of(text: &str) -> Self {
        let digest = Digest::of(text).0;
        Self(digest[..16].try_into().expect("16 of 32 bytes"))
    }

    pub(super) fn parse(text: &str) -> Option<Self> {
        let mut bytes = [0; 16];
        unhex(text.as_bytes(), &mut bytes).then_some(Self(bytes))
    }
}

impl Serialize for Short {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        let mut text = [0; 32];
        s.serialize_str(hex(&self.0, &mut text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_and_ids_read_back_and_nothing_else_does() {
        let digest = Digest::of("x");
        assert_eq!(digest.to_string().parse(), Ok(digest));
        for bad in ["", "00", &"g".repeat(64), &"A".repeat(64), &"0".repeat(63)] {
            assert_eq!(bad.parse::<Digest>(), Err(NotADigest), "{bad}");
        }
        let id = EvidenceId::generate();
        assert_eq!(id.as_str().parse(), Ok(id.clone()));
        assert_eq!(id.as_str().replace("ev_", "ex_").parse::<EvidenceId>(), Err(NotAnId));
    }
}
