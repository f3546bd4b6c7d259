//! A program and its arguments: the same eyes for a process, a shell command and a list given to subprocess.

use super::patterns::{self, FETCHERS, INTERPRETERS, PROGRAMS, Pattern, SHELLS, WRAPPERS};
use super::{Piece, Sink};

/// The directories in which writing is what they are for.
const SCRATCH: &[&str] = &["/tmp/", "/workspace/", "/dev/shm/", "/run/"];
/// Devices that writing to does nothing to.
const HARMLESS: &[&str] = &["/dev/null", "/dev/zero", "/dev/full", "/dev/stdout", "/dev/stderr", "/dev/tty"];

/// Adds what the words give away. A word that is made at run time is none.
pub(super) fn read(words: &[Option<String>], line: u32, sink: &mut Sink) {
    let mut rest = words;
    // Each turn takes off at least one word.
    while let Some((first, args)) = rest.split_first() {
        let Some(first) = first else {
            sink.add(&patterns::DYNAMIC_COMMAND, line);
            return;
        };
        let name = base(first);
        if let Some(pattern) = program(name) {
            sink.add(pattern, line);
        }
        special(name, args, line, sink);
        if !WRAPPERS.contains(&name) {
            return;
        }
        let skipped = args.iter().take_while(|word| word.as_deref().is_some_and(|word| is_prefix(name, word))).count();
        for assignment in args[..skipped].iter().flatten() {
            loader(assignment, line, sink);
        }
        rest = &args[skipped..];
    }
}

/// The name without its directory.
pub(super) fn base(word: &str) -> &str {
    word.rsplit('/').next().unwrap_or(word)
}

fn program(name: &str) -> Option<&'static Pattern> {
    let plain = name.split_once('.').map_or(name, |(start, _)| start); // mkfs.ext4
    PROGRAMS.iter().find(|(known, _)| *known == name || *known == plain).map(|(_, pattern)| *pattern)
}

/// Whether a wrapper's word still stands before its command.
fn is_prefix(wrapper: &str, word: &str) -> bool {
    let amount = |word: &str| word.starts_with(|first: char| first.is_ascii_digit());
    word.starts_with('-')
        || word.contains('=')
        || (matches!(wrapper, "timeout" | "nice" | "ionice" | "watch" | "xargs") && amount(word))
        || (matches!(wrapper, "flock" | "chroot") && word.starts_with('/'))
}

/// `NAME=value` before a command.
pub(super) fn loader(assignment: &str, line: u32, sink: &mut Sink) {
    if assignment.split_once('=').is_some_and(|(name, _)| patterns::LOADERS.contains(&name)) {
        sink.add(&patterns::LOADER, line);
    }
}

/// Whether a name is a shell, Python or another interpreter.
pub(super) fn is_interpreter(name: &str) -> bool {
    SHELLS.contains(&name) || is_python(name) || INTERPRETERS.contains(&name)
}

/// Whether a name fetches from the network.
pub(super) fn is_fetcher(name: &str) -> bool {
    FETCHERS.contains(&name)
}

fn is_python(name: &str) -> bool {
    name.strip_prefix("python")
        .or_else(|| name.strip_prefix("pypy"))
        .is_some_and(|rest| rest.bytes().all(|b| b.is_ascii_digit() || b == b'.'))
}

/// Whether these words decode something that was hidden.
pub(super) fn decodes(words: &[Option<String>]) -> bool {
    let Some((Some(first), args)) = words.split_first() else { return false };
    let has = |options: &[&str]| args.iter().flatten().any(|word| options.contains(&word.as_str()));
    match base(first) {
        "base64" | "base32" | "basenc" => has(&["-d", "-D", "--decode", "-di", "-id"]),
        "xxd" => has(&["-r", "-rp", "-p -r"]),
        "openssl" => has(&["-d", "-decrypt"]),
        "gunzip" | "zcat" | "uudecode" => true,
        "gzip" | "xz" | "bzip2" => has(&["-d", "-dc", "-cd", "--decompress"]),
        "rev" | "tr" => true, // rot13 and its friends
        _ => false,
    }
}

