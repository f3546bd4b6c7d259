//! What records are found by: each name that a filter may ask for, as one number.
//!
//! A number is four bits of which name it is and 59 of the name itself. Two names may share a number, so whoever finds a
//! record by one still looks at its line. Ids of records and execs, of which there are always new ones, sort by time, as
//! the ids do: they go to one end of the index, which keeps it small and its pages few.

use std::borrow::Cow;

/// Bits of a number that are the name's.
const NAME_BITS: u32 = 59;
/// Bits of an id that are its milliseconds.
const TIME_BITS: u32 = 48;

/// Which name it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Field {
    Id = 1,
    Tenant,
    Subject,
    Exec,
    Sandbox,
    Grant,
    Status,
    Code,
}

/// The names of one record.
#[derive(Debug, Default)]
pub(super) struct Names<'a> {
    pub id: Option<&'a str>,
    /// The begin that it ends: found under both ids.
    pub begin: Option<&'a str>,
    pub tenant: Option<Cow<'a, str>>,
    pub subject: Option<Cow<'a, str>>,
    pub exec_id: Option<Cow<'a, str>>,
    pub sandbox_id: Option<Cow<'a, str>>,
    pub grant_id: Option<Cow<'a, str>>,
    pub status: Option<&'a str>,
    pub code: Option<Cow<'a, str>>,
}

impl Names<'_> {
    /// Adds the numbers of all names, each once.
    pub(super) fn keys(&self, keys: &mut Vec<i64>) {
        let first = keys.len();
        let mut add = |field, name: Option<&str>| {
            if let Some(name) = name {
                let key = key(field, name);
                if !keys[first..].contains(&key) {
                    keys.push(key);
                }
            }
        };
        add(Field::Id, self.id);
        add(Field::Id, self.begin);
        add(Field::Tenant, self.tenant.as_deref());
        add(Field::Subject, self.subject.as_deref());
        add(Field::Exec, self.exec_id.as_deref());
        add(Field::Sandbox, self.sandbox_id.as_deref());
        add(Field::Grant, self.grant_id.as_deref());
        add(Field::Status, self.status);
        add(Field::Code, self.code.as_deref());
    }
}

/// The number of a name.
pub(super) fn key(field: Field, name: &str) -> i64 {
    let hash = fnv(name.as_bytes());
    let time = matches!(field, Field::Id | Field::Exec).then(|| time_of(name)).flatten();
    let number = match time {
        Some(time) => time << (NAME_BITS - TIME_BITS) | hash >> (64 - NAME_BITS + TIME_BITS),
        None => hash >> (64 - NAME_BITS),
    };
    i64::try_from((field as u64) << NAME_BITS | number).expect("fields are below 16")
}

/// The milliseconds of an id of ours: two letters, `_`, 26 digits of 5 bits that hold 130, of which an id uses 128.
fn time_of(name: &str) -> Option<u64> {
    let digits = name.as_bytes().get(3..29).filter(|_| name.len() == 29 && name.as_bytes()[2] == b'_')?;
    digits[..10].iter().try_fold(0, |value, &c| {
        let digit = match c {
            b'0'..=b'9' => c - b'0',
            b'a'..=b'h' => c - b'a' + 10,
            b'j' | b'k' => c - b'j' + 18,
            b'm' | b'n' => c - b'm' + 20,
            b'p'..=b't' => c - b'p' + 22,
            b'v'..=b'z' => c - b'v' + 27,
            _ => return None,
        };
        // The two bits that an id does not use are zero; in another text they fall off the front.
        Some((value << 5 | u64::from(digit)) & ((1 << TIME_BITS) - 1))
    })
}

/// FNV-1a, 64 bits.
fn fnv(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::ExecId;

    #[test]
    fn ids_keep_their_order_and_other_names_are_spread() {
        let early = key(Field::Exec, "ex_01m7000000zzzzzzzzzzzzzzzz");
        let late = key(Field::Exec, "ex_01m70000010000000000000000");
        assert!(early < late && early > 0);
        let ids: Vec<_> = (0..64).map(|_| key(Field::Id, ExecId::generate().as_str())).collect();
        assert!(ids.windows(2).filter(|pair| pair[0] == pair[1]).count() < 8, "random bits are in it: {ids:?}");
        assert_ne!(key(Field::Tenant, "acme"), key(Field::Subject, "acme"));
        assert_ne!(key(Field::Tenant, "acme"), key(Field::Tenant, "acmf"));
    }

    #[test]
    fn every_digit_of_an_id_has_its_value() {
        let alphabet = b"0123456789abcdefghjkmnpqrstvwxyz";
        for (value, &digit) in alphabet.iter().enumerate() {
            let id = format!("ev_000000000{}0000000000000000", char::from(digit));
            assert_eq!(time_of(&id), Some(value as u64), "{id}");
        }
        assert_eq!(time_of("ev_u0000000000000000000000000"), None);
        assert_eq!(time_of("ev_7zzzzzzzzz0000000000000000"), Some((1 << TIME_BITS) - 1));
    }
}
