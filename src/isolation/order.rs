//! The order that a waiting sandbox gets: what the warden, which has checked the front's `Run`, tells the child of it.
//!
//! The child parses nothing rich: it gets amounts, flags and the words of the program, in the order in which
//! `child/order.rs` reads them. Who runs, under which id and in which project stays with the warden.
#![forbid(unsafe_code)]

use super::rlimits;
use super::warden::protocol::{Life, Run, Workspace};

/// First byte of every order.
const MARK: u8 = b'O';

/// The record of an order.
#[must_use]
pub fn order(run: &Run) -> Vec<u8> {
    let mut out = Vec::with_capacity(1024);
    let files = match run.workspace {
        Workspace::ThrowAway { .. } => 0,
        Workspace::Project(_) => 1,
        Workspace::Later => 2,
    };
    let fds = u8::try_from(run.fds()).expect("a handful");
    out.extend([MARK, files, (run.life == Life::Session).into(), run.signals.into(), fds]);
    let (rows, cols) = run.tty.map_or((0, 0), |tty| (tty.rows, tty.cols));
    out.extend(rows.to_le_bytes());
    out.extend(cols.to_le_bytes());
    for limit in rlimits::of(&run.limits, run.life) {
        out.extend(limit.amount().to_le_bytes());
    }
    run.words.append_to(&mut out);
    out
}
