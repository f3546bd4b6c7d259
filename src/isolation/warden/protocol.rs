//! What front and warden say to each other, and what init says to the front.
//!
//! ```text
//! front ──▶ warden   Run (+ stdin, stdout, stderr; a session's + calls, answers, interrupts), Kill, Signal, Bound, Reload, Stats,
//!                    Shutdown; for a session's Run: Call, which starts its clocks, and Rest, which stops them; for one
//!                    whose files were to come later: at most one Attach, before its first Call
//! warden ──▶ front   Accepted (+ status socket) | Refused, then for each Accepted exactly one Ended;
//!                    Bounded for each Bound, Reloaded for each Reload, Stats for each Stats, Rested for each Rest,
//!                    Attached for each Attach; first of all one Ready
//! init  ──▶ front    on the status socket: at most one Fault, at most one Exit; before them, where a program gets a
//!                    terminal, one Terminal (+ its master)
//! program ▶ warden   on the orders socket: one WAITING byte before its order comes; read where there are mounts to attach
//! front ──▶ init     on the status socket: one GO byte, without which no program starts
//! program ──▶ warden on the socket of its orders, if the run is to get signals: one byte and its own pidfd
//! ```
//!
//! Every message is one SEQPACKET datagram: a version byte, a tag byte and fields in a fixed order, little
//! endian, each with a bound. A datagram that is short, long, unknown or out of bounds is refused whole; the
//! warden then drops the front, because a front that speaks wrongly is broken or no longer ours.
#![forbid(unsafe_code)]

use super::record::{Reader, Writer};
use super::setup::Ready;
use super::store::Bound;
use super::words::{Words, WordsError};
use crate::isolation::fault::Fault;
use crate::model::{ExecId, Limit, LimitError, Limits, ProgramSignal, ProjectId, Tty};

/// Changed whenever a record changes; both sides are of one build, so a mismatch means something is very wrong.
pub(super) const VERSION: u8 = 1;
/// Largest datagram: the words of a program and a small header.
pub const MESSAGE_MAX: usize = super::words::WORDS_MAX + 1024;
/// The byte on the status socket that lets a prepared program start.
pub const GO: u8 = b'G';
/// The byte beside which a program's process sends its pidfd.
pub const PIDFD: u8 = b'P';
/// A run without a terminal.
const NO_TTY: Tty = Tty { cols: 0, rows: 0 };
/// The byte on the orders socket by which a sandbox says that it waits: its mounts are finished.
pub const WAITING: u8 = b'W';
/// Descriptors that come with `Run`.
pub const RUN_FDS: usize = 3;
/// Descriptors that come with the `Run` of a session: those three, calls, answers and interrupts.
pub const SESSION_FDS: usize = 6;
/// How much longer than its time a call may take to heed the front's interrupt before the warden ends its session.
pub const INTERRUPT_GRACE_MS: u64 = 2000;
/// Profiles that `Stats` tells of, at most: the record stays small.
pub const STATS_MAX: usize = 128;

