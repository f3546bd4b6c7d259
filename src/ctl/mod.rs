//! `sandboxctl`: a person's hand on the daemon. It sees the wire and nothing else of the crate.
//!
//! ```text
//! words ─▶ Cli ─▶ commands::<verb>::perform ─▶ client ─▶ daemon
//!                              └─▶ output ─▶ our stdout and stderr, exit code
//! ```
//!
//! A new verb is a file below `commands/`, a variant of [`Verb`] and an arm in [`perform`]. Every verb can be
//! interrupted at any moment: what it waits for is dropped, the connection closes, and the daemon cancels.
#![forbid(unsafe_code)]

pub mod client;
pub mod commands;
mod error;
pub mod figures;
pub mod output;

pub use error::CtlError;

use clap::{CommandFactory, Parser, Subcommand};
use client::Client;
use commands::exec::Purpose;
use output::Stream;
use std::path::PathBuf;
use std::process::ExitCode;
use tokio::signal::unix::{SignalKind, signal};

/// `sandboxctl` itself failed: bad usage, no daemon, a refusal. As with env(1), not to be confused with a program's own.
pub const EXIT_OURS: u8 = 125;
/// Ctrl-C or SIGTERM: 128 + SIGINT, as a shell would say.
pub const EXIT_INTERRUPTED: u8 = 130;

/// Runs code that nobody has read, in a sandbox, through sandboxd.
#[derive(Debug, Parser)]
#[command(name = "sandboxctl", version, max_term_width = 100, arg_required_else_help = true, after_help = EXAMPLES)]
pub struct Cli {
    /// Socket of the daemon
    #[arg(
        long,
        global = true,
        value_name = "PATH",
        env = "SANDBOXD_SOCKET",
        default_value = "/run/sandboxd/sandboxd.sock"
    )]
    pub socket: PathBuf,

    /// Act as the owner of this token instead of as yourself
    #[arg(long, global = true, value_name = "SECRET", env = "SANDBOXD_TOKEN", hide_env_values = true, help_heading = GLOBAL)]
    pub token: Option<String>,

    /// Print the daemon's answer as JSON
    #[arg(long, global = true, help_heading = GLOBAL)]
    pub json: bool,

    /// What to do.
    #[command(subcommand)]
    pub verb: Verb,
}

const GLOBAL: &str = "Options of every command";

const EXAMPLES: &str = "\
Examples:
  sandboxctl run -- ls -l /
  sandboxctl python -c 'print(6 * 7)'
  sandboxctl run --memory 256M --timeout 10s --input data.csv -- wc -l /workspace/inputs/data.csv
  sandboxctl doctor";

/// Everything that can be asked for.
#[derive(Debug, Subcommand)]
pub enum Verb {
    /// Run a program in a fresh sandbox
    Run(commands::run::Run),
    /// Run Python code in a fresh sandbox
    Python(commands::python::Python),
    /// Run shell (bash) code in a fresh sandbox
    Shell(commands::shell::Shell),
    /// Check what this host can enforce, and how to mend what it can't
    Doctor(commands::doctor::Doctor),
    /// Say whether the daemon is well
    Health(commands::health::Health),
    /// Make, list and revoke tokens (admin)
    Token(commands::token::Token),
    /// Make, list, show, keep and remove sandboxes
    Sandbox(commands::sandbox::Sandbox),
    /// Start, list, follow and stop programs that run on in a sandbox
    Service(commands::service::Service),
    /// Keep, restore, fork and compare the files of a sandbox
    Snapshot(commands::snapshot::Snapshot),
    /// Make a store with limits and snapshots, and say how it stands
    Store(commands::store::Store),
    /// List, reset, interrupt and remove interpreters that are kept between calls
    Session(commands::session::Session),
    /// Send, fetch, list and change files of a sandbox
    Fs(commands::fs::Fs),
    /// List, show, follow, feed, signal, attach to and cancel execs, and what they left
    Exec(commands::execs::Execs),
    /// List, show and check profiles
    Profile(commands::profile::Profile),
    /// List, show, verify and export what was done
    Evidence(commands::evidence::Evidence),
    /// Issue, list, show and revoke grants
    Grant(commands::grant::Grant),
    /// List, approve and deny what waits for a person's consent
    Confirm(commands::confirm::Confirm),
    /// Say what would be said to an exec, and what would allow it
    Explain(commands::explain::Explain),
    /// Measure what a sandbox costs on this host, against the same program without one
    Bench(commands::bench::Bench),
    /// Write man pages and completions below a directory
    #[command(hide = true)]
    Manual {
        /// Where to
        directory: PathBuf,
    },
}

/// For whom the answer is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// Words for people.
    Text,
    /// JSON for machines.
    Json,
}

/// What every verb is given. Clones share the streams.
#[derive(Clone)]
pub struct Context {
    /// The way to the daemon.
    pub client: Client,
    /// For whom the answer is.
    pub form: Form,
    /// Where answers go.
    pub out: Stream,
    /// Where words about the answer go.
    pub err: Stream,
}

