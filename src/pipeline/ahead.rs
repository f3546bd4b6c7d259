//! Python that waits ahead: a few interpreters per profile, each used by one exec.
//!
//! ```text
//! keep: every tick, and after each use ─▶ other set, dead or old: drop ─▶ too few: build one ─▶ …
//! take: fit for this exec? ─▶ one that waits ─▶ used once     else the ordinary way, and the reason is counted
//! ```
//!
//! What is missing is built when nobody is in its way: the start of an interpreter takes a processor for ten milliseconds, and
//! the call that used up the last one is answered sooner than that ([`Stir`], as in the warden's pool).
//!
//! How many wait follows demand, as in the warden's pool: each exec that could have had one and found none raises the
//! target by one, up to `max`; every [`DECAY`] half of what was never needed goes, down to `min`.

use super::{InForce, Judged, Pipeline};
use crate::executor::{Ahead, Interpreter, ProfileState, RunError};
use crate::model::{Capability, Kind};
use crate::observe;
use serde::Deserialize;
use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::Notify;

/// How often it is looked whether those that wait are still good.
const LOOK: Duration = Duration::from_secs(2);
/// After a failure: that much longer each time.
const RETRY: Duration = Duration::from_secs(1);
/// How often what was not needed goes.
const DECAY: Duration = Duration::from_secs(10);
/// Older ones are replaced: what they imported may have changed on disk.
const AGE_MAX: Duration = Duration::from_secs(600);
/// Nothing is built while a call is younger than this: it is about to be answered.
const SHORT_CALL: Duration = Duration::from_millis(20);
/// Nor so soon after the last one began or ended.
const QUIET: Duration = Duration::from_millis(3);
/// Calls that never cease do not starve the shelves: so long after something is missing it is built all the same,
const BUILD_GAP: Duration = Duration::from_millis(40);
/// and sooner if less than half of what is wanted waits.
const LOW_BUILD_GAP: Duration = Duration::from_millis(8);
/// Most that wait for one profile, whatever is asked for.
const IDLE_MAX: usize = 64;

/// `[warm_python]` of the config.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct WarmSettings {
    /// Profiles whose Python waits ahead. None by default: what waits costs memory, and Landlock's rule over what is attached
    /// later is wider than a cold run's.
    pub profiles: Vec<String>,
    /// At least so many of each wait, asked for or not.
    pub min: usize,
    /// At most so many, by recent demand.
    pub max: usize,
    /// What each has imported.
    pub preload: Vec<String>,
}

impl Default for WarmSettings {
    fn default() -> Self {
        Self { profiles: Vec::new(), min: 1, max: 4, preload: Vec::new() }
    }
}

impl WarmSettings {
    /// What is wrong with it, if something is.
    #[must_use]
    pub fn problem(&self) -> Option<String> {
        let module = |name: &&String| {
            let plain =
                |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
            !name.split('.').all(plain)
        };
        match self.preload.iter().find(module) {
            Some(name) => Some(format!("warm_python.preload has {name:?}, which is no name of a module")),
            None if self.max > IDLE_MAX => Some(format!("warm_python.max is {}; at most {IDLE_MAX}", self.max)),
            None if self.min > self.max => Some(format!("warm_python.min is {}, max only {}", self.min, self.max)),
            None => None,
        }
    }
}

struct Shelf {
    ahead: Ahead,
    waiting: VecDeque<(Interpreter, Instant)>,
    demand: Demand,
}

/// How many should wait.
#[derive(Debug, Clone, Copy)]
struct Demand {
    target: usize,
    /// The fewest that waited since the last look back.
    fewest: usize,
    since: Instant,
}

impl Demand {
    fn new(settings: &WarmSettings, now: Instant) -> Self {
        Self { target: settings.min, fewest: usize::MAX, since: now }
    }

    /// An exec came and this many were left, or there was none for it.
    fn asked(&mut self, left: Option<usize>, settings: &WarmSettings) {
        self.fewest = self.fewest.min(left.unwrap_or(0));
        if left.is_none() {
            self.target = (self.target + 1).min(settings.max);
        }
    }

    /// Looks back, if it is time: half of what was never needed need not wait.
    fn look_back(&mut self, waiting: usize, settings: &WarmSettings, now: Instant) {
        if now.duration_since(self.since) < DECAY {
            return;
        }
        let unneeded = self.fewest.min(waiting);
        self.target = self.target.saturating_sub(unneeded.div_ceil(2)).max(settings.min);
        (self.fewest, self.since) = (usize::MAX, now);
    }
}

/// What goes on in interpreters that have waited, and since when one is missing.
#[derive(Debug, Default)]
struct Stir {
    /// When each call that is not answered began.
    calls: Vec<Instant>,
    /// When a call last began or ended.
    last: Option<Instant>,
    lacking: Option<Instant>,
}

impl Stir {
    fn begins(&mut self, now: Instant) {
        self.calls.push(now);
        self.last = Some(now);
    }

