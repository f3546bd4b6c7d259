//! Which sandboxes wait, and how many should. Pure: it holds numbers, the clock comes in as an argument.
//!
//! ```text
//! build ─▶ waiting ─▶ taken (once, then it is the run's)          target  one more with each miss, up to max;
//!             └─▶ let go: aged, too many, drained, dead                   every PERIOD half of what nobody needed less
//! ```
//!
//! A sandbox that waits has nothing of any caller: it was built from its profile alone. It is handed out once and never
//! comes back. An empty shelf is no error: the run builds its own.
#![forbid(unsafe_code)]

use super::protocol::{PoolGauges, STATS_MAX};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// How often targets are looked at.
const PERIOD: Duration = Duration::from_secs(10);
/// A sandbox that has waited this long is replaced: it should not see the host as it was hours ago.
const AGE_MAX: Duration = Duration::from_secs(600);
/// After a sandbox that could not be built, or died no older than this; doubled with each further one, so that a host
/// that can't build any is left alone.
const FAILURE_DELAY: Duration = Duration::from_millis(100);
/// Doublings of it, at most: ten seconds or so.
const FAILURES_MAX: u32 = 7;

/// So many that wait are not few, however many more are wanted: enough for those who ask while the next ones are built.
const FEW: usize = 8;

/// Number of one sandbox in the warden's life; never used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Slot(pub(super) u64);

/// How many sandboxes of each profile may wait. A `max` of zero is no pool at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolBounds {
    /// At least so many, asked for or not.
    pub min: u16,
    /// At most so many.
    pub max: u16,
}

/// The waiting sandboxes of one profile.
#[derive(Debug)]
struct Shelf {
    /// False for a profile that can't run on this host.
    usable: bool,
    /// The one that waits longest first, with the time it was built.
    waiting: VecDeque<(Slot, Instant)>,
    target: u16,
    /// Fewest that waited since the last look.
    lowest: u16,
    hits: u64,
    misses: u64,
    /// Failures to build, in a row.
    failures: u32,
    not_before: Instant,
}

/// All shelves.
#[derive(Debug)]
pub(super) struct Pool {
    bounds: PoolBounds,
    shelves: Vec<Shelf>,
    next_look: Instant,
}

impl Shelf {
    fn lacks(&self) -> bool {
        self.usable && self.waiting.len() < usize::from(self.target)
    }
}

impl Pool {
    /// Empty shelves, one per profile.
    pub(super) fn new(bounds: PoolBounds, usable: impl Iterator<Item = bool>, now: Instant) -> Self {
        let target = bounds.min.min(bounds.max);
        let shelf = |usable| Shelf {
            usable,
            waiting: VecDeque::new(),
            target: if usable { target } else { 0 },
            lowest: 0,
            hits: 0,
            misses: 0,
            failures: 0,
            not_before: now,
        };
        Self { bounds, shelves: usable.map(shelf).collect(), next_look: now + PERIOD }
    }

    /// Hands out the sandbox that has waited longest.
    pub(super) fn take(&mut self, profile: usize) -> Option<Slot> {
        let shelf = self.shelves.get_mut(profile)?;
        let (slot, _) = shelf.waiting.pop_front()?;
        shelf.lowest = shelf.lowest.min(shelf.waiting.len() as u16);
        Some(slot)
    }

    /// A run got a waiting sandbox.
    pub(super) fn hit(&mut self, profile: usize) {
        if let Some(shelf) = self.shelves.get_mut(profile) {
            shelf.hits += 1;
            shelf.failures = 0;
        }
    }

    /// A run found none: one more is wanted from now on.
    pub(super) fn miss(&mut self, profile: usize) {
        if let Some(shelf) = self.shelves.get_mut(profile) {
            shelf.misses += 1;
            shelf.lowest = 0;
            shelf.target = (shelf.target + 1).min(self.bounds.max);
        }
    }

    /// Adds a sandbox that was built for this profile.
    pub(super) fn put(&mut self, profile: usize, slot: Slot, now: Instant) {
        self.shelves[profile].waiting.push_back((slot, now));
    }

    /// A sandbox died while it waited: it is no longer here. One that died young could not be built.
    pub(super) fn lost(&mut self, profile: usize, slot: Slot, now: Instant) {
        let Some(shelf) = self.shelves.get_mut(profile) else { return };
        let Some(place) = shelf.waiting.iter().position(|(waiting, _)| *waiting == slot) else { return };
        let built = shelf.waiting.remove(place).map(|(_, built)| built);
        shelf.lowest = shelf.lowest.min(shelf.waiting.len() as u16);
        if built.is_none_or(|built| now < built + FAILURE_DELAY) {
            self.failed(profile, now);
        }
    }

