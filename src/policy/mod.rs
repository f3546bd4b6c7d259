//! The core that decides. Pure: no kernel, no clock, no files of its own.
//!
//! [`judge`] is the only maker of a [`Permit`], and the executor takes nothing else: an exec that nobody judged does not
//! compile. A [`Refusal`] is an answer with a rule and a field, not an error.
#![forbid(unsafe_code)]

pub mod compose;
pub mod grant;
pub mod guard;
mod judge;
mod refusal;

pub use crate::terms::path;

pub use judge::{InputFile, Permit, judge};
pub use refusal::Refusal;
