//! The core that decides. Pure: no kernel, no clock, no files of its own.
//!
//! [`judge`] is the only maker of a [`Permit`], and the executor takes nothing else: an exec that nobody judged does not
//! compile. A [`Refusal`] is an answer with a rule and a field, not an error.
#![forbid(unsafe_code)]

mod judge;
pub mod path;
mod refusal;
pub mod risk;

pub use judge::{InputFile, Permit, judge};
pub use refusal::Refusal;
