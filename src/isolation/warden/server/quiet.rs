//! What the warden does when nobody waits for it: takes apart what was used and builds what will be.
//!
//! ```text
//! run ends ─▶ told ─▶ its init rests ┄┄ silence, or too many rest ─▶ killed ─▶ finish: namespaces, groups and ranges come back
//!                                    ┄┄ silence, or little waits ──▶ one sandbox is built
//! ```
//!
//! Both take a processor for about a millisecond, and the kernel's own part of it (grace periods, interrupts on every
//! processor, locks that a start needs as well) disturbs whoever runs beside it. Within a burst neither is done if it can wait.
#![forbid(unsafe_code)]

use super::Server;
use crate::isolation::warden::held::Held;
use std::time::{Duration, Instant};

/// The pool is filled when no run has begun or ended for this long: a fork holds the loop up for about a millisecond.
pub(super) const QUIET: Duration = Duration::from_millis(2);
/// Sandboxes whose run is over that wait for such silence to be taken apart; with more of them the oldest goes.
const SPENT_MAX: usize = 64;
/// The same when a shelf is bare, or there is none: then runs build their own, and can use the groups of those before them.
const SPENT_FEW: usize = 4;
/// So many are killed in one turn of the loop: a run that comes meanwhile waits for the end of no more.
const AT_ONCE: usize = 4;
/// In which time they are gone. One that is not holds nothing up any more.
pub(super) const FALL: Duration = Duration::from_millis(50);
/// One whose run used more memory than this goes at once: its files may still hold some of it.
pub(super) const LIGHT: u64 = 16 << 20;
/// A run is likely to end within this time; if it does, what is built meanwhile would be in its way.
const SHORT_RUN: Duration = Duration::from_millis(10);
/// A front that always asks does not starve the pool: so long after something is missing it is built all the same,
const BUILD_GAP: Duration = Duration::from_millis(100);
/// sooner if little is left for those who ask next,
const LOW_BUILD_GAP: Duration = Duration::from_millis(5);
/// and at once if nothing is left and they ask one after the other, no further apart than this: there will be no silence to
/// build in.
pub(super) const RUSH: Duration = Duration::from_millis(5);
/// Unless more runs than these are under way: then each builds its own, and what is built between them is in their way.
const ALONE: usize = 2;
/// After this much silence no group waits to be used again: an idle daemon holds its waiting sandboxes and nothing else.
pub(super) const IDLE: Duration = Duration::from_millis(30);
/// After this much the id maps of workspaces and the network namespaces that rest go as well: they take long to make.
pub(super) const MAPS_IDLE: Duration = Duration::from_secs(1);

impl Server {
    /// Whether some were killed whose end will be seen any moment.
    pub(super) fn some_fall(&self, now: Instant) -> bool {
        !self.falling.is_empty() && now < self.killed + FALL
    }

    /// Kills what rests when nothing stirs, and the oldest of too many; `finish` comes when their end is seen.
    pub(super) fn take_apart(&mut self, now: Instant) {
        let fall = self.some_fall(now);
        if !fall {
            self.falling.clear();
        }
        let kept = if now >= self.stirred + QUIET {
            0
        } else if self.pool.is_bare() || self.pool.is_empty() {
            SPENT_FEW
        } else {
            SPENT_MAX
        };
        let some = if fall { 0 } else { self.spent.len().saturating_sub(kept).min(AT_ONCE) };
        // However long they fall: no more than these rest.
        let too_many = some.max(self.spent.len().saturating_sub(SPENT_MAX));
        for slot in self.spent.drain(..too_many) {
            // One that died by itself is gone.
            if let Some(held) = self.held.get(&slot) {
                held.sandbox.kill();
                self.falling.insert(slot);
                self.killed = now;
            }
        }
    }

    /// When the pool may be filled: nothing stirs and no run is young, or too much is missing for too long.
    pub(super) fn may_build(&self) -> Instant {
        let youngest = self.held.values().filter_map(Held::running).map(|run| run.begun + SHORT_RUN).max();
        let silent = youngest.into_iter().fold(self.stirred + QUIET, Instant::max);
        let gap = if self.rushed && self.runs.len() <= ALONE && self.pool.is_bare() {
            Duration::ZERO
        } else if self.pool.is_low() {
            LOW_BUILD_GAP
        } else {
            BUILD_GAP
        };
        self.lacking.map_or(silent, |since| silent.min(since + gap))
    }

    /// One thing for the pool: let go of what is too much, or build what is missing. One per turn, so that a run that
    /// comes meanwhile waits for one fork at most.
    pub(super) fn look_after_pool(&mut self, now: Instant) {
        for slot in self.pool.surplus(now) {
            self.discard(slot);
        }
        // What is still to be built takes the groups that rest.
        if now >= self.heard + IDLE && !self.pool.is_lacking() {
            self.grounds.tree.trim();
        }
        if now >= self.heard + MAPS_IDLE {
            self.grounds.nets.borrow_mut().trim();
            self.ranges.drop_maps();
        }
        if now < self.may_build() {
            return;
        }
        if let Some(profile) = self.pool.wanted(now) {
            match self.build(profile) {
                Ok(slot) => self.pool.put(profile, slot, now),
                Err(refused) => {
                    tracing::warn!(profile, ?refused, "could not build a sandbox ahead; runs build their own");
                    self.pool.failed(profile, now);
                }
            }
            self.lacking = None;
        }
    }
}