/// The whole of `sandboxctl`: reads the command line, does what it says, returns the exit code.
#[must_use]
pub fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            let _ = error.print(); // help that nobody reads is no failure
            return if error.use_stderr() { EXIT_OURS.into() } else { ExitCode::SUCCESS };
        }
    };
    let form = if cli.json { Form::Json } else { Form::Text };
    let client = Client::new(&cli.socket).with_token(cli.token);
    let context = Context { client, form, out: Stream::stdout(), err: Stream::stderr() };
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            CtlError::Start(error).say(&context);
            return EXIT_OURS.into();
        }
    };
    let code = runtime.block_on(interruptible(perform(cli.verb, &context), &context));
    // A thread may still hang in a read or write that nobody waits for any more.
    runtime.shutdown_background();
    code.into()
}

/// Does what the verb says; an error is said and becomes an exit code.
pub async fn perform(verb: Verb, context: &Context) -> u8 {
    let done = match verb {
        Verb::Run(run) => run.perform(context, Purpose::Run).await,
        Verb::Python(python) => python.perform(context, Purpose::Run).await,
        Verb::Shell(shell) => shell.perform(context, Purpose::Run).await,
        Verb::Doctor(doctor) => doctor.perform(context).await,
        Verb::Health(health) => health.perform(context).await,
        Verb::Token(token) => token.perform(context).await,
        Verb::Sandbox(sandbox) => sandbox.perform(context).await,
        Verb::Service(service) => service.perform(context).await,
        Verb::Snapshot(snapshot) => snapshot.perform(context).await,
        Verb::Store(store) => store.perform(context).await,
        Verb::Session(session) => session.perform(context).await,
        Verb::Fs(fs) => fs.perform(context).await,
        Verb::Exec(execs) => execs.perform(context).await,
        Verb::Profile(profile) => profile.perform(context).await,
        Verb::Evidence(evidence) => evidence.perform(context).await,
        Verb::Grant(grant) => grant.perform(context).await,
        Verb::Confirm(confirm) => confirm.perform(context).await,
        Verb::Explain(explain) => explain.perform(context).await,
        Verb::Bench(bench) => bench.perform(context).await,
        Verb::Manual { directory } => {
            crate::manual::write(Cli::command(), "1", &directory).map(|()| 0).map_err(CtlError::Write)
        }
    };
    done.unwrap_or_else(|error| {
        error.say(context);
        EXIT_OURS
    })
}

async fn interruptible(work: impl Future<Output = u8>, context: &Context) -> u8 {
    let listen = || Ok((signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?));
    let (mut interrupt, mut terminate) = match listen() {
        Ok(both) => both,
        Err(error) => {
            CtlError::Start(error).say(context);
            return EXIT_OURS;
        }
    };
    tokio::select! {
        code = work => code,
        _ = interrupt.recv() => EXIT_INTERRUPTED,
        _ = terminate.recv() => EXIT_INTERRUPTED,
    }
}

