//! sandboxd
pub mod api;

pub mod ctl;
pub mod daemon;
pub mod executor;
pub mod isolation;
pub mod model;
pub mod pipeline;
pub mod policy;
pub mod profile;
pub mod workspace;
