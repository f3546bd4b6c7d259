//! What the journal is asked for, and how each asker is answered.

use super::draft::Draft;
use super::id::{Digest, EvidenceId};
use super::owner::Place;
use super::{EvidenceError, OpenRecord};
use tokio::sync::oneshot;

type Reply<T> = oneshot::Sender<Result<T, EvidenceError>>;

/// What the thread is asked for.
pub(super) enum Job {
    /// A begin; its handle goes to whoever waits, or closes the record if nobody does.
    Begin(Draft, OpenRecord, Reply<OpenRecord>),
    /// The end of a begin.
    End(Draft, EvidenceId, Option<Reply<EvidenceId>>),
    /// A refusal.
    Refuse(Draft, Reply<EvidenceId>),
    /// A signature for what is there.
    Checkpoint(Reply<Place>),
    /// What stands on the slate, to be moved into the database.
    Settle(Reply<()>),
    /// Sealed records, to be removed: up to this place, whose hash is this.
    Forget { upto: u64, hash: Digest, keys: Vec<(i64, u64)>, reply: Reply<()> },
}

impl Job {
    /// Whether something that runs depends on it: then it may use the ballast.
    pub(super) fn is_end(&self) -> bool {
        matches!(self, Job::End(..))
    }

    /// Whether it is a record of an operation and nothing else.
    pub(super) fn is_record(&self) -> bool {
        matches!(self, Job::Begin(..) | Job::End(..) | Job::Refuse(..))
    }

    pub(super) fn refuse(self, error: EvidenceError) {
        // Whoever asked may have stopped waiting. A begin's handle is not armed yet, so its end asks for nothing.
        let _ = match self {
            Job::Begin(_, _, reply) => reply.send(Err(error)).is_ok(),
            Job::End(_, _, Some(reply)) | Job::Refuse(_, reply) => reply.send(Err(error)).is_ok(),
            Job::End(_, _, None) => false,
            Job::Checkpoint(reply) => reply.send(Err(error)).is_ok(),
            Job::Settle(reply) | Job::Forget { reply, .. } => reply.send(Err(error)).is_ok(),
        };
    }

    /// Says what came of it, now that the chain stands at `head`.
    pub(super) fn answer(self, answer: Result<EvidenceId, EvidenceError>, head: Place) {
        match (self, answer) {
            (job, Err(error)) => job.refuse(error),
            (Self::Begin(_, mut record, reply), Ok(_)) => {
                record.arm();
                // If nobody waits any more, the handle is dropped here and closes its record as lost.
                let _ = reply.send(Ok(record));
            }
            // Nobody waiting is no loss: it is recorded.
            (Self::End(_, _, Some(reply)) | Job::Refuse(_, reply), Ok(id)) => drop(reply.send(Ok(id))),
            (Self::End(_, _, None), Ok(_)) => {}
            (Self::Checkpoint(reply), Ok(_)) => drop(reply.send(Ok(head))),
            (Self::Settle(reply) | Self::Forget { reply, .. }, Ok(_)) => drop(reply.send(Ok(()))),
        }
    }
}
