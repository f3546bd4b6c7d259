//! The steps inside a sandbox, in their order, and the fixed-size record that names the one that failed.
//!
//! The child has no words: it writes step, index and errno and is gone. The words are made here, on the front's side.
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

steps! {
    /// First of all, so that whatever comes after is counted and limited. (v2: the clone itself did it.)
    JoinCgroup: Some(Layer::Memory), "join its cgroup";
    /// After joining, so that the group is the namespace's root.
    CgroupNamespace: Some(Layer::CgroupNs), "make a cgroup namespace";
    /// While we are still the host's root: once we are nobody, our own file in /proc belongs to somebody else.
    OpenOomScore: Some(Layer::Memory), "open its out-of-memory score";
    /// The parent writes the id maps; until then we are nobody and may mount nothing that has an owner.
    AwaitMaps: Some(Layer::User), "learn of its id maps";
    /// With the maps there is a root of this namespace to become. Its host uid is in the private range.
    BecomeRoot: Some(Layer::User), "become root of its user namespace";
    /// After the change of uid, which clears it.
    ParentDeath: Some(Layer::Pid), "tie its life to the warden's";
    /// Before anything of ours is opened: nothing of the warden's stays open in here.
    CloseDescriptors: Some(Layer::Privileges), "close the warden's descriptors";
    /// Needs root of the namespace.
    Hostname: Some(Layer::Uts), "set the host name";
    /// Needs root of the namespace.
    Loopback: Some(Layer::Net), "bring the loopback up";
    /// Before the first mount, so that none travels out.
    MakePrivate: Some(Layer::Mount), "make its mounts private";
    /// The prepared root comes in as one detached tree.
    MoveTree: Some(Layer::Mount), "move the root tree into place";
    /// While the warden's /proc is still in sight: the kernel wants to see one before it gives a new one to a user namespace.
    MountProc: Some(Layer::Mount), "mount /proc";
    /// Before the pivot, so that a failure leaves nothing half-visible.
    MaskProc: Some(Layer::Mount), "mask a path of /proc";
    /// The areas that may be written.
    MountTmpfs: Some(Layer::Mount), "mount a tmpfs";
    /// Own terminals, if a program makes any.
    MountPts: Some(Layer::Mount), "mount /dev/pts";
    /// After all mounts below it; the old root is gone with it.
    PivotRoot: Some(Layer::Mount), "change its root";
    /// On the final tree, as rules bind to inodes.
    LandlockRules: Some(Layer::Landlock), "build the Landlock rules";
    /// While CAP_SETPCAP is still there; the two processes of the sandbox inherit it.
    DropBoundingSet: Some(Layer::Privileges), "empty the capability bounding set";
    /// Two processes from here: init reaps, the other becomes the program.
    ForkProgram: Some(Layer::Pid), "fork the program's process";
    /// The reaper needs no right any more; a program under an init that kept its own does not run.
    InitGivesUp: Some(Layer::Privileges), "give up its init's rights";
    /// A warden with many sandboxes has high numbers; a session's descriptors have places up there.
    LowerDescriptors: Some(Layer::Privileges), "move its descriptors down";
    /// No controlling terminal, own process group.
    NewSession: Some(Layer::Privileges), "start a session";
    /// Hard limits of the profile: the program can't raise them.
    Rlimits: Some(Layer::Privileges), "set a resource limit";
    /// Handlers and masks of ours are not for the program.
    Signals: Some(Layer::Privileges), "reset its signals";
    /// While CAP_SETPCAP is still there.
    Securebits: Some(Layer::Privileges), "lock the securebits";
    /// Groups, then gid, then uid: the other way round the first two would be refused.
    BecomeUser: Some(Layer::User), "become uid 1000";
    /// The uid change keeps the sets (securebits), so they are emptied by hand.
    ClearCapabilities: Some(Layer::Privileges), "empty its capability sets";
    /// Landlock and seccomp want it without privileges.
    NoNewPrivs: Some(Layer::Privileges), "set no_new_privs";
    /// Where the filter lets through what is still to do: the kernel takes long to load one, and nobody waits yet.
    SeccompAhead: Some(Layer::Seccomp), "load the seccomp filter ahead";
    /// The warden may attach mounts from here on.
    TellWaiting: Some(Layer::Pid), "tell that it waits";
    /// Everything above can be done before a request is known; from here on it is.
    ReceiveRun: None, "receive its orders";
    /// The workspace's inodes are known only now.
    LandlockWorkspace: Some(Layer::Landlock), "add the workspace to the Landlock rules";
    /// Out of the sandbox's own devpts. Only for a run that is to have one.
    OpenTerminal: None, "open its terminal";
    /// The request's descriptors become 0, 1 and 2.
    Stdio: Some(Layer::Privileges), "set up standard input and output";
    /// As leader of its session, which it is. Only for a run that is to have one.
    Terminal: None, "take its terminal";
    /// As leader of its group: a signal to it is one to all of them. Only for a run that is to get any.
    OfferSignals: None, "hand the warden its pidfd";
    /// As the program's own user: where it may not go, it does not begin.
    EnterCwd: None, "enter the working directory";
    /// The request's limits, where they are below the profile's; descriptors last, as stdio was lifted above low limits.
    NarrowRlimits: Some(Layer::Privileges), "narrow a resource limit";
    /// After the last open of ours.
    Landlock: Some(Layer::Landlock), "restrict itself with Landlock";
    /// The begin record is durable when the front says go.
    AwaitGo: None, "be told to go";
    /// A filter that was not loaded ahead comes last: it may refuse whatever would come after, but for execve.
    Seccomp: Some(Layer::Seccomp), "load the seccomp filter";
    /// The program.
    Exec: None, "execute the program";
}

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
