//! An interpreter that lives for many calls: started once in a sandbox, then told over a pipe what to run.
//!
//! ```text
//!   front                                    sandbox
//!   calls      ──▶ 100   one call at a time     driver.py or driver.sh, the interpreter's program
//!   answers    ◀── 101   one line for each      (the code runs in the same process: hostile, bounded, checked)
//!   interrupts ──▶ 102   any byte is SIGINT     (the kernel sends it to the process group: O_ASYNC, F_SETSIG)
//!   stdout, stderr ◀── 1, 2
//!
//!   start: lay files ─▶ warden.run(Session) ─▶ Go
//!   call:  fit? ─▶ Call (clocks start) ─▶ code ─▶ drain until the answer ─▶ empty the pipes ─▶ Rest (clocks stop)
//! ```
//!
//! **Whose output.** The driver flushes before it answers and a pipe keeps its order, so what the code wrote is in its own
//! call to the last byte. Whatever is written while a call runs is that call's, also by a thread or a process that an
//! earlier one left behind; what is written while none runs is counted as stray and dropped.
//!
//! **Ends.** A call ends with its answer. If its time is over, or its caller interrupts or cancels it, the code gets
//! SIGINT and has [`GRACE`] to answer; then the session is killed. A grant that ends kills at once. If the interpreter
//! dies, the call ends as a program would, and says how. An interpreter that says what is no answer is killed.

mod kept;
mod warm;
mod words;

pub use warm::Ahead;
pub use words::SessionCall;

use super::client::{Accept, KillOnDrop, WardenGone};
use super::process::{Executor, RunError, StatusSocket, Under, refuse_fault, usage, words as words_of};
use super::stop::{ByteBudget, Stop, StopCause};
use super::{outcome, pump};
use crate::evidence::{EvidenceError, OpenRecord};
use crate::isolation::warden::protocol::{Cause, Counted, INTERRUPT_GRACE_MS, Life, SESSION_FDS, Status};
use crate::model::{CallReport, Ending, ExecId, Limit, Outcome, SessionState};
use crate::policy::Permit;
use crate::workspace::Laid;
use kept::{CHUNK, Kept, read_ready};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::pipe;
use tokio::sync::{Notify, oneshot};
use tokio::time::{Instant, sleep_until};
use words::{Listening, Said};

/// How long code may take to heed an interrupt.
const GRACE: Duration = Duration::from_millis(INTERRUPT_GRACE_MS);
/// Longer than any call.
const FAR: Duration = Duration::from_secs(365 * 86_400);

/// How callers reach into a session while it runs.
#[derive(Debug, Default)]
pub struct Control {
    /// Interrupts the call that runs.
    pub interrupt: Notify,
    /// Ends the session.
    pub end: Stop,
}

impl Control {
    /// Forgets an interrupt that nobody has heard.
    pub fn forget_interrupt(&self) {
        std::pin::pin!(self.interrupt.notified()).as_mut().enable();
    }
}

/// An interpreter in its sandbox. Dropped, it dies.
pub struct Interpreter {
    status: StatusSocket,
    ended: oneshot::Receiver<(Cause, Counted)>,
    kill: KillOnDrop,
    calls: pipe::Sender,
    answers: pipe::Receiver,
    interrupts: pipe::Sender,
    /// Open while it is not known whether its one call brings input; a session's is closed from the start.
    stdin: Option<pipe::Sender>,
    stdout: pipe::Receiver,
    stderr: pipe::Receiver,
    /// Its ends of the two, while it waits ahead.
    held: Option<[OwnedFd; 2]>,
    made: u64,
    pids_refused: u64,
    laid: Laid,
    /// Whether files came to it when it was confined already (`warm.rs`).
    files_came_later: bool,
    /// The environment that it was built with, if it waits ahead.
    env: BTreeMap<String, String>,
}

/// An interpreter that was prepared and has not heard its go.
struct Parked {
    interpreter: Interpreter,
}

/// Our ends of an interpreter's pipes.
struct Pipes {
    calls: pipe::Sender,
    answers: pipe::Receiver,
    interrupts: pipe::Sender,
    stdin: Option<pipe::Sender>,
    stdout: pipe::Receiver,
    stderr: pipe::Receiver,
}

impl Pipes {
    /// Ours, and the interpreter's in the order in which the warden takes them.
    /// Its standard input has an end at once unless `stdin` is to come.
    fn new(stdin: bool) -> io::Result<(Self, [OwnedFd; SESSION_FDS])> {
        let (stdout, stdout_inside) = pump::output_pipe()?;
        let (stderr, stderr_inside) = pump::output_pipe()?;
        let (stdin, stdin_inside) = pump::input_pipe(stdin)?;
        let (answers, answers_inside) = pump::output_pipe()?;
        let (calls, calls_inside) = pump::kept_input_pipe()?;
        let (interrupts, interrupts_inside) = pump::kept_input_pipe()?;
        let inside = [stdin_inside, stdout_inside, stderr_inside, calls_inside, answers_inside, interrupts_inside];
        Ok((Self { calls, answers, interrupts, stdin, stdout, stderr }, inside))
    }

