//! The order, once: identify → judge → admit → run → answer.
//!
//! Each stage takes what only the stage before can make: no exec without a [`Permit`], no run without a place.
//! A refusal is an answer. The run itself is a task of its own, so a caller that hangs up cancels it but can't
//! leave it half-ended.
#![forbid(unsafe_code)]

use crate::executor::{Executor, ProfileState, RunError, Under};
use crate::model::{ExecId, ExecRequest, Outcome, Owner, Principal, SeccompReport};
use crate::policy::{Permit, Refusal, judge};
use crate::profile::Profiles;
use std::collections::HashMap;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

/// How often an exec is judged again when the profiles change under it; each time takes a whole reload.
const JUDGEMENTS_MAX: usize = 3;
/// What a caller of a full daemon is told to wait: about the time of a short exec.
const RETRY_AFTER_MS: u64 = 250;

/// Why there is no outcome: a no, or a fault.
#[derive(Debug)]
pub enum Failure {
    /// The policy's or the daemon's no.
    Refused(Refusal),
    /// The request could not be carried out.
    Run(RunError),
    /// A bug of ours: the run's task panicked.
    Internal,
}

/// The profiles as they are in force: what the front judges by and the warden enforces.
#[derive(Debug)]
pub struct InForce {
    /// The profiles.
    pub profiles: Profiles,
    /// The filter of each.
    pub filters: Vec<SeccompReport>,
    /// Whether the host has what each requires.
    pub states: Vec<ProfileState>,
    /// Number of this set, as the warden knows it.
    pub set: u64,
    /// Hash over all of it, for evidence.
    pub version_hash: String,
    /// Why a newer set could not be put in force, if so.
    pub error: Option<String>,
}

/// Where the profiles in force come from. Asked for every exec, so that the next request sees a changed file.
pub trait Source: Send + Sync {
    /// The set in force now.
    fn current(&self) -> Pin<Box<dyn Future<Output = Arc<InForce>> + Send + '_>>;
}

/// An exec that ran.
#[derive(Debug)]
pub struct Finished {
    /// Its id.
    pub exec: ExecId,
    /// The profile it ran under.
    pub profile: String,
    /// How it ended.
    pub outcome: Outcome,
}

/// A request with the permit that a set of profiles gave it.
struct Judged {
    principal: Principal,
    request: ExecRequest,
    in_force: Arc<InForce>,
    permit: Permit,
}

/// One exec that is queued or running.
struct Live {
    owner: Owner,
    cancel: Arc<Notify>,
}

struct Shared {
    source: Arc<dyn Source>,
    executor: Executor,
    places: Arc<Semaphore>,
    places_total: usize,
    queued: AtomicUsize,
    queue_max: usize,
    draining: AtomicBool,
    live: Mutex<HashMap<ExecId, Live>>,
}

/// The way through; cheap to clone.
#[derive(Clone)]
pub struct Pipeline(Arc<Shared>);

/// Takes an exec off the list of live ones, however its task ends.
struct Listed {
    shared: Arc<Shared>,
    exec: ExecId,
}

impl Drop for Listed {
    fn drop(&mut self) {
        self.shared.live().remove(&self.exec);
    }
}

/// Cancels an exec whose caller is gone.
struct CancelOnDrop(Arc<Notify>);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.notify_one();
    }
}

impl Shared {
    fn live(&self) -> MutexGuard<'_, HashMap<ExecId, Live>> {
        self.live.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

impl Pipeline {
    /// A pipeline with `places` execs at once and `queue_max` waiting.
    #[must_use]
    pub fn new(source: Arc<dyn Source>, executor: Executor, places: usize, queue_max: usize) -> Self {
        Self(Arc::new(Shared {
            source,
            executor,
            places: Arc::new(Semaphore::new(places)),
            places_total: places,
            queued: AtomicUsize::new(0),
            queue_max,
            draining: AtomicBool::new(false),
            live: Mutex::default(),
        }))
    }

