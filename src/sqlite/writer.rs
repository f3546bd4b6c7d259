//! The thread that owns a connection: everything that waits goes into one commit.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;
use std::{fmt, io};
use tokio::sync::oneshot;

/// Jobs in one commit at most: bounds how long the first of them waits.
pub const BATCH: usize = 256;

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
    Close(oneshot::Sender<()>),
}

/// The way to the thread. Clones share it; it ends with the last of them, or when it is closed.
pub struct Writer<J> {
    orders: mpsc::Sender<Order<J>>,
}

impl<J> Clone for Writer<J> {
    fn clone(&self) -> Self {
        Self { orders: self.orders.clone() }
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
        std::thread::Builder::new().name(name.to_owned()).spawn(move || serve(committer, &incoming))?;
        Ok(Self { orders })
    }

    /// Hands a job over; it comes back if the thread is gone.
    pub fn send(&self, job: J) -> Result<(), J> {
        self.orders.send(Order::Work(job)).map_err(|mpsc::SendError(order)| match order {
            Order::Work(job) => job,
            Order::Close(_) => unreachable!("a job was sent"),
        })
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

fn serve<C: Commit>(mut committer: C, incoming: &mpsc::Receiver<Order<C::Job>>) {
    let mut batch = Vec::new();
    let mut closing = None;
    while closing.is_none() {
        let first = match committer.patience() {
            None => incoming.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(patience) => incoming.recv_timeout(patience),
        };
        let mut next = match first {
            Ok(order) => Some(order),
            Err(RecvTimeoutError::Timeout) => {
                committer.idle();
                continue;
            }
            Err(RecvTimeoutError::Disconnected) => break,
        };
        while let Some(order) = next.take() {
            match order {
                Order::Work(job) => {
                    batch.push(job);
                    if batch.len() < BATCH {
                        next = incoming.try_recv().ok();
                    }
                }
                Order::Close(done) => closing = Some(done),
            }
        }
        if !batch.is_empty() {
            committer.commit(&mut batch);
            batch.clear();
        }
    }
    committer.close();
    if let Some(done) = closing {
        // Whoever asked may have stopped waiting.
        let _ = done.send(());
    }
}
