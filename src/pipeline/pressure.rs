//! Whether the host can carry one more exec: read from the kernel now and then, told to admission as one word.
//!
//! ```text
//! somebody runs or waits ─▶ every LOOK: read ─▶ rule ─▶ one atomic, which is all that an exec on its way looks at
//! nobody                 ─▶ nothing is read
//! ```
//!
//! **The rule.** Execs are held back in the bounded queue while one of these is so:
//!
//! - `cpu`: of the last ten seconds some task waited for a processor in more than `cpu_percent` of the time
//!   (`some avg10` of PSI's `cpu`). One exec for each processor is let in all the same: fewer would leave some idle.
//! - `memory`: likewise for memory, `memory_percent`.
//! - `available`: the kernel has less than `memory_reserve_bytes` and, of what the running execs may use together,
//!   `memory_share_percent` to give (`MemAvailable`).
//!
//! One exec is always let in when none runs, so that nothing waits for what nobody will give back. What a kernel does not
//! tell (PSI can be off) holds nobody back. A reading that makes no sense changes nothing.

use serde::Deserialize;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

/// How often the kernel is asked while something runs or waits. Its own averages change every two seconds.
pub(super) const LOOK: Duration = Duration::from_millis(200);
/// The largest file that is read: /proc/meminfo has about 1.5 KiB, its first three lines are what counts.
const READ_MAX: usize = 4096;

/// `[admission]` of the config.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PressureSettings {
    /// Where the kernel tells pressure: the directory with `cpu` and `memory`.
    pub pressure_dir: PathBuf,
    /// Above this share of time in which some task waits for a processor, execs are held back; 100: never.
    pub cpu_percent: u8,
    /// The same for memory.
    pub memory_percent: u8,
    /// So much memory stays available.
    pub memory_reserve_bytes: u64,
    /// And this share of what the running execs may use together.
    pub memory_share_percent: u8,
}

impl Default for PressureSettings {
    fn default() -> Self {
        Self {
            pressure_dir: PathBuf::from("/proc/pressure"),
            cpu_percent: 90,
            memory_percent: 20,
            memory_reserve_bytes: 128 << 20,
            memory_share_percent: 25,
        }
    }
}

impl PressureSettings {
    /// What is wrong with it, if something is.
    #[must_use]
    pub fn problem(&self) -> Option<String> {
        let shares = [
            ("cpu_percent", self.cpu_percent),
            ("memory_percent", self.memory_percent),
            ("memory_share_percent", self.memory_share_percent),
        ];
        match shares.into_iter().find(|(_, percent)| *percent > 100) {
            Some((name, percent)) => Some(format!("admission.{name} is {percent}; at most 100")),
            None if !self.pressure_dir.is_absolute() => {
                Some(format!("admission.pressure_dir is {}; it must be an absolute path", self.pressure_dir.display()))
            }
            None => None,
        }
    }
}

/// Where the kernel tells how it is, opened while that is still permitted.
#[derive(Debug, Default)]
pub struct PressureFiles {
    cpu: Option<File>,
    memory: Option<File>,
    meminfo: Option<File>,
}

impl PressureFiles {
    /// Opens what there is below the directory, and /proc/meminfo.
    #[must_use]
    pub fn open(directory: &Path) -> Self {
        let open = |path: PathBuf| File::open(path).ok(); // what is not there holds nobody back, and health tells
        Self {
            cpu: open(directory.join("cpu")),
            memory: open(directory.join("memory")),
            meminfo: open(PathBuf::from("/proc/meminfo")),
        }
    }
}

/// What the kernel said.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Reading {
    /// Hundredths of a percent.
    cpu: Option<u32>,
    memory: Option<u32>,
    available_bytes: Option<u64>,
}

/// Why execs are held back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Short {
    /// Tasks wait for processors.
    Cpu,
    /// Tasks wait for memory.
    Memory,
    /// Too little memory is left.
    Available,
}

impl Short {
    const ALL: [Self; 3] = [Self::Cpu, Self::Memory, Self::Available];

    /// Its name on the wire.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Memory => "memory",
            Self::Available => "available",
        }
    }
}

/// How admission stands, for health and doctor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PressureView {
    /// Whether the kernel tells pressure (PSI).
    pub pressure_known: bool,
    /// Whether it tells how much memory is available.
    pub memory_known: bool,
    /// Why execs are held back, if they are.
    pub held_back: Option<Short>,
}

/// The last word on it.
#[derive(Debug)]
pub(super) struct Pressure {
    settings: PressureSettings,
    files: PressureFiles,
    processors: usize,
    /// 0, or one more than the index in `Short::ALL`.
    short: AtomicU8,
}

impl Pressure {
    pub(super) fn new(settings: PressureSettings, files: PressureFiles) -> Self {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        Self { settings, files, processors, short: AtomicU8::new(0) }
    }

    /// Why execs are held back, if they are.
    pub(super) fn short(&self) -> Option<Short> {
        let index = usize::from(self.short.load(Ordering::Relaxed)).checked_sub(1)?;
        Short::ALL.get(index).copied()
    }

    /// How many may run whatever the host is short of.
    pub(super) fn most(&self) -> usize {
        match self.short() {
            None => usize::MAX,
            Some(Short::Cpu) => self.processors,
            Some(Short::Memory | Short::Available) => 1,
        }
    }

    /// Reads and decides, with what the running execs may use together. Whether the word has changed.
    pub(super) fn look(&self, running_bytes: u64) -> bool {
        let short = rule(&self.settings, self.read(), running_bytes);
        self.set(short)
    }

