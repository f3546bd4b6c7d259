//! Programs at a terminal, and callers that attach to them: through the WebSocket, and through a real terminal (tmux)
//! with the real `sandboxctl`.

use super::live::{exit_of, launch, read_all};
use super::{Daemon, SHELL, Someone, need, processes, python, refusal, shell, wait_for, with};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use std::io;
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::time::{Duration, Instant};
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::{self, Message, WebSocket};

const PATIENCE: Duration = Duration::from_secs(60);

/// A caller that is attached.
struct Attached {
    socket: WebSocket<UnixStream>,
    /// What the program wrote, from where this caller began.
    seen: Vec<u8>,
    /// Control frames, oldest first.
    said: Vec<Value>,
    /// Where a caller that comes back goes on.
    position: u64,
}

impl Attached {
    fn new(daemon: &Daemon, exec: &str, query: &str) -> Self {
        let stream = UnixStream::connect(daemon.socket()).unwrap();
        stream.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        let request = format!("ws://sandboxd/v1/execs/{exec}/attach?{query}").into_client_request().unwrap();
        let deadline = Instant::now() + super::patient(PATIENCE);
        let mut handshake = tungstenite::client(request, stream);
        let (socket, _) = loop {
            match handshake {
                Ok(done) => break done,
                Err(tungstenite::HandshakeError::Interrupted(middle)) if Instant::now() < deadline => {
                    handshake = middle.handshake();
                }
                Err(error) => panic!("no WebSocket: {error}; log:\n{}", daemon.log()),
            }
        };
        let mut attached = Self { socket, seen: Vec::new(), said: Vec::new(), position: 0 };
        attached.until("it is attached", |this| this.said("attached").is_some());
        attached
    }

    /// Takes one frame, if one comes in a moment; false at the end.
    fn take(&mut self) -> bool {
        match self.socket.read() {
            Ok(Message::Binary(bytes)) => {
                self.position += bytes.len() as u64;
                self.seen.extend(&bytes);
            }
            Ok(Message::Text(text)) => {
                let value: Value = serde_json::from_str(&text).expect("control frames are JSON");
                if let Some(seq) = value["seq"].as_u64() {
                    self.position = seq;
                }
                self.said.push(value);
            }
            Ok(_) => {}
            Err(tungstenite::Error::Io(error)) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => return false,
        }
        true
    }

    #[track_caller]
    fn until(&mut self, what: &str, mut done: impl FnMut(&Self) -> bool) {
        let deadline = Instant::now() + super::patient(PATIENCE);
        while !done(self) {
            let open = self.take();
            let seen = || String::from_utf8_lossy(&self.seen).into_owned();
            assert!(open || done(self), "it ended before {what}: {}; {:?}", seen(), self.said);
            assert!(Instant::now() < deadline, "not {what}: {}; {:?}", seen(), self.said);
        }
    }

    #[track_caller]
    fn until_seen(&mut self, text: &str) {
        self.until(&format!("{text:?} is seen"), |this| this.text().contains(text));
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.seen).into_owned()
    }

    fn said(&self, kind: &str) -> Option<&Value> {
        self.said.iter().find(|value| value["type"] == kind)
    }

    fn send(&mut self, bytes: &[u8]) {
        self.socket.send(Message::binary(bytes.to_vec())).unwrap();
    }

    fn ask(&mut self, ask: Value) {
        self.socket.send(Message::text(ask.to_string())).unwrap();
    }

    #[track_caller]
    fn exit(&mut self) -> Value {
        self.until("its exit is told", |this| this.said("exit").is_some());
        self.said("exit").cloned().unwrap()
    }
}

fn at_terminal(request: Value) -> Value {
    with(request, json!({"tty": {"cols": 80, "rows": 24}, "profile": SHELL}))
}

/// An interactive shell with a prompt that can be waited for.
fn prompt() -> Value {
    at_terminal(json!({"exec": {"kind": "shell", "args": ["--norc", "-i"], "env": {"PS1": "ready> "}}}))
}

