// The steps inside a sandbox, in their order: name, the layer that it puts up, what it does (for "could not …").
//
// One list for two programs: the daemon makes words of it (`fault.rs`), the sandbox's own program (`child/`), which has no
// words, only numbers. Each defines what is to be made of the list and hands its macro over.

macro_rules! list_steps {
    ($make:ident) => {
        $make! {
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
            /// Init gives up its own beside us; nothing of a caller's begins before it has.
            AwaitInit: Some(Layer::Privileges), "learn that its init has given up its rights";
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
    };
}
