//! `sandboxctl run -- cmd args…`: a program, never through a shell.
#![forbid(unsafe_code)]

use super::exec::{ExecFlags, Program, Purpose, execute};
use crate::ctl::{Context, CtlError};
use crate::model::Kind;

/// Flags of `run`.
#[derive(Debug, clap::Args)]
#[command(after_help = super::exec::EXIT_CODES)]
pub struct Run {
    #[command(flatten)]
    flags: ExecFlags,

    /// The program (a path in the sandbox or a name in its PATH) and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "CMD")]
    words: Vec<String>,
}

impl Run {
    /// Runs the program; the exit code is the program's.
    pub async fn perform(self, context: &Context, purpose: Purpose) -> Result<u8, CtlError> {
        let mut words = self.words.into_iter();
        let (command, args) = (words.next(), words.collect());
        execute(context, purpose, self.flags, move |_| Ok(Program { kind: Kind::Process, command, code: None, args }))
            .await
    }
}
