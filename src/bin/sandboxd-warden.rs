//! The part of the daemon that stays root; sandboxd starts it. See `sandboxd::isolation::warden`.
#![forbid(unsafe_code)]

fn main() {
    std::process::exit(sandboxd::daemon::warden());
}
