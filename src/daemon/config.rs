//! `sandboxd.toml` and the command line. Every key may be left out; unknown ones are refused with their line.

use super::StoreRules;
use crate::api::AccessRules;
use crate::evidence::EvidenceSettings;
use crate::pipeline::{PressureSettings, RetentionSettings, SandboxSettings, SessionSettings, WarmSettings};
use crate::workspace::IMAGE_MIN_BYTES;
use anyhow::{Context, bail};
use clap::Parser;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// Read if it is there and no `--config` was given.
const DEFAULT_FILE: &str = "/etc/sandboxd/sandboxd.toml";

/// Smaller, and evidence would be sealed after every few thousand records.
const LIVE_MIN_BYTES: u64 = 16 << 20;

/// The daemon that runs code in sandboxes.
#[derive(Debug, Parser)]
#[command(name = "sandboxd", version, about)]
pub struct Arguments {
    /// Config file; without it /etc/sandboxd/sandboxd.toml if there is one, else the embedded defaults
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Directory for the socket and the pid file
    #[arg(long, value_name = "DIR")]
    run_dir: Option<PathBuf>,
    /// Directory for workspaces
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,
    /// Shape of log lines on standard error
    #[arg(long, value_enum, default_value_t = LogFormat::Text)]
    pub log_format: LogFormat,
    /// Check config, profiles and filters, then what this host lacks and its cure, then leave
    #[arg(long)]
    pub check: bool,
    /// Write man pages and completions below a directory, then leave
    #[arg(long, value_name = "DIR", hide = true)]
    pub manual: Option<PathBuf>,
}

/// Shape of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object per line.
    Json,
}

/// The daemon's settings.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Socket and pid file.
    pub run_dir: PathBuf,
    /// Workspaces.
    pub state_dir: PathBuf,
    /// The package's `profiles/` and `seccomp/`.
    pub shared_dir: PathBuf,
    /// The operator's profiles.
    pub profiles_dir: Option<PathBuf>,
    /// The operator's filters.
    pub seccomp_dir: Option<PathBuf>,
    /// Who the front runs as and whose the files are.
    pub service_user: String,
    /// Execs at once.
    pub max_concurrent_execs: usize,
    /// Execs that may wait for a place.
    pub max_queued_execs: usize,
    /// Seconds that a request waits for a person's consent.
    pub consent_seconds: u64,
    /// Seconds that running execs get when the daemon stops.
    pub drain_seconds: u64,
    /// Sandboxes that wait for a run.
    pub pool: PoolRules,
    /// When execs wait although there is a place.
    pub admission: PressureSettings,
    /// Who may call.
    pub access: AccessRules,
    /// How what was done is recorded.
    pub evidence: EvidenceSettings,
    /// How long sandboxes live, and how many.
    pub sandboxes: SandboxSettings,
    /// How long sessions lie idle, and how many.
    pub sessions: SessionSettings,
    /// Python that waits ahead.
    pub warm_python: WarmSettings,
    /// How long it is known what ran.
    pub retention: RetentionSettings,
    /// Where workspaces lie.
    pub store: StoreRules,
}

/// `[pool]`: how many sandboxes of each profile are built ahead. Each is used once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PoolRules {
    /// At least so many wait, asked for or not.
    pub min: u16,
    /// At most so many, by recent demand; 0 builds none ahead.
    pub max: u16,
}

impl Default for PoolRules {
    fn default() -> Self {
        Self { min: 1, max: 8 }
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            run_dir: PathBuf::from("/run/sandboxd"),
            state_dir: PathBuf::from("/var/lib/sandboxd"),
            shared_dir: PathBuf::from("/usr/share/sandboxd"),
            profiles_dir: Some(PathBuf::from("/etc/sandboxd/profiles")),
            seccomp_dir: Some(PathBuf::from("/etc/sandboxd/seccomp")),
            service_user: "sandboxd".to_owned(),
            max_concurrent_execs: 4,
            max_queued_execs: 64,
            consent_seconds: 300,
            drain_seconds: 5,
            pool: PoolRules::default(),
            admission: PressureSettings::default(),
            access: AccessRules::default(),
            evidence: EvidenceSettings::default(),
            sandboxes: SandboxSettings::default(),
            sessions: SessionSettings::default(),
            warm_python: WarmSettings::default(),
            retention: RetentionSettings::default(),
            store: StoreRules::default(),
        }
    }
}

