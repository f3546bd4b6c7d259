//! The daemon. See the crate's documentation for what it does and `sandboxd::daemon` for the order of its start.

use clap::{CommandFactory, Parser};
use sandboxd::daemon::{Arguments, Config, check, lacking, log, run};

fn main() {
    let arguments = Arguments::parse();
    log::start(&log::wanted(), arguments.log_format);
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
    let code = if arguments.check { check(&config) } else { run(config.clone(), arguments.log_format) };
    std::process::exit(code.unwrap_or_else(|error| {
        eprintln!("sandboxd: {error:#}");
        for finding in lacking(&config) {
            eprintln!("sandboxd: {}: {}; cure: {}", finding.name, finding.found, finding.cure.unwrap_or_default());
        }
        1
    }));
}
