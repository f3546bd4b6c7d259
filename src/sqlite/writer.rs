//! The one who owns a connection: everything that waits goes into one commit.
//!
//! ```text
//! send ──▶ a list ──▶ the thread: all that is there, behind all that was posted before = one commit ──▶ answers
//! lay  ──▶ the same list ──▶ whoever waits for an answer first, if it is quick and nobody commits; else the thread
//! post ──▶ another list ──▶ with the next commit, or after LINGER
//! ```
//!
//! The committer lies beside the lists, under their lock, while nobody commits. Whoever takes it out takes the jobs with it
//! and commits without the lock; whoever finds it gone leaves its job there and has it done by the thread afterwards. So
//! there is one commit at a time, in the order of the list, and a caller on its own pays for no change of threads.
//! A panic in a commit is the end: the committer is gone with it, and everybody hears that.
//!
//! Nobody waits for what is posted, so it lingers: the begin and the end of something short are one commit, and the
//! thread is not woken, on the processor of whoever posts, for each. A job that is sent finds done what was posted before.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use std::{fmt, io, mem};
use tokio::sync::oneshot;

/// Jobs in one commit at most: bounds how long the first of them waits.
pub const BATCH: usize = 256;
/// How long a posted job waits for company: what a killed process loses of what nobody was told of.
const LINGER: Duration = Duration::from_millis(5);

/// What a writer does with its jobs.
pub trait Commit: Send + 'static {
    /// What it is asked for.
    type Job: Send;

    /// Does the jobs in their order, as one, and answers each.
    fn commit(&mut self, batch: &mut Vec<Self::Job>);

    /// Whether these jobs take so little time that whoever brings them may do them, on a thread that serves others.
    fn is_quick(&self, _jobs: &[Self::Job]) -> bool {
        false
    }

    /// How long nothing may come before [`Commit::idle`] is called; none: for ever.
    fn patience(&self) -> Option<Duration> {
        None
    }

    /// What there is to do when nothing comes; always the thread's.
    fn idle(&mut self) {}

    /// The last deed: nobody can ask any more.
    fn close(self);
}

/// What waits, and the committer while nobody has it.
struct Queue<C: Commit> {
    committer: Option<C>,
    jobs: Vec<C::Job>,
    posted: Vec<C::Job>,
    /// When what is posted has lingered long enough.
    due: Option<Instant>,
    /// The thread is to commit.
    called: bool,
    /// When the thread looks by itself; in the past: it is awake.
    looks_at: Option<Instant>,
    /// Nobody can ask any more; these wait for the end.
    closing: Option<Vec<oneshot::Sender<()>>>,
    /// The committer is closed, or died.
    over: bool,
}

struct Shared<C: Commit> {
    queue: Mutex<Queue<C>>,
    changed: Condvar,
}

/// Ends the thread with the last handle.
struct Handle<C: Commit>(Arc<Shared<C>>);

/// The way to the thread. Clones share it; it ends with the last of them, or when it is closed.
pub struct Writer<C: Commit>(Arc<Handle<C>>);

/// A job that lies on the list. Its caller does it with [`Laid::commit`]; if this is dropped before, the thread does.
#[must_use = "a job that is laid down is done by whoever waits for it"]
pub struct Laid<C: Commit>(Option<Arc<Handle<C>>>);

/// The committer, taken out together with a batch. It goes back however this ends, but not after a panic.
struct Out<'a, C: Commit> {
    shared: &'a Shared<C>,
    committer: Option<C>,
    done: bool,
}

impl<C: Commit> Clone for Writer<C> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<C: Commit> fmt::Debug for Writer<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Writer")
    }
}

impl<C: Commit> Writer<C> {
    /// Starts the thread.
    pub fn start(name: &str, committer: C) -> io::Result<Self> {
        let queue = Queue {
            committer: Some(committer),
            jobs: Vec::new(),
            posted: Vec::new(),
            due: None,
            called: false,
            looks_at: None,
            closing: None,
            over: false,
        };
        let shared = Arc::new(Shared { queue: Mutex::new(queue), changed: Condvar::new() });
        let theirs = shared.clone();
        std::thread::Builder::new().name(name.to_owned()).spawn(move || theirs.serve())?;
        Ok(Self(Arc::new(Handle(shared))))
    }

    /// Hands a job to the thread; it comes back if the thread is gone.
    pub fn send(&self, job: C::Job) -> Result<(), C::Job> {
        self.lay(job).map(drop)
    }

    /// Lays a job down for whoever waits for it; it comes back if nobody will ever do it.
    pub fn lay(&self, job: C::Job) -> Result<Laid<C>, C::Job> {
        let mut queue = self.0.0.queue();
        if queue.closing.is_some() || queue.over {
            return Err(job);
        }
        queue.jobs.push(job);
        drop(queue);
        Ok(Laid(Some(self.0.clone())))
    }

    /// Hands a job over that nobody waits for. If the thread is gone, so is the job.
    pub fn post(&self, job: C::Job) {
        let shared = &self.0.0;
        let mut queue = shared.queue();
        if queue.closing.is_some() || queue.over {
            drop(queue); // the job may hold what asks for the lock when it is dropped
            return;
        }
        queue.posted.push(job);
        if queue.posted.len().is_multiple_of(BATCH) {
            shared.call(queue); // there are many by now
        } else if queue.due.is_none() {
            let due = Instant::now() + LINGER;
            queue.due = Some(due);
            shared.look_by(queue, due);
        }
    }

    /// Waits for what was asked before, then ends the thread.
    pub async fn close(&self) {
        let (done, closed) = oneshot::channel();
        self.0.0.close(Some(done));
        // An error means that the thread is gone already, and the file closed with it.
        let _ = closed.await;
    }
}

