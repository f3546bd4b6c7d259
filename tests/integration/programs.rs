//! Normal programs work unchanged: a sandbox that breaks them is of no use.

use super::{DEFAULT, SHELL, assert_ended, json, need, output_of, program, python, run, shell, with};
use crate::harness::Daemon;

/// Python code that must print exactly this.
#[track_caller]
fn prints(code: &str, expected: &str) {
    need("/usr/bin/python3", "python3");
    let daemon = Daemon::start();
    let answer = run(&daemon, &python(code));
    assert_eq!((answer.stdout(), answer.stderr()), (expected, ""), "{}", answer.text);
    assert_ended(&answer, "ok", Some(0));
}

/// Shell code under `profile` that must print exactly this and end well.
#[track_caller]
fn shell_prints(profile: &str, code: &str, expected: &str) {
    let daemon = Daemon::start();
    let answer = run(&daemon, &with(shell(&format!("set -e -o pipefail\n{code}")), json!({"profile": profile})));
    assert_eq!(answer.stdout(), expected, "{}", answer.text);
    assert_ended(&answer, "ok", Some(0));
}

#[test]
fn python_threads() {
    prints(
        "from concurrent.futures import ThreadPoolExecutor as T\nprint(sum(T(32).map(lambda n: n * n, range(1000))))",
        "332833500\n",
    );
}

#[test]
fn python_subprocess() {
    let code = r#"
import subprocess
done = subprocess.run(["tr", "a-z", "A-Z"], input="hello", capture_output=True, text=True)
print(done.stdout, done.returncode)
print(subprocess.check_output("echo $((6 * 7)) | cat", shell=True, text=True).strip())
child = subprocess.Popen(["sleep", "30"], start_new_session=True)
child.terminate()
print(child.wait())
try: subprocess.run(["sleep", "30"], timeout=0.2)
except subprocess.TimeoutExpired: print("expired")
"#;
    prints(code, "HELLO 0\n42\n-15\nexpired\n");
}

#[test]
fn python_multiprocessing_by_every_method() {
    let code = r#"
import multiprocessing, sys
def square(n): return n * n
def shout(queue, value): value.value += 1; queue.put("hello")
def main(method):
    context = multiprocessing.get_context(method)
    with context.Pool(3) as pool: total = sum(pool.map(square, range(100)))
    queue, value = context.Queue(), context.Value("i", 41)
    child = context.Process(target=shout, args=(queue, value))
    child.start()
    said = queue.get(timeout=20)
    child.join()
    print(method, total, said, value.value, child.exitcode)
if __name__ == "__main__":
    for method in sys.argv[1:]: main(method)
"#;
    need("/usr/bin/python3", "python3");
    let daemon = Daemon::start();
    // spawn and forkserver import the main module again, so it has to be a file.
    let request = with(
        program("python3", &["/workspace/inputs/it.py", "fork", "spawn", "forkserver"]),
        json!({"inputs": [{"path": "it.py", "text": code}]}),
    );
    let line = |method: &str| format!("{method} 328350 hello 42 0\n");
    assert_eq!(output_of(&daemon, &request), ["fork", "spawn", "forkserver"].map(line).concat());
}

#[test]
fn python_shared_memory_and_mmap() {
    let code = r#"
from multiprocessing import shared_memory
import mmap, os
block = shared_memory.SharedMemory(create=True, size=1 << 20)
block.buf[:5] = b"hello"
other = shared_memory.SharedMemory(name=block.name)
print(bytes(other.buf[:5]))
other.close(); block.close(); block.unlink()
with open("file", "w+b") as file:
    file.truncate(8192)
    with mmap.mmap(file.fileno(), 0) as map: map[4096:4101] = b"there"
print(open("file", "rb").read()[4096:4101], os.listdir("/dev/shm"))
"#;
    prints(code, "b'hello'\nb'there' []\n");
}