    /// A sandbox could not be built: the next one is not tried at once.
    pub(super) fn failed(&mut self, profile: usize, now: Instant) {
        let Some(shelf) = self.shelves.get_mut(profile) else { return };
        shelf.not_before = now + FAILURE_DELAY * 2u32.pow(shelf.failures);
        shelf.failures = (shelf.failures + 1).min(FAILURES_MAX);
    }

    /// The profile that lacks most, if one lacks any.
    pub(super) fn wanted(&self, now: Instant) -> Option<usize> {
        let missing = |shelf: &Shelf| usize::from(shelf.target).saturating_sub(shelf.waiting.len());
        let shelves = self.shelves.iter().enumerate();
        let lacking = shelves.filter(|(_, shelf)| shelf.usable && missing(shelf) > 0 && now >= shelf.not_before);
        lacking.max_by_key(|(_, shelf)| missing(shelf)).map(|(profile, _)| profile)
    }

    /// Whether some profile has less than half of what it wants, and few.
    pub(super) fn is_low(&self) -> bool {
        let low = |shelf: &Shelf| shelf.waiting.len() < usize::from(shelf.target).div_ceil(2).min(FEW);
        self.shelves.iter().any(|shelf| shelf.usable && low(shelf))
    }

    /// Whether nothing waits.
    pub(super) fn is_empty(&self) -> bool {
        self.shelves.iter().all(|shelf| shelf.waiting.is_empty())
    }

    /// Whether some profile that wants any has none.
    pub(super) fn is_bare(&self) -> bool {
        self.shelves.iter().any(|shelf| shelf.lacks() && shelf.waiting.is_empty())
    }

    /// Whether something is to be built.
    pub(super) fn is_lacking(&self) -> bool {
        self.shelves.iter().any(Shelf::lacks)
    }

    /// When there is something to look at, if nothing else happens.
    pub(super) fn due(&self) -> Option<Instant> {
        let build = self.shelves.iter().filter(|shelf| shelf.lacks()).map(|shelf| shelf.not_before).min();
        let any = self.shelves.iter().any(|shelf| !shelf.waiting.is_empty());
        build.into_iter().chain(any.then_some(self.next_look)).min()
    }

    /// Those that are to be let go: too old, or more than were needed for a while.
    pub(super) fn surplus(&mut self, now: Instant) -> Vec<Slot> {
        if now < self.next_look {
            return Vec::new();
        }
        self.next_look = now + PERIOD;
        let mut let_go = Vec::new();
        for shelf in &mut self.shelves {
            // What waited all the time was not needed: half of it goes, so that a pause does not cost everything.
            let least = if shelf.usable { self.bounds.min.min(self.bounds.max) } else { 0 };
            shelf.target = shelf.target.saturating_sub(shelf.lowest.div_ceil(2)).max(least);
            while let Some(&(slot, built)) = shelf.waiting.front()
                && (shelf.waiting.len() > usize::from(shelf.target) || now >= built + AGE_MAX)
            {
                shelf.waiting.pop_front();
                let_go.push(slot);
            }
            shelf.lowest = shelf.waiting.len() as u16;
        }
        let_go
    }

    /// Takes all of them out.
    pub(super) fn drain(&mut self) -> Vec<Slot> {
        self.shelves.iter_mut().flat_map(|shelf| shelf.waiting.drain(..)).map(|(slot, _)| slot).collect()
    }

