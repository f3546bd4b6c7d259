//! The rounds: who is called when, and how long each call took.

use super::contender::{Caller, Contender, Program};
use std::sync::Barrier;
use std::time::{Duration, Instant};

/// However little time there is, the spread between rounds needs a few.
const ROUNDS_MIN: usize = 5;

/// What one contender's calls took.
pub struct Series {
    /// raw, bwrap, cold or warm.
    pub name: &'static str,
    /// Milliseconds of each call, by round.
    pub rounds: Vec<Vec<f64>>,
    /// Time in which these calls were made, for calls per second.
    pub busy: Duration,
    /// Processor time of these calls in milliseconds, with what was cleared up and built anew after them.
    pub cpu_ms: f64,
}

/// How the calls of a cell follow each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// One after the other, so many per client and turn.
    Batches(usize),
    /// One per so much time.
    Paced(Duration),
}

/// One program called in one way by one number of clients.
pub struct Cell {
    /// What was run.
    pub program: Program,
    /// How many at once.
    pub clients: usize,
    /// In which way.
    pub mode: Mode,
    /// One per contender, the one to compare with first.
    pub series: Vec<Series>,
}

impl Cell {
    /// Rounds of batches until `budget` is used up. The first round warms up and does not count.
    pub fn interleaved(program: Program, batch: usize, budget: Duration, contenders: &mut [Contender<'_>]) -> Self {
        let mut cell = Self::empty(program, Mode::Batches(batch), contenders);
        for contender in contenders.iter_mut() {
            make_batch(&mut contender.callers, batch);
        }
        let start = Instant::now();
        let mut round = 0;
        while round < ROUNDS_MIN || start.elapsed() < budget {
            for place in 0..contenders.len() {
                // Another one first each time: nobody always has the same predecessor's cold caches.
                let who = (round + place) % contenders.len();
                contenders[who].settle();
                let cpu = contenders[who].cpu.now();
                let began = Instant::now();
                let times = make_batch(&mut contenders[who].callers, batch);
                cell.series[who].busy += began.elapsed();
                contenders[who].settle();
                cell.series[who].cpu_ms += contenders[who].cpu.now() - cpu;
                cell.series[who].rounds.push(times);
            }
            round += 1;
        }
        cell
    }

    /// One call per `pace`, the contenders in turn, until each had `calls`. A round is one call of each.
    pub fn paced(program: Program, pace: Duration, calls: usize, contenders: &mut [Contender<'_>]) -> Self {
        let mut cell = Self::empty(program, Mode::Paced(pace), contenders);
        for contender in contenders.iter_mut() {
            contender.callers[0].call();
        }
        // A machine on which calls take longer than the beat gets fewer calls, not a longer bench.
        let end = Instant::now() + pace * (calls * contenders.len() * 5 / 4) as u32;
        let mut next = Instant::now();
        for _ in 0..calls {
            for (contender, series) in contenders.iter_mut().zip(&mut cell.series) {
                // At least half a beat of rest, also after a call that overran.
                next = (next + pace).max(Instant::now() + pace / 2);
                std::thread::sleep(next.saturating_duration_since(Instant::now()));
                let time = timed(&mut contender.callers[0]);
                series.busy += Duration::from_secs_f64(time / 1000.0);
                series.rounds.push(vec![time]);
            }
            if Instant::now() >= end {
                break;
            }
        }
        cell
    }

    fn empty(program: Program, mode: Mode, contenders: &[Contender<'_>]) -> Self {
        let clients = contenders.first().map_or(0, |contender| contender.callers.len());
        let series = contenders.iter().map(|contender| Series {
            name: contender.name,
            rounds: Vec::new(),
            busy: Duration::ZERO,
            cpu_ms: 0.0,
        });
        Self { program, clients, mode, series: series.collect() }
    }
}

/// One call, in milliseconds.
fn timed(caller: &mut Caller) -> f64 {
    let start = Instant::now();
    caller.call();
    start.elapsed().as_secs_f64() * 1000.0
}

/// So many calls of each client, all clients at once.
fn make_batch(callers: &mut [Caller], batch: usize) -> Vec<f64> {
    if let [caller] = callers {
        return (0..batch).map(|_| timed(caller)).collect();
    }
    let start = Barrier::new(callers.len());
    std::thread::scope(|scope| {
        let clients: Vec<_> = callers
            .iter_mut()
            .map(|caller| {
                let start = &start;
                scope.spawn(move || {
                    start.wait();
                    (0..batch).map(|_| timed(caller)).collect::<Vec<f64>>()
                })
            })
            .collect();
        clients.into_iter().flat_map(|client| client.join().expect("a client that failed has said why")).collect()
    })
}