    fn with(self, Accept { status, ended, kill }: Accept, laid: Laid) -> Interpreter {
        let Self { calls, answers, interrupts, stdin, stdout, stderr } = self;
        let status = StatusSocket::new(status);
        let (made, pids_refused, env, files_came_later) = (0, 0, BTreeMap::new(), false);
        Interpreter {
            status,
            ended,
            kill,
            calls,
            answers,
            interrupts,
            stdin,
            stdout,
            stderr,
            held: None,
            made,
            pids_refused,
            laid,
            files_came_later,
            env,
        }
    }
}

/// How a call came to its end.
enum End {
    Answered(Said),
    Died(Cause, Counted),
}

/// What ended a call or tried to.
#[derive(Default)]
struct Pressed {
    interrupted: bool,
    timed_out: bool,
    /// Why we killed the session.
    killed: Option<String>,
}

impl Executor {
    /// One call of a session, which begins with it if `interpreter` has none: with the one that has `waited`, or its own.
    /// As with a program, nothing starts without the record that `begin` gives. Afterwards `interpreter` has none if it
    /// died; the outcome says how.
    #[expect(clippy::too_many_arguments, reason = "what a run takes, the session and its call")]
    pub async fn run_in(
        &self,
        interpreter: &mut Option<Interpreter>,
        waited: Option<Interpreter>,
        home: &ExecId,
        exec: &ExecId,
        permit: &Permit,
        under: &Under,
        call: SessionCall<'_>,
        stop: &Stop,
        control: &Control,
        begin: impl Future<Output = Result<OpenRecord, EvidenceError>>,
    ) -> Result<(OpenRecord, Result<Outcome, RunError>), EvidenceError> {
        let prepare = async {
            self.lay(exec, permit).await?; // its inputs and its own artifacts directory
            match (interpreter.take(), waited) {
                (Some(running), _) => Ok((running, false)),
                (None, Some(mut waited)) => {
                    self.furnish(&mut waited, home, permit).await?;
                    (waited.stdin, waited.held) = (None, None);
                    Ok((waited, false))
                }
                (None, None) => self.park(home, permit, under, call).await.map(|parked| (parked.interpreter, true)),
            }
        };
        let (record, prepared) = tokio::join!(begin, prepare);
        let record = record?; // what was prepared is killed with this return
        let outcome = match prepared {
            Ok((ready, new)) => {
                if new {
                    ready.status.go();
                }
                self.call(interpreter, ready, exec, permit, under, call, stop, control).await
            }
            Err(error) => Err(error),
        };
        Ok((record, outcome))
    }

    /// Puts an interpreter up, to the point where it waits for our word.
    async fn park(
        &self,
        home: &ExecId,
        permit: &Permit,
        under: &Under,
        call: SessionCall<'_>,
    ) -> Result<Parked, RunError> {
        let argv = words::argv(call.kind);
        let words = words_of(permit, argv.into_iter().filter(|word| !word.is_empty()))?;
        let (pipes, inside) = Pipes::new(false).map_err(RunError::Pipes)?;
        let inside = inside.each_ref().map(AsFd::as_fd);
        let (accept, laid) = self.ask(home, permit, under, Life::Session, words, &inside).await?;
        Ok(Parked { interpreter: pipes.with(accept, laid) })
    }

