//! The order, once: identify → judge → admit → run → answer.
//!
//! Each stage takes what only the stage before can make: no exec without a [`Permit`], no run without a place.
//! A refusal is an answer. The run itself is a task of its own, so a caller that hangs up cancels it but can't
//! leave it half-ended.
#![forbid(unsafe_code)]

use crate::executor::{Executor, RunError};
use crate::model::{ExecId, ExecRequest, Outcome, Principal};
use crate::policy::{Permit, Refusal, judge};
use crate::profile::Profiles;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

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

/// One exec that is queued or running.
struct Live {
    principal: Principal,
    cancel: Arc<Notify>,
}

struct Shared {
    profiles: Profiles,
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
    pub fn new(profiles: Profiles, executor: Executor, places: usize, queue_max: usize) -> Self {
        Self(Arc::new(Shared {
            profiles,
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
        let permit = judge(principal, &self.0.profiles, request).map_err(Failure::Refused)?;
        if self.0.draining.load(Ordering::Relaxed) {
            return Err(Failure::Refused(Refusal::Draining));
        }
        let exec = ExecId::generate();
        let cancel = Arc::new(Notify::new());
        let live = Live { principal: principal.clone(), cancel: cancel.clone() };
        self.0.live().insert(exec.clone(), live);
        let listed = Listed { shared: self.0.clone(), exec };

        let cancel_with_caller = CancelOnDrop(cancel.clone());
        let task = tokio::spawn(self.clone().carry_out(listed, permit, cancel));
        let finished = task.await.unwrap_or_else(|panic| {
            tracing::error!(%panic, "the task of an exec panicked");
            Err(Failure::Internal)
        });
        drop(cancel_with_caller);
        finished
    }

    async fn carry_out(self, listed: Listed, permit: Permit, cancel: Arc<Notify>) -> Result<Finished, Failure> {
        let place = tokio::select! {
            place = self.admit() => place.map_err(Failure::Refused)?,
            () = cancel.notified() => return Err(Failure::Refused(Refusal::NoSuchExec)),
        };
        let outcome = self.0.executor.run(&listed.exec, &permit, &cancel).await.map_err(Failure::Run)?;
        drop(place);
        tracing::info!(exec = %listed.exec, profile = permit.profile_id(), ending = ?outcome.ending, "exec ended");
        Ok(Finished { exec: listed.exec.clone(), profile: permit.profile_id().to_owned(), outcome })
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
        let mine = live.get(exec).filter(|live| live.principal == *principal).ok_or(Refusal::NoSuchExec)?;
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
    #[must_use]
    pub fn profiles(&self) -> &Profiles {
        &self.0.profiles
    }
}

/// Leaves the queue's count, also when the waiter is cancelled.
struct Leave<'a>(&'a AtomicUsize);

impl Drop for Leave<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
