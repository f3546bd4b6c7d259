//! The core that decides. Pure: no kernel, no clock, no files of its own.
//!
//! [`judge`] is the only maker of a [`Permit`], and the executor takes nothing else: an exec that nobody judged does not
//! compile. A [`Refusal`] is an answer with a rule and a field, not an error.
#![forbid(unsafe_code)]

pub mod compose;
mod consent;
pub mod explain;
mod files;
pub mod grant;
pub mod guard;
mod judge;
mod permit;
mod read;
mod refusal;
pub mod risk;
mod sandbox;

pub use crate::terms::path;

pub use consent::Approval;
pub use files::{FileArea, FileAsk, FileOperation, FilePermit, FileRule, judge_file};
pub use judge::{Facts, Stage, capability_of, judge, judge_in_stages};
pub use permit::{InputFile, Metered, Permit};
pub use refusal::Refusal;
pub use sandbox::judge_sandbox;

/// The profiles of this build, for tests of modules that may not read profiles themselves.
#[cfg(test)]
pub(crate) fn shipped_profiles() -> crate::profile::Profiles {
    crate::profile::Profiles::load(None).expect("the shipped profiles")
}
