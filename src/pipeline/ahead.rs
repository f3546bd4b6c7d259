//! Python that waits ahead: a few interpreters per profile, each used by one exec.
//!
//! ```text
//! keep: every tick, and after each use ─▶ other set, dead or old: drop ─▶ too few: build one ─▶ …
//! take: fit for this exec? ─▶ one that waits ─▶ used once     else the ordinary way, and the reason is counted
//! ```

use super::{InForce, Judged, Pipeline};
use crate::executor::{Ahead, Interpreter};
use crate::model::Kind;
use crate::observe;
use serde::Deserialize;
use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::Notify;

/// How often it is looked whether those that wait are still good.
const LOOK: Duration = Duration::from_secs(1);
/// Older ones are replaced: what they imported may have changed on disk.
const AGE_MAX: Duration = Duration::from_secs(600);
/// Most that wait for one profile, whatever is asked for.
const IDLE_MAX: usize = 64;

/// `[warm_python]` of the config.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct WarmSettings {
    /// Profiles whose Python waits ahead.
    pub profiles: Vec<String>,
    /// How many of each wait.
    pub idle: usize,
    /// What each has imported.
    pub preload: Vec<String>,
}

impl Default for WarmSettings {
    fn default() -> Self {
        Self { profiles: Vec::new(), idle: 2, preload: Vec::new() }
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
            None if self.idle > IDLE_MAX => Some(format!("warm_python.idle is {}; at most {IDLE_MAX}", self.idle)),
            None => None,
        }
    }
}

struct Shelf {
    ahead: Ahead,
    waiting: VecDeque<(Interpreter, Instant)>,
}

/// All that wait.
#[derive(Default)]
pub(super) struct Shelves {
    by_profile: Mutex<HashMap<String, Shelf>>,
    taken: Notify,
}

impl Shelves {
    fn all(&self) -> MutexGuard<'_, HashMap<String, Shelf>> {
        self.by_profile.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pipeline {
    /// An interpreter that waits, if this exec may have one and there is one.
    pub(super) async fn take_ahead(&self, judged: &Judged) -> Option<Interpreter> {
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
                    None => shelf.waiting.pop_front().ok_or("none"),
                }
            };
            match taken {
                Err(reason) => {
                    observe::warm_python("cold", reason);
                    return None;
                }
                Ok((mut interpreter, _)) => {
                    self.0.shelves.taken.notify_one();
                    // A dead one has closed its end of the pipe before the warden has told of it.
                    if interpreter.died().await.is_none() && !interpreter.spoke_out_of_turn() {
                        observe::warm_python("warm", "");
                        return Some(interpreter);
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
            let wanted = self.next_wanted();
            let Some(ahead) = wanted else {
                let _ = tokio::time::timeout(LOOK, self.0.shelves.taken.notified()).await;
                continue;
            };
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
                    tracing::warn!(
                        profile = ahead.0,
                        error = &error as &dyn std::error::Error,
                        "no interpreter could be built ahead; execs start their own"
                    );
                    tokio::time::sleep(LOOK * failures.min(30)).await;
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
                let Some((index, profile)) = in_force.profiles.find(name) else {
                    old.extend(shelves.remove(name).map(|shelf| shelf.waiting));
                    continue;
                };
                let (set, limits, env) = (in_force.set, profile.limits, profile.env.clone());
                let ahead = Ahead { profile: index, set, limits, env, preload: self.0.warm.preload.clone() };
                if shelves.get(name).is_none_or(|shelf| shelf.ahead != ahead) {
                    let new = Shelf { ahead, waiting: VecDeque::new() };
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
                if built.elapsed() < AGE_MAX && interpreter.died().await.is_none() && !interpreter.spoke_out_of_turn() {
                    good.push_back((interpreter, built));
                }
            }
            if let Some(shelf) = self.0.shelves.all().get_mut(&name) {
                shelf.waiting.append(&mut good);
            }
        }
    }

    fn next_wanted(&self) -> Option<(String, Ahead)> {
        let shelves = self.0.shelves.all();
        let short = |(_, shelf): &(&String, &Shelf)| shelf.waiting.len() < self.0.warm.idle;
        shelves.iter().find(short).map(|(name, shelf)| (name.clone(), shelf.ahead.clone()))
    }

    /// Interpreters that wait.
    #[must_use]
    pub fn waiting_ahead(&self) -> usize {
        self.0.shelves.all().values().map(|shelf| shelf.waiting.len()).sum()
    }
}