    #[expect(clippy::too_many_arguments, reason = "what a run takes, the session and its call")]
    async fn call(
        &self,
        place: &mut Option<Interpreter>,
        mut ready: Interpreter,
        exec: &ExecId,
        permit: &Permit,
        under: &Under,
        call: SessionCall<'_>,
        stop: &Stop,
        control: &Control,
    ) -> Result<Outcome, RunError> {
        let stray_bytes = ready.empty_strays();
        let limits = permit.limits();
        let (wall_ms, cpu_ms) = (limits.get(Limit::WallMs), limits.get(Limit::CpuMs));
        self.warden.call(ready.kill.number, wall_ms + INTERRUPT_GRACE_MS, cpu_ms).await?;
        ready.made += 1;
        let started = Instant::now();
        let budget = ByteBudget::new(permit.metered().bytes_out, stop);
        let mut stdout = Kept::new(limits.get(Limit::StdoutBytes), &budget);
        let mut stderr = Kept::new(limits.get(Limit::StderrBytes), &budget);
        let mut pressed = Pressed::default();
        let message = call.encode(exec.as_str(), ready.made);
        let deadline = started + Duration::from_millis(wall_ms);
        let end = ready
            .converse(&message, exec.as_str(), deadline, stop, control, &mut stdout, &mut stderr, &mut pressed)
            .await?;
        let wall = started.elapsed();
        stdout.empty(&ready.stdout);
        stderr.empty(&ready.stderr);
        let (stdout, stderr) = (stdout.output, stderr.output);
        let mut report = CallReport {
            name: call.session.to_owned(),
            call: ready.made,
            state: SessionState::Idle,
            died: None,
            value: None,
            value_truncated: false,
            error: None,
            figures: Vec::new(),
            interrupted: pressed.interrupted,
            stray_bytes,
        };
        let bounded = matches!(ready.laid, Laid::Project { bounded: true });
        let files_came_later = ready.files_came_later;
        // The answer is the code's own word; what was used is the warden's.
        let (end, said) = match end {
            End::Died(cause, counted) => ((cause, counted), None),
            End::Answered(said) => match self.warden.rest(ready.kill.number).await? {
                Some(counted) => ((Cause::Itself, counted), Some(said)),
                None => ((&mut ready.ended).await.map_err(|_| WardenGone)?, None),
            },
        };
        let (cause, mut counted) = end;
        let refused_before = std::mem::replace(&mut ready.pids_refused, counted.pids_refused);
        counted.pids_refused = counted.pids_refused.saturating_sub(refused_before);
        let (ending, exit_code, signal, start_error) = match said {
            Some(said) => {
                let ending = match (said.exit_code, pressed.timed_out, stop.cause()) {
                    (0, ..) => Ending::Ok,
                    (_, true, _) => Ending::TimedOut,
                    (_, _, Some(StopCause::Cancelled)) => Ending::Cancelled,
                    _ => Ending::NonzeroExit,
                };
                let code = matches!(ending, Ending::Ok | Ending::NonzeroExit).then_some(said.exit_code.into());
                (report.value, report.value_truncated) = (said.value, said.value_truncated);
                (report.error, report.figures) = (said.error, said.figures);
                *place = Some(ready);
                (ending, code, None, None)
            }
            None => {
                let last_word = ready.status.last_word();
                if let (Cause::Itself, Some(Status::Fault(fault))) = (cause, last_word) {
                    refuse_fault(fault)?;
                }
                let mut end = outcome::end(cause, last_word).stopped_by(control.end.cause().or(stop.cause()));
                if pressed.timed_out && matches!(end.ending, Ending::Cancelled | Ending::TimedOut) {
                    end.ending = Ending::TimedOut;
                    pressed.killed = Some(format!("its call had {wall_ms} ms and did not heed the interrupt"));
                }
                report.state = SessionState::Dead;
                report.died = Some(pressed.killed.unwrap_or_else(|| how(&end)));
                (end.ending, end.exit_code, end.signal, end.start_error)
            }
        };
        let usage = usage(wall.as_millis(), &counted, permit.stdin().len() as u64, stdout.total + stderr.total);
        Ok(Outcome {
            limits_hit: outcome::limits_hit(ending, permit, stop.cause(), &counted, &stdout, &stderr),
            enforcement: warm::told(self.enforcement(permit, under, bounded), files_came_later),
            ending,
            exit_code,
            signal,
            start_error,
            stdout,
            stderr,
            usage,
            call: Some(Box::new(report)),
        })
    }
}

/// The death of an interpreter in words.
fn how(end: &outcome::End) -> String {
    match (end.ending, end.exit_code, &end.signal) {
        (_, Some(code), _) => format!("it exited with {code}"),
        (_, _, Some(signal)) => format!("it was ended by {signal}"),
        (Ending::OomKilled, ..) => "it was out of memory".to_owned(),
        (Ending::CpuExceeded, ..) => "its processor time was over".to_owned(),
        (Ending::Revoked, ..) => "its grant ended".to_owned(),
        (Ending::FailedToStart, ..) => "it could not be started".to_owned(),
        (Ending::Lost, ..) => "its sandbox was lost".to_owned(),
        _ => "it was killed".to_owned(),
    }
}

impl Interpreter {
    /// Kills it and waits until everything of it is gone.
    pub async fn end(self) {
        self.kill.kill();
        let _ = self.ended.await; // an error: the warden is gone, and it with it
    }

    /// How it died, if it did while no call ran.
    pub fn died(&mut self) -> Option<String> {
        let (cause, _) = self.ended.try_recv().ok()?;
        let last_word = self.status.last_word();
        Some(format!("between two calls {}", how(&outcome::end(cause, last_word))))
    }

