//! Starts a daemon of its own, on its own socket and directories, talks to it and clears up after itself.
//!
//! Include it with `#[path = "../harness/mod.rs"] mod harness;`. What can't be had is a failure that says what is missing,
//! never a skip. nextest runs each test in a process of its own, so a daemon belongs to one test.
#![allow(dead_code, unused_imports)] // each test binary uses its part
#![forbid(unsafe_code)]

pub mod host;
pub mod http;
pub mod probe;
pub mod processes;
pub mod snapshot;

pub use host::Host;
pub use http::{Answer, Client};
pub use probe::{Outcome, Row, outside_probe, probe_path};
pub use snapshot::Snapshot;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use std::fs::{self, File, Permissions};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Set in every daemon's environment; must never be seen inside.
pub const SECRET_NAME: &str = "SANDBOXD_TEST_SECRET";
/// Its value.
pub const SECRET_VALUE: &str = "the-daemon-keeps-this-to-itself";

/// The name of a program's process that waits for a run.
const PARKED: &str = "sandboxd-parked";
/// `off`: the daemons of a test run build no sandbox ahead. Without it they keep one of each profile, always the same
/// number, so that before and after can be compared.
const POOL_VARIABLE: &str = "SANDBOXD_TEST_POOL";

/// How long a daemon may take to answer its first health check (it compiles filters; the machine may be busy or emulated).
const START_DEADLINE: Duration = Duration::from_secs(120);
/// How long it may take to stop after SIGTERM.
const STOP_DEADLINE: Duration = Duration::from_secs(60);
/// What an exec used is gone by then.
const LEFT_DEADLINE: Duration = Duration::from_secs(15);
/// How many times as long everything may take here, 20 at most: `tests/vm/run` says it to a machine that is emulated.
const PATIENCE_VARIABLE: &str = "SANDBOXD_TESTS_PATIENCE";
/// Between two looks at something that will be so in a moment.
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// A time within which something must have happened, on this machine. What must have happened stays the same.
pub fn patient(time: Duration) -> Duration {
    let factor = std::env::var(PATIENCE_VARIABLE).ok().and_then(|text| text.parse().ok()).unwrap_or(1);
    time * u32::clamp(factor, 1, 20)
}

/// Looks until `look` gives something, or panics with `what` at the deadline.
pub fn wait_for<T>(what: &str, deadline: Duration, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = patient(deadline);
    let end = Instant::now() + deadline;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < end, "not within {deadline:?}: {what}");
        std::thread::sleep(LOOK_AGAIN);
    }
}

/// A directory for a daemon's state: on a file system that can be id-mapped, which overlay and old tmpfs can't.
fn state_parent() -> PathBuf {
    use nix::sys::statfs::{OVERLAYFS_SUPER_MAGIC, TMPFS_MAGIC, statfs};
    let candidates = [PathBuf::from("/tmp"), PathBuf::from(env!("CARGO_TARGET_TMPDIR")), PathBuf::from("/var/tmp")];
    candidates
        .iter()
        .find(|path| {
            statfs(path.as_path()).is_ok_and(|fs| ![OVERLAYFS_SUPER_MAGIC, TMPFS_MAGIC].contains(&fs.filesystem_type()))
        })
        .unwrap_or_else(|| {
            panic!(
                "missing: a directory on a disk file system for state_dir; these are overlay or tmpfs: {candidates:?}"
            )
        })
        .clone()
}

/// A fresh directory that others (the service user) may pass through.
fn open_directory(parent: &Path) -> TempDir {
    let dir = tempfile::Builder::new()
        .prefix("sandboxd-test-")
        .tempdir_in(parent)
        .expect("a temporary directory can be made");
    fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).expect("its mode can be set");
    dir
}

/// A running daemon. Dropping it stops it and removes its directories.
#[derive(Debug)]
pub struct Daemon {
    child: Child,
    ended: Option<ExitStatus>,
    base: TempDir,
    state: TempDir,
    /// The listening socket, if the test plays the service manager and keeps it.
    door: Option<UnixListener>,
}

impl Daemon {
    /// With embedded profiles and defaults.
    pub fn start() -> Self {
        Self::start_with("", &[])
    }

