//! Amounts as people write them: `10s`, `500ms`, `256M`, `1.5GiB`. Pure, and exact: no floating point.
#![forbid(unsafe_code)]

/// Units of time, in milliseconds. A bare number is milliseconds, as on the wire.
const TIME_UNITS: &[(&str, u64)] = &[("ms", 1), ("s", 1000), ("m", 60_000), ("min", 60_000), ("h", 3_600_000)];

/// Units of size, in bytes. `M`, `MB` and `MiB` all mean 2^20, as for other tools that limit memory.
const SIZE_UNITS: &[(&str, u64)] = &[
    ("b", 1),
    ("k", 1 << 10),
    ("kb", 1 << 10),
    ("kib", 1 << 10),
    ("m", 1 << 20),
    ("mb", 1 << 20),
    ("mib", 1 << 20),
    ("g", 1 << 30),
    ("gb", 1 << 30),
    ("gib", 1 << 30),
    ("t", 1 << 40),
    ("tb", 1 << 40),
    ("tib", 1 << 40),
];

/// Most digits behind the point; more would be below a byte of a tebibyte anyway.
const FRACTION_DIGITS_MAX: usize = 9;

/// Why a text is not an amount.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AmountError {
    /// It does not begin with a number.
    #[error("not a number with a unit; write it like {example}")]
    NoNumber {
        /// One that would do.
        example: &'static str,
    },
    /// A unit that we don't know.
    #[error("unknown unit {unit:?}; write it like {example}")]
    UnknownUnit {
        /// What stands there.
        unit: String,
        /// One that would do.
        example: &'static str,
    },
    /// `1.5` of what? A guess would be wrong by a factor of a thousand.
    #[error("a fraction needs a unit; write it like {example}")]
    FractionWithoutUnit {
        /// One that would do.
        example: &'static str,
    },
    /// More than 2^64 - 1.
    #[error("too large to be counted")]
    TooLarge,
}

/// A duration in milliseconds.
pub fn duration_ms(text: &str) -> Result<u64, AmountError> {
    scaled(text.trim(), TIME_UNITS, "10s, 500ms or 10000 (milliseconds)")
}

/// A size in bytes; units in either case.
pub fn size_bytes(text: &str) -> Result<u64, AmountError> {
    scaled(&text.trim().to_ascii_lowercase(), SIZE_UNITS, "256M, 1.5G or 268435456 (bytes)")
}

fn scaled(text: &str, units: &[(&str, u64)], example: &'static str) -> Result<u64, AmountError> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = (&text[..end], text[end..].trim_start());
    let (whole, fraction) = number.split_once('.').map_or((number, None), |(whole, fraction)| (whole, Some(fraction)));
    let no_number = AmountError::NoNumber { example };
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    if !digits(whole) || fraction.is_some_and(|text| !digits(text) || text.len() > FRACTION_DIGITS_MAX) {
        return Err(no_number);
    }
    let scale = match units.iter().find(|(name, _)| *name == unit) {
        Some(&(_, scale)) => u128::from(scale),
        None if !unit.is_empty() => return Err(AmountError::UnknownUnit { unit: unit.to_owned(), example }),
        None if fraction.is_some() => return Err(AmountError::FractionWithoutUnit { example }),
        None => 1,
    };
    // A u64 in range times the largest unit fits into 128 bits with room to spare.
    let whole = u128::from(whole.parse::<u64>().map_err(|_| AmountError::TooLarge)?) * scale;
    let part = match fraction {
        None => 0,
        Some(text) => {
            let places = u32::try_from(text.len()).map_err(|_| no_number.clone())?;
            u128::from(text.parse::<u64>().map_err(|_| no_number)?) * scale / 10u128.pow(places)
        }
    };
    u64::try_from(whole + part).map_err(|_| AmountError::TooLarge)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_as_milliseconds() {
        for (text, ms) in [
            ("10s", 10_000),
            ("500ms", 500),
            ("10000", 10_000),
            ("1.5s", 1500),
            ("2m", 120_000),
            ("1min", 60_000),
            ("1h", 3_600_000),
            (" 10 s ", 10_000),
            ("0", 0),
        ] {
            assert_eq!(duration_ms(text), Ok(ms), "{text:?}");
        }
    }

    #[test]
    fn sizes_are_read_as_bytes_in_powers_of_two() {
        for (text, bytes) in [
            ("256M", 268_435_456),
            ("256m", 268_435_456),
            ("256MB", 268_435_456),
            ("256MiB", 268_435_456),
            ("1.5G", 1_610_612_736),
            ("64k", 65_536),
            ("1T", 1 << 40),
            ("4096", 4096),
            ("4096B", 4096),
        ] {
            assert_eq!(size_bytes(text), Ok(bytes), "{text:?}");
        }
    }

    #[test]
    fn what_is_not_an_amount_is_refused() {
        for text in ["", " ", "s", "-1s", "+1s", ".5s", "1.s", "1.2.3s", "ten", "0x10", "1e3", "1.0123456789s"] {
            assert!(duration_ms(text).is_err(), "{text:?}");
        }
        assert!(matches!(duration_ms("10 parsecs"), Err(AmountError::UnknownUnit { .. })));
        assert!(matches!(duration_ms("10S"), Err(AmountError::UnknownUnit { .. })), "M could be months or minutes");
        assert!(matches!(size_bytes("10s"), Err(AmountError::UnknownUnit { .. })));
        assert!(matches!(size_bytes("٣M"), Err(AmountError::NoNumber { .. })), "digits of other scripts");
    }

    #[test]
    fn a_fraction_without_a_unit_is_not_guessed_at() {
        assert!(matches!(duration_ms("1.5"), Err(AmountError::FractionWithoutUnit { .. })));
    }

    #[test]
    fn the_edges_of_the_number_line_do_not_wrap() {
        assert_eq!(size_bytes("18446744073709551615"), Ok(u64::MAX));
        for text in ["18446744073709551616", "18446744073709551615k", "16777216T", "99999999999999999999999"] {
            assert_eq!(size_bytes(text), Err(AmountError::TooLarge), "{text:?}");
        }
    }
}
