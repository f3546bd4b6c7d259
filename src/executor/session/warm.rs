//! An interpreter that waits ahead: started, confined, its imports done, and nothing of anybody in it. Used once.
//!
//! ```text
//! build:  warden.run(Session, throw-away) ─▶ Go ─▶ imports ─▶ Rest (counters are the next one's)
//! run:    begin on disk ─▶ Call (clocks start) ─▶ code ─▶ the driver closes its channel and becomes `python3 -c`
//! ```
//!
//! Each is a process of its own with its own hash seed; `random` is seeded again. From the code on it is a program like
//! any other: its exit code is the interpreter's, its output ends when it does, and nobody listens to an answer.
//! A mount can't be attached to a confined process, so it is for execs without files; the rest goes the ordinary way.

use super::super::client::WardenGone;
use super::super::live::{Live, To};
use super::super::log::Event;
use super::super::process::{Executor, Going, RunError, Under};
use super::words::{Listening, argv};
use super::{Interpreter, Pipes};
use crate::evidence::{EvidenceError, OpenRecord};
use crate::isolation::warden::protocol::{Life, Run, Workspace};
use crate::isolation::warden::words::Words;
use crate::model::{ExecId, Kind, Limit, Limits, Mode, Outcome};
use crate::policy::Permit;
use crate::workspace::Laid;
use serde_json::json;
use std::collections::BTreeMap;
use std::io;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// How long imports may take.
const BUILD_MAX: Duration = Duration::from_secs(30);

/// What an interpreter that waits is made of: its profile's, and nothing else.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ahead {
    /// Index of the profile.
    pub profile: u16,
    /// The set it is of.
    pub set: u64,
    /// The profile's limits.
    pub limits: Limits,
    /// The profile's environment.
    pub env: BTreeMap<String, String>,
    /// What is imported.
    pub preload: Vec<String>,
}

/// Limits that a run gets from the front or with its call; all others stand since the interpreter was built.
const LATER: [Limit; 4] = [Limit::WallMs, Limit::CpuMs, Limit::StdoutBytes, Limit::StderrBytes];

impl Ahead {
    /// Why this exec can't have it, in one word. `code`: whether it brings code, and not a file to run.
    pub fn unfit(&self, permit: &Permit, code: bool) -> Option<&'static str> {
        let narrower = |limit: &Limit| !LATER.contains(limit) && self.limits.get(*limit) != permit.limits().get(*limit);
        match () {
            () if permit.kind() != Kind::Python || !code => Some("not_code"),
            () if permit.project().is_some() || !permit.inputs().is_empty() => Some("files"),
            () if !permit.stdin().is_empty() || permit.stdin_open() => Some("stdin"),
            () if permit.mode() != Mode::Wait => Some("mode"), // it would have no pidfd to be signalled by
            () if *permit.env() != self.env => Some("env"),
            () if !permit.cwd().is_empty() => Some("cwd"),
            () if permit.profile_index() != self.profile => Some("profile"),
            () if Limit::ALL.iter().any(narrower) => Some("limits"),
            () => None,
        }
    }
}

impl Executor {
    /// Builds one that waits.
    pub async fn build_ahead(&self, ahead: &Ahead) -> Result<Interpreter, RunError> {
        let env = ahead.env.iter().map(|(name, value)| format!("{name}={value}"));
        let argv = argv(Kind::Python);
        let words = Words::new(argv[0], "", argv.into_iter().filter(|word| !word.is_empty()), env)?;
        let (pipes, inside) = Pipes::new().map_err(RunError::Pipes)?;
        let run = Run {
            number: self.warden.number(),
            profile: ahead.profile,
            set: ahead.set,
            exec: ExecId::generate(),
            limits: ahead.limits,
            workspace: Workspace::ThrowAway { inputs: false },
            signals: false,
            tty: None,
            life: Life::Session,
            words,
        };
        let accept = self.warden.run(run, inside).await?.map_err(RunError::Refused)?;
        let mut interpreter = pipes.with(accept, Laid::ThrowAway { inputs: None })?;
        interpreter.status.go();
        let hello = format!("{}\n", json!({"id": "ahead", "preload": ahead.preload}));
        let greeted = async {
            interpreter.calls.write_all(hello.as_bytes()).await.ok()?;
            let (mut listening, mut chunk) = (Listening::default(), vec![0; 4096]);
            loop {
                let len = interpreter.answers.read(&mut chunk).await.ok().filter(|len| *len > 0)?;
                if let Some(said) = listening.hear(&chunk[..len], "ahead") {
                    return said.ok();
                }
            }
        };
        let greeted = tokio::time::timeout(BUILD_MAX, greeted).await;
        if !matches!(greeted, Ok(Some(_))) {
            return Err(RunError::Pipes(io::Error::other("an interpreter that should wait does not answer")));
        }
        // From here on its counters and its clocks are whoever's comes.
        self.warden.rest(interpreter.kill.number).await?.ok_or(WardenGone)?;
        interpreter.empty_strays();
        Ok(interpreter)
    }

    /// Runs code in an interpreter that has waited, and sees it to its end. Nothing of the exec reaches it before its
    /// record is there.
    #[expect(clippy::too_many_arguments, reason = "what a run takes, and where it runs")]
    pub async fn run_ahead(
        &self,
        interpreter: Interpreter,
        permit: &Permit,
        under: &Under,
        code: &str,
        args: &[String],
        live: &Live,
        begin: impl Future<Output = Result<OpenRecord, EvidenceError>>,
    ) -> Result<(OpenRecord, Result<Outcome, RunError>), EvidenceError> {
        let record = begin.await?; // the interpreter is killed with this return
        let limits = permit.limits();
        let (wall_ms, cpu_ms) = (limits.get(Limit::WallMs), limits.get(Limit::CpuMs));
        if let Err(gone) = self.warden.call(interpreter.kill.number, wall_ms, cpu_ms).await {
            return Ok((record, Err(gone.into())));
        }
        let message = format!("{}\n", json!({"once": true, "code": code, "args": args}));
        let Interpreter { status, ended, kill, mut calls, stdout, stderr, laid, answers, interrupts, .. } = interpreter;
        let going = Going { status, ended, kill, laid, stdout, stderr };
        let input = live.input.open(To::Closed, None).await;
        live.log.event(Event::Started);
        let (_, outcome) = tokio::join!(
            async move {
                let _ = calls.write_all(message.as_bytes()).await; // one that died says so itself
                drop((calls, answers, interrupts));
            },
            self.supervise(going, input, None, permit, under, live),
        );
        Ok((record, outcome))
    }
}
