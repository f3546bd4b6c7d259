//! The daemon. See the crate's documentation for what it does and `sandboxd::daemon` for the order of its start.

use clap::{CommandFactory, Parser};
use sandboxd::daemon::{Arguments, Config, LogFormat, check, lacking, run};
use tracing_subscriber::EnvFilter;

fn main() {
    let arguments = Arguments::parse();
    let filter = EnvFilter::try_from_env("SANDBOXD_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_target(false);
    match arguments.log_format {
        LogFormat::Text => log.with_ansi(false).init(),
        LogFormat::Json => log.json().init(),
    }
    if let Some(directory) = &arguments.manual {
        let written = sandboxd::manual::write(Arguments::command(), "8", directory);
        std::process::exit(written.map_or_else(
            |error| {
                eprintln!("sandboxd: {}: {error}", directory.display());
                1
            },
            |()| 0,
        ));
    }
    let config = Config::from_arguments(&arguments).unwrap_or_else(|error| {
        eprintln!("sandboxd: {error:#}");
        std::process::exit(1)
    });
    let code = if arguments.check { check(&config) } else { run(config.clone()) };
    std::process::exit(code.unwrap_or_else(|error| {
        eprintln!("sandboxd: {error:#}");
        for finding in lacking(&config) {
            eprintln!("sandboxd: {}: {}; cure: {}", finding.name, finding.found, finding.cure.unwrap_or_default());
        }
        1
    }));
}
