//! What the ledger's thread does: everything that waits goes into one transaction.

use super::LedgerError;
use super::db::KIND;
use crate::sqlite::file::is_damage;
use crate::sqlite::writer::{Commit, Writer};
use rusqlite::Connection;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::sync::oneshot;

/// What an answered call outlives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Lasting {
    /// The end of this process: the kernel has it.
    Kill,
    /// The end of the power: the disk has it.
    PowerLoss,
}

/// What the thread is asked for: a call, within a transaction.
type Order = (Lasting, Box<dyn Job>);

/// A call as the thread sees it.
pub(super) trait Job: Send {
    /// Does it, inside the transaction. False if it failed and its changes are to be undone.
    fn run(&mut self, connection: &Connection) -> bool;
    /// Answers, now that the transaction has succeeded or not.
    fn answer(self: Box<Self>, path: &Path, committed: Result<(), Arc<rusqlite::Error>>);
}

/// A call with its answer's way back.
pub(super) struct Call<W, A, T, U> {
    work: Option<W>,
    result: Option<Result<T, LedgerError>>,
    after: A,
    reply: oneshot::Sender<Result<U, LedgerError>>,
}

impl<W, A, T, U> Call<W, A, T, U>
where
    W: FnOnce(&Connection) -> Result<T, LedgerError> + Send + 'static,
    A: FnOnce(T) -> U + Send + 'static,
    T: Send + 'static,
    U: Send + 'static,
{
    #[expect(clippy::new_ret_no_self, reason = "the type is of no interest beyond being a job")]
    pub(super) fn new(work: W, after: A) -> (Box<dyn Job>, oneshot::Receiver<Result<U, LedgerError>>) {
        let (reply, answer) = oneshot::channel();
        (Box::new(Call { work: Some(work), result: None, after, reply }), answer)
    }
}

impl<W, A, T, U> Job for Call<W, A, T, U>
where
    W: FnOnce(&Connection) -> Result<T, LedgerError> + Send,
    A: FnOnce(T) -> U + Send,
    T: Send,
    U: Send,
{
    fn run(&mut self, connection: &Connection) -> bool {
        let result = self.work.take().map(|work| work(connection));
        let kept = matches!(result, Some(Ok(_)));
        self.result = result;
        kept
    }

    fn answer(self: Box<Self>, path: &Path, committed: Result<(), Arc<rusqlite::Error>>) {
        let result = match (committed, self.result) {
            (Ok(()), Some(Ok(value))) => Ok((self.after)(value)),
            (Ok(()) | Err(_), Some(Err(error))) => Err(blame_file(error, path)),
            (Err(error), _) => Err(LedgerError::Commit(error)),
            (Ok(()), None) => Err(LedgerError::Closed),
        };
        // A caller that went away: its value is dropped here, and a dropped reservation gives itself back.
        let _ = self.reply.send(result);
    }
}

/// `error` as a word about the file, if that is where the fault lies.
pub(super) fn blame_file(error: LedgerError, path: &Path) -> LedgerError {
    match error {
        LedgerError::Statement(source) if is_damage(&source) => KIND.blame(source, path).into(),
        other => other,
    }
}

/// Starts the thread.
pub(super) fn start(connection: Connection, path: PathBuf) -> Result<Writer<Owner>, LedgerError> {
    Writer::start("ledger", Owner { connection, path }).map_err(LedgerError::Thread)
}

/// The thread's own: nobody else touches the connection.
pub(super) struct Owner {
    connection: Connection,
    path: PathBuf,
}

impl Commit for Owner {
    type Job = Order;

    fn commit(&mut self, batch: &mut Vec<Order>) {
        let lasting = batch.iter().map(|(lasting, _)| *lasting).max().unwrap_or(Lasting::Kill);
        let mut jobs: Vec<_> = batch.drain(..).map(|(_, job)| job).collect();
        let committed = commit(&self.connection, lasting, &mut jobs).map_err(Arc::new);
        if let Err(error) = &committed {
            tracing::error!(path = %self.path.display(), error = error.to_string(), calls = jobs.len(), "ledger: commit failed");
        }
        for job in jobs {
            job.answer(&self.path, committed.clone());
        }
    }

    fn close(self) {
        if let Err((_, error)) = self.connection.close() {
            tracing::warn!(path = %self.path.display(), error = error.to_string(), "ledger: closing failed");
        }
    }
}

/// One transaction around all jobs, each in a savepoint of its own so that a failed one takes no other with it.
fn commit(connection: &Connection, lasting: Lasting, batch: &mut [Box<dyn Job>]) -> rusqlite::Result<()> {
    let step = |sql: &str| connection.prepare_cached(sql)?.execute([]).map(drop);
    if lasting == Lasting::PowerLoss {
        connection.pragma_update(None, "synchronous", "FULL")?;
    }
    let result = (|| {
        step("BEGIN IMMEDIATE")?;
        for job in batch {
            step("SAVEPOINT job")?;
            if !job.run(connection) {
                // A full disk makes SQLite roll back all of it by itself. Going on would commit each job alone and
                // then answer that none was; so the transaction ends here, and "ROLLBACK TO" says why.
                step("ROLLBACK TO job")?;
            }
            step("RELEASE job")?;
        }
        step("COMMIT")
    })();
    if result.is_err() && !connection.is_autocommit() {
        // It is undone at the latest when the file is closed.
        let _ = connection.execute_batch("ROLLBACK");
    }
    if lasting == Lasting::PowerLoss {
        // Staying at FULL is slower, not wrong; and what was committed must not be answered with an error.
        let _ = connection.pragma_update(None, "synchronous", "NORMAL");
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::GrantId;

    type Asked = (Box<dyn Job>, oneshot::Receiver<Result<(), LedgerError>>);

    /// A job that adds a row to `t`, then does `rest`.
    fn adds(rest: &'static str, works: bool) -> Asked {
        let work = move |connection: &Connection| {
            connection.execute_batch(&format!("INSERT INTO t VALUES (1); {rest}"))?;
            if works { Ok(()) } else { Err(LedgerError::NotFound(GrantId::from("gr_none"))) }
        };
        Call::new(work, |()| ())
    }

    fn commit_all(jobs: Vec<Asked>) -> (Vec<bool>, i64) {
        let connection = Connection::open_in_memory().expect("memory");
        connection.execute_batch("CREATE TABLE t (x)").expect("a table");
        let (mut batch, answers): (Vec<_>, Vec<_>) = jobs.into_iter().unzip();
        let committed = commit(&connection, Lasting::PowerLoss, &mut batch).map_err(Arc::new);
        batch.into_iter().for_each(|job| job.answer(Path::new("memory"), committed.clone()));
        let worked = answers.into_iter().map(|mut answer| answer.try_recv().expect("answered").is_ok()).collect();
        assert!(connection.is_autocommit());
        (worked, connection.query_row("SELECT count(*) FROM t", [], |row| row.get(0)).expect("a count"))
    }

    #[test]
    fn a_job_that_fails_takes_no_other_with_it() {
        let answers = commit_all(vec![adds("", true), adds("", false), adds("", true)]);
        assert_eq!(answers, (vec![true, false, true], 2));
    }

    #[test]
    fn when_the_whole_transaction_is_lost_every_caller_hears_it() {
        // What SQLite does by itself when the disk is full.
        let answers = commit_all(vec![adds("", true), adds("ROLLBACK", false), adds("", true)]);
        assert_eq!(answers, (vec![false, false, false], 0));
    }
}
