//! From the wire's words to a program: every check that needs no profile but its environment.

use super::permit::{InputFile, Program};
use super::refusal::Refusal;
use crate::model::{ExecRequest, Input, Kind, Mode, Tty};
use crate::profile::Profile;
use crate::terms::path;
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use std::collections::BTreeMap;

/// Most input files of one request.
const INPUTS_MAX: usize = 1024;
/// Longest code: it travels as one argument, of which the kernel takes 128 KiB with its NUL.
const CODE_MAX: usize = 128 * 1024 - 1;
/// What a program at a terminal is told that it is, if nobody says otherwise.
const TERMINAL: &str = "xterm-256color";
/// Longest name of a variable.
const ENV_NAME_MAX: usize = 256;

pub(super) fn invalid(field: impl Into<String>, problem: impl ToString) -> Refusal {
    Refusal::InvalidField { field: field.into(), problem: problem.to_string() }
}

/// The program of a request under a profile's environment.
pub(super) fn read(profile: &Profile, request: &ExecRequest) -> Result<Program, Refusal> {
    let (command, argv) = program(request)?;
    Ok(Program {
        kind: request.exec.kind,
        command,
        argv,
        env: environment(profile, request)?,
        cwd: working_directory(request.exec.cwd.as_deref())?,
        stdin: standard_input(request)?,
        stdin_open: stays_open(request)?,
        tty: terminal(request)?,
        inputs: inputs(&request.inputs)?,
    })
}

fn program(request: &ExecRequest) -> Result<(String, Vec<String>), Refusal> {
    let exec = &request.exec;
    let (interpreter, flag) = match exec.kind {
        Kind::Python => ("python3", "-c"),
        Kind::Shell => ("bash", "-c"),
        Kind::Process => {
            if exec.code.is_some() {
                return Err(invalid("exec.code", "kind \"process\" takes command and args"));
            }
            let command = exec.command.clone().ok_or_else(|| invalid("exec.command", "missing: what to execute"))?;
            if command.is_empty() {
                return Err(invalid("exec.command", "empty: name a program"));
            }
            let argv = std::iter::once(command.clone()).chain(exec.args.iter().cloned()).collect();
            return Ok((command, argv));
        }
    };
    if exec.command.is_some() {
        return Err(invalid(
            "exec.command",
            "kind \"python\" and \"shell\" bring their own interpreter; use code or args",
        ));
    }
    let mut argv = vec![interpreter.to_owned()];
    match &exec.code {
        Some(code) if code.contains('\0') => return Err(invalid("exec.code", "contains a NUL byte")),
        Some(code) if code.len() > CODE_MAX => {
            let problem = "longer than 128 KiB; send it in inputs and run it with args";
            return Err(invalid("exec.code", problem));
        }
        Some(code) => {
            argv.extend([flag.to_owned(), code.clone()]);
            if exec.kind == Kind::Shell && !exec.args.is_empty() {
                argv.push(interpreter.to_owned()); // bash -c takes $0 before its arguments
            }
        }
        // At a terminal an interpreter without code is a prompt.
        None if exec.args.is_empty() && request.tty.is_none() => {
            return Err(invalid("exec.code", "missing: the code, or args for the interpreter"));
        }
        None => {}
    }
    argv.extend(exec.args.iter().cloned());
    Ok((interpreter.to_owned(), argv))
}

fn environment(profile: &Profile, request: &ExecRequest) -> Result<BTreeMap<String, String>, Refusal> {
    let mut env = profile.env.clone();
    if request.tty.is_some() {
        env.entry("TERM".to_owned()).or_insert_with(|| TERMINAL.to_owned());
    }
    for (name, value) in &request.exec.env {
        let plain = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
        let named = !name.is_empty() && name.len() <= ENV_NAME_MAX && name.bytes().all(plain);
        if !named || name.as_bytes()[0].is_ascii_digit() {
            return Err(invalid("exec.env", "a name has letters, digits and _ and does not begin with a digit"));
        }
        if value.contains('\0') {
            return Err(invalid(format!("exec.env.{name}"), "contains a NUL byte"));
        }
        env.insert(name.clone(), value.clone());
    }
    Ok(env)
}

