//! The table of patterns: a name, how much it weighs, and why it is there.

use super::RiskLevel::{self, High, Low, Medium};

/// One thing that code can be seen to do.
#[derive(Debug)]
pub(super) struct Pattern {
    pub(super) name: &'static str,
    pub(super) level: RiskLevel,
    pub(super) why: &'static str,
}

macro_rules! patterns {
    ($($id:ident = $name:literal, $level:ident, $why:literal;)*) => {
        $(pub(super) static $id: Pattern = Pattern { name: $name, level: $level, why: $why };)*
        /// All of them.
        #[cfg(test)]
        pub(super) static ALL: &[&Pattern] = &[$(&$id,)*];
    };
}

patterns! {
    // What can't be seen.
    UNPARSED = "unparsed", Medium, "the code does not parse, so nothing is known about it";
    LARGE = "large", Medium, "the code is too large to be looked at";
    DEEP = "deep", Medium, "the code nests deeper than people write";
    UNSEEN = "unseen", Low, "the code comes from a file or from standard input and was not looked at";

    // Code that makes code.
    EVAL = "eval", High, "runs text as code";
    DYNAMIC_CODE = "dynamic_code", Medium, "makes code or modules from text";
    ATTRIBUTE_TRICK = "attribute_trick", High, "reaches the interpreter's insides by attribute names";
    NAMESPACE = "namespace", Medium, "looks names up as text, which hides what is used";
    UNPICKLE = "unpickle", High, "reading such data can run any code in it";
    DYNAMIC_COMMAND = "dynamic_command", Medium, "the name of the program is made while the script runs";
    INLINE_CODE = "inline_code", Medium, "runs code of another language from its arguments";
    SOURCE = "source", Low, "runs another file in the same shell";

    // Other programs.
    IMPORT_OS = "import_os", Low, "the module reaches files, processes and the environment";
    IMPORT_SUBPROCESS = "import_subprocess", Medium, "the module starts other programs";
    SUBPROCESS = "subprocess", Medium, "starts another program";
    SHELL = "shell", High, "starts a shell with a command line";
    NATIVE = "native", High, "calls native code past the interpreter";
    BACKGROUND = "background", Low, "leaves a program running beside the script";
    DAEMON = "daemon", Medium, "starts a program that is to outlive its caller";
    FORK_BOMB = "fork_bomb", High, "a function that starts itself in the background";
    KILL = "kill", Medium, "sends signals to other processes";

    // Files.
    WRITE_FILE = "write_file", Low, "writes a file";
    WRITE_ABSOLUTE = "write_absolute", Medium, "writes to a path outside the working directory";
    DELETE = "delete", Medium, "deletes files";
    DELETE_TREE = "delete_tree", High, "deletes whole directories without asking";
    PERMISSIONS = "permissions", Medium, "changes owners or modes";
    SETUID = "setuid", High, "makes a file run with its owner's rights";
    RAW_COPY = "raw_copy", Medium, "dd copies bytes to wherever it is told";
    RAW_DEVICE = "raw_device", High, "writes to a device";

    // The network.
    IMPORT_NETWORK = "import_network", Medium, "the module opens network connections";
    NETWORK = "network", Medium, "opens network connections";
    DEV_TCP = "dev_tcp", High, "bash opens a network connection through a redirection";
    FETCH_TO_SHELL = "fetch_to_shell", High, "runs what it has just fetched";
    DECODE_TO_SHELL = "decode_to_shell", High, "runs what it has just decoded, which hides it from readers";
    PIPE_TO_SHELL = "pipe_to_shell", Medium, "runs the output of another program";

    // The system.
    PRIVILEGE = "privilege", High, "asks for another user's rights";
    KERNEL = "kernel", High, "changes mounts, namespaces, modules or disks";
    TRACE = "trace", High, "reads or changes other processes";
    LOADER = "loader", High, "makes programs load code of its choice";
    ENVIRONMENT = "environment", Low, "reads or changes the environment, where secrets tend to be";
    SCHEDULE = "schedule", High, "arranges to be run again later";
}

