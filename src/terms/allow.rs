//! Allowances: one permitted use, narrowed to resources.
//!
//! ```text
//! {"capability":"filesystem","operations":["read","list"],"path":"reports"}
//! {"capability":"net","operations":["http"],"host":"*.github.com","ports":[443],"schemes":["https"],"methods":["GET"]}
//! {"capability":"process","operations":["exec"],"tools":["git","ls"]}
//! "shell"   "filesystem:read"                        the short forms: all operations, or one, on every resource
//! ```
//!
//! An absent field is any, an empty list is nothing, a field that the capability does not have is an error. A use is
//! described by a [`Use`]; an allowance of another capability, or for another kind of resource, does not permit it.

use super::hosts::HostPattern;
use super::lists::{AllowList, Pattern, PatternError};
use super::tools::ToolPattern;
use super::uses::{Resource, Use};
use super::words::{Method, PathPrefix, Port, Scheme};
use crate::model::{Capability, CapabilityError};
use serde::de::value::MapAccessDeserializer;
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::str::FromStr;

/// Most entries of a list within one allowance; a set of allowances has many such lists.
const SCOPE_ENTRIES_MAX: usize = 64;

/// Why an allowance can't be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AllowanceError {
    /// No such capability or operation.
    #[error(transparent)]
    Capability(#[from] CapabilityError),
    /// The capability has no such resource.
    #[error("{} is not narrowed by {field}", .capability.name())]
    Field {
        /// Which capability.
        capability: Capability,
        /// Which field.
        field: &'static str,
    },
    /// A resource that is none.
    #[error(transparent)]
    Pattern(#[from] PatternError),
    /// A list that is too long.
    #[error("{field} has {given} entries; an allowance's list holds {SCOPE_ENTRIES_MAX}")]
    TooMany {
        /// Which field.
        field: &'static str,
        /// How many.
        given: usize,
    },
}

/// Some operations of one capability: a bit for each, in the order of [`Capability::operations`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Operations(pub(super) u16);

impl Operations {
    fn all(capability: Capability) -> Self {
        Self(capability.operations().iter().enumerate().fold(0, |bits, (place, _)| bits | 1 << place))
    }

    fn named(capability: Capability, name: &str) -> Option<Self> {
        capability.operations().iter().position(|known| *known == name).map(|place| Self(1 << place))
    }

    fn names(self, capability: Capability) -> impl Iterator<Item = &'static str> {
        let has = move |place: usize| self.0 & 1 << place != 0;
        capability.operations().iter().enumerate().filter(move |(place, _)| has(*place)).map(|(_, name)| *name)
    }
}

/// The resources of an allowance.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Scope {
    /// The capability has none.
    Whole,
    /// Programs.
    Tools(AllowList<ToolPattern>),
    /// Files.
    Path(PathPrefix),
    /// Requests.
    Endpoint { host: HostPattern, ports: AllowList<Port>, schemes: AllowList<Scheme>, methods: AllowList<Method> },
    /// Pages.
    Page(HostPattern),
}

impl Scope {
    /// Every resource of a capability. A new capability whose uses are all alike needs no line here.
    fn whole(capability: Capability) -> Self {
        match capability {
            Capability::Process => Self::Tools(AllowList::any()),
            Capability::Filesystem => Self::Path(PathPrefix::all()),
            Capability::Net => Self::Endpoint {
                host: HostPattern::Any,
                ports: AllowList::any(),
                schemes: AllowList::any(),
                methods: AllowList::any(),
            },
            Capability::Browser => Self::Page(HostPattern::Any),
            _ => Self::Whole,
        }
    }

