//! Runs what was permitted: talks to the warden, feeds and drains the program, makes an outcome of what came back.
//!
//! ```text
//! Permit ─▶ lay files ─▶ warden.run ─▶ Go ─▶ pumps (stdin, stdout, stderr) ─▶ Exit, Ended ─▶ Outcome
//!                                            └─▶ log ─▶ whoever reads, each at its own pace
//! ```
//!
//! The front never touches the sandbox itself: it holds pipes and a status socket, and the warden does the rest.
#![forbid(unsafe_code)]

mod client;
mod live;
mod log;
mod outcome;
mod process;
mod pump;
mod session;
mod stop;
mod terminal;
mod volumes;

pub use crate::isolation::warden::ProfileState;
pub use crate::isolation::warden::protocol::PoolGauges;
pub use crate::isolation::warden::store::Part;
pub use client::{Warden, WardenGone};
pub use live::{Attachment, Live, Sent, Unreached, Writer};
pub use log::{Beyond, Event, Excerpt, Exit, Log, Piece, Wanted, What};
pub use process::{Executor, HostReport, RunError, StoreState, Under};
pub use session::{Ahead, Control, Interpreter, SessionCall};
pub use stop::{Stop, StopCause};
pub use volumes::Btrfs;
