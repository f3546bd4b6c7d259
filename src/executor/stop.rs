//! The one way to end a run from our side: whoever comes first says why.

use crate::model::Meter;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::Notify;

/// Why a run is ended early.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StopCause {
    /// The caller asked, or hung up.
    Cancelled,
    /// Its grant was taken back or ran out; in the words of who did it.
    Revoked(String),
    /// The grant's budget has no more of this.
    Budget(Meter),
}

/// A run's stop signal. The first cause is the one that counts.
#[derive(Debug, Default)]
pub struct Stop {
    cause: OnceLock<StopCause>,
    said: Notify,
}

impl Stop {
    /// Ends the run, if nobody has yet.
    pub fn stop(&self, cause: StopCause) {
        if self.cause.set(cause).is_ok() {
            self.said.notify_one();
        }
    }

    /// Why it was ended, if it was.
    #[must_use]
    pub fn cause(&self) -> Option<&StopCause> {
        self.cause.get()
    }

    /// Resolves when somebody ends it. One waiter at a time.
    pub async fn stopped(&self) {
        if self.cause.get().is_none() {
            self.said.notified().await;
        }
    }
}

/// Bytes that a program may write before its budget is used up; both outputs count into one.
#[derive(Debug)]
pub(super) struct ByteBudget<'a> {
    left: Option<AtomicU64>,
    stop: &'a Stop,
}

impl<'a> ByteBudget<'a> {
    pub(super) fn new(most: Option<u64>, stop: &'a Stop) -> Self {
        Self { left: most.map(AtomicU64::new), stop }
    }

    /// Counts what was written; ends the run when it is more than there is.
    pub(super) fn count(&self, written: u64) {
        let Some(left) = &self.left else { return };
        let taken = left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(written));
        if taken.is_err() {
            self.stop.stop(StopCause::Budget(Meter::BytesOut));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_first_cause_counts_and_a_late_listener_hears_it() {
        let stop = Stop::default();
        stop.stop(StopCause::Revoked("leaked".into()));
        stop.stop(StopCause::Cancelled);
        stop.stopped().await;
        stop.stopped().await;
        assert_eq!(stop.cause(), Some(&StopCause::Revoked("leaked".into())));
    }

    #[test]
    fn a_byte_more_than_the_budget_ends_the_run() {
        let stop = Stop::default();
        let budget = ByteBudget::new(Some(10), &stop);
        budget.count(4);
        budget.count(6);
        assert_eq!(stop.cause(), None);
        budget.count(1);
        assert_eq!(stop.cause(), Some(&StopCause::Budget(Meter::BytesOut)));
        let free = Stop::default();
        ByteBudget::new(None, &free).count(u64::MAX);
        assert_eq!(free.cause(), None);
    }
}