    /// What both have in common, if anything.
    fn meet(&self, other: &Self) -> Option<Self> {
        let both = match (self, other) {
            (Self::Whole, Self::Whole) => Self::Whole,
            (Self::Tools(a), Self::Tools(b)) => Self::Tools(a.intersect(b)),
            (Self::Path(a), Self::Path(b)) => Self::Path(a.meet(b)?),
            (Self::Page(a), Self::Page(b)) => Self::Page(a.meet(b)?),
            (
                Self::Endpoint { host, ports, schemes, methods },
                Self::Endpoint { host: host_b, ports: ports_b, schemes: schemes_b, methods: methods_b },
            ) => Self::Endpoint {
                host: host.meet(host_b)?,
                ports: ports.intersect(ports_b),
                schemes: schemes.intersect(schemes_b),
                methods: methods.intersect(methods_b),
            },
            _ => return None,
        };
        (!both.is_void()).then_some(both)
    }

    /// Whether every resource of `other` is one of these.
    pub(super) fn covers(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Whole, Self::Whole) => true,
            (Self::Tools(a), Self::Tools(b)) => a.covers(b),
            (Self::Path(a), Self::Path(b)) => a.covers(b),
            (Self::Page(a), Self::Page(b)) => a.covers(b),
            (
                Self::Endpoint { host, ports, schemes, methods },
                Self::Endpoint { host: host_b, ports: ports_b, schemes: schemes_b, methods: methods_b },
            ) => host.covers(host_b) && ports.covers(ports_b) && schemes.covers(schemes_b) && methods.covers(methods_b),
            _ => false,
        }
    }

    /// Whether a list in it is empty, so that it holds no resource at all.
    pub(super) fn is_void(&self) -> bool {
        match self {
            Self::Whole | Self::Path(_) | Self::Page(_) => false,
            Self::Tools(tools) => tools.is_nothing(),
            Self::Endpoint { ports, schemes, methods, .. } => {
                ports.is_nothing() || schemes.is_nothing() || methods.is_nothing()
            }
        }
    }

    fn holds(&self, resource: &Resource<'_>) -> bool {
        match (self, resource) {
            (Self::Whole, Resource::None) => true,
            (Self::Tools(tools), Resource::Program(program)) => tools.allows(|tool| tool.matches(program)),
            (Self::Path(prefix), Resource::Path(path)) => prefix.holds(path),
            (Self::Page(own), Resource::Page(host)) => own.matches(host),
            (
                Self::Endpoint { host: own, ports, schemes, methods },
                Resource::Endpoint { host, port, scheme, method },
            ) => {
                own.matches(host)
                    && ports.allows(|own| u16::from(*own) == *port)
                    && schemes.allows(|own| own.as_str() == *scheme)
                    && methods.allows(|own| own.as_str() == *method)
            }
            _ => false,
        }
    }
}

/// One permitted use. Absent resources are any.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Allowance {
    // In the order in which a set is sorted.
    pub(super) capability: Capability,
    pub(super) scope: Scope,
    pub(super) operations: Operations,
}

impl Allowance {
    /// Every operation of a capability on every resource.
    #[must_use]
    pub fn whole(capability: Capability) -> Self {
        Self { capability, operations: Operations::all(capability), scope: Scope::whole(capability) }
    }

    /// Of which capability.
    #[must_use]
    pub fn capability(&self) -> Capability {
        self.capability
    }

    /// Which operations.
    pub fn operations(&self) -> impl Iterator<Item = &'static str> {
        self.operations.names(self.capability)
    }

    /// Whether it is for the operation, on whatever resource.
    #[must_use]
    pub fn has(&self, capability: Capability, operation: &str) -> bool {
        let named = Operations::named(capability, operation);
        self.capability == capability && named.is_some_and(|named| self.operations.0 & named.0 != 0)
    }

    /// Whether it permits the use.
    #[must_use]
    pub fn permits(&self, asked: &Use<'_>) -> bool {
        self.has(asked.capability, asked.operation) && self.scope.holds(&asked.resource)
    }

    /// What both permit, if anything.
    #[must_use]
    pub fn intersect(&self, other: &Self) -> Option<Self> {
        let operations = Operations(self.operations.0 & other.operations.0);
        if self.capability != other.capability || operations.0 == 0 {
            return None;
        }
        Some(Self { capability: self.capability, operations, scope: self.scope.meet(&other.scope)? })
    }

    /// Whether it permits nothing, because a list in it is empty.
    #[must_use]
    pub fn is_void(&self) -> bool {
        self.operations.0 == 0 || self.scope.is_void()
    }
}

