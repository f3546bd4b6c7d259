//! Who is in: places to run in, the bounded queue before them, and the list of live execs.

use super::sessions::SessionWish;
use crate::executor::{Stop, StopCause};
use crate::model::{ExecId, Owner, Principal, SandboxId};
use crate::policy::{Permit, Refusal};
use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

/// What a caller of a full daemon is told to wait: about the time of a short exec.
const RETRY_AFTER_MS: u64 = 250;

/// One exec that is queued or running.
struct Live {
    owner: Owner,
    profile: String,
    sandbox: Option<SandboxId>,
    stop: Arc<Stop>,
}

/// Places, queue and list.
pub(super) struct Admission {
    places: Arc<Semaphore>,
    places_total: usize,
    queued: AtomicUsize,
    queue_max: usize,
    draining: AtomicBool,
    /// Sandboxes that were asked for since the start.
    pub(super) started: AtomicU64,
    live: Mutex<HashMap<ExecId, Live>>,
    left: Notify,
}

/// An exec on the list of live ones; off it when this is dropped, however its task ends.
pub(super) struct Listed {
    admission: Arc<Admission>,
    pub(super) exec: ExecId,
    pub(super) sandbox: Option<SandboxId>,
    pub(super) at_ms: u64,
    /// The session that it is a call of.
    pub(super) session: Option<SessionWish>,
    pub(super) stop: Arc<Stop>,
}

impl Drop for Listed {
    fn drop(&mut self) {
        self.admission.live().remove(&self.exec);
        self.admission.left.notify_waiters();
    }
}

/// Cancels an exec whose caller is gone.
pub(super) struct CancelOnDrop(pub(super) Arc<Stop>);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.stop(StopCause::Cancelled);
    }
}

impl Admission {
    pub(super) fn new(places: usize, queue_max: usize) -> Self {
        Self {
            places: Arc::new(Semaphore::new(places)),
            places_total: places,
            queued: AtomicUsize::new(0),
            queue_max,
            draining: AtomicBool::new(false),
            started: AtomicU64::new(0),
            live: Mutex::default(),
            left: Notify::new(),
        }
    }

    fn live(&self) -> MutexGuard<'_, HashMap<ExecId, Live>> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts an exec on the list, if its caller has not as many there as it may.
    pub(super) fn list(self: &Arc<Self>, permit: &Permit, sandbox: Option<&SandboxId>) -> Result<Listed, Refusal> {
        if self.draining() {
            return Err(Refusal::Draining);
        }
        let (exec, stop) = (ExecId::generate(), Arc::new(Stop::default()));
        let mut live = self.live();
        if let Some(most) = permit.concurrency() {
            let same = |other: &&Live| other.owner == *permit.owner() && other.profile == permit.profile_id();
            if live.values().filter(same).count() as u64 >= most {
                return Err(Refusal::Concurrency { most, retry_after_ms: RETRY_AFTER_MS });
            }
        }
        let (owner, profile) = (permit.owner().clone(), permit.profile_id().to_owned());
        let sandbox = sandbox.cloned();
        live.insert(exec.clone(), Live { owner, profile, sandbox: sandbox.clone(), stop: stop.clone() });
        Ok(Listed { admission: self.clone(), exec, sandbox, at_ms: super::now_ms(), session: None, stop })
    }

    /// A place to run in, if one is free.
    pub(super) fn place_now(&self) -> Option<OwnedSemaphorePermit> {
        self.places.clone().try_acquire_owned().ok()
    }

    /// A turn in the bounded queue.
    pub(super) fn queue(&self) -> Result<Turn<'_>, Refusal> {
        if self.draining() {
            return Err(Refusal::Draining);
        }
        let queued = &self.queued;
        if queued.fetch_add(1, Ordering::Relaxed) >= self.queue_max {
            queued.fetch_sub(1, Ordering::Relaxed);
            return Err(Refusal::QueueFull { retry_after_ms: RETRY_AFTER_MS });
        }
        Ok(Turn(queued))
    }

    /// A place to run in, when one is free.
    pub(super) async fn place(&self, _turn: Turn<'_>) -> Result<OwnedSemaphorePermit, Refusal> {
        // Closed when the daemon drains: whoever still waits is told so.
        self.places.clone().acquire_owned().await.map_err(|_| Refusal::Draining)
    }

    /// Ends an exec of this caller. Another's is as unknown as none.
    pub(super) fn cancel(&self, principal: &Principal, exec: &ExecId) -> Result<(), Refusal> {
        let live = self.live();
        let mine = live.get(exec).filter(|live| live.owner == principal.owner).ok_or(Refusal::NoSuchExec)?;
        mine.stop.stop(StopCause::Cancelled);
        Ok(())
    }

    /// Ends every exec of a sandbox and resolves when none is left.
    pub(super) async fn cancel_sandbox(&self, sandbox: &SandboxId) {
        loop {
            let left = self.left.notified();
            tokio::pin!(left);
            left.as_mut().enable(); // before the look, so that nobody leaves unseen between the two
            let of_sandbox = |live: &&Live| live.sandbox.as_ref() == Some(sandbox);
            let stops: Vec<_> = self.live().values().filter(of_sandbox).map(|live| live.stop.clone()).collect();
            if stops.is_empty() {
                return;
            }
            stops.iter().for_each(|stop| stop.stop(StopCause::Cancelled));
            left.await;
        }
    }

    /// Sandboxes in which something is queued or runs.
    pub(super) fn busy_sandboxes(&self) -> BTreeSet<SandboxId> {
        self.live().values().filter_map(|live| live.sandbox.clone()).collect()
    }

    pub(super) fn drain(&self) {
        self.draining.store(true, Ordering::Relaxed);
        self.places.close();
    }

    pub(super) fn draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }

    pub(super) fn live_count(&self) -> usize {
        self.live().len()
    }

    pub(super) fn running(&self) -> usize {
        self.places_total - self.places.available_permits()
    }

    pub(super) fn queued(&self) -> usize {
        self.queued.load(Ordering::Relaxed)
    }
}

/// A turn in the queue; left when this is dropped, also when the waiter is cancelled.
pub(super) struct Turn<'a>(&'a AtomicUsize);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
