//! `sandboxctl bench`: what a sandbox costs on this host, against the same program started without one.
//!
//! ```text
//! round:  raw × BATCH ─▶ sandboxd × BATCH ─▶ rest until the pool is full      next round: sandboxd first
//! ```
//!
//! Both sides take turns, so that whatever else the machine does hits both, and do the same work: start the program with
//! three pipes, close its stdin, read what it says, take the exit code. Raw is posix_spawn by this process. The first
//! call of each does not count. This is the short form of `make bench`.
#![forbid(unsafe_code)]

use super::amount;
use crate::api::wire::{ExecAnswer, HealthAnswer, PoolAnswer};
use crate::ctl::client::{Client, Kept};
use crate::ctl::figures::{Summary, ratio_by_round};
use crate::ctl::output;
use crate::ctl::{Context, CtlError, Form, blocking};
use crate::model::{DEFAULT_PROFILE, Ending};
use serde_json::{Value, json};
use std::process::{Command, Stdio};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};
use tokio::task::JoinSet;
use tokio::time::sleep;

/// Calls of one client in one turn: short against the machine's moods.
const BATCH: usize = 10;
/// More would measure this process.
const CLIENTS_MAX: u16 = 64;
/// What was run is cleared up by then, at the least.
const REST: Duration = Duration::from_millis(20);
/// A pool that is not full by then has something better to do.
const FULL_DEADLINE: Duration = Duration::from_secs(1);

/// Flags of `bench`.
#[derive(Debug, clap::Args)]
#[command(after_help = "The daemon's own records are written for every call, as for any other.")]
pub struct Bench {
    /// Clients at once, each with a connection of its own
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=i64::from(CLIENTS_MAX)))]
    clients: u16,

    /// How long to measure
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: u64,

    /// Calls of each side instead of a time
    #[arg(long, value_name = "N", conflicts_with = "seconds", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    count: Option<u64>,

    /// Profile to run under
    #[arg(long, value_name = "PROFILE", default_value = DEFAULT_PROFILE)]
    profile: String,

    /// One call of each client every so often, as agents call, instead of one after the other [default: 50ms]
    #[arg(long, value_name = "TIME", value_parser = amount::duration_ms, num_args = 0..=1, require_equals = true, default_missing_value = "50ms")]
    paced: Option<u64>,

    /// The program, by a path that is the same on this host and in the sandbox, and its arguments
    #[arg(trailing_var_arg = true, value_name = "CMD", default_value = "/bin/true")]
    words: Vec<String>,
}

/// What one side's calls took.
#[derive(Debug, Default)]
struct Side {
    rounds: Vec<Vec<f64>>,
    busy: Duration,
}

impl Side {
    fn add(&mut self, (times, busy): Turn) {
        self.rounds.push(times);
        self.busy += busy;
    }
}

/// Milliseconds of each call of a turn, and how long the turn took.
type Turn = (Vec<f64>, Duration);

impl Bench {
    /// Measures and tells.
    pub async fn perform(self, context: &Context) -> Result<u8, CtlError> {
        let mut kept = Vec::new();
        for _ in 0..self.clients {
            kept.push(context.client.keep().await?);
        }
        self.raw_turn(1).await?;
        self.daemon_turn(&mut kept, 1).await?;
        self.rest(&context.client).await?;
        let before = self.pool(&context.client).await?;

        let (mut raw, mut ours) = (Side::default(), Side::default());
        let begun = Instant::now();
        while !self.is_done(raw.rounds.iter().map(Vec::len).sum(), begun.elapsed()) {
            let batch = self.batch(raw.rounds.iter().map(Vec::len).sum());
            // Another one first each time: nobody always has the other's cold caches.
            if raw.rounds.len().is_multiple_of(2) {
                raw.add(self.raw_turn(batch).await?);
                ours.add(self.daemon_turn(&mut kept, batch).await?);
            } else {
                ours.add(self.daemon_turn(&mut kept, batch).await?);
                self.rest(&context.client).await?;
                raw.add(self.raw_turn(batch).await?);
            }
            self.rest(&context.client).await?;
        }
        let found = before.zip(self.pool(&context.client).await?);
        let misses = found.map_or(0, |(before, after)| after.misses.saturating_sub(before.misses));
        match context.form {
            Form::Json => {
                let text = self.json(&raw, &ours, misses).to_string();
                context.out.json(text.as_bytes())?;
            }
            Form::Text => self.tell(context, &raw, &ours, misses)?,
        }
        Ok(0)
    }