    fn ends(&mut self, begun: Instant, now: Instant) {
        if let Some(place) = self.calls.iter().position(|call| *call == begun) {
            self.calls.swap_remove(place);
        }
        self.last = Some(now);
    }

    /// Something is missing: when it may be built. `low`: less than half of what is wanted waits.
    fn may_build(&mut self, low: bool, now: Instant) -> Instant {
        let lacking = *self.lacking.get_or_insert(now);
        let youngest = self.calls.iter().map(|begun| *begun + SHORT_CALL);
        let quiet = youngest.chain(self.last.map(|last| last + QUIET)).fold(now, Instant::max);
        quiet.min(lacking + if low { LOW_BUILD_GAP } else { BUILD_GAP }).max(now)
    }

    fn builds(&mut self) {
        self.lacking = None;
    }
}

/// All that wait.
#[derive(Default)]
pub(super) struct Shelves {
    by_profile: Mutex<HashMap<String, Shelf>>,
    stir: Mutex<Stir>,
    taken: Notify,
}

impl Shelves {
    fn all(&self) -> MutexGuard<'_, HashMap<String, Shelf>> {
        self.by_profile.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn stir(&self) -> MutexGuard<'_, Stir> {
        self.stir.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A call in an interpreter that has waited, until it is answered.
pub(super) struct Using {
    pipeline: Pipeline,
    begun: Instant,
}

impl Using {
    fn new(pipeline: &Pipeline) -> Self {
        let begun = Instant::now();
        pipeline.0.shelves.stir().begins(begun);
        Self { pipeline: pipeline.clone(), begun }
    }
}

impl Drop for Using {
    fn drop(&mut self) {
        self.pipeline.0.shelves.stir().ends(self.begun, Instant::now());
    }
}

impl Pipeline {
    /// An interpreter that waits, if this exec may have one and there is one.
    pub(super) fn take_ahead(&self, judged: &Judged) -> Option<(Interpreter, Using)> {
        let warm = &self.0.warm;
        if warm.profiles.is_empty() || judged.permit.kind() != Kind::Python {
            return None;
        }
        loop {
            let taken = {
                let mut shelves = self.0.shelves.all();
                let shelf = shelves.get_mut(judged.permit.profile_id())?;
                let code = judged.request.exec.code.is_some();
                let unfit = shelf.ahead.unfit(&judged.permit, code);
                match unfit.or((shelf.ahead.set != judged.in_force.set).then_some("profile")) {
                    Some(reason) => Err(reason),
                    None => {
                        let taken = shelf.waiting.pop_front();
                        let left = taken.as_ref().map(|_| shelf.waiting.len());
                        shelf.demand.asked(left, warm);
                        taken.ok_or("none")
                    }
                }
            };
            match taken {
                Err(reason) => {
                    self.0.shelves.taken.notify_one(); // there may have to be more
                    observe::warm_python("cold", reason);
                    return None;
                }
                Ok((mut interpreter, _)) => {
                    let using = Using::new(self);
                    self.0.shelves.taken.notify_one();
                    // A dead one has closed its end of the pipe before the warden has told of it.
                    if interpreter.died().is_none() && !interpreter.spoke_out_of_turn() {
                        observe::warm_python("warm", "");
                        return Some((interpreter, using));
                    }
                }
            }
        }
    }

    /// Keeps as many waiting as are wanted, for as long as the daemon lives.
    pub async fn keep_ahead(self) {
        if self.0.warm.profiles.is_empty() {
            return;
        }
        let mut failures: u32 = 0;
        loop {
            let in_force = self.0.source.current().await;
            self.sort_out(&in_force).await;
            let Some((ahead, low)) = self.next_wanted() else {
                let _ = tokio::time::timeout(LOOK, self.0.shelves.taken.notified()).await;
                continue;
            };
            let now = Instant::now();
            let due = self.0.shelves.stir().may_build(low, now);
            if due > now {
                tokio::time::sleep(due - now).await;
                continue; // what is wanted then, and whether it may be
            }
            self.0.shelves.stir().builds();
            match self.0.executor.build_ahead(&ahead.1).await {
                Ok(interpreter) => {
                    failures = 0;
                    let mut shelves = self.0.shelves.all();
                    if let Some(shelf) = shelves.get_mut(&ahead.0).filter(|shelf| shelf.ahead == ahead.1) {
                        shelf.waiting.push_back((interpreter, Instant::now()));
                    }
                }
                Err(error) => {
                    failures = failures.saturating_add(1);
                    complain(&ahead.0, &error, failures);
                    tokio::time::sleep(RETRY * failures.min(30)).await;
                }
            }
        }
    }