#[test]
fn a_shell_at_a_terminal_has_job_control_a_size_and_ctrl_c() {
    let daemon = Daemon::start();
    let exec = launch(&daemon, prompt());
    let mut caller = Attached::new(&daemon, &exec, "");
    assert_eq!((&caller.said[0]["tty"], &caller.said[0]["writer"]), (&json!(true), &json!(true)));
    caller.until_seen("ready> ");
    caller.send(b"tty; stty size; echo $TERM\r");
    caller.until_seen("/dev/pts/0\r\n24 80\r\nxterm-256color\r\n");
    caller.ask(json!({"type": "resize", "cols": 132, "rows": 50}));
    caller.send(b"stty size\r");
    caller.until_seen("50 132\r\n");
    caller.send(b"sleep 1000\r");
    daemon.wait_for_program("sleep");
    caller.send(b"\x03"); // Ctrl-C
    caller.send(b"echo code=$?\r");
    caller.until_seen("code=130\r\n");
    caller.send(b"sleep 1000\r");
    daemon.wait_for_program("sleep");
    caller.ask(json!({"type": "signal", "signal": "INT"})); // to the foreground group, as the key would
    caller.send(b"echo again=$?\r");
    caller.until_seen("again=130\r\n");
    caller.send(b"sleep 1000 &\rjobs\r");
    caller.until_seen("[1]+  Running");
    assert!(!caller.text().contains("no job control"), "{}", caller.text());
    assert!(!caller.text().contains("cannot set terminal process group"), "{}", caller.text());
    caller.ask(json!({"type": "resize", "cols": 0, "rows": 50}));
    caller.ask(json!({"type": "colour"}));
    caller.until("two errors are told", |this| this.said.iter().filter(|value| value["type"] == "error").count() == 2);
    caller.send(b"exit 7\r");
    let exit = caller.exit();
    assert_eq!((&exit["status"], &exit["exit_code"]), (&json!("nonzero_exit"), &json!(7)), "{exit}");
    super::assert_idle(&daemon);
}

#[test]
fn a_caller_comes_back_takes_over_and_is_looked_at() {
    let daemon = Daemon::start();
    let exec = launch(&daemon, prompt());
    let mut first = Attached::new(&daemon, &exec, "");
    first.until_seen("ready> ");
    first.send(b"echo one-$((1 + 1))\r");
    first.until_seen("one-2\r\n");
    first.until("a prompt follows", |this| this.text().ends_with("ready> "));
    let (position, seen) = (first.position, first.seen.clone());
    let mut looker = Attached::new(&daemon, &exec, "read_only=true");
    looker.until("it has seen the same", |this| this.seen == seen);
    looker.send(b"echo not-me\r");
    looker.until("it may not write", |this| this.said("error").is_some());

    let mut second = Attached::new(&daemon, &exec, &format!("after={position}"));
    first.until("the older writer is told", |this| this.said("detached").is_some());
    assert_eq!(first.said("detached").unwrap()["reason"], "taken_over");
    second.send(b"echo two-$((1 + 2))\r");
    second.until_seen("two-3\r\n");
    assert!(!second.text().contains("one-2"), "only what came after: {}", second.text());
    looker.until_seen("two-3\r\n");
    assert!(!looker.text().contains("not-me"));

    // Gone without a word: the program stays, and nothing is missed.
    let position = second.position;
    drop(second);
    let mut third = Attached::new(&daemon, &exec, &format!("after={position}"));
    third.send(b"echo three; exit\r");
    assert_eq!(third.exit()["status"], "ok");
    let mut whole = seen.clone();
    whole.truncate(usize::try_from(first.position).unwrap());
    let ([log, _], _) = read_all(&daemon, &exec, 0);
    assert!(log.starts_with(&seen) && String::from_utf8_lossy(&log).contains("three"));
    // Who comes after the end is shown all of it.
    let mut late = Attached::new(&daemon, &exec, "");
    assert_eq!(late.said[0]["writer"], false);
    late.exit();
    assert!(late.seen == log);
}

#[test]
fn a_caller_that_owns_a_program_takes_it_along() {
    let daemon = Daemon::start();
    let exec = launch(&daemon, prompt());
    let mut caller = Attached::new(&daemon, &exec, "hangup=cancel");
    caller.until_seen("ready> ");
    drop(caller);
    assert_eq!(exit_of(&daemon, &exec)["status"], "cancelled");
    let exec = launch(&daemon, prompt());
    let mut caller = Attached::new(&daemon, &exec, "hangup=cancel");
    caller.until_seen("ready> ");
    caller.ask(json!({"type": "detach"}));
    while caller.take() {}
    let mut again = Attached::new(&daemon, &exec, "");
    again.send(b"exit 3\r");
    assert_eq!(again.exit()["exit_code"], 3, "it was left, not ended");
}

