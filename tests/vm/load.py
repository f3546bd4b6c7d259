"""Callers that never stop asking, and the question whether each of them got what it was told.

load.py ask ACKS STOP [CLIENTS]   16 clients, a connection for each request, until the file STOP is there. What was answered is a
                                  line of ACKS, on the disk before the next request. Exit 1 if a request had no good answer.
load.py check ACKS                every line of ACKS has one begin and one end in the evidence, none has two, nothing is open
"""
import collections, json, os, socket, subprocess, sys, threading

SOCKET, CTL = "/run/sandboxd/sandboxd.sock", "/usr/bin/sandboxctl"


def ask(marker):
    body = json.dumps({"exec": {"kind": "process", "command": "true"}, "task_ref": marker}).encode()
    head = b"POST /v1/execs HTTP/1.1\r\nhost: s\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    with socket.socket(socket.AF_UNIX) as caller:
        caller.settimeout(300)
        caller.connect(SOCKET)
        caller.sendall(head % len(body) + body)
        answer = b""
        while chunk := caller.recv(65536):
            answer += chunk
    head, _, body = answer.partition(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 200 "):
        raise OSError(f"{marker}: {answer[:300]!r}")
    if json.loads(body)["status"] != "ok":
        raise OSError(f"{marker}: {body[:300]!r}")


def clients(acks, stop, count):
    lost, asked, lock = [], [0], threading.Lock()

    def client(name):
        number = 0
        while not os.path.exists(stop):
            number += 1
            marker = f"{os.path.basename(acks)}-{os.getpid()}-{name}-{number}"
            try:
                ask(marker)
            except OSError as error:
                with lock:
                    lost.append(str(error))
                    asked[0] += 1
                continue
            with lock:
                asked[0] += 1
                os.write(out, f"{marker}\n".encode())
                os.fsync(out)

    out = os.open(acks, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    threads = [threading.Thread(target=client, args=(name,)) for name in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(f"  {asked[0]} asked, {asked[0] - len(lost)} answered, {len(lost)} lost")
    for error in lost[:3]:
        print(f"  {error}")
    return 1 if lost or not asked[0] else 0


def check(acks):
    export = subprocess.run([CTL, "evidence", "export"], capture_output=True, check=True).stdout
    records = [line.get("record", line) for line in map(json.loads, export.splitlines())]
    marker_of = {r["exec_id"]: r["task_ref"] for r in records if r.get("exec_id") and r.get("task_ref")}
    count = collections.Counter()
    for record in records:
        marker = record.get("task_ref") or marker_of.get(record.get("exec_id"))
        if marker:
            count[marker, record.get("kind")] += 1
    wanted = open(acks).read().split()
    bad = [m for m in wanted if (count[m, "begin"], count[m, "end"]) != (1, 1)]
    bad += [m for (m, kind), times in count.items() if times > 1]
    unended = [m for (m, kind) in count if kind == "begin" and count[m, "end"] != 1]
    verdict = subprocess.run([CTL, "--json", "evidence", "verify"], capture_output=True)
    sound = verdict.returncode == 0 and json.loads(verdict.stdout)["ok"]
    print(f"  {len(wanted)} acknowledged, {len(records)} records, {len(bad)} missing or twice, {len(unended)} without an end, chain {'sound' if sound else verdict}")
    return 1 if bad or unended or not sound or not wanted else 0


if __name__ == "__main__":
    if sys.argv[1] == "ask":
        sys.exit(clients(sys.argv[2], sys.argv[3], int((sys.argv[4:] or [16])[0])))
    sys.exit(check(sys.argv[2]))
