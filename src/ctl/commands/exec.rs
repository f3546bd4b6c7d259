//! What `run`, `python` and `shell` share: flags that become a request, one call, and its answer shown.
#![forbid(unsafe_code)]

use super::{amount, answer, attach, explain, plain_id};
use crate::api::wire::{ExecAnswer, LaunchedAnswer, SandboxAnswer, SandboxExecRequest};
use crate::ctl::client::Answer;
use crate::ctl::output::plain;
use crate::ctl::{Context, CtlError, Form, blocking};
use crate::model::{DEFAULT_PROFILE, ExecRequest, ExecSpec, Input, Kind, Limit, Mode, PolicyOverrides};
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use std::collections::BTreeMap;
use std::io::{self, IsTerminal, Read};
use std::path::{Path, PathBuf};

/// Below the help of each of the three.
pub const EXIT_CODES: &str = "\
Exit code: the program's own, or
  125      sandboxctl or sandboxd could not or would not run it
  126 127  it can't be executed, it is not there
  124      its time is up (152: its processor time)
  130      interrupted or cancelled
  137      out of memory
  128 + N  ended by signal N";

/// Flags that every exec takes. A limit may only be narrower than the profile's.
#[derive(Debug, clap::Args)]
pub struct ExecFlags {
    /// Profile to run under
    #[arg(long, value_name = "PROFILE", default_value = DEFAULT_PROFILE)]
    profile: String,

    /// Wall-clock limit: 10s, 500ms, 2m, or a number of milliseconds
    #[arg(long, value_name = "TIME", value_parser = amount::duration_ms)]
    timeout: Option<u64>,

    /// Memory limit of all processes together: 256M, 1.5G, or a number of bytes
    #[arg(long, value_name = "SIZE", value_parser = amount::size_bytes)]
    memory: Option<u64>,

    /// Most processes and threads at once
    #[arg(long, value_name = "N")]
    pids: Option<u64>,

    /// Limit of processor time of all processes together, written like --timeout
    #[arg(long, value_name = "TIME", value_parser = amount::duration_ms)]
    cpu_time: Option<u64>,

    /// Project whose workspace is used and kept; without one, all files are thrown away
    #[arg(long, value_name = "ID")]
    project: Option<String>,

    /// Run in this sandbox (sb_…), under its profile and in its workspace
    #[arg(long, value_name = "ID", conflicts_with_all = ["profile", "project"])]
    sandbox: Option<String>,

    /// Python and shell: keep the interpreter under this name between calls; prints the last expression's value
    #[arg(long, value_name = "NAME", requires = "sandbox")]
    session: Option<String>,

    /// Grant to run under
    #[arg(long, value_name = "GRANT")]
    grant: Option<String>,

    /// Directory to start in, below /workspace/work
    #[arg(long, value_name = "DIR")]
    cwd: Option<String>,

    /// Set a variable of the environment; can be given many times
    #[arg(long, value_name = "K=V", value_parser = variable)]
    env: Vec<(String, String)>,

    /// Lay a local file down in /workspace/inputs, as PATH if given; can be given many times
    #[arg(long, value_name = "LOCALFILE[:PATH]")]
    input: Vec<String>,

    /// Read our standard input to its end and give it to the program
    #[arg(long, short = 'i')]
    stdin: bool,

    /// Give the program a terminal: ours. With -i, as in `shell -it`. Ctrl-P Ctrl-Q leaves it running
    #[arg(long, short = 't')]
    tty: bool,

    /// Say on standard error what was used and what was enforced
    #[arg(long, short = 'v')]
    verbose: bool,
}

/// Where the code of `python` and `shell` comes from.
#[derive(Debug, clap::Args)]
pub struct CodeFlags {
    /// The code itself
    #[arg(short = 'c', long = "code", value_name = "CODE", conflicts_with = "file", allow_hyphen_values = true)]
    code: Option<String>,

    /// Local file with the code; - for standard input
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,

    /// Arguments for the code
    #[arg(last = true, value_name = "ARG")]
    args: Vec<String>,
}

/// What the words of an exec are for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// To run it.
    Run,
    /// To hear what would be said to it.
    Explain,
}

/// What is to be run, once it is known.
#[derive(Debug)]
pub struct Program {
    /// What kind of code it is.
    pub kind: Kind,
    /// The program of a process.
    pub command: Option<String>,
    /// The code of the other kinds.
    pub code: Option<String>,
    /// Its arguments.
    pub args: Vec<String>,
}

