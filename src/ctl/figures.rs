//! Many times of the same thing, told in a few numbers. `sandboxctl bench` and `make bench` count alike.
#![forbid(unsafe_code)]

use std::time::Duration;

/// In order.
#[must_use]
pub fn sorted(values: impl IntoIterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    values
}

/// The smallest value that at least this share of all is not above; not a number where there are none.
#[must_use]
pub fn percentile(sorted: &[f64], share: f64) -> f64 {
    let rank = (share * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.clamp(1, sorted.len().max(1)) - 1).copied().unwrap_or(f64::NAN)
}

/// Half of all are not above it.
#[must_use]
pub fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    percentile(&sorted(values), 0.5)
}

/// Where nine of ten lie: the fifth and the ninety-fifth percentile.
#[must_use]
pub fn spread(values: impl IntoIterator<Item = f64>) -> (f64, f64) {
    let sorted = sorted(values);
    (percentile(&sorted, 0.05), percentile(&sorted, 0.95))
}

/// What the calls of one come down to.
#[derive(Debug, Clone)]
pub struct Summary {
    /// How many.
    pub calls: usize,
    /// Percentiles in milliseconds.
    pub p50: f64,
    /// The longest but one in twenty.
    pub p95: f64,
    /// The longest but one in a hundred.
    pub p99: f64,
    /// Where the medians of nine of ten rounds lie.
    pub round_p50: (f64, f64),
    /// Calls per second of the time in which it was called.
    pub per_second: f64,
}

impl Summary {
    /// Of the milliseconds of each call, by round, and the time in which they were made.
    #[must_use]
    pub fn of(rounds: &[Vec<f64>], busy: Duration) -> Self {
        let all = sorted(rounds.iter().flatten().copied());
        Self {
            calls: all.len(),
            p50: percentile(&all, 0.5),
            p95: percentile(&all, 0.95),
            p99: percentile(&all, 0.99),
            round_p50: spread(rounds.iter().map(|round| median(round.iter().copied()))),
            per_second: all.len() as f64 / busy.as_secs_f64(),
        }
    }

    /// How far this one, raw, can be trusted, in words.
    #[must_use]
    pub fn noise(&self) -> String {
        let (low, high) = self.round_p50;
        let spread = (high - low) / self.p50 * 100.0;
        let busy = if spread > BUSY_PERCENT { "; trust the ratios by round, not the milliseconds" } else { "" };
        format!(
            "raw's own p99 is {:.1} times its p50; its p50 by round lies within {low:.2} to {high:.2} ms ({spread:.0} % of it) in nine of ten{busy}",
            self.p99 / self.p50
        )
    }
}

/// A spread of raw's own medians, in percent of its median, above which the absolute numbers say little.
const BUSY_PERCENT: f64 = 50.0;

/// How the median compares with raw's, round by round: the middle of it, and where nine of ten rounds lie. The two were
/// measured within the same second, so this holds on a machine whose speed changes while we measure.
#[must_use]
pub fn ratio_by_round(own: &[Vec<f64>], raw: &[Vec<f64>]) -> (f64, f64, f64) {
    let of = |round: &Vec<f64>| median(round.iter().copied());
    let ratios = sorted(own.iter().zip(raw).map(|(own, raw)| of(own) / of(raw)));
    (percentile(&ratios, 0.5), percentile(&ratios, 0.05), percentile(&ratios, 0.95))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_is_a_value_that_was_measured() {
        let hundred = sorted((1..=100).rev().map(f64::from));
        for (share, expected) in [(0.0, 1.0), (0.5, 50.0), (0.95, 95.0), (0.99, 99.0), (1.0, 100.0)] {
            assert_eq!(percentile(&hundred, share), expected, "{share}");
        }
        assert_eq!((median([3.0, 1.0, 2.0]), spread([2.0, 1.0])), (2.0, (1.0, 2.0)));
        assert_eq!(percentile(&[7.0], 0.99), 7.0);
        assert!(median([]).is_nan(), "nothing was measured");
    }

    #[test]
    fn a_machine_that_changes_its_speed_changes_both_sides_of_a_ratio() {
        let raw = [vec![1.0, 1.0], vec![4.0, 4.0], vec![2.0, 2.0]];
        let own = [vec![2.0, 2.0], vec![8.0, 8.0], vec![4.0, 4.0]];
        assert_eq!(ratio_by_round(&own, &raw), (2.0, 2.0, 2.0));
        let summary = Summary::of(&own, Duration::from_secs(2));
        assert_eq!((summary.calls, summary.p50, summary.p99, summary.per_second), (6, 4.0, 8.0, 3.0));
        assert_eq!(summary.round_p50, (2.0, 8.0));
        assert!(
            summary.noise().ends_with("(150 % of it) in nine of ten; trust the ratios by round, not the milliseconds")
        );
    }
}