/// Why a datagram is not a message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    /// Shorter than its fields.
    #[error("message ends inside {0}")]
    Short(&'static str),
    /// Longer than its fields.
    #[error("{0} bytes after the last field")]
    Long(usize),
    /// Another version.
    #[error("protocol version {0}, ours is {VERSION}")]
    Version(u8),
    /// A tag or choice that does not exist.
    #[error("{0} has no value {1}")]
    Unknown(&'static str, u8),
    /// A text that is not an id.
    #[error("{0} is not an id")]
    Id(&'static str),
    /// A limit out of bounds.
    #[error(transparent)]
    Limit(#[from] LimitError),
    /// The program's words.
    #[error(transparent)]
    Words(#[from] WordsError),
    /// Descriptors missing or too many.
    #[error("message came with {0} descriptors")]
    Descriptors(usize),
}

/// Number of one run between front and warden; never reused in a daemon's life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RunNumber(pub u64);

/// Where the files of a run are. Ids only: the warden makes the paths.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Workspace {
    /// Work and artifacts live in the sandbox's own tmpfs; inputs, if any, below the exec's own directory.
    ThrowAway {
        /// Whether the front has laid inputs down.
        inputs: bool,
    },
    /// The three areas of a project.
    Project(ProjectId),
    /// Throw-away until `Attach` says otherwise: the run begins before it is known whose it will be.
    Later,
}

/// How long a run lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Life {
    /// One program to its end, within its time.
    Once,
    /// An interpreter that is told call after call what to run; each call has its own time.
    Session,
}

/// One program to run. Descriptors for stdin, stdout and stderr come beside it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Run {
    /// Number to answer under.
    pub number: RunNumber,
    /// Index of the profile in the set that both sides loaded.
    pub profile: u16,
    /// First bytes of that set's digest: a run that was judged under another set is refused.
    pub set: u64,
    /// Its exec id: names the artifacts directory.
    pub exec: ExecId,
    /// Limits, none above the profile's.
    pub limits: Limits,
    /// Where its files are.
    pub workspace: Workspace,
    /// How long it lives.
    pub life: Life,
    /// Whether it may get signals: its process then hands the warden a pidfd of itself.
    pub signals: bool,
    /// The terminal that it gets in place of the pipes; its master then goes to the front on the status socket.
    pub tty: Option<Tty>,
    /// Command, working directory, arguments and environment.
    pub words: Words,
}

impl Run {
    /// How many descriptors come with it.
    #[must_use]
    pub fn fds(&self) -> usize {
        match self.life {
            Life::Once => RUN_FDS,
            Life::Session => SESSION_FDS,
        }
    }
}

/// Front to warden.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    /// Run a program.
    Run(Box<Run>),
    /// End a run at once.
    Kill(RunNumber),
    /// Send a signal to the process group of a run's program.
    Signal(RunNumber, ProgramSignal),
    /// A session begins a call, which has so much time on the wall and of the processor.
    Call {
        /// Which.
        number: RunNumber,
        /// Wall clock, with the grace for an interrupt if it gets one.
        wall_ms: u64,
        /// Processor time, counted from the last answer on.
        cpu_ms: u64,
    },
    /// A session's call has been answered.
    Rest(RunNumber),
    /// The files of a run that began without them.
    Attach {
        /// Which.
        number: RunNumber,
        /// Whose they are: names the artifacts directory.
        exec: ExecId,
        /// Where they are.
        workspace: Workspace,
    },
    /// Read the profiles again; running runs keep what they have.
    Reload,
    /// How the pool stands.
    Stats,
    /// Limit what a part of a project may hold.
    Bound(Bound),
    /// End all runs and leave.
    Shutdown,
}

/// Why the warden did not start a run; the front knows the words for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refused {
    /// The run was judged under another set of profiles, or none has that index.
    Profile,
    /// A limit is above the profile's.
    Wider(Limit),
    /// An area of the workspace could not be opened or mapped.
    Workspace(i32),
    /// A required layer can't be had: its index in `Layer::ALL`.
    Layer(u8),
    /// The group could not be made.
    Cgroup(i32),
    /// The sandbox process could not be made.
    Spawn(i32),
    /// All uid ranges are in use.
    Busy,
}

/// What ended a run, as far as the warden did it or saw it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// It ended by itself.
    Itself,
    /// Wall clock.
    Wall,
    /// Processor time.
    Cpu,
    /// The front asked for it.
    Killed,
    /// Out of memory.
    Oom,
}

/// What the group of a run counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counted {
    /// Processor time.
    pub cpu_us: u64,
    /// Highest memory use, if counted.
    pub memory_peak_bytes: Option<u64>,
    /// Most tasks at once, init included, if counted.
    pub pids_peak: Option<u64>,
    /// How often a fork was refused by the pids limit.
    pub pids_refused: u64,
}

/// The pool of one profile.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PoolGauges {
    /// Sandboxes that wait.
    pub idle: u16,
    /// Sandboxes that run a program.
    pub busy: u16,
    /// How many should wait.
    pub target: u16,
    /// Runs that got a waiting sandbox.
    pub hits: u64,
    /// Runs that had to build their own.
    pub misses: u64,
}

