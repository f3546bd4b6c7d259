//! What the daemon's SQLite files have in common: how one is made, checked, protected and brought up to date, and the
//! one thread that writes to it.
//!
//! It promises that a file appears under its name only when it is complete, belongs to its owner alone, is never
//! replaced and never changed when it is damaged, foreign or from a later program; and that everything that waits for
//! the writer goes into one commit. It does not know what the tables mean.
#![forbid(unsafe_code)]

pub mod file;
pub mod writer;
