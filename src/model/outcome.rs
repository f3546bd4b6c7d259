//! How an exec ended. A program that crashed or hit a limit is a good outcome, not an error.

use crate::model::{CallReport, Enforcement};
use serde::{Deserialize, Serialize};

/// The end of an exec in one word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Ending {
    /// Exit code 0.
    Ok,
    /// Another exit code.
    NonzeroExit,
    /// Ended by a signal that was not ours.
    Signaled,
    /// The wall clock ran out.
    TimedOut,
    /// The memory limit was reached and the kernel killed the group.
    OomKilled,
    /// The processor time ran out.
    CpuExceeded,
    /// The caller cancelled it or hung up, or its grant's byte budget was used up.
    Cancelled,
    /// Its grant was taken back or ran out.
    Revoked,
    /// The daemon or the sandbox died under it.
    Lost,
    /// The program never started; `start_error` says why.
    FailedToStart,
}

/// What the kernel counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Usage {
    /// Milliseconds from the program's start to its end.
    pub wall_ms: u64,
    /// Milliseconds of processor time, from the cgroup.
    pub cpu_ms: u64,
    /// Highest memory use of the group; null where the kernel does not count it.
    pub memory_peak_bytes: Option<u64>,
    /// Most processes and threads at once, without our init; null where the kernel does not count it.
    pub pids_peak: Option<u64>,
    /// Bytes given on standard input.
    pub bytes_in: u64,
    /// Bytes written to standard output and error, dropped ones included.
    pub bytes_out: u64,
}

/// A limit that was reached, with the cure.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct LimitHit {
    /// Its name: `memory`, `wall`, `cpu`, `pids`, `stdout`, `stderr`, `budget.cpu_ms`, `budget.bytes_out`.
    pub limit: String,
    /// The amount that was in force.
    pub amount: u64,
    /// What happened and what would help.
    pub hint: String,
}

/// What one stream carried.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Output {
    /// The bytes that were kept.
    pub kept: Vec<u8>,
    /// All bytes that were written.
    pub total: u64,
}

impl Output {
    /// Whether something was cut.
    #[must_use]
    pub fn truncated(&self) -> bool {
        self.total > self.kept.len() as u64
    }
}

/// The whole result of one exec.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// The end in one word.
    pub ending: Ending,
    /// Exit code, if the program exited.
    pub exit_code: Option<i32>,
    /// Name of the signal that ended it (`SIGSEGV`).
    pub signal: Option<String>,
    /// Why it did not start, in words with the errno's name.
    pub start_error: Option<String>,
    /// Standard output.
    pub stdout: Output,
    /// Standard error.
    pub stderr: Output,
    /// What the kernel counted.
    pub usage: Usage,
    /// Limits that were reached.
    pub limits_hit: Vec<LimitHit>,
    /// What stood around it.
    pub enforcement: Enforcement,
    /// Of a call of a session: what the interpreter said, and how the session stands.
    pub call: Option<Box<CallReport>>,
}
