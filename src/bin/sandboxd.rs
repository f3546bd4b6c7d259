//! The daemon. See the crate's documentation for what it does and `sandboxd::daemon` for the order of its start.

use clap::Parser;
use sandboxd::daemon::{Arguments, Config, LogFormat, check, run};
use tracing_subscriber::EnvFilter;

fn main() {
    let arguments = Arguments::parse();
    let filter = EnvFilter::try_from_env("SANDBOXD_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_target(false);
    match arguments.log_format {
        LogFormat::Text => log.with_ansi(false).init(),
        LogFormat::Json => log.json().init(),
    }
    let code = Config::from_arguments(&arguments)
        .and_then(|config| if arguments.check { check(&config) } else { run(config) });
    std::process::exit(code.unwrap_or_else(|error| {
        eprintln!("sandboxd: {error:#}");
        1
    }));
}
