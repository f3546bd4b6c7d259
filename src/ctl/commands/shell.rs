//! `sandboxctl shell`: Shell (bash) code from the command line, a local file or standard input.
#![forbid(unsafe_code)]

use super::exec::{CodeFlags, ExecFlags, Purpose, execute};
use crate::ctl::{Context, CtlError};
use crate::model::Kind;

/// Flags of `shell`.
#[derive(Debug, clap::Args)]
#[command(after_help = super::exec::EXIT_CODES)]
pub struct Shell {
    #[command(flatten)]
    flags: ExecFlags,
    #[command(flatten)]
    code: CodeFlags,
}

impl Shell {
    /// Runs the code; the exit code is the interpreter's.
    pub async fn perform(self, context: &Context, purpose: Purpose) -> Result<u8, CtlError> {
        let code = self.code;
        execute(context, purpose, self.flags, move |stdin| code.program(Kind::Shell, stdin)).await
    }
}
