//! Execs: what ran, for whom, under which policy, and how it ended. No output, no code and no values of variables.
//!
//! A row is written when an exec starts (or waits, and then again when it starts) and once more when it ends; of a short one
//! all at once (`noting.rs`). [`Ledger::post_started`] and [`Ledger::post_ended`] do not wait: one writer keeps their order, and the record that must be durable before the first instruction is the
//! evidence, not this. A row found open at start belongs to a dead daemon: [`Ledger::close_open_execs`].

use super::page::Wheres;
use super::{GrantId, LONGEST_PAGE, Ledger, LedgerError, SandboxId, fits, read_back, read_id, stored, writer::Lasting};
use crate::model::{Ending, ExecId, Kind, Owner, ProjectId, Usage};
use rusqlite::types::{Type, Value};
use rusqlite::{Connection, OptionalExtension, Row, params};
use serde::de::DeserializeOwned;

/// Bytes of a reference that the caller chose.
const REFERENCE_MAX: usize = 256;
/// Bytes of a profile's name.
const PROFILE_MAX: usize = 64;
/// Bytes of a path.
const PATH_MAX: usize = 4096;
/// Bytes of the policy as JSON.
const POLICY_MAX: usize = 64 * 1024;
/// Bytes of the command, of all arguments together, and of all names of variables; what is longer is cut.
const WORDS_MAX: usize = 16 * 1024;
/// Bytes of a reason; what is longer is cut.
const REASON_MAX: usize = 1024;
/// What stands where something was cut.
const CUT: char = '…';
/// Rows that one call of [`Ledger::old_execs`] finds, so that nobody waits long behind it.
const FORGET_MAX: usize = 1000;
/// The reason of an exec that was found open.
const LOST: &str = "the daemon ended before the exec did";

const TABLE: &str = "execs";
/// The columns of an [`ExecRow`], in the order that [`read`] wants.
const COLUMNS: &str = "exec_id, tenant, subject, sandbox_id, project_id, task_ref, skill_id, grant_id, profile, kind, \
     command, args, cwd, env_keys, policy, status, exit_code, signal, error_reason, queued_at_ms, started_at_ms, \
     ended_at_ms, duration_ms, artifacts_path, stdout_truncated, stderr_truncated, usage, evidence_begin, evidence_end";

/// Where an exec is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExecStatus {
    /// It waits for its turn.
    Queued,
    /// It runs.
    Running,
    /// It has ended like this.
    Ended(Ending),
}

impl ExecStatus {
    /// The word in lists and answers.
    #[must_use]
    pub fn name(self) -> String {
        match self {
            ExecStatus::Queued => "queued".to_owned(),
            ExecStatus::Running => "running".to_owned(),
            ExecStatus::Ended(ending) => word(&ending),
        }
    }

    /// The status of that name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "queued" => Some(ExecStatus::Queued),
            "running" => Some(ExecStatus::Running),
            name => from_word(name).map(ExecStatus::Ended),
        }
    }
}

/// An exec that starts, or waits for its turn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExecStarted {
    /// Its id.
    pub exec_id: ExecId,
    /// Whose it is.
    pub owner: Owner,
    /// The sandbox that it is part of.
    pub sandbox_id: Option<SandboxId>,
    /// The project whose workspace it uses.
    pub project_id: Option<ProjectId>,
    /// The caller's own reference.
    pub task_ref: Option<String>,
    /// The skill that it is part of.
    pub skill_id: Option<String>,
    /// The grant that pays.
    pub grant_id: Option<GrantId>,
    /// The profile that it runs under.
    pub profile: String,
    /// What kind of code it is.
    pub kind: Kind,
    /// The program; cut if it is long.
    pub command: String,
    /// Its arguments; cut if they are long.
    pub args: Vec<String>,
    /// Its directory.
    pub cwd: Option<String>,
    /// Names of its variables, without values.
    pub env_keys: Vec<String>,
    /// The policy in force, as JSON that the ledger keeps and does not read.
    pub policy: String,
    /// When it came.
    pub queued_at_ms: u64,
    /// When it started; none: it waits.
    pub started_at_ms: Option<u64>,
    /// Where its artifacts are.
    pub artifacts_path: Option<String>,
    /// Evidence of its begin.
    pub evidence_begin: Option<String>,
}

