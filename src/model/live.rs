//! Words about an exec that lives on while its callers come and go.

use serde::{Deserialize, Serialize};

/// The terminal that a program is given.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Tty {
    /// Columns.
    #[serde(default = "columns")]
    pub cols: u16,
    /// Lines.
    #[serde(default = "lines")]
    pub rows: u16,
}

fn columns() -> u16 {
    80
}

fn lines() -> u16 {
    24
}

impl Default for Tty {
    fn default() -> Self {
        Self { cols: columns(), rows: lines() }
    }
}

impl Tty {
    /// The largest side that is believed: more than any screen has.
    pub const MOST: u16 = 4096;

    /// Whether a terminal of this size can be.
    #[must_use]
    pub fn is_sane(self) -> bool {
        [self.cols, self.rows].iter().all(|side| (1..=Self::MOST).contains(side))
    }
}

/// Where a program writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Channel {
    /// Standard output; everything that a terminal shows.
    Stdout,
    /// Standard error.
    Stderr,
}

impl Channel {
    /// Its name in addresses and events.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Channel::Stdout => "stdout",
            Channel::Stderr => "stderr",
        }
    }
}

macro_rules! signals {
    ($($signal:ident = $name:literal, $number:expr;)*) => {
        /// A signal that a caller may send to its program.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum ProgramSignal { $(#[doc = concat!("SIG", $name)] $signal,)* }

        impl ProgramSignal {
            /// All of them.
            pub const ALL: &'static [ProgramSignal] = &[$(ProgramSignal::$signal,)*];

            /// Its name, without SIG.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(ProgramSignal::$signal => $name,)* }
            }

            /// Its number, the same on every Linux that we run on.
            #[must_use]
            pub const fn number(self) -> u8 {
                match self { $(ProgramSignal::$signal => $number,)* }
            }
        }
    };
}

signals! {
    Hup = "HUP", 1;
    Int = "INT", 2;
    Quit = "QUIT", 3;
    Kill = "KILL", 9;
    Usr1 = "USR1", 10;
    Usr2 = "USR2", 12;
    Alrm = "ALRM", 14;
    Term = "TERM", 15;
    Cont = "CONT", 18;
    Stop = "STOP", 19;
    Tstp = "TSTP", 20;
    Winch = "WINCH", 28;
}

impl ProgramSignal {
    /// The signal of this name, with or without SIG.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        let name = name.strip_prefix("SIG").unwrap_or(name);
        Self::ALL.iter().copied().find(|signal| signal.name() == name)
    }

    /// The signal of this number.
    #[must_use]
    pub fn from_number(number: u8) -> Option<Self> {
        Self::ALL.iter().copied().find(|signal| signal.number() == number)
    }

    /// All names, for an error text.
    #[must_use]
    pub fn names() -> String {
        Self::ALL.iter().map(|signal| signal.name()).collect::<Vec<_>>().join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_have_the_kernels_numbers() {
        for &signal in ProgramSignal::ALL {
            let kernel = nix::sys::signal::Signal::try_from(i32::from(signal.number())).expect("a signal");
            assert_eq!(kernel.as_str(), format!("SIG{}", signal.name()));
            assert_eq!(ProgramSignal::from_name(kernel.as_str()), Some(signal));
            assert_eq!(ProgramSignal::from_number(signal.number()), Some(signal));
        }
        assert_eq!(ProgramSignal::from_name("SEGV"), None);
    }
}
