//! One file per verb: its flags as a clap struct, and `perform`, which returns the exit code.
//!
//! `exec` and `answer` are what `run`, `python` and `shell` share; `amount` reads sizes and durations.
#![forbid(unsafe_code)]

pub mod amount;
mod answer;
pub mod attach;
pub mod bench;
pub mod confirm;
pub mod doctor;
pub mod evidence;
pub mod exec;
pub mod execs;
pub mod explain;
pub mod fs;
pub mod grant;
pub mod health;
pub mod profile;
pub mod python;
pub mod replay;
pub mod run;
pub mod sandbox;
pub mod service;
pub mod session;
pub mod shell;
pub mod snapshot;
pub mod store;
pub mod token;

/// An id as part of an address. One that would need escaping there is none of ours, and `-` is never found.
fn plain_id(id: &str) -> &str {
    let plain = !id.is_empty() && id.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-'));
    if plain { id } else { "-" }
}