/// Warden to front.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// The sandbox exists; its status socket comes beside this.
    Accepted(RunNumber),
    /// Nothing was started.
    Refused(RunNumber, Refused),
    /// What a session has used since it rested last.
    Rested(RunNumber, Counted),
    /// Every process of it is gone.
    Ended(RunNumber, Cause, Counted),
    /// The profiles were read again; none: they could not be, the old ones stay and the log says why.
    Reloaded(Option<Ready>),
    /// The pool of each profile, in the order of the set; the first [`STATS_MAX`] of them.
    Stats(Vec<PoolGauges>),
    /// The limit holds (0), or the errno that says why not.
    Bounded(RunNumber, i32),
    /// The files are in their places (0), or the errno that says why not.
    Attached(RunNumber, i32),
}

/// From inside, on the status socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// A step failed; no program was started.
    Fault(Fault),
    /// The program exited with this code.
    Exited(i32),
    /// The program was ended by this signal.
    Signaled(i32),
    /// The master of the program's terminal comes beside this.
    Terminal,
}

impl Request {
    /// The datagram of this message.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Request::Run(run) => {
                let mut out = Writer::new(1).u64(run.number.0).u16(run.profile).u64(run.set).text(run.exec.as_str());
                for &amount in run.limits.amounts() {
                    out = out.u64(amount);
                }
                out = run.workspace.write(out);
                let Tty { cols, rows } = run.tty.unwrap_or(NO_TTY);
                out = out.u8((run.life == Life::Session).into()).u8(run.signals.into()).u16(cols).u16(rows);
                run.words.append_to(&mut out.0);
                out.0
            }
            Request::Kill(number) => Writer::new(2).u64(number.0).0,
            Request::Shutdown => Writer::new(3).0,
            Request::Reload => Writer::new(4).0,
            Request::Stats => Writer::new(5).0,
            Request::Bound(bound) => bound.write(Writer::new(6)).0,
            Request::Signal(number, signal) => Writer::new(7).u64(number.0).u8(signal.number()).0,
            Request::Call { number, wall_ms, cpu_ms } => Writer::new(20).u64(number.0).u64(*wall_ms).u64(*cpu_ms).0,
            Request::Rest(number) => Writer::new(21).u64(number.0).0,
            Request::Attach { number, exec, workspace } => {
                workspace.write(Writer::new(22).u64(number.0).text(exec.as_str())).0
            }
        }
    }

    /// The message of this datagram.
    pub fn decode(bytes: &[u8]) -> Result<Self, ProtocolError> {
        let (tag, mut fields) = Reader::open(bytes)?;
        match tag {
            1 => {
                let number = fields.number()?;
                let profile = fields.u16("profile")?;
                let set = fields.u64("set")?;
                let exec = fields.id("exec")?;
                let mut amounts = [0; Limit::ALL.len()];
                for amount in &mut amounts {
                    *amount = fields.u64("limits")?;
                }
                let limits = Limits::from_amounts(amounts)?;
                let workspace = Workspace::read(&mut fields)?;
                let life = if fields.flag("life")? { Life::Session } else { Life::Once };
                let signals = fields.flag("signals")?;
                let tty = match (Tty { cols: fields.u16("tty")?, rows: fields.u16("tty")? }) {
                    NO_TTY => None,
                    tty if tty.is_sane() => Some(tty),
                    _ => return Err(ProtocolError::Unknown("tty", 0)),
                };
                // The words are the rest of the datagram; their own decoder refuses anything after them.
                let words = Words::decode(fields.0)?;
                let run = Run { number, profile, set, exec, limits, workspace, life, signals, tty, words };
                Ok(Request::Run(Box::new(run)))
            }
            2 => {
                let number = fields.number()?;
                fields.end()?;
                Ok(Request::Kill(number))
            }
            3 => {
                fields.end()?;
                Ok(Request::Shutdown)
            }
            4 => {
                fields.end()?;
                Ok(Request::Reload)
            }
            5 => {
                fields.end()?;
                Ok(Request::Stats)
            }
            6 => {
                let bound = Bound::read(&mut fields)?;
                fields.end()?;
                Ok(Request::Bound(bound))
            }
            7 => {
                let (number, signal) = (fields.number()?, fields.u8("signal")?);
                fields.end()?;
                let known = ProgramSignal::from_number(signal).ok_or(ProtocolError::Unknown("signal", signal))?;
                Ok(Request::Signal(number, known))
            }
            20 => {
                let (number, wall_ms, cpu_ms) = (fields.number()?, fields.u64("wall")?, fields.u64("cpu")?);
                Limit::CpuMs.check(cpu_ms)?;
                fields.end()?;
                Ok(Request::Call { number, wall_ms, cpu_ms })
            }
            21 => {
                let number = fields.number()?;
                fields.end()?;
                Ok(Request::Rest(number))
            }
            22 => {
                let (number, exec) = (fields.number()?, fields.id("exec")?);
                let workspace = Workspace::read(&mut fields)?;
                fields.end()?;
                Ok(Request::Attach { number, exec, workspace })
            }
            other => Err(ProtocolError::Unknown("request", other)),
        }
    }
}