/// How an exec ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExecEnded {
    /// Which.
    pub exec_id: ExecId,
    /// In one word.
    pub ending: Ending,
    /// Exit code, if the program exited.
    pub exit_code: Option<i32>,
    /// Name of the signal that ended it.
    pub signal: Option<String>,
    /// Why it failed, if it did; cut if it is long.
    pub error_reason: Option<String>,
    /// When it started, if it was posted as queued.
    pub started_at_ms: Option<u64>,
    /// When it ended.
    pub ended_at_ms: u64,
    /// Whether its output was cut.
    pub stdout_truncated: bool,
    /// Whether its error output was cut.
    pub stderr_truncated: bool,
    /// What the kernel counted.
    pub usage: Usage,
    /// Evidence of its end.
    pub evidence_end: Option<String>,
}

/// An exec as it stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExecRow {
    /// What was known when it started.
    pub started: ExecStarted,
    /// Where it is.
    pub status: ExecStatus,
    /// Exit code, if the program exited.
    pub exit_code: Option<i32>,
    /// Name of the signal that ended it.
    pub signal: Option<String>,
    /// Why it failed, if it did.
    pub error_reason: Option<String>,
    /// When it ended.
    pub ended_at_ms: Option<u64>,
    /// From its start to its end; none while it runs, and for one that was lost.
    pub duration_ms: Option<u64>,
    /// Whether its output was cut.
    pub stdout_truncated: bool,
    /// Whether its error output was cut.
    pub stderr_truncated: bool,
    /// What the kernel counted; none until it ends, and for one that was lost.
    pub usage: Option<Usage>,
    /// Evidence of its end.
    pub evidence_end: Option<String>,
}

/// An exec that nobody wants to know of any more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OldExec {
    /// Its id.
    pub exec_id: ExecId,
    /// Whose it was.
    pub owner: Owner,
    /// The project that its artifacts are in.
    pub project_id: Option<ProjectId>,
}

/// Which execs to list; all that is given must hold.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ExecFilter {
    /// With this reference.
    pub task_ref: Option<String>,
    /// Of this sandbox.
    pub sandbox_id: Option<SandboxId>,
    /// Of this project.
    pub project_id: Option<ProjectId>,
    /// That are there.
    pub status: Option<ExecStatus>,
    /// That came at this time or later.
    pub since_ms: Option<u64>,
    /// That came before this time.
    pub until_ms: Option<u64>,
}

/// Part of a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExecPage {
    /// Newest first.
    pub items: Vec<ExecRow>,
    /// Where the next page begins; none after the last.
    pub next: Option<ExecId>,
}

impl Ledger {
    /// Writes an exec down before the answer.
    pub async fn exec_started(&self, started: ExecStarted) -> Result<(), LedgerError> {
        let started = bounded(started)?;
        self.call(Lasting::Kill, move |connection| insert(connection, &started), |()| ()).await
    }

    /// The same without waiting. Fails only for what is too long.
    pub fn post_started(&self, started: ExecStarted) -> Result<(), LedgerError> {
        let started = bounded(started)?;
        self.post(move |connection| insert(connection, &started));
        Ok(())
    }

    /// Says, without waiting, when an exec that was posted has started, or under which record; what is none stays.
    pub fn post_running(&self, exec: &ExecId, started_at_ms: Option<u64>, evidence_begin: Option<String>) {
        let exec = exec.clone();
        self.post(move |connection| {
            let sql = "UPDATE execs SET status = ?2, started_at_ms = coalesce(started_at_ms, ?3),
                     evidence_begin = coalesce(?4, evidence_begin)
                 WHERE exec_id = ?1 AND ended_at_ms IS NULL";
            let (status, started) = (ExecStatus::Running.name(), started_at_ms.map(stored));
            connection.prepare_cached(sql)?.execute(params![exec.as_str(), status, started, evidence_begin])?;
            Ok(())
        });
    }

    /// Writes the end of an exec down before the answer. Done again it changes nothing: the first end stays.
    pub async fn exec_ended(&self, ended: ExecEnded) -> Result<(), LedgerError> {
        self.call(Lasting::Kill, move |connection| end(connection, ended), |()| ()).await
    }

    /// The same without waiting.
    pub fn post_ended(&self, ended: ExecEnded) {
        self.post(move |connection| end(connection, ended));
    }