/// The daemon learned from a failed write that a caller was gone, and cancelled before it read that the caller had detached.
#[test]
fn a_caller_that_detaches_in_the_middle_of_output_leaves_the_program_running() {
    let daemon = Daemon::start();
    let exec = launch(&daemon, at_terminal(shell("while true; do echo more; done")));
    for _ in 0..20 {
        let mut caller = Attached::new(&daemon, &exec, "hangup=cancel");
        caller.until_seen("more");
        caller.ask(json!({"type": "detach"}));
        drop(caller); // with frames unread, so the daemon's next one fails
    }
    assert_eq!(daemon.request("GET", &format!("/v1/execs/{exec}"), None).body["status"], "running");
    drop(Attached::new(&daemon, &exec, "hangup=cancel"));
    assert_eq!(exit_of(&daemon, &exec)["status"], "cancelled", "hanging up without a word still ends it");
}

#[test]
fn without_a_terminal_an_attachment_is_a_clean_pipe() {
    let daemon = Daemon::start();
    let exec = launch(&daemon, shell("echo begin >&2; cat; echo end >&2"));
    let mut caller = Attached::new(&daemon, &exec, "");
    assert_eq!(caller.said[0]["tty"], false);
    let all: Vec<u8> = (0..=255).cycle().take(200_000).collect();
    for piece in all.chunks(50_000) {
        caller.send(piece);
    }
    caller.until("all of it comes back", |this| this.seen.len() == all.len());
    assert!(caller.seen == all, "byte for byte");
    caller.ask(json!({"type": "resize", "cols": 1, "rows": 1}));
    caller.until("it has no terminal", |this| this.said("error").is_some());
    caller.ask(json!({"type": "eof"}));
    assert_eq!(caller.exit()["status"], "ok");
    let stderr: Vec<_> = caller.said.iter().filter(|value| value["type"] == "stderr").collect();
    assert_eq!(stderr.iter().filter_map(|value| value["text"].as_str()).collect::<String>(), "begin\nend\n");
    let mut merged = Attached::new(&daemon, &exec, "stderr=merge");
    merged.exit();
    assert_eq!(merged.seen.len(), all.len() + 10);
    let mut dropped = Attached::new(&daemon, &exec, "stderr=drop");
    dropped.exit();
    assert!(dropped.seen == all);

    let stranger = Someone::new(&daemon, "bob");
    assert_eq!(refusal(&stranger.ask("GET", &format!("/v1/execs/{exec}/attach"), None)), (404, "no_such_exec"));
    for query in ["", "?stderr=x", "?hangup=x", "?read_only=true&hangup=cancel", "?colour=1"] {
        let plain = daemon.request("GET", &format!("/v1/execs/{exec}/attach{query}"), None);
        assert_eq!(refusal(&plain), (422, "invalid_field"), "{query}");
    }
    assert_eq!(
        refusal(&daemon.exec(&with(shell("true"), json!({"tty": {}})))),
        (422, "invalid_field"),
        "nobody waits at one"
    );
}

