# The interpreter's side of a session: runs call after call in one __main__ and says how each ended.
# Calls come as lines of JSON on descriptor 100, one answer goes back for each on 101. Whatever is written to 102 the
# kernel turns into SIGINT. The code of a call runs in this process, so nothing said on 101 is believed by anybody.
# What few calls need is imported when they do: a session begins sooner, and one that waits ahead is smaller.
import builtins, io, json, os, signal, sys, types

CALLS, ANSWERS, INTERRUPTS = 100, 101, 102
VALUE_MAX, TEXT_MAX, LINE_MAX, FRAMES_MAX, FIGURES_MAX = 16384, 16384, 256, 64, 32
ARTIFACTS = "/workspace/artifacts"
SELF = os.getpid()


def idle(signum, frame):
    """An interrupt that comes when nothing runs interrupts nothing."""


def cut(text, most):
    return text if len(text) <= most else text[: most - 1] + "\u2026"


def own(tb):
    """The same traceback from the first frame that is not ours."""
    while tb is not None and tb.tb_frame.f_globals is globals():
        tb = tb.tb_next
    return tb


def told(error):
    import traceback

    kind, tb = type(error), own(error.__traceback__)
    frames = [
        {"file": cut(f.filename, LINE_MAX), "line": f.lineno or 0, "function": cut(f.name, LINE_MAX), "source": cut(f.line or "", LINE_MAX)}
        for f in traceback.extract_tb(tb)
    ]
    try:
        message = str(error)
    except BaseException:
        message = "<it can't be printed>"
    text = "".join(traceback.format_exception(kind, error, tb))
    left_out = max(0, len(frames) - FRAMES_MAX)
    return {
        "type": cut(kind.__qualname__, LINE_MAX),
        "message": cut(message, TEXT_MAX),
        "frames": frames[-FRAMES_MAX:],
        "frames_left_out": left_out,
        "text": text if len(text) <= TEXT_MAX else cut(text[: TEXT_MAX // 2], TEXT_MAX // 2) + "\n" + text[-TEXT_MAX // 2 :],
    }


def give_stdin(data):
    """Standard input of this call: the bytes that came with it, or its end."""
    import base64, tempfile

    if data is None:
        fd = os.open(os.devnull, os.O_RDONLY)
    else:
        file = tempfile.TemporaryFile()
        file.write(base64.b64decode(data))
        file.flush()
        file.seek(0)
        fd = os.dup(file.fileno())
        file.close()
    os.dup2(fd, 0)
    os.close(fd)
    sys.stdin = io.TextIOWrapper(io.BufferedReader(io.FileIO(0, closefd=False)), errors="surrogateescape")


def figures(number):
    """Saves the figures that are open, if the code uses matplotlib, and closes them."""
    plot = sys.modules.get("matplotlib.pyplot")
    if plot is None:
        return []
    saved = []
    for place in list(plot.get_fignums())[:FIGURES_MAX]:
        name = "figure-%d-%d.png" % (number, len(saved) + 1)
        plot.figure(place).savefig(os.path.join(ARTIFACTS, name))
        plot.close(place)
        saved.append(name)
    return saved


def run(main, call):
    """One call. Its value, if its last statement is an expression."""
    import ast, linecache

    if call.get("cwd") is not None:
        os.chdir(os.path.join("/workspace/work", call["cwd"]))
    os.environ.setdefault("MPLBACKEND", "Agg")  # there is no screen
    os.environ.update(call.get("env") or {})
    sys.argv[:] = ["-c"] + list(call.get("args") or [])
    give_stdin(call.get("stdin"))
    name, code = "<call %d>" % call["number"], call["code"]
    linecache.cache[name] = (len(code), None, code.splitlines(True), name)
    tree, last = compile(code, name, "exec", ast.PyCF_ONLY_AST, dont_inherit=True), None
    if tree.body and isinstance(tree.body[-1], ast.Expr):
        last = ast.Expression(tree.body.pop().value)
    exec(compile(tree, name, "exec", dont_inherit=True), main)
    if last is None:
        return None
    value = eval(compile(last, name, "eval", dont_inherit=True), main)
    if value is None:
        return None
    builtins._ = value
    return repr(value)


def prepared(call):
    """Imports ahead for whoever comes; a module that is not there will be missed by whoever asks for it."""
    for name in call["preload"]:
        try:
            __import__(name)
        except Exception:
            pass
    return {"id": call["id"], "exit_code": 0}


def once(main, call):
    """Becomes what `python3 -c` would be: no way back to us, no answer, and the interpreter's own end."""
    for fd in (CALLS, ANSWERS, INTERRUPTS):
        os.close(fd)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if "random" in sys.modules:
        sys.modules["random"].seed()  # its state is older than this call
    sys.argv[:] = ["-c"] + call["args"]
    try:
        exec(compile(call["code"], "<string>", "exec", dont_inherit=True), main)
    except SystemExit:
        raise
    except BaseException as error:
        error.__traceback__ = own(error.__traceback__)
        sys.excepthook(type(error), error, error.__traceback__)
        sys.exit(130 if isinstance(error, KeyboardInterrupt) else 1)


def answer(main, call):
    said = {"id": call["id"], "exit_code": 0, "value": None, "value_truncated": False, "error": None, "figures": []}
    try:
        try:
            if signal.getsignal(signal.SIGINT) is idle:
                signal.signal(signal.SIGINT, signal.default_int_handler)
            value = run(main, call)
            said["figures"] = figures(call["number"])
        finally:
            if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
                signal.signal(signal.SIGINT, idle)
        if value is not None:
            said["value"], said["value_truncated"] = cut(value, VALUE_MAX), len(value) > VALUE_MAX
    except SystemExit:
        raise
    except BaseException as error:
        signal.signal(signal.SIGINT, idle)
        said["error"] = told(error)
        said["exit_code"] = 130 if isinstance(error, KeyboardInterrupt) else 1
        try:
            sys.stderr.write(said["error"]["text"])
        except BaseException:
            pass  # the code closed or replaced it; the answer has the text as well
    for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
        try:
            stream.flush()
        except BaseException:
            pass  # closed by the code
    if os.getpid() != SELF:
        os._exit(said["exit_code"])  # a child that the code forked and did not end
    return said


def serve():
    for fd in (CALLS, ANSWERS, INTERRUPTS):
        os.set_inheritable(fd, False)
    signal.signal(signal.SIGINT, idle)
    module = types.ModuleType("__main__")
    module.__builtins__ = builtins
    sys.modules["__main__"] = module
    for line in open(CALLS, "rb", closefd=False):
        call = json.loads(line)
        if "once" in call:
            return once(module.__dict__, call)
        said = prepared(call) if "preload" in call else answer(module.__dict__, call)
        said = json.dumps(said).encode() + b"\n"
        while said:
            said = said[os.write(ANSWERS, said) :]


serve()