    /// Lets go of what is dead, old, or of profiles that are not in force any more.
    async fn sort_out(&self, in_force: &InForce) {
        let mut old = Vec::new();
        {
            let mut shelves = self.0.shelves.all();
            for name in &self.0.warm.profiles {
                let has_python = |index: &u16| {
                    let index = usize::from(*index);
                    let lacks = in_force.lacking.get(index).is_none_or(|lacking| lacking.contains(Capability::Python));
                    !lacks && in_force.states.get(index) == Some(&ProfileState::Usable)
                };
                let Some((index, profile)) = in_force.profiles.find(name).filter(|(index, _)| has_python(index)) else {
                    old.extend(shelves.remove(name).map(|shelf| shelf.waiting));
                    continue;
                };
                let (set, limits, env) = (in_force.set, profile.limits, profile.env.clone());
                let ahead = Ahead { profile: index, set, limits, env, preload: self.0.warm.preload.clone() };
                if shelves.get(name).is_none_or(|shelf| shelf.ahead != ahead) {
                    let demand = Demand::new(&self.0.warm, Instant::now());
                    let new = Shelf { ahead, waiting: VecDeque::new(), demand };
                    old.extend(shelves.insert(name.clone(), new).map(|shelf| shelf.waiting));
                }
            }
        }
        drop(old); // not under the lock: each tells the warden
        let names: Vec<String> = self.0.warm.profiles.clone();
        for name in names {
            let waiting = self.0.shelves.all().get_mut(&name).map(|shelf| std::mem::take(&mut shelf.waiting));
            let mut good = VecDeque::new();
            for (mut interpreter, built) in waiting.into_iter().flatten() {
                if built.elapsed() < AGE_MAX && interpreter.died().is_none() && !interpreter.spoke_out_of_turn() {
                    good.push_back((interpreter, built));
                }
            }
            if let Some(shelf) = self.0.shelves.all().get_mut(&name) {
                shelf.waiting.append(&mut good);
                shelf.demand.look_back(shelf.waiting.len(), &self.0.warm, Instant::now());
                let most = shelf.demand.target.min(shelf.waiting.len());
                good = shelf.waiting.split_off(most);
            }
            drop(good); // those that are too many
        }
    }

    /// What is to be built next, and whether less than half of what is wanted waits there.
    fn next_wanted(&self) -> Option<((String, Ahead), bool)> {
        let shelves = self.0.shelves.all();
        let short = |(_, shelf): &(&String, &Shelf)| shelf.waiting.len() < shelf.demand.target;
        let low = |shelf: &Shelf| shelf.waiting.len() * 2 < shelf.demand.target;
        shelves.iter().find(short).map(|(name, shelf)| ((name.clone(), shelf.ahead.clone()), low(shelf)))
    }

    /// Interpreters that wait.
    #[must_use]
    pub fn waiting_ahead(&self) -> usize {
        self.0.shelves.all().values().map(|shelf| shelf.waiting.len()).sum()
    }
}

/// Once in a row is enough: a host that can't have one says so every half a minute otherwise.
fn complain(profile: &str, error: &RunError, failures: u32) {
    let error = error as &dyn std::error::Error;
    match failures {
        1 => tracing::warn!(profile, error, "no interpreter could be built ahead; execs start their own"),
        _ => tracing::debug!(profile, error, failures, "again no interpreter could be built ahead"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_built_while_a_young_call_runs_and_nothing_waits_for_ever() {
        let start = Instant::now();
        let ms = Duration::from_millis;
        let mut stir = Stir::default();
        assert_eq!(stir.may_build(false, start), start, "nobody is in the way");
        stir.builds();
        stir.begins(start);
        assert_eq!(stir.may_build(false, start), start + SHORT_CALL);
        stir.ends(start, start + ms(4));
        assert_eq!(stir.may_build(false, start + ms(4)), start + ms(4) + QUIET, "it is answered");
        stir.begins(start + ms(5));
        stir.begins(start + ms(30));
        assert_eq!(stir.may_build(false, start + ms(30)), start + BUILD_GAP, "calls never cease");
        assert_eq!(stir.may_build(true, start + ms(30)), start + ms(30), "and nearly all are used up");
        stir.builds();
        stir.ends(start + ms(5), start + ms(31));
        assert_eq!(stir.may_build(false, start + ms(31)), start + ms(50), "the next is missing from now on");
    }

    #[test]
    fn how_many_wait_follows_demand_within_its_bounds() {
        let settings = WarmSettings { min: 1, max: 4, ..WarmSettings::default() };
        let start = Instant::now();
        let mut demand = Demand::new(&settings, start);
        assert_eq!(demand.target, 1);
        for _ in 0..6 {
            demand.asked(None, &settings);
        }
        assert_eq!(demand.target, 4, "one more for each that found none, and no more than max");
        demand.look_back(4, &settings, start + DECAY);
        assert_eq!(demand.target, 4, "all of them were needed");
        demand.asked(Some(3), &settings);
        demand.look_back(4, &settings, start + DECAY / 2);
        assert_eq!(demand.target, 4, "it is not time yet");
        demand.look_back(4, &settings, start + DECAY * 2);
        assert_eq!(demand.target, 2, "three were never needed: half of them goes");
        demand.look_back(2, &settings, start + DECAY * 3);
        demand.look_back(1, &settings, start + DECAY * 4);
        assert_eq!(demand.target, 1, "and no fewer than min");
    }
}