impl Config {
    /// The settings that the command line asks for.
    pub fn from_arguments(arguments: &Arguments) -> anyhow::Result<Self> {
        let default_file = Path::new(DEFAULT_FILE);
        let mut config = match &arguments.config {
            Some(file) => Self::read(file)?,
            None if default_file.exists() => Self::read(default_file)?,
            None => Self::default(),
        };
        if let Some(directory) = &arguments.run_dir {
            config.run_dir.clone_from(directory);
        }
        if let Some(directory) = &arguments.state_dir {
            config.state_dir.clone_from(directory);
        }
        config.check()?;
        Ok(config)
    }

    fn read(file: &Path) -> anyhow::Result<Self> {
        let text = std::fs::read_to_string(file).with_context(|| format!("could not read {}", file.display()))?;
        Self::parse(&text).with_context(|| format!("in {}", file.display()))
    }

    fn parse(text: &str) -> anyhow::Result<Self> {
        // The parser's own text shows line, column and the key.
        toml::from_str(text).map_err(|error| anyhow::anyhow!("{error}"))
    }

    fn check(&self) -> anyhow::Result<()> {
        for (key, directory) in
            [("run_dir", &self.run_dir), ("state_dir", &self.state_dir), ("shared_dir", &self.shared_dir)]
        {
            if !directory.is_absolute() {
                bail!("{key} is {}; it must be an absolute path", directory.display());
            }
        }
        if !(1..=4096).contains(&self.max_concurrent_execs) {
            bail!("max_concurrent_execs is {}; it must be 1 to 4096", self.max_concurrent_execs);
        }
        if self.max_queued_execs > 65_536 {
            bail!("max_queued_execs is {}; it must be at most 65536", self.max_queued_execs);
        }
        if !(1..=86_400).contains(&self.consent_seconds) {
            bail!("consent_seconds is {}; it must be 1 to 86400", self.consent_seconds);
        }
        if self.evidence.live_max_bytes < LIVE_MIN_BYTES {
            bail!("evidence.live_max_bytes is {}; it must be at least {LIVE_MIN_BYTES}", self.evidence.live_max_bytes);
        }
        if self.evidence.live_max_days == 0 {
            bail!("evidence.live_max_days is 0; it must be at least 1");
        }
        let PoolRules { min, max } = self.pool;
        if max > 64 || min > max {
            bail!("pool.min is {min} and pool.max {max}; max must be at most 64, and min not above it");
        }
        let SessionSettings { idle_s, max_per_sandbox, max_per_owner } = self.sessions;
        if idle_s == 0 || max_per_sandbox == 0 || max_per_owner == 0 {
            bail!("sessions.idle_s, max_per_sandbox and max_per_owner must be at least 1");
        }
        if let Some(problem) = self.warm_python.problem().or_else(|| self.admission.problem()) {
            bail!("{problem}");
        }
        let SandboxSettings { default_ttl_s, max_ttl_s, max_per_owner } = self.sandboxes;
        if !(1..=31_622_400).contains(&max_ttl_s) || !(1..=max_ttl_s).contains(&default_ttl_s) {
            bail!("sandboxes.default_ttl_s is {default_ttl_s}, max_ttl_s is {max_ttl_s}; 1 to 31622400, in this order");
        }
        if max_per_owner == 0 {
            bail!("sandboxes.max_per_owner is 0; it must be at least 1");
        }
        if self.store.image_bytes.is_some_and(|bytes| bytes < IMAGE_MIN_BYTES) {
            bail!("store.image_bytes must be at least {IMAGE_MIN_BYTES}");
        }
        if !(1..=1000).contains(&self.store.max_snapshots) {
            bail!("store.max_snapshots is {}; it must be 1 to 1000", self.store.max_snapshots);
        }
        if self.retention.exec_days == 0 || self.retention.execs_per_owner == 0 {
            bail!("retention.exec_days and retention.execs_per_owner must be at least 1");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_file_is_the_defaults() {
        let config = Config::parse("").expect("no keys");
        assert_eq!(config.run_dir, Path::new("/run/sandboxd"));
        assert_eq!(config.max_concurrent_execs, 4);
        assert_eq!(config.access, AccessRules::default());
    }

    #[test]
    fn an_unknown_key_is_refused_with_its_line() {
        let error = Config::parse("run_dir = \"/x\"\ncolour = 1\n").expect_err("colour").to_string();
        assert!(error.contains("line 2") && error.contains("colour"), "{error}");
    }

    #[test]
    fn evidence_is_durable_unless_the_config_says_otherwise() {
        use crate::evidence::Durability;
        assert_eq!(Config::default().evidence.durability, Durability::Fsync);
        let text = "[evidence]\ndurability = \"process\"\nlive_max_bytes = 16777216\nlive_max_days = 7\n";
        let config = Config::parse(text).expect("known keys");
        assert_eq!(config.evidence.durability, Durability::Process);
        assert!(config.check().is_ok());
        assert!(Config::parse("[evidence]\ndurability = \"maybe\"\n").is_err());
        let none = EvidenceSettings { live_max_days: 0, ..EvidenceSettings::default() };
        assert!(Config { evidence: none, ..Config::default() }.check().is_err());
    }

    #[test]
    fn a_pool_can_be_off_but_not_upside_down() {
        let checked = |text: &str| Config::parse(text).and_then(|config| config.check());
        assert!(checked("[pool]\nmin = 0\nmax = 0\n").is_ok());
        assert!(checked("[pool]\nmax = 64\n").is_ok());
        assert!(checked("[pool]\nmin = 4\nmax = 2\n").is_err());
        assert!(checked("[pool]\nmax = 65\n").is_err());
    }

    #[test]
    fn the_life_of_sandboxes_has_bounds() {
        let text = "[sandboxes]\ndefault_ttl_s = 60\nmax_ttl_s = 60\nmax_per_owner = 2\n[retention]\nexec_days = 1\n";
        let config = Config::parse(text).expect("known keys");
        assert!(config.check().is_ok());
        for bad in ["default_ttl_s = 0", "max_ttl_s = 1", "max_per_owner = 0"] {
            let config = Config::parse(&format!("[sandboxes]\n{bad}\n")).expect("known keys");
            assert!(config.check().is_err(), "{bad}");
        }
    }

    /// What `#key = value` in the file that is installed would set is what holds without it, and no table is left out.
    #[test]
    fn the_installed_file_shows_the_defaults() {
        let shown = include_str!("../../packaging/sandboxd.toml");
        let lines = shown.lines().filter_map(|line| line.strip_prefix('#')).filter(|line| !line.starts_with(' '));
        let text: String = lines.map(|line| format!("{line}\n")).collect();
        let config = Config::parse(&text).expect("known keys");
        assert_eq!(format!("{config:?}"), format!("{:?}", Config::default()));
        assert!(Config::parse(shown).is_ok());
        let manual = include_str!("../../packaging/man/sandboxd.toml.5");
        for key in text.lines().filter_map(|line| line.split_once(" = ")).map(|(key, _)| key) {
            assert!(manual.contains(&format!("\\fB{key}\\fR")), "{key} is not in sandboxd.toml(5)");
        }
    }

    #[test]
    fn a_relative_directory_is_refused() {
        let config = Config { run_dir: PathBuf::from("run"), ..Config::default() };
        assert!(config.check().is_err());
    }
}