#[test]
fn python_sqlite_on_disk() {
    let code = r#"
import sqlite3
def rows(path, mode):
    db = sqlite3.connect(path)
    kept = db.execute(f"pragma journal_mode={mode}").fetchone()[0]
    db.execute("create table t (n integer primary key, s text)")
    with db: db.executemany("insert into t (s) values (?)", [(str(n),) for n in range(1000)])
    db.close()
    return kept, sqlite3.connect(path).execute("select count(*), max(n) from t").fetchone()
print(rows("/workspace/work/a.db", "wal"), rows("/tmp/b.db", "delete"))
"#;
    prints(code, "('wal', (1000, 1000)) ('delete', (1000, 1000))\n");
    // And on a project's disk, twice.
    let daemon = Daemon::start();
    let code = "import sqlite3; db = sqlite3.connect('p.db'); db.execute('pragma journal_mode=wal'); db.execute('create table if not exists t (n)'); db.execute('insert into t values (1)'); db.commit(); print(db.execute('select count(*) from t').fetchone()[0])";
    for expected in ["1\n", "2\n"] {
        assert_eq!(output_of(&daemon, &with(python(code), json!({"project_id": "db"}))), expected);
    }
}

#[test]
fn python_asyncio_server_on_loopback() {
    let code = r#"
import asyncio, socket
async def main():
    async def answer(reader, writer):
        writer.write((await reader.readline()).upper()); await writer.drain(); writer.close()
    for host in "127.0.0.1", "localhost":
        server = await asyncio.start_server(answer, host, 0)
        port = server.sockets[0].getsockname()[1]
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(b"hello\n")
        print((await reader.readline()).decode().strip())
        writer.close(); server.close()
    process = await asyncio.create_subprocess_exec("echo", "child", stdout=asyncio.subprocess.PIPE)
    print((await process.communicate())[0].decode().strip(), process.returncode)
asyncio.run(main())
a, b = socket.socketpair(); a.send(b"x"); print(b.recv(1))
"#;
    prints(code, "HELLO\nHELLO\nchild 0\nb'x'\n");
}

#[test]
fn python_http_server_and_udp_on_loopback() {
    let code = r#"
import http.server, socket, threading, urllib.request
class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *words): pass
open("index.html", "w").write("served")
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Quiet)
threading.Thread(target=server.serve_forever, daemon=True).start()
print(urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}/").read().decode())
one, two = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2)]
one.bind(("127.0.0.1", 0)); two.sendto(b"datagram", one.getsockname()); print(one.recv(20).decode())
"#;
    prints(code, "served\ndatagram\n");
}

#[test]
fn python_ssl_with_the_hosts_certificates() {
    need("/etc/ssl/certs/ca-certificates.crt", "ca-certificates");
    prints("import ssl; print(len(ssl.create_default_context().get_ca_certs()) > 50)", "True\n");
}

#[test]
fn python_tempfile_pty_and_the_rest_of_the_box() {
    let code = r#"
import getpass, hashlib, os, pathlib, platform, pty, pwd, signal, socket, tempfile, time, zoneinfo
def whole_line(fd):
    line = b""
    while not line.endswith(b"\n"): line += os.read(fd, 100)
    return line
with tempfile.NamedTemporaryFile("w+") as file:
    file.write("x" * 100); file.flush(); print(os.path.getsize(file.name), file.name.startswith("/tmp/"))
with tempfile.TemporaryDirectory() as name: print(pathlib.Path(name, "a").write_text("b"))
master, slave = pty.openpty(); os.write(slave, b"tty\n"); print(whole_line(master), os.ttyname(slave)[:9])
pid, fd = pty.fork()
if pid == 0: os.execlp("tty", "tty")
print(whole_line(fd).decode().strip()[:9], os.waitpid(pid, 0)[1])
print(getpass.getuser(), os.getuid(), pwd.getpwuid(os.getuid()).pw_dir, socket.gethostname(), os.getcwd())
signal.signal(signal.SIGALRM, lambda *_: print("alarm")); signal.setitimer(signal.ITIMER_REAL, 0.05); time.sleep(0.3)
print(hashlib.sha256(os.urandom(32)).digest_size, platform.system(), pathlib.Path.home(), len(os.sched_getaffinity(0)) > 0)
"#;
    let expected = "100 True\n1\nb'tty\\r\\n' /dev/pts/\n/dev/pts/ 0\nsandbox 1000 /home/sandbox sandbox /workspace/work\nalarm\n32 Linux /home/sandbox True\n";
    prints(code, expected);
}