    /// The exec of this owner.
    pub async fn get_exec(&self, owner: &Owner, id: &ExecId) -> Result<ExecRow, LedgerError> {
        let (owner, id) = (owner.clone(), id.clone());
        let work = move |connection: &Connection| {
            let sql = format!("SELECT {COLUMNS} FROM execs WHERE exec_id = ?1 AND tenant = ?2 AND subject = ?3");
            let values = [id.as_str(), &owner.tenant, &owner.subject];
            let row = connection.prepare_cached(&sql)?.query_row(values, read).optional()?;
            row.ok_or(LedgerError::ExecNotFound(id))
        };
        self.call(Lasting::Kill, work, |row| row).await
    }

    /// A page of at most `limit` execs of this owner, newest first, after the one that the page before named as `next`.
    pub async fn list_execs(
        &self,
        owner: &Owner,
        filter: ExecFilter,
        after: Option<ExecId>,
        limit: usize,
    ) -> Result<ExecPage, LedgerError> {
        let (owner, limit) = (owner.clone(), limit.clamp(1, LONGEST_PAGE));
        let work = move |connection: &Connection| page(connection, &owner, filter, after, limit);
        self.call(Lasting::Kill, work, |page| page).await
    }

    /// Closes every open exec as lost: for the start, before the first exec. Which they were, oldest first.
    pub async fn close_open_execs(&self, now_ms: u64) -> Result<Vec<ExecId>, LedgerError> {
        let work = move |connection: &Connection| {
            let lost = word(&Ending::Lost);
            let mut statement = connection.prepare(
                "UPDATE execs SET status = ?1, error_reason = ?2, ended_at_ms = ?3 WHERE ended_at_ms IS NULL
                 RETURNING exec_id, seq",
            )?;
            let rows = statement
                .query_map(params![lost, LOST, stored(now_ms)], |row| Ok((row.get::<_, i64>(1)?, read_id(row, 0)?)))?;
            let mut ids = rows.collect::<Result<Vec<(i64, ExecId)>, _>>()?;
            ids.sort();
            Ok(ids.into_iter().map(|(_, id)| id).collect())
        };
        self.call(Lasting::Kill, work, |ids| ids).await
    }

    /// Execs that ended before `ended_before_ms`, and of each owner all but the newest `most_per_owner`; never one that is
    /// open. Some of them, oldest first: there may be more once these are forgotten.
    pub async fn old_execs(&self, ended_before_ms: u64, most_per_owner: u64) -> Result<Vec<OldExec>, LedgerError> {
        let work = move |connection: &Connection| {
            let sql = format!(
                "SELECT exec_id, tenant, subject, project_id FROM (
                     SELECT seq, exec_id, tenant, subject, project_id, ended_at_ms,
                            row_number() OVER (PARTITION BY tenant, subject ORDER BY seq DESC) AS place
                     FROM execs)
                 WHERE ended_at_ms IS NOT NULL AND (ended_at_ms < ?1 OR place > ?2)
                 ORDER BY seq LIMIT {FORGET_MAX}"
            );
            let read = |row: &Row<'_>| {
                let owner = Owner { tenant: row.get(1)?, subject: row.get(2)? };
                let project = row.get::<_, Option<String>>(3)?.and_then(|id| id.parse().ok());
                Ok(OldExec { exec_id: read_id(row, 0)?, owner, project_id: project })
            };
            let values = [stored(ended_before_ms), stored(most_per_owner)];
            Ok(connection.prepare_cached(&sql)?.query_map(values, read)?.collect::<Result<Vec<_>, _>>()?)
        };
        self.call(Lasting::Kill, work, |old| old).await
    }

    /// Removes these execs, but none that is open. How many were removed.
    pub async fn forget_execs(&self, ids: Vec<ExecId>) -> Result<usize, LedgerError> {
        let work = move |connection: &Connection| {
            let mut statement =
                connection.prepare_cached("DELETE FROM execs WHERE exec_id = ?1 AND ended_at_ms IS NOT NULL")?;
            let mut removed = 0;
            for id in &ids {
                removed += statement.execute([id.as_str()])?;
            }
            Ok(removed)
        };
        self.call(Lasting::Kill, work, |count| count).await
    }
}