impl Workspace {
    fn write(&self, out: Writer) -> Writer {
        match self {
            Self::ThrowAway { inputs } => out.u8(0).u8((*inputs).into()),
            Self::Project(project) => out.u8(1).text(project.as_str()),
            Self::Later => out.u8(2),
        }
    }

    fn read(fields: &mut Reader<'_>) -> Result<Self, ProtocolError> {
        match fields.u8("workspace")? {
            0 => Ok(Self::ThrowAway { inputs: fields.flag("inputs")? }),
            1 => Ok(Self::Project(fields.id("project")?)),
            2 => Ok(Self::Later),
            other => Err(ProtocolError::Unknown("workspace", other)),
        }
    }
}

impl Refused {
    fn code(self) -> (u8, i32) {
        match self {
            Refused::Profile => (0, 0),
            Refused::Wider(limit) => (1, limit as i32),
            Refused::Workspace(errno) => (2, errno),
            Refused::Layer(index) => (3, index.into()),
            Refused::Cgroup(errno) => (4, errno),
            Refused::Spawn(errno) => (5, errno),
            Refused::Busy => (6, 0),
        }
    }

    fn from_code(tag: u8, detail: i32) -> Result<Self, ProtocolError> {
        let unknown = ProtocolError::Unknown("refusal", tag);
        let small = || u8::try_from(detail).map_err(|_| unknown.clone());
        Ok(match (tag, detail) {
            (0, 0) => Refused::Profile,
            (1, _) => Refused::Wider(Limit::ALL.get(usize::from(small()?)).copied().ok_or(unknown)?),
            (2, _) => Refused::Workspace(detail),
            (3, _) => Refused::Layer(small()?),
            (4, _) => Refused::Cgroup(detail),
            (5, _) => Refused::Spawn(detail),
            (6, 0) => Refused::Busy,
            _ => return Err(unknown),
        })
    }
}

impl Counted {
    fn write(&self, out: Writer) -> Writer {
        out.u64(self.cpu_us).maybe(self.memory_peak_bytes).maybe(self.pids_peak).u64(self.pids_refused)
    }

    fn read(fields: &mut Reader<'_>) -> Result<Self, ProtocolError> {
        Ok(Self {
            cpu_us: fields.u64("cpu")?,
            memory_peak_bytes: fields.maybe("memory")?,
            pids_peak: fields.maybe("pids")?,
            pids_refused: fields.u64("pids refused")?,
        })
    }
}

