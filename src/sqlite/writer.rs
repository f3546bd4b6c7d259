//! The thread that owns a connection: everything that waits goes into one commit.
//!
//! ```text
//! send ──▶ channel ──▶ all that is there, behind all that was posted before = one commit ──▶ answers
//! post ──▶ a list; the first of a list tells the thread ──▶ with the next commit, or after LINGER
//! ```
//!
//! Nobody waits for what is posted, so it lingers: the begin and the end of something short are one commit, and the
//! thread is not woken, on the processor of whoever posts, for each. A job that is sent finds done what was posted before.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use std::{fmt, io};
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

    /// How long nothing may come before [`Commit::idle`] is called; none: for ever.
    fn patience(&self) -> Option<Duration> {
        None
    }

    /// What there is to do when nothing comes.
    fn idle(&mut self) {}

    /// The last deed: nobody can ask any more.
    fn close(self);
}

enum Order<J> {
    Work(J),
    /// Something was posted.
    Posted,
    Close(oneshot::Sender<()>),
}

/// The way to the thread. Clones share it; it ends with the last of them, or when it is closed.
pub struct Writer<J> {
    orders: mpsc::Sender<Order<J>>,
    posted: Posted<J>,
}

/// What was posted and is in no commit yet.
type Posted<J> = Arc<Mutex<Vec<J>>>;

impl<J> Clone for Writer<J> {
    fn clone(&self) -> Self {
        Self { orders: self.orders.clone(), posted: self.posted.clone() }
    }
}

impl<J> fmt::Debug for Writer<J> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Writer")
    }
}

impl<J: Send + 'static> Writer<J> {
    /// Starts the thread.
    pub fn start(name: &str, committer: impl Commit<Job = J>) -> io::Result<Self> {
        // Unbounded: every caller waits for its answer, so there are never more orders than callers.
        let (orders, incoming) = mpsc::channel();
        let posted = Posted::default();
        let theirs = posted.clone();
        std::thread::Builder::new().name(name.to_owned()).spawn(move || serve(committer, &incoming, &theirs))?;
        Ok(Self { orders, posted })
    }

    /// Hands a job over; it comes back if the thread is gone.
    pub fn send(&self, job: J) -> Result<(), J> {
        self.orders.send(Order::Work(job)).map_err(|mpsc::SendError(order)| match order {
            Order::Work(job) => job,
            Order::Posted | Order::Close(_) => unreachable!("a job was sent"),
        })
    }

    /// Hands a job over that nobody waits for. If the thread is gone, so is the job.
    pub fn post(&self, job: J) {
        let mut posted = self.posted.lock().unwrap_or_else(PoisonError::into_inner);
        posted.push(job);
        let first = posted.len() == 1 || posted.len().is_multiple_of(BATCH);
        drop(posted);
        if first {
            // An error means that the thread is gone.
            let _ = self.orders.send(Order::Posted);
        }
    }

    /// Waits for what was asked before, then ends the thread.
    pub async fn close(&self) {
        let (done, closed) = oneshot::channel();
        if self.orders.send(Order::Close(done)).is_ok() {
            // An error means that the thread is gone already, and the file closed with it.
            let _ = closed.await;
        }
    }
}

fn serve<C: Commit>(mut committer: C, incoming: &mpsc::Receiver<Order<C::Job>>, posted: &Posted<C::Job>) {
    let take_posted = || std::mem::take(&mut *posted.lock().unwrap_or_else(PoisonError::into_inner));
    let mut due: Option<Instant> = None;
    let mut closing = None;
    while closing.is_none() {
        let left = due.map(|due| due.saturating_duration_since(Instant::now()));
        let first = match left.into_iter().chain(committer.patience()).min() {
            None => incoming.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(patience) => incoming.recv_timeout(patience),
        };
        let mut batch = Vec::new();
        let mut next = match first {
            Ok(order) => Some(order),
            Err(RecvTimeoutError::Timeout) if due.is_some_and(|due| due <= Instant::now()) => {
                due = None;
                batch = take_posted();
                None
            }
            Err(RecvTimeoutError::Timeout) => {
                committer.idle();
                continue;
            }
            Err(RecvTimeoutError::Disconnected) => {
                batch = take_posted();
                closing = Some(None);
                None
            }
        };
        while let Some(order) = next.take() {
            match order {
                Order::Work(job) => {
                    if batch.is_empty() {
                        batch = take_posted();
                    }
                    batch.push(job);
                    if batch.len() < BATCH {
                        next = incoming.try_recv().ok();
                    }
                }
                Order::Posted => {
                    // Told again: there are many by now.
                    let many = due.is_some() && posted.lock().unwrap_or_else(PoisonError::into_inner).len() >= BATCH;
                    due = Some(if many { Instant::now() } else { due.unwrap_or_else(|| Instant::now() + LINGER) });
                    next = incoming.try_recv().ok();
                }
                Order::Close(done) => {
                    batch.append(&mut take_posted());
                    closing = Some(Some(done));
                }
            }
        }
        if !batch.is_empty() {
            due = None;
            committer.commit(&mut batch);
        }
    }
    committer.close();
    if let Some(Some(done)) = closing {
        // Whoever asked may have stopped waiting.
        let _ = done.send(());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Numbered = (u32, Option<oneshot::Sender<()>>);

    /// Sends the jobs of each commit on.
    struct Told(mpsc::Sender<Vec<u32>>);

    impl Commit for Told {
        type Job = Numbered;

        fn commit(&mut self, batch: &mut Vec<Self::Job>) {
            let numbers = batch.iter().map(|(number, _)| *number).collect();
            self.0.send(numbers).expect("the test listens");
            for (_, answer) in batch.drain(..) {
                answer.map(|answer| answer.send(()));
            }
        }

        fn close(self) {}
    }

    fn writer() -> (Writer<Numbered>, mpsc::Receiver<Vec<u32>>) {
        let (told, commits) = mpsc::channel();
        (Writer::start("test", Told(told)).expect("a thread"), commits)
    }

    #[test]
    fn what_is_sent_finds_done_what_was_posted_before() {
        let (writer, commits) = writer();
        writer.post((1, None));
        writer.post((2, None));
        let (answer, answered) = oneshot::channel();
        writer.send((3, Some(answer))).expect("the thread lives");
        answered.blocking_recv().expect("an answer");
        assert_eq!(commits.recv(), Ok(vec![1, 2, 3]));
    }

    #[test]
    fn what_is_posted_alone_is_done_a_little_later_and_together() {
        let (writer, commits) = writer();
        (1..=3).for_each(|number| writer.post((number, None)));
        let mut done = commits.recv().expect("a commit");
        while done.len() < 3 {
            done.extend(commits.recv().expect("a commit")); // a machine that stood still between two of them
        }
        assert_eq!(done, [1, 2, 3]);
        writer.post((4, None));
        assert_eq!(commits.recv(), Ok(vec![4]), "the next one is told of again");
    }

    #[test]
    fn closing_waits_for_what_was_posted() {
        let (writer, commits) = writer();
        writer.post((1, None));
        tokio::runtime::Builder::new_current_thread().build().expect("a runtime").block_on(writer.close());
        assert_eq!(commits.try_recv(), Ok(vec![1]));
    }

    #[test]
    fn many_that_are_posted_are_not_kept_waiting() {
        let (writer, commits) = writer();
        let many = 3 * BATCH as u32;
        (0..many).for_each(|number| writer.post((number, None)));
        let mut done = Vec::new();
        while done.len() < many as usize {
            done.extend(commits.recv().expect("a commit"));
        }
        assert!(done.into_iter().eq(0..many));
    }
}