#[test]
fn bash_pipelines_here_documents_and_process_substitution() {
    let code = r#"
seq 1000 | grep 7 | wc -l
cat <<END | tr a-z A-Z
here $((1 + 1))
END
cat <<< "string"
diff <(printf 'a\nb\n') <(printf 'a\nc\n') || echo "differ $?"
tee >(cat >&2) < /etc/hostname > /dev/null
exec 5<> /tmp/both; echo five >&5; cat /tmp/both
echo again > /dev/stdout; echo err > /dev/stderr; echo null > /dev/null
for i in {1..3}; do (exit $i) & done; wait; trap 'echo bye' EXIT
coproc cat; echo co >&"${COPROC[1]}"; read -r line <&"${COPROC[0]}"; echo $line
[[ -r /dev/urandom && ! -e /dev/sda && -w /dev/full ]] && echo devices
"#;
    let expected = "271\nHERE 2\nstring\n2c2\n< b\n---\n> c\ndiffer 1\nfive\nagain\nco\ndevices\nbye\n";
    shell_prints(DEFAULT, code, expected);
}

#[test]
fn standard_streams_can_be_opened_again_by_name() {
    let daemon = Daemon::start();
    let code = "echo a > /dev/stderr; echo b > /proc/self/fd/2; echo c > /dev/fd/1; cat /dev/stdin";
    let answer = run(&daemon, &with(shell(code), json!({"stdin": "in\n"})));
    assert_eq!((answer.stdout(), answer.stderr()), ("c\nin\n", "a\nb\n"), "{}", answer.text);
}

#[test]
fn git_init_commit_log() {
    need("/usr/bin/git", "git");
    let code = r#"
git init -q -b main repo && cd repo
git config user.email a@b.c && git config user.name A
echo one > file && git add . && git commit -q -m first
echo two >> file && git commit -q -a -m second
git checkout -q -b side && git clone -q . ../copy
git -C ../copy log --format=%s && git diff HEAD~1 --stat | tail -1 && git fsck && git gc -q
"#;
    shell_prints(SHELL, code, "second\nfirst\n 1 file changed, 1 insertion(+)\n");
    // A project's repository is trusted by the next exec: it belongs to the same user inside.
    let daemon = Daemon::start();
    let project = json!({"project_id": "repo"});
    run(
        &daemon,
        &with(
            shell("git init -q . && git -c user.email=a@b.c -c user.name=A commit -q --allow-empty -m kept"),
            project.clone(),
        ),
    );
    assert_eq!(output_of(&daemon, &with(shell("git log --format=%s"), project)), "kept\n");
}

#[test]
fn gcc_and_make_build_and_run() {
    need("/usr/bin/gcc", "gcc libc6-dev");
    need("/usr/bin/make", "make");
    let code = r#"
cat > hello.c <<'END'
#include <math.h>
#include <pthread.h>
#include <stdio.h>
static void *thread(void *n) { printf("hello %.0f\n", sqrt(*(double *)n)); return 0; }
int main(void) { double n = 1764; pthread_t t; pthread_create(&t, 0, thread, &n); return pthread_join(t, 0); }
END
printf 'all: hello\n\t./hello\nhello: hello.o\n\tgcc -o $@ $< -lm -pthread\n' > Makefile
make -s -j4
gcc -static -O2 -o static hello.c -lm -pthread && ./static
"#;
    shell_prints(SHELL, code, "hello 42\nhello 42\n");
}

