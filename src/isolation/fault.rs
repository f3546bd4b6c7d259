//! The steps inside a sandbox, in their order, and the fixed-size record that names the one that failed.
//!
//! The child has no words: it writes step, index and errno and is gone. The words are made here, on the front's side.
//! The list itself is in `steps.rs`, which both share.
#![forbid(unsafe_code)]

use crate::model::Layer;
use nix::errno::Errno;

macro_rules! steps {
    ($($(#[doc = $why:literal])+ $step:ident: $layer:expr, $words:literal;)*) => {
        /// One step of the child. The order of the variants is the order of the steps.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum Step { $($(#[doc = $why])+ $step,)* }

        impl Step {
            /// All steps in order.
            pub const ALL: &'static [Step] = &[$(Step::$step,)*];

            /// The layer that the step puts up, if it is part of one.
            #[must_use]
            pub const fn layer(self) -> Option<Layer> {
                match self { $(Step::$step => $layer,)* }
            }

            /// What the step does, for an error text: "could not …".
            #[must_use]
            pub const fn words(self) -> &'static str {
                match self { $(Step::$step => $words,)* }
            }
        }
    };
}

list_steps!(steps);

/// A step that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fault {
    /// Which.
    pub step: Step,
    /// Which one of several things the step does.
    pub index: u16,
    /// Why.
    pub errno: i32,
}

impl Fault {
    /// The fault of a record, if the step exists.
    #[must_use]
    pub fn from_record(step: u8, index: u16, errno: i32) -> Option<Self> {
        Step::ALL.get(usize::from(step)).map(|&step| Fault { step, index, errno })
    }
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let errno = Errno::from_raw(self.errno);
        write!(f, "could not {}: {} ({errno:?})", self.step.words(), errno.desc())?;
        if self.index > 0 { write!(f, ", part {}", self.index) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_a_step_is_its_place_in_the_list() {
        for (place, &step) in Step::ALL.iter().enumerate() {
            assert_eq!(step as usize, place);
        }
    }

    #[test]
    fn privileges_fall_before_the_orders_come_then_landlock_then_exec() {
        let place = |step: Step| step as u8;
        assert!(place(Step::Securebits) < place(Step::ClearCapabilities));
        assert!(place(Step::ClearCapabilities) < place(Step::NoNewPrivs));
        assert!(place(Step::NoNewPrivs) < place(Step::SeccompAhead));
        assert!(place(Step::SeccompAhead) < place(Step::ReceiveRun));
        assert!(place(Step::ReceiveRun) < place(Step::Landlock));
        assert!(place(Step::Landlock) < place(Step::AwaitGo));
        assert!(place(Step::AwaitGo) < place(Step::Seccomp));
        assert_eq!(place(Step::Seccomp) + 1, place(Step::Exec));
    }

    #[test]
    fn a_fault_names_step_and_errno() {
        let fault = Fault { step: Step::Exec, index: 0, errno: Errno::ENOENT as i32 };
        assert_eq!(fault.to_string(), "could not execute the program: No such file or directory (ENOENT)");
    }
}
