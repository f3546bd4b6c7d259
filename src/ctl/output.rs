//! What people see: streams that know whether they are a terminal, amounts in words, errors with their cure.
//!
//! Words that came from elsewhere go through [`plain`], so that a message can't move the reader's cursor. What the
//! sandboxed program wrote does not: it is passed on byte for byte, like any other program's output.
#![forbid(unsafe_code)]

use crate::api::wire::ErrorBody;
use crate::ctl::CtlError;
use serde_json::Value;
use std::io::{self, IsTerminal, Write};
use std::sync::{Arc, Mutex, PoisonError};

/// How a stream likes to be written to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Style {
    /// Whether a person is looking.
    pub terminal: bool,
    /// Whether colour is welcome.
    pub colour: bool,
}

impl Style {
    /// For files, pipes and tests.
    pub const PLAIN: Style = Style { terminal: false, colour: false };

    fn of(terminal: bool) -> Self {
        // https://no-color.org: set and not empty, whatever the value.
        let unwanted = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let dumb = std::env::var_os("TERM").is_some_and(|value| value == "dumb");
        Self { terminal, colour: terminal && !unwanted && !dumb }
    }

    /// `text` in `colour`, if colour is welcome.
    #[must_use]
    pub fn paint(self, colour: Colour, text: &str) -> String {
        if self.colour { format!("\x1b[{}m{text}\x1b[0m", colour as u8) } else { text.to_owned() }
    }
}

/// The colours we use, by their number in an SGR sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Colour {
    /// Emphasis.
    Bold = 1,
    /// Does not work.
    Red = 31,
    /// As it should be.
    Green = 32,
    /// Less than it could be.
    Yellow = 33,
}

/// One of our two output streams. Clones write to the same place.
#[derive(Clone)]
pub struct Stream {
    sink: Arc<Mutex<Box<dyn Write + Send>>>,
    /// How it likes to be written to.
    pub style: Style,
}

impl Stream {
    /// Our standard output.
    #[must_use]
    pub fn stdout() -> Self {
        Self::new(io::stdout(), Style::of(io::stdout().is_terminal()))
    }

    /// Our standard error.
    #[must_use]
    pub fn stderr() -> Self {
        Self::new(io::stderr(), Style::of(io::stderr().is_terminal()))
    }

    /// A stream into `sink`.
    pub fn new(sink: impl Write + Send + 'static, style: Style) -> Self {
        Self { sink: Arc::new(Mutex::new(Box::new(sink))), style }
    }

    /// Writes all of `bytes`. A reader that went away (`| head`) has seen enough, and that is not an error.
    pub fn write(&self, bytes: &[u8]) -> Result<(), CtlError> {
        let mut sink = self.sink.lock().unwrap_or_else(PoisonError::into_inner);
        match sink.write_all(bytes).and_then(|()| sink.flush()) {
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(CtlError::Write(error)),
            _ => Ok(()),
        }
    }

    /// Writes one line.
    pub fn line(&self, text: &str) -> Result<(), CtlError> {
        self.write(format!("{text}\n").as_bytes())
    }

    /// Writes one line under our name, for whoever reads it between the program's own.
    pub fn note(&self, text: &str) -> Result<(), CtlError> {
        self.line(&format!("{} {}", self.style.paint(Colour::Bold, "sandboxctl:"), plain(text)))
    }

    /// Writes an answer as it came, as one document.
    pub fn json(&self, raw: &[u8]) -> Result<(), CtlError> {
        let mut document = raw.trim_ascii_end().to_vec();
        document.push(b'\n');
        self.write(&document)
    }
}

/// Writes rows under each other, each column as wide as its widest word; the last is as wide as it likes.
pub fn table<const N: usize>(out: &Stream, rows: &[[String; N]]) -> Result<(), CtlError> {
    let shown: Vec<[String; N]> = rows.iter().map(|row| row.each_ref().map(|word| plain(word))).collect();
    let width = |column: usize| shown.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: [usize; N] = std::array::from_fn(width);
    for row in &shown {
        let cells = row.iter().zip(widths).map(|(word, width)| format!("{word:<width$}"));
        out.line(cells.collect::<Vec<_>>().join("  ").trim_end())?;
    }
    Ok(())
}