    /// The figures of each profile; `busy` says how many runs one has.
    pub(super) fn gauges(&self, busy: impl Fn(usize) -> u16) -> Vec<PoolGauges> {
        let gauges = |(profile, shelf): (usize, &Shelf)| PoolGauges {
            idle: shelf.waiting.len() as u16,
            busy: busy(profile),
            target: shelf.target,
            hits: shelf.hits,
            misses: shelf.misses,
        };
        self.shelves.iter().enumerate().take(STATS_MAX).map(gauges).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(min: u16, max: u16) -> (Pool, Instant) {
        let now = Instant::now();
        (Pool::new(PoolBounds { min, max }, [true, true, false].into_iter(), now), now)
    }

    fn fill(pool: &mut Pool, now: Instant, next: &mut u64) {
        while let Some(profile) = pool.wanted(now) {
            *next += 1;
            pool.put(profile, Slot(*next), now);
        }
    }

    #[test]
    fn no_sandbox_is_handed_out_twice() {
        let (mut pool, now) = pool(3, 8);
        fill(&mut pool, now, &mut 0);
        let mut taken: Vec<Slot> = std::iter::from_fn(|| pool.take(0)).chain(std::iter::from_fn(|| None)).collect();
        taken.extend(std::iter::from_fn(|| pool.take(1)));
        assert_eq!(taken.len(), 6);
        taken.sort_unstable();
        taken.dedup();
        assert_eq!(taken.len(), 6);
        assert_eq!(pool.take(0), None);
    }

    #[test]
    fn a_profile_that_cannot_run_is_not_filled() {
        let (mut pool, now) = pool(1, 1);
        fill(&mut pool, now, &mut 0);
        let gauges = pool.gauges(|_| 0);
        assert_eq!(
            gauges.iter().map(|gauges| (gauges.idle, gauges.target)).collect::<Vec<_>>(),
            [(1, 1), (1, 1), (0, 0)]
        );
    }

    #[test]
    fn a_shelf_is_low_when_less_than_half_waits_and_few() {
        for (size, enough) in [(4, 2), (5, 3), (40, FEW)] {
            let (mut pool, now) = pool(size, size);
            assert!(pool.is_low());
            fill(&mut pool, now, &mut 0);
            for left in (0..usize::from(size)).rev() {
                pool.take(0).expect("it was full");
                assert_eq!(pool.is_low(), left < enough, "{left} of {size}");
                assert_eq!(pool.is_bare(), left == 0, "{left} of {size}");
                assert!(!pool.is_empty(), "the other profile has all of its own");
            }
        }
    }

    #[test]
    fn each_miss_raises_the_target_up_to_the_maximum() {
        let (mut pool, _) = pool(0, 3);
        for expected in [1, 2, 3, 3] {
            assert_eq!(pool.take(0), None);
            pool.miss(0);
            assert_eq!(pool.gauges(|_| 0)[0].target, expected);
        }
    }

    #[test]
    fn what_nobody_needed_is_let_go_by_halves_down_to_the_minimum() {
        let (mut pool, mut now) = pool(1, 8);
        let mut next = 0;
        (0..8).for_each(|_| pool.miss(0));
        fill(&mut pool, now, &mut next);
        let mut idle = Vec::new();
        for _ in 0..6 {
            now += PERIOD;
            pool.surplus(now);
            fill(&mut pool, now, &mut next);
            idle.push(pool.gauges(|_| 0)[0].idle);
        }
        assert_eq!(idle, [8, 4, 2, 1, 1, 1], "the first period began empty");
    }

    #[test]
    fn one_that_was_needed_stays() {
        let (mut pool, mut now) = pool(0, 4);
        let mut next = 0;
        (0..4).for_each(|_| pool.miss(0));
        for _ in 0..5 {
            fill(&mut pool, now, &mut next);
            (0..4).for_each(|_| assert!(pool.take(0).is_some()));
            fill(&mut pool, now, &mut next);
            now += PERIOD;
            assert_eq!(pool.surplus(now), []);
        }
    }

    #[test]
    fn an_aged_sandbox_is_replaced() {
        let (mut pool, now) = pool(2, 2);
        let mut next = 0;
        fill(&mut pool, now, &mut next);
        let later = now + AGE_MAX;
        assert_eq!(pool.surplus(later).len(), 4);
        fill(&mut pool, later, &mut next);
        assert_eq!(pool.take(0).map(|slot| slot.0 > 4), Some(true));
    }

    #[test]
    fn a_host_on_which_none_can_be_built_is_tried_less_and_less_often() {
        let (mut pool, now) = pool(1, 1);
        pool.put(0, Slot(1), now);
        pool.lost(0, Slot(1), now);
        pool.failed(1, now);
        assert_eq!(pool.wanted(now), None);
        assert_eq!(pool.wanted(now + FAILURE_DELAY), Some(1));
        (0..20).for_each(|_| pool.failed(0, now));
        assert!(pool.shelves[0].not_before <= now + Duration::from_secs(15), "there is an end to it");
        pool.hit(0);
        pool.failed(0, now);
        assert_eq!(pool.shelves[0].not_before, now + FAILURE_DELAY);
    }

    #[test]
    fn one_that_was_killed_after_a_while_is_replaced_at_once() {
        let (mut pool, now) = pool(1, 1);
        fill(&mut pool, now, &mut 0);
        let later = now + Duration::from_secs(1);
        let slot = pool.shelves[0].waiting[0].0;
        pool.lost(0, slot, later);
        assert_eq!(pool.wanted(later), Some(0));
    }

    #[test]
    fn a_pool_of_none_wants_nothing() {
        let (mut pool, now) = pool(5, 0);
        pool.miss(0);
        assert_eq!((pool.wanted(now), pool.due()), (None, None));
    }
}