#[test]
fn node_runs_with_its_threads_and_children() {
    need("/usr/bin/node", "nodejs");
    let code = r#"
const { execFileSync } = require("child_process");
const { Worker } = require("worker_threads");
const http = require("http"), fs = require("fs"), crypto = require("crypto");
console.log(execFileSync("echo", ["child"]).toString().trim(), crypto.randomBytes(8).length);
fs.writeFileSync("file", "x".repeat(1000)); console.log(fs.statSync("file").size);
new Worker("require('worker_threads').parentPort.postMessage(6 * 7)", { eval: true }).on("message", n => {
  console.log(n);
  const server = http.createServer((q, a) => a.end("served")).listen(0, "127.0.0.1", () =>
    http.get({ port: server.address().port, host: "127.0.0.1", agent: false }, a => a.on("data", d => console.log(d.toString())).on("end", () => server.close())));
});
"#;
    let daemon = Daemon::start();
    let answer = run(&daemon, &program("node", &["-e", code]));
    assert_eq!(answer.stdout(), "child 8\n1000\n42\nserved\n", "{}", answer.text);
    assert_ended(&answer, "ok", Some(0));
}

#[test]
fn archives_survive_a_round_trip() {
    for program in ["bzip2", "unzip", "zip"] {
        need(&format!("/usr/bin/{program}"), program);
    }
    need("/usr/bin/xz", "xz-utils");
    let code = r#"
mkdir -p tree/deep; head -c 300000 /dev/urandom > tree/random; seq 10000 > tree/deep/text; ln -s deep/text tree/link; chmod 750 tree/deep
for flag in z j J; do tar -c${flag}f t.tar tree; mkdir out; tar -xf t.tar -C out; diff -r tree out/tree; stat -c %a out/tree/deep; rm -r out; done
(cd tree && zip -q -r ../t.zip .); unzip -q t.zip -d unzipped; diff -r tree unzipped && echo same
cp -a tree copy; mv copy moved; ln moved/random hard; find . -name text | sort | tr '\n' ' '; rm -r moved
"#;
    shell_prints(DEFAULT, code, "750\n750\n750\nsame\n./moved/deep/text ./tree/deep/text ./unzipped/deep/text ");
}

#[test]
fn package_tools_that_only_read_end_well() {
    need("/usr/bin/apt", "apt");
    for (command, args) in
        [("apt", &["list"][..]), ("dpkg", &["-l"]), ("apt-cache", &["policy"]), ("apt-get", &["--version"])]
    {
        let daemon = Daemon::start();
        let answer = run(&daemon, &program(command, args));
        assert_ended(&answer, "ok", Some(0));
    }
}

#[test]
fn perl_awk_sed_sort_and_the_small_tools() {
    need("/usr/bin/perl", "perl");
    let code = r#"
perl -MList::Util=sum -MPOSIX -e 'print sum(1..100), " ", floor(2.5), " ", `echo sub`'
seq 1000000 | shuf --random-source=<(yes) | sort -n --parallel=2 -S 4M | tail -1
seq 10 | awk '{s += $1} END {print s}' | sed 's/5/five/g'
printf 'b a\nd c\n' | xargs -n1 -P2 echo | sort | tr '\n' ' '
date -u -d @0 +%Y; id -un; hostname; uname -s; nproc > /dev/null; ps -e -o pid= | wc -l > /dev/null
df /tmp > /dev/null; env | grep -c ^PATH=; timeout 0.1 sleep 5 || echo "timeout $?"; which bash
mkfifo pipe; (echo through > pipe &); cat pipe; flock lock echo locked; realpath ..; test -t 0 || echo "no tty"
"#;
    let expected = "5050 2 sub\n1000000\nfivefive\na b c d 1970\nsandbox\nsandbox\nLinux\n1\ntimeout 124\n/usr/bin/bash\nthrough\nlocked\n/workspace\nno tty\n";
    shell_prints(SHELL, code, expected);
}

#[test]
fn locale_time_zone_and_names_are_there() {
    let code = r#"
import locale, os, socket, time, encodings.idna
print(locale.setlocale(locale.LC_ALL, ""), "ä".encode(), time.tzname != (), socket.gethostbyname("localhost"), socket.getservbyname("https"))
"#;
    need("/etc/services", "netbase");
    prints(code, "C.UTF-8 b'\\xc3\\xa4' True 127.0.0.1 443\n");
}