    fn is_done(&self, calls: usize, elapsed: Duration) -> bool {
        match self.count {
            Some(count) => calls as u64 >= count,
            None => elapsed >= Duration::from_secs(self.seconds),
        }
    }

    /// How many calls each client makes in the next turn: paced ones take their time, and the last turn is what is left.
    fn batch(&self, made: usize) -> usize {
        let batch = if self.paced.is_some() { 1 } else { BATCH };
        let left = self.count.map_or(u64::MAX, |count| count.saturating_sub(made as u64));
        batch.min(usize::try_from(left.div_ceil(u64::from(self.clients))).unwrap_or(batch)).max(1)
    }

    /// The beat before a turn.
    async fn beat(&self) {
        if let Some(pace) = self.paced {
            sleep(Duration::from_millis(pace)).await;
        }
    }

    async fn raw_turn(&self, batch: usize) -> Result<Turn, CtlError> {
        self.beat().await;
        let (words, clients) = (Arc::new(self.words.clone()), usize::from(self.clients));
        blocking(move || {
            let start = Arc::new(Barrier::new(clients));
            let spawn = |_| {
                let (words, start) = (words.clone(), start.clone());
                std::thread::spawn(move || {
                    start.wait();
                    let begun = Instant::now();
                    let times = (0..batch).map(|_| raw_call(&words)).collect::<Result<Vec<f64>, CtlError>>()?;
                    Ok((times, begun, Instant::now()))
                })
            };
            let threads: Vec<_> = (0..clients).map(spawn).collect();
            turn(
                threads
                    .into_iter()
                    .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))),
            )
        })
        .await
    }

    async fn daemon_turn(&self, kept: &mut Vec<Kept>, batch: usize) -> Result<Turn, CtlError> {
        self.beat().await;
        let request = json!({"profile": self.profile,
            "exec": {"kind": "process", "command": self.words[0], "args": self.words[1..]}});
        let mut clients = JoinSet::new();
        for mut connection in kept.drain(..) {
            let request = request.clone();
            clients.spawn(async move {
                let (mut times, begun) = (Vec::with_capacity(batch), Instant::now());
                for _ in 0..batch {
                    times.push(daemon_call(&mut connection, &request).await?);
                }
                Ok::<_, CtlError>((connection, (times, begun, Instant::now())))
            });
        }
        let mut done = Vec::new();
        while let Some(client) = clients.join_next().await {
            let (connection, timed) = client.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()))?;
            kept.push(connection);
            done.push(Ok(timed));
        }
        turn(done.into_iter())
    }

    async fn pool(&self, client: &Client) -> Result<Option<PoolAnswer>, CtlError> {
        let health = client.get::<HealthAnswer>("/v1/health").await?.value;
        Ok(health.pool.into_iter().find(|pool| pool.profile == self.profile))
    }

    /// Until nothing of the last turn is left to do, so that it is not the next one's burden.
    async fn rest(&self, client: &Client) -> Result<(), CtlError> {
        sleep(REST).await;
        let deadline = Instant::now() + FULL_DEADLINE;
        while self.pool(client).await?.is_some_and(|pool| pool.idle < pool.target) && Instant::now() < deadline {
            sleep(REST / 4).await;
        }
        Ok(())
    }

    fn way(&self) -> String {
        let clients = if self.clients == 1 { "1 client".to_owned() } else { format!("{} clients", self.clients) };
        let way = self.paced.map_or_else(|| "back to back".to_owned(), |pace| format!("one call every {pace} ms"));
        format!("{}: {clients}, {way}, profile {}", self.words.join(" "), self.profile)
    }

    fn tell(&self, context: &Context, raw: &Side, ours: &Side, misses: u64) -> Result<(), CtlError> {
        let (one, other) = (Summary::of(&raw.rounds, raw.busy), Summary::of(&ours.rounds, ours.busy));
        let row = |name: &str, of: &dyn Fn(fn(&Summary) -> f64) -> f64, digits: usize, rate_digits: usize| {
            let time = |figure: fn(&Summary) -> f64| format!("{:>8.digits$}", of(figure));
            // It is the pace that sets how many there are.
            let rate = if self.paced.is_some() {
                String::new()
            } else {
                format!("{:>8.rate_digits$}", of(|side| side.per_second))
            };
            [name.to_owned(), time(|side| side.p50), time(|side| side.p95), time(|side| side.p99), rate]
        };
        let rate = if self.paced.is_some() { "" } else { " execs/s" };
        let head = ["ms", "     p50", "     p95", "     p99", rate].map(str::to_owned);
        let rows = [
            head,
            row("raw", &|figure| figure(&one), 3, 0),
            row("sandboxd", &|figure| figure(&other), 3, 0),
            row("ratio", &|figure| figure(&other) / figure(&one), 2, 2),
        ];
        let (middle, low, high) = ratio_by_round(&ours.rounds, &raw.rounds);
        context.out.line(&output::plain(&self.way()))?;
        output::table(&context.out, &rows)?;
        context.out.line(&format!("p50 by round: {middle:.2} times raw's ({low:.2} to {high:.2} in nine of ten)"))?;
        context.out.line(&format!("{} calls of each in turn; noise: {}", other.calls, one.noise()))?;
        if misses > 0 {
            context.out.line(&format!("{misses} calls found no sandbox waiting and built their own"))?;
        }
        Ok(())
    }

    fn json(&self, raw: &Side, ours: &Side, misses: u64) -> Value {
        let (one, other) = (Summary::of(&raw.rounds, raw.busy), Summary::of(&ours.rounds, ours.busy));
        let side = |side: &Summary| {
            json!({
                "calls": side.calls, "p50_ms": side.p50, "p95_ms": side.p95, "p99_ms": side.p99,
                "execs_per_second": side.per_second, "round_p50_ms": {"p5": side.round_p50.0, "p95": side.round_p50.1},
            })
        };
        let (middle, low, high) = ratio_by_round(&ours.rounds, &raw.rounds);
        json!({
            "program": self.words, "profile": self.profile, "clients": self.clients, "paced_ms": self.paced,
            "rounds": raw.rounds.len(), "raw": side(&one), "sandboxd": side(&other),
            "ratio": {
                "p50": other.p50 / one.p50, "p95": other.p95 / one.p95, "p99": other.p99 / one.p99,
                "execs_per_second": other.per_second / one.per_second,
                "p50_by_round": {"p50": middle, "p5": low, "p95": high},
            },
            "noise": one.noise(),
            "found_nothing_waiting": misses,
        })
    }
}

