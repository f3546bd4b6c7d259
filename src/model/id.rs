//! Ids as types. An id that reached this module is safe to use as a directory name.

use std::cell::RefCell;
use std::fmt;
use std::time::{SystemTime, UNIX_EPOCH};

/// Crockford's alphabet in lower case: no i, l, o, u, so ids survive being read aloud.
const ALPHABET: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";
/// 128 bits in 5-bit digits.
const DIGITS: usize = 26;
/// Longest project id; it becomes one directory name and stays readable in a table.
const PROJECT_ID_MAX: usize = 64;

/// Why a string is not an id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IdError {
    /// Not `ex_` followed by 26 digits.
    #[error("not an exec id (ex_ and 26 characters)")]
    ExecId,
    /// Not a safe directory name.
    #[error("a project id has 1 to 64 characters of A-Z a-z 0-9 . _ - and does not begin with a dot")]
    ProjectId,
}

/// Id of one exec: `ex_` and 26 digits that sort by time of creation.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ExecId(String);

impl ExecId {
    /// A new id: 48 bits of milliseconds, then 80 random bits, so that ids can't be guessed.
    #[must_use]
    pub fn generate() -> Self {
        Self(format!("ex_{}", fresh_digits()))
    }

    /// The id as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl std::str::FromStr for ExecId {
    type Err = IdError;
    fn from_str(text: &str) -> Result<Self, IdError> {
        let digits = text.strip_prefix("ex_").ok_or(IdError::ExecId)?;
        let known = digits.len() == DIGITS && digits.bytes().all(|b| ALPHABET.contains(&b));
        known.then(|| Self(text.to_owned())).ok_or(IdError::ExecId)
    }
}

/// Id of a project, chosen by the caller; one directory below `workspace/projects`.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ProjectId(String);

impl ProjectId {
    /// The id as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl std::str::FromStr for ProjectId {
    type Err = IdError;
    fn from_str(text: &str) -> Result<Self, IdError> {
        let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
        // A leading dot is kept for the daemon's own names (and excludes "." and "..").
        let safe = (1..=PROJECT_ID_MAX).contains(&text.len()) && !text.starts_with('.') && text.bytes().all(plain);
        safe.then(|| Self(text.to_owned())).ok_or(IdError::ProjectId)
    }
}

macro_rules! ids {
    ($($(#[$doc:meta])* $id:ident = $prefix:literal;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $id(String);

        impl $id {
            /// A new id that can't be guessed and sorts by time of creation.
            #[must_use]
            pub fn generate() -> Self {
                Self(format!("{}{}", $prefix, fresh_digits()))
            }

            /// The id as text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        /// Any text is taken: an id that nobody made is simply not found.
        impl From<&str> for $id {
            fn from(text: &str) -> Self { Self(text.to_owned()) }
        }
        impl From<String> for $id {
            fn from(text: String) -> Self { Self(text) }
        }
        impl<'de> serde::Deserialize<'de> for $id {
            fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
                String::deserialize(d).map(Self)
            }
        }
    )*};
}

ids! {
    /// Id of a token: `tk_` and 26 digits. Not a secret.
    TokenId = "tk_";
    /// Id of a grant: `gr_` and 26 digits.
    GrantId = "gr_";
    /// Id of a confirmation: `cf_` and 26 digits.
    ConfirmationId = "cf_";
    /// Id of a sandbox: `sb_` and 26 digits.
    SandboxId = "sb_";
    /// Id of a snapshot: `sn_` and 26 digits.
    SnapshotId = "sn_";
}

macro_rules! show_as_text {
    ($($id:ty),*) => {$(
        impl fmt::Display for $id {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result { f.write_str(&self.0) }
        }
        impl fmt::Debug for $id {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result { f.write_str(&self.0) }
        }
        impl serde::Serialize for $id {
            fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> { s.serialize_str(&self.0) }
        }
    )*};
}
show_as_text!(ExecId, ProjectId, TokenId, GrantId, ConfirmationId, SandboxId, SnapshotId);

/// 48 bits of milliseconds, then 80 random bits.
fn fresh_digits() -> String {
    let millis = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_millis());
    digits((millis << 80) | (random_u128() >> 48))
}

fn digits(mut value: u128) -> String {
    let mut text = [b'0'; DIGITS];
    for place in text.iter_mut().rev() {
        *place = ALPHABET[(value & 31) as usize];
        value >>= 5;
    }
    text.iter().map(|&b| char::from(b)).collect()
}

/// Random bytes that a thread asks the kernel for at once: what it gives without a chance of failure (random(4)).
const RANDOM_BYTES: usize = 256;

/// 128 random bits from the kernel. An exec needs half a dozen ids, so they are fetched ahead; what was given is wiped.
fn random_u128() -> u128 {
    thread_local! {
        static AHEAD: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
    }
    AHEAD.with_borrow_mut(|ahead| {
        if ahead.is_empty() {
            ahead.resize(RANDOM_BYTES, 0);
            let filled = rustix::rand::getrandom(&mut *ahead, rustix::rand::GetRandomFlags::empty());
            assert_eq!(filled, Ok(RANDOM_BYTES), "getrandom(2) of 256 bytes does not fail once the pool is up");
        }
        let (rest, taken) = ahead.split_last_chunk_mut::<16>().expect("it holds a whole number of them");
        let (left, value) = (rest.len(), u128::from_le_bytes(*taken));
        taken.fill(0);
        ahead.truncate(left);
        value
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exec_ids_are_distinct_and_read_back() {
        let (a, b) = (ExecId::generate(), ExecId::generate());
        assert_ne!(a, b);
        assert_eq!(a.as_str().len(), 3 + DIGITS);
        assert_eq!(a.as_str().parse::<ExecId>(), Ok(a.clone()));
    }

    #[test]
    fn ids_carry_their_kind() {
        assert!(TokenId::generate().as_str().starts_with("tk_"));
        assert!(SandboxId::generate().as_str().starts_with("sb_"));
        let id = GrantId::generate();
        assert!(id.as_str().starts_with("gr_") && id.as_str().len() == 29, "{id}");
    }

    #[test]
    fn exec_ids_sort_by_time() {
        let early = digits(1u128 << 80);
        let late = digits(2u128 << 80);
        assert!(early < late);
    }

    #[test]
    fn ids_that_are_not_directory_names_are_refused() {
        for bad in ["", ".", "..", ".hidden", "a/b", "a b", "a\0b", "ä", &"x".repeat(65)] {
            assert_eq!(bad.parse::<ProjectId>(), Err(IdError::ProjectId), "{bad:?}");
        }
        for good in ["p1", "a.b-c_D", &"x".repeat(64)] {
            assert!(good.parse::<ProjectId>().is_ok(), "{good:?}");
        }
        for bad in ["", "ex_", "ex_../../etc", "ex_0000000000000000000000000U"] {
            assert_eq!(bad.parse::<ExecId>(), Err(IdError::ExecId), "{bad:?}");
        }
    }
}