impl Reply {
    /// The datagram of this message.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Reply::Accepted(number) => Writer::new(1).u64(number.0).0,
            Reply::Refused(number, refused) => {
                let (tag, detail) = refused.code();
                Writer::new(2).u64(number.0).u8(tag).i32(detail).0
            }
            Reply::Ended(number, cause, counted) => counted.write(Writer::new(3).u64(number.0).u8(*cause as u8)).0,
            Reply::Rested(number, counted) => counted.write(Writer::new(20).u64(number.0)).0,
            Reply::Reloaded(ready) => {
                let mut out = Writer::new(4).u8(ready.is_some().into());
                out.0.extend(ready.iter().flat_map(Ready::encode));
                out.0
            }
            Reply::Bounded(number, errno) => Writer::new(6).u64(number.0).i32(*errno).0,
            Reply::Attached(number, errno) => Writer::new(21).u64(number.0).i32(*errno).0,
            Reply::Stats(pools) => {
                let pools = &pools[..pools.len().min(STATS_MAX)];
                let mut out = Writer::new(5).u8(u8::try_from(pools.len()).expect("STATS_MAX fits a byte"));
                for pool in pools {
                    out = out.u16(pool.idle).u16(pool.busy).u16(pool.target).u64(pool.hits).u64(pool.misses);
                }
                out.0
            }
        }
    }

    /// The message of this datagram.
    pub fn decode(bytes: &[u8]) -> Result<Self, ProtocolError> {
        let (tag, mut fields) = Reader::open(bytes)?;
        let reply = match tag {
            1 => Reply::Accepted(fields.number()?),
            2 => Reply::Refused(fields.number()?, Refused::from_code(fields.u8("refusal")?, fields.i32("refusal")?)?),
            3 => {
                let number = fields.number()?;
                let cause = match fields.u8("cause")? {
                    0 => Cause::Itself,
                    1 => Cause::Wall,
                    2 => Cause::Cpu,
                    3 => Cause::Killed,
                    4 => Cause::Oom,
                    other => return Err(ProtocolError::Unknown("cause", other)),
                };
                Reply::Ended(number, cause, Counted::read(&mut fields)?)
            }
            20 => Reply::Rested(fields.number()?, Counted::read(&mut fields)?),
            4 => {
                let ready = match fields.flag("reloaded")? {
                    false => None,
                    true => {
                        let rest = std::mem::take(&mut fields.0);
                        Some(Ready::decode(rest).ok_or(ProtocolError::Unknown("ready", 0))?)
                    }
                };
                Reply::Reloaded(ready)
            }
            5 => {
                let count = fields.u8("pools")?;
                if usize::from(count) > STATS_MAX {
                    return Err(ProtocolError::Unknown("pools", count));
                }
                let mut pools = Vec::with_capacity(count.into());
                for _ in 0..count {
                    pools.push(PoolGauges {
                        idle: fields.u16("idle")?,
                        busy: fields.u16("busy")?,
                        target: fields.u16("target")?,
                        hits: fields.u64("hits")?,
                        misses: fields.u64("misses")?,
                    });
                }
                Reply::Stats(pools)
            }
            6 => Reply::Bounded(fields.number()?, fields.i32("bounded")?),
            21 => Reply::Attached(fields.number()?, fields.i32("attached")?),
            other => return Err(ProtocolError::Unknown("reply", other)),
        };
        fields.end()?;
        Ok(reply)
    }
}

/// Length of every status record.
pub const STATUS_LEN: usize = 12;

impl Status {
    /// The record of this status: a fixed array, as it is written after the fork.
    #[must_use]
    pub fn encode(self) -> [u8; STATUS_LEN] {
        let (tag, step, index, number): (u8, u8, u16, i32) = match self {
            Status::Fault(fault) => (1, fault.step as u8, fault.index, fault.errno),
            Status::Exited(code) => (2, 0, 0, code),
            Status::Signaled(signal) => (3, 0, 0, signal),
            Status::Terminal => (4, 0, 0, 0),
        };
        let mut record = [0; STATUS_LEN];
        record[0] = VERSION;
        record[1] = tag;
        record[2] = step;
        record[4..6].copy_from_slice(&index.to_le_bytes());
        record[8..12].copy_from_slice(&number.to_le_bytes());
        record
    }

    /// The status of this record.
    pub fn decode(bytes: &[u8]) -> Result<Self, ProtocolError> {
        let (tag, mut fields) = Reader::open(bytes)?;
        let step = fields.u8("step")?;
        fields.u8("padding")?;
        let index = fields.u16("index")?;
        fields.u16("padding")?;
        let number = fields.i32("number")?;
        fields.end()?;
        let status = match tag {
            1 => Fault::from_record(step, index, number)
                .map(Status::Fault)
                .ok_or(ProtocolError::Unknown("step", step))?,
            2 => Status::Exited(number),
            3 => Status::Signaled(number),
            4 => Status::Terminal,
            other => return Err(ProtocolError::Unknown("status", other)),
        };
        // One status, one record: what init never writes, in the padding or in fields of another status, is no record.
        if status.encode() == bytes { Ok(status) } else { Err(ProtocolError::Unknown("padding", tag)) }
    }
}

#[cfg(test)]
mod tests;
