//! What waits costs memory: of its processes, and of the kernel's for its namespaces, mounts, groups and filters.
//!
//! Sandboxes are built and the machine is looked at before and after. Processes count by share (PSS), the kernel by what
//! the whole machine's grew by: slab, page tables, per-cpu, vmalloc (stacks, filters) and tmpfs. No account of a group
//! would do: much of a network namespace is on nobody's. Somebody else's work in between is in the figure, so it is done
//! a few times over and the median taken, and the growth of everything but the page cache told beside it.

use super::daemons::{self, POOL, Served};
use super::goals::{Goal, Unit};
use super::harness::{processes, wait_for};
use super::program::{PROFILE, Program};
use sandboxd::ctl::figures::{median, sorted};
use std::time::Duration;

/// Interpreters that wait, few and many: the rest of the daemon is the same in both.
const INTERPRETERS: [usize; 2] = [1, 9];
const START_DEADLINE: Duration = Duration::from_secs(60);
const SANDBOX_MOST_KIB: f64 = 600.0;
const PYTHON_MOST_MIB: f64 = 8.0;

/// One look, in KiB.
#[derive(Debug, Clone, Copy)]
struct Look {
    kernel: f64,
    processes: f64,
    /// Less is available when more is used.
    available: f64,
}

impl Look {
    fn now(served: &Served) -> Self {
        // Counters are kept per processor and added up once in a second, or when this is read (vm.rst).
        let _ = std::fs::read("/proc/sys/vm/stat_refresh"); // an old kernel only makes it less exact
        let of_machine = |name: &str| processes::kib("/proc/meminfo", name) as f64;
        let parts = ["Slab", "PageTables", "SecPageTables", "Percpu", "VmallocUsed", "Shmem"];
        let front = served.daemon.front_pid();
        let all = processes::descendants(front).into_iter().chain([front]);
        Self {
            kernel: parts.iter().map(|part| of_machine(part)).sum(),
            processes: all.map(|pid| processes::share_kib(pid) as f64).sum(),
            available: of_machine("MemAvailable"),
        }
    }
}

/// How much more one of `count` costs: kernel, processes, and what is available less.
#[derive(Debug, Clone, Copy)]
struct Cost {
    kernel: f64,
    processes: f64,
    available: f64,
}

impl Cost {
    fn of(before: Look, after: Look, count: f64) -> Self {
        Self {
            kernel: (after.kernel - before.kernel) / count,
            processes: (after.processes - before.processes) / count,
            available: (before.available - after.available) / count,
        }
    }

    fn sum(&self) -> f64 {
        self.kernel + self.processes
    }
}

/// The median of some costs as a goal, in its unit of so many KiB.
fn goal(name: &str, most: f64, unit: Unit, kib: f64, costs: &[Cost]) -> Goal {
    let of = |part: fn(&Cost) -> f64| median(costs.iter().map(part)) / kib;
    let sums = sorted(costs.iter().map(|cost| cost.sum() / kib));
    let note = format!(
        "kernel {:.1}, processes {:.1}; {} times, {:.1} to {:.1}; by MemAvailable {:.1}",
        of(|cost| cost.kernel),
        of(|cost| cost.processes),
        sums.len(),
        sums[0],
        sums[sums.len() - 1],
        of(|cost| cost.available),
    );
    Goal::most(name, most, unit, of(Cost::sum)).noted(note)
}

fn of_sandboxes() -> Cost {
    let served = Served::start("memory", &daemons::config(POOL, "process"));
    served.daemon.exec(&Program::True.request(PROFILE));
    served.daemon.wait_for_pool();
    let idle = |served: &Served| served.daemon.pool(PROFILE)["idle"].as_u64().unwrap_or(0) as f64;
    let (few, before) = (idle(&served), Look::now(&served));
    served.fill(PROFILE);
    let (many, after) = (idle(&served), Look::now(&served));
    served.stop();
    Cost::of(before, after, many - few)
}

fn of_interpreters() -> Cost {
    let looks = INTERPRETERS.map(|count| {
        let empty = Served::start("memory", &daemons::config(POOL, "process"));
        let nothing = Look::now(&empty);
        empty.stop();
        let served = Served::start("memory", &(daemons::config(POOL, "process") + &daemons::warm_python(count)));
        wait_for("interpreters wait", START_DEADLINE, || served.interpreters_wait(count).then_some(()));
        let look = Look::now(&served);
        served.stop();
        Cost::of(nothing, look, 1.0)
    });
    let [few, many] = looks;
    let count = (INTERPRETERS[1] - INTERPRETERS[0]) as f64;
    Cost {
        kernel: (many.kernel - few.kernel) / count,
        processes: (many.processes - few.processes) / count,
        available: (many.available - few.available) / count,
    }
}

/// Measures both, so many times.
pub fn measure(times: usize, python: bool) -> Vec<Goal> {
    let sandboxes: Vec<Cost> = (0..times).map(|_| of_sandboxes()).collect();
    let mut goals = vec![goal("memory of a waiting sandbox", SANDBOX_MOST_KIB, Unit::KiB, 1.0, &sandboxes)];
    if python {
        let interpreters: Vec<Cost> = (0..times).map(|_| of_interpreters()).collect();
        goals.push(goal("memory of a waiting interpreter", PYTHON_MOST_MIB, Unit::MiB, 1024.0, &interpreters));
    }
    goals
}