/// Standard input, which can be used for one thing only.
pub struct Stdin<'a> {
    source: &'a mut dyn Read,
    /// Whether it is promised to the program.
    promised: bool,
    /// Whether a person sits at it.
    terminal: bool,
    /// Whether the program sits at it, too.
    shared: bool,
}

impl Stdin<'_> {
    fn read_code(&mut self) -> Result<String, CtlError> {
        if self.promised || self.shared {
            return Err(CtlError::StdinTwice);
        }
        io::read_to_string(&mut self.source).map_err(CtlError::ReadStdin)
    }
}

impl CodeFlags {
    /// Gets the code from where it is.
    pub fn program(self, kind: Kind, stdin: &mut Stdin<'_>) -> Result<Program, CtlError> {
        let code = match (self.code, self.file) {
            (Some(code), _) => code,
            (None, Some(path)) if path == Path::new("-") => stdin.read_code()?,
            (None, Some(path)) => {
                std::fs::read_to_string(&path).map_err(|source| CtlError::ReadFile { path, source })?
            }
            // Two at a terminal: an interpreter's prompt.
            (None, None) if stdin.shared => return Ok(Program { kind, command: None, code: None, args: self.args }),
            // `generate | sandboxctl python` means what it means for python3; on a terminal it is an oversight.
            (None, None) if stdin.terminal || stdin.promised => return Err(CtlError::NoCode),
            (None, None) => stdin.read_code()?,
        };
        Ok(Program { kind, command: None, code: Some(code), args: self.args })
    }
}

impl ExecFlags {
    fn request(self, program: Program, stdin: &mut Stdin<'_>) -> Result<ExecRequest, CtlError> {
        let mut given = Vec::new();
        if self.stdin && !self.tty {
            stdin.source.read_to_end(&mut given).map_err(CtlError::ReadStdin)?;
        }
        let limits = [(Limit::MemoryBytes, self.memory), (Limit::Pids, self.pids), (Limit::CpuMs, self.cpu_time)];
        let limits =
            limits.into_iter().filter_map(|(limit, amount)| Some((limit.name().to_owned(), amount?))).collect();
        Ok(ExecRequest {
            profile: self.profile,
            project_id: self.project,
            skill_id: None,
            task_ref: None,
            grant_id: self.grant,
            call_id: None,
            mode: if self.tty { Mode::Background } else { Mode::Wait },
            timeout_ms: self.timeout,
            stdin: None,
            stdin_base64: (self.stdin && !self.tty).then(|| BASE64.encode(&given)),
            stdin_open: None,
            tty: self.tty.then(|| attach::our_size().unwrap_or_default()),
            exec: ExecSpec {
                kind: program.kind,
                command: program.command,
                args: program.args,
                code: program.code,
                cwd: self.cwd,
                env: self.env.into_iter().collect::<BTreeMap<_, _>>(),
            },
            inputs: self.input.iter().map(|text| input(text)).collect::<Result<_, _>>()?,
            policy_overrides: PolicyOverrides { limits, ..PolicyOverrides::default() },
            report: None,
        })
    }
}