#[test]
fn tricks_with_a_terminal_meet_a_wall() {
    let daemon = Daemon::start();
    let code = r#"
import errno, fcntl, os, struct, termios, time
def refused(name, act):
    try: act(); print(name, 'WORKED')
    except OSError as error: print(name, errno.errorcode[error.errno])
for name, request in [('TIOCSTI', 0x5412), ('TIOCLINUX', 0x541c), ('TIOCCONS', 0x541d), ('TIOCSETD', 0x5423)]:
    refused(name, lambda: fcntl.ioctl(0, request, b'x'))
print(sorted(os.listdir('/dev/pts')))
refused('other', lambda: os.open('/dev/pts/1', os.O_RDWR))
for name in ['console', 'tty0', 'tty1', 'vcs', 'vcsa1']:
    refused(name, lambda: os.open('/dev/' + name, os.O_RDWR))
# Every slave is closed: the front hears of nobody, and the program comes back.
for fd in 0, 1, 2: os.close(fd)
time.sleep(0.3)
fd = os.open('/dev/pts/0', os.O_RDWR | os.O_NOCTTY)
os.write(fd, b'back again\n')
if os.fork() == 0:
    os.setsid()
    refused_fd = os.open('/dev/pts/0', os.O_RDWR | os.O_NOCTTY)
    try:
        fcntl.ioctl(refused_fd, termios.TIOCSCTTY, 1); os.write(fd, b'STOLEN\n')
    except OSError as error: os.write(fd, b'not stolen: ' + errno.errorcode[error.errno].encode() + b'\n')
    os._exit(0)
os.wait()
os.write(fd, b'done\n')
"#;
    let other = launch(&daemon, prompt());
    let exec = launch(&daemon, at_terminal(python(code)));
    let ([screen, _], last) = read_all(&daemon, &exec, 0);
    let screen = String::from_utf8_lossy(&screen).replace('\r', "");
    assert_eq!(last["exit"]["status"], "ok", "{screen}");
    for line in [
        "TIOCSTI EPERM",
        "TIOCLINUX EPERM",
        "TIOCCONS EPERM",
        "TIOCSETD EPERM",
        "['0', 'ptmx']",
        "other ENOENT",
        "console ENOENT",
        "tty0 ENOENT",
        "tty1 ENOENT",
        "vcs ENOENT",
        "vcsa1 ENOENT",
        "back again",
        "not stolen: EPERM",
        "done",
    ] {
        assert!(screen.contains(line), "{line}: {screen}");
    }
    let mut caller = Attached::new(&daemon, &other, "");
    caller.send(b"echo untouched\rexit\r");
    caller.exit();
    assert!(!caller.text().contains("back again"), "{}", caller.text());
    // Without a terminal there is none to be had, and none to type into.
    let none =
        daemon.exec(&python("import os\ntry: os.open('/dev/tty', os.O_RDWR)\nexcept OSError as e: print(e.errno)"));
    assert_eq!(none.stdout(), "6\n", "ENXIO: {}", none.text);
}

#[test]
fn a_program_that_ignores_its_terminal_still_ends() {
    let daemon = Daemon::start();
    let request = with(
        at_terminal(python("import os, time\nfor fd in 0, 1, 2: os.close(fd)\ntime.sleep(60)")),
        json!({"timeout_ms": 1500}),
    );
    let exec = launch(&daemon, request);
    assert_eq!(exit_of(&daemon, &exec)["status"], "timed_out");
    let exec = launch(&daemon, at_terminal(shell("stty raw -echo; yes | head -c 500000")));
    let ([screen, _], last) = read_all(&daemon, &exec, 0);
    assert_eq!((screen.len(), &last["exit"]["status"]), (500_000, &json!("ok")));
    super::assert_idle(&daemon);
}

/// A real terminal: a tmux server of the test's own.
struct Screen {
    directory: tempfile::TempDir,
    socket: std::path::PathBuf,
}

impl Screen {
    fn new(daemon: &Daemon) -> Self {
        need("/usr/bin/tmux", "tmux");
        let screen = Self { directory: tempfile::tempdir().unwrap(), socket: daemon.socket() };
        let config = screen.directory.path().join("config");
        std::fs::write(&config, "set -g status off\nset -g default-terminal screen-256color\n").unwrap();
        let config = config.to_str().unwrap();
        screen.tmux(&["-f", config, "new-session", "-d", "-x", "100", "-y", "30", "bash --norc --noprofile"]);
        screen.keys("PS1=\"out-$((1 + 1))> \"; clear");
        screen.until("out-2>");
        screen
    }

