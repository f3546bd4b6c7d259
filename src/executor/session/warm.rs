//! An interpreter that waits ahead: started, confined, its imports done, and nothing of anybody in it. Used once.
//!
//! ```text
//! build:  warden.run(Session, Later) ─▶ Go ─▶ imports ─▶ Rest (counters are the next one's)
//! run:    begin on disk, files attached ─▶ Call (clocks start) ─▶ code ─▶ the driver closes its channel and becomes `python3 -c`
//! ```
//!
//! Each is a process of its own with its own hash seed; `random` is seeded again. From the code on it is a program like
//! any other: its exit code is the interpreter's, its output ends when it does, and nobody listens to an answer.
//! Files come from outside: the warden moves their mounts in. Standard input is a pipe that nobody has read from.

use super::super::client::WardenGone;
use super::super::live::{Live, To};
use super::super::log::Event;
use super::super::process::{Executor, Going, RunError, Under, workspace};
use super::words::{Listening, argv};
use super::{Interpreter, Pipes};
use crate::evidence::{EvidenceError, OpenRecord};
use crate::isolation::warden::protocol::{Life, Refused, Run, SESSION_FDS, Workspace};
use crate::isolation::warden::words::Words;
use crate::model::{Enforcement, ExecId, Kind, Limit, Limits, Outcome};
use crate::policy::Permit;
use crate::workspace::Laid;
use serde_json::json;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
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

/// Variables that the loader, the C library or the interpreter reads when it starts, by how their names begin; and those of
/// libraries that an operator may have had imported. A change of one of these would come too late.
const READ_AT_START: [&str; 16] = [
    "PYTHON",
    "LD_",
    "LC_",
    "LANG",
    "MALLOC_",
    "GLIBC_",
    "GCONV_",
    "NLSPATH",
    "TZ",
    "PATH",
    "HOME",
    "OMP_",
    "OPENBLAS_",
    "MKL_",
    "NUMEXPR_",
    "BLIS_",
];

/// What the layers hold less of once files have come to an interpreter that was confined before.
const INPUTS_BY_MOUNT: &str =
    "landlock: inputs are kept from being written by their mount alone, as they came after the rules (warm_python)";

impl Ahead {
    /// Why this exec can't have it, in one word. `code`: whether it brings code, and not a file to run.
    pub fn unfit(&self, permit: &Permit, code: bool) -> Option<&'static str> {
        let narrower = |limit: &Limit| !LATER.contains(limit) && self.limits.get(*limit) != permit.limits().get(*limit);
        match () {
            () if permit.kind() != Kind::Python || !code => Some("not_code"),
            () if permit.tty().is_some() => Some("tty"),
            () if changed(&self.env, permit.env()).any(read_at_start) => Some("env"),
            () if permit.profile_index() != self.profile => Some("profile"),
            () if Limit::ALL.iter().any(narrower) => Some("limits"),
            () => None,
        }
    }
}

/// Names that have another value in one than in the other, or none.
fn changed<'a>(
    one: &'a BTreeMap<String, String>,
    other: &'a BTreeMap<String, String>,
) -> impl Iterator<Item = &'a str> {
    one.keys().chain(other.keys()).filter(|name| one.get(*name) != other.get(*name)).map(String::as_str)
}

fn read_at_start(name: &str) -> bool {
    READ_AT_START.iter().any(|begin| name.starts_with(begin))
}