    /// Nothing runs and nothing waits: whoever comes next finds it open.
    pub(super) fn open(&self) {
        self.set(None);
    }

    fn set(&self, short: Option<Short>) -> bool {
        let word = short.map_or(0, |short| short as u8 + 1);
        let changed = self.short.swap(word, Ordering::Relaxed) != word;
        if changed {
            tracing::info!(short = short.map_or("nothing", Short::name), "whether execs are held back has changed");
        }
        changed
    }

    fn read(&self) -> Reading {
        let text = |file: &Option<File>| {
            let mut bytes = [0; READ_MAX];
            let len = file.as_ref()?.read_at(&mut bytes, 0).ok()?;
            Some(String::from_utf8_lossy(&bytes[..len]).into_owned())
        };
        let PressureFiles { cpu, memory, meminfo } = &self.files;
        Reading {
            cpu: text(cpu).as_deref().and_then(some_avg10),
            memory: text(memory).as_deref().and_then(some_avg10),
            available_bytes: text(meminfo).as_deref().and_then(mem_available),
        }
    }

    pub(super) fn view(&self) -> PressureView {
        let reading = self.read();
        PressureView {
            pressure_known: reading.cpu.is_some() && reading.memory.is_some(),
            memory_known: reading.available_bytes.is_some(),
            held_back: self.short(),
        }
    }
}

impl super::Pipeline {
    /// Looks at the host while something runs or waits, for as long as the daemon lives.
    pub async fn watch_pressure(self) {
        self.0.admission.watch().await;
    }

    /// What is known of the host, and whether execs are held back for it.
    #[must_use]
    pub fn pressure(&self) -> PressureView {
        self.0.admission.pressure()
    }
}

/// The rule of this module's head.
fn rule(settings: &PressureSettings, reading: Reading, running_bytes: u64) -> Option<Short> {
    let above = |hundredths: Option<u32>, percent: u8| hundredths.is_some_and(|much| much > u32::from(percent) * 100);
    let share = running_bytes / 100 * u64::from(settings.memory_share_percent);
    let needed = settings.memory_reserve_bytes.saturating_add(share);
    match reading {
        Reading { available_bytes: Some(available), .. } if available < needed => Some(Short::Available),
        Reading { memory, .. } if above(memory, settings.memory_percent) => Some(Short::Memory),
        Reading { cpu, .. } if above(cpu, settings.cpu_percent) => Some(Short::Cpu),
        _ => None,
    }
}

/// `some avg10=1.23 avg60=…` in hundredths of a percent.
fn some_avg10(text: &str) -> Option<u32> {
    let some = text.lines().find_map(|line| line.strip_prefix("some "))?;
    let (whole, part) = some.split_whitespace().find_map(|word| word.strip_prefix("avg10="))?.split_once('.')?;
    if part.len() != 2 {
        return None;
    }
    whole.parse::<u32>().ok()?.checked_mul(100)?.checked_add(part.parse().ok()?)
}

/// `MemAvailable:   123 kB` in bytes.
fn mem_available(text: &str) -> Option<u64> {
    let rest = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    rest.trim().strip_suffix(" kB")?.parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_text_is_read_and_anything_else_is_nothing() {
        let psi = "some avg10=12.05 avg60=0.00 avg300=0.00 total=1\nfull avg10=99.99 avg60=0.00 avg300=0.00 total=0\n";
        assert_eq!(some_avg10(psi), Some(1205));
        for wrong in ["", "full avg10=1.00", "some avg10=", "some avg10=1", "some avg10=1.2.3", "some avg10=-1.00"] {
            assert_eq!(some_avg10(wrong), None, "{wrong}");
        }
        assert_eq!(mem_available("MemTotal: 9 kB\nMemFree: 1 kB\nMemAvailable:     2048 kB\n"), Some(2 << 20));
        assert_eq!(mem_available("MemAvailable: lots\n"), None);
    }

    #[test]
    fn what_is_short_and_what_nobody_tells() {
        let settings = PressureSettings::default();
        let calm = Reading { cpu: Some(9000), memory: Some(2000), available_bytes: Some(128 << 20) };
        let (gib, reserve) = (1 << 30, 128 << 20);
        for (reading, running, expected) in [
            (Reading::default(), u64::MAX, None),
            (calm, 0, None),
            (Reading { cpu: Some(9001), ..calm }, 0, Some(Short::Cpu)),
            (Reading { memory: Some(2001), ..calm }, 0, Some(Short::Memory)),
            (Reading { available_bytes: Some(reserve - 1), ..calm }, 0, Some(Short::Available)),
            (Reading { available_bytes: Some(reserve + gib / 4), ..calm }, gib, None),
            (Reading { available_bytes: Some(reserve + gib / 4), ..calm }, 2 * gib, Some(Short::Available)),
        ] {
            assert_eq!(rule(&settings, reading, running), expected, "{reading:?} with {running}");
        }
        let never = PressureSettings { cpu_percent: 100, memory_percent: 100, ..settings };
        assert_eq!(rule(&never, Reading { cpu: Some(10_000), memory: Some(10_000), ..calm }, 0), None);
    }

    #[test]
    fn one_always_runs_and_for_processors_one_each() {
        let pressure = Pressure::new(PressureSettings::default(), PressureFiles::default());
        assert_eq!((pressure.short(), pressure.most()), (None, usize::MAX));
        for short in Short::ALL {
            assert!(pressure.set(Some(short)) && !pressure.set(Some(short)));
            assert_eq!(pressure.short(), Some(short));
            assert!(pressure.most() >= 1 && pressure.most() <= pressure.processors);
        }
    }
}