    fn tmux(&self, args: &[&str]) -> String {
        let output = Command::new("tmux")
            .arg("-S")
            .arg(self.directory.path().join("tmux"))
            .args(args)
            .env("SANDBOXD_SOCKET", &self.socket)
            .env_remove("TMUX")
            .env("LC_ALL", "C.UTF-8")
            .output()
            .unwrap();
        assert!(output.status.success(), "tmux {args:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// What is on the screen, after an empty line: wrapped lines as one, nothing at the end of a line.
    fn shown(&self) -> String {
        let shown = self.tmux(&["capture-pane", "-p", "-J"]);
        std::iter::once("").chain(shown.lines()).map(|line| format!("{}\n", line.trim_end())).collect()
    }

    fn press(&self, keys: &[&str]) {
        self.tmux(&[&["send-keys"], keys].concat());
    }

    fn keys(&self, line: &str) {
        self.tmux(&["send-keys", "-l", line]);
        self.press(&["Enter"]);
    }

    #[track_caller]
    fn until(&self, text: &str) -> String {
        let end = Instant::now() + super::patient(PATIENCE);
        loop {
            let shown = self.shown();
            if shown.contains(text) {
                return shown;
            }
            assert!(Instant::now() < end, "{text:?} is not shown:\n{shown}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// The `sandboxctl` that runs in it.
    fn ctl_pid(&self) -> Option<i32> {
        let shell: i32 = self.tmux(&["display-message", "-p", "#{pane_pid}"]).trim().parse().unwrap();
        processes::descendants(shell).into_iter().find(|pid| processes::comm(*pid) == "sandboxctl")
    }

    /// Waits until `sandboxctl` has left: what is typed before that would be its program's.
    fn until_left(&self) {
        wait_for("sandboxctl has left", PATIENCE, || self.ctl_pid().is_none().then_some(()));
    }

    fn ctl(&self, words: &str) {
        self.keys(&format!("{} {words}", env!("CARGO_BIN_EXE_sandboxctl")));
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        let _ = Command::new("tmux").arg("-S").arg(self.directory.path().join("tmux")).arg("kill-server").output();
    }
}

#[test]
fn a_real_terminal_runs_less_and_vi_resizes_detaches_and_comes_back() {
    need("/usr/bin/less", "less");
    need("/usr/bin/vi", "vim-tiny");
    let daemon = Daemon::start();
    let screen = Screen::new(&daemon);
    screen.ctl("shell -it --profile shell --project p");
    screen.until("bash-");
    // A prompt that is not what was typed, and another after each program.
    screen.keys("seq 1 500 > numbers; PS1=\"in-$((1 + 1))> \"; clear");
    screen.until("in-2>");
    screen.keys("less numbers; PS1=\"in-$((1 + 2))> \"");
    let page = screen.until("\n2\n");
    assert!(!page.contains("\n60\n"), "{page}");
    screen.press(&["G"]);
    screen.until("\n500\n");
    screen.press(&["q"]);
    screen.until("in-3>");
    screen.keys("vi letter; PS1=\"in-$((1 + 3))> \"");
    screen.until("\n~\n");
    screen.press(&["i"]);
    screen.tmux(&["send-keys", "-l", "dear reader"]);
    screen.until("dear reader");
    screen.press(&["Escape"]);
    screen.keys(":wq");
    screen.until("in-4>");
    screen.keys("clear; cat letter; stty size");
    screen.until("dear reader\n30 100\n");
    screen.tmux(&["resize-window", "-x", "90", "-y", "25"]);
    wait_for("the program learns of the new size", PATIENCE, || {
        screen.keys("clear; stty size");
        screen.shown().contains("\n25 90\n").then_some(()).or_else(|| {
            std::thread::sleep(Duration::from_millis(200));
            screen.shown().contains("\n25 90\n").then_some(())
        })
    });
    screen.keys("sleep 1000");
    daemon.wait_for_program("sleep");
    screen.press(&["C-c"]);
    screen.keys("echo code=$?");
    screen.until("code=130\n");

    screen.keys("kept=here; clear");
    screen.press(&["C-p", "C-q"]);
    let left = screen.until("sandboxctl exec attach ex_");
    screen.until_left();
    let exec = left.split("attach ex_").nth(1).unwrap().split_whitespace().next().unwrap().to_owned();
    screen.keys("clear; stty -a");
    let settings = screen.until("icanon");
    assert!(!settings.contains("-icanon") && !settings.contains("-isig"), "our terminal is as it was:\n{settings}");
    screen.keys("clear");
    screen.ctl(&format!("exec attach ex_{exec}"));
    screen.until("in-4>");
    screen.keys("clear; echo still-$kept; sleep 1; exit 42");
    screen.until("still-here");
    screen.until_left();
    screen.keys("echo it-was-$?");
    screen.until("it-was-42");
}

#[test]
fn a_terminal_is_put_back_when_sandboxctl_is_ended() {
    let daemon = Daemon::start();
    let screen = Screen::new(&daemon);
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        screen.keys("clear");
        screen.ctl("run -it --profile shell -- bash --norc -i");
        screen.until("bash-");
        kill(Pid::from_raw(screen.ctl_pid().expect("sandboxctl runs")), signal).unwrap();
        screen.until_left();
        screen.keys("clear; echo it-was-$?; stty -a");
        let shown = screen.until("icanon");
        assert!(!shown.contains("-icanon") && !shown.contains("-isig"), "{shown}");
        wait_for("its program ended with it", PATIENCE, || {
            (daemon.request("GET", "/v1/health", None).body["running"] == 0).then_some(())
        });
    }
}
