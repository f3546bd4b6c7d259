//! A profile file: strict parsing with file and line.

use super::Profile;
use crate::model::{Layer, LimitError, Limits, NetNamespace, Rootfs, Tcp};
use crate::terms::allowset::AllowanceSet;
use crate::terms::args::Templates;
use crate::terms::{AllowLists, Caps, ConsentRule, Safety, SecurityMode, SideEffects, Size, Terms};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::io;
use std::os::unix::fs::MetadataExt;
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
    #[error("{path}: {problem}")]
    Limit {
        /// Which file.
        path: PathBuf,
        /// Which limit.
        problem: LimitError,
    },
    /// A rootfs that is neither "host" nor an absolute path.
    #[error("{path}: rootfs is {given:?}; it must be \"host\" or an absolute path")]
    Rootfs {
        /// Which file.
        path: PathBuf,
        /// What it says.
        given: String,
    },
    /// A base that is not there or is itself an extension.
    #[error("{path}: extends {base:?}, {problem}")]
    Extends {
        /// Which file.
        path: PathBuf,
        /// What it extends.
        base: String,
        /// What is wrong with that.
        problem: &'static str,
    },
    /// Somebody else than root could change what root enforces.
    #[error(
        "{path} is not root's alone: it must belong to root and be writable by nobody else (chown root, chmod go-w)"
    )]
    Loose {
        /// Which file.
        path: PathBuf,
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

/// A profile file as it stands: what it leaves out comes from the profile it extends, or is closed.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawProfile {
    id: String,
    description: String,
    extends: Option<String>,
    rootfs: Option<String>,
    capabilities: Option<AllowanceSet>,
    grant_required: Option<bool>,
    security_mode: Option<SecurityMode>,
    safety: Option<Safety>,
    side_effects: Option<SideEffects>,
    sizes: Option<Caps<Size>>,
    allow: Option<AllowLists>,
    templates: Option<Templates>,
    consent: Option<ConsentRule>,
    #[serde(default)]
    layers: RawLayers,
    #[serde(default)]
    seccomp: RawSeccomp,
    #[serde(default)]
    network: RawNetwork,
    #[serde(default)]
    limits: BTreeMap<String, u64>,
    #[serde(default)]
    env: BTreeMap<String, String>,
}

#[derive(Debug, Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct RawLayers {
    require: Option<Vec<Layer>>,
    landlock_min_abi: Option<u32>,
}

#[derive(Debug, Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct RawSeccomp {
    filter: Option<String>,
}

#[derive(Debug, Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct RawNetwork {
    tcp: Option<Tcp>,
    net_namespace: Option<NetNamespace>,
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
        .map(|path| {
            let known = std::fs::metadata(&path).map_err(|error| reading(&path, error))?;
            if known.uid() != 0 || known.mode() & 0o022 != 0 {
                return Err(ProfileError::Loose { path });
            }
            let text = std::fs::read_to_string(&path).map_err(|error| reading(&path, error))?;
            Ok((path, text))
        })
        .collect()
}

/// A file that was read but not yet joined with the profile it extends.
#[derive(Debug)]
pub struct Draft {
    path: PathBuf,
    raw: RawProfile,
}

/// Reads one file.
pub fn parse(path: &Path, text: &str) -> Result<Draft, ProfileError> {
    let raw: RawProfile = toml::from_str(text).map_err(|error| {
        let offset = error.span().map_or(0, |span| span.start);
        let line = text[..offset.min(text.len())].matches('\n').count() + 1;
        ProfileError::Parse { path: path.to_owned(), line, message: error.message().to_owned() }
    })?;
    let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    if raw.id.is_empty() || raw.id.len() > 64 || !raw.id.bytes().all(plain) {
        return Err(ProfileError::Id { path: path.to_owned(), given: raw.id });
    }
    Ok(Draft { path: path.to_owned(), raw })
}

