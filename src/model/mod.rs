//! The shared words: ids, limits, layers, requests and outcomes.
//!
//! Pure: nothing here opens a file, reads a clock of its own accord or knows a policy. Every other
//! module may use it; it uses none of them.
#![forbid(unsafe_code)]

mod call;
mod capability;
mod class;
mod enforcement;
mod id;
mod limits;
mod live;
mod meter;
mod object;
mod outcome;
mod principal;
mod request;
mod sandbox;
mod schema;
mod timestamp;

pub use call::{CallReport, Frame, SessionState, Traceback};
pub use capability::{Capability, CapabilityError, CapabilitySet, Lacking};
pub use class::Class;
pub use enforcement::{CgroupMode, CgroupReport, Enforcement, Hold, LandlockReport, Layer, SeccompReport, StoreReport};
pub use id::{ConfirmationId, ExecId, GrantId, IdError, ProjectId, SandboxId, SnapshotId, TokenId};
pub use limits::{Limit, LimitError, Limits};
pub use live::{Channel, ProgramSignal, Tty};
pub use meter::{Amounts, Budget, Meter, PerMeter};
pub use object::Object;
pub use outcome::{Ending, LimitHit, Outcome, Output, Usage};
pub use principal::{Owner, Principal, Role};
pub use request::{DEFAULT_PROFILE, ExecRequest, ExecSpec, Input, Kind, Mode, PolicyOverrides, Report};
pub use sandbox::{NetNamespace, Rootfs, Tcp};
pub use timestamp::{Timestamp, TimestampError};
