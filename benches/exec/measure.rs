//! The rounds: who is called when, and how long each call took.

use super::contender::{Caller, Contender};
use super::cpu::{Account, Used};
use super::program::Program;
use std::sync::Barrier;
use std::time::{Duration, Instant};

/// However little time there is, the spread between rounds needs a few.
const ROUNDS_MIN: usize = 3;
/// A turn of one whose calls take long has fewer of them: about so much time for each client.
const TURN: Duration = Duration::from_millis(160);
/// A turn without a pause is so many times as long: what waited when it began is a small part of its calls. Not more: the
/// daemon closes a connection that is idle for ten seconds, and the others have their turns meanwhile.
const LASTING: usize = 5;

/// What one contender's calls took.
pub struct Series {
    /// The contender's.
    pub name: &'static str,
    /// Milliseconds of each call, by round.
    pub rounds: Vec<Vec<f64>>,
    /// Time in which these calls were made, for calls per second.
    pub busy: Duration,
    /// Processor time of these calls, with what was cleared up and built anew after them.
    pub cpu: Used,
    /// Calls that found nothing waiting where something should.
    pub misses: u64,
}

/// How the calls of a cell follow each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// One after the other, so many per client and turn at most.
    Batches(usize),
    /// The same in turns so long that what waited when one began is soon used up.
    Lasting(usize),
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
    /// Rounds of batches until `budget` is used up. What comes before the first warms up and does not count.
    pub fn interleaved(program: Program, lasting: bool, budget: Duration, contenders: &mut [Contender<'_>]) -> Self {
        let mut cell = Self::empty(program, Mode::Batches(0), contenders);
        let times = if lasting { LASTING } else { 1 };
        let most = program.batch(cell.clients) * times;
        cell.mode = if lasting { Mode::Lasting(most) } else { Mode::Batches(most) };
        let turn = TURN * times as u32;
        let batches: Vec<usize> = contenders.iter_mut().map(|contender| warmed_up(contender, turn, most)).collect();
        let start = Instant::now();
        let mut round = 0;
        while round < ROUNDS_MIN || start.elapsed() < budget {
            for place in 0..contenders.len() {
                // Another one first each time: nobody always has the same predecessor's cold caches.
                let who = (round + place) % contenders.len();
                let (contender, series) = (&mut contenders[who], &mut cell.series[who]);
                let (cpu, misses) = (contender.account.now(), contender.misses());
                let (times, busy) = make_batch(&mut contender.callers, contender.account, batches[who]);
                contender.settle();
                series.cpu.add(cpu, contender.account.now());
                series.misses += contender.misses() - misses;
                series.busy += busy;
                series.rounds.push(times);
            }
            round += 1;
        }
        cell
    }

    /// One call per `pace`, the contenders in turn, until each had `calls`. A round is one call of each.
    pub fn paced(program: Program, pace: Duration, calls: usize, contenders: &mut [Contender<'_>]) -> Self {
        let mut cell = Self::empty(program, Mode::Paced(pace), contenders);
        for contender in contenders.iter_mut() {
            contender.fill();
            contender.callers[0].call();
        }
        let misses: Vec<u64> = contenders.iter().map(Contender::misses).collect();
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
        for ((contender, series), before) in contenders.iter().zip(&mut cell.series).zip(misses) {
            series.misses = contender.misses() - before;
        }
        cell
    }

    fn empty(program: Program, mode: Mode, contenders: &[Contender<'_>]) -> Self {
        let clients = contenders.first().map_or(0, |contender| contender.callers.len());
        let series = contenders.iter().map(|contender| Series {
            name: contender.name,
            rounds: Vec::new(),
            busy: Duration::ZERO,
            cpu: Used::default(),
            misses: 0,
        });
        Self { program, clients, mode, series: series.collect() }
    }

    /// The series of one contender.
    pub fn of(&self, name: &str) -> Option<&Series> {
        self.series.iter().find(|series| series.name == name)
    }
}

/// How the calls of a cell follow each other, without numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// `Mode::Batches`
    Turns,
    /// `Mode::Lasting`
    Lasting,
    /// `Mode::Paced`
    Paced,
}

impl Mode {
    /// Its kind.
    pub fn way(self) -> Way {
        match self {
            Mode::Batches(_) => Way::Turns,
            Mode::Lasting(_) => Way::Lasting,
            Mode::Paced(_) => Way::Paced,
        }
    }
}

/// Which cell: program, clients, and how their calls follow each other.
pub type Place = (Program, usize, Way);

/// The cell of a place, if it was measured.
pub fn find(cells: &[Cell], place: Place) -> Option<&Cell> {
    cells.iter().find(|cell| (cell.program, cell.clients, cell.mode.way()) == place)
}

/// Fills its shelf, calls once for the caches and once for the time; how many calls its turns have.
fn warmed_up(contender: &mut Contender<'_>, turn: Duration, most: usize) -> usize {
    contender.fill();
    make_batch(&mut contender.callers, contender.account, 1);
    let (_, busy) = make_batch(&mut contender.callers, contender.account, 1);
    contender.settle();
    ((turn.as_secs_f64() / busy.as_secs_f64()) as usize).clamp(1, most)
}

/// One call, in milliseconds.
fn timed(caller: &mut Caller) -> f64 {
    let start = Instant::now();
    caller.call();
    start.elapsed().as_secs_f64() * 1000.0
}

/// So many calls of each client, all clients at once, on their contender's account: each call's milliseconds, and how
/// long all took.
fn make_batch(callers: &mut [Caller], account: &Account, batch: usize) -> (Vec<f64>, Duration) {
    let start = Barrier::new(callers.len());
    std::thread::scope(|scope| {
        let start = &start;
        let spawned = callers.iter_mut().map(|caller| {
            scope.spawn(move || {
                account.join();
                start.wait();
                let begun = Instant::now();
                let times = (0..batch).map(|_| timed(caller)).collect::<Vec<f64>>();
                (begun, times, Instant::now())
            })
        });
        let clients: Vec<_> = spawned.collect();
        let joined = clients.into_iter().map(|client| client.join().expect("a client that failed has said why"));
        let clients: Vec<_> = joined.collect();
        let begun = clients.iter().map(|client| client.0).min();
        let ended = clients.iter().map(|client| client.2).max();
        let busy = ended.zip(begun).map_or(Duration::ZERO, |(ended, begun)| ended - begun);
        (clients.into_iter().flat_map(|client| client.1).collect(), busy)
    })
}