/// Does something that may block where a signal can still be heard.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        // Only a panic gets here: nobody aborts the task while we wait for it.
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::wire::ErrorAnswer;
    use output::Style;
    use std::io::{self, Read, Write};
    use std::os::unix::net::UnixListener;
    use std::sync::{Arc, Mutex};
    use std::thread::{JoinHandle, spawn};

    /// A stream that is kept.
    #[derive(Clone, Default)]
    struct Kept(Arc<Mutex<Vec<u8>>>);

    impl Write for Kept {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().expect("no panic while held").extend(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// A daemon that gives one caller one answer and returns what it was asked.
    fn daemon(socket: &std::path::Path, answer: String) -> JoinHandle<String> {
        let listener = UnixListener::bind(socket).expect("a socket");
        spawn(move || {
            let (mut caller, _) = listener.accept().expect("a caller");
            let (mut asked, mut chunk) = (Vec::new(), [0; 4096]);
            loop {
                let text = String::from_utf8_lossy(&asked).to_lowercase();
                let length = text.split("content-length: ").nth(1).and_then(|rest| rest.lines().next()?.parse().ok());
                if text.split_once("\r\n\r\n").is_some_and(|(_, body)| body.len() >= length.unwrap_or(0)) {
                    break;
                }
                let count = caller.read(&mut chunk).expect("a request");
                assert_ne!(count, 0, "the caller hung up");
                asked.extend(&chunk[..count]);
            }
            caller.write_all(answer.as_bytes()).expect("an answer");
            String::from_utf8(asked).expect("JSON")
        })
    }

    fn http(status: &str, body: &str) -> String {
        format!("HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}", body.len())
    }

    /// Exit code, standard output, standard error, and what the daemon was asked.
    fn sandboxctl(words: &[&str], answer: Option<String>) -> (u8, Vec<u8>, String, String) {
        let dir = tempfile::tempdir().expect("a directory");
        let socket = dir.path().join("s");
        let daemon = answer.map(|answer| daemon(&socket, answer));
        let cli = Cli::try_parse_from(std::iter::once(&"sandboxctl").chain(words)).expect("a good command line");
        let (out, err) = (Kept::default(), Kept::default());
        let context = Context {
            client: Client::new(&socket),
            form: if cli.json { Form::Json } else { Form::Text },
            out: Stream::new(out.clone(), Style::PLAIN),
            err: Stream::new(err.clone(), Style::PLAIN),
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let code = runtime.block_on(perform(cli.verb, &context));
        let asked = daemon.map(|daemon| daemon.join().expect("no panic")).unwrap_or_default();
        let kept = |stream: Kept| stream.0.lock().expect("no panic while held").clone();
        (code, kept(out), String::from_utf8(kept(err)).expect("words"), asked)
    }

    const ANSWER: &str = r#"{"exec_id":"ex_1","profile":"strict","status":"nonzero_exit","exit_code":3,"signal":null,
        "stdout_base64":"/wA=","stderr":"oh","stdout_truncated":false,"stderr_truncated":true,"from_the_future":1,
        "usage":{"wall_ms":3,"cpu_ms":1,"memory_peak_bytes":null,"pids_peak":1,"bytes_in":0,"bytes_out":4},"limits_hit":[],
        "enforcement":{"namespaces":["user"],"landlock":{"abi":7,"status":"full"},"seccomp":{"filter":"default","hash":"00"},
        "cgroup":{"mode":"v2","controllers":["memory"]},"privileges":"full","workspace":"tmpfs","degraded":[]}}"#;

    #[test]
    fn the_command_line_is_consistent() {
        <Cli as clap::CommandFactory>::command().debug_assert();
    }

    #[test]
    fn run_passes_the_programs_bytes_and_exit_code_on() {
        let words = ["run", "--profile", "strict", "--", "ls", "--json", "--", "-v"];
        let (code, out, err, asked) = sandboxctl(&words, Some(http("200 OK", ANSWER)));
        assert_eq!((code, out.as_slice()), (3, &[0xff, 0][..]));
        assert_eq!(err, "oh\nsandboxctl: stderr was cut: more was written than is kept\n");
        assert!(asked.starts_with("POST /v1/execs HTTP/1.1\r\n"), "{asked}");
        let (_, body) = asked.split_once("\r\n\r\n").expect("a body");
        let request: crate::model::ExecRequest = serde_json::from_str(body).expect("a request");
        assert_eq!(request.exec.command.as_deref(), Some("ls"));
        assert_eq!(request.exec.args, ["--json", "--", "-v"], "what follows the program is the program's");
    }

    #[test]
    fn json_is_passed_on_as_it_came() {
        let (code, out, err, _) = sandboxctl(&["run", "--json", "true"], Some(http("200 OK", ANSWER)));
        assert_eq!((code, out, err.as_str()), (3, format!("{ANSWER}\n").into_bytes(), ""));
    }

    #[test]
    fn a_refusal_is_said_with_field_and_hint_and_is_125() {
        let body = r#"{"error":{"code":"override_widens","class":"POLICY.DENY_TOOL","message":"timeout_ms asks for more",
            "details":{"field":"timeout_ms","permitted":60000},"retryable":false,"request_id":"rq_1"}}"#;
        let answer = http("403 Forbidden", body);
        let (code, out, err, _) = sandboxctl(&["python", "--timeout", "2h", "-c", "pass"], Some(answer.clone()));
        assert_eq!((code, out.len()), (EXIT_OURS, 0));
        assert_eq!(
            err,
            "sandboxctl: timeout_ms asks for more (override_widens)\n  field: timeout_ms (--timeout)\n  permitted: 60000\n"
        );
        let (code, out, _, _) = sandboxctl(&["shell", "--json", "-c", "true"], Some(answer));
        assert_eq!((code, out), (EXIT_OURS, format!("{body}\n").into_bytes()));
    }

    #[test]
    fn a_daemon_that_is_not_there_is_named_with_the_cure() {
        let (code, out, err, _) = sandboxctl(&["health", "--json"], None);
        assert_eq!(code, EXIT_OURS);
        assert!(
            err.starts_with("sandboxctl: can't reach sandboxd on ") && err.contains("(daemon_unreachable)"),
            "{err}"
        );
        assert!(err.contains("hint: is it running?"), "{err}");
        let answer: ErrorAnswer = serde_json::from_slice(&out).expect("an error as JSON");
        assert_eq!(answer.error.code, "daemon_unreachable");
        let (code, out, err, _) = sandboxctl(&["doctor"], None);
        let out = String::from_utf8(out).expect("words");
        assert_eq!((code, err.as_str()), (1, ""));
        assert!(out.contains("failed   daemon") && out.contains("cure: is it running?"), "{out}");
    }

    #[test]
    fn a_daemon_that_dies_is_an_error_not_a_hang() {
        let cut = http("200 OK", ANSWER).split_at(120).0.to_owned();
        for answer in [String::new(), cut] {
            let (code, out, err, _) = sandboxctl(&["run", "true"], Some(answer));
            assert_eq!((code, out.len()), (EXIT_OURS, 0));
            assert!(err.contains("(daemon_hung_up)"), "{err}");
        }
    }
}