impl Executor {
    /// Builds one that waits.
    pub async fn build_ahead(&self, ahead: &Ahead) -> Result<Interpreter, RunError> {
        let env = ahead.env.iter().map(|(name, value)| format!("{name}={value}"));
        let argv = argv(Kind::Python);
        let words = Words::new(argv[0], "", argv.into_iter().filter(|word| !word.is_empty()), env)?;
        let (pipes, inside) = Pipes::new(true).map_err(RunError::Pipes)?;
        let run = Run {
            number: self.warden.number(),
            profile: ahead.profile,
            set: ahead.set,
            exec: ExecId::generate(),
            limits: ahead.limits,
            workspace: Workspace::Later,
            signals: true,
            tty: None,
            life: Life::Session,
            words,
        };
        let borrowed = inside.each_ref().map(AsFd::as_fd);
        let accept = self.warden.run(run, &borrowed).await?.map_err(RunError::Refused)?;
        let mut interpreter = pipes.with(accept, Laid::ThrowAway { inputs: None });
        interpreter.held = Some(outputs(inside));
        interpreter.env.clone_from(&ahead.env);
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

    /// Gives an interpreter that has waited the files of an exec.
    pub(super) async fn furnish(
        &self,
        interpreter: &mut Interpreter,
        exec: &ExecId,
        permit: &Permit,
    ) -> Result<(), RunError> {
        interpreter.laid = self.lay(exec, permit).await?;
        let files = workspace(&interpreter.laid, permit);
        if files == (Workspace::ThrowAway { inputs: false }) {
            return Ok(());
        }
        let attached = self.warden.attach(interpreter.kill.number, exec.clone(), files).await?;
        attached.map_err(|errno| RunError::Refused(Refused::Workspace(errno as i32)))?;
        interpreter.files_came_later = true;
        Ok(())
    }

    /// Runs code in an interpreter that has waited, and sees it to its end. Its files come while `begin` is on its way to
    /// the disk; nothing else of the exec reaches it before its record is there.
    #[expect(clippy::too_many_arguments, reason = "what a run takes, and where it runs")]
    pub async fn run_ahead(
        &self,
        mut interpreter: Interpreter,
        exec: &ExecId,
        permit: &Permit,
        under: &Under,
        (code, args): (&str, &[String]),
        live: &Live,
        begin: impl Future<Output = Result<OpenRecord, EvidenceError>>,
    ) -> Result<(OpenRecord, Result<Outcome, RunError>), EvidenceError> {
        let (record, furnished) = tokio::join!(begin, self.furnish(&mut interpreter, exec, permit));
        let record = record?; // the interpreter is killed with this return
        if let Err(error) = furnished {
            return Ok((record, Err(error)));
        }
        let files_came_later = interpreter.files_came_later;
        let limits = permit.limits();
        let (wall_ms, cpu_ms) = (limits.get(Limit::WallMs), limits.get(Limit::CpuMs));
        if let Err(gone) = self.warden.call(interpreter.kill.number, wall_ms, cpu_ms).await {
            return Ok((record, Err(gone.into())));
        }
        let env = (*permit.env() != interpreter.env).then(|| permit.env());
        let message = json!({"once": true, "code": code, "args": args, "env": env, "cwd": permit.cwd()});
        let message = format!("{message}\n");
        let Interpreter {
            status, ended, kill, mut calls, stdin, stdout, stderr, held, laid, answers, interrupts, ..
        } = interpreter;
        // A second run of the same exec does not get here: the first ends it.
        let _ = live.control.set(kill.handle());
        let going = Going { status, ended, kill, laid, outputs: [stdout, stderr], held };
        let stdin = stdin.filter(|_| permit.stdin_open() || !permit.stdin().is_empty());
        let input =
            live.input.open(stdin.map_or(To::Closed, To::Pipe), permit.stdin_open().then(|| permit.stdin_most()));
        let input = input.await;
        live.log.event(Event::Started);
        let (_, outcome) = tokio::join!(
            async move {
                let _ = calls.write_all(message.as_bytes()).await; // one that died says so itself
                drop((calls, answers, interrupts));
            },
            self.supervise(going, input, None, permit, under, live),
        );
        let outcome =
            outcome.map(|outcome| Outcome { enforcement: told(outcome.enforcement, files_came_later), ..outcome });
        Ok((record, outcome))
    }
}

/// The interpreter's ends of its outputs: while we hold these, one that ends wakes us once and not three times. The others
/// are closed, else those pipes would have no end.
fn outputs([_, stdout, stderr, ..]: [OwnedFd; SESSION_FDS]) -> [OwnedFd; 2] {
    [stdout, stderr]
}

/// What stood around a run, and what of it held less because files came later.
pub(super) fn told(mut enforcement: Enforcement, files_came_later: bool) -> Enforcement {
    enforcement.degraded.extend(files_came_later.then(|| INPUTS_BY_MOUNT.to_owned()));
    enforcement
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variable_that_is_read_at_start_is_told_from_one_that_is_not() {
        let env = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
            pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
        };
        let profile = env(&[("PATH", "/bin"), ("LANG", "C.UTF-8"), ("USER", "x")]);
        for (request, late) in [
            (env(&[("PATH", "/bin"), ("LANG", "C.UTF-8"), ("USER", "y"), ("KEY", "1")]), false),
            (env(&[("PATH", "/bin"), ("LANG", "C"), ("USER", "x")]), true),
            (env(&[("LANG", "C.UTF-8"), ("USER", "x")]), true),
            (env(&[("PATH", "/bin"), ("LANG", "C.UTF-8"), ("USER", "x"), ("PYTHONPATH", "/x")]), true),
            (env(&[("PATH", "/bin"), ("LANG", "C.UTF-8"), ("USER", "x"), ("LD_PRELOAD", "/x")]), true),
        ] {
            assert_eq!(changed(&profile, &request).any(read_at_start), late, "{request:?}");
        }
    }
}
