//! The log of front and warden: lines on standard error.

use super::LogFormat;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, fmt};

/// What is logged: `info`, or a level for some targets (`info,sandboxd::isolation=debug`).
const VARIABLE: &str = "SANDBOXD_LOG";
const USUAL: &str = "info";

/// What the environment asks to be logged.
#[must_use]
pub fn wanted() -> String {
    std::env::var(VARIABLE).unwrap_or_else(|_| USUAL.to_owned())
}

/// Starts it. What can't be read as levels is `info`.
pub fn start(wanted: &str, format: LogFormat) {
    let levels: Targets = wanted.parse().unwrap_or_else(|_| USUAL.parse().expect("a level is a filter"));
    let lines = fmt::layer().with_writer(std::io::stderr).with_target(false);
    let lines = match format {
        LogFormat::Text => lines.with_ansi(false).boxed(),
        LogFormat::Json => lines.json().boxed(),
    };
    tracing_subscriber::registry().with(lines.with_filter(levels)).init();
}