/// `text` with control characters made visible.
#[must_use]
pub fn plain(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for character in text.chars() {
        // Besides the C0 and C1 controls: marks that turn the direction of what follows.
        if character.is_control() || matches!(character, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}') {
            shown.extend(character.escape_default());
        } else {
            shown.push(character);
        }
    }
    shown
}

/// An amount of bytes, short enough to be read at a glance.
#[must_use]
pub fn bytes(amount: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if amount < 1024 {
        return format!("{amount} B");
    }
    // Tenths in whole numbers, rounded down: a peak just below a limit must not read as the limit.
    let mut power = 0;
    while power + 1 < UNITS.len() && amount >> (10 * (power + 2)) > 0 {
        power += 1;
    }
    let tenths = (u128::from(amount) * 10) >> (10 * (power + 1));
    format!("{} {}", in_tenths(tenths), UNITS[power])
}

/// A span of time, likewise.
#[must_use]
pub fn millis(amount: u64) -> String {
    match amount {
        0..1000 => format!("{amount} ms"),
        1000..60_000 => format!("{} s", in_tenths(u128::from(amount / 100))),
        _ => {
            let (minutes, seconds) = (amount / 60_000, amount % 60_000 / 1000);
            if seconds == 0 { format!("{minutes} min") } else { format!("{minutes} min {seconds} s") }
        }
    }
}

fn in_tenths(tenths: u128) -> String {
    if tenths.is_multiple_of(10) { (tenths / 10).to_string() } else { format!("{}.{}", tenths / 10, tenths % 10) }
}

/// An error as people read it: the message with its code, then one indented line for each detail.
#[must_use]
pub fn error_lines(error: &ErrorBody, hint: Option<&str>, style: Style) -> Vec<String> {
    let name = style.paint(Colour::Red, "sandboxctl:");
    let mut lines = vec![format!("{name} {} ({})", plain(&error.message), plain(&error.code))];
    let mut hint = hint.map(str::to_owned);
    for (key, value) in error.details.as_object().into_iter().flatten() {
        let words = plain(&detail(value));
        match key.as_str() {
            _ if words.is_empty() => {}
            "hint" | "cure" => hint = Some(words),
            "field" => lines.push(match flag_for(&words) {
                Some(flag) => format!("  field: {words} ({flag})"),
                None => format!("  field: {words}"),
            }),
            "retry_after_ms" => lines.push(format!("  try again in: {words} ms")),
            // A reason that the message has given already is not repeated.
            _ if !error.message.contains(&words) => lines.push(format!("  {}: {words}", plain(key))),
            _ => {}
        }
    }
    lines.extend(hint.filter(|hint| !error.message.contains(hint.as_str())).map(|hint| format!("  hint: {hint}")));
    let ours = matches!(error.class.as_str(), "UNKNOWN.INTERNAL" | "TOOL.EXECUTION_FAILED");
    if ours && !error.request_id.is_empty() {
        lines.push(format!("  in the daemon's log: {}", plain(&error.request_id)));
    }
    lines
}

fn detail(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        Value::Array(items) => items.iter().map(detail).collect::<Vec<_>>().join(", "),
        other => other.to_string(),
    }
}