/// Python modules by name; the whole name is looked up before its first part. None: harmless after all.
pub(super) static MODULES: &[(&str, Option<&Pattern>)] = &[
    ("os.path", None),
    ("http.HTTPStatus", None),
    ("urllib.parse", None),
    ("concurrent", None),
    ("os", Some(&IMPORT_OS)),
    ("posix", Some(&IMPORT_OS)),
    ("shutil", Some(&IMPORT_OS)),
    ("signal", Some(&IMPORT_OS)),
    ("multiprocessing", Some(&IMPORT_SUBPROCESS)),
    ("subprocess", Some(&IMPORT_SUBPROCESS)),
    ("_posixsubprocess", Some(&IMPORT_SUBPROCESS)),
    ("pty", Some(&IMPORT_SUBPROCESS)),
    ("pexpect", Some(&IMPORT_SUBPROCESS)),
    ("ctypes", Some(&NATIVE)),
    ("_ctypes", Some(&NATIVE)),
    ("cffi", Some(&NATIVE)),
    ("importlib", Some(&DYNAMIC_CODE)),
    ("imp", Some(&DYNAMIC_CODE)),
    ("runpy", Some(&DYNAMIC_CODE)),
    ("code", Some(&DYNAMIC_CODE)),
    ("codeop", Some(&DYNAMIC_CODE)),
    ("builtins", Some(&NAMESPACE)),
    ("gc", Some(&NAMESPACE)),
    ("inspect", Some(&NAMESPACE)),
    ("pickle", Some(&DYNAMIC_CODE)),
    ("_pickle", Some(&DYNAMIC_CODE)),
    ("dill", Some(&DYNAMIC_CODE)),
    ("cloudpickle", Some(&DYNAMIC_CODE)),
    ("marshal", Some(&DYNAMIC_CODE)),
    ("shelve", Some(&DYNAMIC_CODE)),
    ("socket", Some(&IMPORT_NETWORK)),
    ("_socket", Some(&IMPORT_NETWORK)),
    ("socketserver", Some(&IMPORT_NETWORK)),
    ("ssl", Some(&IMPORT_NETWORK)),
    ("http", Some(&IMPORT_NETWORK)),
    ("urllib", Some(&IMPORT_NETWORK)),
    ("urllib3", Some(&IMPORT_NETWORK)),
    ("requests", Some(&IMPORT_NETWORK)),
    ("httpx", Some(&IMPORT_NETWORK)),
    ("aiohttp", Some(&IMPORT_NETWORK)),
    ("websockets", Some(&IMPORT_NETWORK)),
    ("ftplib", Some(&IMPORT_NETWORK)),
    ("smtplib", Some(&IMPORT_NETWORK)),
    ("telnetlib", Some(&IMPORT_NETWORK)),
    ("poplib", Some(&IMPORT_NETWORK)),
    ("imaplib", Some(&IMPORT_NETWORK)),
    ("xmlrpc", Some(&IMPORT_NETWORK)),
    ("paramiko", Some(&IMPORT_NETWORK)),
];