fn special(name: &str, args: &[Option<String>], line: u32, sink: &mut Sink) {
    let words = || args.iter().flatten().map(String::as_str);
    let short =
        |letter: char| words().any(|word| word.starts_with('-') && !word.starts_with("--") && word.contains(letter));
    let long = |option: &str| words().any(|word| word == option);
    match name {
        "rm" => {
            let tree = short('r') || short('R') || long("--recursive");
            let force = short('f') || long("--force");
            sink.add(if tree && force { &patterns::DELETE_TREE } else { &patterns::DELETE }, line);
        }
        "dd" => {
            let target = words().find_map(|word| word.strip_prefix("of="));
            if target.is_some_and(|path| path.starts_with("/dev/") && !HARMLESS.contains(&path)) {
                sink.add(&patterns::RAW_DEVICE, line);
            }
        }
        "chmod" => sink.add(if words().any(is_setuid) { &patterns::SETUID } else { &patterns::PERMISSIONS }, line),
        "tee" | "cp" | "mv" | "install" | "ln" => {
            let mut targets = words().filter(|word| !word.starts_with('-'));
            let target = if name == "tee" { targets.find(|path| is_outside(path)) } else { targets.next_back() };
            if target.is_some_and(is_outside) {
                sink.add(&patterns::WRITE_ABSOLUTE, line);
            }
        }
        "find" => {
            if long("-delete") {
                sink.add(&patterns::DELETE_TREE, line);
            }
            let exec = |word: &Option<String>| matches!(word.as_deref(), Some("-exec" | "-execdir" | "-ok" | "-okdir"));
            if let Some(place) = args.iter().position(exec) {
                let end = args[place..].iter().position(|word| matches!(word.as_deref(), Some(";" | "+")));
                let command = &args[place + 1..end.map_or(args.len(), |end| place + end)];
                sink.later(Piece::Words(command.to_vec()), line);
            }
        }
        "eval" => match args.iter().cloned().collect::<Option<Vec<_>>>() {
            Some(literal) if !literal.is_empty() => sink.later(Piece::Shell(literal.join(" ")), line),
            _ => {}
        },
        _ if SHELLS.contains(&name) => interpreter(args, Piece::Shell, line, sink),
        _ if is_python(name) => interpreter(args, Piece::Python, line, sink),
        _ if INTERPRETERS.contains(&name) => {
            if short('e') || short('r') || matches!(name, "awk" | "gawk" | "mawk") {
                sink.add(&patterns::INLINE_CODE, line);
            } else {
                sink.add(&patterns::UNSEEN, line);
            }
        }
        _ => {}
    }
}

/// `sh -c code`, `python3 -c code`, or a file.
fn interpreter(args: &[Option<String>], piece: fn(String) -> Piece, line: u32, sink: &mut Sink) {
    let option = |word: &Option<String>| {
        word.as_deref().is_some_and(|word| word.starts_with('-') && !word.starts_with("--") && word.contains('c'))
    };
    let code = args.iter().position(option).map(|place| args.get(place + 1));
    match code {
        Some(Some(Some(code))) => sink.later(piece(code.clone()), line),
        Some(Some(None)) => sink.add(&patterns::EVAL, line),
        _ if args.iter().flatten().any(|word| matches!(word.as_str(), "--version" | "-V" | "--help")) => {}
        _ => sink.add(&patterns::UNSEEN, line),
    }
}

/// `u+s`, `4755`.
fn is_setuid(mode: &str) -> bool {
    let numeric = mode.len() == 4 && mode.bytes().all(|b| b.is_ascii_digit());
    let symbolic = |change: &str| {
        change
            .split_once(['+', '='])
            .is_some_and(|(who, what)| who.bytes().all(|b| b"ugoa".contains(&b)) && what.contains('s'))
    };
    (numeric && mode.bytes().next().is_some_and(|first| first & 0b110 != 0)) || mode.split(',').any(symbolic)
}

/// Whether writing to a path is writing outside the places made for it.
pub(super) fn is_outside(path: &str) -> bool {
    (path.starts_with('/')
        || path.starts_with('~')
        || path.starts_with("$HOME")
        || path.split('/').any(|part| part == ".."))
        && !HARMLESS.contains(&path)
        && (path.contains("/../") || !SCRATCH.iter().any(|scratch| path.starts_with(scratch)))
}