    /// `config_extra` is TOML (top-level keys first) that is added to, and wins over, the harness's own;
    /// `profiles` are (file name without `.toml`, content).
    pub fn start_with(config_extra: &str, profiles: &[(&str, &str)]) -> Self {
        let daemon = Self::launch(config_extra, profiles);
        daemon.wait_for_health();
        daemon.wait_for_pool();
        daemon
    }

    /// Starts it without waiting: for tests of the start itself.
    pub fn launch(config_extra: &str, profiles: &[(&str, &str)]) -> Self {
        Self::launch_in(config_extra, profiles, &[])
    }

    /// The same with more in its environment.
    pub fn launch_in(config_extra: &str, profiles: &[(&str, &str)], env: &[(&str, &str)]) -> Self {
        Self::launch_at(config_extra, profiles, env, |_| None)
    }

    /// Starts it with a listening socket that is handed over, as a service manager would; without waiting.
    pub fn launch_handed_over(config_extra: &str) -> Self {
        Self::launch_at(config_extra, &[], &[], |base| {
            let run_dir = base.join("run");
            fs::create_dir(&run_dir).expect("run_dir can be made");
            let socket = run_dir.join("sandboxd.sock");
            let door = UnixListener::bind(&socket).expect("a socket can be made");
            fs::set_permissions(&socket, Permissions::from_mode(0o666)).expect("its mode can be set");
            Some(door)
        })
    }

    fn launch_at(
        config_extra: &str,
        profiles: &[(&str, &str)],
        env: &[(&str, &str)],
        door: impl FnOnce(&Path) -> Option<UnixListener>,
    ) -> Self {
        assert!(nix::unistd::geteuid().is_root(), "missing: root; the security tests build real sandboxes");
        let base = open_directory(Path::new("/tmp"));
        let state = open_directory(&state_parent());
        let door = door(base.path());
        if !profiles.is_empty() {
            let dir = base.path().join("profiles");
            fs::create_dir(&dir).expect("profiles_dir can be made");
            for (name, text) in profiles {
                fs::write(dir.join(format!("{name}.toml")), text).expect("a profile can be written");
            }
        }
        fs::write(
            base.path().join("sandboxd.toml"),
            config(base.path(), state.path(), config_extra, !profiles.is_empty()),
        )
        .expect("the configuration can be written");
        let child = spawn(base.path(), env, door.as_ref());
        Self { child, ended: None, base, state, door }
    }

    /// Starts it again on the same directories, after it was stopped or killed.
    pub fn restart(&mut self) {
        self.relaunch();
        self.wait_for_health();
    }

    /// The same without waiting.
    pub fn relaunch(&mut self) {
        assert!(self.ended.is_some() || self.child.try_wait().is_ok_and(|ended| ended.is_some()), "it still runs");
        self.child = spawn(self.base.path(), &[], self.door.as_ref());
        self.ended = None;
    }

    /// Blocks until `GET /v1/health` answers 200.
    pub fn wait_for_health(&self) {
        let end = Instant::now() + patient(START_DEADLINE);
        loop {
            let health =
                Client::connect(&self.socket()).and_then(|mut client| client.request("GET", "/v1/health", None));
            match health {
                Ok(answer) if answer.status == 200 => return,
                other => {
                    let gone = processes::stat(self.front_pid()).is_none_or(|stat| stat.state == 'Z');
                    if gone || Instant::now() >= end {
                        panic!(
                            "the daemon is not healthy ({}; gone: {gone}); its log:\n{}",
                            describe(&other),
                            self.log()
                        );
                    }
                }
            }
            std::thread::sleep(LOOK_AGAIN);
        }
    }

    /// `<run_dir>`
    pub fn run_dir(&self) -> PathBuf {
        self.base.path().join("run")
    }
    /// `<state_dir>`
    pub fn state_dir(&self) -> PathBuf {
        self.state.path().join("state")
    }
    /// The socket.
    pub fn socket(&self) -> PathBuf {
        self.run_dir().join("sandboxd.sock")
    }
    /// Panics if a program has run to its end in this daemon.
    #[track_caller]
    pub fn assert_nothing_ran(&self) {
        let metrics = self.client().request("GET", "/metrics", None).expect("metrics").text;
        let ran = metrics.lines().find(|line| line.starts_with("sandbox_exec_total"));
        assert_eq!(ran, None, "something ran; the log:\n{}", self.log());
    }
    /// What it said on stderr so far.
    pub fn log(&self) -> String {
        fs::read_to_string(self.base.path().join("daemon.log")).unwrap_or_default()
    }