/// Python names as they are after imports are resolved; a star at the end stands for any rest.
pub(super) static NAMES: &[(&str, &Pattern)] = &[
    ("eval", &EVAL),
    ("exec", &EVAL),
    ("compile", &DYNAMIC_CODE),
    ("__import__", &DYNAMIC_CODE),
    ("importlib.*", &DYNAMIC_CODE),
    ("runpy.*", &EVAL),
    ("__builtins__*", &ATTRIBUTE_TRICK),
    ("__loader__*", &ATTRIBUTE_TRICK),
    ("globals", &NAMESPACE),
    ("locals", &NAMESPACE),
    ("vars", &NAMESPACE),
    ("sys.modules*", &NAMESPACE),
    ("sys._getframe", &ATTRIBUTE_TRICK),
    ("sys.settrace", &TRACE),
    ("os.system", &SHELL),
    ("os.popen", &SHELL),
    ("subprocess.getoutput", &SHELL),
    ("subprocess.getstatusoutput", &SHELL),
    ("asyncio.create_subprocess_shell", &SHELL),
    ("asyncio.create_subprocess_exec", &SUBPROCESS),
    ("pty.spawn", &SUBPROCESS),
    ("os.exec*", &SUBPROCESS),
    ("os.spawn*", &SUBPROCESS),
    ("os.posix_spawn*", &SUBPROCESS),
    ("os.fork*", &DAEMON),
    ("os.setsid", &DAEMON),
    ("os.kill*", &KILL),
    ("os.setuid", &PRIVILEGE),
    ("os.setgid", &PRIVILEGE),
    ("os.seteuid", &PRIVILEGE),
    ("os.setegid", &PRIVILEGE),
    ("os.setresuid", &PRIVILEGE),
    ("os.setresgid", &PRIVILEGE),
    ("os.setreuid", &PRIVILEGE),
    ("os.setregid", &PRIVILEGE),
    ("os.setgroups", &PRIVILEGE),
    ("os.chroot", &KERNEL),
    ("os.unshare", &KERNEL),
    ("os.setns", &KERNEL),
    ("os.mknod", &KERNEL),
    ("os.chmod", &PERMISSIONS),
    ("os.lchmod", &PERMISSIONS),
    ("os.fchmod", &PERMISSIONS),
    ("os.chown", &PERMISSIONS),
    ("os.lchown", &PERMISSIONS),
    ("os.fchown", &PERMISSIONS),
    ("shutil.chown", &PERMISSIONS),
    ("os.remove", &DELETE),
    ("os.unlink", &DELETE),
    ("os.rmdir", &DELETE),
    ("os.removedirs", &DELETE),
    ("shutil.rmtree", &DELETE_TREE),
    ("os.environ*", &ENVIRONMENT),
    ("os.getenv*", &ENVIRONMENT),
    ("os.putenv", &ENVIRONMENT),
    ("pickle.load*", &UNPICKLE),
    ("pickle.Unpickler", &UNPICKLE),
    ("_pickle.load*", &UNPICKLE),
    ("dill.load*", &UNPICKLE),
    ("cloudpickle.load*", &UNPICKLE),
    ("marshal.load*", &UNPICKLE),
    ("shelve.open", &UNPICKLE),
    ("yaml.load", &UNPICKLE),
    ("yaml.unsafe_load", &UNPICKLE),
    ("asyncio.open_connection", &NETWORK),
    ("asyncio.start_server", &NETWORK),
];

/// Attributes that lead from any object to the interpreter's insides.
pub(super) static INSIDES: &[&str] = &[
    "__subclasses__",
    "__globals__",
    "__builtins__",
    "__mro__",
    "__bases__",
    "__base__",
    "__code__",
    "__closure__",
    "__getattribute__",
    "__reduce__",
    "__reduce_ex__",
    "f_globals",
    "f_locals",
    "f_back",
    "f_builtins",
    "gi_frame",
    "cr_frame",
    "tb_frame",
    "func_globals",
];

/// Methods that are known by their name on whatever object.
pub(super) static METHODS: &[(&str, &Pattern)] =
    &[("write_text", &WRITE_FILE), ("write_bytes", &WRITE_FILE), ("unlink", &DELETE), ("rmtree", &DELETE_TREE)];