/// Times of each client, with when it began and ended.
type Timed = Result<(Vec<f64>, Instant, Instant), CtlError>;

fn turn(clients: impl Iterator<Item = Timed>) -> Result<Turn, CtlError> {
    let clients = clients.collect::<Result<Vec<_>, _>>()?;
    let (begun, ended) = (clients.iter().map(|client| client.1).min(), clients.iter().map(|client| client.2).max());
    let busy = ended.zip(begun).map_or(Duration::ZERO, |(ended, begun)| ended - begun);
    Ok((clients.into_iter().flat_map(|client| client.0).collect(), busy))
}

/// One call without a sandbox, in milliseconds. std uses posix_spawn, the fastest fork+exec there is.
fn raw_call(words: &[String]) -> Result<f64, CtlError> {
    let begun = Instant::now();
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]).env_clear().stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let unable = |source| CtlError::RawSpawn { program: words[0].clone(), source };
    let output = command.spawn().and_then(std::process::Child::wait_with_output).map_err(unable)?;
    match output.status.success() {
        true => Ok(begun.elapsed().as_secs_f64() * 1000.0),
        false => Err(CtlError::BenchEnded { whose: "without a sandbox", end: output.status.to_string() }),
    }
}

/// One call in a sandbox.
async fn daemon_call(connection: &mut Kept, request: &Value) -> Result<f64, CtlError> {
    let begun = Instant::now();
    let answer = connection.post::<_, ExecAnswer>("/v1/execs", request).await?.value;
    match answer.status {
        Ending::Ok => Ok(begun.elapsed().as_secs_f64() * 1000.0),
        other => {
            let word = serde_json::to_value(other).ok().and_then(|word| word.as_str().map(str::to_owned));
            let why = answer.start_error.map(|why| format!(" ({why})")).unwrap_or_default();
            let end = format!("{}{why}", word.unwrap_or_default());
            Err(CtlError::BenchEnded { whose: "in the sandbox", end })
        }
    }
}