/// The flag that sets a field of the request.
fn flag_for(field: &str) -> Option<&'static str> {
    const FLAGS: &[(&str, &str)] = &[
        ("session", "--session"),
        ("profile", "--profile"),
        ("project_id", "--project"),
        ("timeout_ms", "--timeout"),
        ("policy_overrides.limits.wall_ms", "--timeout"),
        ("policy_overrides.limits.cpu_ms", "--cpu-time"),
        ("policy_overrides.limits.memory_bytes", "--memory"),
        ("policy_overrides.limits.pids", "--pids"),
        ("exec.cwd", "--cwd"),
        ("exec.env", "--env"),
        ("inputs", "--input"),
        ("stdin", "--stdin"),
        ("stdin_base64", "--stdin"),
    ];
    // A field may go on: inputs[0].path, exec.env.LANG.
    let names =
        |name: &str| field.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']));
    FLAGS.iter().find(|(name, _)| names(name)).map(|&(_, flag)| flag)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn refusal(message: &str, details: Value) -> ErrorBody {
        ErrorBody {
            code: "invalid_field".to_owned(),
            class: "SCHEMA.VALIDATION_FAILED".to_owned(),
            message: message.to_owned(),
            details,
            retryable: false,
            request_id: "rq_1".to_owned(),
        }
    }

    #[test]
    fn an_error_names_code_field_flag_and_hint() {
        let body =
            refusal("no such directory", json!({"field": "exec.cwd", "hint": "make it first", "known": ["a", "b"]}));
        assert_eq!(
            error_lines(&body, None, Style::PLAIN),
            [
                "sandboxctl: no such directory (invalid_field)",
                "  field: exec.cwd (--cwd)",
                "  known: a, b",
                "  hint: make it first",
            ]
        );
    }

    #[test]
    fn an_error_without_details_is_one_line() {
        assert_eq!(error_lines(&refusal("no", Value::Null), None, Style::PLAIN), ["sandboxctl: no (invalid_field)"]);
    }

    #[test]
    fn our_own_fault_names_the_request_for_the_log() {
        let body = ErrorBody { class: "UNKNOWN.INTERNAL".to_owned(), ..refusal("oops", json!({})) };
        assert_eq!(error_lines(&body, None, Style::PLAIN)[1], "  in the daemon's log: rq_1");
    }

    #[test]
    fn fields_find_their_flag() {
        for (field, flag) in [
            ("inputs[3].path", Some("--input")),
            ("exec.env.LANG", Some("--env")),
            ("policy_overrides.limits.memory_bytes", Some("--memory")),
            ("profile", Some("--profile")),
            ("profiles", None),
            ("exec.command", None),
        ] {
            assert_eq!(flag_for(field), flag, "{field}");
        }
    }

    #[test]
    fn a_message_can_not_steer_the_terminal() {
        assert_eq!(plain("a\x1b[2Jb\nc\u{9b}d\u{202e}e"), "a\\u{1b}[2Jb\\nc\\u{9b}d\\u{202e}e");
        assert_eq!(plain("Grüße ✓"), "Grüße ✓");
    }

    #[test]
    fn amounts_are_short() {
        for (amount, words) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1 KiB"),
            (1_400_832, "1.3 MiB"),
            (268_435_455, "255.9 MiB"),
            (268_435_456, "256 MiB"),
            (u64::MAX, "16383.9 PiB"),
        ] {
            assert_eq!(bytes(amount), words);
        }
        for (amount, words) in [(3, "3 ms"), (1000, "1 s"), (1550, "1.5 s"), (60_000, "1 min"), (90_000, "1 min 30 s")]
        {
            assert_eq!(millis(amount), words);
        }
    }

    #[test]
    fn colour_is_only_for_those_who_want_it() {
        assert_eq!(Style::PLAIN.paint(Colour::Red, "x"), "x");
        assert_eq!(Style { terminal: true, colour: true }.paint(Colour::Red, "x"), "\x1b[31mx\x1b[0m");
    }

    #[test]
    fn a_reader_that_went_away_is_not_an_error() {
        struct Gone(io::ErrorKind);
        impl Write for Gone {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                Err(self.0.into())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        assert!(Stream::new(Gone(io::ErrorKind::BrokenPipe), Style::PLAIN).write(b"x").is_ok());
        assert!(Stream::new(Gone(io::ErrorKind::StorageFull), Style::PLAIN).write(b"x").is_err());
    }
}