/// Asks for one exec, waits for its end and shows it. `program` may read the code from standard input.
pub async fn execute(
    context: &Context,
    purpose: Purpose,
    flags: ExecFlags,
    program: impl FnOnce(&mut Stdin<'_>) -> Result<Program, CtlError> + Send + 'static,
) -> Result<u8, CtlError> {
    let (verbose, tty) = (flags.verbose, flags.tty);
    if tty && purpose == Purpose::Run {
        attach::need_terminal()?;
    }
    let (sandbox, session) = (flags.sandbox.clone(), flags.session.clone());
    let mut request = blocking(move || {
        let terminal = io::stdin().is_terminal();
        let mut stdin = Stdin { source: &mut io::stdin().lock(), promised: flags.stdin, terminal, shared: flags.tty };
        let program = program(&mut stdin)?;
        flags.request(program, &mut stdin)
    })
    .await?;
    if purpose == Purpose::Explain {
        if let Some(id) = &sandbox {
            let found = context.client.get::<SandboxAnswer>(&format!("/v1/sandboxes/{}", plain_id(id))).await?;
            (request.profile, request.project_id) = (found.value.profile, Some(found.value.project_id));
        }
        return explain::ask(context, &request).await;
    }
    let path = match &sandbox {
        None => "/v1/execs".to_owned(),
        Some(id) => {
            let kind = match request.exec.kind {
                Kind::Python => "python",
                Kind::Shell => "shell",
                Kind::Process => "process",
            };
            format!("/v1/sandboxes/{}/{kind}/exec", plain_id(id))
        }
    };
    if tty {
        let launched: Answer<LaunchedAnswer> = match &sandbox {
            None => context.client.post(&path, &request).await?,
            Some(_) => context.client.post(&path, &in_sandbox(request.clone(), session)).await?,
        };
        return attach::sit_at(context, &launched.value.exec_id, 0, attach::Hold::Ours).await;
    }
    let answer: Answer<ExecAnswer> = match &sandbox {
        None => context.client.post(&path, &request).await?,
        Some(_) => context.client.post(&path, &in_sandbox(request.clone(), session)).await?,
    };
    let code = answer::exit_code(&answer.value);
    let program = request.exec.command.unwrap_or_else(|| "the interpreter".to_owned());
    let context = context.clone();
    // A reader like `less` may take its time.
    blocking(move || show(&context, &answer, &program, verbose)).await?;
    Ok(code)
}

fn show(context: &Context, answer: &Answer<ExecAnswer>, program: &str, verbose: bool) -> Result<(), CtlError> {
    let mut notes = Vec::new();
    match context.form {
        Form::Json => context.out.json(&answer.raw)?,
        Form::Text => {
            let (stdout, stderr) = (answer::stdout(&answer.value), answer::stderr(&answer.value));
            context.out.write(&stdout)?;
            context.err.write(&stderr)?;
            if let Some(value) = answer.value.session.as_ref().and_then(|session| session.value.as_ref()) {
                context.out.line(&plain(value))?;
            }
            notes.extend(answer::notes(&answer.value, program));
            // Our words begin on a line of their own, but nothing is added to output that we have no words about.
            let seen = if context.out.style.terminal && stderr.is_empty() { &stdout } else { &stderr };
            if (verbose || !notes.is_empty()) && seen.last().is_some_and(|&last| last != b'\n') {
                context.err.write(b"\n")?;
            }
        }
    }
    if verbose {
        notes.extend(answer::summary(&answer.value));
    }
    notes.iter().try_for_each(|note| context.err.note(note))
}

/// The same exec as one of a sandbox.
fn in_sandbox(request: ExecRequest, session: Option<String>) -> SandboxExecRequest {
    let ExecRequest { exec, .. } = request;
    let (code, command, argv, args) = match exec.kind {
        Kind::Python => (exec.code, None, None, exec.args),
        Kind::Shell => (None, exec.code, None, exec.args),
        Kind::Process => (None, None, Some(exec.command.into_iter().chain(exec.args).collect()), Vec::new()),
    };
    SandboxExecRequest {
        code,
        session,
        session_idle_s: None,
        command,
        argv,
        args,
        timeout_ms: request.timeout_ms,
        cwd: exec.cwd,
        env: exec.env,
        stdin: request.stdin,
        stdin_base64: request.stdin_base64,
        inputs: request.inputs,
        policy_overrides: Some(request.policy_overrides),
        task_ref: request.task_ref,
        grant_id: request.grant_id,
        call_id: request.call_id,
        report: request.report,
        mode: request.mode,
        stdin_open: request.stdin_open,
        tty: request.tty,
    }
}

pub(super) fn variable(text: &str) -> Result<(String, String), &'static str> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("write it like NAME=value"),
    }
}