    /// A kept-alive connection.
    pub fn client(&self) -> Client {
        Client::connect(&self.socket())
            .unwrap_or_else(|error| panic!("no connection to the daemon: {error}; its log:\n{}", self.log()))
    }

    /// One request on a connection of its own.
    pub fn request(&self, method: &str, path: &str, body: Option<&Value>) -> Answer {
        self.client()
            .request(method, path, body)
            .unwrap_or_else(|error| panic!("{method} {path}: {error}; the daemon's log:\n{}", self.log()))
    }

    /// `POST /v1/execs`
    pub fn exec(&self, request: &Value) -> Answer {
        self.request("POST", "/v1/execs", Some(request))
    }

    /// Runs shell code and expects that it ran, whatever it did.
    pub fn shell(&self, profile: &str, code: &str) -> Answer {
        let answer = self
            .exec(&json!({"profile": profile, "exec": {"kind": "process", "command": "bash", "args": ["-c", code]}}));
        assert_eq!(answer.status, 200, "shell did not run: {}", answer.text);
        answer
    }

    /// Sends the probe in and runs it; `extra` is merged over the request (limits, project_id, …).
    pub fn probe_exec(&self, profile: &str, args: &[String], extra: &Value) -> (Answer, Vec<Row>) {
        let mut request = json!({
            "profile": profile,
            "exec": {"kind": "process", "command": "/workspace/inputs/probe", "args": args},
            "inputs": [{"path": "probe", "base64": probe::probe_base64()}],
        });
        for (key, value) in extra.as_object().into_iter().flatten() {
            request[key] = value.clone();
        }
        let answer = self.exec(&request);
        assert_eq!(
            answer.status,
            200,
            "the probe did not run under {profile}: {}; the daemon's log:\n{}",
            answer.text,
            self.log()
        );
        let rows = probe::parse(answer.body["stdout"].as_str().unwrap_or_default());
        (answer, rows)
    }

    /// Rows of `probe ARGS…` inside, which must end well.
    pub fn run_probe(&self, profile: &str, args: &[String]) -> Vec<Row> {
        let (answer, rows) = self.probe_exec(profile, args, &Value::Null);
        assert_eq!(answer.body["status"], "ok", "the probe ended badly: {}", answer.text);
        assert!(!rows.is_empty(), "the probe said nothing: {}", answer.text);
        rows
    }

    /// The process that was started.
    pub fn front_pid(&self) -> i32 {
        i32::try_from(self.child.id()).expect("a pid fits")
    }
    /// The front's child that runs as root.
    pub fn warden_pid(&self) -> i32 {
        processes::descendants(self.front_pid())
            .into_iter()
            .find(|pid| processes::comm(*pid) == "sandboxd-warden")
            .unwrap_or_else(|| {
                panic!("missing: a process sandboxd-warden below {}; log:\n{}", self.front_pid(), self.log())
            })
    }
    /// Pid 1 of every sandbox that has a run (or is being built for one or for the pool).
    pub fn init_pids(&self) -> Vec<i32> {
        let (all, parked) = self.inits();
        all.into_iter().filter(|pid| !parked.contains(pid)).collect()
    }
    /// Pid 1 of every sandbox that waits for a run.
    pub fn parked_pids(&self) -> Vec<i32> {
        self.inits().1
    }
    /// Pid 1 of every sandbox, and of every one that waits: one look at all processes, as they come and go.
    fn inits(&self) -> (Vec<i32>, Vec<i32>) {
        let named = |pid: i32| Some((pid, processes::stat(pid)?.parent, processes::comm(pid)));
        let below: Vec<_> = processes::descendants(self.front_pid()).into_iter().filter_map(named).collect();
        let is_init = |pid: i32| below.iter().any(|(other, _, name)| *other == pid && name == "sandboxd-init");
        let inits = below.iter().filter(|(pid, parent, _)| is_init(*pid) && !is_init(*parent)).map(|(pid, ..)| *pid);
        let parked = below.iter().filter(|(_, _, name)| name == PARKED).map(|(_, parent, _)| *parent);
        (inits.collect(), parked.collect())
    }
    /// Waits until a program called `name` runs in a sandbox: not the sandbox before its program, nor one that waits
    /// in the pool, nor the shell that is yet to start `name`.
    pub fn wait_for_program(&self, name: &str) {
        wait_for(&format!("{name} runs in a sandbox"), Duration::from_secs(20), || {
            let below = processes::descendants(self.warden_pid());
            below.into_iter().any(|pid| processes::comm(pid) == name).then_some(())
        });
    }
    /// The pool of a profile, as health tells it.
    pub fn pool(&self, profile: &str) -> Value {
        let health = self.request("GET", "/v1/health", None);
        let pools = health.body["pool"].as_array().cloned().unwrap_or_default();
        pools.into_iter().find(|pool| pool["profile"] == profile).unwrap_or_else(|| panic!("no pool: {}", health.text))
    }
    /// Waits until every shelf of the pool is full. One of them counts from its fork on; it is whole when the process is
    /// there that is to become the program.
    pub fn wait_for_pool(&self) {
        wait_for("the pool is full", START_DEADLINE, || {
            let health = self.request("GET", "/v1/health", None);
            let pools = health.body["pool"].as_array().cloned().unwrap_or_default();
            let full = pools.iter().all(|pool| pool["idle"] == pool["target"]);
            let idle: u64 = pools.iter().filter_map(|pool| pool["idle"].as_u64()).sum();
            (full && self.parked_pids().len() as u64 == idle).then_some(())
        });
    }

