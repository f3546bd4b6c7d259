//! `sandboxctl`, the command line of sandboxd: all of it is in `sandboxd::ctl`.
#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    sandboxd::ctl::main()
}