/// The same with what describes it cut, and what it is found by refused if it is too long.
pub(super) fn bounded(mut started: ExecStarted) -> Result<ExecStarted, LedgerError> {
    let length = |text: &Option<String>| text.as_ref().map_or(0, String::len);
    fits("task_ref", length(&started.task_ref), REFERENCE_MAX)?;
    fits("skill_id", length(&started.skill_id), REFERENCE_MAX)?;
    fits("sandbox_id", started.sandbox_id.as_ref().map_or(0, |id| id.as_str().len()), REFERENCE_MAX)?;
    fits("grant_id", started.grant_id.as_ref().map_or(0, |id| id.as_str().len()), REFERENCE_MAX)?;
    fits("evidence_begin", length(&started.evidence_begin), REFERENCE_MAX)?;
    fits("profile", started.profile.len(), PROFILE_MAX)?;
    fits("cwd", length(&started.cwd), PATH_MAX)?;
    fits("artifacts_path", length(&started.artifacts_path), PATH_MAX)?;
    fits("policy", started.policy.len(), POLICY_MAX)?;
    started.command = cut(started.command, WORDS_MAX);
    started.args = cut_list(started.args);
    started.env_keys = cut_list(started.env_keys);
    Ok(started)
}

fn cut(mut text: String, most: usize) -> String {
    if text.len() > most {
        text.truncate(text.floor_char_boundary(most));
        text.push(CUT);
    }
    text
}

/// The first words that fit together, each counted with the quotes and the comma that JSON adds; the last may be a part.
fn cut_list(words: Vec<String>) -> Vec<String> {
    let mut left = WORDS_MAX;
    let mut kept = Vec::new();
    for word in words {
        let room = left.saturating_sub(3);
        if word.len() > room {
            kept.push(cut(word, room));
            break;
        }
        left = room - word.len();
        kept.push(word);
    }
    kept
}

pub(super) fn insert(connection: &Connection, exec: &ExecStarted) -> Result<(), LedgerError> {
    let list = |words: &Vec<String>| serde_json::to_string(words).map_err(LedgerError::Names);
    let status = if exec.started_at_ms.is_some() { ExecStatus::Running } else { ExecStatus::Queued };
    let changed = connection
        .prepare_cached(
            "INSERT INTO execs (exec_id, tenant, subject, sandbox_id, project_id, task_ref, skill_id, grant_id, profile,
                 kind, command, args, cwd, env_keys, policy, status, queued_at_ms, started_at_ms, artifacts_path,
                 evidence_begin)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20)
             ON CONFLICT (exec_id) DO UPDATE SET status = excluded.status, started_at_ms = excluded.started_at_ms,
                 policy = excluded.policy
             WHERE started_at_ms IS NULL AND ended_at_ms IS NULL",
        )?
        .execute(params![
            exec.exec_id.as_str(),
            exec.owner.tenant,
            exec.owner.subject,
            exec.sandbox_id.as_ref().map(SandboxId::as_str),
            exec.project_id.as_ref().map(ProjectId::as_str),
            exec.task_ref,
            exec.skill_id,
            exec.grant_id.as_ref().map(GrantId::as_str),
            exec.profile,
            word(&exec.kind),
            exec.command,
            list(&exec.args)?,
            exec.cwd,
            list(&exec.env_keys)?,
            exec.policy,
            status.name(),
            stored(exec.queued_at_ms),
            exec.started_at_ms.map(stored),
            exec.artifacts_path,
            exec.evidence_begin,
        ])?;
    // One that runs already is not started again.
    if changed == 0 { Err(rusqlite::Error::StatementChangedRows(0).into()) } else { Ok(()) }
}

pub(super) fn end(connection: &Connection, ended: ExecEnded) -> Result<(), LedgerError> {
    let usage = serde_json::to_string(&ended.usage).map_err(LedgerError::Names)?;
    let changed = connection
        .prepare_cached(
            "UPDATE execs SET status = ?2, exit_code = ?3, signal = ?4, error_reason = ?5,
                 started_at_ms = coalesce(started_at_ms, ?6), ended_at_ms = ?7,
                 duration_ms = max(0, ?7 - coalesce(started_at_ms, ?6)),
                 stdout_truncated = ?8, stderr_truncated = ?9, usage = ?10, evidence_end = ?11
             WHERE exec_id = ?1 AND ended_at_ms IS NULL",
        )?
        .execute(params![
            ended.exec_id.as_str(),
            word(&ended.ending),
            ended.exit_code,
            ended.signal.map(|signal| cut(signal, REFERENCE_MAX)),
            ended.error_reason.map(|reason| cut(reason, REASON_MAX)),
            ended.started_at_ms.map(stored),
            stored(ended.ended_at_ms),
            ended.stdout_truncated,
            ended.stderr_truncated,
            usage,
            ended.evidence_end.map(|id| cut(id, REFERENCE_MAX)),
        ])?;
    if changed == 0 {
        let known: bool = connection
            .prepare_cached("SELECT EXISTS (SELECT 1 FROM execs WHERE exec_id = ?1)")?
            .query_row([ended.exec_id.as_str()], |row| row.get(0))?;
        return if known { Ok(()) } else { Err(LedgerError::ExecNotFound(ended.exec_id)) };
    }
    Ok(())
}