    /// What the daemon occupies when its pool is full: what an exec is to leave no more than.
    pub fn snapshot_at_rest(&self) -> Snapshot {
        self.wait_for_pool();
        self.snapshot_of_host()
    }

    /// What the daemon occupies on the host now.
    pub fn snapshot_of_host(&self) -> Snapshot {
        Snapshot::take(self)
    }

    /// Waits until no more is there than `before`, or fails with what is left over.
    pub fn assert_nothing_left(&self, before: &Snapshot) {
        let end = Instant::now() + patient(LEFT_DEADLINE);
        loop {
            let left = self.snapshot_of_host().more_than(before);
            if left.is_empty() {
                return;
            }
            assert!(Instant::now() < end, "left over: {}; log:\n{}", left.join("; "), self.log());
            std::thread::sleep(LOOK_AGAIN);
        }
    }

    /// SIGTERM, and waits for the end.
    pub fn stop(&mut self) -> ExitStatus {
        if let Some(ended) = self.ended {
            return ended;
        }
        let _ = kill(Pid::from_raw(self.front_pid()), Signal::SIGTERM); // it may have ended by itself
        let ended = wait_for("the daemon ends after SIGTERM", STOP_DEADLINE, || self.child.try_wait().ok().flatten());
        self.ended = Some(ended);
        ended
    }

    /// Waits for it to end by itself.
    pub fn wait_for_end(&mut self, deadline: Duration) -> ExitStatus {
        let ended = wait_for("the daemon ends by itself", deadline, || self.child.try_wait().ok().flatten());
        self.ended = Some(ended);
        ended
    }

    /// SIGKILL to the front, and waits for its end.
    pub fn kill_front(&mut self) {
        let _ = self.child.kill(); // an error means that it is gone already
        self.ended = self.child.wait().ok();
    }
}

fn describe(health: &std::io::Result<Answer>) -> String {
    match health {
        Ok(answer) => format!("{} {}", answer.status, answer.text),
        Err(error) => error.to_string(),
    }
}