/// Programs by their name without a directory.
pub(super) static PROGRAMS: &[(&str, &Pattern)] = &[
    ("eval", &EVAL),
    (".", &SOURCE),
    ("source", &SOURCE),
    ("sudo", &PRIVILEGE),
    ("su", &PRIVILEGE),
    ("doas", &PRIVILEGE),
    ("pkexec", &PRIVILEGE),
    ("runuser", &PRIVILEGE),
    ("setpriv", &PRIVILEGE),
    ("capsh", &PRIVILEGE),
    ("setcap", &SETUID),
    ("nohup", &DAEMON),
    ("setsid", &DAEMON),
    ("disown", &DAEMON),
    ("daemonize", &DAEMON),
    ("start-stop-daemon", &DAEMON),
    ("crontab", &SCHEDULE),
    ("at", &SCHEDULE),
    ("batch", &SCHEDULE),
    ("systemctl", &SCHEDULE),
    ("systemd-run", &SCHEDULE),
    ("curl", &NETWORK),
    ("wget", &NETWORK),
    ("nc", &NETWORK),
    ("ncat", &NETWORK),
    ("netcat", &NETWORK),
    ("socat", &NETWORK),
    ("ssh", &NETWORK),
    ("scp", &NETWORK),
    ("sftp", &NETWORK),
    ("rsync", &NETWORK),
    ("ftp", &NETWORK),
    ("telnet", &NETWORK),
    ("mount", &KERNEL),
    ("umount", &KERNEL),
    ("nsenter", &KERNEL),
    ("unshare", &KERNEL),
    ("chroot", &KERNEL),
    ("insmod", &KERNEL),
    ("modprobe", &KERNEL),
    ("mkfs", &KERNEL),
    ("fdisk", &KERNEL),
    ("sysctl", &KERNEL),
    ("iptables", &KERNEL),
    ("mknod", &KERNEL),
    ("gdb", &TRACE),
    ("strace", &TRACE),
    ("ltrace", &TRACE),
    ("kill", &KILL),
    ("pkill", &KILL),
    ("killall", &KILL),
    ("chown", &PERMISSIONS),
    ("chattr", &PERMISSIONS),
    ("shred", &DELETE),
    ("rmdir", &DELETE),
    ("unlink", &DELETE),
    ("dd", &RAW_COPY),
];

/// Programs that run another one, given as their arguments after options and assignments.
pub(super) static WRAPPERS: &[&str] = &[
    "sudo", "doas", "pkexec", "env", "nohup", "setsid", "time", "timeout", "nice", "ionice", "stdbuf", "xargs", "exec",
    "command", "builtin", "busybox", "chroot", "unshare", "nsenter", "strace", "watch", "flock",
];

/// Programs that fetch.
pub(super) static FETCHERS: &[&str] = &["curl", "wget", "nc", "ncat", "netcat", "socat", "ftp", "ssh", "lynx"];
/// Programs that run text in a language of their own.
pub(super) static INTERPRETERS: &[&str] = &["perl", "ruby", "node", "php", "lua", "awk", "gawk", "mawk", "tclsh"];
/// Shells.
pub(super) static SHELLS: &[&str] = &["sh", "bash", "dash", "zsh", "ksh", "ash", "fish"];
/// Variables that make programs load code.
pub(super) static LOADERS: &[&str] = &[
    "LD_PRELOAD",
    "LD_AUDIT",
    "LD_LIBRARY_PATH",
    "BASH_ENV",
    "PYTHONSTARTUP",
    "PYTHONHOME",
    "PERL5OPT",
    "NODE_OPTIONS",
];

/// What a name is in a table whose names may end in a star.
pub(super) fn find(table: &'static [(&str, &'static Pattern)], name: &str) -> Option<&'static Pattern> {
    let hit = |entry: &str| entry.strip_suffix('*').map_or(entry == name, |start| name.starts_with(start));
    table.iter().find(|(entry, _)| hit(entry)).map(|(_, pattern)| *pattern)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn names_are_single_and_reasons_are_given() {
        let names: BTreeSet<_> = ALL.iter().map(|pattern| pattern.name).collect();
        assert_eq!(names.len(), ALL.len());
        for pattern in ALL {
            assert!(pattern.level > RiskLevel::Safe && pattern.why.len() > 10, "{}", pattern.name);
        }
    }

    #[test]
    fn a_star_stands_for_any_rest_and_only_there() {
        assert_eq!(find(NAMES, "os.execvp").map(|pattern| pattern.name), Some("subprocess"));
        assert_eq!(find(NAMES, "os.systemx").map(|pattern| pattern.name), None);
        assert_eq!(find(NAMES, "evaluate").map(|pattern| pattern.name), None);
    }
}
