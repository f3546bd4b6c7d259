//! One file per verb: its flags as a clap struct, and `perform`, which returns the exit code.
//!
//! `exec` and `answer` are what `run`, `python` and `shell` share; `amount` reads sizes and durations.
#![forbid(unsafe_code)]

pub mod amount;
mod answer;
pub mod doctor;
pub mod evidence;
pub mod exec;
pub mod health;
pub mod profile;
pub mod python;
pub mod run;
pub mod shell;
pub mod token;
