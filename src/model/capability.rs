//! Capabilities: what a profile may let a caller do. Adding one is a line here.

use serde::{Deserialize, Serialize};

macro_rules! capabilities {
    ($($(#[$doc:meta])* $variant:ident = $name:literal, [$($operation:literal),*];)*) => {
        /// Something a caller can be permitted to do.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub enum Capability { $($(#[$doc])* $variant,)* }

        impl Capability {
            /// Every capability.
            pub const ALL: &'static [Capability] = &[$(Capability::$variant,)*];

            /// The name in profiles, requests and answers.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Capability::$variant => $name,)* }
            }

            /// What can be done with it.
            #[must_use]
            pub const fn operations(self) -> &'static [&'static str] {
                match self { $(Capability::$variant => &[$($operation),*],)* }
            }
        }
    };
}

capabilities! {
    /// Python code.
    Python = "python", ["exec"];
    /// Shell code.
    Shell = "shell", ["exec"];
    /// A program with arguments, no shell between.
    Process = "process", ["exec"];
    /// Files of the workspace.
    Filesystem = "filesystem", ["read", "list", "write", "delete", "upload", "download"];
}
