//! HTTP on the Unix socket: who is calling, what is asked, in which shape the answer comes.
//!
//! Handlers are thin: they turn a body into a request, hand it to the pipeline and turn what comes back into an answer.
//! All statuses are in `error.rs`; codes and classes of a no are `policy`'s.
#![forbid(unsafe_code)]

mod access;
mod attach;
mod confirmations;
mod doctor;
mod download;
mod error;
mod evidence;
mod execs;
mod files;
mod grants;
mod handlers;
mod idempotency;
mod live;
mod openapi;
mod routes;
mod sandboxes;
mod server;
mod services;
mod sessions;
mod snapshots;
mod tokens;
pub mod wire;
mod words;

pub use access::{Access, AccessRules, Peer};
pub use doctor::Doctor;
pub use handlers::{State, parse_exec};
pub use routes::router;
pub use server::{Owed, serve};
