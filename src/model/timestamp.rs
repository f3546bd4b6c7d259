//! Times: milliseconds since 1970 inside, RFC 3339 in UTC on the wire. It has no clock.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

const DAY_MS: u64 = 24 * 3600 * 1000;
/// The last millisecond of the year 9999, where RFC 3339 ends.
const LAST_MS: u64 = 253_402_300_799_999;

/// A moment from 1970 to 9999.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Timestamp(u64);

/// Not a time.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not an RFC 3339 time such as 2026-01-30T12:00:00Z")]
pub struct TimestampError(String);

impl Timestamp {
    /// The moment so many milliseconds after 1970; what lies behind the year 9999 is its end.
    #[must_use]
    pub const fn from_ms(ms: u64) -> Self {
        Self(if ms > LAST_MS { LAST_MS } else { ms })
    }

    /// Milliseconds since 1970.
    #[must_use]
    pub const fn ms(self) -> u64 {
        self.0
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (year, month, day) = civil(self.0 / DAY_MS);
        let ms = self.0 % DAY_MS;
        let (hour, minute, second) = (ms / 3_600_000, ms / 60_000 % 60, ms / 1000 % 60);
        write!(f, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{:03}Z", ms % 1000)
    }
}

/// Year, month and day of a day since 1970. Howard Hinnant's civil_from_days, for days from 1970 on.
fn civil(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468; // since 0000-03-01
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153; // months from March
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day_of_year - (153 * shifted + 2) / 5 + 1)
}

/// The other way round, for years from 1969 on (a time zone can reach back over the new year).
fn days(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let (era, year_of_era) = (year / 400, year % 400);
    let day_of_year = (153 * (if month > 2 { month - 3 } else { month + 9 }) + 2) / 5 + day - 1;
    era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 719_468
}

fn parse(text: &str) -> Option<u64> {
    let number = |from: usize, to: usize| -> Option<i64> {
        let digits = text.get(from..to)?;
        digits.bytes().all(|b| b.is_ascii_digit()).then(|| digits.parse().ok())?
    };
    let mark = |place: usize, marks: &[u8]| text.as_bytes().get(place).filter(|byte| marks.contains(byte)).map(drop);
    let (year, month, day) = (number(0, 4)?, number(5, 7)?, number(8, 10)?);
    let (hour, minute, second) = (number(11, 13)?, number(14, 16)?, number(17, 19)?);
    for (place, marks) in [(4, &b"-"[..]), (7, b"-"), (10, b"Tt"), (13, b":"), (16, b":")] {
        mark(place, marks)?;
    }
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let month_days = match month {
        2 => 28 + i64::from(leap),
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    };
    if !(1..=12).contains(&month) || !(1..=month_days).contains(&day) || hour > 23 || minute > 59 || second > 59 {
        return None;
    }
    let rest = &text[19..];
    let (fraction, zone) = match rest.strip_prefix('.') {
        None => (0, rest),
        Some(rest) => {
            let end = rest.bytes().take_while(u8::is_ascii_digit).count();
            let digits = rest.get(..end.min(3)).filter(|digits| !digits.is_empty())?;
            (format!("{digits:0<3}").parse::<i64>().ok()?, &rest[end..])
        }
    };
    let offset = match (zone, zone.len()) {
        ("Z" | "z", _) => 0,
        (_, 6) => {
            let zone_at = text.len() - 6;
            mark(zone_at, b"+-")?;
            mark(zone_at + 3, b":")?;
            let (hours, minutes) = (number(zone_at + 1, zone_at + 3)?, number(zone_at + 4, zone_at + 6)?);
            if hours > 23 || minutes > 59 {
                return None;
            }
            (hours * 60 + minutes) * if zone.starts_with('-') { -1 } else { 1 }
        }
        _ => return None,
    };
    let seconds = days(year, month, day) * 86_400 + hour * 3600 + (minute - offset) * 60 + second;
    u64::try_from(seconds * 1000 + fraction).ok().filter(|ms| *ms <= LAST_MS)
}

impl FromStr for Timestamp {
    type Err = TimestampError;
    fn from_str(text: &str) -> Result<Self, TimestampError> {
        parse(text).map(Self).ok_or_else(|| TimestampError(text.chars().take(64).collect()))
    }
}

impl TryFrom<String> for Timestamp {
    type Error = TimestampError;
    fn try_from(text: String) -> Result<Self, TimestampError> {
        text.parse()
    }
}

impl From<Timestamp> for String {
    fn from(timestamp: Timestamp) -> String {
        timestamp.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn known_moments() {
        for (text, ms) in [
            ("1970-01-01T00:00:00Z", 0),
            ("1970-01-01T00:00:00.001Z", 1),
            ("2000-02-29T12:34:56.789Z", 951_827_696_789),
            ("2001-09-09T01:46:40Z", 1_000_000_000_000),
            ("2026-01-30T00:00:00+00:00", 1_769_731_200_000),
            ("2026-01-30t01:30:00.5+01:30", 1_769_731_200_500),
            ("2026-01-29T23:00:00-01:00", 1_769_731_200_000),
            ("2026-01-30T00:00:00.123456789z", 1_769_731_200_123),
            ("9999-12-31T23:59:59.999Z", LAST_MS),
        ] {
            assert_eq!(text.parse(), Ok(Timestamp(ms)), "{text}");
        }
        assert_eq!(Timestamp(1_769_731_200_500).to_string(), "2026-01-30T00:00:00.500Z");
        assert_eq!(Timestamp::from_ms(u64::MAX).to_string(), "9999-12-31T23:59:59.999Z");
    }

    #[test]
    fn what_is_no_time_is_refused() {
        for bad in [
            "",
            "2026",
            "2026-01-30",
            "2026-01-30 00:00:00Z",
            "2026-01-30T00:00:00",
            "2026-13-01T00:00:00Z",
            "2026-02-29T00:00:00Z",
            "2026-01-30T24:00:00Z",
            "2026-01-30T00:60:00Z",
            "2026-01-30T00:00:60Z",
            "2026-01-30T00:00:00.Z",
            "2026-01-30T00:00:00+1:00",
            "2026-01-30T00:00:00+24:00",
            "1969-12-31T23:59:59Z",
            "1970-01-01T00:00:00+01:00",
            "+026-01-30T00:00:00Z",
            "2026-01-30T00:00:00Z ",
            "9999-12-31T23:59:59-01:00",
            "2026-00-10T00:00:00Z",
            "2026-01-00T00:00:00Z",
            "2026-01-30T00:00:00é",
            "ééééééééééééé",
        ] {
            assert!(bad.parse::<Timestamp>().is_err(), "{bad:?}");
        }
    }

    proptest! {
        #[test]
        fn a_moment_survives_the_wire(ms in 0..=LAST_MS) {
            let text = serde_json::to_string(&Timestamp(ms)).expect("a string");
            prop_assert_eq!(serde_json::from_str::<Timestamp>(&text).expect("the same"), Timestamp(ms));
        }

        #[test]
        fn no_text_makes_it_panic(text in "\\PC{0,40}|[0-9T:.Z+-]{0,32}") {
            let _ = text.parse::<Timestamp>();
        }
    }
}
