//! A judged exec.

use super::consent::digest;
use crate::model::{Amounts, ExecId, GrantId, Kind, Limit, Limits, Meter, Mode, Owner, ProjectId, Tty};
use crate::terms::{Safety, SideEffects};
use std::collections::BTreeMap;

/// One input with its path normalised and its content decoded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InputFile {
    /// Path below the inputs area.
    pub path: String,
    /// Its bytes.
    pub content: Vec<u8>,
}

/// What is executed, in which environment, on which data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Program {
    pub kind: Kind,
    pub command: String,
    pub argv: Vec<String>,
    pub env: BTreeMap<String, String>,
    pub cwd: String,
    pub stdin: Vec<u8>,
    /// Whether more may come after it while the program runs.
    pub stdin_open: bool,
    pub tty: Option<Tty>,
    pub inputs: Vec<InputFile>,
}

/// A judged exec. Only [`super::judge`] makes one, and it can only be narrowed afterwards.
#[derive(Debug, Clone)]
pub struct Permit {
    pub(super) owner: Owner,
    pub(super) profile: (u16, String),
    pub(super) project: Option<ProjectId>,
    pub(super) limits: Limits,
    pub(super) program: Program,
    pub(super) grant: Option<GrantId>,
    pub(super) profile_hash: String,
    pub(super) safety: Safety,
    pub(super) side_effects: SideEffects,
    pub(super) concurrency: Option<u64>,
    pub(super) metered: Metered,
    pub(super) mode: Mode,
    pub(super) bytes_in_most: Option<u64>,
}

/// Limits that the grant's budget set, below what the profile and the request had.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Metered {
    /// Processor time.
    pub cpu_ms: Option<u64>,
    /// Bytes written.
    pub bytes_out: Option<u64>,
    /// Bytes given, inputs included.
    pub bytes_in: Option<u64>,
}

/// What a budget sets aside for input that comes while a program runs, if it has as much.
const BYTES_IN_AHEAD: u64 = 64 << 20;