fn config(base: &Path, state: &Path, extra: &str, own_profiles: bool) -> String {
    let mut own = vec![
        ("run_dir", format!("{:?}", base.join("run"))),
        ("state_dir", format!("{:?}", state.join("state"))),
        // Not those of a package that may be installed here.
        ("shared_dir", format!("{:?}", base.join("share"))),
        // Tests of their own queueing set their own; the rest should not wait.
        ("max_concurrent_execs", "16".to_owned()),
    ];
    if own_profiles {
        own.push(("profiles_dir", format!("{:?}", base.join("profiles"))));
    }
    let is_set = |key: &str| extra.lines().any(|line| line.split('=').next().is_some_and(|name| name.trim() == key));
    own.retain(|(key, _)| !is_set(key));
    let mut text: String = own.iter().map(|(key, value)| format!("{key} = {value}\n")).collect();
    text.push_str(extra);
    if !extra.contains("[pool]") {
        let off = std::env::var(POOL_VARIABLE).is_ok_and(|value| value == "off");
        let waiting = if off { 0 } else { 1 };
        text.push_str(&format!("\n[pool]\nmin = {waiting}\nmax = {waiting}\n"));
    }
    // Tests of it ask for it: the rest does not wait for a busy host.
    if !extra.contains("[admission]") {
        text.push_str("\n[admission]\ncpu_percent = 100\nmemory_percent = 100\nmemory_reserve_bytes = 0\nmemory_share_percent = 0\n");
    }
    if !extra.contains("[access]") {
        text.push_str("\n[access]\nuids = [0]\n");
    }
    text
}

/// The daemon gets what a careless operator would leave it: a secret in the environment, a file as stdin, a descriptor
/// without close-on-exec. None of it may be seen inside.
/// On cgroup v2 only a group of its own, delegated by systemd, has controllers; the scope's process is the daemon itself.
fn daemon_command(door: Option<RawFd>) -> Command {
    let daemon = env!("CARGO_BIN_EXE_sandboxd");
    if let Some(door) = door {
        // sd_listen_fds(3): descriptor 3, and the pid that the daemon will have, as exec keeps it.
        let hand_over =
            // The umask is that of a careful administrator.
            "umask 077; exec 3<&\"$1\"; shift; export LISTEN_PID=$$ LISTEN_FDS=1 LISTEN_FDNAMES=sandboxd.socket; exec \"$@\"";
        let inner = daemon_command(None);
        let mut command = Command::new("bash");
        command.args(["-c", hand_over, "bash", &door.to_string()]).arg(inner.get_program()).args(inner.get_args());
        return command;
    }
    let unified = Path::new("/sys/fs/cgroup/cgroup.controllers").exists();
    if unified && Path::new("/run/systemd/system").exists() {
        let mut command = Command::new("systemd-run");
        command.args(["--scope", "--quiet", "--collect", "-p", "Delegate=yes", "--", daemon]);
        return command;
    }
    Command::new(daemon)
}

fn spawn(base: &Path, env: &[(&str, &str)], door: Option<&UnixListener>) -> Child {
    let log = File::options().create(true).append(true).open(base.join("daemon.log")).expect("the log can be made");
    let marker = File::create(base.join("inherited-by-accident")).expect("the marker can be made");
    let stdin = File::open(base.join("inherited-by-accident")).expect("the marker can be opened");
    let leaked = nix::unistd::dup(&marker).expect("a descriptor can be copied"); // dup(2) clears close-on-exec
    let door = door.map(|door| nix::unistd::dup(door).expect("a descriptor can be copied"));
    let child = daemon_command(door.as_ref().map(AsRawFd::as_raw_fd))
        .arg("--config")
        .arg(base.join("sandboxd.toml"))
        .env(SECRET_NAME, SECRET_VALUE)
        .envs(env.iter().copied())
        .stdin(stdin)
        .stdout(Stdio::from(log.try_clone().expect("the log can be shared")))
        .stderr(Stdio::from(log))
        .spawn()
        .expect("sandboxd can be started");
    drop((leaked, door));
    child
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("── log of the daemon ──\n{}", self.log());
        }
        if self.ended.is_some() {
            return;
        }
        let below = processes::descendants_with_start(self.front_pid());
        let _ = kill(Pid::from_raw(self.front_pid()), Signal::SIGTERM);
        let end = Instant::now() + patient(STOP_DEADLINE);
        while Instant::now() < end && self.child.try_wait().is_ok_and(|ended| ended.is_none()) {
            std::thread::sleep(LOOK_AGAIN);
        }
        let _ = self.child.kill(); // an error means that SIGTERM was enough
        let _ = self.child.wait();
        // Whoever of its own is left, by pid and start time, so that no stranger with the same number is meant.
        for (pid, start) in below {
            if processes::stat(pid).is_some_and(|stat| stat.start == start) {
                let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
            }
        }
    }
}
