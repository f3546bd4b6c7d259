//! A profile file: strict parsing with file and line.

use super::Profile;
use crate::model::{Capability, Layer, LimitError, Limits, Rootfs, Tcp};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

/// A profile that can't be used; the path and, where there is one, the line are in the text.
#[derive(Debug, thiserror::Error)]
pub enum ProfileError {
    /// The directory or a file in it can't be read.
    #[error("could not read {path}")]
    Read {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Not TOML, an unknown key, or a value of the wrong type.
    #[error("{path}:{line}: {message}")]
    Parse {
        /// Which file.
        path: PathBuf,
        /// Which line.
        line: usize,
        /// The parser's words.
        message: String,
    },
    /// A limit that does not exist or is out of bounds.
    #[error("{path}: {source}")]
    Limit {
        /// Which file.
        path: PathBuf,
        /// Which limit.
        source: LimitError,
    },
    /// A rootfs that is neither "host" nor an absolute path.
    #[error("{path}: rootfs is {given:?}; it must be \"host\" or an absolute path")]
    Rootfs {
        /// Which file.
        path: PathBuf,
        /// What it says.
        given: String,
    },
    /// An id that can't be used in a URL or a file name.
    #[error("{path}: id is {given:?}; it must have 1 to 64 characters of a-z 0-9 -")]
    Id {
        /// Which file.
        path: PathBuf,
        /// What it says.
        given: String,
    },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawProfile {
    id: String,
    description: String,
    #[serde(default = "host")]
    rootfs: String,
    capabilities: Vec<Capability>,
    #[serde(default)]
    layers: RawLayers,
    #[serde(default)]
    seccomp: RawSeccomp,
    #[serde(default)]
    network: RawNetwork,
    limits: BTreeMap<String, u64>,
    #[serde(default)]
    env: BTreeMap<String, String>,
}

fn host() -> String {
    "host".to_owned()
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, default)]
struct RawLayers {
    require: Vec<Layer>,
    landlock_min_abi: u32,
}

impl Default for RawLayers {
    fn default() -> Self {
        Self { require: Layer::ALL.to_vec(), landlock_min_abi: 1 }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, default)]
struct RawSeccomp {
    filter: String,
}

impl Default for RawSeccomp {
    fn default() -> Self {
        Self { filter: "default".to_owned() }
    }
}

#[derive(Deserialize, Default, Clone, Copy)]
#[serde(rename_all = "snake_case")]
enum RawTcp {
    Loopback,
    #[default]
    None,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct RawNetwork {
    tcp: RawTcp,
}

/// All `*.toml` files of a directory, in the order of their names. A directory that is not there holds none.
pub(super) fn read_directory(directory: &Path) -> Result<Vec<(PathBuf, String)>, ProfileError> {
    let reading = |path: &Path, source| ProfileError::Read { path: path.to_owned(), source };
    let entries = match std::fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(vec![]),
        Err(error) => return Err(reading(directory, error)),
    };
    let mut paths = Vec::new();
    for entry in entries {
        paths.push(entry.map_err(|error| reading(directory, error))?.path());
    }
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "toml"));
    paths.sort();
    paths
        .into_iter()
        .map(|path| match std::fs::read_to_string(&path) {
            Ok(text) => Ok((path, text)),
            Err(error) => Err(reading(&path, error)),
        })
        .collect()
}

/// Reads and checks one profile. `path` is only for the words of an error.
pub fn parse(path: &Path, text: &str) -> Result<Profile, ProfileError> {
    let raw: RawProfile = toml::from_str(text).map_err(|error| {
        let offset = error.span().map_or(0, |span| span.start);
        let line = text[..offset.min(text.len())].matches('\n').count() + 1;
        ProfileError::Parse { path: path.to_owned(), line, message: error.message().to_owned() }
    })?;
    let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    if raw.id.is_empty() || raw.id.len() > 64 || !raw.id.bytes().all(plain) {
        return Err(ProfileError::Id { path: path.to_owned(), given: raw.id });
    }
    let rootfs = match raw.rootfs.as_str() {
        "host" => Rootfs::Host,
        absolute if absolute.starts_with('/') => Rootfs::Directory(PathBuf::from(absolute)),
        _ => return Err(ProfileError::Rootfs { path: path.to_owned(), given: raw.rootfs }),
    };
    let limits = Limits::default()
        .with_named(&raw.limits)
        .map_err(|source| ProfileError::Limit { path: path.to_owned(), source })?;
    Ok(Profile {
        id: raw.id,
        description: raw.description,
        rootfs,
        capabilities: raw.capabilities,
        require: raw.layers.require,
        landlock_min_abi: raw.layers.landlock_min_abi,
        filter: raw.seccomp.filter,
        tcp: match raw.network.tcp {
            RawTcp::Loopback => Tcp::Loopback,
            RawTcp::None => Tcp::None,
        },
        limits,
        env: raw.env,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "id = \"x\"\ndescription = \"\"\ncapabilities = [\"python\"]\n[limits]\npids = 10\n";

    fn error_of(text: &str) -> String {
        parse(Path::new("p.toml"), text).expect_err("a bad profile").to_string()
    }

    #[test]
    fn a_minimal_profile_is_closed_where_it_is_silent() {
        let profile = parse(Path::new("p.toml"), GOOD).expect("a good profile");
        assert_eq!((profile.tcp, profile.require.len()), (Tcp::None, Layer::ALL.len()));
        assert_eq!(profile.filter, "default");
    }

    #[test]
    fn mistakes_name_file_and_line() {
        assert!(
            error_of(&GOOD.replace("[limits]", "colour = 1\n[limits]")).starts_with("p.toml:4: unknown field `colour`")
        );
        assert!(error_of(&GOOD.replace("\"python\"", "\"rocket\"")).starts_with("p.toml:3: unknown variant `rocket`"));
        assert!(error_of(&GOOD.replace("pids", "pidz")).starts_with("p.toml: limits.pidz is not a limit"));
        assert!(error_of(&GOOD.replace("10", "0")).starts_with("p.toml: limits.pids is 0; the least is 1"));
        assert!(error_of(&GOOD.replace("10", "-1")).starts_with("p.toml:5: "));
        assert!(error_of(&format!("rootfs = \"images/x\"\n{GOOD}")).contains("must be \"host\" or an absolute path"));
        assert!(error_of(&GOOD.replace("\"x\"", "\"../x\"")).contains("it must have 1 to 64 characters"));
    }
}
