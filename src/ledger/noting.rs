//! The row of an exec that is on its way, posted and not waited for.
//!
//! ```text
//! note ─▶ held ──post, or the first word that it runs──▶ posted ──the writer's next commit──▶ written
//!         words go into the row                          words go into the row               words are updates
//! ```
//!
//! So an exec that is over before its row is written is one job of the writer.

use super::execs::{bounded, end, insert};
use super::{ExecEnded, ExecStarted, Ledger, LedgerError};
use crate::model::ExecId;
use rusqlite::Connection;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A row that is not written yet.
#[derive(Debug)]
struct Unwritten {
    started: ExecStarted,
    ended: Option<ExecEnded>,
}

type Row = Arc<Mutex<Option<Unwritten>>>;

/// What is known of an exec that is not over.
#[derive(Debug)]
pub struct ExecNote {
    ledger: Ledger,
    exec: ExecId,
    /// None once it is written.
    row: Row,
    posted: bool,
}

fn unwritten(row: &Row) -> MutexGuard<'_, Option<Unwritten>> {
    row.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Ledger {
    /// Takes note of an exec. Fails only for what is too long.
    pub fn note_exec(&self, started: ExecStarted) -> Result<ExecNote, LedgerError> {
        let started = bounded(started)?;
        let exec = started.exec_id.clone();
        let row = Arc::new(Mutex::new(Some(Unwritten { started, ended: None })));
        Ok(ExecNote { ledger: self.clone(), exec, row, posted: false })
    }
}

impl ExecNote {
    /// Posts the row, once.
    pub fn post(&mut self) {
        if !std::mem::replace(&mut self.posted, true) {
            self.ledger.post(writing(self.row.clone()));
        }
    }

    /// The same for an exec that outlives its caller: the row does not linger, as it is what the caller finds after a crash.
    pub fn post_at_once(&mut self) {
        if !std::mem::replace(&mut self.posted, true) {
            self.ledger.post_at_once(writing(self.row.clone()));
        }
    }

    /// It has started, or is about to under this record; what is none stays.
    pub fn runs(&mut self, started_at_ms: Option<u64>, evidence_begin: Option<String>) {
        let mut row = unwritten(&self.row);
        match &mut *row {
            Some(Unwritten { started, .. }) => {
                started.started_at_ms = started.started_at_ms.or(started_at_ms);
                started.evidence_begin = evidence_begin.or_else(|| started.evidence_begin.take());
                drop(row);
                self.post();
            }
            None => self.ledger.post_running(&self.exec, started_at_ms, evidence_begin),
        }
    }

    /// It has ended. The first end stays.
    pub fn ended(&mut self, end: ExecEnded) {
        let mut row = unwritten(&self.row);
        match &mut *row {
            Some(Unwritten { ended, .. }) => {
                ended.get_or_insert(end);
                drop(row);
                self.post();
            }
            None => self.ledger.post_ended(end),
        }
    }
}

/// Writes a row, with all that is known by then.
fn writing(row: Row) -> impl FnOnce(&Connection) -> Result<(), LedgerError> + Send + 'static {
    move |connection| {
        // Taken in one go: whoever has a word afterwards finds it written.
        let Some(Unwritten { started, ended }) = unwritten(&row).take() else { return Ok(()) };
        insert(connection, &started)?;
        ended.map_or(Ok(()), |ended| end(connection, ended))
    }
}

#[cfg(test)]
mod tests {
    use super::super::execs::tests::{ended, started};
    use super::super::tests::{fresh, owners};
    use super::*;
    use crate::ledger::ExecStatus;
    use crate::model::Ending;

    #[tokio::test]
    async fn words_reach_the_row_before_and_after_it_is_written() {
        let (_directory, ledger) = fresh();
        let [owner, _] = owners();
        for asked_between in [false, true] {
            let started = ExecStarted { started_at_ms: None, evidence_begin: None, ..started(&owner, 5) };
            let id = started.exec_id.clone();
            let mut note = ledger.note_exec(started.clone()).expect("it fits");
            note.post();
            if asked_between {
                let row = ledger.get_exec(&owner, &id).await.expect("a question commits what was posted");
                assert_eq!((row.status, row.started.evidence_begin), (ExecStatus::Queued, None));
            }
            note.runs(Some(7), None);
            note.runs(None, Some("ev_1".to_owned()));
            if asked_between {
                let row = ledger.get_exec(&owner, &id).await.expect("a row");
                assert_eq!((row.status, row.started.started_at_ms), (ExecStatus::Running, Some(7)));
            }
            note.ended(ended(&started, Ending::Ok, 20));
            note.ended(ended(&started, Ending::Lost, 30));
            let row = ledger.get_exec(&owner, &id).await.expect("a row");
            assert_eq!(row.status, ExecStatus::Ended(Ending::Ok));
            assert_eq!(row.started.evidence_begin.as_deref(), Some("ev_1"));
            assert_eq!((row.started.started_at_ms, row.ended_at_ms, row.duration_ms), (Some(7), Some(20), Some(13)));
        }
    }

    #[tokio::test]
    async fn a_row_that_nobody_posted_is_written_with_its_end() {
        let (_directory, ledger) = fresh();
        let [owner, _] = owners();
        let started = ExecStarted { started_at_ms: None, ..started(&owner, 5) };
        let mut note = ledger.note_exec(started.clone()).expect("it fits");
        assert!(matches!(ledger.get_exec(&owner, &started.exec_id).await, Err(LedgerError::ExecNotFound(_))));
        note.ended(ended(&started, Ending::Cancelled, 20));
        let row = ledger.get_exec(&owner, &started.exec_id).await.expect("a row");
        assert_eq!((row.status, row.duration_ms), (ExecStatus::Ended(Ending::Cancelled), None));
    }
}