impl Draft {
    /// The id of the profile.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.raw.id
    }

    /// The profile it extends, if any.
    #[must_use]
    pub fn extends(&self) -> Option<&str> {
        self.raw.extends.as_deref()
    }

    /// The error of a draft whose base can't be had.
    #[must_use]
    pub fn bad_base(&self, problem: &'static str) -> ProfileError {
        let base = self.raw.extends.clone().unwrap_or_default();
        ProfileError::Extends { path: self.path.clone(), base, problem }
    }

    /// The checked profile: what the file says, over what the base says, over the closed defaults.
    pub fn finish(self, base: Option<&Profile>) -> Result<Profile, ProfileError> {
        let Draft { path, raw } = self;
        let rootfs = match (raw.rootfs.as_deref(), base) {
            (Some("host"), _) | (None, None) => Rootfs::Host,
            (None, Some(base)) => base.rootfs.clone(),
            (Some(absolute), _) if absolute.starts_with('/') => Rootfs::Directory(PathBuf::from(absolute)),
            (Some(given), _) => return Err(ProfileError::Rootfs { path, given: given.to_owned() }),
        };
        let limits = base.map_or_else(Limits::default, |base| base.limits);
        let limits = limits.with_named(&raw.limits).map_err(|problem| ProfileError::Limit { path, problem })?;
        let mut env = base.map(|base| base.env.clone()).unwrap_or_default();
        env.extend(raw.env);
        let inherited = base.map(|base| base.terms.clone()).unwrap_or_default();
        let terms = Terms {
            allowances: raw.capabilities.unwrap_or(inherited.allowances),
            safety: raw.safety.unwrap_or(inherited.safety),
            side_effects: raw.side_effects.unwrap_or(inherited.side_effects),
            limits: Caps::default(),
            sizes: raw.sizes.unwrap_or(inherited.sizes),
            allow: raw.allow.unwrap_or(inherited.allow),
            templates: raw.templates.unwrap_or(inherited.templates),
            consent: raw.consent.unwrap_or(inherited.consent),
        };
        let profile = Profile {
            id: raw.id,
            description: raw.description,
            rootfs,
            terms,
            grant_required: raw.grant_required.or(base.map(|base| base.grant_required)).unwrap_or(false),
            security_mode: raw.security_mode.or(base.map(|base| base.security_mode)).unwrap_or_default(),
            require: raw
                .layers
                .require
                .or_else(|| base.map(|base| base.require.clone()))
                .unwrap_or_else(|| Layer::ALL.to_vec()),
            landlock_min_abi: raw
                .layers
                .landlock_min_abi
                .or_else(|| base.map(|base| base.landlock_min_abi))
                .unwrap_or(1),
            filter: raw
                .seccomp
                .filter
                .or_else(|| base.map(|base| base.filter.clone()))
                .unwrap_or_else(|| "default".to_owned()),
            tcp: raw.network.tcp.or_else(|| base.map(|base| base.tcp)).unwrap_or(Tcp::None),
            net_namespace: raw.network.net_namespace.or(base.map(|base| base.net_namespace)).unwrap_or_default(),
            limits,
            env,
            hash: String::new(),
        };
        Ok(profile.hashed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "id = \"x\"\ndescription = \"\"\ncapabilities = [\"python\"]\n[limits]\npids = 10\n";

    fn finished(text: &str) -> Result<Profile, ProfileError> {
        parse(Path::new("p.toml"), text)?.finish(None)
    }

    fn error_of(text: &str) -> String {
        finished(text).expect_err("a bad profile").to_string()
    }

    #[test]
    fn a_minimal_profile_is_closed_where_it_is_silent() {
        let profile = finished(GOOD).expect("a good profile");
        assert_eq!((profile.tcp, profile.require.len()), (Tcp::None, Layer::ALL.len()));
        assert_eq!(profile.filter, "default");
    }

    #[test]
    fn mistakes_name_file_and_line() {
        assert!(
            error_of(&GOOD.replace("[limits]", "colour = 1\n[limits]")).starts_with("p.toml:4: unknown field `colour`")
        );
        assert!(
            error_of(&GOOD.replace("\"python\"", "\"rocket\"")).starts_with("p.toml:3: \"rocket\" is not a capability")
        );
        assert!(error_of(&GOOD.replace("pids", "pidz")).starts_with("p.toml: limits.pidz is not a limit"));
        assert!(error_of(&GOOD.replace("10", "0")).starts_with("p.toml: limits.pids is 0; the least is 1"));
        assert!(error_of(&GOOD.replace("10", "-1")).starts_with("p.toml:5: "));
        assert!(error_of(&format!("rootfs = \"images/x\"\n{GOOD}")).contains("must be \"host\" or an absolute path"));
        assert!(error_of(&GOOD.replace("\"x\"", "\"../x\"")).contains("it must have 1 to 64 characters"));
    }
}
