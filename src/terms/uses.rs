//! Uses: one thing that somebody wants to do, as allowances and lists are asked about it.

use super::hosts::Host;
use super::tools::Program;
use crate::model::Capability;

/// What a use touches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resource<'a> {
    /// Nothing that is narrowed: python, shell, tmp.
    None,
    /// A program.
    Program(Program<'a>),
    /// A normalised path below the work area.
    Path(&'a str),
    /// A request; scheme in lower case, method in upper case.
    Endpoint {
        /// To whom.
        host: &'a Host,
        /// Where.
        port: u16,
        /// How.
        scheme: &'a str,
        /// What for.
        method: &'a str,
    },
    /// A page in the browser.
    Page(&'a Host),
}

/// One thing that somebody wants to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Use<'a> {
    /// With which capability.
    pub capability: Capability,
    /// Which of its operations.
    pub operation: &'a str,
    /// On what.
    pub resource: Resource<'a>,
}

impl<'a> Use<'a> {
    /// A use of a capability that has no resources, such as `python` and `exec`.
    #[must_use]
    pub fn plain(capability: Capability, operation: &'a str) -> Self {
        Self { capability, operation, resource: Resource::None }
    }

    /// A program started without a shell.
    #[must_use]
    pub fn program(program: Program<'a>) -> Self {
        Self { capability: Capability::Process, operation: "exec", resource: Resource::Program(program) }
    }

    /// An HTTP request; scheme in lower case, method in upper case.
    #[must_use]
    pub fn http(method: &'a str, scheme: &'a str, host: &'a Host, port: u16) -> Self {
        let resource = Resource::Endpoint { host, port, scheme, method };
        Self { capability: Capability::Net, operation: "http", resource }
    }

    /// A page in the browser.
    #[must_use]
    pub fn page(operation: &'a str, host: &'a Host) -> Self {
        Self { capability: Capability::Browser, operation, resource: Resource::Page(host) }
    }

    /// A file operation on a normalised path.
    #[must_use]
    pub fn file(operation: &'a str, path: &'a str) -> Self {
        Self { capability: Capability::Filesystem, operation, resource: Resource::Path(path) }
    }
}