    /// One exec from request to outcome.
    pub async fn exec(&self, principal: &Principal, request: &ExecRequest) -> Result<Finished, Failure> {
        let in_force = self.0.source.current().await;
        let permit = judge(principal, &in_force.profiles, request).map_err(Failure::Refused)?;
        if self.0.draining.load(Ordering::Relaxed) {
            return Err(Failure::Refused(Refusal::Draining));
        }
        let exec = ExecId::generate();
        let cancel = Arc::new(Notify::new());
        let live = Live { owner: principal.owner.clone(), cancel: cancel.clone() };
        self.0.live().insert(exec.clone(), live);
        let listed = Listed { shared: self.0.clone(), exec };

        let cancel_with_caller = CancelOnDrop(cancel.clone());
        let judged = Judged { principal: principal.clone(), request: request.clone(), in_force, permit };
        let task = tokio::spawn(self.clone().carry_out(listed, judged, cancel));
        let finished = task.await.unwrap_or_else(|panic| {
            tracing::error!(%panic, "the task of an exec panicked");
            Err(Failure::Internal)
        });
        drop(cancel_with_caller);
        finished
    }

    async fn carry_out(self, listed: Listed, mut judged: Judged, cancel: Arc<Notify>) -> Result<Finished, Failure> {
        let place = tokio::select! {
            place = self.admit() => place.map_err(Failure::Refused)?,
            () = cancel.notified() => return Err(Failure::Refused(Refusal::NoSuchExec)),
        };
        for _ in 0..JUDGEMENTS_MAX {
            let Judged { in_force, permit, .. } = &judged;
            let filter = in_force.filters[usize::from(permit.profile_index())].clone();
            let under = Under { set: in_force.set, filter };
            match self.0.executor.run(&listed.exec, permit, &under, &cancel).await {
                // The profiles changed between judgement and run: what is judged and what is enforced must be one.
                Err(RunError::Overtaken) => judged = self.judge_again(judged).await.map_err(Failure::Refused)?,
                Err(error) => return Err(Failure::Run(error)),
                Ok(outcome) => {
                    drop(place);
                    let profile = permit.profile_id().to_owned();
                    tracing::info!(exec = %listed.exec, profile, ending = ?outcome.ending, "exec ended");
                    return Ok(Finished { exec: listed.exec.clone(), profile, outcome });
                }
            }
        }
        Err(Failure::Run(RunError::Overtaken))
    }

    async fn judge_again(&self, judged: Judged) -> Result<Judged, Refusal> {
        let in_force = self.0.source.current().await;
        let permit = judge(&judged.principal, &in_force.profiles, &judged.request)?;
        Ok(Judged { in_force, permit, ..judged })
    }

    /// A place to run in: at once, after a wait in the bounded queue, or not.
    async fn admit(&self) -> Result<OwnedSemaphorePermit, Refusal> {
        if let Ok(place) = self.0.places.clone().try_acquire_owned() {
            return Ok(place);
        }
        let queued = &self.0.queued;
        if queued.fetch_add(1, Ordering::Relaxed) >= self.0.queue_max {
            queued.fetch_sub(1, Ordering::Relaxed);
            return Err(Refusal::QueueFull { retry_after_ms: RETRY_AFTER_MS });
        }
        let _leave_queue = Leave(queued);
        // Closed when the daemon drains: whoever still waits is told so.
        self.0.places.clone().acquire_owned().await.map_err(|_| Refusal::Draining)
    }

    /// Ends an exec of this caller. Another's is as unknown as none.
    pub fn cancel(&self, principal: &Principal, exec: &ExecId) -> Result<(), Refusal> {
        let live = self.0.live();
        let mine = live.get(exec).filter(|live| live.owner == principal.owner).ok_or(Refusal::NoSuchExec)?;
        mine.cancel.notify_one();
        Ok(())
    }

    /// Takes no new execs; those that wait are told so.
    pub fn drain(&self) {
        self.0.draining.store(true, Ordering::Relaxed);
        self.0.places.close();
    }

    /// Whether the daemon takes no more.
    #[must_use]
    pub fn draining(&self) -> bool {
        self.0.draining.load(Ordering::Relaxed)
    }

    /// Execs that are queued or running.
    #[must_use]
    pub fn live(&self) -> usize {
        self.0.live().len()
    }

    /// Execs that run.
    #[must_use]
    pub fn running(&self) -> usize {
        self.0.places_total - self.0.places.available_permits()
    }

    /// Execs that wait for a place.
    #[must_use]
    pub fn queued(&self) -> usize {
        self.0.queued.load(Ordering::Relaxed)
    }

    /// The profiles in force.
    pub async fn in_force(&self) -> Arc<InForce> {
        self.0.source.current().await
    }
}

/// Leaves the queue's count, also when the waiter is cancelled.
struct Leave<'a>(&'a AtomicUsize);

impl Drop for Leave<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