fn working_directory(cwd: Option<&str>) -> Result<String, Refusal> {
    let Some(cwd) = cwd else { return Ok(String::new()) };
    let field = "exec.cwd".to_owned();
    let normal = path::normalise(cwd).map_err(|reason| Refusal::InvalidPath { field, reason })?;
    Ok(if normal == "." { String::new() } else { normal })
}

/// Content given as text or as base64, under the two names it has on the wire.
fn decoded(names: [String; 2], text: Option<&String>, base64: Option<&String>) -> Result<Option<Vec<u8>>, Refusal> {
    let [text_field, base64_field] = names;
    match (text, base64) {
        (Some(_), Some(_)) => Err(invalid(base64_field, format!("given beside {text_field}; choose one"))),
        (Some(text), None) => Ok(Some(text.clone().into_bytes())),
        (None, Some(encoded)) => BASE64.decode(encoded).map(Some).map_err(|error| invalid(base64_field, error)),
        (None, None) => Ok(None),
    }
}

fn standard_input(request: &ExecRequest) -> Result<Vec<u8>, Refusal> {
    let names = ["stdin", "stdin_base64"].map(str::to_owned);
    decoded(names, request.stdin.as_ref(), request.stdin_base64.as_ref()).map(Option::unwrap_or_default)
}

/// Whether more standard input may come: at a terminal always, else as asked for; in the background also where nothing
/// is given and nothing is said.
fn stays_open(request: &ExecRequest) -> Result<bool, Refusal> {
    let given = request.stdin.is_some() || request.stdin_base64.is_some();
    match (request.mode, request.stdin_open) {
        (Mode::Wait, Some(true)) => Err(invalid("stdin_open", "nobody can send more while the caller waits")),
        (Mode::Wait, _) => Ok(false),
        (_, Some(false)) if request.tty.is_some() => Err(invalid("stdin_open", "a terminal stays open")),
        (_, Some(open)) => Ok(open),
        (Mode::Background, None) => Ok(request.tty.is_some() || !given),
        (Mode::Stream, None) => Ok(request.tty.is_some()),
    }
}

fn terminal(request: &ExecRequest) -> Result<Option<Tty>, Refusal> {
    match (request.mode, request.tty) {
        (_, None) => Ok(None),
        (Mode::Wait, Some(_)) => Err(invalid("tty", "a terminal needs mode background or stream")),
        (_, Some(tty)) if !tty.is_sane() => Err(invalid("tty", format!("cols and rows are 1 to {}", Tty::MOST))),
        (_, Some(_)) if request.stdin.is_some() || request.stdin_base64.is_some() => {
            Err(invalid("tty", "what is typed comes later, by attach or stdin; give no stdin here"))
        }
        (_, tty) => Ok(tty),
    }
}

fn inputs(asked: &[Input]) -> Result<Vec<InputFile>, Refusal> {
    if asked.len() > INPUTS_MAX {
        return Err(invalid("inputs", format!("more than {INPUTS_MAX} files")));
    }
    let mut files: Vec<InputFile> = Vec::with_capacity(asked.len());
    for (place, input) in asked.iter().enumerate() {
        let field = format!("inputs[{place}].path");
        let path = match path::normalise(&input.path) {
            Ok(path) if path == "." => return Err(invalid(field, "names the area, not a file in it")),
            Ok(path) => path,
            Err(reason) => return Err(Refusal::InvalidPath { field, reason }),
        };
        if files.iter().any(|file| file.path == path) {
            return Err(invalid(field, "the same file twice"));
        }
        let names = ["text", "base64"].map(|name| format!("inputs[{place}].{name}"));
        let content = decoded(names, input.text.as_ref(), input.base64.as_ref())?
            .ok_or_else(|| invalid(format!("inputs[{place}]"), "has neither text nor base64"))?;
        files.push(InputFile { path, content });
    }
    Ok(files)
}
