//! Logs of execs that have ended: for a while as they were, later as their artifacts tell them.
//!
//! An exec with a project leaves `stdout.txt`, `stderr.txt` and, in `meta.json`, the order of what is in them, so its log
//! can be read again after a restart, under the same positions. One without a project is known for a while only.

use super::live::Followed;
use super::{Failure, Pipeline};
use crate::executor::{Event, Exit, Live, Log};
use crate::ledger::{ExecRow, ExecStatus};
use crate::model::{Channel, ExecId, LimitHit, Owner};
use crate::policy::Refusal;
use crate::workspace::{AreaDir, AreaKind, WorkspaceError};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long an ended exec's log stays as it was.
const STAYS: Duration = Duration::from_secs(15 * 60);
/// Ended execs of one owner whose logs stay; beyond it the oldest go.
const MOST_PER_OWNER: usize = 64;
/// Runs of a log whose order is written down.
const RUNS_MAX: usize = 32 * 1024;

struct KeptLog {
    owner: Owner,
    exec: ExecId,
    live: Arc<Live>,
    since: Instant,
}

/// Logs that are still there, oldest first.
#[derive(Default)]
pub(super) struct KeptLogs(Mutex<VecDeque<KeptLog>>);

impl KeptLogs {
    fn logs(&self) -> MutexGuard<'_, VecDeque<KeptLog>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps one, in place of the owner's oldest if there are many.
    pub(super) fn keep(&self, owner: Owner, exec: ExecId, live: Arc<Live>) {
        self.forget_old();
        let mut logs = self.logs();
        logs.retain(|kept| kept.exec != exec);
        if logs.iter().filter(|kept| kept.owner == owner).count() >= MOST_PER_OWNER
            && let Some(oldest) = logs.iter().position(|kept| kept.owner == owner)
        {
            logs.remove(oldest);
        }
        logs.push_back(KeptLog { owner, exec, live, since: Instant::now() });
    }

    /// One of this owner.
    pub(super) fn find(&self, owner: &Owner, exec: &ExecId) -> Option<Arc<Live>> {
        let logs = self.logs();
        logs.iter().find(|kept| kept.exec == *exec && kept.owner == *owner).map(|kept| kept.live.clone())
    }

    /// Lets go of what has been there for long.
    pub(super) fn forget_old(&self) {
        let mut logs = self.logs();
        while logs.front().is_some_and(|kept| kept.since.elapsed() > STAYS) {
            logs.pop_front();
        }
    }
}

/// The order of a log in `meta.json`: of each run its stream and its bytes, or null for an event.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct WrittenDown {
    /// None if there are too many runs.
    runs: Option<Vec<Option<(Channel, u64)>>>,
    /// The limits among the events, in their order.
    limits: Vec<LimitHit>,
}

/// What of a log its outputs do not tell.
pub(super) fn written_down(log: &Log) -> WrittenDown {
    WrittenDown { runs: log.order(RUNS_MAX), limits: log.limits_told() }
}

#[derive(Deserialize)]
struct Meta {
    #[serde(default)]
    log: WrittenDown,
}

impl Pipeline {
    /// The log of an exec that has ended, out of its artifacts.
    pub(super) async fn restore(&self, row: ExecRow) -> Result<Followed, Failure> {
        let gone = || Failure::from(Refusal::OutputGone);
        let (owner, exec) = (row.started.owner.clone(), row.started.exec_id.clone());
        let ExecStatus::Ended(_) = row.status else { return Err(gone()) };
        let project = row.started.project_id.clone().ok_or_else(gone)?;
        let (store, kind) = (self.0.store.clone(), AreaKind::Artifacts(exec.clone()));
        let work = move || {
            let area = store.area(&owner, &project, &kind)?;
            read_back(&area, &row)
        };
        let restored = tokio::task::spawn_blocking(work).await.map_err(|_| Failure::Internal)?;
        // Removed, replaced or never written: not ours to mend.
        restored.map_err(|error| {
            tracing::debug!(%exec, error = &error as &dyn std::error::Error, "an exec's output is not there");
            gone()
        })
    }
}

fn read_back(area: &AreaDir, row: &ExecRow) -> Result<Followed, WorkspaceError> {
    let read = |name: &str| area.read(name, 0, u64::MAX).map(|content| content.bytes);
    let outputs = [read("stdout.txt")?, read("stderr.txt")?];
    let WrittenDown { runs, limits } =
        serde_json::from_slice::<Meta>(&read("meta.json")?).map(|meta| meta.log).unwrap_or_default();
    let ordered = runs.is_some();
    let mut runs = runs.unwrap_or_else(|| {
        let events = std::iter::repeat_n(None, 2 + limits.len());
        let lengths =
            [Channel::Stdout, Channel::Stderr].map(|channel| (channel, outputs[channel as usize].len() as u64));
        events.chain(lengths.map(Some)).collect()
    });
    runs.push(None); // its end, which came after the order was written down
    let events = [Event::Queued, Event::Started].into_iter();
    let events = events.chain(limits.into_iter().map(Event::Limit)).chain([Event::Exit(Box::new(exit_of_row(row)))]);
    let log = Log::restored(&runs, [&outputs[0], &outputs[1]], events.collect());
    Ok(Followed { live: Arc::new(Live::ended(log)), ordered })
}

fn exit_of_row(row: &ExecRow) -> Exit {
    Exit {
        ending: match row.status {
            ExecStatus::Ended(ending) => ending,
            ExecStatus::Queued | ExecStatus::Running => crate::model::Ending::Lost,
        },
        exit_code: row.exit_code,
        signal: row.signal.clone(),
        reason: row.error_reason.clone(),
        code: None,
        truncated: [row.stdout_truncated, row.stderr_truncated],
        usage: row.usage,
        evidence: [row.started.evidence_begin.clone(), row.evidence_end.clone()],
        artifacts_dir: row.started.artifacts_path.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owner_displaces_its_own_logs_only() {
        let logs = KeptLogs::default();
        let owner = |subject: &str| Owner { tenant: "t".into(), subject: subject.into() };
        let keep = |subject: &str| {
            let exec = ExecId::generate();
            logs.keep(owner(subject), exec.clone(), Arc::new(Live::new(None)));
            exec
        };
        let (other, first) = (keep("b"), keep("a"));
        let last: Vec<_> = (0..MOST_PER_OWNER).map(|_| keep("a")).collect();
        assert!(logs.find(&owner("b"), &other).is_some() && logs.find(&owner("a"), &first).is_none());
        assert!(last.iter().all(|exec| logs.find(&owner("a"), exec).is_some()));
        assert!(logs.find(&owner("b"), &last[0]).is_none(), "another's is as unknown as none");
    }
}
