//! systemd, where it runs us and wants to hear of us (sd_notify(3)): ready, alive, stopping.
//!
//! Elsewhere nothing happens. A word that can't be sent is a line in the log and no more: systemd acts on silence.

use sd_notify::NotifyState;
use std::convert::Infallible;
use std::time::Duration;
use tokio::time::{Instant, sleep_until};

/// Signs of life in one period of the watchdog: a late one is not the end.
const BEATS: u32 = 3;

/// Who is told.
pub(super) struct Manager {
    /// Between two signs of life, if there is a watchdog.
    every: Option<Duration>,
    next: Instant,
}

impl Manager {
    /// As our environment says.
    pub(super) fn new() -> Self {
        Self { every: sd_notify::watchdog_enabled().map(|period| period / BEATS), next: Instant::now() }
    }

    /// Callers are served.
    pub(super) fn ready(&self) {
        tell(&[NotifyState::Ready]);
    }

    /// We end, and it may take so long.
    pub(super) fn stopping(&self, at_most: Duration) {
        let us = u32::try_from(at_most.as_micros()).unwrap_or(u32::MAX);
        tell(&[NotifyState::Stopping, NotifyState::ExtendTimeoutUsec(us)]);
    }

    /// Gives signs of life for as long as it is awaited: they stop when whoever awaits it hangs.
    pub(super) async fn beat(&mut self) -> Infallible {
        let Some(every) = self.every else { return std::future::pending().await };
        loop {
            sleep_until(self.next).await;
            tell(&[NotifyState::Watchdog]);
            self.next = Instant::now() + every;
        }
    }
}

fn tell(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!(%error, ?states, "could not tell systemd");
    }
}