impl Permit {
    /// Who asked.
    #[must_use]
    pub fn owner(&self) -> &Owner {
        &self.owner
    }
    /// Index of the profile, for the warden.
    #[must_use]
    pub fn profile_index(&self) -> u16 {
        self.profile.0
    }
    /// Name of the profile.
    #[must_use]
    pub fn profile_id(&self) -> &str {
        &self.profile.1
    }
    /// The project, if one was named.
    #[must_use]
    pub fn project(&self) -> Option<&ProjectId> {
        self.project.as_ref()
    }
    /// Effective limits.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        &self.limits
    }
    /// What is executed.
    #[must_use]
    pub fn command(&self) -> &str {
        &self.program.command
    }
    /// The arguments, the program's own name first.
    #[must_use]
    pub fn argv(&self) -> &[String] {
        &self.program.argv
    }
    /// The environment.
    #[must_use]
    pub fn env(&self) -> &BTreeMap<String, String> {
        &self.program.env
    }
    /// Directory below the work area; empty for the area itself.
    #[must_use]
    pub fn cwd(&self) -> &str {
        &self.program.cwd
    }
    /// Standard input.
    #[must_use]
    pub fn stdin(&self) -> &[u8] {
        &self.program.stdin
    }
    /// Whether more standard input may come while it runs.
    #[must_use]
    pub fn stdin_open(&self) -> bool {
        self.program.stdin_open
    }
    /// Its terminal, if it has one.
    #[must_use]
    pub fn tty(&self) -> Option<Tty> {
        self.program.tty
    }
    /// Whether its caller waits.
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.mode
    }
    /// Bytes of standard input that may still come while it runs, beyond what it was started with.
    #[must_use]
    pub fn stdin_most(&self) -> u64 {
        let most = self.bytes_in_most.into_iter().chain(self.metered.bytes_in).min().unwrap_or(u64::MAX);
        most.saturating_sub(self.bytes_in())
    }
    /// Files to lay down.
    #[must_use]
    pub fn inputs(&self) -> &[InputFile] {
        &self.program.inputs
    }
    /// What kind of code it is.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.program.kind
    }
    /// The grant that pays, if there is one.
    #[must_use]
    pub fn grant(&self) -> Option<&GrantId> {
        self.grant.as_ref()
    }
    /// SHA-256 over everything that was decided: the profile, the effective terms and the limits.
    #[must_use]
    pub fn profile_hash(&self) -> &str {
        &self.profile_hash
    }
    /// How much harm it could do, as the strictest side sees it.
    #[must_use]
    pub fn safety(&self) -> Safety {
        self.safety
    }
    /// What it is said to touch.
    #[must_use]
    pub fn side_effects(&self) -> &SideEffects {
        &self.side_effects
    }
    /// How many execs of this caller may run under its profile at once.
    #[must_use]
    pub fn concurrency(&self) -> Option<u64> {
        self.concurrency
    }
    /// What the budget took from the limits.
    #[must_use]
    pub fn metered(&self) -> Metered {
        self.metered
    }

    /// Bytes that are given to the program: standard input and input files.
    #[must_use]
    pub fn bytes_in(&self) -> u64 {
        let inputs: usize = self.program.inputs.iter().map(|file| file.content.len()).sum();
        (self.program.stdin.len() + inputs) as u64
    }

    /// The least that a budget must have for this exec to start.
    #[must_use]
    pub fn least(&self) -> Amounts {
        Amounts::default()
            .with(Meter::Calls, 1)
            .with(Meter::BytesIn, self.bytes_in())
            .with(Meter::BytesOut, 1)
            .with(Meter::CpuMs, Limit::CpuMs.floor())
            .with(Meter::FileCount, self.program.inputs.len() as u64)
    }

    /// The most that this exec may use up under its own limits.
    #[must_use]
    pub fn most(&self) -> Amounts {
        let limit = |limit| self.limits.get(limit);
        let ahead = if self.program.stdin_open { BYTES_IN_AHEAD } else { 0 };
        self.least()
            .with(Meter::BytesIn, self.bytes_in().saturating_add(ahead))
            .with(Meter::BytesOut, limit(Limit::StdoutBytes) + limit(Limit::StderrBytes) + limit(Limit::ArtifactsBytes))
            .with(Meter::CpuMs, limit(Limit::CpuMs))
            .with(Meter::FileCount, (self.program.inputs.len() as u64).saturating_add(limit(Limit::WorkInodes)))
    }

    /// The same, held to what a budget has set aside for it.
    #[must_use]
    pub fn within(mut self, reserved: &Amounts) -> Self {
        let cpu_ms = reserved.get(Meter::CpuMs);
        if cpu_ms < self.limits.get(Limit::CpuMs) {
            let narrower = cpu_ms.max(Limit::CpuMs.floor());
            self.limits.set(Limit::CpuMs, narrower).expect("not below the floor, and below an amount that was checked");
            self.metered.cpu_ms = Some(narrower);
        }
        self.metered.bytes_out = Some(reserved.get(Meter::BytesOut));
        self.metered.bytes_in = Some(reserved.get(Meter::BytesIn));
        self
    }

    /// SHA-256 over exactly what will run, as an approver would see it.
    #[must_use]
    pub fn digest(&self) -> String {
        digest(&self.program, &self.owner, &self.profile_hash)
    }

    /// SHA-256 over what goes in: the program, its environment and its data. The same for the same exec under any policy.
    #[must_use]
    pub fn inputs_digest(&self) -> String {
        let nobody = Owner { tenant: String::new(), subject: String::new() };
        digest(&self.program, &nobody, "")
    }

    /// The directory of its artifacts, as callers know it.
    #[must_use]
    pub fn artifacts_path(&self, exec: &ExecId) -> Option<String> {
        self.project.as_ref().map(|project| format!("projects/{project}/artifacts/{exec}"))
    }
}