fn page(
    connection: &Connection,
    owner: &Owner,
    filter: ExecFilter,
    after: Option<ExecId>,
    limit: usize,
) -> Result<ExecPage, LedgerError> {
    let mut wheres = Wheres::of(owner);
    if let Some(id) = after
        && !wheres.after(connection, TABLE, "exec_id", owner, id.as_str())?
    {
        return Err(LedgerError::ExecNotFound(id));
    }
    for (condition, wanted) in [
        ("task_ref = ?", filter.task_ref.map(Value::Text)),
        ("sandbox_id = ?", filter.sandbox_id.map(|id| Value::Text(id.as_str().to_owned()))),
        ("project_id = ?", filter.project_id.map(|id| Value::Text(id.as_str().to_owned()))),
        ("status = ?", filter.status.map(|status| Value::Text(status.name()))),
        ("queued_at_ms >= ?", filter.since_ms.map(|at| Value::Integer(stored(at)))),
        ("queued_at_ms < ?", filter.until_ms.map(|at| Value::Integer(stored(at)))),
    ] {
        if let Some(wanted) = wanted {
            wheres.and(condition, [wanted]);
        }
    }
    let (items, more) = wheres.page(connection, TABLE, COLUMNS, limit, read)?;
    let next = items.last().filter(|_| more).map(|row| row.started.exec_id.clone());
    Ok(ExecPage { items, next })
}

/// The word that a value is on the wire.
fn word(value: &impl serde::Serialize) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(word)) => word,
        other => unreachable!("endings and kinds are words on the wire, not {other:?}"),
    }
}

fn from_word<T: DeserializeOwned>(word: &str) -> Option<T> {
    serde_json::from_value(serde_json::Value::String(word.to_owned())).ok()
}

/// A column of JSON.
fn json<T: DeserializeOwned>(column: usize, text: &str) -> rusqlite::Result<T> {
    let wrong = |error| rusqlite::Error::FromSqlConversionFailure(column, Type::Text, Box::new(error));
    serde_json::from_str(text).map_err(wrong)
}

/// A column of words of ours.
fn known<T>(column: usize, name: &str, value: Option<T>) -> rusqlite::Result<T> {
    value.ok_or_else(|| rusqlite::Error::InvalidColumnType(column, name.to_owned(), Type::Text))
}

fn read(row: &Row<'_>) -> rusqlite::Result<ExecRow> {
    let at = |column| row.get::<_, Option<i64>>(column).map(|stored| stored.map(read_back));
    let text = |column| row.get::<_, String>(column);
    Ok(ExecRow {
        started: ExecStarted {
            exec_id: read_id(row, 0)?,
            owner: Owner { tenant: row.get(1)?, subject: row.get(2)? },
            sandbox_id: row.get::<_, Option<String>>(3)?.map(SandboxId::from),
            project_id: row.get::<_, Option<String>>(4)?.map(|_| read_id(row, 4)).transpose()?,
            task_ref: row.get(5)?,
            skill_id: row.get(6)?,
            grant_id: row.get::<_, Option<String>>(7)?.map(GrantId::from),
            profile: row.get(8)?,
            kind: known(9, "kind", from_word(&text(9)?))?,
            command: row.get(10)?,
            args: json(11, &text(11)?)?,
            cwd: row.get(12)?,
            env_keys: json(13, &text(13)?)?,
            policy: row.get(14)?,
            queued_at_ms: read_back(row.get(19)?),
            started_at_ms: at(20)?,
            artifacts_path: row.get(23)?,
            evidence_begin: row.get(27)?,
        },
        status: known(15, "status", ExecStatus::from_name(&text(15)?))?,
        exit_code: row.get(16)?,
        signal: row.get(17)?,
        error_reason: row.get(18)?,
        ended_at_ms: at(21)?,
        duration_ms: at(22)?,
        stdout_truncated: row.get(24)?,
        stderr_truncated: row.get(25)?,
        usage: row.get::<_, Option<String>>(26)?.map(|usage| json(26, &usage)).transpose()?,
        evidence_end: row.get(28)?,
    })
}

#[cfg(test)]
pub(super) mod tests;