/// One input file from `LOCALFILE[:PATH]`. A file whose own name has a colon is found under its own name first.
fn input(text: &str) -> Result<Input, CtlError> {
    let (local, path) = match text.rsplit_once(':') {
        Some((local, path)) if !local.is_empty() && !path.is_empty() && !Path::new(text).exists() => {
            (local, Some(path))
        }
        _ => (text, None),
    };
    let local = PathBuf::from(local);
    let named = path.or_else(|| local.file_name().and_then(|name| name.to_str())).map(str::to_owned);
    let Some(path) = named else { return Err(CtlError::UnnamedInput(local)) };
    let content = std::fs::read(&local).map_err(|source| CtlError::ReadFile { path: local, source })?;
    Ok(match String::from_utf8(content) {
        Ok(text) => Input { path, text: Some(text), base64: None },
        Err(error) => Input { path, text: None, base64: Some(BASE64.encode(error.as_bytes())) },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        flags: ExecFlags,
        #[command(flatten)]
        code: CodeFlags,
    }

    fn request(words: &[&str], mut typed: &[u8]) -> Result<ExecRequest, CtlError> {
        let line = Line::try_parse_from(std::iter::once(&"sandboxctl").chain(words)).expect("a good command line");
        let mut stdin =
            Stdin { source: &mut typed, promised: line.flags.stdin, terminal: false, shared: line.flags.tty };
        let program = line.code.program(Kind::Python, &mut stdin)?;
        line.flags.request(program, &mut stdin)
    }

    #[test]
    fn flags_become_fields_of_the_request() {
        let words = "--profile strict --timeout 10s --memory 256M --pids 8 --cpu-time 5s --project p1 --cwd src --env A=1 --env B=x=y -c pass -- a -b";
        let request = request(&words.split(' ').collect::<Vec<_>>(), b"").expect("a request");
        assert_eq!((request.profile.as_str(), request.timeout_ms), ("strict", Some(10_000)));
        let limits = &request.policy_overrides.limits;
        assert_eq!((limits["memory_bytes"], limits["pids"], limits["cpu_ms"], limits.len()), (256 << 20, 8, 5000, 3));
        assert_eq!((request.project_id.as_deref(), request.exec.cwd.as_deref()), (Some("p1"), Some("src")));
        assert_eq!((request.exec.env["A"].as_str(), request.exec.env["B"].as_str()), ("1", "x=y"));
        assert_eq!((request.exec.code.as_deref(), request.exec.args.join(" ").as_str()), (Some("pass"), "a -b"));
        assert_eq!(request.stdin_base64, None);
    }

    #[test]
    fn standard_input_is_sent_as_bytes_when_asked_for() {
        let request = request(&["-i", "-c", "pass"], &[0xff, 0]).expect("a request");
        assert_eq!(request.stdin_base64.as_deref(), Some("/wA="));
    }

    #[test]
    fn code_comes_from_a_file_a_pipe_or_a_dash() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("x.py");
        std::fs::write(&file, "from_file").expect("a file");
        let code = |words: &[&str]| request(words, b"from_stdin").expect("a request").exec.code.expect("code");
        assert_eq!(code(&[file.to_str().expect("UTF-8")]), "from_file");
        assert_eq!(code(&["-"]), "from_stdin");
        assert_eq!(code(&[]), "from_stdin");
        assert_eq!(code(&["-c", "-1"]), "-1");
    }

    #[test]
    fn standard_input_is_not_used_twice() {
        assert!(matches!(request(&["-i", "-"], b""), Err(CtlError::StdinTwice)));
        assert!(matches!(request(&["-i"], b""), Err(CtlError::NoCode)));
        assert!(Line::try_parse_from(["sandboxctl", "-c", "x", "file"]).is_err(), "code and a file");
    }

    #[test]
    fn inputs_are_named_after_their_file_or_as_told() {
        let dir = tempfile::tempdir().expect("a directory");
        let at = |name: &str| dir.path().join(name).to_str().expect("UTF-8").to_owned();
        std::fs::write(at("a.csv"), "a,b\n").expect("a file");
        std::fs::write(at("b:c.bin"), [0xff, 1]).expect("a file");
        let text = Input { path: "a.csv".to_owned(), text: Some("a,b\n".to_owned()), base64: None };
        assert_eq!(input(&at("a.csv")).expect("an input"), text);
        let renamed = Input { path: "in/x.csv".to_owned(), ..text };
        assert_eq!(input(&format!("{}:in/x.csv", at("a.csv"))).expect("an input"), renamed);
        let binary = Input { path: "b:c.bin".to_owned(), text: None, base64: Some("/wE=".to_owned()) };
        assert_eq!(input(&at("b:c.bin")).expect("an input"), binary);
        assert!(matches!(input(&at("none")), Err(CtlError::ReadFile { .. })));
        assert!(matches!(input("/"), Err(CtlError::UnnamedInput(_))));
    }

    #[test]
    fn variables_have_a_name() {
        assert_eq!(variable("A="), Ok(("A".to_owned(), String::new())));
        assert!(variable("A").is_err() && variable("=x").is_err());
    }
}