    /// Whether it has said something that nobody asked for.
    pub fn spoke_out_of_turn(&self) -> bool {
        let mut byte = [0; 1];
        !matches!(rustix::io::read(self.answers.as_fd(), &mut byte), Err(Errno::AGAIN))
    }

    /// Drops what was written while no call ran. How much it was.
    fn empty_strays(&self) -> u64 {
        let strays = |from: &pipe::Receiver| {
            let mut stray = 0;
            read_ready(from, |bytes| stray += bytes.len() as u64);
            stray
        };
        strays(&self.stdout) + strays(&self.stderr)
    }

    /// SIGINT for everything in its process group.
    fn interrupt(&self) {
        // A pipe that is full of interrupts that nobody wanted to hear needs no more.
        let _ = rustix::io::write(self.interrupts.as_fd(), b"!");
    }

    /// Says one call and listens until it is answered or the interpreter is dead.
    #[expect(clippy::too_many_arguments, reason = "all that can happen while a call runs")]
    async fn converse(
        &mut self,
        message: &[u8],
        id: &str,
        deadline: Instant,
        stop: &Stop,
        control: &Control,
        stdout: &mut Kept<'_>,
        stderr: &mut Kept<'_>,
        pressed: &mut Pressed,
    ) -> Result<End, RunError> {
        let mut unsaid = message;
        let mut listening = Listening::default();
        let (mut answer, mut out, mut err) = (vec![0; CHUNK], vec![0; CHUNK], vec![0; CHUNK]);
        let (mut out_open, mut err_open, mut answers_open) = (true, true, true);
        let (mut stopped, mut ending) = (false, false);
        let mut patience: Option<Instant> = None;
        loop {
            let mut interrupt = false;
            let mut kill = None;
            tokio::select! {
                heard = self.answers.read(&mut answer), if answers_open => match heard {
                    Ok(len @ 1..) => match listening.hear(&answer[..len], id) {
                        Some(Ok(said)) => return Ok(End::Answered(said)),
                        Some(Err(wrong)) => {
                            answers_open = false;
                            kill = Some(format!("its code wrote {wrong} where the interpreter answers"));
                        }
                        None => {}
                    },
                    // Closed: nobody can answer any more. It dies by itself, or by its code's doing it has to.
                    Ok(0) | Err(_) => {
                        answers_open = false;
                        patience.get_or_insert(Instant::now() + GRACE);
                    }
                },
                read = self.stdout.read(&mut out), if out_open => match read {
                    Ok(len @ 1..) => stdout.take(&out[..len]),
                    Ok(0) | Err(_) => out_open = false,
                },
                read = self.stderr.read(&mut err), if err_open => match read {
                    Ok(len @ 1..) => stderr.take(&err[..len]),
                    Ok(0) | Err(_) => err_open = false,
                },
                written = self.calls.write(unsaid), if !unsaid.is_empty() => match written {
                    Ok(len @ 1..) => unsaid = &unsaid[len..],
                    Ok(0) | Err(_) => unsaid = &[], // nobody reads: it is dying, or its code closed it
                },
                ended = &mut self.ended => {
                    let (cause, counted) = ended.map_err(|_| WardenGone)?;
                    return Ok(End::Died(cause, counted));
                }
                () = stop.stopped(), if !stopped => {
                    stopped = true;
                    match stop.cause() {
                        Some(StopCause::Revoked(reason)) => kill = Some(reason.clone()),
                        Some(StopCause::Budget(meter)) => {
                            kill = Some(format!("the grant's {} were used up", meter.name()));
                        }
                        Some(StopCause::Cancelled) | None => interrupt = true,
                    }
                }
                () = control.end.stopped(), if !ending => {
                    ending = true;
                    kill = Some(match control.end.cause() {
                        Some(StopCause::Revoked(reason)) => reason.clone(),
                        _ => "it was ended".to_owned(),
                    });
                }
                () = control.interrupt.notified() => interrupt = true,
                () = sleep_until(deadline), if !pressed.timed_out => {
                    pressed.timed_out = true;
                    interrupt = true;
                }
                () = sleep_until(patience.unwrap_or(deadline + FAR)), if patience.is_some() => {
                    kill = Some(if answers_open {
                        "it did not heed an interrupt".to_owned()
                    } else {
                        "its code closed the interpreter's channel".to_owned()
                    });
                }
            }
            if interrupt {
                pressed.interrupted = true;
                self.interrupt();
                patience.get_or_insert(Instant::now() + GRACE);
            }
            if let Some(why) = kill {
                pressed.killed.get_or_insert(why);
                patience = None;
                self.kill.kill();
            }
        }
    }
}