impl<C: Commit> Drop for Handle<C> {
    fn drop(&mut self) {
        self.0.close(None);
    }
}

impl<C: Commit> Laid<C> {
    /// Commits all that waits, if that is quick and nobody does already; else the thread will.
    pub fn commit(mut self) {
        let Some(handle) = self.0.take() else { return };
        let shared = &handle.0;
        let mut queue = shared.queue();
        if queue.jobs.is_empty() {
            return; // somebody else has taken ours along
        }
        let quick = |committer: &C| queue.posted.is_empty() && committer.is_quick(&queue.jobs);
        match queue.committer.as_ref().is_some_and(quick).then(|| queue.committer.take()).flatten() {
            Some(committer) => shared.commit(queue, committer),
            None => shared.call(queue),
        }
    }
}

impl<C: Commit> Drop for Laid<C> {
    fn drop(&mut self) {
        if let Some(handle) = &self.0 {
            handle.0.call(handle.0.queue());
        }
    }
}

impl<C: Commit> Queue<C> {
    fn waits(&self) -> bool {
        !(self.jobs.is_empty() && self.posted.is_empty())
    }

    /// All that was posted, then what was asked for, up to a batch.
    fn batch(&mut self) -> Vec<C::Job> {
        self.due = None;
        let asked = self.jobs.len().min(BATCH);
        let mut batch = mem::take(&mut self.posted);
        if batch.is_empty() && asked == self.jobs.len() {
            batch = mem::take(&mut self.jobs);
        } else {
            batch.extend(self.jobs.drain(..asked));
        }
        self.called = !self.jobs.is_empty();
        batch
    }
}

impl<C: Commit> Shared<C> {
    fn queue(&self) -> MutexGuard<'_, Queue<C>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has the thread commit, now or when the committer is back.
    fn call(&self, mut queue: MutexGuard<'_, Queue<C>>) {
        queue.called = true;
        let here = queue.committer.is_some();
        drop(queue);
        if here {
            self.changed.notify_one();
        }
    }

    /// Has the thread look at this time, or before.
    fn look_by(&self, queue: MutexGuard<'_, Queue<C>>, time: Instant) {
        let late = queue.committer.is_some() && queue.looks_at.is_none_or(|looks_at| looks_at > time);
        drop(queue);
        if late {
            self.changed.notify_one();
        }
    }

    fn close(&self, done: Option<oneshot::Sender<()>>) {
        let mut queue = self.queue();
        if !queue.over {
            queue.closing.get_or_insert_default().extend(done);
            drop(queue);
            self.changed.notify_one();
        }
    }

    /// One commit of what waits.
    fn commit(&self, mut queue: MutexGuard<'_, Queue<C>>, committer: C) {
        let mut batch = queue.batch();
        drop(queue);
        self.with(committer, |committer| committer.commit(&mut batch));
    }

    /// Lends the committer out; without the lock.
    fn with(&self, committer: C, work: impl FnOnce(&mut C)) {
        let mut out = Out { shared: self, committer: Some(committer), done: false };
        out.committer.as_mut().map(work);
        out.done = true;
    }

    /// The thread's life.
    fn serve(&self) {
        let mut queue = self.queue();
        while !queue.over {
            let now = Instant::now();
            queue.looks_at = Some(now);
            if let Some(committer) = queue.committer.take() {
                let patience = committer.patience();
                let last = queue.closing.is_some();
                if queue.called || queue.due.is_some_and(|due| due <= now) || last && queue.waits() {
                    self.commit(queue, committer);
                } else if last {
                    drop(queue);
                    return self.end(committer);
                } else if patience.is_some_and(|patience| patience.is_zero()) {
                    drop(queue);
                    self.with(committer, C::idle);
                } else {
                    queue.looks_at = queue.due.into_iter().chain(patience.map(|patience| now + patience)).min();
                    queue.committer = Some(committer);
                    queue = self.wait(queue, now);
                    continue;
                }
                queue = self.queue();
            } else {
                queue.looks_at = None; // whoever has it tells us
                queue = self.wait(queue, now);
            }
        }
    }

    fn wait<'a>(&self, queue: MutexGuard<'a, Queue<C>>, now: Instant) -> MutexGuard<'a, Queue<C>> {
        match queue.looks_at {
            None => self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner),
            Some(time) => {
                let left = time.saturating_duration_since(now);
                self.changed.wait_timeout(queue, left).unwrap_or_else(PoisonError::into_inner).0
            }
        }
    }

    fn end(&self, committer: C) {
        committer.close();
        let mut queue = self.queue();
        queue.over = true;
        let waiting = queue.closing.take();
        drop(queue);
        for done in waiting.into_iter().flatten() {
            let _ = done.send(()); // whoever asked may have stopped waiting
        }
    }
}

impl<C: Commit> Drop for Out<'_, C> {
    fn drop(&mut self) {
        let mut queue = self.shared.queue();
        if self.done {
            let patience = self.committer.as_ref().and_then(Commit::patience);
            queue.committer = self.committer.take();
            let now = Instant::now();
            let called = (queue.called || queue.closing.is_some()).then_some(now);
            let due = queue.due.into_iter().chain(patience.map(|patience| now + patience));
            if let Some(time) = called.into_iter().chain(due).min() {
                self.shared.look_by(queue, time);
            }
        } else {
            queue.over = true;
            // Whoever waits for one of these, or for the end, hears of it when they are dropped; without the lock, which
            // their own ends may ask for.
            let lost = (mem::take(&mut queue.jobs), mem::take(&mut queue.posted), queue.closing.take());
            drop(queue);
            drop(lost);
            self.shared.changed.notify_one();
        }
    }
}

#[cfg(test)]
mod tests;