impl FromStr for Allowance {
    type Err = AllowanceError;
    fn from_str(text: &str) -> Result<Self, AllowanceError> {
        let (name, operation) = text.split_once(':').map_or((text, None), |(name, operation)| (name, Some(operation)));
        let known = Capability::from_name(name).ok_or_else(|| CapabilityError::Unknown(name.to_owned()));
        let mut allowance = Self::whole(known?);
        if let Some(operation) = operation {
            allowance.operations = operation_of(allowance.capability, operation)?;
        }
        Ok(allowance)
    }
}

fn operation_of(capability: Capability, given: &str) -> Result<Operations, AllowanceError> {
    let unknown = || CapabilityError::Operation { capability, operation: given.to_owned() };
    Ok(Operations::named(capability, given).ok_or_else(unknown)?)
}

/// The long form on the wire.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Wire {
    capability: Capability,
    #[serde(default)]
    operations: Option<Vec<String>>,
    #[serde(default)]
    path: Option<PathPrefix>,
    #[serde(default)]
    host: Option<HostPattern>,
    #[serde(default)]
    ports: AllowList<Port>,
    #[serde(default)]
    schemes: AllowList<Scheme>,
    #[serde(default)]
    methods: AllowList<Method>,
    #[serde(default)]
    tools: AllowList<ToolPattern>,
}

impl TryFrom<Wire> for Allowance {
    type Error = AllowanceError;
    fn try_from(wire: Wire) -> Result<Self, AllowanceError> {
        let capability = wire.capability;
        let operations = match &wire.operations {
            None => Operations::all(capability),
            Some(given) => {
                let mut bits = 0;
                for name in given {
                    bits |= operation_of(capability, name)?.0;
                }
                Operations(bits)
            }
        };
        let whole = Scope::whole(capability);
        let given = [
            ("path", wire.path.is_some(), matches!(whole, Scope::Path(_)), 0),
            ("host", wire.host.is_some(), matches!(whole, Scope::Endpoint { .. } | Scope::Page(_)), 0),
            ("ports", !wire.ports.is_any(), matches!(whole, Scope::Endpoint { .. }), entries(&wire.ports)),
            ("schemes", !wire.schemes.is_any(), matches!(whole, Scope::Endpoint { .. }), entries(&wire.schemes)),
            ("methods", !wire.methods.is_any(), matches!(whole, Scope::Endpoint { .. }), entries(&wire.methods)),
            ("tools", !wire.tools.is_any(), matches!(whole, Scope::Tools(_)), entries(&wire.tools)),
        ];
        for (field, is_given, is_known, given) in given {
            if is_given && !is_known {
                return Err(AllowanceError::Field { capability, field });
            }
            if given > SCOPE_ENTRIES_MAX {
                return Err(AllowanceError::TooMany { field, given });
            }
        }
        let host = wire.host.unwrap_or_default();
        let scope = match whole {
            Scope::Whole => Scope::Whole,
            Scope::Tools(_) => Scope::Tools(wire.tools),
            Scope::Path(all) => Scope::Path(wire.path.unwrap_or(all)),
            Scope::Page(_) => Scope::Page(host),
            Scope::Endpoint { .. } => {
                Scope::Endpoint { host, ports: wire.ports, schemes: wire.schemes, methods: wire.methods }
            }
        };
        Ok(Self { capability, operations, scope })
    }
}

fn entries<P>(list: &AllowList<P>) -> usize {
    list.entries().map_or(0, <[P]>::len)
}

impl Serialize for Allowance {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("capability", self.capability.name())?;
        map.serialize_entry("operations", &self.operations().collect::<Vec<_>>())?;
        match &self.scope {
            Scope::Whole => {}
            Scope::Tools(tools) => write_list(&mut map, "tools", tools)?,
            Scope::Path(path) => map.serialize_entry("path", path)?,
            Scope::Page(host) => map.serialize_entry("host", host)?,
            Scope::Endpoint { host, ports, schemes, methods } => {
                map.serialize_entry("host", host)?;
                write_list(&mut map, "ports", ports)?;
                write_list(&mut map, "schemes", schemes)?;
                write_list(&mut map, "methods", methods)?;
            }
        }
        map.end()
    }
}

fn write_list<M: SerializeMap, P: Serialize>(map: &mut M, key: &str, list: &AllowList<P>) -> Result<(), M::Error> {
    if list.is_any() { Ok(()) } else { map.serialize_entry(key, list) }
}

impl<'de> Deserialize<'de> for Allowance {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl<'de> serde::de::Visitor<'de> for Visitor {
            type Value = Allowance;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a capability such as \"shell\" or \"filesystem:read\", or an allowance with its resources")
            }
            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Allowance, E> {
                text.parse().map_err(E::custom)
            }
            fn visit_map<A: serde::de::MapAccess<'de>>(self, map: A) -> Result<Allowance, A::Error> {
                let wire = Wire::deserialize(MapAccessDeserializer::new(map))?;
                wire.try_into().map_err(serde::de::Error::custom)
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(value: serde_json::Value) -> Result<Allowance, String> {
        serde_json::from_value(value).map_err(|error| error.to_string())
    }

    #[test]
    fn an_allowance_is_written_in_full() {
        for (given, written) in [
            (json!("shell"), json!({"capability": "shell", "operations": ["exec"]})),
            (json!("filesystem:list"), json!({"capability": "filesystem", "operations": ["list"], "path": "."})),
            (
                json!({"capability": "net", "host": "*.GitHub.com", "ports": [443, 80], "methods": ["head", "GET"]}),
                json!({"capability": "net", "operations": ["http"], "host": "*.github.com", "ports": [80, 443],
                       "methods": ["GET", "HEAD"]}),
            ),
            (
                json!({"capability": "process", "tools": []}),
                json!({"capability": "process", "operations": ["exec"], "tools": []}),
            ),
            (json!({"capability": "tmp"}), json!({"capability": "tmp", "operations": ["alloc"]})),
        ] {
            let allowance = read(given).expect("an allowance");
            assert_eq!(serde_json::to_value(&allowance).expect("json"), written);
            assert_eq!(read(written), Ok(allowance));
        }
    }

    #[test]
    fn mistakes_are_named() {
        for (given, says) in [
            (json!("rocket"), "\"rocket\" is not a capability"),
            (json!("filesystem:fly"), "filesystem has no operation \"fly\""),
            (json!({"capability": "shell", "tools": ["ls"]}), "shell is not narrowed by tools"),
            (json!({"capability": "net", "path": "a"}), "net is not narrowed by path"),
            (json!({"capability": "browser", "host": "a", "ports": [1]}), "browser is not narrowed by ports"),
            (json!({"capability": "net", "hosts": ["a"]}), "unknown field `hosts`"),
            (json!({"capability": "net", "ports": [0]}), "0 is not a port"),
            (json!({"capability": "net", "host": "evil*.com"}), "is not a host pattern"),
            (json!({"capability": "filesystem", "path": "../x"}), "is not a path below the work area"),
            (json!({"capability": "process", "tools": ["./git"]}), "is not a tool"),
            (json!({"operations": ["exec"]}), "missing field `capability`"),
            (json!({"capability": "net", "ports": (1..=65).collect::<Vec<u16>>()}), "ports has 65 entries"),
            (json!(7), "expected a capability such as"),
        ] {
            let problem = read(given).expect_err("a mistake");
            assert!(problem.contains(says), "{problem}");
        }
    }
}
